"""Exponential weights: EXP3 on the played plan's value, Hedge on the values of all plans."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from draftwise.bandits.base import SampledPolicy, instant_regrets, softmax
from draftwise.checks import optional, scale, share
from draftwise.types import Decision, Feedback, Floats, check_feedback


class PlayedOnly(SampledPolicy):
    """Learns only from the played plan's value, whatever else the feedback shows.

    Each value is divided by the probability in its decision, so delayed feedback stays unbiased.
    State: running sums float64[K] (dimensionless) and a ``Tally``.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._sums: Floats = np.zeros(num_plans)

    @abstractmethod
    def credit(self, value: float) -> float:
        """The gain or loss of a plan with this value."""

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        values, seen = check_feedback(decision, feedback, self._num_plans)
        plan = decision.plan
        if seen[plan]:
            self._sums[plan] += self.credit(float(values[plan])) / decision.prob
            self._tally.add(values, np.arange(self._num_plans) == plan)


class EXP3(PlayedOnly):
    """Draw plans by exponential weights, and uniformly with probability ``gamma`` in (0, 1].

    Source: MetaSD, Algorithm 7 (Auer et al. 2002); gamma 0.4 is from its appendix F.4.
    Update: w[played] *= exp(gamma * value / (K prob)); p = (1 - gamma) w / sum w + gamma / K.
    Differs: the gains in log w = gamma / K * gains are stored, since w overflows in a long request.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator, gamma: float = 0.4) -> None:
        super().__init__(num_plans, rng)
        self._gamma = share("gamma", gamma)

    def credit(self, value: float) -> float:
        return value

    def probabilities(self) -> Floats:
        gamma, num = self._gamma, self._num_plans
        return (1.0 - gamma) * softmax(gamma / num * self._sums) + gamma / num

    def estimates(self) -> Floats:
        return np.clip(self._sums / max(self._tally.num_rounds, 1), 0.0, 1.0)


class EXP3Spec(PlayedOnly):
    """Sample plans by exponential weights whose learning rate decreases over rounds.

    Source: BanditSpec (Hou et al.), Algorithm 5 and eq. (6) (full version: Algorithm 9). Update:
    loss[played] += (1 - value) / prob; p = softmax(-sqrt(log K / (t K)) * loss), with t the rounds
    learned from plus 1. Differs: none: 1 - accepted / L is (L + 1 - Y) / L.
    """

    def credit(self, value: float) -> float:
        return 1.0 - value

    def probabilities(self) -> Floats:
        num, round_ = self._num_plans, self._tally.num_rounds + 1
        return softmax(-math.sqrt(math.log(num) / (round_ * num)) * self._sums)

    def estimates(self) -> Floats:
        return np.clip(1.0 - self._sums / max(self._tally.num_rounds, 1), 0.0, 1.0)


class Hedging(SampledPolicy):
    """Sample plans by their regret relative to the sampled mixture.

    Feedback: panoramic, in order. An unseen plan sleeps: its regret stays, and the mean covers only
    seen plans. So prefix and free feedback update only the plans that they show, and bandit
    feedback changes nothing. State: cumulative regrets float64[K]; a ``Tally`` of the values.
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._regrets: Floats = np.zeros(num_plans)

    def take(self, regrets: Floats) -> None:
        """Add one round's regrets [K], the mixture's mean loss minus each plan's; 0 if unseen."""
        self._regrets += regrets

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if seen.any():
            self.take(instant_regrets(values, seen, self.probabilities()))
            self._tally.add(values, seen)


class Hedge(Hedging):
    """Draw plans by exponential weights on all plans' losses.

    Source: HedgeSpec, appendix B.1, remark on Algorithm 1: w_i <- w_i exp(-eta * loss_i), PREDICT
        the normalised weights. The anytime rate (``eta=none``, the default) is that of BanditSpec
        Algorithm 5, sqrt(log K / (t K)), without the factor K due to bandit feedback. eta: 1e-6 to
        1e6; with a fixed eta, feedback may come in any order.
    Update: gain += (mean loss under p) - loss; p = softmax(eta * gain). Subtracting one number from
        all losses of a round changes no probability and keeps the sums small.
    Differs: plans sleep (``Hedging``).
    """

    def __init__(self, num_plans: int, rng: np.random.Generator, eta: float | None = None) -> None:
        super().__init__(num_plans, rng)
        self._eta = optional(scale, "eta", eta)

    def probabilities(self) -> Floats:
        eta = self._eta
        if eta is None:
            eta = math.sqrt(math.log(self._num_plans) / (self._tally.num_rounds + 1))
        return softmax(eta * self._regrets)


