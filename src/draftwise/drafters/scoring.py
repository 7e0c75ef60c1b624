"""How a drafter's distributions fare against the verified p of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.drafters.protocol import Context
from draftwise.nn.sampling import Dists
from draftwise.nn.transfer import Ask
from draftwise.types import Ints, Scores


def score_known(
    context: Context,
    start: int,
    known: Sequence[int] | Dists,
    matches: Sequence[int] | None = None,
) -> Ask[Scores | None]:
    """Compare a drafter's q at positions ``start``... with the verified p there.

    known: the tokens that it would have proposed (-1 = none), or distributions on the device. Only
    positions that are in the text and whose p is still kept count. Returns None if there is none.
    """
    first = max(start, context.targets_start)
    end = min(start + len(known), context.targets_start + len(context.targets), len(context.tokens))
    if first >= end:
        return None
    places = slice(first - start, end - start)
    p = context.targets[first - context.targets_start : end - context.targets_start]
    lengths = None if matches is None else np.array(matches[places], dtype=np.int64)
    if context.sampling.temperature == 0 and not isinstance(known, Dists):
        return _of_points(first, known[places], p, context.tokens[first:end], lengths)
    text = np.array(context.tokens[first:end])
    if context.sampling.temperature == 0:
        assert isinstance(known, Dists)
        (tokens,) = yield [known.take(places).tokens]
        points = np.array(p)
        alphas = ((points == tokens) & (points >= 0)).astype(np.float64)
        ratios = alphas * (points == text)
    elif isinstance(known, Dists):
        alphas, ratios = yield _of_drawn(_rows(p), known.take(places).probs, text)
        alphas, ratios = np.minimum(np.nan_to_num(alphas), 1.0), np.nan_to_num(ratios)
    else:
        proposed = np.array(known[places])
        (alphas,) = yield [_at(_rows(p), proposed)]
        alphas = np.minimum(np.nan_to_num(np.where(proposed < 0, 0.0, alphas)), 1.0)
        ratios = ((proposed == text) & (alphas > 0)).astype(np.float64)
    return Scores(first, alphas, ratios, lengths)


def _of_points(
    start: int, known: Sequence[int], p: Sequence[Any], text: Sequence[int], lengths: Ints | None
) -> Scores:
    """Of proposed tokens beside a greedy target's, without arrays: a round has one or two."""
    alphas = [float(token == point >= 0) for token, point in zip(known, p, strict=True)]
    ratios = [alpha * (point == token) for alpha, point, token in zip(alphas, p, text, strict=True)]
    return Scores(start, np.array(alphas), np.array(ratios), lengths)


def joined(parts: Sequence[Scores]) -> Scores | None:
    """Scores of one drafter in text order as one, from the last gap on; None of none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    before, last = joined(parts[:-1]), parts[-1]
    if before is None or before.start + len(before.alphas) != last.start:
        return last
    return Scores(
        before.start,
        np.concatenate((before.alphas, last.alphas)),
        np.concatenate((before.ratios, last.ratios)),
    )


def _of_drawn(p: Tensor, q: Tensor, text: Ints) -> list[Tensor]:
    """[n] acceptance probabilities, and ``min(1, q/p)`` of the text's tokens."""
    of_p, of_q = _at(p, text), _at(q, text)
    ratios = torch.where(of_p > 0, (of_q / of_p).clamp(max=1), 0.0)
    return [torch.minimum(p, q).sum(-1), ratios]


def _at(dists: Tensor, tokens: Ints) -> Tensor:
    """[n] what [n, V] give to a token each; negative ones stand for none."""
    index = torch.from_numpy(tokens.clip(0)).to(dists.device)
    return dists.gather(1, index[:, None])[:, 0]


def _rows(p: Sequence[int | Tensor]) -> Tensor:
    """[n, V] of rows that were kept."""
    return torch.stack([torch.as_tensor(row) for row in p])
