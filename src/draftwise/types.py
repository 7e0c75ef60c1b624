"""The words of draftwise: plain frozen values, numpy only, imported by every other room.

Dimension letters, here and everywhere: B batch, T time, N draft nodes, V vocabulary, D hidden,
K plans. ``p`` is always the target's distribution and ``q`` the drafter's (Leviathan's convention).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.checks import whole
from draftwise.errors import DraftwiseError as DraftwiseError
from draftwise.sampling import SamplingParams as SamplingParams  # one of the words

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Dist = int | NDArray[Any]
"""A distribution over the vocabulary: [V] probabilities, or the token itself if a point mass."""

LONGEST_PLAN = 1024
"""Tokens that a plan may draft at most: caches have room for them."""

NONE = "none"
"""The drafter's name in the plan that decodes plainly: no draft, one token a round."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How wide a draft is: children tried after a token, and tokens in all (EAGLE-2's names)."""

    top_k: int
    total_tokens: int

    def __post_init__(self) -> None:
        for name in ("top_k", "total_tokens"):
            whole(f"the {name} of a tree", getattr(self, name), 1, LONGEST_PLAN)

    def __str__(self) -> str:
        return f"{self.top_k}x{self.total_tokens}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request drafts in a round: drafter, length, what ends the draft early, and how wide.

    ``length`` is in tokens, a tree's depth; 0 exactly for the plan ``none``. ``rule`` is a guide's
    spec. ``tree``: None = a chain.
    """

    drafter: str
    length: int
    rule: str = "fixed"
    tree: TreeShape | None = None

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length > LONGEST_PLAN:  # one is made every round
            object.__setattr__(self, "length", whole("length", self.length, 0, LONGEST_PLAN))
        if self.length < 0 or (self.length == 0) != (self.drafter == NONE):
            raise ValueError(
                f"plan {self.drafter!r} has length {self.length}: a drafter drafts at least one "
                f"token, and only the plan {NONE!r} has length 0"
            )

    def __str__(self) -> str:
        if self.drafter == NONE:
            return NONE
        rule = "" if self.rule == "fixed" else f"/{self.rule}"
        tree = "" if self.tree is None else f"/tree{self.tree}"
        return f"{self.drafter}x{self.length}{rule}{tree}"

    @property
    def num_tokens(self) -> int:
        """Tokens that a draft has at most, and that the target then verifies."""
        return self.length if self.tree is None else self.tree.total_tokens

    @property
    def num_slots(self) -> int:
        """Room in a KV cache that drafting or verifying it takes: a tree is pruned when grown."""
        grown = 0 if self.tree is None else self.tree.top_k * (self.length - 1)
        return max(self.num_tokens, grown)


PLAIN = Plan(NONE, 0)
"""Plain decoding, as a plan."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy chose: the plan's index, the probability it had then, and its round.

    The probability travels along, so that feedback which comes late stays unbiased.
    """

    plan: int
    prob: float
    round: int