_TOLERANCE = 1e-12  # relative; far above rounding errors, so Newton's iteration always terminates
_ROUNDING = 1e-9  # regrets up to this are rounding errors, which scale-free weights would amplify


def normalhedge_precision(regrets: Floats) -> float:
    """``1 / (2 c)`` for the c > 0 with ``mean(exp([R]+^2 / (2c))) = e``; some R must be above 0.

    With s = 1/(2c), log mean exp(s [R]+^2) - 1 is convex and increasing in s, and not negative at s
    = (1 + log K) / max R^2: Newton's steps from there, about five, decrease to the root.
    """
    squares = np.maximum(regrets, 0.0) ** 2
    largest = float(squares.max())
    shape = squares / largest  # in [0, 1], so that no scale of the regrets over- or underflows
    steep = 1.0 + math.log(len(shape))
    while True:
        weights = np.exp(steep * shape)
        total = float(weights.sum())
        step = (math.log(total / len(shape)) - 1.0) * total / float(weights @ shape)
        if step <= _TOLERANCE * steep:
            return steep / largest
        steep -= step


def normalhedge_weights(regrets: Floats) -> Floats:
    """[K] proportional to ``[R]+ / c * exp([R]+^2 / 2c)``; uniform without a positive regret."""
    positive = np.maximum(regrets, 0.0)
    top = float(positive.max())
    if top <= _ROUNDING:
        return np.full(len(regrets), 1.0 / len(regrets))
    weights = positive / top * np.exp(normalhedge_precision(regrets) * positive**2)
    return weights / float(weights.sum())


class NormalHedge(Hedging):
    """Draw plans by weights on the positive regret to each.

    Source: HedgeSpec, Figure 7 (NormalHedge, Chaudhuri et al. 2009).
    Update: R_i += (mean loss of the draw) - loss_i; p proportional to [R]+ / c * exp([R]+^2 / 2c),
        with the c for which mean(exp([R]+^2 / 2c)) = e.
    Differs: (1) the figure leaves p open while no regret is above 0; here it is uniform until one
        exceeds 1e-9, the rounding errors; (2) plans sleep (``Hedging``).
    """

    def probabilities(self) -> Floats:
        return normalhedge_weights(self._regrets)


def adanormalhedge_weights(regrets: Floats, sizes: Floats) -> Floats:
    """[K] proportional to ``Phi(R + 1, C + 1) - Phi(R - 1, C + 1)``; uniform if all are 0."""
    scale = 3.0 * (sizes + 1.0)
    upper = np.maximum(regrets + 1.0, 0.0) ** 2 / scale
    lower = np.maximum(regrets - 1.0, 0.0) ** 2 / scale
    # relative to the largest exponent, as Phi overflows
    weights = np.exp(upper - upper.max()) * (0.0 - np.expm1(lower - upper))
    total, num = float(weights.sum()), len(regrets)
    return weights / total if total > 0.0 else np.full(num, 1.0 / num)


class AdaNormalHedge(Hedging):
    """Draw plans by weights on the regret to each, scaled by its past magnitude.

    Source: Luo and Schapire 2015 (COLT; arXiv 1502.05934), with a uniform prior and their sleeping
        experts. HedgeSpec compares it (appendix D.5, tables 9 and 10) and prints no equation.
    Update: r = (mean loss of the draw) - loss; R += r; C += |r|; p proportional to 1/2 (Phi(R + 1,
        C + 1) - Phi(R - 1, C + 1)), Phi(R, C) = exp([R]+^2 / (3 C)); uniform if all weights are 0.
    Differs: none. State: also C, float64[K].
    """

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        super().__init__(num_plans, rng)
        self._sizes: Floats = np.zeros(num_plans)

    def take(self, regrets: Floats) -> None:
        super().take(regrets)
        self._sizes += np.abs(regrets)

    def probabilities(self) -> Floats:
        return adanormalhedge_weights(self._regrets, self._sizes)
