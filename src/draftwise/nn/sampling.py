"""Penalties and warping turn logits into distributions; draws from these; reads of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwise.types import Floats, Ints, SamplingParams

_NO_PLACES: Ints = np.zeros(0, dtype=np.int64)


class Occurrences:
    """Token counts [V] of a growing text, and of its answer, which starts at ``num_prompt``."""

    def __init__(self, num_prompt: int) -> None:
        self.num_prompt, self._num_read = num_prompt, 0
        self.everywhere = self.answered = torch.empty(0)

    def read(self, text: Sequence[int], like: Tensor) -> None:
        """Count the tokens added since the last call; like: [n, V], for device and vocabulary."""
        if not self._num_read:
            self.everywhere, self.answered = torch.zeros((2, like.shape[-1]), device=like.device)
        _add(self.everywhere, text[self._num_read :])
        _add(self.answered, text[max(self._num_read, self.num_prompt) :])
        self._num_read = max(self._num_read, len(text))


def _followed(seen: Occurrences, span: SampledSpan) -> tuple[Tensor, Tensor]:
    """Counts [T, V] in text and answer before each row of a span, from ``seen``."""
    device, parents = seen.everywhere.device, span.parents
    text, start, skip = span.text, span.start, span.skip
    everywhere, answered = seen.everywhere.clone(), seen.answered.clone()
    _add(everywhere, text[start:], -1.0)
    _add(answered, text[max(start, seen.num_prompt) :], -1.0)
    num = skip + span.num_rows - 1
    known = torch.tensor(list(text[start:][:num]), dtype=torch.long, device=device)
    follows = torch.cat((known, torch.as_tensor(span.drafted, device=device).long()))[:num]
    if not len(follows):
        return everywhere[None], answered[None]
    paths = np.tri(num + 1, num, -1, dtype=np.float32) if parents is None else _paths(parents[:num])
    is_answer = (start + np.arange(num) >= seen.num_prompt).astype(np.float32)
    ones = torch.zeros((num, len(everywhere)), device=device)
    ones.scatter_(1, follows.clamp(min=0)[:, None], 1.0)
    of_all, of_answer = (
        torch.from_numpy(weights[skip:]).to(device) @ ones for weights in (paths, paths * is_answer)
    )
    return everywhere + of_all, answered + of_answer


def _paths(parents: Ints) -> np.ndarray:
    """[N + 1, N] the nodes on the path to the text's end and to each node, inclusive."""
    paths = np.zeros((len(parents) + 1, len(parents)), dtype=np.float32)
    for node, parent in enumerate(parents.tolist()):
        paths[node + 1] = paths[parent + 1]
        paths[node + 1, node] = 1
    return paths


def _add(counts: Tensor, tokens: Sequence[int], times: float = 1.0) -> None:
    if len(tokens):
        index = torch.tensor(list(tokens), device=counts.device)
        counts.index_add_(0, index, torch.full((len(tokens),), times, device=counts.device))


@dataclass(frozen=True, slots=True)
class SampledSpan:
    """Consecutive rows of logits of one request, and the tokens that each is conditioned on.

    Row t follows the first ``start`` tokens of ``text`` and then ``skip + t`` tokens of
    ``text[start:]`` and ``drafted``; in a tree (``parents``; ``start`` is the text's end, ``skip``
    0) the path to node t - 1. drafted: may be on the device unless ``process`` reads it.
    num_prompt: tokens that count only for the repetition penalty; ``process`` never gets fewer.
    seen: token counts of the text, if they are kept. blame: receives an exception of the edits,
    and the rows stay unedited; None = it is raised.
    """

    sampling: SamplingParams
    num_rows: int
    text: Sequence[int] = ()
    start: int = 0
    drafted: Sequence[int] | Tensor = ()
    parents: Ints | None = None
    num_prompt: int = 0
    seen: Occurrences | None = None
    skip: int = 0
    blame: Callable[[Exception], None] | None = None


