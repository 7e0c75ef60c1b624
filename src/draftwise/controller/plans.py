"""What a round of draftwise's own engine costs: forwards, measured or fixed, and whole drafts.

A draft is a chain, a tree or copied text; beside its seconds stand its expected tokens.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median

import numpy as np

from draftwise.compiled import warm_up
from draftwise.controller.costs import Step, StepCosts
from draftwise.controller.rates import Bins, depth_of
from draftwise.types import NONE, Costs, Floats, Ints, Plan

PLAIN_ROUNDS = 2
"""Plain rounds measured before any draft at each batch size (in powers of two), and again once the
context exceeds twice the longest measured one by FAR_TOKENS."""
FAR_TOKENS = 512


class _Samples:
    """Recent durations of one kind of call, in seconds: their median, or the minimum while there
    are few, so that one slow call does not end drafting.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=15)
        self._first: float | None = None
        self._value: float | None = None

    def add(self, seconds: float) -> None:
        if self._first is None:  # kept apart, because it includes one-time set-up
            self._first = seconds
            return
        self._seconds.append(seconds)
        is_few = len(self._seconds) < 4
        self._value = min(self._first, *self._seconds) if is_few else median(self._seconds)

    def value(self, default: float) -> float:
        return default if self._value is None else self._value


class MeasuredCostModel(StepCosts):
    """Costs in seconds: of target forwards as ``StepCosts``, and of draft steps by drafter.

    Draft steps are sampled by batch size, in powers of two; the nearest size with samples is used.
    Before the first sample a draft step costs ``relative_cost`` target forwards, and a target
    forward 1 s.
    """

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        super().__init__()
        self._relative = dict(relative_costs)
        warm_up()
        self._draft = {name: defaultdict[int, _Samples](_Samples) for name in relative_costs}
        self._read = defaultdict[str, _Samples](_Samples)
        self._plain = Counter[int]()
        self._longest = self._num_far = 0

    def observe(self, step: Step, num_context: int) -> float:
        if step.num_tokens <= step.num_requests:
            self._plain[step.num_requests.bit_length()] += 1
            if self._is_far(num_context):
                self._num_far = (self._num_far + 1) % PLAIN_ROUNDS
                self._longest = self._longest if self._num_far else num_context
        return super().observe(step, num_context)

    def is_unmeasured(self, rows: int, context: int) -> bool:
        """Whether the cost of a plain round would be extrapolated, far from the measured ones."""
        return self._plain[rows.bit_length()] < PLAIN_ROUNDS or self._is_far(context)

    def _is_far(self, context: int) -> bool:
        return context > 2 * self._longest + FAR_TOKENS

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        if steps:
            self._draft[drafter][rows.bit_length()].add(seconds / steps)

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        self._read[drafter].add(seconds / tokens)

    def costs(self, rows: int, max_tokens: int, context: int) -> Costs:
        """Costs at this batch size, for target forwards over 1 .. ``max_tokens`` tokens per row.

        context: tokens of all sequences.
        """
        target_s, size = np.ones(max_tokens), rows.bit_length()
        if self.is_known:
            target_s = self.seconds(rows, context, 0, rows * (max_tokens - 1))[::rows].copy()
            # far beyond the largest measured forward, a token costs at least a plain one
            far = 2 * max(self.largest, rows) // rows
            plain_rate_s = target_s[0] * np.arange(far + 1, max_tokens + 1)
            target_s[far:] = np.maximum(target_s[far:], plain_rate_s)
        draft_s, plain_s = {}, float(target_s[0])
        for drafter, relative in self._relative.items():
            draft_s[drafter] = guess = relative * plain_s
            if measured := self._draft[drafter]:
                nearest = min(measured, key=lambda known: abs(known - size))
                draft_s[drafter] = measured[nearest].value(guess)
        read_s = {name: s for name, own in self._read.items() if (s := own.value(0.0))}
        return Costs(target_s, draft_s, read_s)


TOKEN_SHARE = 0.02  # cost of each additional token of a row, in one-token target forwards


