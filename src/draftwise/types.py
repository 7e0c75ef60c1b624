"""The value types of draftwise: frozen, without torch, imported by every other package.

Dimension letters, here and everywhere: B batch, T time, N draft nodes, V vocabulary, D hidden,
K plans. ``p`` is always the target's distribution and ``q`` the drafter's (Leviathan's convention).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise import checks
from draftwise.checks import option
from draftwise.errors import BadValue
from draftwise.errors import DraftwiseError as DraftwiseError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Dist = int | NDArray[Any]
"""A distribution over the vocabulary: [V] probabilities, or the token itself if a point mass."""

LONGEST_PLAN = 1024  # maximum tokens of a plan's draft
NONE = "none"  # the drafter of the plan without drafts: one token per round


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Shape of a draft tree: children of a token, and total tokens (names as in EAGLE-2)."""

    top_k: int
    total_tokens: int

    def __post_init__(self) -> None:
        for name in ("top_k", "total_tokens"):
            checks.whole(f"the {name} of a tree", getattr(self, name), 1, LONGEST_PLAN)

    def __str__(self) -> str:
        return f"{self.top_k}x{self.total_tokens}"


@dataclass(frozen=True, slots=True)
class Plan:
    """An arm: drafter, draft length, stop rule and tree shape.

    ``length`` is in tokens (a tree's depth); 0 only for the plan ``none``. ``rule`` is the spec
    of a stop rule. ``tree``: None = a chain.
    """

    drafter: str
    length: int
    rule: str = "fixed"
    tree: TreeShape | None = None

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length > LONGEST_PLAN:  # plans are made each round
            object.__setattr__(self, "length", checks.whole("length", self.length, 0, LONGEST_PLAN))
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
        """Maximum number of drafted tokens, which the target then verifies."""
        return self.length if self.tree is None else self.tree.total_tokens

    @property
    def num_slots(self) -> int:
        """KV cache slots needed to draft or verify; a tree is pruned only once it is complete."""
        grown = 0 if self.tree is None else self.tree.top_k * (self.length - 1)
        return max(self.num_tokens, grown)


PLAIN = Plan(NONE, 0)


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's choice: the plan's index, the probability of that choice, and its round.

    The probability keeps late feedback unbiased.
    """

    plan: int
    prob: float
    round: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Acceptance of one drafter along verified text, whether or not it drafted that text.

    alphas: [n] acceptance probability ``sum_v min(p, q)`` at each position, in [0, 1] (for a point
        mass, p of the proposed token; for greedy decoding, 1 where both argmaxes agree, else 0).
    ratios: [n] ``min(1, q/p)`` of the text's own token, in [0, 1].
    matches: [n] length of a retrieval drafter's suffix match, 0 = no proposal; else None.
    start: position of the first score in the text, prompt included, in tokens.
    weight: in (0, 1], below 1 where a probe used less context than a draft.
    """

    start: int
    alphas: Floats
    ratios: Floats
    matches: Ints | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds measured in the running engine, at the current batch size.

    target_s: [n] seconds of a target forward over 1, 2, .. n tokens per row.
    draft_s: seconds of one draft step, by drafter.
    read_s: seconds per token of the text on which a drafter catches up, by drafter; empty if not
        measured.
    """

    target_s: Floats
    draft_s: Mapping[str, float]
    read_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts that one round revealed about one request, before any reward.

    scores: new scores by drafter, in text order: for the drafter that played, its drafted positions
        through the first rejection and the tokens on which it caught up.
    drafted_alphas: [num_drafted] alpha at every drafted position given the draft's prefix,
        including the rejected tail (averaged by block divergence, MetaSD eq. 4).
    emitted_start: position in the text of the first emitted token.
    seconds: duration of the round, drafting and verification.
    """

    plan: Plan
    num_drafted: int
    num_accepted: int
    scores: Mapping[str, Scores] = field(default_factory=dict)
    drafted_alphas: Floats = field(default_factory=lambda: np.zeros(0))
    emitted_start: int = 0
    seconds: float = 0.0

    @property
    def num_emitted(self) -> int:
        """Accepted tokens plus the bonus token."""
        return self.num_accepted + 1