@dataclass(frozen=True, slots=True)
class Dists:
    """N distributions over the vocabulary, on the device.

    tokens: [N] the token of greedy rows, -1 in any row with logits that are not finite. probs: [n,
    V] float32 of the sampled rows. places: [N] each row's index in ``probs``, -1 = a point mass;
    empty if all are point masses.
    """

    tokens: Tensor
    probs: Tensor
    places: Ints

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def are_points(self) -> bool:
        return not self.probs.shape[0]

    def take(self, rows: slice | Sequence[int]) -> Dists:
        if self.are_points:
            own = rows if isinstance(rows, slice) else list(rows)
            return Dists(self.tokens[own], self.probs, self.places)
        places = self.places[rows]
        is_drawn = places >= 0
        renumbered = np.where(is_drawn, np.cumsum(is_drawn) - 1, -1)
        wanted = np.arange(len(self))[rows]
        return Dists(_rows(self.tokens, wanted), _rows(self.probs, places[is_drawn]), renumbered)

    def draw(self, uniforms: Tensor) -> Tensor:
        """[N] draws, -1 for rows that are not finite; uniforms: [N], used for sampled rows."""
        if self.are_points:
            return self.tokens
        index = torch.from_numpy(np.flatnonzero(self.places >= 0)).to(self.tokens.device)
        return self.tokens.index_copy(0, index, draw(self.probs, uniforms[index]))

    def q(self, row: int) -> Tensor | None:
        """[V] probabilities of a sampled row; None for a point mass."""
        if self.are_points:
            return None
        place = int(self.places[row])
        return None if place < 0 else self.probs[place]


def warped(logits: Tensor, spans: Sequence[SampledSpan]) -> Dists:
    """Turn [N, V] logits of all spans, concatenated, into the distributions to draw tokens from.

    Order and meaning are those of transformers, in float32: ``process``, biases and penalties, then
    temperature, top-k, top-p, min-p, each with its row's parameters. Tokens that tie with the last
    of the top k stay; of those that tie at the edge of the nucleus, as many as are needed, highest
    ids first. Nothing is copied to the host, unless by ``process``. Raises ValueError if the spans
    have another number of rows than the logits.
    """
    num_rows = sum([span.num_rows for span in spans])
    if num_rows != logits.shape[0]:
        raise ValueError(f"spans of {num_rows} rows for logits of {len(logits)}")
    if all([span.sampling.temperature == 0 and not span.sampling.edits for span in spans]):
        return Dists(_argmax(logits), logits[:0].float(), _NO_PLACES)
    blocks = []
    for span, end in zip(spans, accumulate(span.num_rows for span in spans), strict=True):
        rows = logits[end - span.num_rows : end]
        blocks.append(_edited(rows, span) if span.sampling.edits else rows)
    untouched = not any(span.sampling.edits for span in spans)
    greedy = [b for b, span in zip(blocks, spans, strict=True) if span.sampling.temperature == 0]
    drawn = [b for b, span in zip(blocks, spans, strict=True) if span.sampling.temperature > 0]
    if not drawn:
        points = _argmax(logits if untouched else torch.cat(greedy))
        return Dists(points, logits[:0].float(), _NO_PLACES)
    params = [span.sampling for span in spans for _ in range(span.num_rows)]
    chosen = [own for own in params if own.temperature > 0]
    scores = logits if untouched and not greedy else torch.cat(drawn)
    probs = _probabilities(scores.float(), chosen)
    broken = torch.where(probs.sum(-1).isfinite(), 0, -1)
    is_greedy = np.array([own.temperature == 0 for own in params])
    places = np.where(is_greedy, -1, np.cumsum(~is_greedy) - 1)
    if not greedy:
        return Dists(broken, probs, places)
    tokens = torch.cat((_argmax(torch.cat(greedy)), broken))
    order = np.argsort(np.argsort(~is_greedy, kind="stable"), kind="stable")
    return Dists(tokens[torch.from_numpy(order).to(tokens.device)], probs, places)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """[n] inverse-CDF draws at uniforms [n], never of probability 0; -1 where not finite."""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # on a GPU, rounding may make the sums decrease, so probabilities are checked, too
    beyond = (cumulative > uniforms[:, None] * total) & (probs > 0)
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).int().argmax(-1)
    tokens = torch.where(beyond.any(-1), beyond.int().argmax(-1), last)
    return torch.where(total[:, 0].isfinite(), tokens, -1)


