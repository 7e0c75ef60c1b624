"""Matches: hindsight, reproducible bytes, one text for all, the papers' averages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from worlds import COSTS, tiny_text

from draftwise.types import NONE, DraftwiseError, Plan
from draftwise_lab.sim.match import (
    HABITS,
    Contestant,
    Match,
    Outcome,
    Reference,
    averages,
    best_plan,
    every_plan,
    fixed_path,
    fold,
    make_contestant,
    make_match,
    make_plans,
    parse_lengths,
    play,
    report,
    run_match,
    totals,
)
from draftwise_lab.sim.presets import SETTINGS, setting

PLANS = (Plan(NONE, 0), Plan("a", 2), Plan("b", 2), Plan("r", 2))
SEED = np.random.SeedSequence(0)


def contestant(policy: str, feedback: str = "bandit") -> Contestant:
    return Contestant(policy, policy, "length", feedback, PLANS)


def test_hindsight_by_hand() -> None:
    """``a`` with length 2 over 8 tokens: hits 1 1 0 1 1 1 1, so rounds end at 3, 6, 8."""
    text = tiny_text()
    assert fixed_path(text, PLANS[1], {}) == ([3, 6, 8], [2, 2, 1])
    found = totals(text, PLANS, COSTS, {})
    assert found.rounds.tolist()[:2] == [8.0, 3.0]
    assert found.seconds[1] == 2 * (2.0 + 2 * 0.25) + 1.5 + 0.25
    assert (found.tokens, found.plain_s) == (8, 8.0)
    assert best_plan([found], by_seconds=False) == 1


@pytest.mark.parametrize("index", range(4))
def test_playing_a_fixed_plan_is_what_hindsight_says_and_costs_no_regret(index: int) -> None:
    text = tiny_text()
    found = totals(text, PLANS, COSTS, {})
    ends, _ = fixed_path(text, PLANS[index], {})
    rows = list(
        play(text, contestant(f"fixed:{index}"), COSTS, Reference(ends, index), SEED,
             {"seed": 0, "domain": "x"})
    )  # fmt: skip
    run = fold(iter(rows))
    assert run.rounds == found.rounds[index]
    assert run.seconds == found.seconds[index]
    assert [row["regret"] for row in rows] == [0] * len(rows)
    assert run.best_plan_ratio == 1.0


def test_rows_are_flat_and_complete() -> None:
    rows = play(tiny_text(), contestant("fixed:1"), COSTS, Reference([8], 0), SEED,
                {"seed": 3, "domain": "x"}, with_estimates=True)  # fmt: skip
    first = next(rows)
    assert first == {
        "seed": 3, "domain": "x", "text": "tiny", "policy": "fixed:1", "round": 1,
        "plan": "ax2", "plan_index": 1, "drafted": 2, "accepted": 2, "emitted": 3,
        "position": 3, "seconds": 2.5, "regret": 0, "is_best": False,
        "estimates": first["estimates"],
    }  # fmt: skip
    assert len(first["estimates"]) == 4


def test_the_prompt_is_paid_in_the_first_round() -> None:
    args = (COSTS, Reference([8], 0), SEED, {"seed": 0, "domain": "x"})
    free = fold(play(tiny_text(), contestant("fixed:1", "free"), *args))
    bandit = fold(play(tiny_text(), contestant("fixed:1"), *args))
    assert free.seconds == bandit.seconds + 0.25 + 0.125


def test_scoring_everyone_is_paid_in_every_third_round() -> None:
    """Scoring b, which does not play, costs half of its step of 0.125."""
    args = (COSTS, Reference([8], 0), SEED, {"seed": 0, "domain": "x"})
    rounds = play(tiny_text(), contestant("fixed:0", "panoramic:every=3"), *args)
    seconds = [row["seconds"] for row in rounds]
    everyone = 0.5 * (0.25 + 0.125)
    assert seconds[1:] == [1.0, 1.0 + everyone, 1.0, 1.0, 1.0 + everyone, 1.0, 1.0]


def test_averages_are_geometric_for_speedups_and_plain_for_the_rest() -> None:
    keys = {"policy": "p", "rounds": 1.0, "tok_per_s": 1.0, "slowest_speedup": 0.5}
    rows = [keys | {"mat": 1.0, "speedup": 1.0, "ci95": 3.0},
            keys | {"mat": 3.0, "speedup": 4.0, "ci95": 4.0}]  # fmt: skip
    average = averages(rows)["p"]
    assert (average["mat"], average["ci95"]) == (2.0, 2.5)
    assert average["speedup"] == pytest.approx(2.0)


def small_match(*labels: str, name: str = "hedgespec-llama", tokens: int = 60) -> Match:
    return make_match(setting(name), list(labels) or None, tokens=tokens)


def as_bytes(match: Match, outcome: Outcome) -> str:
    return json.dumps(report("x", match, outcome), sort_keys=True)


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_processes() -> None:
    match = small_match("exp3spec", "normalhedge")
    one, again, two = (run_match(match, range(2), jobs) for jobs in (1, 1, 2))
    assert as_bytes(match, one) == as_bytes(match, again) == as_bytes(match, two)
    other = run_match(match, range(1, 3))
    assert as_bytes(match, one) != as_bytes(match, other)


def test_a_policy_plays_the_same_whoever_else_is_in_the_match() -> None:
    alone, both = (run_match(small_match(*labels), [0]) for labels in (
        ["exp3spec"], ["ucbspec", "exp3spec"]))  # fmt: skip
    assert alone.runs == [run for run in both.runs if run.policy == "exp3spec"]


def test_every_policy_sees_the_same_text() -> None:
    """All policies emit the same number of tokens on a text, and its hindsight is the same."""
    match = small_match(*SETTINGS["hedgespec-llama"].panel)
    outcome = run_match(match, [0])
    by_text: dict[str, set[int]] = {}
    for run in outcome.runs:
        by_text.setdefault(run.text, set()).add(run.tokens)
    assert all(len(tokens) == 1 for tokens in by_text.values())
    alone = run_match(small_match("ucbspec"), [0])
    [few], [many] = (list(o.hindsight["Math"].values()) for o in (alone, outcome))
    places = [match.plans.index(plan) for plan in small_match("ucbspec").plans]
    assert many.rounds[places].tolist() == few.rounds.tolist()


def test_the_best_fixed_plan_has_no_regret_and_the_report_has_its_keys() -> None:
    chosen = setting("geometric")
    match = make_match(chosen, ["fixed:0", "fixed:1"], tokens=300)  # a x 4 is the best plan
    found = report("geometric", match, run_match(match, range(2)))
    assert set(found) >= {"preset", "tokens", "domains", "policies", "results", "average"}
    rows = {row["policy"]: row for row in found["results"]}
    assert rows["fixed:0"]["regret"] == 0.0
    assert rows["fixed:1"]["regret"] > 0.0
    assert rows["fixed:0"]["best_plan_ratio"] == 1.0
    assert rows["fixed:0"]["mat"] == rows["best fixed plan"]["mat"]
    assert rows["best fixed plan"]["plan"] == "ax4"
    assert rows["plain"]["speedup"] == rows["plain"]["mat"] == 1.0
    for key in ("mat", "ci95", "rounds", "tok_per_s", "speedup", "regret", "best_plan_ratio"):
        assert key in rows["fixed:1"]
        assert key in found["average"]["fixed:1"]
    # every round costs 1 + 4 * 0.05 as long as 4 tokens fit into the answer
    assert rows["fixed:0"]["tok_per_s"] == pytest.approx(rows["fixed:0"]["mat"] / 1.2, rel=0.01)


def test_draft_all_emits_most_a_round_and_is_the_slowest() -> None:
    """MetaSD, table 5: 0.352 to 0.544 times the speed of plain decoding."""
    match = small_match("draft-all", "random", name="metasd-multilingual", tokens=100)
    average = report("x", match, run_match(match, range(3)))["average"]
    assert average["draft-all"]["mat"] > average["best fixed plan"]["mat"]
    assert 0.3 < average["draft-all"]["speedup"] < 0.6 < average["random"]["speedup"]


@pytest.mark.parametrize(
    ("preset", "paper"),
    [
        ("hedgespec-llama", {"ucbspec": 5.09, "exp3spec": 4.86, "normalhedge": 7.15}),
        ("hedgespec-qwen8b", {"ucbspec": 4.58, "exp3spec": 4.37, "normalhedge": 6.45}),
    ],
)
def test_hedgespec_table_3(preset: str, paper: dict[str, float]) -> None:
    """Averages over domains within 6% of the paper's, here on four texts a domain."""
    match = make_match(setting(preset), list(paper))
    found = report(preset, match, run_match(match, range(4)))["average"]
    for policy, mat in paper.items():
        assert found[policy]["mat"] == pytest.approx(mat, rel=0.06)


