"""Probes of idle drafters: their value, and when one is due."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise.controller import goodput as looks_of
from draftwise.controller.goodput import PROBE_TOKENS_PAID, Goodput, PlanCosts, ProbeScheduler
from draftwise.types import NONE, Costs, Plan, RoundFacts, Scores

NAMES = ("a", "b")
PLANS = [Plan(NONE, 0), *(Plan(name, k) for name in NAMES for k in (1, 2, 4, 8))]
FLAT = [1.0] * 17


def costs(step_s: float = 0.05, read_s: float = 0.001) -> PlanCosts:
    found = PlanCosts(PLANS)
    found.take(Costs(np.array(FLAT), dict.fromkeys(NAMES, step_s),
                     dict.fromkeys(NAMES, read_s)))  # fmt: skip
    return found


def due(
    rate: float, weight: float, *, best: float = 2.0, left: float = 100.0, step_s: float = 0.05,
    rows: int = 1, emitted: int = 0, looks: ProbeScheduler | None = None,
) -> list[int]:  # fmt: skip
    """Whether a probe of ``a`` is due, ``b`` and ``none`` being excluded."""
    known = looks or ProbeScheduler(3, 33.0)
    known.scored(1, 100, False)
    known.reached(140, emitted)
    rates, weights = np.array([rate, rate, rate]), np.array([weight, 0.0, 0.0])
    return known.due(best, rates, weights, costs(step_s), left, rows)


def test_a_look_is_due_where_it_may_bring_more_than_it_costs() -> None:
    assert due(0.55, 2.0) == [0]
    assert due(0.55, 2.0, step_s=5.0) == []  # too expensive to probe and to play
    assert due(0.55, 2.0, left=1.0) == []  # nothing left to gain
    assert due(0.02, 40.0) == []  # known to be useless
    assert due(0.55, 2.0, best=9.0) == []  # the current plan cannot be improved
    assert due(0.55, 2.0, rows=1000) == []  # all rows of a batch wait for the probe


def test_what_is_not_known_is_worth_more_than_what_is() -> None:
    """Acceptance 0.3: at weight 1 it may well be 0.9, at weight 30 hardly."""
    assert due(0.3, 1.0) == [0]
    assert due(0.3, 30.0) == []


def test_what_is_missed_adds_up_until_a_look_is_due() -> None:
    """A drafter of little promise is probed eventually, and then not again at once."""
    looks = ProbeScheduler(3, 33.0)
    looks.scored(1, 100, False)
    rounds = 0
    while not due(0.2, 4.0, emitted=4, looks=looks):
        rounds += 1
        assert rounds < 100
    assert rounds > 5
    looks.scored(0, 140, True)
    looks.reached(150, 4)
    assert looks.due(2.0, np.full(3, 0.2), np.array([4.0, 0.0, 0.0]), costs(), 100.0, 1) == []


def test_a_drafter_that_surely_fails_may_be_better_by_now() -> None:
    """If acceptance may drift, such a drafter is probed once in a while; otherwise never."""
    looks, sure = ProbeScheduler(3, 33.0), ProbeScheduler(3, 33.0)
    looks.expect()
    for one in (looks, sure):
        one.scored(1, 100, False)
    rounds = 0
    while not due(0.02, 40.0, emitted=4, looks=looks):
        assert due(0.02, 40.0, emitted=4, looks=sure) == []
        rounds += 1
    assert 1 < rounds < 1000


def test_rows_that_wait_share_what_was_missed() -> None:
    alone, crowd = ProbeScheduler(3, 33.0), ProbeScheduler(3, 33.0)
    due(0.3, 10.0, emitted=8, looks=alone)
    due(0.3, 10.0, emitted=8, looks=crowd, rows=4)
    assert 4 * crowd.missed_s[0] == pytest.approx(alone.missed_s[0])


def test_before_the_first_round_all_that_are_worth_it() -> None:
    looks = ProbeScheduler(3, 33.0)
    looks.reached(100, 0)
    beliefs = np.array([0.55, 0.6, 0.0]), np.array([2.0, 2.0, 0.0])
    assert sorted(looks.due(1.5, *beliefs, costs(), 100.0, 1)) == [0, 1]
    looks.scored(0, 100, False)
    looks.reached(140, 4)
    assert len(looks.due(1.5, *beliefs, costs(), 100.0, 1)) == 1


def test_catching_up_is_spread_over_what_it_may_be_played_for() -> None:
    looks = ProbeScheduler(2, 33.0)
    looks.scored(0, 60, False)
    looks.scored(1, 90, True)  # a partial read: nothing before it is cached
    looks.reached(100, 0)
    read_s = np.array([0.01, 0.01])
    assert looks.catching_up(read_s, 20.0).tolist() == pytest.approx([0.4 / 20, 1.0 / 20])
    assert looks.catching_up(read_s, 500.0).tolist() == pytest.approx([0.4 / 33, 1.0 / 33])


def test_a_drafter_that_could_not_win_is_not_looked_at() -> None:
    """Against a long match that is always right only a cheap drafter can win and is probed."""
    plans = [Plan(NONE, 0), *(Plan(name, k) for name in ("lm", "copy", "other") for k in (4, 16))]
    for cost, expected in ((0.001, ["lm"]), (0.2, [])):
        policy = Goodput(len(plans), plans)
        scores = {"copy": Scores(0, np.ones(300), np.ones(300), np.full(300, 20))}
        told = RoundFacts(
            plans[3], 4, 4, scores,
            costs=Costs(np.array(FLAT), {"lm": cost, "copy": 0.1, "other": 0.2}),
            matches={"copy": 20}, seconds=1.0, emitted_start=300,
        )  # fmt: skip
        policy.read(told)
        assert policy.drafters_to_probe() == expected
        assert Goodput(len(plans), plans, looks=False).drafters_to_probe() == []


def num_probes(is_good: bool) -> int:
    """Probes of ``b`` over 30 requests on different texts, while ``a`` drafts well.

    is_good: whether ``b`` is as good as a drafter can be on the last 15.
    """
    memory, num = Goodput(len(PLANS), PLANS).new_memory(), 0
    told = Costs(np.array(FLAT), dict.fromkeys(NAMES, 0.05), dict.fromkeys(NAMES, 0.001))
    for request in range(30):
        policy, text = Goodput(len(PLANS), PLANS), list(range(100 * request, 100 * request + 100))
        policy.recall(memory, text)
        own, end, seconds = {"a": Scores(84, np.full(16, 0.7), np.full(16, 0.7))}, 100, 0.0
        for _ in range(30):
            facts = RoundFacts(PLANS[0], 0, 0, own, costs=told, seconds=seconds, tokens=[end],
                             emitted_start=end)  # fmt: skip
            policy.read(facts)
            own, seconds, end = {"a": Scores(end, np.full(1, 0.7), np.full(1, 0.7))}, 1.0, end + 1
            if "b" in policy.drafters_to_probe():
                alphas = np.full(16, float(is_good and request >= 15))
                own["b"], num = Scores(end - 16, alphas, alphas, weight=0.25), num + 1
    return num


def test_a_drafter_that_always_fails_is_hardly_probed_any_more() -> None:
    assert 1 <= num_probes(is_good=False) < 30  # less than one for each request
    assert num_probes(is_good=True) > num_probes(is_good=False)


ONE = [Plan(NONE, 0), Plan("a", 1)]


def one_length(step_s: float = 0.2) -> PlanCosts:
    """Of ``a`` and ``none``: a draft of one token costs 1 + step_s seconds, reading nothing."""
    found = PlanCosts(ONE)
    found.take(Costs(np.array([1.0, 1.0]), {"a": step_s}, {"a": 0.0}))
    return found


def missed(mean: float, weight: float, scored: int, end: int, is_partial: bool = False) -> float:
    """Seconds missed per token by not probing ``a``, whose best rate equals the best plan's.

    scored: position of the last score, by a probe that was partial or not. end: of the text.
    """
    looks = ProbeScheduler(2, 33.0)
    looks.scored(0, scored, is_partial)
    looks.reached(end, 1)
    rates, weights = np.array([mean, 0.0]), np.array([weight, 0.0])
    looks.due((1.0 + mean) / 1.2, rates, weights, one_length(), 100.0, 1)
    return float(looks.missed_s[0])


def saving(mean: float, weight: float) -> float:
    """The expected saving per token at an acceptance drawn from Beta(n a, n (1 - a))."""
    shares = looks_of._beliefs()[looks_of._place(mean, weight)]
    spared = 1.2 / (1.0 + mean) - 1.2 / (1.0 + np.array(looks_of.ACCEPTANCES))
    return float(shares @ np.maximum(spared, 0.0))


@pytest.mark.parametrize(
    ("mean", "weight"),
    [
        *[(0.5, 0.5), (0.3, 2.0), (0.5, 2.0), (0.7, 2.0)],
        *[(mean, 8.0) for mean in (0.1, 0.3, 0.5, 0.7, 0.9)],
        *[(mean, 128.0) for mean in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)],
    ],
)
def test_a_belief_is_a_beta_of_its_mean_and_weight(mean: float, weight: float) -> None:
    """Each acceptance of the grid has the mass of the draws that are nearest to it."""
    grid = np.array(looks_of.ACCEPTANCES)
    assert (np.diff(grid) > 0).all()
    assert 0 < grid[0] < grid[-1] < 1
    drawn = np.random.default_rng(0).beta(weight * mean, weight * (1.0 - mean), 40_000)
    nearest = np.abs(drawn[:, np.newaxis] - grid).argmin(axis=1)
    expected = np.bincount(nearest, minlength=len(grid)) / len(drawn)
    found = looks_of._beliefs()[looks_of._place(mean, weight)]
    assert found.sum() == pytest.approx(1.0)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=0.02)


@pytest.mark.parametrize(
    ("weight", "num", "after"),
    [
        (2.0, 1, 8.0),  # 3 * 3 / 1 - 1
        (math.sqrt(3.0) - 1.0, 1, 2.0),  # (n + 1)^2 - 1
        (math.sqrt(5.0) - 1.0, 1, 4.0),
        (3.0, 4, 6.0),  # 4 * 7 / 4 - 1
        (2.0, 32, 2.1875),  # 3 * 34 / 32 - 1
    ],
)
def test_the_gain_is_the_saving_at_the_mean_that_a_probe_may_find(
    weight: float, num: int, after: float
) -> None:
    """A probe of q alphas leaves a mean of variance a (1 - a) / (n + 1) * q / (q + n), which is
    that of a Beta of weight (n + 1) (q + n) / q - 1."""
    for mean in (0.3, 0.5, 0.8):
        assert missed(mean, weight, 100, 100 + num) == pytest.approx(saving(mean, after))


def test_a_probe_that_skips_text_scores_a_quarter() -> None:
    """Four alphas count as one where more text is unread than a probe processes."""
    whole, hasty = missed(0.5, 0.732, 40, 41), missed(0.5, 0.732, 40, 44, is_partial=True)
    assert hasty == pytest.approx(whole)
    assert hasty < missed(0.5, 0.732, 40, 44)


def test_text_that_just_fits_a_probe_is_not_skipped() -> None:
    looks = ProbeScheduler(2, 33.0)
    looks.scored(0, 10, False)
    looks.reached(10 + PROBE_TOKENS_PAID, 1)
    assert not looks.is_behind(0)
    looks.reached(11 + PROBE_TOKENS_PAID, 1)
    assert looks.is_behind(0)
    fits, skips = (missed(0.5, 2.0, 10, 10 + PROBE_TOKENS_PAID + more) for more in (0, 1))
    assert fits > skips


def test_a_score_clears_what_was_missed() -> None:
    looks = ProbeScheduler(3, 33.0)
    due(0.2, 4.0, emitted=4, looks=looks)
    assert looks.missed_s[0] > 0
    looks.scored(0, 140, False)
    assert looks.missed_s[0] == 0.0


def test_each_emitted_token_is_missed_once() -> None:
    """Nothing is missed before the first token, and a second decision in a round adds nothing."""
    looks, beliefs = ProbeScheduler(3, 33.0), (np.full(3, 0.3), np.array([4.0, 0.0, 0.0]))
    looks.due(2.0, *beliefs, costs(), 100.0, 1)
    assert looks.missed_s.tolist() == [0.0] * 3
    assert looks.catching_up(np.ones(3), 10.0).tolist() == [0.0] * 3
    looks.scored(1, 100, False)
    looks.reached(140, 4)
    looks.due(2.0, *beliefs, costs(), 100.0, 1)
    before = looks.missed_s.copy()
    looks.due(2.0, *beliefs, costs(), 100.0, 1)
    assert looks.missed_s.tolist() == before.tolist()
    looks.reached(140, 8)
    looks.due(2.0, *beliefs, costs(), 100.0, 1)
    assert looks.missed_s[0] == pytest.approx(3 * before[0])


def test_a_probe_scores_at_least_one_alpha() -> None:
    """One token, or four of which a quarter counts, may be enough; no token or three never."""
    for is_partial, most in ((False, 0), (True, 3)):
        for num in (most, most + 1):
            looks = ProbeScheduler(2, 33.0)
            looks.scored(0, 100, is_partial)
            looks.missed_s[0] = 1e6
            looks.reached(100 + num, 1)
            beliefs = np.array([0.5, 0.0]), np.array([2.0, 0.0])
            found = looks.due(1.25, *beliefs, one_length(), 100.0, 1)
            assert found == ([0] if num > most else [])


def test_catching_up_with_nothing_left_costs_as_much_as_for_one_token() -> None:
    looks = ProbeScheduler(1, 33.0)
    looks.reached(100, 0)
    for left in (0.0, 1.0):
        assert looks.catching_up(np.array([0.01]), left).tolist() == pytest.approx([1.0])


def test_with_shared_statistics_the_best_few_are_probed_first() -> None:
    """Of six equal drafters but for their seconds missed those that missed most, best first."""
    names = [f"d{i}" for i in range(6)]
    priced = PlanCosts([Plan(NONE, 0), *(Plan(name, 4) for name in names)])
    priced.take(Costs(np.array(FLAT), dict.fromkeys(names, 0.05),
                      dict.fromkeys(names, 0.0)))  # fmt: skip
    missed_s = np.array([3.0, 6.0, 1.0, 5.0, 2.0, 4.0, 0.0])
    beliefs = np.full(7, 0.55), np.array([2.0] * 6 + [0.0])
    shared, alone = ProbeScheduler(7, 33.0), ProbeScheduler(7, 33.0)
    shared.expect()
    for looks in (shared, alone):
        looks.missed_s = missed_s.copy()
        looks.reached(20, 0)
    best_first = [1, 3, 5, 0, 4, 2]
    num = 3
    assert 1 < num < 6
    assert shared.due(1.5, *beliefs, priced, 100.0, 1) == best_first[:num]
    assert alone.due(1.5, *beliefs, priced, 100.0, 1) == best_first


def test_plans_are_priced_again_every_16_rounds() -> None:
    """Costs that change after the first decision change what is missed from the 17th on."""
    looks = ProbeScheduler(2, 33.0)
    looks.scored(0, 100, False)
    added = []
    for step_s in [0.2, *[5.0] * 15, *[5.0] * 16, *[0.2] * 2]:
        looks.reached(101, 1)
        before = float(looks.missed_s[0])
        beliefs = np.array([0.5, 0.0]), np.array([2.0, 0.0])
        looks.due(1.25, *beliefs, one_length(step_s), 100.0, 1)
        added.append(float(looks.missed_s[0]) - before)
    assert added == pytest.approx([saving(0.5, 8.0)] * 16 + [0.0] * 16 + [saving(0.5, 8.0)] * 2)


def two_models() -> Goodput:
    """``a`` is free and good; nothing is known of ``b``, which has more to win and costs more."""
    plans = [Plan(NONE, 0), Plan("a", 1), Plan("b", 8)]
    policy = Goodput(3, plans)
    scores = {"a": Scores(100, np.full(200, 0.8), np.full(200, 0.8))}
    told = RoundFacts(
        plans[1], 1, 1, scores, costs=Costs(np.array(FLAT), {"a": 0.0, "b": 0.05}), seconds=1.0,
        emitted_start=318,
    )  # fmt: skip
    policy.read(told)
    return policy


def test_the_best_plans_own_drafter_is_not_probed() -> None:
    assert two_models().drafters_to_probe() == ["b"]
    plans = [Plan(NONE, 0), Plan("a", 8), Plan("b", 1)]
    policy = Goodput(3, plans, prior=0.9)
    told = RoundFacts(plans[0], 0, 0, costs=Costs(np.array(FLAT), {"a": 0.0, "b": 9.0}),
                    seconds=1.0, emitted_start=20)  # fmt: skip
    policy.read(told)
    policy._looks.missed_s[0] = 1e6  # however long it has missed
    assert policy.choose().plan == 1
    assert policy.drafters_to_probe() == []


def test_a_single_model_is_not_probed_while_retrieval_plays() -> None:
    """Playing it is as informative, and may emit tokens."""
    plans = [Plan(NONE, 0), Plan("lm", 16), Plan("copy", 4)]
    policy = Goodput(3, plans)
    scores = {"copy": Scores(0, np.ones(300), np.ones(300), np.full(300, 20))}
    told = RoundFacts(
        plans[2], 4, 4, scores, costs=Costs(np.array(FLAT), {"lm": 0.0, "copy": 0.0}),
        matches={"copy": 20}, seconds=1.0, emitted_start=300,
    )  # fmt: skip
    policy.read(told)
    assert policy.choose().plan == 2
    policy._looks.missed_s[:] = 1e6
    assert policy.drafters_to_probe() == []
