"""The cost model recovers planted seconds, whatever the order of the steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from draftwise.controller.costs import Step, StepCosts

Seconds = Callable[[int, int, int, int], float]


def staircase(tokens: int, requests: int, context: int, length: int) -> float:
    """Step seconds with a jump after 128 tokens."""
    stair = 4.0 if tokens > 128 else 0.0
    return (
        6 + 0.01 * tokens + stair + 2e-5 * context + (0.15 + 0.35 * length) * (length > 0)
    ) / 1e3  # fmt: skip


def observed(
    machine: Seconds, num: int = 1500, noise: float = 0.01, seed: int = 0, outliers: float = 0.0
) -> StepCosts:
    """A cost model after random steps of 16 to 64 requests."""
    rng = np.random.default_rng(seed)
    costs = StepCosts()
    for _ in range(num):
        requests = int(rng.integers(16, 65))
        length = int(rng.integers(0, 5))
        tokens = requests + int(rng.integers(0, 3 * requests))
        context = int(requests * rng.integers(200, 4000))
        seconds = machine(tokens, requests, context, length) * (1 + noise * rng.standard_normal())
        if rng.random() < outliers:
            seconds *= 5
        costs.observe(Step(requests, tokens, seconds, length, context), context)
    return costs


def errors(costs: StepCosts, machine: Seconds) -> list[float]:
    """Relative errors of the predicted seconds of steps without drafting."""
    found = []
    for requests, context in ((20, 20_000), (40, 80_000), (60, 60_000)):
        seconds = costs.seconds(requests, context, 0, 2 * requests)
        truth = [machine(requests + x, requests, context, 0) for x in range(2 * requests + 1)]
        found += (seconds / np.array(truth) - 1).tolist()
    return found


@pytest.mark.parametrize("outliers", [0.0, 0.03])
def test_recovers_planted_seconds(outliers: float) -> None:
    costs = observed(staircase, outliers=outliers)
    assert np.quantile(np.abs(errors(costs, staircase)), 0.98) < 0.03
    each = costs.draft_seconds(4) - costs.draft_seconds(2)
    assert each == pytest.approx(0.7e-3, rel=0.15)
    assert costs.draft_seconds(0) == 0.0


def test_a_slow_first_step_is_no_measure_of_the_others() -> None:
    costs = StepCosts()
    costs.observe(Step(8, 8, 0.5, 0, 8000), 8000)
    for _ in range(20):
        costs.observe(Step(8, 8, 0.006, 0, 8000), 8000)
    assert costs.seconds(8, 8000, 0, 0)[0] == pytest.approx(0.006, rel=0.02)
    assert costs.draft_seconds(1) < 0.001


def test_a_stair_stands_where_it_was_measured() -> None:
    costs = observed(staircase)
    seconds = costs.seconds(64, 64_000, 0, 100)
    assert seconds[65] - seconds[64] > 0.003
    assert seconds[64] - seconds[0] < 0.0015


def test_a_jump_that_was_too_high_by_chance_is_bounded_by_wider_steps() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.observe(Step(4, 4, 0.005), 600)
    for _ in range(2):  # late twice, each time by more than a predictable pause
        costs.observe(Step(4, 5, 0.008), 600)
    for _ in range(50):
        costs.observe(Step(4, 8, 0.0055), 600)
    seconds = costs.seconds(4, 600, 0, 6)
    assert seconds[0] == pytest.approx(0.005, rel=0.01)
    assert seconds[1] <= seconds[4] == pytest.approx(0.0055, rel=0.02)
    assert (np.diff(seconds) >= 0).all()


@pytest.mark.parametrize("stair", [64, 256])
def test_a_wrong_first_guess_is_no_noise(stair: int) -> None:
    """The first larger step lies just above a stair, and takes twice as long as a plain one: two
    steps below it show where the jump is."""
    num, costs = stair // 2, StepCosts()
    true_s = {num: 0.018, stair: 0.025, stair + 4: 0.036}
    for tokens in (num, num, num, stair + 4, stair, stair):
        costs.observe(Step(num, tokens, true_s[tokens]), 40_000)
    seconds = costs.seconds(num, 40_000, 0, num + 4)
    assert seconds[num] == pytest.approx(0.025, rel=0.06)
    assert seconds[0] == pytest.approx(0.018, rel=0.04)


def test_follows_prices_that_double() -> None:
    costs = observed(staircase, num=600)
    before = costs.seconds(32, 32_000, 0, 0)[0]
    for _ in range(10):
        seconds = 2 * staircase(64, 32, 32_000, 2)
        costs.observe(Step(32, 64, seconds, 2, 32_000), 32_000)
    assert costs.seconds(32, 32_000, 0, 0)[0] == pytest.approx(2 * before, rel=0.1)


def test_a_stale_cheap_sample_does_not_cap_the_price_of_others() -> None:
    """Wide steps were measured with short texts; then only narrow ones with long texts occur."""
    costs = StepCosts()
    for x in range(200):
        tokens = 4 if x % 4 else 64
        costs.observe(Step(4, tokens, staircase(tokens, 4, 1000, 0), 0, 1000), 1000)
    for _ in range(400):
        costs.observe(Step(4, 4, staircase(4, 4, 400_000, 0), 0, 400_000), 400_000)
    seconds = costs.seconds(4, 400_000, 0, 60)
    assert seconds[60] > seconds[0]
    assert seconds[60] == pytest.approx(staircase(64, 4, 400_000, 0), rel=0.1)


def test_prefill_is_priced() -> None:
    costs, rng = StepCosts(), np.random.default_rng(0)
    for _ in range(600):
        prefill = int(rng.integers(0, 2)) * int(rng.integers(100, 800))
        tokens = 8 + prefill
        seconds = (6 + 0.01 * tokens + 0.02 * prefill) / 1e3
        costs.observe(Step(8, tokens, seconds, 0, 8000, prefill), 8000)
    assert costs.seconds(8, 8000, 0, 0)[0] == pytest.approx(6.08e-3, rel=0.05)


def test_empty_and_impossible_steps_teach_nothing() -> None:
    costs = StepCosts()
    for step in (Step(0, 0, 1.0), Step(1, 1, 0.0), Step(1, 1, float("nan")), Step(1, 1, -1.0)):
        costs.observe(step, 0)
    assert not costs.is_known


def test_prices_from_a_table() -> None:
    costs = StepCosts()
    costs.load_table({1: 0.006, 128: 0.008, 129: 0.012, 256: 0.013}, draft_s=(0.0002, 0.0004))
    seconds = costs.seconds(1, 0, 0, 255)
    assert seconds[0] == pytest.approx(0.006)
    assert seconds[127] == pytest.approx(0.008, rel=0.02)
    assert seconds[255] == pytest.approx(0.013, rel=0.02)
    assert seconds[135] - seconds[127] > 0.003
    assert costs.draft_seconds(3) == pytest.approx(0.0014)
    assert costs.is_known


def test_steps_correct_a_table() -> None:
    costs = StepCosts()
    costs.load_table({tokens: 0.003 + 1e-6 * tokens for tokens in (1, 64, 128, 256)})
    rng = np.random.default_rng(0)
    for _ in range(1000):
        tokens = 16 + int(rng.integers(0, 100))
        costs.observe(Step(16, tokens, staircase(tokens, 16, 16_000, 0), 0, 16_000), 16_000)
    assert costs.seconds(16, 16_000, 0, 0)[0] == pytest.approx(
        staircase(16, 16, 16_000, 0), rel=0.03
    )


@pytest.mark.parametrize("table", [{}, {0: 1.0}, {1: -1.0}, {1: float("nan")}, {1: 2.0, 2: 1.0}])
def test_refuses_a_table_that_cannot_be(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="table"):
        StepCosts().load_table(table)


def test_state_round_trip() -> None:
    costs = observed(staircase, num=300)
    other = StepCosts()
    other.load_state(costs.state())
    expected = costs.seconds(32, 40_000, 2, 60).copy()
    assert other.seconds(32, 40_000, 2, 60) == pytest.approx(expected)
    assert other.state() == costs.state()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", [1.0]), ("variance", None), ("plain_s", float("nan")), ("edges", [1, 2]),
        ("largest", 10**30), ("longest", -1), ("num_steps", float("inf")),
        pytest.param("plain_s", 10**400, id="huge"),
    ],
)  # fmt: skip
def test_refuses_a_damaged_state(name: str, value: object) -> None:
    state = observed(staircase, num=20).state()
    with pytest.raises(ValueError, match="cost model"):
        StepCosts().load_state({**state, name: value})


def test_the_first_price_is_not_that_of_a_step_that_read_prompts() -> None:
    costs = StepCosts()
    costs.observe(Step(1, 513, 0.2, num_prefill=512), 1000)
    assert not costs.is_known
    costs.observe(Step(1, 1, 0.01), 1000)
    assert costs.seconds(1, 1000, 0, 0).item() == pytest.approx(0.01, rel=0.05)


def test_prefill_does_not_price_drafts() -> None:
    """A step with prefill takes 3 ms more whatever its length: no reason to verify fewer tokens."""
    costs, rng = StepCosts(), random.Random(0)
    for number in range(200):
        prefill = rng.randrange(40, 130) if number % 2 else 0
        seconds = 0.006 + 1e-5 * prefill + (0.003 if prefill else 0.0)
        costs.observe(Step(64, 64 + prefill, seconds, num_prefill=prefill), 10_000)
    plain_s, *_, drafts_s = costs.seconds(64, 10_000, 0, 64).tolist()
    assert plain_s == pytest.approx(0.006, rel=0.02)
    assert drafts_s - plain_s < 0.0012
    assert costs.prefill_seconds(64, 80) == pytest.approx(0.0038, rel=0.1)


def test_a_pause_counts_for_little() -> None:
    costs, counted = StepCosts(), []
    for seconds in (*[0.01] * 30, 5.0, 5.0, 5.0, 0.01, 5.0, 0.01, 0.025):
        costs.observe(Step(1, 1, seconds), 100)
        counted.append(costs.counted_s)
    expected = [0.01, 0.07, 0.04, 0.01, 0.01, 0.01, 0.01]  # what was excused counts after all
    assert counted[30:] == pytest.approx(expected, rel=0.05)
    assert costs.seconds(1, 100, 0, 0).item() == pytest.approx(0.01, rel=0.05)


def test_drafts_that_interrupt_steps_for_good_are_charged() -> None:
    """One step with drafts in ten takes longer; only the first ones may be kernels being loaded."""
    costs, counted = StepCosts(), []
    for number in range(1, 401):
        seconds = 0.01 if number % 10 else 0.5
        costs.observe(Step(1, 2, seconds), 100)
        counted.append(costs.counted_s)
    interrupted = [round(seconds, 2) for seconds in counted[9::10]]
    assert interrupted[:16] == [0.01] * 16
    assert interrupted[20:].count(0.04) >= 18
