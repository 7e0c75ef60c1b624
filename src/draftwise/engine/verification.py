"""What each row keeps, and what that shows of its drafters: one look at the device for all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.records import as_logprobs, logprobs
from draftwise.engine.request import Turn
from draftwise.engine.verify import verify
from draftwise.nn.sampling import Dists, warped
from draftwise.nn.transfer import fetch
from draftwise.nn.verify import Forest, judge, overlaps, ratios
from draftwise.types import Draft, Floats, Ints, Scores, Verdict


def judge_all(turns: Sequence[Turn]) -> None:
    """Fill in verdicts, what they were judged against, and how drafters fared in them.

    Greedy rows cost one ``argmax`` and are judged by the reference; the others by its batched form.
    """
    p = _distributions(turns)
    greedy = [turn for turn in turns if turn.context.sampling.temperature == 0]
    drawn = [turn for turn in turns if turn.context.sampling.temperature > 0]
    judged = _Judged(drawn, p) if drawn else None
    following = p.tokens if judged is None else p.tokens.clone()
    ends = list(accumulate(len(turn.draft) + 1 for turn in turns))
    if judged is not None:
        following[torch.from_numpy(np.flatnonzero(p.places >= 0)).to(following.device)] = (
            judged.following
        )
    said = [
        logprobs(turn.logits, following[end - len(turn.draft) - 1 : end], turn.request.num_logprobs)
        for turn, end in zip(turns, ends, strict=True)
        if turn.logits is not None and turn.request.num_logprobs is not None
    ]
    asides = [q for turn in greedy for _, q in turn.draft.asides]
    told = iter(
        fetch(
            [
                p.tokens,
                torch.stack(asides) if asides else p.tokens[:0],
                *(judged.tensors if judged is not None else ()),
                *(tensor for own in said for tensor in own),
            ]
        )
    )
    points = np.split(next(told).astype(np.int64), ends[:-1])
    of_asides = iter(next(told).tolist())
    for turn, own in zip(turns, points, strict=True):
        if turn.context.sampling.temperature == 0:
            _judge_greedy(turn, own, of_asides)
    if judged is not None:
        judged.fill_in(told)
    for turn in turns:
        if turn.request.num_logprobs is not None:
            turn.logprobs = as_logprobs(next(told), next(told), next(told))


def show(turn: Turn) -> None:
    """Fill in what verification showed of each drafter along the tokens that were emitted.

    A chain's drafter is compared up to the first token that is not the text's; of a tree nothing is
    told, since its tokens are not draws.
    """
    first, start = 0, len(turn.context.tokens) - turn.num_emitted
    first_aside = 0
    on_path = {-1, *turn.verdict.path.tolist()}
    judged = {}
    for name, draft in turn.parts:
        asides = {node: first_aside + i for i, (node, _) in enumerate(draft.asides)}
        found: list[tuple[float, float]] = []
        num = draft.num_chain
        for depth in range(min(num + 1, turn.num_emitted) if num == draft.depth else 0):
            node = first + depth
            if depth and node - 1 not in on_path:
                break
            if depth < num and draft.sources[depth] == name:
                found.append((float(turn.alphas[node]), float(turn.ratios[node])))
            elif depth - 1 in asides:
                found.append(turn.asides[asides[depth - 1]])
            else:
                break
        if found:
            alphas, of_text = np.array(found).T
            judged[name] = Scores(start, np.minimum(alphas, 1.0), of_text)
        first, first_aside = first + len(draft), first_aside + len(draft.asides)
    turn.judged = judged


def drafted_alphas(draft: Draft, alphas: Floats, path: Ints) -> Floats:
    """alpha at each drafted position given the draft's own prefix, the rejected tail included.

    alphas: [N] of the nodes; path: the nodes that were accepted. Of a tree, on that path: how much
    of p the children of each of its tokens cover.

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
    """``Evidence.siblings`` of a draft of which the nodes of ``path`` were kept."""
    reached, found = {-1, *path.tolist()}, []
    ranks: Counter[int] = Counter()
    for node in range(draft.num_chain, len(draft) if draft.confidences else 0):
        before = draft.parent(node)
        ranks[before] += 1
        if before in reached:
            found.append((draft.confidences[node], ranks[before], node in reached))
    return found


