"""The choice equals exhaustive search; curves and hulls have their properties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.controller.acceptance import (
    AFTER,
    AFTER_FOUND,
    FOUND,
    MODEL,
    OFFERED,
    OWN,
    PLAYED_MATCH,
    PLAYED_MODEL,
    ROOM,
    Slots,
    new_slots,
)
from draftwise.controller.choice import NUM_PRICES, PRICES, best_length
from draftwise.controller.choice import choose as choose_drafts
from draftwise.types import Floats

LENGTH = 4


def batch(seed: int, num: int, only_model: bool = False) -> Slots:
    """Requests with random survivals."""
    rng = np.random.default_rng(seed)
    known = new_slots(num, LENGTH)
    for slot in range(num):
        known.survival[slot] = np.cumprod(rng.uniform(0.2, 1, (3, LENGTH)), axis=1)
        known.facts[slot, OFFERED] = rng.integers(0, 3)
        known.facts[slot, ROOM] = rng.integers(0, LENGTH + 1)
        if not only_model:
            known.facts[slot, FOUND] = rng.integers(0, known.facts[slot, ROOM] + 1)
            left = max(known.facts[slot, ROOM] - known.facts[slot, OFFERED], 0)
            known.facts[slot, AFTER_FOUND] = rng.integers(0, left + 1)
        for which in (MODEL, OWN, AFTER):
            known.tokens[slot, which] = 100 * slot + 10 * which + np.arange(LENGTH)
    return known


def worth(known: Slots, slot: int, num_model: int, num_match: int) -> float:
    """Expected tokens of one draft, written out directly."""
    model, match, after = known.survival[slot]
    if num_model and num_match:
        return float(model[:num_model].sum() + model[num_model - 1] * after[:num_match].sum())
    return float(model[:num_model].sum() + match[:num_match].sum())


def options(known: Slots, slot: int) -> list[tuple[int, int]]:
    """All drafts that a request may have: the model's, retrieval's, or the latter after both."""
    facts = known.facts[slot]
    room = int(facts[ROOM])
    offered, found = min(int(facts[OFFERED]), room), min(int(facts[FOUND]), room)
    every = [(k, 0) for k in range(offered + 1)] + [(0, k) for k in range(1, found + 1)]
    if facts[OFFERED] and offered == facts[OFFERED]:
        most = min(int(facts[AFTER_FOUND]), room - offered)
        every += [(offered, k) for k in range(1, most + 1)]
    return every


def chosen(known: Slots, seconds: Floats, rate: float) -> tuple[float, int, list[list[int]]]:
    """The outputs of ``choose``: net value, tokens, and the draft of each request."""
    num = len(known.facts)
    drafts, bounds = np.zeros(num * LENGTH, np.int32), np.zeros(num + 1, np.int64)
    drafted, expected, _ = choose_drafts(np.arange(num), known, seconds, rate, drafts, bounds)
    written = [drafts[bounds[i] : bounds[i + 1]].tolist() for i in range(num)]
    return expected - rate * seconds[drafted], drafted, written


@given(
    seed=st.integers(0, 10**6), num=st.integers(1, 3), stair=st.integers(0, 8),
    slope=st.floats(0.0, 0.6),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_no_combination_is_better(seed: int, num: int, stair: int, slope: float) -> None:
    """Exact but for whole segments of a hull and the bins of the price."""
    known, rate = batch(seed, num), 100.0
    seconds = 0.01 + slope / rate * np.arange(25) + 0.02 * (np.arange(25) > stair)
    got, drafted, drafts = chosen(known, seconds, rate)
    every = [
        [(a + b, worth(known, slot, a, b)) for a, b in options(known, slot)] for slot in range(num)
    ]
    best = -np.inf
    for combination in itertools.product(*every):
        tokens = sum(width for width, _ in combination)
        best = max(best, sum(gain for _, gain in combination) - rate * seconds[tokens])
    # the loss from indivisible parts: the gain of the widest segment of a hull
    whole = 0.0
    if any(len({w for w, _ in options_of}) < len(options_of) for options_of in every):
        whole = 1.0
    assert got <= best + 1e-9
    assert got >= best - whole - drafted / NUM_PRICES - 1e-9
    assert sum(map(len, drafts)) == drafted


@given(
    seed=st.integers(0, 10**6), num=st.integers(1, 4), stair=st.integers(0, 8), equal=st.booleans()
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_with_one_drafter_the_choice_is_the_best_there_is(
    seed: int, num: int, stair: int, equal: bool
) -> None:
    known, rate = batch(seed, num, only_model=True), 100.0
    if not equal:  # weights whose prices stay in the range of the bins
        known.worth[:] = np.random.default_rng(seed).uniform(0.2, 1.0, num)
    seconds = 0.01 + 0.002 * np.arange(20) + 0.01 * (np.arange(20) > stair)
    got, drafted, chains = chosen(known, seconds, rate)
    gains = sorted(
        (
            known.worth[slot] * known.survival[slot, MODEL, j]
            for slot in range(num)
            for j in range(min(known.facts[slot, OFFERED], known.facts[slot, ROOM]))
        ),
        reverse=True,
    )
    best = max(sum(gains[:n]) - rate * seconds[n] for n in range(len(gains) + 1))
    sums = [known.survival[slot, MODEL, : len(chain)].sum() for slot, chain in enumerate(chains)]
    assert got == pytest.approx(sum(sums) - rate * seconds[drafted])
    worth = known.worth @ sums - rate * seconds[drafted]
    assert worth == pytest.approx(best, abs=(drafted + 1) / NUM_PRICES)
    for slot, chain in enumerate(chains):
        assert chain == known.tokens[slot, MODEL, : len(chain)].tolist()


def test_free_room_under_a_stair_is_used_and_no_more() -> None:
    known = new_slots(4, LENGTH)
    known.survival[:, MODEL] = np.cumprod(np.full((4, LENGTH), 0.5), axis=1)
    known.facts[:, [OFFERED, ROOM]] = LENGTH
    seconds = np.where(np.arange(17) <= 6, 0.01, 1.0)
    _, drafted, _ = chosen(known, seconds, 100.0)
    assert drafted == 6


def test_the_drafts_are_the_parts_that_were_bought() -> None:
    known = new_slots(3, LENGTH)
    known.tokens[:] = np.arange(3 * LENGTH).reshape(3, LENGTH)
    known.survival[0, MODEL], known.survival[0, AFTER] = 0.9, 0.9
    known.survival[1, OWN] = 0.9
    known.survival[2, MODEL], known.survival[2, OWN] = 0.6, 0.5
    known.facts[:, ROOM] = LENGTH
    known.facts[0, [OFFERED, AFTER_FOUND]] = 2
    known.facts[1, FOUND] = 3
    known.facts[2, [OFFERED, FOUND]] = 2
    _, _, drafts = chosen(known, np.full(25, 0.01), 100.0)
    assert drafts == [[0, 1, 8, 9], [4, 5, 6], [0, 1]]
    assert known.facts[:, [PLAYED_MODEL, PLAYED_MATCH]].tolist() == [[2, 2], [0, 3], [2, 0]]


@given(
    gains=st.lists(st.lists(st.integers(0, 8), max_size=6), min_size=5, max_size=5),
    steps=st.lists(st.floats(0, 0.01), min_size=1, max_size=60),
    rate=st.floats(1, 1e4), each=st.floats(0, 1e-3),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_the_best_length_is_worth_most_at_its_best_width(
    gains: list[list[int]], steps: list[float], rate: float, each: float
) -> None:
    """Eight requests with the same tokens, whose gains lie on the grid of prices."""
    seconds, totals = np.cumsum(steps), []
    means = np.zeros((len(PRICES), 6))
    for k, own in enumerate(gains):
        worth = np.array(own) / 8
        means[:, k] = [np.maximum(worth - price, 0.0).sum() for price in PRICES]
        widths = np.append(0.0, np.sort(np.repeat(worth, 8))[::-1].cumsum())
        num = min(len(widths), len(seconds))
        cost = rate * (1e-4 + each * k) if k else 0.0
        totals.append((widths[:num] - rate * seconds[:num]).max() - cost)
    length = best_length(means, 4, 8, rate, seconds, 1e-4, each)
    assert totals[length] == pytest.approx(max(totals), abs=1e-9)
