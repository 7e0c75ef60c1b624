"""A custom policy compared with those of the papers, on plans whose values are known."""

import numpy as np

from draftwise import Decision, Feedback, make_policy

MEANS = np.array([0.3, 0.5, 0.8, 0.4])


class EpsilonGreedy:
    """Plays the plan with the best mean so far, and a random one in a tenth of the rounds."""

    def __init__(self, num_plans: int, rng: np.random.Generator) -> None:
        self._sums, self._counts = np.zeros(num_plans), np.full(num_plans, 1e-9)
        self._rng, self._round = rng, 0

    def choose(self) -> Decision:
        """Explore in one round of ten."""
        self._round += 1
        explores = self._rng.random() < 0.1
        best = int(np.argmax(self.estimates()))
        plan = int(self._rng.integers(len(self._sums))) if explores else best
        return Decision(plan, 0.1 / len(self._sums) + 0.9 * (plan == best), self._round)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Average the observed values."""
        self._sums[feedback.seen] += feedback.values[feedback.seen]
        self._counts[feedback.seen] += 1

    def estimates(self) -> np.ndarray:
        """[K] means so far."""
        return self._sums / self._counts


environment = np.random.default_rng(1)
mine = EpsilonGreedy(len(MEANS), np.random.default_rng(0))
policies = {"mine": mine} | {
    spec: make_policy(spec, num_plans=len(MEANS), seed=0)
    for spec in ("ucb1:beta=0.5", "ucbspec", "exp3spec", "random")
}
for name, policy in policies.items():
    total = 0.0
    for _ in range(2000):
        decision = policy.choose()
        value = float(environment.random() < MEANS[decision.plan])
        seen = np.arange(len(MEANS)) == decision.plan
        policy.learn(decision, Feedback(np.where(seen, value, 0.0), seen))
        total += value
    print(f"{name:14} mean value {total / 2000:.3f} of {MEANS.max()}")