@dataclass(frozen=True, slots=True)
class Scores:
    """How one drafter fares along verified text, whether or not it drafted it.

    alphas: [n] acceptance probability ``sum_v min(p, q)`` at each position, in [0, 1] (for a point
        mass, p of the proposed token; when decoding greedily, 1 where the two agree and else 0).
    ratios: [n] ``min(1, q/p)`` of the token that the text really has there, in [0, 1].
    matches: [n] tokens of a retrieval drafter's suffix match, 0 = no proposal; else None.
    start: position of the first of them in the text (prompt included), in tokens.
    weight: in (0, 1], what they say of its drafts: less than 1 where it read less than for a draft.
    """

    start: int
    alphas: Floats
    ratios: Floats
    matches: Ints | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds as measured so far in the running engine, at the present batch size.

    target_s: [n] seconds of a target forward over 1, 2, .. n tokens a row.
    draft_s: seconds of one draft step, by drafter.
    batch_s: [n] seconds of a forward over 1, 2, .. tokens of all rows together, where drafts are
        verified side by side whatever their lengths (vLLM); None where the widest row counts.
    read_s: seconds of a token of the text that a drafter missed and catches up on, by drafter;
        empty where that was not measured.
    """

    target_s: Floats
    draft_s: Mapping[str, float]
    batch_s: Floats | None = None
    read_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that one round made known about one request, before any reward looks at it.

    scores: what became known of each drafter, in text order: for the drafter that played, its
        drafted positions through the first rejection and the backlog it caught up on.
    drafted_alphas: [num_drafted] alpha at EVERY drafted position given the draft's own prefix, the
        rejected tail included (what block divergence averages, MetaSD eq. 4).
    emitted_start: position in the text of the first token that the round emitted.
    seconds: duration of the round, drafting and verification.
    costs: what everything costs, or None where they are not measured.
    matches: length of each retrieval drafter's match at the END of the text, 0 = no proposal: the
        context of the next choice.
    confidences: [n] the largest probability of q of each token of a chain, NaN where a match wrote
        it; empty unless drafters are mixed.
    siblings: of each alternative of a kept or first wrong token of the chain, the confidence of
        that token, the alternative's rank from 1 on, and whether it was kept.
    stops: tokens that the drafter's other rules would have drafted, by rule; only of those that
        would have stopped within this draft, and only where the feedback compares rules.
    tokens: those that the round emitted; empty where nothing learns what texts are like.
    num_left: tokens that the answer may still have, at most; None where that is not known.
    """

    plan: Plan
    num_drafted: int
    num_accepted: int
    scores: Mapping[str, Scores] = field(default_factory=dict)
    drafted_alphas: Floats = field(default_factory=lambda: np.zeros(0))
    emitted_start: int = 0
    seconds: float = 0.0
    costs: Costs | None = None
    matches: Mapping[str, int] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)
    confidences: Sequence[float] = ()
    siblings: Sequence[tuple[float, int, bool]] = ()
    tokens: Sequence[int] = ()
    num_left: int | None = None

    @property
    def num_emitted(self) -> int:
        """Accepted tokens and the bonus token; in tokens."""
        return self.num_accepted + 1


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a policy is told: a value in [0, 1] for each plan that was ``seen``.

    values, seen: [K]; where not seen, a value is ignored. evidence: the raw facts, for policies
    that price plans. more: how many further feedbacks of the same decision are still to come.
    """

    values: Floats
    seen: Bools
    evidence: Evidence | None = None
    more: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One plan's result in one round, played or counterfactual: what a reward looks at.

    max_length: the longest length among the plans, in tokens: what lengths are normalised by.
    alphas, ratios: as in ``Scores``, along the verified text from the round's first position on.
    drafted_alphas: as in ``Evidence``; for a plan that did not play, its alphas.
    num_drafted, num_accepted: None where only the alphas are known (a drafter that did not play).
    """

    plan: Plan
    max_length: int
    alphas: Floats
    ratios: Floats
    drafted_alphas: Floats
    num_drafted: int | None = None
    num_accepted: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftStep:
    """What a guide sees before the next token of a draft is drawn.

    depth: tokens kept so far. The rest describes q of the token kept LAST (nan at depth 0): its
    own probability, the largest probability, the entropy in nats, the gap between the two largest;
    entropy_before: the entropy of the one kept before it (nan where there is none).
    hidden: [D] the drafter's last hidden state at the token kept last, hidden_before: at the one
    before it; None where no rule reads them, or where the token was not read yet.
    """

    depth: int
    length: int
    prob: float = float("nan")
    max_prob: float = float("nan")
    entropy: float = float("nan")
    margin: float = float("nan")
    entropy_before: float = float("nan")
    hidden: NDArray[np.float32] | None = field(default=None, compare=False)
    hidden_before: NDArray[np.float32] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for one request, as a tree; a chain is the tree of width one.

    tokens: [N]. probs: for each node the [V] distribution q it was drawn from, an array here or
    a tensor on the device, or None for a point
    mass (a deterministic proposal); None altogether if all are. sources: each token's writer.
    parents: [N], the index of each node's parent, -1 = the end of the text; None for a chain.
    confidences: as in ``Evidence``; a draft that has them begins with a chain, and the siblings of
    the chain's tokens follow, each with the confidence of its chain's token. asides: after nodes
    of a chain (-1 = the text), what its
    drafter would have drawn from where others wrote or none did: to score it, not to verify.
    """

    tokens: Ints
    probs: Sequence[Any | None] | NDArray[Any] | None = None
    sources: Sequence[str] = ()
    parents: Ints | None = None
    confidences: Sequence[float] = ()
    offpath_probs: Sequence[tuple[int, Any]] = ()

    @classmethod
    def chain(cls, tokens: Sequence[int], probs: Sequence[Any | None] | None, source: str) -> Draft:
        """A chain by one drafter."""
        return cls(np.asarray(tokens, dtype=np.int64), probs, [source] * len(tokens))

    def q(self, node: int) -> Dist:
        """What this node's token was drawn from."""
        probs = None if self.probs is None else self.probs[node]
        return int(self.tokens[node]) if probs is None else probs

    def parent(self, node: int) -> int:
        """The node before this one; -1 = the end of the text."""
        return node - 1 if self.parents is None else int(self.parents[node])

    @property
    def num_chain(self) -> int:
        """Tokens of the chain that siblings stand beside; all of a chain, none of another tree."""
        if self.parents is None:
            return len(self)
        return self.depth if self.confidences else 0

    @property
    def depth(self) -> int:
        """Tokens on its longest path."""
        if self.parents is None:
            return len(self)
        depths = [0]
        for node in range(len(self)):
            depths.append(depths[self.parent(node) + 1] + 1)
        return max(depths)

    def children(self, node: int) -> list[int]:
        """The nodes that continue this one (-1 = the text), in the order they are tried."""
        if self.parents is None:
            return [node + 1] if node + 1 < len(self.tokens) else []
        return [int(child) for child in np.flatnonzero(np.asarray(self.parents) == node)]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification kept: the accepted nodes in order, and the bonus token.

    tokens: [accepted + 1], the bonus token last; path: [accepted], the nodes that were accepted.
    """

    tokens: Ints
    path: Ints

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that were kept."""
        return len(self.path)
