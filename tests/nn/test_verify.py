"""Batched verification against the readable reference: the same tokens, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise import verify
from draftwise.engine.verify import draw as draw_one
from draftwise.engine.verify import overlap, ratio
from draftwise.nn import verify as verify_module
from draftwise.nn.sampling import draw
from draftwise.nn.verify import DraftTreeBatch, masses, overlaps, ratios, rejection_sample
from draftwise.types import Draft

Row = tuple[Draft, list[np.ndarray], np.ndarray]
"""A draft, p after the text and each node (float32), and a uniform for each node and the bonus."""


def random_dist(rng: np.random.Generator, vocab_size: int) -> np.ndarray:
    """[V], often with zeros, sometimes all mass on one token."""
    weights = rng.gamma(0.3, size=vocab_size) * (rng.random(vocab_size) < rng.choice([0.4, 1.0]))
    weights[rng.integers(vocab_size)] += 1e-3 if rng.random() < 0.9 else 1e6
    return (weights / weights.sum()).astype(np.float32)


def random_row(rng: np.random.Generator, vocab_size: int, shape: str) -> Row:
    """shape: a chain, a tree of point masses, or branches of which some were drawn."""
    num = int(rng.integers(0, 9))
    parents = None
    if shape != "chain":
        parents = np.array([rng.integers(-1, node) for node in range(num)], dtype=np.int64)
    p = [random_dist(rng, vocab_size) for _ in range(num + 1)]
    probs: list[np.ndarray | None] = []
    tokens = []
    for _ in range(num):
        q = random_dist(rng, vocab_size)
        is_point = shape == "points" or rng.random() < 0.4
        probs.append(None if is_point else q)
        tokens.append(draw_one(q, rng.random()))
    draft = Draft(np.array(tokens, dtype=np.int64), probs, ["x"] * num, parents)
    return draft, p, rng.random(num + 1)


def judged(rows: Sequence[Row]) -> list[tuple[list[int], list[int]]]:
    """Tokens and path of each row by the batched verification."""
    q: list[np.ndarray] = []
    places = []
    for draft, _, _ in rows:
        mine = []
        for node in range(len(draft)):
            dist = draft.q(node)
            mine.append(-1 if isinstance(dist, int) else len(q))
            q += [] if isinstance(dist, int) else [dist]
        places.append(np.array(mine, dtype=np.int64))
    vocab_size = len(rows[0][1][0])
    forest = DraftTreeBatch.of(
        [d.tokens for d, _, _ in rows], [d.parents for d, _, _ in rows], places
    )
    last, bonus, following = rejection_sample(
        forest,
        torch.from_numpy(np.concatenate([np.stack(p) for _, p, _ in rows])),
        torch.from_numpy(np.stack(q)) if q else torch.empty(0, vocab_size),
        np.concatenate([uniforms[:-1] for _, _, uniforms in rows]),
        np.array([uniforms[-1] for _, _, uniforms in rows]),
    )
    found = []
    for row, (draft, _, _) in enumerate(rows):
        path = forest.path(row, int(last[row]))
        on_path = following[forest.roots[row] + np.array([0, *(path + 1)])].tolist()
        assert on_path == [*draft.tokens[path].tolist(), int(bonus[row])]
        found.append(([*draft.tokens[path].tolist(), int(bonus[row])], path.tolist()))
    return found


def referred(rows: Sequence[Row]) -> list[tuple[list[int], list[int]]]:
    """Tokens and path of each row by the reference."""
    verdicts = [verify(draft, p, uniforms) for draft, p, uniforms in rows]
    return [(verdict.tokens.tolist(), verdict.path.tolist()) for verdict in verdicts]


SHAPES = ["chain", "points", "branches"]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from([2, 3, 5, 40]),
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=5),
)
def test_tokens_and_paths_are_those_of_the_reference(
    seed: int, vocab_size: int, shapes: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    rows = [random_row(rng, vocab_size, shape) for shape in shapes]
    assert judged(rows) == referred(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_also_over_a_large_vocabulary(shape: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):
        rows = [random_row(rng, 30_000, shape) for _ in range(3)]
        assert judged(rows) == referred(rows)


def test_rows_without_a_draft_draw_their_token_from_p() -> None:
    rng = np.random.default_rng(2)
    rows = [(Draft.chain([], None, ""), [random_dist(rng, 9)], rng.random(1)) for _ in range(4)]
    assert judged(rows) == referred(rows)
    mixed = [rows[0], random_row(rng, 9, "branches"), rows[1]]
    assert judged(mixed) == referred(mixed)


def test_siblings_that_are_drawn_and_a_token_that_is_tried_twice() -> None:
    """Each sibling sees the p left by the earlier ones, whether these were drawn or not."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        q = [random_dist(rng, 4) if rng.random() < 0.5 else None for _ in range(4)]
        tokens = rng.integers(0, 4, 4)
        draft = Draft(tokens, q, ["x"] * 4, np.full(4, -1))
        rows: list[Row] = [(draft, [random_dist(rng, 4) for _ in range(5)], rng.random(5))]
        assert judged(rows) == referred(rows)


