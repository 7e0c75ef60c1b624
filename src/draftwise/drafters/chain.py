"""One row's draft while it grows, on the host's side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.drafters.protocol import DraftTask
from draftwise.nn.sampling import Dists
from draftwise.types import Draft, DraftStep, Floats


class Chain:
    """The draft of one row: what was written, by whom, and whether it goes on.

    looks: whether each token is looked at before the next is drawn; otherwise the whole draft
    is drawn before the host sees any of it. waits: whether that is only after it was read, for the
    hidden state there.
    """

    def __init__(self, task: DraftTask, shows_hidden: bool) -> None:
        self.context, self.length, self.tree = task.context, task.length, task.tree
        self._guide, self._mix = task.guide, task.mix
        self.is_over = False
        self.looks = (
            task.mix is not None
            or not task.guide.always_goes_on
            or task.context.sampling.process is not None
        )
        self.waits = task.mix is None and shows_hidden and task.guide.waits_for_hidden
        self.is_mixed = task.mix is not None
        self.tokens: list[int] = []
        self.sources: list[str] = []  # of copied tokens; "" = the drafter itself
        self.probs: list[Tensor | None] = []
        self.asides: list[tuple[int, Tensor]] = []
        self.confidences: list[float] = []
        self._hidden: NDArray[np.float32] | None = None
        self._step = DraftStep(0, task.length)

    @property
    def needs_facts(self) -> bool:
        """Whether more than the tokens is looked at: their probabilities."""
        return self.is_mixed or self._guide.needs_probs

    def shorten(self, num_slots: int) -> None:
        """Draft no deeper than fits into so many slots."""
        room = num_slots if self.tree is None else 1 + num_slots // self.tree.top_k
        self.length = max(0, min(self.length, room))

    def copy(self) -> None:
        """Append what the mixer takes from retrieval, up to where it wants the drafter, or ends."""
        if self._mix is None:
            return
        while not self.is_over:
            found = self._mix.peek(self.tokens)
            matches = {name: self._match(*match) for name, match in found.items()}
            picked = self._mix.mixer.pick(self._step, matches)
            if picked == self._mix.mixer.drafter:
                return
            if picked is None:
                self.is_over = True
            else:
                self._append(found[picked][1], None, picked)
                self._step = DraftStep(len(self.tokens), self.length)

    def _match(self, length: int, token: int) -> int:
        """A match's length; 0 where what follows it cannot stand behind this draft."""
        if not length or self.context.sampling.process is None:
            return length
        stands = self.context.num_allowed([*self.tokens, token]) > len(self.tokens)
        return length if stands else 0

    def begins(self) -> bool:
        """Whether to draw a first token."""
        return not self.is_over and self.length > 0 and (self.is_mixed or self.goes_on())

    def goes_on(self) -> bool:
        """Whether to draw another token; a mixer lets others write first."""
        if self.is_over:
            return False
        if self.is_mixed:
            self.copy()
            return not self.is_over
        return self._guide.goes_on(self._step)

    def keep(self, token: int, q: Tensor | None, facts: Floats | None) -> None:
        """The drafter drew this token, which is in the draft from now on.

        q: [V] that it was drawn from, None = it was certain. facts: of the token, as ``described``.
        A token of -1 says that q was not finite: the draft ends before it.
        """
        if token < 0:
            self.is_over = True
        if self.is_over:
            return
        self._append(token, q, "")
        depth, before = len(self.tokens), self._step.entropy
        if facts is None:
            self._step = DraftStep(depth, self.length, hidden_before=self._hidden)
        elif self.is_mixed:
            self.confidences[-1] = float(facts[1])
            self._step = DraftStep(depth, self.length, max_prob=float(facts[1]))
        else:
            prob, largest, entropy, margin = facts.tolist()
            step = DraftStep(depth, self.length, prob, largest, entropy, margin, before)
            self._step = replace(step, hidden_before=self._hidden)

    def set_aside(self, node: int, q: Dists, row: int) -> None:
        """Note what the drafter would have drawn from behind a node, to score it."""
        drawn_from = q.q(row)
        self.asides.append((node, q.tokens[row] if drawn_from is None else drawn_from))

    def show(self, hidden: Floats) -> None:
        """The state at the token that was read last."""
        self._hidden = hidden.astype(np.float32)
        if self.tokens:
            self._step = replace(self._step, hidden=self._hidden)

    def _append(self, token: int, q: Tensor | None, source: str) -> None:
        self.tokens.append(token)
        self.probs.append(q)
        self.sources.append(source)
        self.confidences.append(float("nan"))
        self.is_over = len(self.tokens) >= self.length or token in self.context.eos

    def draft(self, source: str) -> Draft:
        """The chain as a draft; greedy and copied tokens are point masses."""
        return Draft(
            np.asarray(self.tokens, dtype=np.int64),
            self.probs,
            [own or source for own in self.sources],
            confidences=self.confidences if self.is_mixed else (),
            asides=self.asides,
        )


def described(q: Dists, logits: Tensor, tokens: Tensor) -> Tensor:
    """[N, 4] of each token: its probability, the largest one, the entropy, the gap of the two
    largest; greedy drafts are judged at temperature 1."""
    probs = logits.float().softmax(-1)
    if len(q.probs):
        drawn = torch.from_numpy(np.flatnonzero(q.places >= 0)).to(probs.device)
        probs = probs.index_copy(0, drawn, q.probs)
    own = probs.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    top = probs.topk(2).values
    entropy = torch.special.entr(probs).sum(-1)
    return torch.stack((own, top[:, 0], entropy, top[:, 0] - top[:, 1]), dim=-1)