def _distributions(turns: Sequence[Turn]) -> Dists:
    """p after the text and after each node of every turn, end to end."""
    blocks = [turn.logits for turn in turns if turn.logits is not None]
    spans = []
    for turn in turns:
        drafted, start = turn.draft.tokens.tolist(), len(turn.context.tokens)
        spans.append(turn.context.span(len(drafted) + 1, start, drafted, turn.draft.parents))
    return warped(torch.cat(blocks) if len(blocks) > 1 else blocks[0], spans)


def _judge_greedy(turn: Turn, points: Ints, of_asides: Iterator[float]) -> None:
    draft = turn.draft
    turn.verdict = verify(draft, points.tolist(), np.zeros(len(draft) + 1))
    before = np.arange(len(draft)) if draft.parents is None else draft.parents + 1
    turn.alphas = turn.ratios = (points[before] == draft.tokens).astype(np.float64)
    agree = [float(points[node + 1] == next(of_asides)) for node, _ in draft.asides]
    turn.asides = [(each, each) for each in agree]
    turn.targets = points[[0, *(turn.verdict.path + 1)]].tolist()


class _Judged:
    """The verdicts on sampled rows, while they are still on the device.

    following: [P] the token that follows each place.
    """

    def __init__(self, turns: Sequence[Turn], p: Dists) -> None:
        self._turns, self._p = turns, p.probs
        drafts = [turn.draft for turn in turns]
        rows: list[Tensor] = []
        numbers = [np.array([self._row(rows, q) for q in _drawn_from(d)]) for d in drafts]
        self._forest = Forest.of([d.tokens for d in drafts], [d.parents for d in drafts], numbers)
        asides = [
            (self._forest.roots[index] + node + 1, self._row(rows, q))
            for index, draft in enumerate(drafts)
            for node, q in draft.asides
        ]
        q = torch.stack(rows) if rows else self._p[:0]
        uniforms = np.concatenate([turn.uniforms[:-1] for turn in turns])
        bonus_uniforms = np.array([turn.uniforms[-1] for turn in turns])
        last, bonus, self.following = judge(self._forest, self._p, q, uniforms, bonus_uniforms)
        places, ours = np.array(asides, dtype=np.int64).reshape(-1, 2).T
        places = np.concatenate((self._forest.before, places))
        ours = np.concatenate((self._forest.q, ours))
        proposed = np.concatenate((self._forest.tokens, np.full(len(asides), -1)))
        self.tensors = [last, bonus]
        if len(places):
            self.tensors += [
                overlaps(self._p, places, q, ours, proposed),
                ratios(self._p, places, q, ours, proposed, self.following),
            ]
        else:
            self.tensors += [self._p.new_empty(0)] * 2

    def fill_in(self, told: Iterator[Floats]) -> None:
        """Give each turn what came back."""
        last, bonus = (next(told).astype(np.int64).tolist() for _ in range(2))
        alphas, of_text = (np.nan_to_num(next(told)) for _ in range(2))
        kept: list[int] = []
        node, aside = 0, len(self._forest.tokens)
        for row, turn in enumerate(self._turns):
            path, draft = self._forest.path(row, last[row]), turn.draft
            turn.verdict = Verdict(np.array([*draft.tokens[path], bonus[row]]), path)
            turn.alphas, turn.ratios = (a[node : node + len(draft)] for a in (alphas, of_text))
            ours = slice(aside, aside + len(draft.asides))
            turn.asides = list(zip(alphas[ours].tolist(), of_text[ours].tolist(), strict=True))
            node, aside = node + len(draft), ours.stop
            kept += [int(self._forest.roots[row]) + place for place in (0, *(path + 1).tolist())]
        rows = iter(self._p[torch.tensor(kept, device=self._p.device)])
        for turn in self._turns:
            turn.targets = [next(rows) for _ in turn.verdict.tokens]

    def _row(self, rows: list[Tensor], q: Tensor | Floats | None) -> int:
        """Add a distribution; its row, or -1 where there is none to add."""
        if q is not None:
            rows.append(torch.as_tensor(q, device=self._p.device, dtype=self._p.dtype))
        return -1 if q is None else len(rows) - 1


def _drawn_from(draft: Draft) -> Sequence[Tensor | Floats | None]:
    return [None] * len(draft) if draft.probs is None else list(draft.probs)
