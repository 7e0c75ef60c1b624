"""The UCB family: plays the plan with the largest mean plus exploration bonus."""

from __future__ import annotations

import math

import numpy as np

from draftwise.bandits.base import IndexPolicy, one_hot
from draftwise.checks import scale, share, whole
from draftwise.types import Bools, Decision, Feedback, Floats, Ints, check_feedback


def ucb1_indices(means: Floats, counts: Floats | Ints, num_rounds: float, beta: float) -> Floats:
    """[K] ``mean + beta * sqrt(2 ln t / n)``; counts [K] are above 0."""
    return means + beta * np.sqrt(2.0 * math.log(num_rounds) / counts)


class UCB1(IndexPolicy):
    """Play the plan with the highest upper confidence bound.

    Source: MetaSD (Kim et al.), Algorithm 2, lines 2-5 (each plan once) and 7-9; beta 0.01 is from
        their appendix F.4. TapOut (section 3.3) is ``beta=1``. beta: 1e-6 to 1e6.
    Update: plan = argmax mean + beta * sqrt(2 ln t / n), t the rounds learned from so far.
    Differs: (1) a plan is untried until a value of it was SEEN, which handles delayed feedback and
        replayed decisions; (2) every seen value counts, not only the played plan's; (3) TapOut's t
        is the round being chosen, one more than MetaSD's t, used here: its bonus is larger by a
        factor sqrt(ln (t + 1) / ln t), 3% in round 10 and 0.1% in round 200.
    """

    def __init__(self, num_plans: int, beta: float = 0.01) -> None:
        super().__init__(num_plans)
        self._beta = scale("beta", beta)

    def indices(self) -> Floats:
        tally = self._tally
        return ucb1_indices(tally.means(), tally.counts, tally.num_rounds, self._beta)


class UCBTuned(IndexPolicy):
    """Play the plan with the highest upper bound, which is tighter for small variances.

    Source: TapOut, section 3.3 (UCB-Tuned, Auer et al. 2002). Update: plan = argmax mean + sqrt(ln
    t / n * min(1/4, V)), V = variance + sqrt(2 ln t / n). Differs: as ``UCB1``.
    """

    def indices(self) -> Floats:
        tally, means = self._tally, self._tally.means()
        variances: Floats = np.maximum(tally.squares / tally.counts - means * means, 0.0)
        log_rate = math.log(tally.num_rounds) / tally.counts
        bound = np.minimum(0.25, variances + np.sqrt(2.0 * log_rate))
        return means + np.sqrt(log_rate * bound)


def ucbspec_radii(counts: Floats, num_rounds: int, delta: float) -> Floats:
    """[K] ``1/2 sqrt((1+n)/n^2 (1 + 2 log(K t^2 sqrt(1+n) / delta)))``; counts are at least 1.

    >>> ucbspec_radii(np.array([3.0]), num_rounds=1, delta=0.5).round(6).tolist()
    [0.647438]
    """
    scale = math.log(len(counts) * num_rounds**2 / delta)
    inside = 1.0 + 2.0 * (scale + 0.5 * np.log1p(counts))
    return 0.5 * np.sqrt((1.0 + counts) * inside) / counts


class UCBSpec(IndexPolicy):
    """Play the plan with the highest bound, valid for values that depend on the past.

    Source: BanditSpec (Hou et al.), Algorithm 4 (full version: Algorithm 8).
    Update: plan = argmax mean + ``ucbspec_radii``, t rounds so far. delta: in (0, 1].
    Differs: (1) values are accepted / L in [0, 1] instead of Y in [1, L+1], so L/2 in the radius
        becomes 1/2, with the same choices; (2) as ``UCB1``; (3) the experiments name no delta; the
        default 1/2 is that of the proof of Theorem 4.3 (appendix D.2).
    """

    def __init__(self, num_plans: int, delta: float = 0.5) -> None:
        super().__init__(num_plans)
        self._delta = share("delta", delta)

    def indices(self) -> Floats:
        tally = self._tally
        return tally.means() + ucbspec_radii(tally.counts, tally.num_rounds, self._delta)


_LEAST = 1e-9  # minimum discounted count: that of a plan long unseen underflows to 0


