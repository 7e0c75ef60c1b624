"""Wrappers of policies: what reaches the base, and in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftwise.registry import POLICIES, make_policy
from draftwise.types import Decision, Feedback, Floats


def tell(policy: Any, plan: int, value: float, round_: int = 1) -> None:
    num_plans = len(policy.probabilities())
    seen = np.arange(num_plans) == plan
    policy.learn(Decision(plan, 1.0, round_), Feedback(np.where(seen, value, 0.0), seen))


class Recorder:
    """A policy of one round after another that notes what it is told."""

    def __init__(self, num_plans: int) -> None:
        self.told: list[tuple[int, float]] = []
        self.num_plans, self.num_chosen = num_plans, 0

    def choose(self) -> Decision:
        self.num_chosen += 1
        return Decision((self.num_chosen - 1) % self.num_plans, 1.0, self.num_chosen)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self.told.append((decision.plan, float(feedback.values[decision.plan])))

    def probabilities(self) -> Floats:
        return np.eye(self.num_plans)[self.num_chosen % self.num_plans]

    def estimates(self) -> Floats:
        return np.zeros(self.num_plans)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The policies that were made from the spec ``recorder``, in order."""
    found: list[Recorder] = []

    def make(num_plans: int) -> Recorder:
        found.append(Recorder(num_plans))
        return found[-1]

    monkeypatch.setitem(POLICIES, "recorder", (make, {}))
    return found


def test_delayed_passes_on_in_order(made: list[Recorder]) -> None:
    """QFI-D: first in, first out."""
    policy = make_policy("delayed:base=recorder,rounds=2", 1)
    seen = []
    for value in (0.1, 0.2, 0.3, 0.4):
        tell(policy, 0, value)
        seen.append(len(made[0].told))
    assert seen == [0, 0, 1, 2]
    assert made[0].told == [(0, 0.1), (0, 0.2)]


def test_delayed_feedback_leaves_a_stream_without_delay() -> None:
    """HedgeSpec Algorithm 1: after T rounds at delay d, the base is in its state of T - d."""
    late, prompt = make_policy("delayed:base=exp3spec,rounds=5", 3), make_policy("exp3spec", 3)
    rng = np.random.default_rng(0)
    for t in range(50):
        plan, value = int(rng.integers(3)), float(rng.random())
        tell(late, plan, value)
        if t < 45:
            tell(prompt, plan, value)
    np.testing.assert_array_equal(late.probabilities(), prompt.probabilities())


def test_delayed_keeps_what_the_caller_overwrites() -> None:
    policy = make_policy("delayed:base=ucb1,rounds=1", 1)
    values, seen = np.array([0.25]), np.array([True])
    policy.learn(Decision(0, 1.0, 1), Feedback(values, seen))
    values[0] = 1.0
    policy.learn(Decision(0, 1.0, 2), Feedback(values, seen))
    assert policy.estimates().tolist() == [0.25]


def test_copies_take_turns_under_a_constant_delay(made: list[Recorder]) -> None:
    """Delay 2: each of three copies makes every third decision and never waits (Weinberger and
    Ordentlich's case of the reduction)."""
    policy, waiting, plans = make_policy("copies:recorder", 4), [], []
    for _ in range(12):
        waiting.append(policy.choose())
        plans.append(waiting[-1].plan)
        if len(waiting) > 2:
            tell(policy, waiting[0].plan, 0.5, waiting[0].round)
            del waiting[0]
    assert sum(copy.num_chosen > 0 for copy in made) == 3
    assert plans == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_copies_feedback_reaches_the_copy_that_made_the_decision(made: list[Recorder]) -> None:
    """Two decisions in flight, answered in the wrong order: each copy learns its own value."""
    policy = make_policy("copies:recorder", 1)
    first, second = policy.choose(), policy.choose()
    tell(policy, 0, 0.9, second.round)
    tell(policy, 0, 0.1, first.round)
    assert [copy.told for copy in made if copy.told] == [[(0, 0.1)], [(0, 0.9)]]
    assert policy.choose().round == 3
    assert sum(copy.num_chosen > 0 for copy in made) == 2


