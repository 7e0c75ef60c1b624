"""What policies share that draw their plan from probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from draftwise.policies.parts.checks import check_feedback
from draftwise.policies.parts.instant_regrets import instant_regrets
from draftwise.policies.parts.probability import draw
from draftwise.policies.parts.state import Kept, in_range
from draftwise.policies.parts.tally import Tally
from draftwise.types import Decision, Feedback, Floats


class Drawn(Kept, ABC):
    """Plays a plan drawn from ``probabilities``, which a leaf tells; counts what was seen."""

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._num_plans, self._rng, self._tally = num_plans, rng, Tally(num_plans)

    @abstractmethod
    def probabilities(self) -> Floats:
        """[K] with which each plan is played next."""

    def choose(self) -> Decision:
        """A plan drawn from ``probabilities``."""
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        return Decision(plan, float(probabilities[plan]), self._tally.choose(plan))


class Hedging(Drawn):
    """Draws by each plan's lead over the draw; a leaf says how leads move it.

    Feedback: panoramic; a plan that was not seen sleeps, so bandit feedback moves nothing.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._known: Floats | None = None

    @abstractmethod
    def take(self, regrets: Floats) -> None:
        """Learn each plan's lead [K] in one round: (mean loss of the draw) - loss; 0 if unseen."""

    @abstractmethod
    def weights(self) -> Floats:
        """[K] the probabilities that follow from all leads."""

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Add each seen plan's lead over the draw."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if seen.any():
            self.take(instant_regrets(values, seen, self.probabilities()))
            self._tally.add(values, seen)
            self._known = None

    def probabilities(self) -> Floats:
        """[K] what the leads say."""
        if self._known is None:
            self._known = self.weights()
        return self._known.copy()

    def estimates(self) -> Floats:
        """[K] mean value seen."""
        return self._tally.means()

    def forget_what_follows(self) -> None:
        """The probabilities are computed anew."""
        self._known = None


class PlayedOnly(Kept, ABC):
    """Draws from ``probabilities``, and learns from the played plan's value alone.

    State: rounds learned and chosen, and what a leaf adds.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._num_plans, self._rng = num_plans, rng
        self._num_learned, self._num_chosen = 0, 0

    def check_memory(self) -> None:
        """Counts of rounds are not negative."""
        in_range("num_learned", self._num_learned, 0)
        in_range("num_chosen", self._num_chosen, 0)

    @abstractmethod
    def probabilities(self) -> Floats:
        """[K] with which each plan is played next."""

    @abstractmethod
    def credit(self, plan: int, value: float, prob: float) -> None:
        """Learn the value of a plan that was played with this probability."""

    def choose(self) -> Decision:
        """A plan drawn from ``probabilities``."""
        probabilities = self.probabilities()
        plan = draw(probabilities, self._rng)
        self._num_chosen += 1
        return Decision(plan, float(probabilities[plan]), self._num_chosen)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Credit the played plan; of richer feedback nothing else is used."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if seen[decision.plan]:
            self.credit(decision.plan, float(values[decision.plan]), decision.prob)
            self._num_learned += 1