class DiscountedUCB(IndexPolicy):
    """Play the plan with the highest upper bound on its discounted mean.

    Source: MetaSD, Algorithm 6 (Kocsis and Szepesvari 2006).
    Update: every round all counts and sums are multiplied by ``discount``, then the seen values are
        added; plan = argmax sum / n + beta * sqrt(2 ln t / n), n the discounted count and t the sum
        of all n.
    Differs: (1) line 9 as printed divides the discounted sum by the plain count, so every mean
        falls to 0; like the cited work, this divides by the discounted count; (2) line 9 as printed
        leaves the means of the other plans unchanged; here their counts decay, so these plans are
        tried again; (3) line 7 prints ln of the rounds; like the cited work, this takes the
        discounted total: n is bounded, so ln of the rounds would grow without limit and end in
        playing all plans equally often; (4) as ``UCB1``.
    Feedback: in order, as older values count less. beta: 1e-6 to 1e6; discount: in (0, 1].
    State: discounted counts and sums float64[K]; a ``Tally`` of plain counts.
    """

    def __init__(self, num_plans: int, beta: float = 0.01, discount: float = 0.98) -> None:
        self._beta = scale("beta", beta)
        self._discount = share("discount", discount)
        super().__init__(num_plans)
        self._counts: Floats = np.zeros(num_plans)
        self._sums: Floats = np.zeros(num_plans)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if not seen.any():
            return
        self._tally.add(values, seen)
        self._counts = self._discount * self._counts + seen
        self._sums = self._discount * self._sums + np.where(seen, values, 0.0)

    def estimates(self) -> Floats:
        return self._sums / np.maximum(self._counts, _LEAST)

    def indices(self) -> Floats:
        counts = np.maximum(self._counts, _LEAST)
        total = max(float(counts.sum()), 1.0)  # ln of a smaller total is negative
        return ucb1_indices(self.estimates(), counts, total, self._beta)


_LONGEST = 10_000  # maximum window in rounds: every round scans all of it


class SlidingUCB:
    """Play the plan with the highest upper bound on its mean over the last ``window`` rounds.

    Source: MetaSD, Algorithm 8 (Garivier and Moulines 2011).
    Update: mean and n over the last ``window`` rounds; plan = argmax mean + beta sqrt(2 ln t / n).
    Differs: (1) a plan without values in the window (n = 0) is played at once, the least recently
        chosen first; the pseudocode leaves 0/0 open; (2) the default window of 100 rounds is this
        project's: the paper names none; (3) every seen value counts.
    Feedback: in order, once the window is full. beta: 1e-6 to 1e6; window: 1 to 10,000.
    State: ring buffers of values float64[window, K] and seen bool[window, K]; the round in which
        each plan was last chosen int64[K]; rounds learned. Cost: O(window K) a round.
    """

    def __init__(self, num_plans: int, beta: float = 0.01, window: int = 100) -> None:
        self._beta, self._window = scale("beta", beta), whole("window", window, 1, _LONGEST)
        self._num_plans, self._num_rounds = num_plans, 0
        self._values: Floats = np.zeros((window, num_plans))
        self._seen: Bools = np.zeros((window, num_plans), dtype=np.bool_)
        self._chosen: Ints = np.zeros(num_plans, dtype=np.int64)

    def choose(self) -> Decision:
        plan = self.best()
        self._chosen[plan] = round_ = int(self._chosen.max()) + 1
        return Decision(plan, 1.0, round_)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        values, seen = check_feedback(decision, feedback, self._num_plans)
        if not seen.any():
            return
        place = self._num_rounds % self._window
        self._values[place], self._seen[place] = np.where(seen, values, 0.0), seen
        self._num_rounds += 1

    def probabilities(self) -> Floats:
        return one_hot(self.best(), self._num_plans)

    def estimates(self) -> Floats:
        average: Floats = self._values.sum(axis=0) / np.maximum(self._seen.sum(axis=0), 1)
        return average

    def best(self) -> int:
        counts = self._seen.sum(axis=0)
        if counts.min() == 0:
            return int(np.where(counts > 0, np.inf, self._chosen).argmin())
        return int(ucb1_indices(self.estimates(), counts, self._num_rounds, self._beta).argmax())
