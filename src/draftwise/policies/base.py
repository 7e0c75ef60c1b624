"""Parts that policies share: probability vectors, checks of feedback, tallies, sampling a plan.

Unless a policy says otherwise: it learns every value in the feedback, of any plan and in any order;
its state is a ``Tally``; a round costs O(K) for K plans; an option outside the range in its
docstring raises ValueError. Values and statistics of values have no unit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from draftwise.policies.state import Fields, Kept, in_range
from draftwise.types import Bools, Decision, Feedback, Floats


def softmax(logits: Floats) -> Floats:
    """[K] proportional to ``exp(logits)``, without overflow."""
    weights: Floats = np.exp(logits - logits.max())
    return weights / float(weights.sum())


def draw(probabilities: Floats, rng: np.random.Generator) -> int:
    """An index drawn from ``probabilities`` [K]; one that has probability 0 is never drawn.

    >>> draw(np.array([0.0, 1.0, 0.0]), np.random.default_rng(0))
    1
    """
    ladder = np.cumsum(probabilities)
    index = int(np.searchsorted(ladder, rng.random() * ladder[-1], side="right"))
    return min(index, int(np.searchsorted(ladder, ladder[-1])))


def one_hot(index: int, num_plans: int) -> Floats:
    vector = np.zeros(num_plans)
    vector[index] = 1.0
    return vector


def check_feedback(decision: Decision, feedback: Feedback, num_plans: int) -> tuple[Floats, Bools]:
    """``values`` [K] and ``seen`` [K] of a feedback; entries that are not seen may hold anything.

    Errors: ValueError for a plan outside 0 .. K-1, a probability outside (0, 1], a shape that is
    not [K], a ``seen`` that is not boolean, or a seen value that is not a number in [0, 1].
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


class Tally(Kept):
    """Running sums of the values seen.

    State: counts [K] values seen, at most one in [0, 1] a round; sums, squares [K] of the values;
    chosen [K] times chosen; num_rounds: rounds learned from (feedback that showed nothing is none).

    >>> tally = Tally(2)
    >>> tally.add(np.array([0.25, 0.0]), np.array([True, False]))
    >>> tally.means().tolist(), tally.unseen()
    ([0.25, 0.0], 1)
    """

    KEPT = ("counts", "sums", "squares", "chosen", "num_rounds")

    def __init__(self, num_plans: int) -> None:
        self.counts: Floats = np.zeros(num_plans)
        self.sums: Floats = np.zeros(num_plans)
        self.squares: Floats = np.zeros(num_plans)
        self.chosen: Floats = np.zeros(num_plans)
        self.num_rounds = 0

    def check_memory(self) -> None:
        in_range("num_rounds", self.num_rounds, 0)
        in_range("counts", self.counts, 0, self.num_rounds)
        in_range("sums", self.sums, 0, self.counts * (1 + 1e-9))
        in_range("squares", self.squares, 0, self.counts * (1 + 1e-9))
        in_range("chosen", self.chosen, 0)

    def add(self, values: Floats, seen: Bools) -> None:
        shown = np.where(seen, values, 0.0)
        self.counts += seen
        self.sums += shown
        self.squares += shown * shown
        self.num_rounds += bool(seen.any())

    def choose(self, plan: int) -> int:
        """Count a choice of ``plan``; the number of all choices so far, this one included."""
        self.chosen[plan] += 1
        return int(self.chosen.sum())

    def means(self) -> Floats:
        return self.sums / np.maximum(self.counts, 1.0)

    def unseen(self) -> int | None:
        """The plan without observations that was chosen least, as decisions may be in flight."""
        if self.counts.min() > 0:
            return None
        return int(np.where(self.counts > 0, np.inf, self.chosen).argmin())


def instant_regrets(values: Floats, seen: Bools, probabilities: Floats) -> Floats:
    """[K] ``value - (mean value under the draw)`` of the seen plans, 0 of the others.

    The mean is that of the seen plans, with the probabilities renormalised to them.

    >>> everyone = np.ones(2, dtype=bool)
    >>> instant_regrets(np.array([1.0, 0.0]), everyone, np.array([0.25, 0.75])).tolist()
    [0.75, -0.25]
    """
    if seen.all():
        return values - float(probabilities @ values)
    shown, weights = values[seen], probabilities[seen]
    total = float(weights.sum())
    # Plans of probability 0 may be the only ones seen; then they count equally.
    mean = float(weights @ shown) / total if total > 0.0 else float(shown.mean())
    regrets = np.zeros(len(values))
    regrets[seen] = shown - mean
    return regrets


class Counting(Kept, ABC):
    """Counts observations, and estimates each plan's value by its mean."""

    KEPT: ClassVar[Fields] = ("tally",)

    def __init__(self, num_plans: int) -> None:
        self._num_plans, self._tally = num_plans, Tally(num_plans)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def estimates(self) -> Floats:
        return self._tally.means()


class Greedy(Counting):
    """Plays with probability 1 the plan that a subclass names as the best."""

    @abstractmethod
    def _best(self) -> int: ...

    def choose(self) -> Decision:
        plan = self._best()
        return Decision(plan, 1.0, self._tally.choose(plan))

    def probabilities(self) -> Floats:
        return one_hot(self._best(), self._num_plans)


class Drawn(Counting):
    """Plays a plan drawn from ``probabilities``, which a subclass gives."""

    KEPT: ClassVar[Fields] = ("tally", "rng")

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans)
        self._rng = rng

    @abstractmethod
    def probabilities(self) -> Floats:
        """[K] with which each plan is played next."""

    def choose(self) -> Decision:
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        return Decision(plan, float(probabilities[plan]), self._tally.choose(plan))
