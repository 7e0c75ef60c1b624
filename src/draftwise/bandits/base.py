"""Parts that policies share: probability vectors, tallies, plan sampling.

Unless its docstring says otherwise, a policy learns every value in the feedback, of any plan and in
any order; its state is a ``Tally``; a round costs O(K) for K plans; an option outside the
documented range raises ValueError. Values and their statistics are dimensionless.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from draftwise.types import Bools, Decision, Feedback, Floats, check_feedback


def softmax(logits: Floats) -> Floats:
    """[K] probabilities proportional to ``exp(logits)``, computed without overflow."""
    weights: Floats = np.exp(logits - logits.max())
    return weights / float(weights.sum())


def draw(probabilities: Floats, rng: np.random.Generator) -> int:
    """Draw an index from ``probabilities`` [K]; an index of probability 0 is never drawn.

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


class Tally:
    """Running sums of the observed values, which are in [0, 1].

    State: counts [K], observed values, at most one per round; sums, squares [K], of the values and
    of their squares; chosen [K], times chosen; num_rounds, rounds whose feedback showed any value.

    >>> tally = Tally(2)
    >>> tally.add(np.array([0.25, 0.0]), np.array([True, False]))
    >>> tally.means().tolist(), tally.unseen()
    ([0.25, 0.0], 1)
    """

    def __init__(self, num_plans: int) -> None:
        self.counts: Floats = np.zeros(num_plans)
        self.sums: Floats = np.zeros(num_plans)
        self.squares: Floats = np.zeros(num_plans)
        self.chosen: Floats = np.zeros(num_plans)
        self.num_rounds = 0

    def add(self, values: Floats, seen: Bools) -> None:
        shown = np.where(seen, values, 0.0)
        self.counts += seen
        self.sums += shown
        self.squares += shown * shown
        self.num_rounds += bool(seen.any())

    def choose(self, plan: int) -> int:
        """Count a choice of ``plan``; return the number of choices so far, including this one."""
        self.chosen[plan] += 1
        return int(self.chosen.sum())

    def means(self) -> Floats:
        return self.sums / np.maximum(self.counts, 1.0)

    def unseen(self) -> int | None:
        """The least chosen plan without observations; chosen plans may still await feedback."""
        if self.counts.min() > 0:
            return None
        return int(np.where(self.counts > 0, np.inf, self.chosen).argmin())


def instant_regrets(values: Floats, seen: Bools, probabilities: Floats) -> Floats:
    """[K] each seen plan's value minus the mean under ``probabilities``; 0 for unseen plans.

    The mean covers the seen plans only, with their probabilities renormalised.

    >>> everyone = np.ones(2, dtype=bool)
    >>> instant_regrets(np.array([1.0, 0.0]), everyone, np.array([0.25, 0.75])).tolist()
    [0.75, -0.25]
    """
    if seen.all():
        return values - float(probabilities @ values)
    shown, weights = values[seen], probabilities[seen]
    total = float(weights.sum())
    # If all seen plans have probability 0, weight them equally.
    mean = float(weights @ shown) / total if total > 0.0 else float(shown.mean())
    regrets = np.zeros(len(values))
    regrets[seen] = shown - mean
    return regrets


class Policy(ABC):
    """Estimates each plan's value by the mean of its observations."""

    def __init__(self, num_plans: int) -> None:
        self._num_plans, self._tally = num_plans, Tally(num_plans)

    @abstractmethod
    def choose(self) -> Decision: ...

    @abstractmethod
    def probabilities(self) -> Floats:
        """[K] probability that each plan is played next."""

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self._tally.add(*check_feedback(decision, feedback, self._num_plans))

    def estimates(self) -> Floats:
        return self._tally.means()


class IndexPolicy(Policy):
    """Plays the plan with the largest index (ties go to the first); untried plans come first."""

    def indices(self) -> Floats:
        """[K] index of each plan, once all of them have observations; by default its mean."""
        return self.estimates()

    def best(self) -> int:
        untried = self._tally.unseen()
        return int(self.indices().argmax()) if untried is None else untried

    def choose(self) -> Decision:
        plan = self.best()
        return Decision(plan, 1.0, self._tally.choose(plan))

    def probabilities(self) -> Floats:
        return one_hot(self.best(), self._num_plans)


class SampledPolicy(Policy):
    """Plays a plan drawn from ``probabilities``."""

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans)
        self._rng = rng

    def choose(self) -> Decision:
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        return Decision(plan, float(probabilities[plan]), self._tally.choose(plan))
