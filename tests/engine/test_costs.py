"""The engine's measured costs of forwards, draft steps and catching up."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.controller.costs import MeasuredCostModel, Step
from engine.pairs import PROMPTS, speculator

A_TOKEN, CONTEXT_TOKEN = 0.03, 1e-4


def seconds_of(rows: int, tokens: int, context: int) -> float:
    """The seconds of a forward grow with its tokens and with the length of the context."""
    return 1.0 + A_TOKEN * tokens + CONTEXT_TOKEN * context


def metered(rows: int = 1, num: int = 200) -> MeasuredCostModel:
    """A cost model that saw forwards of 1 to 9 tokens a row on contexts of 100 to 4,000."""
    cost_model, rng = MeasuredCostModel({"a": 0.25}), np.random.default_rng(0)
    for _ in range(num):
        tokens, context = rows * int(rng.integers(1, 10)), int(rng.integers(100, 4000))
        cost_model.observe(Step(rows, tokens, seconds_of(rows, tokens, context)), context)
    return cost_model


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("context", [200, 3500])
def test_prices_follow_tokens_and_context(rows: int, context: int) -> None:
    found = metered(rows).costs(rows, 9, context).target_s
    expected = [seconds_of(rows, rows * width, context) for width in range(1, 10)]
    np.testing.assert_allclose(found, expected, rtol=0.03)


def test_a_step_tells_what_plain_decoding_would_have_taken() -> None:
    cost_model = metered()
    plain_s = cost_model.observe(Step(1, 8, seconds_of(1, 8, 1000)), 1000)
    assert plain_s == pytest.approx(seconds_of(1, 1, 1000), rel=0.03)


def test_a_pause_of_the_machine_does_not_make_a_length_dear() -> None:
    cost_model = metered()
    cost_model.observe(Step(1, 5, 50.0), 1000)
    assert cost_model.costs(1, 9, 1000).target_s[4] < 1.1 * seconds_of(1, 5, 1000)


def test_drafts_after_a_far_longer_text_do_not_raise_the_price_of_plain_decoding() -> None:
    """On a CPU each drafted token attends to the whole text, so it costs more after a long one."""
    rng = np.random.default_rng(0)

    def seconds(tokens: int, context: int) -> float:
        return 1.0 + A_TOKEN * tokens + CONTEXT_TOKEN * context * (1 + 0.3 * (tokens - 1))

    cost_model = MeasuredCostModel({"a": 0.25})

    def measured(tokens: int, context: int) -> float:
        noise = 1 + 0.01 * rng.standard_normal()
        return cost_model.observe(Step(1, tokens, noise * seconds(tokens, context)), context)

    for context in range(50, 150):
        measured(int(rng.integers(1, 17)), context)
    while cost_model.is_unmeasured(1, 500):
        measured(1, 150)
    num_plain = 0
    while cost_model.is_unmeasured(1, 2500):
        measured(1, 2500)
        num_plain += 1
    assert num_plain == 2
    plain_s = [measured(int(rng.integers(9, 17)), 2500) for _ in range(40)]
    np.testing.assert_allclose(plain_s, seconds(1, 2500), rtol=0.04)
    found = cost_model.costs(1, 17, 2500).target_s[8:]
    np.testing.assert_allclose(found, [seconds(n, 2500) for n in range(9, 18)], rtol=0.05)


def test_where_wide_forwards_are_dear_the_first_drafts_are_few_and_short() -> None:
    """Plain decoding is measured first, or the cost of 17 tokens would be taken for its cost."""
    cost_model, wide = MeasuredCostModel({"a": 0.0}), []
    for _ in range(300):
        most = 1
        if not cost_model.is_unmeasured(1, 100):
            target_s = cost_model.costs(1, 17, 100).target_s
            tokens = 1 + np.cumsum(0.7 ** np.arange(17))  # each survives with 0.7
            most = 1 + int((tokens / target_s).argmax())
        wide.append(most)
        cost_model.observe(Step(1, most, 1.0 + 0.8 * (most - 1)), 100)
    assert wide[:3] == [1, 1, 2]
    assert sum(width > 1 for width in wide) < 10
    np.testing.assert_allclose(cost_model.costs(1, 3, 100).target_s[:2], [1.0, 1.8], rtol=0.05)


def test_nothing_measured_is_one_unit_and_the_guess() -> None:
    costs = MeasuredCostModel({"a": 0.25}).costs(1, 3, 100)
    assert costs.target_s.tolist() == [1.0, 1.0, 1.0]
    assert costs.draft_s == {"a": 0.25}
    assert not costs.read_s


def test_drafters_are_measured_by_step_and_reading_by_token() -> None:
    cost_model = MeasuredCostModel({"a": 0.25})
    for _ in range(6):
        cost_model.record_draft_steps("a", 1, 2, 1.0)
        cost_model.record_draft_steps("a", 16, 2, 2.0)
        cost_model.record_draft_steps("a", 1, 0, 9.0)  # all tokens were copied
        cost_model.record_catch_up("a", 4, 2.0)
    assert [cost_model.costs(rows, 1, 100).draft_s["a"] for rows in (1, 16)] == [0.5, 1.0]
    assert cost_model.costs(1, 1, 100).read_s == {"a": 0.5}


@pytest.mark.parametrize("place", range(6))
def test_one_slow_draft_never_makes_a_drafter_dear(place: int) -> None:
    """One slow draft must not stop a drafter: its cost is corrected only by further drafts."""
    for num in range(max(place + 1, 2), 7):
        cost_model = MeasuredCostModel({"a": 0.25})
        for index in range(num):
            cost_model.record_draft_steps("a", 1, 1, 50.0 if index == place else 1.0)
        assert cost_model.costs(1, 1, 100).draft_s["a"] <= 1.0


def test_probes_and_catching_up_are_charged_where_nothing_is_drafted() -> None:
    """With fixed costs, plain decoding takes one unit a round; probes and catching up add to it."""
    made = speculator(["good", "bad", "lookup"], "goodput", lengths=(1, 4), deterministic=True)
    idle = []
    for index in range(4):
        prompt = [*PROMPTS[2], index]
        rounds = made.start(prompt, max_new_tokens=150, temperature=3.0, seed=index)
        idle += [each for each in rounds if not each.num_drafted]
    assert [each.plain_s for each in idle] == pytest.approx([1.0] * len(idle))
    assert max(each.spent_s for each in idle) > 1.0
