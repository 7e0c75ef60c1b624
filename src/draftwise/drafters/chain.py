"""The draft of one row while it grows, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from draftwise.drafters.protocol import DraftTask, Mix
from draftwise.nn.sampling import Dists
from draftwise.types import Draft, DraftStep, Floats


@dataclass(slots=True)
class _Node:
    """A drafted token. parent: -1 = the text. q: None = a point mass. confidence: NaN if it was
    copied. source: the drafter that copied it; "" = the chain's own.
    """

    parent: int
    token: int
    q: Tensor | None
    source: str = ""
    confidence: float = float("nan")


class Chain:
    """The draft of one row while it grows.

    nodes: its tokens. alternatives: their siblings, and branches of copied tokens. is_stepwise: the
    host receives each token before the next is drawn. waits: the stop rule needs a token's hidden
    state to judge it. needs_facts: the mixer or stop rule needs probabilities.
    """

    def __init__(self, task: DraftTask, shows_hidden: bool, resumes: bool = True) -> None:
        self.context, self.length, self.tree = task.context, task.length, task.tree
        self._stop_rule, self._mix, self._resumes = task.stop_rule, task.mix, resumes
        self.is_mixed = task.mix is not None
        self.is_over = False
        has_callback = task.context.sampling.process is not None
        self.is_stepwise = self.is_mixed or has_callback or not task.stop_rule.never_stops
        self._may_branch = task.mix is not None and task.mix.most > 0 and not has_callback
        self.waits = not self.is_mixed and shows_hidden and task.stop_rule.waits_for_hidden
        self.needs_facts = self.is_mixed or task.stop_rule.needs_probs
        self.tokens: list[int] = []
        self.nodes: list[_Node] = []
        self.alternatives: list[_Node] = []
        self.offpath_probs: list[tuple[int, Tensor]] = []
        self._found: dict[int, Mapping[str, tuple[int, int]]] = {}  # matches by depth
        self._hidden: NDArray[np.float32] | None = None
        self._step = DraftStep(0, task.length)

    @property
    def end(self) -> int:
        """Number of tokens of text and chain."""
        return len(self.context.tokens) + len(self.tokens)

    def shorten(self, num_slots: int) -> None:
        """Limit the depth to what fits into ``num_slots`` slots."""
        room = num_slots if self.tree is None else 1 + num_slots // self.tree.top_k
        self.length = max(0, min(self.length, room))

    def copy(self) -> None:
        """Append retrieved tokens until the mixer chooses the drafter, or ends the draft."""
        if self._mix is None:
            return
        while not self.is_over:
            found = self._found[len(self.tokens)] = self._mix.peek(self.tokens)
            matches = {name: self._match(*match) for name, match in found.items()}
            may_draft = self._resumes or not any(node.source for node in self.nodes)
            picked = self._mix.mixer.pick(self._step, matches, may_draft, self._may_branch)
            if picked == self._mix.mixer.drafter:
                return
            if picked is None:
                self.is_over = True
            else:
                self._append(found[picked][1], None, picked)
                self._step = DraftStep(len(self.tokens), self.length)

    def _match(self, length: int, token: int) -> int:
        """The match's length; 0 if its next token has probability 0 here."""
        allowed = self.context.num_allowed([*self.tokens, token]) if length else 0
        return length if allowed > len(self.tokens) else 0

    def should_continue(self) -> bool:
        """Whether to draw another token, after appending those that the mixer copies."""
        self.copy()
        return not self.is_over and (self.is_mixed or self._stop_rule.should_continue(self._step))

    def keep(self, token: int, q: Tensor | None, facts: Floats | None) -> None:
        """Append a drawn token; -1 = q was not finite, which ends the draft. q: [V], None = a point
        mass. facts: its row of ``DraftLogits.described``.
        """
        self.is_over = self.is_over or token < 0
        if self.is_over:
            return
        self._append(token, q, "")
        depth, before = len(self.tokens), self._step.entropy
        if facts is None:
            self._step = DraftStep(depth, self.length, hidden_before=self._hidden)
        elif self.is_mixed:
            self.nodes[-1].confidence = float(facts[0])
            self._step = DraftStep(depth, self.length, max_prob=float(facts[0]))
        else:
            largest, prob, entropy, margin = facts.tolist()
            about = (prob, largest, entropy, margin, before)
            self._step = DraftStep(depth, self.length, *about, hidden_before=self._hidden)

    def num_siblings(self) -> int:
        """Number of siblings of the last token to verify."""
        if self._mix is None or not self.tokens or not self._may_branch:
            return 0
        room = self._mix.most - self.num_tokens
        return min(self._mix.mixer.num_siblings(self._step, room), room) if room > 0 else 0

    def widen(self, tokens: Sequence[int], qs: Sequence[Tensor | None]) -> None:
        """Add siblings of the last token; qs: as for ``keep``."""
        last = self.nodes[-1]
        self.alternatives += [
            _Node(last.parent, token, q, confidence=last.confidence)
            for token, q in zip(tokens, qs, strict=True)
        ]
        self.is_over = self.is_over or self._is_full

    def branch(self) -> None:
        """Let the mixer add branches of copied tokens where they differ from the chain's.

        Verification tries them after the chain's token and its siblings, whose values may decide: a
        residual is the same whichever token was drawn (docs/verification.md).
        """
        mix = self._mix
        if mix is None or not self._may_branch:
            return
        for depth, token in enumerate(self.tokens):
            room = min(mix.most - self.num_tokens, self.length - depth)
            own = {a.token for a in self.alternatives if a.parent == depth - 1} | {token}
            found = self._found.get(depth, {}).items()
            others = {name: match for name, (match, first) in found if match and first not in own}
            if room > 0 and others:
                width, confidence = self.num_tokens, self.nodes[depth].confidence
                name, num = mix.mixer.branch(depth, confidence, others, width, room)
                self._copy_branch(mix, depth, name, num)

    def _copy_branch(self, mix: Mix, depth: int, name: str, num: int) -> None:
        path, parent, found = self.tokens[:depth], depth - 1, self._found[depth]
        for _ in range(num):
            match, token = found.get(name, (0, -1))
            if not match:
                break
            self.alternatives.append(_Node(parent, token, None, name))
            if token in self.context.eos:
                break
            parent, path = self.num_tokens - 1, [*path, token]
            found = mix.peek(path)

    def add_offpath(self, node: int, q: Dists, row: int) -> None:
        """Store the drafter's q after a node, for scoring."""
        drawn_from = q.q(row)
        self.offpath_probs.append((node, q.tokens[row] if drawn_from is None else drawn_from))

    def show(self, hidden: Floats) -> None:
        self._hidden = hidden.astype(np.float32)
        if self.tokens:
            self._step = replace(self._step, hidden=self._hidden)

    def _append(self, token: int, q: Tensor | None, source: str) -> None:
        self.nodes.append(_Node(len(self.tokens) - 1, token, q, source))
        self.tokens.append(token)
        is_last = len(self.tokens) >= self.length or token in self.context.eos
        self.is_over = is_last or self._is_full

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + len(self.alternatives)

    @property
    def _is_full(self) -> bool:
        return self._mix is not None and 0 < self._mix.most <= self.num_tokens

    def draft(self, source: str) -> Draft:
        self.branch()
        nodes = [*self.nodes, *self.alternatives]
        is_tree = bool(self.alternatives)
        return Draft(
            np.array([node.token for node in nodes], dtype=np.int64),
            [node.q for node in nodes],
            [node.source or source for node in nodes],
            np.array([node.parent for node in nodes], dtype=np.int64) if is_tree else None,
            [node.confidence for node in nodes] if self.is_mixed else (),
            self.offpath_probs,
        )