def _rows(tensor: Tensor, rows: Ints) -> Tensor:
    if not len(rows) or (np.diff(rows) == 1).all():
        return tensor[int(rows[0]) : int(rows[-1]) + 1] if len(rows) else tensor[:0]
    return tensor[torch.from_numpy(rows).to(tensor.device)]


def _argmax(scores: Tensor) -> Tensor:
    """[N] argmax of [N, V], the first of equal ones; -1 where its score is not finite."""
    if scores.device.type != "cpu":
        best, tokens = scores.max(-1)
        # 0 if finite, else NaN, in one kernel; ``isfinite`` takes four
        return torch.where(best - best == 0, tokens, -1)
    host = scores.detach().float().numpy()
    likeliest = host.argmax(-1)  # takes a tenth of the time of torch's
    highest = host[np.arange(len(host)), likeliest]
    if not all(map(math.isfinite, highest.tolist())):
        likeliest[~np.isfinite(highest)] = -1
    return torch.from_numpy(likeliest)


def _edited(logits: Tensor, span: SampledSpan) -> Tensor:
    """A span's rows after its callback, biases and penalties, which depend on its text."""
    sampling, scores = span.sampling, logits.float()
    try:
        if sampling.process is not None:
            scores = _processed(scores, sampling.process, span)
        if sampling.logit_bias:
            tokens = torch.tensor(list(sampling.logit_bias), device=scores.device)
            values = torch.tensor(list(sampling.logit_bias.values()), device=scores.device)
            scores = scores.index_add(-1, tokens, values.to(scores.dtype).expand(len(scores), -1))
        return _penalised(scores, span) if sampling.penalises else scores
    except Exception as error:
        if span.blame is None:
            raise
        span.blame(error)
        return logits


def _processed(
    scores: Tensor, process: Callable[[Sequence[int], Any], Any], span: SampledSpan
) -> Tensor:
    """Apply the callback to each row, with the tokens that it is conditioned on."""
    follows = [*span.text[span.start :], *span.drafted]
    paths = [[*span.text[: span.start], *follows[: span.skip]]]
    for node, token in enumerate(follows[span.skip :][: len(scores) - 1]):
        paths.append([*paths[node if span.parents is None else span.parents[node] + 1], token])
    # a copy each, since processors may modify their arguments
    return torch.stack(
        [
            process(path, row.clone()) if len(path) >= span.num_prompt else row
            for path, row in zip(paths, scores, strict=True)
        ]
    )


def _penalised(scores: Tensor, span: SampledSpan) -> Tensor:
    """Apply penalties on earlier tokens: CTRL's repetition and OpenAI's two."""
    sampling = span.sampling
    seen = span.seen or Occurrences(span.num_prompt)
    seen.read(span.text, scores)
    everywhere, answered = _followed(seen, span)
    if sampling.repetition_penalty != 1.0:
        penalty = sampling.repetition_penalty
        paid = torch.where(scores < 0, scores * penalty, scores / penalty)
        scores = torch.where(everywhere > 0, paid, scores)
    if sampling.frequency_penalty:
        scores = scores - sampling.frequency_penalty * answered
    if sampling.presence_penalty:
        scores = scores - sampling.presence_penalty * (answered > 0)
    return scores