def test_p_that_is_not_finite_keeps_nothing_and_says_minus_one() -> None:
    """NaN in p after an accepted token ends the row there; NaN off the path has no effect."""
    good, bad = np.array([0.5, 0.5], np.float32), np.array([np.nan, np.nan], np.float32)
    chain = Draft.chain([0, 1], None, "x")
    tree = Draft(np.array([0, 1]), None, ["x"] * 2, np.array([-1, -1]))
    rows: list[Row] = [
        (chain, [good, bad, good], np.array([0.1, 0.0, 0.9])),
        (chain, [bad, good, good], np.zeros(3)),
        (chain, [good, good, bad], np.array([0.9, 0.0, 0.9])),
        (tree, [bad, good, good], np.zeros(3)),
    ]
    assert judged(rows) == [([0, -1], [0]), ([-1], []), ([1], []), ([-1], [])]


def test_acceptance_probabilities_and_masses() -> None:
    rng = np.random.default_rng(4)
    p = np.stack([random_dist(rng, 20) for _ in range(4)])
    q = np.stack([random_dist(rng, 20) for _ in range(2)])
    places, rows, tokens = np.array([3, 1, 0, 2]), np.array([1, -1, 0, -1]), np.array([-1, 7, 5, 4])
    dists = [q[1], 7, q[0], 4]
    found = overlaps(torch.from_numpy(p), places, torch.from_numpy(q), rows, tokens)
    expected = [overlap(p[place], q) for place, q in zip(places, dists, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    asked = torch.tensor([2, 7, 5, 7])
    of_q = masses(torch.from_numpy(q), torch.tensor(rows), torch.tensor(tokens), asked)
    assert of_q.tolist() == [pytest.approx(q[1][2]), 1.0, pytest.approx(q[0][5]), 0.0]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), st.integers(0, 4)), max_size=8))