class FixedCostModel:
    """A deterministic ``MeasuredCostModel``, whose clock advances by a fixed cost per forward.

    A target forward over T tokens per row costs ``1 + TOKEN_SHARE (T - 1)``, a draft step the
    drafter's ``relative_cost``. All decisions therefore depend only on the prompt and the seed.
    counted_s, proven_s, confirmed: as of ``MeasuredCostModel``.
    """

    counted_s, proven_s, confirmed = 0.0, 1.0, None  # the clock has the seconds of forwards

    def __init__(self, relative_costs: Mapping[str, float]) -> None:
        self._relative = dict(relative_costs)
        self._now = 0.0

    def clock(self) -> float:
        return self._now

    def is_unmeasured(self, rows: int, context: int) -> bool:
        return False

    def observe(self, step: Step, num_context: int) -> float:
        self._now += 1.0 + TOKEN_SHARE * (-(-step.num_tokens // step.num_requests) - 1)
        return 1.0

    def record_draft_steps(self, drafter: str, rows: int, steps: int, seconds: float) -> None:
        self._now += steps * self._relative[drafter]

    def record_catch_up(self, drafter: str, tokens: int, seconds: float) -> None:
        self._now += TOKEN_SHARE * tokens * self._relative[drafter]

    def costs(self, rows: int, max_tokens: int, context: int) -> Costs:
        target_s = 1.0 + TOKEN_SHARE * np.arange(max_tokens, dtype=np.float64)
        return Costs(target_s, dict(self._relative))


CostModel = MeasuredCostModel | FixedCostModel


_NO_BINS = Bins()


class PlanCosts:
    """Seconds per round of each plan, ``T(n + 1) + k c``, from the latest costs.

    A tree's draft step processes as many tokens as the tree is wide. A forward longer than any
    measured one costs as much as the longest: an overestimate would end drafting, and so all
    learning. Before any measurement a target forward takes 1 s and a draft step 0.05 s. Unless
    catching up was measured, a drafter's forward is assumed to scale with its tokens as the
    target's does. target_s: by tokens. draft_s, read_s: [D] seconds of a draft step, and of
    catching up by one token. seconds: [K]. names: [D]. places: the plans of each drafter. drafters,
    lengths, sizes, depths: [K] each plan's index in names, its length k, its verified tokens n, and
    the maximum number of accepted ones. trees: index, drafter and shape of trees.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.names = sorted({plan.drafter for plan in plans})
        self.drafters: Ints = np.array([self.names.index(plan.drafter) for plan in plans])
        self.lengths: Ints = np.array([plan.length for plan in plans])
        self.sizes: Ints = np.array([plan.num_tokens for plan in plans])
        self.trees = [(k, plan.drafter, plan.tree) for k, plan in enumerate(plans) if plan.tree]
        self.depths: Ints = self.lengths.copy()
        self._wider: Ints = np.zeros(len(plans), np.int64)  # additional tokens per draft step
        for k, _, shape in self.trees:
            self.depths[k] = depth_of(shape, plans[k].length)
            self._wider[k] = shape.top_k - 1
        self.longest = max(int(self.lengths.max()), 1)
        self.places = [np.flatnonzero(self.drafters == row) for row in range(len(self.names))]
        self._own_lengths = [self.lengths[own] for own in self.places]
        self._taken: Costs | None = None
        self.target_s: list[float] = [1.0]
        self.take(Costs(np.zeros(0), {}))

    def take(self, costs: Costs) -> None:
        """Replace the costs; those of target forwards stay if the new costs have none."""
        if self._taken is not None and _are_equal(self._taken, costs):
            return
        self._taken = costs
        if len(costs.target_s):
            self.target_s = np.maximum(costs.target_s, 1e-12).tolist()  # of a coarse clock
        first, last = self.target_s[0], self.target_s[-1]
        growth = (last / first - 1.0) / max(len(self.target_s) - 1, 1)
        draft_s = [
            0.0 if name == NONE else costs.draft_s.get(name, 0.05 * first) for name in self.names
        ]
        steps = zip(self.names, draft_s, strict=True)
        read_s = [costs.read_s.get(name, growth * step_s) for name, step_s in steps]
        self.draft_s, self.read_s = np.array(draft_s), np.array(read_s)
        forward_s = np.array(self.target_s)[np.minimum(self.sizes, len(self.target_s) - 1)]
        step_s = self.draft_s[self.drafters] + self._wider * self.read_s[self.drafters]
        self.seconds: Floats = forward_s + self.lengths * step_s

    def expected_tokens(self, rates: Floats, bins: Mapping[str, Bins]) -> Floats:
        """[K] ``expected_tokens`` from acceptance [D]; in trees, ``bins`` add that of siblings."""
        own = rates.take(self.drafters)
        for k, name, shape in self.trees:
            own[k] = bins.get(name, _NO_BINS).of_tree(shape, int(self.lengths[k]), float(own[k]))
        return expected_tokens(own, self.depths)

    def retrieved(
        self, tokens: Floats, row: int, ladder: Sequence[float], match: int,
        bins: Mapping[str, Bins],
    ) -> None:  # fmt: skip
        """Write ``retrieved_tokens`` of one drafter's plans into tokens [K]."""
        found = np.array(retrieved_tokens(ladder, match, self.longest))
        tokens[self.places[row]] = found[self._own_lengths[row]]
        for k, name, shape in self.trees:
            if name == self.names[row]:
                own, length = bins.get(name, _NO_BINS), int(self.lengths[k])
                rungs = [own.of_tree(shape, length, alpha) for alpha in ladder]
                tokens[k] = retrieved_tokens(rungs, match, self.longest)[self.depths[k]]


def _are_equal(costs: Costs, others: Costs) -> bool:
    return costs is others or (
        costs.draft_s == others.draft_s
        and costs.read_s == others.read_s
        and len(costs.target_s) == len(others.target_s)
        and bool((costs.target_s == others.target_s).all())
    )


def expected_tokens(rates: Floats, lengths: Ints) -> Floats:
    """Expected tokens of a round, ``1 + a + .. + a^k = (1 - a^(k + 1)) / (1 - a)``.

    Source: Leviathan et al. 2023, equation 1. rates, lengths: broadcastable shapes.

    >>> expected_tokens(np.array([0.5, 0.5]), np.array([1, 2])).tolist()
    [1.5, 1.75]
    """
    alphas: Floats = np.minimum(rates, 1.0 - 1e-9)  # where the sum is k + 1 to seven digits
    return (1.0 - alphas ** (lengths + 1)) / (1.0 - alphas)


def retrieved_tokens(ladder: Sequence[float], match: int, longest: int) -> list[float]:
    """[longest + 1] expected tokens of a retrieval round, by draft length; 0 without a match.

    ladder: acceptance after a match of 1, 2, .. tokens; each accepted token extends the match.

    >>> retrieved_tokens([0.5, 0.5, 0.5], 1, 2)
    [1.0, 1.5, 1.75]
    """
    if match <= 0:
        return [0.0] * (longest + 1)
    first = min(match - 1, len(ladder) - longest)
    reached = accumulate(ladder[first : first + longest], operator.mul)
    return list(accumulate(reached, initial=1.0))