def test_copies_in_the_token_level_game_keep_all_feedback_of_a_decision_together(
    made: list[Recorder],
) -> None:
    """HedgeSpec Theorem 4: a round of three tokens has three loss vectors, all for the copy of the
    decision, which is free again only after the last one."""
    policy = make_policy("copies:recorder", 1)
    first, second = policy.choose(), policy.choose()
    for more, value in ((2, 0.1), (1, 0.2), (0, 0.3)):
        told = Feedback(np.array([value]), np.array([True]), more=more)
        assert policy.choose().round > 2
        policy.learn(second, told)
    policy.learn(first, Feedback(np.array([0.9]), np.array([True])))
    assert [len(copy.told) for copy in made[:2]] == [1, 3]
    assert len(made) == 5


def test_copies_give_a_replayed_decision_to_the_first() -> None:
    policy = make_policy("copies:ucb1", 2)
    tell(policy, 1, 0.75, round_=99)
    assert policy.estimates().tolist() == [0.0, 0.75]


def test_copies_draw_from_different_generators() -> None:
    policy = make_policy("copies:random", 1000)
    assert len({policy.choose().plan for _ in range(5)}) > 1


def test_batched_by_hand(made: list[Recorder]) -> None:
    """warmup 2, batch 3, skip 2. Rounds 1-2 at once; then every second feedback is kept (3, 5, 7,
    ..) and learned at rounds 5, 8, 11: counts 2, 2, then 4, 4, 4, then 5 (7)."""
    policy = make_policy("batched:base=recorder,warmup=2,batch=3,skip=2", 1)
    counts = []
    for value in range(1, 10):
        policy.choose()
        tell(policy, 0, value / 10)
        counts.append(len(made[0].told))
    assert counts == [1, 2, 2, 2, 4, 4, 4, 5, 5]
    assert [value for _, value in made[0].told] == [0.1, 0.2, 0.3, 0.5, 0.7]


def test_batched_defaults_are_those_of_the_paper(made: list[Recorder]) -> None:
    """B.5: 6 rounds of full updates, batches of 12 rounds, one update per 6 tokens: of rounds 7 to
    18 it learns 2, at round 18."""
    policy = make_policy("batched:recorder", 1)
    counts = []
    for _ in range(18):
        policy.choose()
        tell(policy, 0, 0.5)
        counts.append(len(made[0].told))
    assert counts == [1, 2, 3, 4, 5, 6] + [6] * 11 + [8]


@pytest.mark.parametrize("rows", [1, 4, 8, 16])
def test_batched_learns_from_rows_that_share_it(rows: int, made: list[Recorder]) -> None:
    """All rows choose before the first of them learns; one feedback in 6 counts."""
    policy = make_policy("batched:recorder", 2)
    for _ in range(4800 // rows):
        decisions = [policy.choose() for _ in range(rows)]
        for decision in decisions:
            tell(policy, decision.plan, 0.5, decision.round)
    assert 4800 / 6 - 2 * rows <= len(made[0].told) <= 4800 / 6 + 12


def test_one_plan_is_the_whole_batchs(made: list[Recorder]) -> None:
    """BanditSpec 6.2: eight rows play one length from the first round on, and all teach it."""
    shared, other = (make_policy("one-plan:base=recorder", 5) for _ in range(2))
    rows = [shared] * 8 + [other] * 2
    for t in range(1, 6):
        decisions = [policy.choose() for policy in rows]
        assert [decision.plan for decision in decisions] == [t - 1] * 10
        for policy, decision in zip(rows, decisions, strict=True):
            tell(policy, decision.plan, 0.5, decision.round)
    assert [len(policy.told) for policy in made] == [40, 10]


def test_wrappers_nest(made: list[Recorder]) -> None:
    policy = make_policy("delayed:base=batched:base=recorder,rounds=1", 2)
    for _ in range(8):
        tell(policy, policy.choose().plan, 0.5)
    assert len(made) == 1
    assert len(made[0].told) == 6  # the warm-up of ``batched``, one feedback late
