"""Texts as padded batches, and acceptance as the overlap of two distributions."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from draftwise_lab.train.data import Text, groups, pad
from draftwise_lab.train.drafter import acceptance


def test_acceptance_is_the_overlap() -> None:
    p = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    q = [Fraction(1, 8), Fraction(5, 8), Fraction(1, 4)]
    overlap = float(sum(min(a, b) for a, b in zip(p, q, strict=True)))
    logits = [torch.tensor([[float(x) for x in row]]).log() for row in (p, q)]
    assert acceptance(*logits).item() == pytest.approx(overlap)


def test_positions_predict_exactly_the_answer() -> None:
    texts = [Text((5, 6, 7, 8), 2), Text((9, 10), 1)]
    tokens, positions = pad(texts)
    assert tokens.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0]]
    assert tokens.flatten()[positions + 1].tolist() == [7, 8, 10]


def test_groups_hold_every_text_once() -> None:
    texts = [Text(tuple(range(3 + 7 * i % 24)), 2) for i in range(48)]
    found = groups(texts, 64)
    assert sorted(i for group in found for i in group) == list(range(len(texts)))
    assert all(len(g) * max(len(texts[i].tokens) for i in g) <= 64 for g in found)


def test_a_text_without_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="start must lie inside"):
        Text((1, 2, 3), 3)
