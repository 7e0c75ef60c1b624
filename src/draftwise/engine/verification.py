"""Verification of all rows, and scores of their drafters, with one read from the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.records import as_logprobs, logprobs
from draftwise.engine.request import RoundState
from draftwise.engine.verify import verify
from draftwise.nn.sampling import Dists, warped
from draftwise.nn.transfer import fetch
from draftwise.nn.verify import DraftTreeBatch, overlaps, ratios, rejection_sample
from draftwise.types import Draft, Floats, Ints, Scores, Verdict


def verify_batch(states: Sequence[RoundState]) -> None:
    """Fill in each row's verdict, targets, and scores of drafted tokens.

    Greedy rows need one ``argmax`` and use the reference ``verify``; sampled rows use its batched
    form.
    """
    p = _distributions(states)
    greedy = [state for state in states if state.context.sampling.temperature == 0]
    drawn = [state for state in states if state.context.sampling.temperature > 0]
    judged = _SampledVerdicts(drawn, p) if drawn else None
    following = p.tokens
    ends = list(accumulate(len(state.draft) + 1 for state in states))
    if judged is not None:
        sampled = torch.from_numpy(np.flatnonzero(p.places >= 0)).to(following.device)
        following = following.index_copy(0, sampled, judged.following)
    requested = [
        logprobs(
            state.logits, following[end - len(state.draft) - 1 : end], state.request.num_logprobs
        )
        for state, end in zip(states, ends, strict=True)
        if state.logits is not None and state.request.num_logprobs is not None
    ]
    offpath_probs = [q for state in greedy for _, q in state.draft.offpath_probs]
    tensors = [p.tokens, torch.stack(offpath_probs) if offpath_probs else p.tokens[:0]]
    tensors += judged.tensors if judged is not None else ()
    values = iter(fetch([*tensors, *(tensor for own in requested for tensor in own)]))
    points = np.split(next(values).astype(np.int64), ends[:-1])
    offpath_tokens = iter(next(values).tolist())
    for state, own in zip(states, points, strict=True):
        if state.context.sampling.temperature == 0:
            _verify_greedy(state, own, offpath_tokens)
    if judged is not None:
        judged.fill_in(values)
    for state in states:
        if state.request.num_logprobs is not None:
            state.logprobs = as_logprobs(next(values), next(values), next(values))


def score_drafts(state: RoundState) -> None:
    """Fill in each drafter's scores along the emitted tokens.

    The drafter of a chain is scored up to its first token that differs from the text. Trees are not
    scored, since their tokens are not draws.
    """
    first, start = 0, len(state.context.tokens) - state.num_emitted
    first_offpath = 0
    on_path = {-1, *state.verdict.path.tolist()}
    judged = {}
    for name, draft in state.parts:
        offpath_probs = {node: first_offpath + i for i, (node, _) in enumerate(draft.offpath_probs)}
        found: list[tuple[float, float]] = []
        num = draft.num_chain
        for depth in range(min(num + 1, state.num_emitted) if num == draft.depth else 0):
            node = first + depth
            if depth and node - 1 not in on_path:
                break
            if depth < num and draft.sources[depth] == name:
                found.append((float(state.alphas[node]), float(state.ratios[node])))
            elif depth - 1 in offpath_probs:
                found.append(state.offpath_scores[offpath_probs[depth - 1]])
            else:
                break
        if found:
            alphas, of_text = np.array(found).T
            judged[name] = Scores(start, np.minimum(alphas, 1.0), of_text)
        first, first_offpath = first + len(draft), first_offpath + len(draft.offpath_probs)
    state.judged = judged


def drafted_alphas(draft: Draft, alphas: Floats, path: Ints) -> Floats:
    """alpha of each drafted position given the draft's own prefix, the rejected tail included.

    alphas: [N] of the nodes; path: accepted nodes. For a tree, along the path: the part of p that
    the children of each node cover.

    >>> siblings = Draft(np.array([0, 1]), parents=np.array([-1, -1]))
    >>> drafted_alphas(siblings, np.array([0.5, 0.25]), np.array([], int)).tolist()
    [0.75]
    """
    if draft.num_chain == draft.depth:
        return alphas[: draft.depth]
    families = [draft.children(node) for node in (-1, *path.tolist())]
    covered = [sum(alphas[child] for child in children) for children in families if children]
    return np.minimum(np.array(covered, dtype=np.float64), 1.0)


def siblings_of(draft: Draft, path: Ints) -> list[tuple[float, int, bool]]:
    """``Evidence.siblings`` of a draft whose nodes in ``path`` were accepted."""
    reached, found = {-1, *path.tolist()}, []
    ranks: Counter[int] = Counter()
    for node in range(draft.num_chain, len(draft) if draft.confidences else 0):
        before = draft.parent(node)
        ranks[before] += 1
        if before in reached:
            found.append((draft.confidences[node], ranks[before], node in reached))
    return found


def _distributions(states: Sequence[RoundState]) -> Dists:
    """p after the text and after each node, concatenated over all rows."""
    blocks = [state.logits for state in states if state.logits is not None]
    spans = []
    for state in states:
        drafted, start = state.draft.tokens.tolist(), len(state.context.tokens)
        spans.append(state.context.span(len(drafted) + 1, start, drafted, state.draft.parents))
    return warped(torch.cat(blocks) if len(blocks) > 1 else blocks[0], spans)


def _verify_greedy(state: RoundState, points: Ints, offpath_tokens: Iterator[float]) -> None:
    draft = state.draft
    state.verdict = verify(draft, points.tolist(), np.zeros(len(draft) + 1))
    before = np.arange(len(draft)) if draft.parents is None else draft.parents + 1
    state.alphas = state.ratios = (points[before] == draft.tokens).astype(np.float64)
    agree = [float(points[node + 1] == next(offpath_tokens)) for node, _ in draft.offpath_probs]
    state.offpath_scores = [(each, each) for each in agree]
    state.targets = points[[0, *(state.verdict.path + 1)]].tolist()


class _SampledVerdicts:
    """The verdicts on sampled rows, before they are read from the device.

    following: [P] the token after each position.
    """

    def __init__(self, states: Sequence[RoundState], p: Dists) -> None:
        self._turns, self._p = states, p.probs
        drafts = [state.draft for state in states]
        rows: list[Tensor] = []
        qs = [[None] * len(d) if d.probs is None else d.probs for d in drafts]
        numbers = [np.array([self._row(rows, q) for q in own]) for own in qs]
        self._trees = DraftTreeBatch.of(
            [d.tokens for d in drafts], [d.parents for d in drafts], numbers
        )
        offpath_probs = [
            (self._trees.roots[index] + node + 1, self._row(rows, q))
            for index, draft in enumerate(drafts)
            for node, q in draft.offpath_probs
        ]
        q = torch.stack(rows) if rows else self._p[:0]
        uniforms = np.concatenate([state.uniforms[:-1] for state in states])
        bonus_uniforms = np.array([state.uniforms[-1] for state in states])
        last, bonus, self.following = rejection_sample(
            self._trees, self._p, q, uniforms, bonus_uniforms
        )
        places, ours = np.array(offpath_probs, dtype=np.int64).reshape(-1, 2).T
        places = np.concatenate((self._trees.before, places))
        ours = np.concatenate((self._trees.q, ours))
        proposed = np.concatenate((self._trees.tokens, np.full(len(offpath_probs), -1)))
        self.tensors = [last, bonus]
        if len(places):
            self.tensors += [
                overlaps(self._p, places, q, ours, proposed),
                ratios(self._p, places, q, ours, proposed, self.following),
            ]
        else:
            self.tensors += [self._p.new_empty(0)] * 2

    def fill_in(self, values: Iterator[Floats]) -> None:
        last, bonus = (next(values).astype(np.int64).tolist() for _ in range(2))
        alphas, of_text = (np.nan_to_num(next(values)) for _ in range(2))
        kept: list[int] = []
        node, offpath = 0, len(self._trees.tokens)
        for row, state in enumerate(self._turns):
            path, draft = self._trees.path(row, last[row]), state.draft
            state.verdict = Verdict(np.array([*draft.tokens[path], bonus[row]]), path)
            state.alphas, state.ratios = (a[node : node + len(draft)] for a in (alphas, of_text))
            ours = slice(offpath, offpath + len(draft.offpath_probs))
            state.offpath_scores = list(
                zip(alphas[ours].tolist(), of_text[ours].tolist(), strict=True)
            )
            node, offpath = node + len(draft), ours.stop
            kept += [int(self._trees.roots[row]) + place for place in (0, *(path + 1).tolist())]
        rows = iter(self._p[torch.tensor(kept, device=self._p.device)])
        for state in self._turns:
            state.targets = [next(rows) for _ in state.verdict.tokens]

    def _row(self, rows: list[Tensor], q: Tensor | Floats | None) -> int:
        """Append a distribution to ``rows``; return its index, or -1 for None."""
        if q is not None:
            rows.append(torch.as_tensor(q, device=self._p.device, dtype=self._p.dtype))
        return -1 if q is None else len(rows) - 1
