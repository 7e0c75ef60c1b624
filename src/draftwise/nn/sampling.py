"""Logits to the distribution that is sampled from: the same warps for target and drafter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwise.types import Dist, Ints, SamplingParams


def distributions(
    logits: Tensor,
    sampling: SamplingParams,
    text: Sequence[int],
    drafted: Sequence[int],
    parents: Ints | None = None,
) -> list[Dist]:
    """[T, V] logits to T distributions: processed, penalised, then temperature, top-k, top-p.

    Row t is conditioned on ``text`` and the first t tokens of ``drafted``, or in a tree, whose
    ``parents`` are given, on the path to node t - 1 (what ``reads_text`` looks at). At temperature
    0 each is the token itself, a point mass. Order and meaning are those of ``transformers``. A row
    that is not finite comes back as the token -1.
    """
    scores = logits
    if sampling.process is not None:
        scores = _processed(scores, sampling.process, text, drafted, parents)
    if sampling.repetition_penalty != 1.0:
        scores = _penalised(scores, sampling.repetition_penalty, text, drafted, parents)
    if sampling.temperature == 0:
        best, tokens = scores.max(-1)
        found = zip(tokens.tolist(), best.tolist(), strict=True)
        return [token if math.isfinite(score) else -1 for token, score in found]
    probs = _warped(scores.float() / sampling.temperature, sampling)
    finite = probs.sum(-1).isfinite().tolist()
    rows = probs.cpu().numpy()
    return [row if ok else -1 for row, ok in zip(rows, finite, strict=True)]


def _warped(scores: Tensor, sampling: SamplingParams) -> Tensor:
    """[T, V] scores to probabilities that are zero outside top-k and then top-p."""
    vocab_size = scores.shape[-1]
    if 0 < sampling.top_k < vocab_size:
        top, tokens = scores.topk(sampling.top_k, dim=-1)  # sorted: top-p needs no full sort
        probs = _nucleus(top.softmax(-1), sampling.top_p)
        return torch.zeros_like(scores).scatter_(-1, tokens, probs)
    if sampling.top_p >= 1:
        return scores.softmax(-1)
    probs, tokens = scores.softmax(-1).sort(dim=-1, descending=True)
    return torch.zeros_like(scores).scatter_(-1, tokens, _nucleus(probs, sampling.top_p))


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the fewest of the descending probabilities [T, n] that reach ``top_p``; renormalise."""
    if top_p >= 1:
        return probs
    before = probs.cumsum(-1) - probs
    kept = probs.masked_fill(before >= top_p, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _processed(
    logits: Tensor,
    process: Callable[[Sequence[int], Any], Any],
    text: Sequence[int],
    drafted: Sequence[int],
    parents: Ints | None,
) -> Tensor:
    """Each row by itself, with the text and the path that it is conditioned on."""
    paths = [list(text)]
    for node, token in enumerate(drafted[: len(logits) - 1]):
        paths.append([*paths[node if parents is None else parents[node] + 1], token])
    # a copy each: processors may write into what they are given
    rows = [process(path, row.float().clone()) for path, row in zip(paths, logits, strict=True)]
    return torch.stack(rows)


def _penalised(
    logits: Tensor,
    penalty: float,
    text: Sequence[int],
    drafted: Sequence[int],
    parents: Ints | None,
) -> Tensor:
    """Scores of tokens that occurred so far, divided (if positive) or multiplied by the penalty."""
    seen = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    seen[:, torch.tensor(sorted(set(text)), device=logits.device)] = True
    for node, token in enumerate(drafted[: len(logits) - 1]):
        seen[node + 1] = seen[node if parents is None else parents[node] + 1]
        seen[node + 1, token] = True
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
