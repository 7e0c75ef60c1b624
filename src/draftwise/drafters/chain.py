"""Chains while they grow: what drafters that draw token after token share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.dist import draw, is_broken
from draftwise.drafters.protocol import DraftTask
from draftwise.types import Dist, Draft, DraftStep


@dataclass(slots=True)
class Known:
    """q at text positions ``start``, ``start + 1``, ... that were not yet reported.

    drafted: the chain drafted last, behind ``base`` tokens of text.
    """

    start: int = 0
    dists: list[Dist] = field(default_factory=list)
    base: int = 0
    drafted: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The first position whose q is neither here nor was reported."""
        return self.start + len(self.dists)

    def add(self, first: int, dists: Sequence[Dist]) -> None:
        """Append the q's of positions ``first``...: none twice, and none behind a gap."""
        if first > self.end:
            self.start, self.dists = first, []
        self.dists.extend(dists[self.end - first :])

    def agree(self, text: Sequence[int]) -> int:
        """Tokens of the text up to where the last draft left it; q's beyond are forgotten."""
        if not self.drafted:
            return len(text)
        end = self.base
        for ours, theirs in zip(self.drafted, text[self.base :], strict=False):
            if ours != theirs:
                break
            end += 1
        self.drafted = []
        del self.dists[max(0, end + 1 - self.start) :]
        return end


class Chain:
    """The draft of one row while it grows."""

    def __init__(self, task: DraftTask) -> None:
        self.context, self.length, self.tree = task.context, task.length, task.tree
        self._guide, self._mix = task.guide, task.mix
        self.is_over = False
        self.reads_text = task.context.sampling.reads_text
        self.tokens: list[int] = []
        self.sources: list[str] = []  # of copied tokens; "" = the drafter itself
        self.dists: list[Dist] = []
        self.confidences: list[float] = []
        self.next: Dist = -1
        self.logits = torch.empty(0)
        self._hidden: NDArray[np.float32] | None = None
        self._step = DraftStep(0, task.length)

    @property
    def num_slots(self) -> int:
        """Tokens that the draft may put into the cache."""
        return self.length if self.tree is None else self.tree.top_k * max(0, self.length - 1)

    def shorten(self, num_slots: int) -> None:
        """Draft no deeper than fits into so many slots."""
        room = num_slots if self.tree is None else 1 + num_slots // self.tree.top_k
        self.length = max(0, min(self.length, room))

    @property
    def text(self) -> list[int]:
        """The text and the draft so far."""
        return [*self.context.tokens, *self.tokens]

    def copy(self) -> None:
        """Append what the mixer takes from retrieval, up to where it wants the drafter, or ends."""
        if self._mix is None:
            return
        while not self.is_over:
            found = self._mix.peek(self.tokens)
            picked = self._mix.mixer.pick(self._step, {name: m for name, (m, _) in found.items()})
            if picked == self._mix.mixer.drafter:
                return
            if picked is not None:
                self._keep(found[picked][1], found[picked][1], picked)
                self._step = DraftStep(len(self.tokens), self.length)
            self.is_over = picked is None or len(self.tokens) >= self.length

    def see(self, dist: Dist, logits: Tensor, hidden: NDArray[np.float32] | None) -> None:
        """q of the coming token, the [V] logits it came from, and the state at the last token."""
        self.next, self.logits, self._hidden = dist, logits, hidden
        if hidden is not None and self.tokens:
            self._step = replace(self._step, hidden=hidden)

    def begins(self) -> bool:
        """Whether to draw a first token: the guide agrees, and q is finite."""
        allowed = self.length > 0 and not is_broken(self.next)
        return allowed and (self._mix is not None or self._guide.goes_on(self._step))

    def wants_to_read(self) -> bool:
        """Whether to read the token just drawn: below the length, and the guide agrees.

        Reading is a forward, so guides are asked before it, except those that judge what it shows.
        """
        if len(self.tokens) >= self.length:
            return False
        if self._mix is not None:
            self.copy()
            return not self.is_over
        return self._waits() or self._guide.goes_on(self._step)

    def wants_to_draw(self) -> bool:
        """Whether to draw from the q that reading gave; a guide that waited for it is asked now."""
        if is_broken(self.next):
            return False
        return self._mix is not None or not self._waits() or self._guide.goes_on(self._step)

    def _waits(self) -> bool:
        """Where hidden states are shown, a guide that says nothing else (a watched one) waits."""
        return self._hidden is not None and getattr(self._guide, "waits_for_hidden", True)

    def draw(self) -> None:
        """Draw from q and keep the token, whatever it is."""
        q = self.next
        token = draw(q, self.context.rng.random()) if not isinstance(q, int) else q
        self._keep(token, q, "")
        if self._mix is not None:
            probs = self.logits.float().softmax(-1) if isinstance(q, int) else q
            self.confidences[-1] = float(probs.max())
            self._step = DraftStep(len(self.tokens), self.length, max_prob=self.confidences[-1])
        elif self._guide.needs_probs:
            before = self._step.entropy
            step = _describe(self.logits, q, token, len(self.tokens), self.length)
            self._step = replace(step, entropy_before=before, hidden_before=self._hidden)
        else:
            self._step = DraftStep(len(self.tokens), self.length, hidden_before=self._hidden)

    def _keep(self, token: int, q: Dist, source: str) -> None:
        self.tokens.append(token)
        self.dists.append(q)
        self.sources.append(source)
        self.confidences.append(float("nan"))

    def draft(self, source: str) -> Draft:
        """The chain as a draft; greedy and copied tokens are point masses."""
        probs = [None if isinstance(q, int) else q for q in self.dists]
        sources = [own or source for own in self.sources]
        confidences = self.confidences if self._mix is not None else ()
        tokens = np.asarray(self.tokens, dtype=np.int64)
        return Draft(tokens, probs, sources, confidences=confidences)


def draw_chains(
    chains: Sequence[Chain], known: Sequence[Known], step: Callable[[Sequence[Chain]], None]
) -> None:
    """Draw token after token, all chains that go on in one forward a step.

    known: by row, where each q is noted. step: reads the tokens drawn last and lets their chains
    ``see`` what follows.
    """
    active = [chain for chain in chains if chain.begins()]
    while active:
        for chain in active:
            chain.draw()
            end = len(chain.context.tokens) + len(chain.tokens)
            known[chain.context.row].add(end - 1, chain.dists[-1:])
        active = [chain for chain in active if chain.wants_to_read()]
        if active:
            step(active)
        active = [chain for chain in active if _draws_on(chain, known[chain.context.row])]


def _draws_on(chain: Chain, known: Known) -> bool:
    """Whether the chain draws again; if not, the q that it did not use is kept for scoring."""
    draws = chain.wants_to_draw()
    if not draws and not is_broken(chain.next):
        known.dists.append(chain.next)
    return draws


def _describe(logits: Tensor, q: Dist, token: int, depth: int, length: int) -> DraftStep:
    """What a guide sees of the token just kept; greedy drafts are judged at temperature 1."""
    probs = logits.float().softmax(-1) if isinstance(q, int) else torch.from_numpy(q)
    top = probs.topk(2).values.tolist()
    entropy = float(torch.special.entr(probs).sum())
    return DraftStep(depth, length, float(probs[token]), top[0], entropy, top[0] - top[1])