def _probabilities(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Turn [n, V] edited scores into probabilities, by the n parameters."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]

    vocab_size = scores.shape[-1]
    if any(own.temperature != 1 for own in params):
        scores = scores / column([own.temperature for own in params])
    cut = [i for i, own in enumerate(params) if 0 < own.top_k < vocab_size or own.top_p < 1]
    if len(cut) == len(params):
        scores = _cut(scores, params)
    elif cut:
        index = torch.tensor(cut, device=scores.device)
        scores = scores.index_copy(0, index, _cut(scores[index], [params[i] for i in cut]))
    if any(own.min_p > 0 for own in params):
        probs = scores.softmax(-1)
        least = column([own.min_p for own in params]) * probs.amax(-1, keepdim=True)
        scores = scores.masked_fill(probs < least, -torch.inf)
    return scores.softmax(-1)


def _cut(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[n, V] scores, -inf outside each row's top k and then its nucleus.

    The nucleus ends at a score, the *edge*; of tokens that tie with it, as many stay as reach
    top-p. The whole vocabulary is sorted only if some row has no top-k.
    """
    vocab_size = scores.shape[-1]
    ks = [own.top_k if 0 < own.top_k < vocab_size else vocab_size for own in params]
    if max(ks) < vocab_size:
        best = scores.topk(max(ks), dim=-1).values
    else:
        best = scores.sort(dim=-1, descending=True).values
    place = torch.tensor(ks, device=scores.device)[:, None] - 1
    scores = scores.masked_fill(scores < best.gather(-1, place), -torch.inf)
    if all(own.top_p >= 1 for own in params):
        return scores
    wholes = [own.top_p if own.top_p < 1 else torch.inf for own in params]
    top_p = torch.tensor(wholes, device=scores.device)[:, None]
    total = scores.logsumexp(-1, keepdim=True)
    best = best.masked_fill(torch.arange(max(ks), device=scores.device) > place, -torch.inf)
    probs = (best - total).exp()
    before = probs.cumsum(-1) - probs
    num = ((before < top_p) & (best > -torch.inf)).sum(-1, keepdim=True).clamp(min=1)
    edge = best.gather(-1, num - 1)
    ties = scores == edge
    above = before.gather(-1, (best > edge).sum(-1, keepdim=True).clamp(max=max(ks) - 1))
    wanted = ((top_p - above) / (edge - total).exp()).ceil().clamp(min=1)
    from_the_end = ties.flip(-1).cumsum(-1).flip(-1)
    return scores.masked_fill((scores < edge) | (ties & (from_the_end > wanted)), -torch.inf)


@dataclass(frozen=True, slots=True)
class Shared:
    """Maps the drafter's ``own`` logits to the target's ``size``; both share the first ``num``
    tokens, over which q is normalised. (Qwen2.5 has 151,665 tokens, and 151,936 logits in the 0.5B
    and 152,064 in the 7B model.)
    """

    num: int
    own: int
    size: int

    def readable(self, tokens: Sequence[int]) -> Sequence[int]:
        """Replace tokens that the drafter has no embedding for by its last token."""
        if self.own >= self.size:
            return tokens
        return [min(token, self.own - 1) for token in tokens]

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [..., own] as [..., size], -inf for tokens that are not shared."""
        if self.own == self.size:
            return logits
        return pad(logits[..., : self.num], (0, self.size - self.num), value=float("-inf"))


T = TypeVar("T")

DeviceRead = Generator[Sequence[Tensor], Sequence[Floats], T]
"""A generator that reads from the device: yields tensors, is sent arrays, returns T."""


def fetch(tensors: Sequence[Tensor]) -> list[Floats]:
    """Copy tensors to the host in one transfer, as float64 arrays (exact for token ids)."""
    if not tensors:
        return []
    if len(tensors) == 1:
        return [tensors[0].detach().double().cpu().numpy()]
    flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors]).detach().cpu().numpy()
    parts = np.split(flat, list(accumulate(tensor.numel() for tensor in tensors[:-1])))
    return [part.reshape(own.shape) for part, own in zip(parts, tensors, strict=True)]


def together(asks: Sequence[DeviceRead[T]]) -> DeviceRead[list[T]]:
    """Combine several reads: tensors that they yield in the same step share a transfer."""
    if len(asks) == 1:
        return [(yield from asks[0])]
    found: dict[int, T] = {}
    sent: dict[int, Any] = dict.fromkeys(range(len(asks)))
    while sent:
        wanted: dict[int, Sequence[Tensor]] = {}
        for index, values in sent.items():
            try:
                wanted[index] = asks[index].send(values)
            except StopIteration as done:
                found[index] = done.value
        tensors = [tensor for own in wanted.values() for tensor in own]
        arrays = iter((yield tensors) if wanted else ())
        sent = {index: list(islice(arrays, len(own))) for index, own in wanted.items()}
    return [found[index] for index in range(len(asks))]


def answered(ask: DeviceRead[T]) -> T:
    """Run one read, with a transfer per step."""
    try:
        wanted = next(ask)
        while True:
            wanted = ask.send(fetch(wanted))
    except StopIteration as done:
        answer: T = done.value
        return answer
