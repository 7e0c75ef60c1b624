"""Survival follows the formula, and learning counts exactly what was observed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftwise.controller.acceptance import (
    AFTER_FOUND,
    AFTER_KIND,
    AFTER_MATCH,
    DISCOUNT,
    FOUND,
    GROUP,
    KIND,
    LAST,
    LENGTH,
    MATCH,
    MODEL,
    OFFERED,
    OWN,
    PLAYED_MATCH,
    PLAYED_MODEL,
    Slots,
    Tables,
    new_slots,
    new_tables,
)
from draftwise.controller.acceptance import learn as learn_acceptance
from draftwise.controller.acceptance import take as take_proposals

MOST = 4
NONE = np.zeros(0, np.int64)


def world() -> tuple[Slots, Tables]:
    """The state of one request without observations."""
    return new_slots(1, MOST), new_tables(MOST)


def take(
    known: Slots, tables: Tables, offer: Sequence[int] = (), proposal: Sequence[int] = (),
    match: int | None = None, slots: Sequence[int] = (0,),
) -> tuple[int, int, int]:  # fmt: skip
    """Take the same proposals for all slots; match: of a proposal; None: texts are not searched."""
    num = len(slots)
    found = np.zeros((num, MOST), np.int32)
    found[:, : len(proposal)] = proposal
    of_each = np.ones(num, np.int32)
    return take_proposals(
        np.array(slots), np.full(num, MOST), np.tile(np.array(offer, np.int32), num),
        np.full(num, len(offer)), found, len(proposal) * of_each,
        of_each[:0] if match is None else match * of_each, of_each, of_each, known, tables, True,
        0.0, *np.zeros((1, num), np.int64), np.zeros((num, MOST), np.int32),
        *np.zeros((2, num), np.int64),
    )  # fmt: skip


def learn(known: Slots, tables: Tables, emitted: list[int], verified: int | None = None) -> int:
    return learn_acceptance(
        np.zeros(1, np.int64), np.array(emitted, np.int32), np.array([len(emitted)]),
        NONE if verified is None else np.array([verified]), known, tables,
    )  # fmt: skip


def seen(before: Tables, after: Tables) -> list[tuple[tuple[int, ...], int, int]]:
    """Changed cells of the model's and retrieval's tables, with rejections and observations."""
    found = []
    for old, new in ((before.model, after.model), (before.matches, after.matches)):
        for cell in np.argwhere(new[..., 1] != old[..., 1]).tolist():
            rejected, num = new[tuple(cell)] - old[tuple(cell)] * DISCOUNT
            found.append((tuple(cell), round(rejected), round(num)))
    return found


def copied(tables: Tables) -> Tables:
    return Tables(*(table.copy() for table in tables))


def test_the_models_survival_is_the_product_of_its_hazards() -> None:
    known, tables = world()
    tables.model[2, 3, :, 0], tables.model[2, 3, :, 1] = [1, 2, 3, 4], 10
    known.facts[0, [LAST, GROUP, LENGTH]] = 2, 3, 90
    known.factors[0, MODEL] = 32, 8  # (32 + 16) / (8 + 16) = 2
    assert take(known, tables, [5, 6]) == (2, 0, 90)
    assert known.facts[0, OFFERED] == 2
    assert known.survival[0, MODEL] == pytest.approx(np.cumprod([0.8, 0.6, 0.4, 0.2]))
    assert known.tokens[0, MODEL, :2].tolist() == [5, 6]


def test_retrievals_survival_follows_the_growing_match() -> None:
    known, tables = world()
    tables.matches[1, :, 0] = [0, 5, 4, 3, 2, 1, 0.5]
    tables.matches[1, :, 1] = 10
    take(known, tables, proposal=[7, 8, 9, 3], match=2)
    assert known.survival[0, OWN] == pytest.approx(np.cumprod([0.6, 0.7, 0.7, 0.8]))
    assert known.facts[0, [FOUND, MATCH, KIND, GROUP]].tolist() == [4, 2, 1, 2]


@pytest.mark.parametrize(
    ("emitted", "positions", "outcome"),
    [
        ([1, 2, 9], [(0, 0), (1, 0), (2, 1)], 2),  # the third token was rejected
        ([9], [(0, 1)], 1),
        ([1, 2, 3, 9], [(0, 0), (1, 0), (2, 0)], 3),
    ],
)
def test_what_comes_after_a_rejection_is_not_counted(
    emitted: list[int], positions: list[tuple[int, int]], outcome: int
) -> None:
    known, tables = world()
    known.tokens[0, MODEL, :3] = [1, 2, 3]
    known.facts[0, [OFFERED, PLAYED_MODEL]] = 3
    known.facts[0, LENGTH] = 90
    before = copied(tables)
    assert learn(known, tables, emitted) == 90
    assert seen(before, tables) == [((0, 0, place), bad, 1) for place, bad in positions]
    assert known.facts[0, LAST] == outcome
    assert known.facts[0, LENGTH] == 90 + len(emitted)


def test_a_draft_that_was_not_verified_is_judged_by_its_first_token_alone() -> None:
    known, tables = world()
    known.tokens[0, OWN, :3] = [1, 2, 3]
    known.facts[0, [FOUND, MATCH, KIND]] = 3, 5, 1
    known.tokens[0, MODEL, :2] = [7, 8]
    known.facts[0, [OFFERED, PLAYED_MODEL]] = 2
    before = copied(tables)
    learn(known, tables, [7, 8, 9])
    assert seen(before, tables) == [
        ((0, 0, 0), 0, 1), ((0, 0, 1), 0, 1), ((1, 4), 1, 1)
    ]  # fmt: skip


def test_a_shortened_draft_teaches_what_was_verified_and_the_token_after_it() -> None:
    known, tables = world()
    known.tokens[0, OWN] = [1, 2, 3, 4]
    known.facts[0, [FOUND, PLAYED_MATCH]] = 4
    known.facts[0, [MATCH, KIND]] = 1, 0
    before = copied(tables)
    learn(known, tables, [1, 2], verified=1)
    assert seen(before, tables) == [((0, 1), 0, 1), ((0, 2), 0, 1)]


def test_a_shortened_draft_of_the_model_may_be_accepted_whole() -> None:
    known, tables = world()
    known.tokens[0, MODEL, :3] = [1, 2, 3]
    known.facts[0, [OFFERED, PLAYED_MODEL]] = 3
    learn(known, tables, [1, 2], verified=1)
    assert known.facts[0, LAST] == 3


def test_retrieval_after_the_model_is_counted_apart() -> None:
    known, tables = world()
    known.tokens[0, MODEL, :2], known.tokens[0, 2, :2] = [1, 2], [3, 4]
    known.facts[0, [OFFERED, PLAYED_MODEL, PLAYED_MATCH]] = 2
    known.facts[0, [AFTER_FOUND, AFTER_MATCH, AFTER_KIND]] = 2, 3, 3
    known.survival[0, 2, :2] = 0.5, 0.25
    before = copied(tables)
    learn(known, tables, [1, 2, 3, 8])
    assert ((3, 3), 1, 2) in seen(before, tables)
    before = copied(tables)
    take(known, tables, proposal=[5, 6], match=3)
    assert (tables.after[0] > before.after[0]).tolist() == [True, True, False, False, True]
    assert known.facts[0, GROUP] == 3
    take(known, tables, proposal=[5, 6], match=3)  # no draft in between
    assert tables.after[3, MOST] == 0


def test_learning_recovers_planted_hazards() -> None:
    """The model's acceptance depends on the position, and one request is twice as hard."""
    rng = np.random.default_rng(0)
    known, tables = new_slots(2, MOST), new_tables(MOST)
    rates = np.array([0.95, 0.9, 0.85, 0.8])
    one = np.arange(2)
    believed = []
    for num_steps in range(6000):
        for slot in one:
            known.tokens[slot, MODEL] = 1
            known.facts[slot, [OFFERED, PLAYED_MODEL]] = MOST
            known.facts[slot, LAST] = 0
        emitted, counts = [], []
        for harder in (1.0, 2.0):
            right = rng.random(MOST) < 1 - (1 - rates) * harder
            num = int(right.argmin()) if not right.all() else MOST
            emitted += [1] * num + [2]
            counts.append(num + 1)
        learn_acceptance(one, np.array(emitted, np.int32), np.array(counts), NONE, known, tables)
        known.facts[:, LAST] = 0
        if num_steps > 3000:  # the factor remembers about 100 tokens
            take(known, tables, slots=one)
            believed.append(known.survival[:, MODEL].copy())
    easy, hard = np.mean(believed, axis=0)
    truth = [np.cumprod(1 - (1 - rates) * harder) for harder in (1.0, 2.0)]
    assert (easy + hard) / 2 == pytest.approx((truth[0] + truth[1]) / 2, abs=0.05)
    # a request's evidence is shrunk towards the mean of all requests
    assert ((easy - hard) > 0.2 * (truth[0] - truth[1])).all()
