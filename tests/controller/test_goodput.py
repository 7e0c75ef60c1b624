"""The goodput policy: prices computed by hand, and its invariants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.controller.goodput import PROBE_TOKENS_PAID, Goodput
from draftwise.controller.rates import MatchTable, bin_of
from draftwise.controller.writer import GoodputMixer
from draftwise.types import (
    NONE,
    Costs,
    Decision,
    DraftStep,
    Plan,
    RoundFacts,
    Scores,
    TreeShape,
)

PLANS = [Plan(NONE, 0), *(Plan(name, k) for name in ("lm", "lookup") for k in (1, 2, 4))]
FLAT = Costs(np.array([1.0]), {"lm": 0.05, "lookup": 0.001})


def evidence(**facts: Any) -> RoundFacts:
    """Of a round without a draft by default."""
    return RoundFacts(PLANS[0], 0, 0, **({"costs": FLAT} | facts))


def lm(alphas: list[float]) -> dict[str, Scores]:
    return {"lm": Scores(0, np.array(alphas), np.ones(len(alphas)))}


def lookup(alphas: list[float], matches: list[int]) -> dict[str, Scores]:
    return {"lookup": Scores(0, np.array(alphas), np.ones(len(alphas)), np.array(matches))}


def policy(**options: Any) -> Goodput:
    return Goodput(len(PLANS), PLANS, **options)


def prices(of: Goodput) -> np.ndarray:
    """Prices relative to the plan ``none``."""
    return of.estimates() / of.estimates()[0]


def learn(of: Goodput, *told: RoundFacts) -> Goodput:
    for facts in told:
        of.read(facts)
    return of


def test_fresh_prices_by_hand() -> None:
    """a = 0.55, T = 1, c = 0.05 (defaults, no evidence): V(1) = 1.55 / 1.05, V(2) = (1 + 0.55 +
    0.3025) / 1.1, V(4) = (1 + 0.55 + 0.3025 + 0.166375 + 0.09150625) / 1.2."""
    expected = [1.55 / 1.05, 1.8525 / 1.1, 2.11038125 / 1.2]
    assert prices(policy())[1:4].tolist() == pytest.approx(expected)


def two_rates(alphas: list[float], fading: float = 1.0, prior: float = 0.55) -> float:
    """The mixture of slow and fast rates as plain loops; ``fading`` discounts the result.

    prior: after the fading; it was 0.55 during learning.
    """
    rates, errors = [], []
    for g in (0.97, 0.8):
        num = den = error = 0.0
        for alpha in alphas:
            error = 0.97 * error + ((num + 1.1) / (den + 2) - alpha) ** 2
            num, den = g * num + alpha, g * den + 1
        rates.append((fading * num + 2 * prior) / (fading * den + 2))
        errors.append(fading * error)
    good = 0.12 * np.exp(-3 * errors[1]), 0.88 * np.exp(-3 * errors[0])
    return float((good[0] * rates[1] + good[1] * rates[0]) / sum(good))


def test_rate_by_hand() -> None:
    """Alphas 1, 0, 0.5. Slow: num = 0.97^2 + 0.5 = 1.4409, den = 0.97^2 + 0.97 + 1 = 2.9109; fast:
    num = 0.8^2 + 0.5 = 1.14, den = 2.44. Both predicted 0.55 and 0.7; their predictions of the
    third were 2.07 / 3.97 and 1.9 / 3.8 = 0.5, so the fast one leads by (2.07 / 3.97 - 0.5)^2."""
    played = learn(policy(), evidence(scores=lm([1.0, 0.0, 0.5])))
    slow, fast = (1.4409 + 1.1) / 4.9109, (1.14 + 1.1) / 4.44
    odds = 0.12 / 0.88 * np.exp(3 * (2.07 / 3.97 - 0.5) ** 2)
    alpha = (slow + odds * fast) / (1 + odds)
    assert prices(played)[1] == pytest.approx((1 + alpha) / 1.05)
    assert two_rates([1.0, 0.0, 0.5]) == pytest.approx(alpha)


def test_a_change_is_believed_sooner_than_the_slow_rate_would() -> None:
    """Perfect for 60 tokens, then useless: after six more tokens drafting four no longer pays."""
    told = [evidence(scores=lm([1.0] * 60)), evidence(scores=lm([0.0] * 6))]
    played = learn(policy(), *told, evidence(matches={"lookup": 0}))
    assert two_rates([1.0] * 60 + [0.0] * 6) < 0.5
    assert PLANS[played.choose().plan].length < 4


def test_scores_in_pieces_or_at_once_are_the_same() -> None:
    at_once = learn(policy(), evidence(scores=lm([0.9, 0.1, 0.5, 0.7])))
    pieces = learn(policy(), evidence(scores=lm([0.9])), evidence(scores=lm([0.1, 0.5, 0.7])))
    assert at_once.estimates().tolist() == pieces.estimates().tolist()


def test_retrieval_table_by_hand() -> None:
    """Match lengths 3 and 4 share a bucket (prior 0.6): alphas 1, 1 make (0.995 + 1 + 2.4) / (0.995
    + 1 + 4); a match of 2 and one of 5 keep their priors. No match is not counted."""
    played = learn(policy(), evidence(scores=lookup([1.0, 0.0, 1.0], [3, 0, 4])))
    learn(played, evidence(matches={"lookup": 2}))
    third = (0.995 + 1 + 2.4) / (0.995 + 1 + 4)
    survival = np.cumprod([0.45, third, third, 0.75])
    expected = [(1 + survival[0]) / 1.001, (1 + survival[:2].sum()) / 1.002]
    expected.append((1 + survival.sum()) / 1.004)
    assert prices(played)[4:].tolist() == pytest.approx(expected)


SHAPE = TreeShape(4, 12)
WITH_TREES = [Plan(NONE, 0), Plan("eagle", 4), Plan("eagle", 4, tree=SHAPE)]


def with_trees(wide_s: float, accepted: tuple[int, int] = (0, 0), num: int = 0) -> Goodput:
    """Forwards of 1 s and wide_s more per token, draft steps of 0.05 s; a chain's tokens are
    accepted with 0.5. accepted: tokens of each of ``num`` trees, and how many of them were the
    likeliest."""
    costs = Costs(1.0 + wide_s * np.arange(14), {"eagle": 0.05})
    made = Goodput(num_plans=3, plans=WITH_TREES)
    tree = RoundFacts(
        WITH_TREES[2], 12, accepted[0], num_first=accepted[1], seconds=1.0, costs=costs,
    )  # fmt: skip
    chain = RoundFacts(
        WITH_TREES[1], 4, 2, {"eagle": Scores(0, np.full(40, 0.5), np.ones(40))}, costs=costs
    )
    return learn(made, chain, *[tree] * num, chain)


def test_a_tree_by_hand() -> None:
    """12 tokens at 4 depths: 2 siblings, 0.28 after a rejection of the likeliest. A tree with 2
    accepted tokens, the first of them the likeliest, gives firsts 1, 0, 0 and others 1, 0. A step
    of its draft reads 4 tokens; each further token costs 1% of 0.05 s."""
    seconds = 1.12 + 4 * (0.05 + 3 * 0.0005)
    made = with_trees(0.01)
    found, rate = prices(made)[2], float(made._rates.of()[0])
    level = rate + (1 - rate) * 0.28
    assert rate == pytest.approx(0.5, abs=0.02)
    assert found == pytest.approx(sum(level**depth for depth in range(5)) / seconds)
    made = with_trees(0.01, (2, 1), 1)
    found, rate = prices(made)[2], float(made._rates.of()[0])
    first = (0.995**2 + 3 * rate) / (0.995**2 + 0.995 + 1 + 3)
    other = (0.995 + 3 * 0.28) / (0.995 + 1 + 3)
    level = first + (1 - first) * other
    assert found == pytest.approx(sum(level**depth for depth in range(5)) / seconds)


@pytest.mark.parametrize(
    ("wide_s", "accepted", "best"),
    [(0.001, (4, 2), 2), (0.1, (2, 1), 1), (0.02, (1, 1), 1)],
    ids=["siblings help", "tokens are dear", "siblings do not help"],
)
def test_a_tree_is_played_where_its_siblings_pay(
    wide_s: float, accepted: tuple[int, int], best: int
) -> None:
    assert with_trees(wide_s, accepted, 30).choose().plan == best


def test_trees_of_retrieval_climb_the_ladder() -> None:
    plans = [Plan(NONE, 0), Plan("lookup", 4), Plan("lookup", 4, tree=SHAPE)]
    costs = Costs(1.0 + 0.001 * np.arange(14), {"lookup": 0.0})
    made = Goodput(num_plans=3, plans=plans)
    made.read(RoundFacts(plans[0], 0, 0, matches={"lookup": 2}, costs=costs))
    steps = [alpha + (1 - alpha) * 0.28 for alpha in (0.45, 0.6, 0.6, 0.75)]
    expected = (1 + np.cumprod(steps).sum()) / 1.012
    # before any tree the likeliest tokens have the acceptance rates by match length
    assert prices(made)[2] == pytest.approx(expected)
    assert made.choose().plan == 2


def test_long_matches_stay_in_the_last_bucket() -> None:
    table = MatchTable()
    assert table.ladder(18)[14:] == [0.85] * 2 + [0.95] * 2
    table.add([0.0], [10**9])
    assert table.rates[6] == pytest.approx(4 * 0.95 / 5)


def test_no_match_no_retrieval() -> None:
    """A retrieval drafter with perfect scores must not play without a match."""
    hits = evidence(scores=lookup([1.0] * 30, [5] * 30), matches={"lookup": 9})
    assert PLANS[learn(policy(), hits).choose().plan].drafter == "lookup"
    for matches in ({"lookup": 0}, {}):
        missing = learn(policy(), hits, evidence(matches=matches))
        assert PLANS[missing.choose().plan].drafter == "lm"
        assert prices(missing)[4:].tolist() == [0.0, 0.0, 0.0]


def test_matches_alone_tell_a_retrieval_drafter() -> None:
    """Before any score, ``matches`` alone shows that ``lookup`` retrieves and has no match."""
    fresh = learn(policy(), evidence(matches={"lookup": 0}))
    assert prices(fresh)[4:].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("target_s", "draft_s", "alpha", "best"),
    [
        ([1.0], 0.05, 0.9, "lmx4"),  # flat target, cheap drafter: long
        ([1.0], 0.05, 0.0, "none"),  # nothing is accepted
        ([1.0], 0.95, 0.9, "none"),  # 1.9 / 1.95: the drafter costs as much as it saves
        ([1.0, 1.9, 2.8, 3.7, 4.6], 0.05, 0.9, "none"),  # the target is loaded: 1.9 / 1.95
        ([1.0, 1.02, 2.5, 4.0, 5.5], 0.05, 0.9, "lmx1"),  # a second token doubles the cost
    ],
)
def test_prices_decide(target_s: list[float], draft_s: float, alpha: float, best: str) -> None:
    costs = Costs(np.array(target_s), {"lm": draft_s, "lookup": 1.0})
    told = evidence(scores=lm([alpha] * 200), costs=costs, matches={"lookup": 0})
    assert str(PLANS[learn(policy(), told).choose().plan]) == best


def test_every_price_against_a_plain_loop() -> None:
    """All plans, random rates and costs, against the formula written as loops."""
    rng = np.random.default_rng(0)
    names = ["a", "b", "c"]
    plans = [Plan(NONE, 0), *(Plan(name, k) for name in names for k in range(1, 11))]
    rng.shuffle(plans)
    alphas = {name: rng.random(5) for name in names}
    costs = Costs(np.cumsum(rng.random(6)), {name: float(rng.random()) for name in names})
    scores = {name: Scores(0, alphas[name], np.ones(5)) for name in names}
    none = RoundFacts(Plan(NONE, 0), 0, 0, scores, costs=costs)
    of = Goodput(len(plans), plans)
    of.read(none)
    expected = []
    for plan in plans:
        rate = two_rates(list(alphas.get(plan.drafter, ())))
        tokens = 1 + sum(rate**j for j in range(1, plan.length + 1))
        forward = costs.target_s[min(plan.length, 5)]
        expected.append(tokens / (forward + plan.length * costs.draft_s.get(plan.drafter, 0)))
    np.testing.assert_allclose(of.estimates(), np.array(expected) / max(expected), rtol=1e-12)
    assert of.choose().plan == int(np.argmax(expected))


def test_a_draft_longer_than_any_measured_costs_what_the_longest_did() -> None:
    """Overestimating the cost would stop drafting, and the estimate would never be corrected."""
    costs = Costs(np.array([1.0, 1.5]), {"lm": 0.0})
    played = learn(policy(), evidence(scores=lm([1.0] * 500), costs=costs))
    rate = two_rates([1.0] * 500)
    tokens = sum(rate**j for j in range(5))
    assert prices(played)[3] == pytest.approx(tokens / 1.5, rel=1e-6)


def test_unmeasured_costs_keep_the_latest_or_the_default() -> None:
    dear = Costs(np.array([2.0]), {"lm": 0.5, "lookup": 0.5})
    unknown = Costs(np.zeros(0), {})
    of = learn(policy(), evidence(costs=dear), evidence(costs=None))
    assert prices(of)[1] == pytest.approx((1.55 / 2.5) / (1 / 2))
    learn(of, evidence(costs=unknown))  # the target's seconds stay, the drafter's are 5% of them
    assert prices(of)[1] == pytest.approx((1.55 / 2.1) / (1 / 2))


def test_a_clock_that_saw_nothing_divides_nothing_by_zero() -> None:
    of = learn(policy(), evidence(costs=Costs(np.zeros(3), {"lm": 0.0, "lookup": 0.0})))
    assert np.isfinite(of.estimates()).all()


def test_plain_decoding_is_left_again_when_drafting_pays_again() -> None:
    """A drafter that failed is dropped, but scores from its backlog bring it back."""
    of = learn(policy(), evidence(scores=lm([0.0] * 100), matches={"lookup": 0}))
    assert of.choose().plan == 0
    learn(of, evidence(scores=lm([1.0] * 40), matches={"lookup": 0}))
    assert PLANS[of.choose().plan].drafter == "lm"


def test_nothing_but_retrieval_and_no_match_still_chooses() -> None:
    plans = [Plan("lookup", 1), Plan("lookup", 2)]
    of = Goodput(2, plans)
    told = RoundFacts(plans[0], 0, 0, matches={"lookup": 0})
    of.read(told)
    assert of.choose().plan == 0
    assert of.estimates().tolist() == [0.0, 0.0]


def test_a_drafter_that_is_not_scored_fades_by_hand() -> None:
    """Eight zeros, then 3 tokens emitted without a score: all observations are weighted by 0.97^3.
    The pool of LM drafters has a mean of 0.55 * 4 / (4 + 8 * 0.97^3), a little below 0.2, which
    lowers the prior."""
    failed = learn(policy(), evidence(scores=lm([0.0] * 8)))
    unscored = RoundFacts(
        Plan("lookup", 4), 4, 2, lookup([1.0, 1.0, 0.0], [4, 5, 6]), costs=FLAT, seconds=1.0
    )
    mean = 0.55 * 4 / (4 + 8 * 0.97**3)
    alpha = two_rates([0.0] * 8, fading=0.97**3, prior=0.55 * mean / 0.2)
    assert prices(learn(failed, unscored))[1] == pytest.approx((1 + alpha) / 1.05)


def test_no_drafter_is_given_up_for_good() -> None:
    """A drafter that failed on the prompt is tried again after enough text."""
    nothing = {"lookup": 0}  # no match to play
    failed = learn(policy(), evidence(scores=lm([0.0] * 64), matches=nothing))
    assert failed.choose().plan == 0
    for _ in range(200):
        learn(failed, evidence(matches=nothing, seconds=1.0))
    assert PLANS[failed.choose().plan].drafter == "lm"


def test_where_six_drafters_failed_the_seventh_is_not_tried_as_if_nothing_were_known() -> None:
    """Zeros of all other drafters lower its prior, until they have decayed."""
    names = [f"lm{i}" for i in range(7)]
    plans = [Plan(NONE, 0), *(Plan(name, 1) for name in names)]
    costs = Costs(np.array([1.0, 1.2]), dict.fromkeys(names, 0.1))

    def told(scored: list[str]) -> RoundFacts:
        scores = {name: Scores(0, np.zeros(16), np.zeros(16)) for name in scored}
        return RoundFacts(plans[0], 0, 0, scores, costs=costs, seconds=1.0)

    of = Goodput(8, plans)
    assert of.choose().plan == 1
    of.read(told(names[:6]))
    assert of.choose().plan == 0
    for _ in range(100):
        of.read(told([]))
    assert of.choose().plan != 0


def test_a_look_that_read_little_counts_for_little() -> None:
    """16 zeros of a probe that read only the last tokens weigh as much as 4."""
    zeros = {"lm": Scores(0, np.zeros(16), np.zeros(16), weight=0.25)}
    hasty = learn(policy(), evidence(scores=zeros))
    whole = learn(policy(), evidence(scores=lm([0.0] * 16)))
    assert prices(whole)[1] < prices(hasty)[1] < prices(policy())[1]


def test_what_was_missed_is_paid_for_over_the_tokens_that_are_left() -> None:
    """100 tokens of 0.01 s to catch up on, 20 left: 0.05 s more a token; V(1) = 1 / (1.05 / 1.55 +
    0.05)."""
    costs = Costs(np.array([1.0]), {"lm": 0.05, "lookup": 0.001}, read_s={"lm": 0.01})
    of = learn(policy(), evidence(emitted_start=100, costs=costs, num_left=20))
    assert prices(of)[1] == pytest.approx(1 / (1.05 / 1.55 + 0.05))
    learn(of, evidence(emitted_start=100, costs=costs, num_left=20, scores=lm([]) | {
        "lm": Scores(99, np.zeros(1), np.zeros(1))}))  # fmt: skip
    assert prices(of)[1] > 1.2 / 1.05  # it has caught up to this position


UNITS = st.lists(st.floats(0, 1), max_size=6)
SECONDS = st.floats(0, 1e6)
TOLD = st.tuples(
    UNITS,
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40)), max_size=6),
    st.lists(SECONDS, max_size=8),
    st.dictionaries(st.sampled_from(["lm", "lookup"]), SECONDS),
    st.integers(0, 20),
)
"""Alphas of both drafters, matches, seconds of forwards and steps, and the match at the end."""


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(TOLD, max_size=6))
def test_any_alphas_and_seconds_leave_prices_that_choose(told: list[Any]) -> None:
    """Whatever was measured, including 0 s, prices are finite and the best one is chosen."""
    of = policy()
    for start, (alphas, found, target_s, draft_s, num) in enumerate(told):
        scores = lm(alphas) | lookup([a for a, _ in found], [m for _, m in found])
        costs = Costs(np.array(target_s), draft_s)
        learn(
            of, evidence(scores=scores, costs=costs, emitted_start=start, matches={"lookup": num})
        )
    found = of.estimates()
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert found[of.choose().plan] == found.max()


def test_decisions_are_certain_and_counted_from_1() -> None:
    of = policy()
    assert [of.choose() for _ in range(3)] == [Decision(3, 1.0, num) for num in (1, 2, 3)]


def test_without_plans_there_is_nothing_to_price() -> None:
    with pytest.raises(ValueError, match="pass plans"):
        Goodput(3)


def test_the_advantage_is_what_the_best_plan_adds_over_its_price() -> None:
    """T = 2, 3, 8: V(1) = 1.55 / 3.2 is below plain decoding's 1 / 2, as is V(2). T = 2, 2.5, 8: a
    token adds 0.55 tokens and 0.7 s, in which plain decoding brings 0.35. A token that takes no
    time has no price."""
    of = policy()
    for target_s, step_s, expected in (
        ([2.0, 3.0, 8.0], 0.2, 1.0), ([2.0, 2.5, 8.0], 0.2, 0.55 / 0.35),
        ([2.0, 2.0, 8.0], 0.0, math.inf),
    ):  # fmt: skip
        costs = Costs(np.array(target_s), {"lm": step_s, "lookup": 1.0})
        learn(of, evidence(costs=costs, matches={"lookup": 0}))
        assert of.advantage == pytest.approx(expected)


@pytest.mark.parametrize(("discount", "memory"), [(0.9, 10), (0.98, 50), (1.0, 256)])
def test_catching_up_is_paid_for_over_the_memory_of_the_rates(discount: float, memory: int) -> None:
    """100 tokens of 0.01 s; without a discount over all of the answer, 256 tokens."""
    costs = Costs(np.array([1.0]), {"lm": 0.05, "lookup": 0.001}, read_s={"lm": 0.01})
    told = evidence(emitted_start=100, costs=costs, matches={"lookup": 0}, num_left=1000)
    of = learn(policy(discount=discount), told)
    assert prices(of)[1] == pytest.approx(1 / (1.05 / 1.55 + 1.0 / memory))


def test_scores_of_the_prompt_do_not_let_other_drafters_fade() -> None:
    """A round of 0 s emitted nothing; one of 1 s lets the zeros of ``lm`` fade."""
    for seconds, is_alike in ((0.0, True), (1.0, False)):
        of = learn(policy(), evidence(scores=lm([0.0] * 8)))
        before = of._rates.of().tolist()
        learn(of, evidence(scores=lookup([1.0], [4]), seconds=seconds, tokens=[1, 2, 3]))
        assert (of._rates.of().tolist() == before) == is_alike


def mixed(matches: int = 0, **options: Any) -> tuple[Goodput, GoodputMixer]:
    """A policy and the mixer of its next draft; ``lookup`` retrieves."""
    of = learn(policy(**options), evidence(matches={"lookup": matches}))
    of.choose()
    assert of.mixer is not None
    return of, of.mixer


def judged(departed: int = -1, **facts: Any) -> dict[str, Any]:
    """Bins of ``lm`` after a mixed draft of 4 tokens, all of one confidence, 2 of them accepted.

    Retrieval matched everywhere, in bucket 3, and would have departed at depth 1, in bucket 4.
    """
    of, mixer = mixed()
    mixer.matched |= dict.fromkeys(range(4), 3)
    mixer.departures[1] = "lookup", 4
    told = RoundFacts(
        Plan("lm", 4), 4, 2, drafted_alphas=np.array([1.0, 1.0, 0.0, 0.0]), emitted_start=50,
        seconds=1.0, costs=FLAT, matches={"lookup": 0}, confidences=[0.7] * 4, departed=departed,
        **facts,
    )  # fmt: skip
    of.read(told)
    return of._bins["lm"].state()


@pytest.mark.parametrize(
    ("departed", "accepted"), [(-1, [1, 1, 0]), (0, [1]), (1, [1, 1]), (2, [1, 1, 0])]
)
def test_a_mixed_draft_is_judged_up_to_where_the_text_left_it(
    departed: int, accepted: list[int]
) -> None:
    """Through the first rejection, or through the token instead of which a branch was taken."""
    tokens, row = judged(departed)["own"], bin_of(0.7)
    discounts = [0.995**age for age in reversed(range(len(accepted)))]
    assert tokens["den"][row] == pytest.approx(sum(discounts))
    assert tokens["num"][row] == pytest.approx(np.dot(accepted, discounts))
    assert sum(tokens["den"]) == tokens["den"][row]


@pytest.mark.parametrize(
    ("departed", "added"), [(-1, [0, 1, 0]), (0, [0]), (1, [0, 0]), (2, [0, 1, 0])]
)
def test_a_drawn_token_added_to_a_match_counts_where_it_differs_and_is_kept(
    departed: int, added: list[int]
) -> None:
    """Only at depth 1 did the match propose another token than the draft, and only unless the text
    left the draft there was the drawn token kept."""
    found = judged(departed)["added"]
    discounts = [0.995**age for age in reversed(range(len(added)))]
    assert found["den"][3] == pytest.approx(sum(discounts))
    assert found["num"][3] == pytest.approx(np.dot(added, discounts))
    assert sum(found["den"]) == found["den"][3]


@pytest.mark.parametrize(
    ("departed", "start", "num", "expected"),
    [
        (1, 51, 1, [0.25]),  # the emitted token at depth 1 is at 51
        (1, 50, 2, [0.75]),
        (1, 49, 3, [0.5]),
        (1, 52, 3, []),  # the scores start after it
        (1, 48, 3, []),  # and here end before it
        (1, 47, 3, []),
        (2, 50, 3, []),  # the match did not propose another token there
        (-1, 50, 3, []),
    ],
)
def test_a_branch_is_judged_by_the_ratio_of_the_token_that_was_emitted_instead(
    departed: int, start: int, num: int, expected: list[float]
) -> None:
    ratios = np.array([0.25, 0.75, 0.5])[:num]
    scores = {"lookup": Scores(start, np.zeros(num), ratios, np.full(num, 9))}
    found = judged(departed, scores=scores)["branches"]
    assert found["num"] == [0.0] * 4 + [sum(expected)] + [0.0] * 2
    assert found["den"] == [0.0] * 4 + [float(len(expected))] + [0.0] * 2


def test_a_departure_without_scores_of_the_match_judges_no_branch() -> None:
    assert sum(judged(1)["branches"]["den"]) == 0.0


def test_there_is_no_mixer_where_nothing_is_mixed() -> None:
    """Without the option, with a tree, or without an LM drafter."""
    unmixed = learn(policy(mix=False), evidence())
    tree = with_trees(0.001, (4, 2), 30)
    only = Goodput(2, [Plan(NONE, 0), Plan("lookup", 4)])
    told = RoundFacts(Plan(NONE, 0), 0, 0, costs=FLAT, matches={"lookup": 9})
    only.read(told)
    for of, best in ((unmixed, 6), (tree, 2), (only, 1)):
        assert of.choose().plan == best
        assert of.mixer is None


@pytest.mark.parametrize(
    ("target_s", "step_s", "mixes"),
    [
        ([2.0, 2.0], 0.5, True),  # 1.5 tokens in 2.5 s: faster than 1 in 2 s
        ([2.0, 2.0], 1.5, False),
        ([0.5, 0.5], 0.1, True),  # 1.5 in 0.6 s
        ([0.5, 0.5], 0.5, False),  # 1.5 in 1 s: slower than 1 in 0.5 s
        ([1.0, 2.0], 0.0, False),  # 1.5 in 2 s
        ([1.0, 1.0], 0.5, True),  # 1.5 in 1.5 s: as fast
    ],
)
def test_a_drafter_that_is_behind_mixes_unless_it_is_slower_than_plain_decoding(
    target_s: list[float], step_s: float, mixes: bool
) -> None:
    plans = [Plan(NONE, 0), Plan("lm", 1)]
    costs = Costs(np.array(target_s), {"lm": step_s}, {"lm": 0.0})
    for missed in (PROBE_TOKENS_PAID - 1, PROBE_TOKENS_PAID):
        of = Goodput(2, plans, prior=0.5)
        told = RoundFacts(plans[0], 0, 0, seconds=1.0, costs=costs, emitted_start=missed)
        of.read(told)
        of.choose()
        assert (of.mixer is not None) == (mixes or missed < PROBE_TOKENS_PAID)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_a_mixed_draft_ends_where_plain_decoding_is_faster_whatever_the_unit(scale: float) -> None:
    """Acceptance 0.55: a token in half a forward is not worth it, in a tenth of one it is."""
    for step_s, writer in ((0.1, "lm"), (0.8, None)):
        costs = Costs(scale * np.ones(1), {"lm": scale * step_s, "lookup": scale})
        of = learn(policy(), evidence(costs=costs, matches={"lookup": 0}))
        of.choose()
        assert of.mixer is not None
        assert of.mixer.pick(DraftStep(0, 4), {"lookup": 0}) == writer


def test_branches_are_taken_unless_switched_off() -> None:
    """An unsure token, and a long match that proposes another one: all of its tokens are free."""
    for options, num in (({}, 3), ({"branches": True}, 3), ({"branches": False}, 0)):
        _, mixer = mixed(matches=20, **options)
        mixer.pick(DraftStep(0, 4), {"lookup": 0})
        assert mixer.branch(0, 0.3, {"lookup": 20}, 1, 3) == ("lookup", num)
