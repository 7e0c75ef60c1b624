"""Transfers to the host, and the tests' counter of every kind of transfer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftwise.nn.sampling import SampledSpan as Span
from draftwise.nn.sampling import draw, fetch, warped
from draftwise.nn.verify import DraftTreeBatch, overlaps, ratios, rejection_sample
from draftwise.types import SamplingParams
from transfers import counting


def test_shapes_and_numbers_arrive_as_they_were() -> None:
    tokens, probs = torch.tensor([[2**40 + 1, -1]]), torch.rand(2, 3)
    (ids, floats, nothing) = fetch([tokens, probs, torch.empty(0, 4)])
    assert ids.astype(np.int64).tolist() == [[2**40 + 1, -1]]
    assert np.array_equal(floats, probs.double().numpy())
    assert nothing.shape == (0, 4)
    assert fetch([]) == []


WAYS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda t: t.cpu(),
    "to": lambda t: t.to("cpu"),
    "to named": lambda t: t.to(device="cpu"),
    "numpy": lambda t: t.numpy(),
    "asarray": lambda t: np.asarray(t),
    "tolist": lambda t: t.tolist(),
    "item": lambda t: t[0].item(),
    "bool": lambda t: bool(t[0] > 0),
    "if": lambda t: 1 if t.any() else 0,
    "int": lambda t: int(t[0]),
    "float": lambda t: float(t[0]),
    "slice": lambda t: list(range(9))[t[0]],
    "contains": lambda t: 1 in t,
    "nonzero": lambda t: t.nonzero(),
    "where": lambda t: torch.where(t > 0),
    "mask": lambda t: t[t > 0],
    "mask write": lambda t: t.clone().index_put_((t > 0,), torch.tensor(0)),
    "two": lambda t: (t.cpu().numpy().tolist(), t.cpu()),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_counter_sees_every_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfers.OURS", "/tests/")
    t = torch.tensor([1, 2, 3])
    with counting() as transfers:
        WAYS[way](t)
    assert transfers.num == (2 if way == "two" else 1), transfers.places


def test_the_counter_sees_nothing_where_nothing_goes_to_the_host() -> None:
    """Distributions, draws, verification and scores of chains and trees stay on the device."""
    kinds = [SamplingParams(), SamplingParams(0.8, top_k=5, top_p=0.9, min_p=0.01)]
    drafted = SamplingParams(1.0, repetition_penalty=1.2, presence_penalty=0.1, logit_bias={3: 1.0})
    tree = np.array([-1, -1, 0])
    forest = DraftTreeBatch.of(
        [np.array([1, 2]), np.array([3, 4, 5])], [None, tree], [np.array([0, -1]), np.full(3, -1)]
    )
    with counting() as transfers:
        spans = [
            Span(kinds[0], 2, [1], 1, [2]),
            Span(kinds[1], 3, [1], 1, [1, 2]),
            Span(drafted, 4, [1, 2], 2, [3, 4, 5], tree),
        ]
        p = warped(torch.randn(9, 30), spans)
        q = torch.randn(1, 30).softmax(-1)
        draw(q, torch.tensor([0.5], dtype=torch.float64))
        last, bonus, following = rejection_sample(
            forest, p.probs, q, np.full(5, 0.5), np.full(2, 0.5)
        )
        alphas = overlaps(p.probs, forest.before, q, forest.q, forest.tokens)
        scores = ratios(p.probs, forest.before, q, forest.q, forest.tokens, following)
        assert transfers.num == 0, transfers.places
        fetch([last, bonus, alphas, scores, p.tokens])
    assert transfers.num == 1, transfers.places