def test_labels_say_what_is_played() -> None:
    made = make_contestant("ucb1:beta=1@0,2-3/acceptance/prefix", ["a"], (8,))
    assert (made.policy, made.reward, made.feedback) == ("ucb1:beta=1", "acceptance", "prefix")
    assert [str(plan) for plan in made.plans] == ["none", "ax2", "ax3"]
    default = make_contestant("normalhedge", ["a"], (8,))
    assert (default.reward, default.feedback) == HABITS["normalhedge"]
    wrapped = make_contestant("delayed:base=hedge,rounds=2", ["a"], (8,))
    assert (wrapped.reward, wrapped.feedback) == HABITS["hedge"]
    given = make_contestant("normalhedge", ["a"], (8,), reward="length", feedback="bandit")
    assert (given.reward, given.feedback) == ("length", "bandit")
    assert make_contestant("ucbspec", ["a"], (8,)).feedback == "bandit"


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("nope", "the policy names are: .*ucb1"),
        ("ucb1:x=1", "its options are: beta"),
        ("ucb1/nope", "the reward names are: length"),
        ("ucb1/length/nope", "the feedback names are: bandit"),
        ("ucb1/length/bandit/more", "write POLICY"),
        ("ucb1@x", "write 8, 2,4,8 or 0-16"),
        ("ucb1@3-2", "name no length"),
    ],
)
def test_bad_labels_list_what_is_valid(label: str, message: str) -> None:
    with pytest.raises(DraftwiseError, match=message):
        make_contestant(label, ["a", "b"], (4,))


def test_plans_are_drafters_by_lengths_by_rules() -> None:
    assert parse_lengths("4") == (4,)
    assert len(make_plans(["a", "b"], (0, 1, 2), ("fixed", "max-confidence:0.8"))) == 9
    two = [make_contestant(label, ["a"], (4,)) for label in ("ucbspec@0-2", "ucbspec")]
    assert [str(p) for p in every_plan(two, make_plans(["a"], (4,)))] == [
        "ax4", "none", "ax1", "ax2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_preset_plays_its_panel(name: str) -> None:
    match = make_match(setting(name), None, tokens=30)
    outcome = run_match(match, [0])
    assert len(outcome.runs) == len(match.contestants) * len(match.environment.domains)
    assert all(run.tokens == 30 for run in outcome.runs)
