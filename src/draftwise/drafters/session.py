"""The session of model drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from draftwise.drafters.drawing import (
    Chain,
    DraftInput,
    DraftLogits,
    DraftModelRunner,
    TreeLevel,
    draw_on_device,
    draw_stepwise,
    grow,
    prefill_logits,
)
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, joined, score_known
from draftwise.nn.attention import pruned
from draftwise.nn.sampling import DeviceRead, Dists, together, warped
from draftwise.types import Draft, Scores

PROBE_WEIGHT = 0.25  # weight of a probe's scores, which ignore distant context


@dataclass(slots=True)
class _ScoredRow:
    """unscored_from: first position without a score. base: text length before ``drafted``."""

    unscored_from: int = 0
    base: int = 0
    drafted: list[int] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)


class NeuralSession:
    """The session of a drafter with a ``DraftModelRunner``.

    Drafts of a fixed length are drawn on the device and transferred once; with a stop rule, a mixer
    or a callback there is one transfer per token for all rows.
    """

    def __init__(self, name: str, reader: DraftModelRunner) -> None:
        self._name, self._reader = name, reader
        self._rows: dict[int, _ScoredRow] = {}

    def open(self, context: Context, expected: int) -> None:
        self._reader.open(context.row)
        self._rows[context.row] = _ScoredRow()

    def close(self, row: int) -> None:
        self._reader.close(row)
        del self._rows[row]

    def crop(self, context: Context, length: int) -> None:
        self._reader.crop(context.row, length)
        self._rows[context.row] = _ScoredRow(length)

    def copy(self, source: int, row: int, length: int) -> None:
        self._reader.copy(source, row, length)
        self._rows[row] = _ScoredRow(length)

    def propose(self, tasks: Sequence[DraftTask]) -> DeviceRead[list[Draft]]:
        reader = self._reader
        chains = [Chain(task, reader.shows_hidden, reader.resumes) for task in tasks]
        for chain in chains:
            chain.shorten(reader.follow(chain.context))
            chain.copy()
            row = self._rows[chain.context.row]
            row.base, row.drafted = len(chain.context.tokens), chain.tokens
        able = [chain for chain in chains if not chain.is_over and chain.length > 0]
        trees: dict[int, Draft] = {}
        if able:
            nums = [self._num_wanted(chain.context, chain.end) for chain in able]
            current, readings, q = prefill_logits(reader, able, nums)
            yield from together([self._draft(able, current, trees), self._remember(readings, q)])
        return [trees.get(c.context.row) or c.draft(self._name) for c in chains]

    def num_uncached_tokens(self, context: Context) -> int:
        if self._reader.follow(context) < 1:
            return 0
        return max(0, self._reader.num_unread(context, len(context.tokens) - 1))

    def catch_up(self, contexts: Sequence[Context], most: int) -> DeviceRead[None]:
        readings = []
        for context in contexts:
            end = len(context.tokens) - 1
            end -= max(0, self._reader.num_unread(context, end) - most)
            readings.append(DraftInput(context, end, self._num_wanted(context, end)))
        yield from self._read(readings)

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        for context in contexts:
            row, agreed = self._rows[context.row], len(context.tokens)
            if row.drafted:
                agreed = row.base
                for ours, theirs in zip(row.drafted, context.tokens[row.base :], strict=False):
                    if ours != theirs:
                        break
                    agreed += 1
            self._reader.rollback(context, row.base, agreed)
            row.base, row.drafted = 0, []
        for context, scores in zip(contexts, judged, strict=False):
            if scores is not None:
                row = self._rows[context.row]
                row.scores.append(scores)
                row.unscored_from = scores.start + len(scores.alphas)

    def score(
        self, contexts: Sequence[Context], everything: bool
    ) -> DeviceRead[list[Scores | None]]:
        if everything:
            yield from self._catch_up(contexts, None)
        return [self._report(context) for context in contexts]

    def probe(self, contexts: Sequence[Context]) -> DeviceRead[list[Scores | None]]:
        skipped = yield from self._catch_up(contexts, self._reader.probe_tokens)
        found = [self._report(context) for context in contexts]
        return [
            replace(scores, weight=PROBE_WEIGHT) if scores and context.row in skipped else scores
            for context, scores in zip(contexts, found, strict=True)
        ]

    def _catch_up(self, contexts: Sequence[Context], most: int | None) -> DeviceRead[set[int]]:
        """Feed texts, or their last ``most`` tokens, for scores; return rows with skipped ones."""
        readings, skipped = [], set()
        for context in contexts:
            room, end = self._reader.follow(context), len(context.tokens) - 1
            missing = self._reader.num_unread(context, end)
            if most is not None and missing > most:
                skipped.add(context.row)
            elif room < 0:
                continue
            if missing > 0:
                num = min(self._num_wanted(context, end), most or MAX_TARGETS)
                readings.append(DraftInput(context, end, num, most=most))
        if readings:
            yield from self._read(readings)
        return skipped

    def _read(self, readings: Sequence[DraftInput]) -> DeviceRead[None]:
        logits, _ = self._reader.read(readings)
        yield from self._remember(readings, warped(logits, [reading.span for reading in readings]))

    def _num_wanted(self, context: Context, end: int) -> int:
        """Number of positions up to ``end`` to score, those whose p is stored; at least 1."""
        first = max(self._rows[context.row].unscored_from, self._reader.first)
        first = min(end, max(first, context.targets_start)) if context.targets else end
        unread = self._reader.num_unread(context, end)
        return max(1, min(unread, MAX_TARGETS, end + 1 - first))

    def _remember(self, readings: Sequence[DraftInput], q: Dists) -> DeviceRead[None]:
        asks, rows, place = [], [], 0
        for reading in readings:
            context, first = reading.context, reading.end + 1 - reading.num
            num = min(reading.num, len(context.tokens) - first)
            row = self._rows[context.row]
            skip = max(0, row.unscored_from - first)
            if num > skip:
                known = q.take(slice(place + skip, place + num))
                asks.append(score_known(context, first + skip, known))
                rows.append(row)
                row.unscored_from = first + num
            place += reading.num
        for row, scores in zip(rows, (yield from together(asks)), strict=True):
            if scores is not None:
                row.scores.append(scores)

    def _report(self, context: Context) -> Scores | None:
        row = self._rows[context.row]
        found, row.scores = joined(row.scores), []
        return found

    def _draft(
        self, chains: Sequence[Chain], current: DraftLogits, trees: dict[int, Draft]
    ) -> DeviceRead[None]:
        growing = [i for i, chain in enumerate(chains) if chain.tree is not None]
        begun = [
            i for i, c in enumerate(chains) if not c.tree and (c.is_mixed or c.should_continue())
        ]
        asks: list[DeviceRead[None]] = []
        if growing:
            own = [chains[i] for i in growing]
            asks.append(self._grow(own, current.take(growing).logits, trees))
        if begun:
            own = [chains[i] for i in begun]
            draw = draw_stepwise if any(chain.is_stepwise for chain in own) else draw_on_device
            asks.append(draw(self._reader, own, current.take(begun)))
        yield from together(asks)

    def _grow(
        self, chains: Sequence[Chain], logits: Tensor, trees: dict[int, Draft]
    ) -> DeviceRead[None]:
        """Add the tree of each row, with one forward per level of all trees."""
        growing = {
            chain.context.row: grow(chain.tree, chain.length, self._reader.base(chain.context), own)
            for chain, own in zip(chains, logits, strict=True)
            if chain.tree is not None
        }
        grown: dict[int, tuple[Tensor, Tensor]] = {}
        sent: dict[int, Any] = dict.fromkeys(growing)
        while sent:
            levels: dict[int, TreeLevel] = {}
            for row, answer in sent.items():
                try:
                    levels[row] = growing[row].send(answer)
                except StopIteration as done:
                    grown[row] = done.value
            read = self._reader.read_level([*levels], [*levels.values()]) if levels else []
            sent = dict(zip(levels, read, strict=True))
        arrays = iter((yield [tensor for row in growing for tensor in grown[row]]))
        for context in (chain.context for chain in chains):
            self._reader.rollback(context, len(context.tokens), len(context.tokens))
            tokens, parents = next(arrays).astype(np.int64), next(arrays).astype(np.int64)
            tokens, parents = pruned(tokens, parents, context.eos, context.num_allowed)
            trees[context.row] = Draft(tokens, None, [self._name] * len(tokens), parents)