def test_ratios_and_overlaps_are_those_of_the_reference(asked: list[tuple[int, int, int]]) -> None:
    """asked: a place, the row of q or -1, and the proposed token."""
    rng = np.random.default_rng(len(asked))
    p = np.stack([random_dist(rng, 5) for _ in range(3)])
    p[1] = [0, 0, 1, 0, 0]
    q = np.stack([random_dist(rng, 5) for _ in range(2)])
    following = torch.tensor([4, 0, -1])
    places, rows, proposed = np.array(asked, dtype=np.int64).reshape(-1, 3).T
    dists = [q[row] if row >= 0 else int(token) for _, row, token in asked]
    tensors = torch.from_numpy(p), places, torch.from_numpy(q), rows, proposed
    found = ratios(*tensors, following).tolist()
    said = [max(int(following[place]), 0) for place in places]
    expected = [ratio(p[a], d, t) for a, d, t in zip(places, dists, said, strict=True)]
    assert found == pytest.approx(expected, abs=1e-6)
    found = overlaps(*tensors).tolist()
    expected = [overlap(p[place], dist) for place, dist in zip(places, dists, strict=True)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_forest_by_hand() -> None:
    """Two chains around an empty draft, and a tree whose two branches begin with one token."""
    none = np.array([], dtype=np.int64)
    tree = np.array([-1, -1, 0, -1])
    forest = DraftTreeBatch.of(
        [np.array([5, 6]), none, np.array([7, 7, 8, 7])],
        [None, None, tree],
        [np.array([-1, 0]), none, np.array([1, -1, -1, 2])],
    )
    assert forest.roots.tolist() == [0, 3, 4]
    assert forest.owners.tolist() == [0, 0, 2, 2, 2, 2]
    assert forest.places.tolist() == [1, 2, 5, 6, 7, 8]
    assert forest.before.tolist() == [0, 1, 4, 4, 5, 4]
    assert forest.ranks.tolist() == [0, 0, 0, 1, 0, 2]
    assert forest.rows.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert forest.is_elder.tolist() == [False, False, True, True, False, False]
    assert forest.is_again.tolist() == [False, False, False, True, False, True]
    kids = {0: [0], 1: [1], 4: [2, 3, 5], 5: [4]}
    expected = [(kids.get(place, []) + [6] * 3)[:3] for place in range(9)]
    assert forest.children.tolist() == expected
    assert forest.path(2, 7).tolist() == [0, 2]
    assert forest.path(1, 3).tolist() == []
    alone = DraftTreeBatch.of([none], [None], [none])
    assert alone.children.tolist() == [[0]]
    assert alone.is_elder.tolist() == []


def test_draws_are_those_of_the_reference_and_never_of_mass_zero() -> None:
    rng = np.random.default_rng(6)
    p = np.stack([random_dist(rng, 12) for _ in range(200)])
    p[:20, -4:] = 0
    uniforms = rng.random(200)
    uniforms[::4], uniforms[1::4] = 0.0, np.nextafter(1, 0)
    found = draw(torch.from_numpy(p), torch.from_numpy(uniforms)).tolist()
    assert found == [draw_one(row, u) for row, u in zip(p, uniforms, strict=True)]
    assert all(p[row, token] > 0 for row, token in enumerate(found))


# Planted bugs: each of the following must differ from the reference.


def agrees(shape: str) -> bool:
    rng = np.random.default_rng(7)
    rows = [random_row(rng, 5, shape) for _ in range(200)]
    return judged(rows) == referred(rows)


def plant(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    monkeypatch.setattr(verify_module, name, wrong)


@pytest.mark.parametrize("shape", SHAPES)
def test_teeth_no_residual(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agrees(shape)
    plant(monkeypatch, "_left", lambda rest, *rest_of_it: rest)
    assert not agrees(shape)


@pytest.mark.parametrize("shape", ["points", "branches"])
def test_teeth_siblings_judged_against_all_of_p(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "_when_tried", lambda forest, p, q, of_p, *rest_of_it: of_p)
    assert not agrees(shape)


@pytest.mark.parametrize("shape", ["chain", "branches"])
def test_teeth_all_taken_for_point_masses(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "masses", lambda q, rows, proposed, tokens: (proposed == tokens).double())
    assert not agrees(shape)


@pytest.mark.parametrize("shape", ["points", "branches"])
def test_teeth_a_token_tried_twice_counted_twice(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda forest: np.zeros(len(forest.tokens), dtype=np.bool_))
    monkeypatch.setattr(DraftTreeBatch, "is_again", never)
    assert not agrees(shape)


def test_teeth_siblings_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = DraftTreeBatch.children.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        DraftTreeBatch, "children", property(lambda forest: sound(forest)[:, ::-1].copy())
    )
    assert not agrees("branches")
