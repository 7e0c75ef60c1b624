"""Scores of a drafter: how far its distributions agree with the verified ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.drafters.protocol import Context
from draftwise.nn.sampling import Dists
from draftwise.nn.transfer import DeviceRead
from draftwise.types import Ints, Scores


def score_known(
    context: Context, start: int, known: Sequence[int] | Dists, matches: Sequence[int] | None = None
) -> DeviceRead[Scores | None]:
    """Scores of a drafter's q against the verified p, from position ``start`` on.

    known: the tokens that it would have proposed (-1 = none), or distributions. Covers only
    positions whose p is still stored; None if there are none.
    """
    first = max(start, context.targets_start)
    end = min(start + len(known), context.targets_start + len(context.targets), len(context.tokens))
    if first >= end:
        return None
    places = slice(first - start, end - start)
    p: list[Any] = context.targets[first - context.targets_start : end - context.targets_start]
    lengths = None if matches is None else np.array(matches[places], dtype=np.int64)
    if context.sampling.temperature == 0:  # lists are faster for so few
        tokens: Sequence[float]
        if isinstance(known, Dists):
            tokens = (yield [known.take(places).tokens])[0].tolist()
        else:
            tokens = known[places]
        agreed = [float(token == point >= 0) for token, point in zip(tokens, p, strict=True)]
        both = zip(agreed, p, context.tokens[first:end], strict=True)
        of_text = [alpha * (point == token) for alpha, point, token in both]
        return Scores(first, np.array(agreed), np.array(of_text), lengths)
    text = np.array(context.tokens[first:end])
    if isinstance(known, Dists):
        target, q = _rows(p), known.take(places).probs
        of_p, of_q = _at(target, text), _at(q, text)
        capped = torch.where(of_p > 0, (of_q / of_p).clamp(max=1), 0.0)
        alphas, ratios = yield [torch.minimum(target, q).sum(-1), capped]
        alphas, ratios = np.minimum(np.nan_to_num(alphas), 1.0), np.nan_to_num(ratios)
    else:
        proposed = np.array(known[places])
        (alphas,) = yield [_at(_rows(p), proposed)]
        alphas = np.minimum(np.nan_to_num(np.where(proposed < 0, 0.0, alphas)), 1.0)
        ratios = ((proposed == text) & (alphas > 0)).astype(np.float64)
    return Scores(first, alphas, ratios, lengths)


def joined(parts: Sequence[Scores]) -> Scores | None:
    """Consecutive scores of one drafter as one, from the last gap on; None if empty."""
    if len(parts) < 2:
        return parts[0] if parts else None
    before, last = joined(parts[:-1]), parts[-1]
    if before is None or before.start + len(before.alphas) != last.start:
        return last
    alphas = np.concatenate((before.alphas, last.alphas))
    return Scores(before.start, alphas, np.concatenate((before.ratios, last.ratios)))


def _at(dists: Tensor, tokens: Ints) -> Tensor:
    """[n] probability in [n, V] of one token each; negative ids are read as token 0."""
    index = torch.from_numpy(tokens.clip(0)).to(dists.device)
    return dists.gather(1, index[:, None])[:, 0]


def _rows(p: Sequence[int | Tensor]) -> Tensor:
    return torch.stack([torch.as_tensor(row) for row in p])
