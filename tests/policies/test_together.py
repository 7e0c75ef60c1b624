"""Plans for a whole batch, against all assignments there are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from draftwise.policies.goodput.policy import Goodput
from draftwise.policies.goodput.together import best_together
from draftwise.types import NONE, Costs, Decision, Evidence, Feedback, Plan, Scores

SIZES = np.array([0, 1, 3, 1, 4])
DRAFTERS = np.array([0, 1, 1, 2, 2])


def rate(tokens: Any, plans: Any, draft_s: Any, target_s: Any) -> float:
    """Harmonic mean of the rows' tokens over seconds, as the engine spends them."""
    seconds = target_s[SIZES[list(plans)].max()]
    for drafter in set(DRAFTERS[list(plans)]):
        seconds += max(draft_s[plan] for plan in plans if DRAFTERS[plan] == drafter)
    rounds = [1 / row[plan] for row, plan in zip(tokens, plans, strict=True)]
    return float(1 / (seconds * sum(rounds)))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4])
def test_close_to_the_best_of_all_assignments_and_never_below_plain(num_rows: int) -> None:
    random = np.random.default_rng(num_rows)
    shares = []
    for _ in range(60):
        tokens = 1 + random.random((num_rows, len(SIZES))) * SIZES
        target_s = np.cumsum(random.random(5) ** 2 * 0.5) + 1
        draft_s = SIZES * random.choice([0.0, 0.05, 0.4], 3)[DRAFTERS]
        plans = best_together(tokens, SIZES, DRAFTERS, draft_s, target_s)
        ours = rate(tokens, plans, draft_s, target_s)
        every = itertools.product(range(len(SIZES)), repeat=num_rows)
        shares.append(ours / max(rate(tokens, one, draft_s, target_s) for one in every))
        assert ours >= rate(tokens, [0] * num_rows, draft_s, target_s) - 1e-12
    assert min(shares) > 0.8
    assert np.mean(shares) > 0.985
    assert num_rows > 1 or min(shares) == pytest.approx(1)


def test_a_row_that_drafts_well_does_not_hold_up_the_others() -> None:
    """Six more tokens for one of four rows, at 1.7 times the seconds: more tokens a second, and
    three of four answers end later."""
    tokens = np.array([[1.0, 2.0, 4.0, 2.0, 7.0], *[[1.0, 1.1, 1.1, 1.1, 1.1]] * 3])
    target_s = np.array([1.0, 1.5, 1.6, 1.65, 1.7])
    plans = best_together(tokens, SIZES, DRAFTERS, np.zeros(5), target_s)
    assert plans.tolist() == [0, 0, 0, 0]


def test_a_plan_that_cannot_be_played_is_not() -> None:
    tokens = np.array([[1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 4.0, 2.0, 5.0]])
    plans = best_together(tokens, SIZES, DRAFTERS, np.zeros(5), np.ones(5))
    assert plans.tolist() == [0, 4]


def test_without_the_plan_none_a_row_whose_match_is_missing_takes_what_it_can() -> None:
    """Lookup has nothing for two of three rows, and nobody may decode plainly."""
    tokens = np.array([[0.0, 0.0, 1.5, 1.8], [2.0, 3.0, 1.5, 1.8], [0.0, 0.0, 1.2, 1.1]])
    sizes, drafters = np.array([1, 4, 1, 4]), np.array([0, 0, 1, 1])
    draft_s, target_s = np.array([0.0, 0.0, 0.1, 0.4]), np.linspace(1.0, 1.4, 5)
    plans = best_together(tokens, sizes, drafters, draft_s, target_s)
    assert (tokens[np.arange(3), plans] > 0).all()
    nobody = best_together(np.zeros((2, 4)), sizes, drafters, draft_s, target_s)
    assert nobody.shape == (2,)


def policies(num: int, match: int) -> list[Goodput]:
    """Rows of which the first has a long match, and the others know nothing good."""
    plans = [Plan(NONE, 0), *(Plan("lookup", k) for k in (1, 8))]
    made = [Goodput(len(plans), plans) for _ in range(num)]
    nothing = np.zeros(len(plans), dtype=np.bool_)
    for index, policy in enumerate(made):
        own = match if index == 0 else 1
        scores = {"lookup": Scores(0, np.zeros(30), np.zeros(30), np.full(30, 1))}
        costs = Costs(np.linspace(1.0, 2.0, 9), {"lookup": 0.0})
        facts = Evidence(plans[0], 0, 0, scores, costs=costs, matches={"lookup": own})
        policy.learn(Decision(0, 1.0, 0), Feedback(np.zeros(len(plans)), nothing, facts))
    return made


def test_one_row_alone_chooses_as_ever_and_many_rows_spare_each_other() -> None:
    alone = policies(1, match=20)
    assert [d.plan for d in Goodput.choose_together(alone)] == [alone[0].choose().plan] == [2]
    together = Goodput.choose_together(policies(12, match=20))
    assert {decision.plan for decision in together} == {0}
    assert [decision.round for decision in together] == [1] * 12