@dataclass(frozen=True, slots=True)
class RoundFacts(Evidence):
    """Evidence with what draftwise's own policy prices and writes drafts by.

    costs: predicted costs; None if not measured.
    matches: by retrieval drafter, length of its match at the end of the text, 0 = no proposal.
    confidences: [n] max q of each token of a chain, NaN for retrieved tokens; empty unless drafts
        are mixed.
    siblings: for each alternative of an accepted or first rejected token of the chain: the token's
        confidence, the alternative's rank from 1 on, and whether the alternative was accepted.
    departed: depth at which the text left the chain of a mixed draft; -1 = never.
    num_first: number of accepted tokens of a tree that were the likeliest of their siblings.
    tokens: the emitted tokens; empty if nothing learns from texts.
    num_left: maximum number of tokens that the answer may still have; None = unknown.
    """

    costs: Costs | None = None
    matches: Mapping[str, int] = field(default_factory=dict)
    confidences: Sequence[float] = ()
    siblings: Sequence[tuple[float, int, bool]] = ()
    departed: int = -1
    num_first: int = 0
    tokens: Sequence[int] = ()
    num_left: int | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback of a round to a policy: a value in [0, 1] for each plan that was ``seen``.

    values, seen: [K]; unseen values are ignored. more: number of further feedbacks of the same
    decision.
    """

    values: Floats
    seen: Bools
    more: int = 0


def check_feedback(decision: Decision, feedback: Feedback, num_plans: int) -> tuple[Floats, Bools]:
    """Validate feedback; return its ``values`` [K] and ``seen`` [K]. Unseen values are arbitrary.

    Errors: ValueError for a plan outside 0 .. K-1, a probability outside (0, 1], a shape other than
    [K], a ``seen`` that is not boolean, or a seen value that is not a number in [0, 1].
    """
    if not 0 <= decision.plan < num_plans:
        raise ValueError(f"the decision's plan {decision.plan} is not one of 0..{num_plans - 1}")
    if not 0.0 < decision.prob <= 1.0:
        raise ValueError(f"the decision's probability {decision.prob} is not in (0, 1]")
    values = np.asarray(feedback.values, dtype=np.float64)
    seen = np.asarray(feedback.seen)
    if values.shape != (num_plans,) or seen.shape != (num_plans,) or seen.dtype != np.bool_:
        raise ValueError(
            f"feedback has values {values.shape} and seen {seen.shape} of {seen.dtype}; "
            f"both must be ({num_plans},), and seen boolean"
        )
    shown = values[seen]
    if shown.size and not (np.minimum.reduce(shown) >= 0.0 and np.maximum.reduce(shown) <= 1.0):
        raise ValueError(
            f"a seen value lies outside [0, 1]: {shown.tolist()}; rewards must be scaled to [0, 1]"
        )
    return values, seen


@dataclass(frozen=True, slots=True)
class Outcome:
    """One plan's result in one round, played or counterfactual: the input of a reward.

    max_length: the longest length among the plans, in tokens, by which lengths are normalised.
    alphas, ratios: as in ``Scores``, along the verified text from the round's first position on.
    drafted_alphas: as in ``Evidence``; for a plan that did not play, its alphas.
    num_drafted, num_accepted: None if only the alphas are known (a drafter that did not play).
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
    """The state of a draft before its next token is drawn, as a stop rule sees it.

    depth: tokens kept so far. The other fields describe q of the LAST kept token (nan at depth 0):
    the token's probability, the largest probability, the entropy in nats, the gap between the two
    largest; entropy_before: the entropy of the token before it (nan if there is none).
    hidden: [D] the drafter's last hidden state at the last kept token, hidden_before: at the token
    before it; None if no rule uses them, or if the token was not computed yet.
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
    """Drafted tokens of one request, as a tree; a chain is a tree of width one.

    tokens: [N]. probs: for each node the [V] distribution q it was drawn from, as an array or a
        device tensor, or None for a point mass (a deterministic proposal); None altogether if all
        are point masses. sources: the drafter of each token.
    parents: [N], the index of each node's parent, -1 = the end of the text; None for a chain.
    confidences: as in ``RoundFacts``. A draft with confidences begins with a chain; siblings of the
        chain's tokens follow, each with the confidence of the chain's token, and branches of copied
        tokens.
    offpath_probs: for scoring only, q after nodes of a chain (-1 = the text) at which the drafter
        drew no token.
    """

    tokens: Ints
    probs: Sequence[Any | None] | NDArray[Any] | None = None
    sources: Sequence[str] = ()
    parents: Ints | None = None
    confidences: Sequence[float] = ()
    offpath_probs: Sequence[tuple[int, Any]] = ()

    @classmethod
    def chain(cls, tokens: Sequence[int], probs: Sequence[Any | None] | None, source: str) -> Draft:
        return cls(np.asarray(tokens, dtype=np.int64), probs, [source] * len(tokens))

    def q(self, node: int) -> Dist:
        """The distribution from which this node's token was drawn."""
        probs = None if self.probs is None else self.probs[node]
        return int(self.tokens[node]) if probs is None else probs

    def parent(self, node: int) -> int:
        return node - 1 if self.parents is None else int(self.parents[node])

    @property
    def num_chain(self) -> int:
        """Number of tokens of the chain that siblings and branches leave; 0 for other trees."""
        if self.parents is None:
            return len(self)
        if not self.confidences:
            return 0
        parents = enumerate(self.parents.tolist())
        return next((node for node, parent in parents if parent != node - 1), len(self))

    @property
    def depth(self) -> int:
        """Number of tokens on the longest path."""
        if self.parents is None:
            return len(self)
        depths = [0]
        for parent in self.parents.tolist():
            depths.append(depths[parent + 1] + 1)
        return max(depths)

    def children(self, node: int) -> list[int]:
        """The children of a node (-1 = the text), in the order in which they are verified."""
        if self.parents is None:
            return [node + 1] if node + 1 < len(self.tokens) else []
        return [int(child) for child in np.flatnonzero(np.asarray(self.parents) == node)]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of verification: the accepted path and the bonus token.

    tokens: [accepted + 1], the bonus token last; path: [accepted], indices of the accepted nodes.
    """

    tokens: Ints
    path: Ints

    @property
    def num_accepted(self) -> int:
        return len(self.path)


_BIAS = 1e30  # the largest bias: above it, a float32 logit would be infinite


def _biases(name: str, value: Any) -> dict[int, float]:
    """``logit_bias`` with plain keys and numbers; None = {}."""
    must = f"a mapping of token ids, 0 or more, to finite numbers from {-_BIAS:g} to {_BIAS:g}"
    if value is not None and not isinstance(value, Mapping):
        raise BadValue(name, value, must)
    try:
        return {
            checks.whole(name, token, 0): checks.number(name, bias, -_BIAS, _BIAS)
            for token, bias in (value or {}).items()
        }
    except BadValue as error:
        raise BadValue(name, value, must) from error


def _read_biases(texts: Sequence[str] | None) -> dict[int, float]:
    """Parse ``"50=-100"`` to a token and its bias; raises DraftwiseError."""
    found: dict[int, float] = {}
    for text in texts or ():
        token, equals, value = text.partition("=")
        try:
            if not equals or int(token) in found:
                raise ValueError
            found |= _biases("logit_bias", {int(token): float(value)})
        except ValueError:
            raise DraftwiseError(
                f"--logit-bias {text!r}: write ID=VALUE such as 50=-100, each token id once, and a "
                "finite VALUE"
            ) from None
    return found


def _top_k(name: str, value: Any) -> int:
    """``top_k``; -1, as in vLLM, is 0."""
    return 0 if checks.plain(value) == -1 else checks.whole(name, value, 0, note="all tokens")


_penalty = partial(checks.number, least=-checks.LARGE, most=checks.LARGE)
_drawn = partial(option, panel="Sampling", metavar="X")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled, for both target and drafters; names as in vLLM.

    temperature: 0 = greedy. top_k: 0 or -1 = all. top_p: in (0, 1]. min_p: in [0, 1], relative to
    the largest probability; 0 = off. repetition_penalty: from 1e-6 to 1e6, 1 = off, for tokens of
    the prompt and the answer. presence_penalty, frequency_penalty: from -1e6 to 1e6, 0 = off;
    subtracted from the logits of tokens in the answer, once or per occurrence. logit_bias: by token
    id, added to the logit. process: a function of all tokens before (prompt included) and [V]
    logits, applied first; None = off. It must be stateless, because it is also called for drafts.
    Raises BadValue (a DraftwiseError and a ValueError) for a value of the wrong type or outside its
    range.
    """

    temperature: float = option(
        0.0, "0 is greedy.", "--temperature", "-t",
        metavar="T", check=partial(checks.number, least=0, note="greedy"),
    )  # fmt: skip
    top_k: int = _drawn(
        0, "Keep the K likeliest tokens; 0 keeps all.",
        metavar="K", check=_top_k,
    )  # fmt: skip
    top_p: float = _drawn(
        1.0, "Keep the likeliest tokens with total probability P; 1 keeps all.",
        metavar="P", check=checks.share,
    )  # fmt: skip
    repetition_penalty: float = _drawn(
        1.0, "Divides logits of tokens in prompt and answer; 1 has no effect.", check=checks.scale
    )
    process: Callable[[Sequence[int], Any], Any] | None = option(None, check=checks.function)
    min_p: float = _drawn(
        0.0, "Minimum probability relative to the largest; 0 has no effect.",
        metavar="P", check=checks.probability,
    )  # fmt: skip
    presence_penalty: float = _drawn(
        0.0, "Subtracted from logits of tokens in the answer; 0 has no effect.", check=_penalty
    )
    frequency_penalty: float = _drawn(
        0.0, "Subtracted per occurrence of a token in the answer; 0 has no effect.", check=_penalty
    )
    logit_bias: Mapping[int, float] = _drawn(
        dict, "Adds VALUE to the logit of token ID: `50=-100`; repeatable.", metavar="ID=VALUE",
        kind=list[str] | None, read=_read_biases, check=_biases,
    )  # fmt: skip

    def __post_init__(self) -> None:
        checks.check_fields(self)

    @property
    def penalises(self) -> bool:
        """Whether logits depend on which tokens occurred."""
        answered = self.presence_penalty != 0 or self.frequency_penalty != 0
        return self.repetition_penalty != 1.0 or answered

    @property
    def reads_text(self) -> bool:
        """Whether a distribution depends on the tokens before it, and not on logits alone."""
        return self.penalises or self.process is not None

    @property
    def edits(self) -> bool:
        """Whether logits are changed before temperature."""
        return self.reads_text or bool(self.logit_bias)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise BadValue for a biased token that is not in the target's vocabulary."""
        outside = [token for token in self.logit_bias if token >= vocab_size]
        if outside:
            must = f"a mapping of token ids from 0 to {vocab_size - 1:,}, the target's vocabulary"
            raise BadValue("logit_bias", self.logit_bias, must)
