"""The session of every drafter that computes: catching up, chains, trees, scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from draftwise.drafters.chain import Chain
from draftwise.drafters.continuations import pruned
from draftwise.drafters.drawing import draw_blindly, look_on
from draftwise.drafters.lm_tree import Feed, grow
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask
from draftwise.drafters.reader import Heard, Reader, Reading, listen, text_span
from draftwise.drafters.scoring import joined, score_known
from draftwise.nn.sampling import Dists, warped
from draftwise.nn.transfer import Ask, together
from draftwise.types import Draft, Scores


@dataclass(slots=True)
class _Row:
    """told: the first position that was not scored yet. drafted: what was, behind ``base`` tokens.
    scores: what was not reported yet."""

    told: int = 0
    base: int = 0
    drafted: list[int] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)


GLANCE_WEIGHT = 0.25
"""Of alphas from so short a text: a drafter may live by what lies farther back."""


class NeuralSession:
    """Rows of one drafter that computes its q's, by what its ``Reader`` reads.

    Drafts of a fixed length are drawn on the device, token after token, and looked at once, when
    they are done; a rule, a mixer or a callback has each token looked at, for all rows together.
    """

    def __init__(self, name: str, reader: Reader) -> None:
        self._name, self._reader = name, reader
        self._rows: dict[int, _Row] = {}

    def open(self, context: Context, expected: int) -> None:
        """Nothing read yet."""
        self._reader.open(context.row, expected)
        self._rows[context.row] = _Row()

    def close(self, row: int) -> None:
        """Free what the row has."""
        self._reader.close(row)
        del self._rows[row]

    def crop(self, context: Context, length: int) -> None:
        """Keep what was read of the first tokens."""
        self._reader.crop(context.row, length)
        self._rows[context.row] = _Row(length)

    def copy(self, source: int, row: int, length: int) -> None:
        """Take over what was read of the other row's first tokens."""
        self._reader.copy(source, row, length)
        self._rows[row] = _Row(length)

    def propose(self, tasks: Sequence[DraftTask]) -> Ask[list[Draft]]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        chains = [Chain(task, self._reader.shows_hidden) for task in tasks]
        for chain in chains:
            chain.shorten(self._reader.follow(chain.context))
            chain.copy()
            row = self._rows[chain.context.row]
            row.base, row.drafted = len(chain.context.tokens), chain.tokens
        able = [chain for chain in chains if not chain.is_over and chain.length > 0]
        trees: dict[int, Draft] = {}
        if able:
            ends = [len(chain.context.tokens) + len(chain.tokens) for chain in able]
            nums = [self._num_wanted(c.context, end) for c, end in zip(able, ends, strict=True)]
            heard, readings, q = listen(self._reader, able, nums)
            backlog = self._remember(readings, q)
            yield from together([self._draft(able, heard, trees), backlog])
        return [trees.get(c.context.row) or c.draft(self._name) for c in chains]

    def behind(self, context: Context) -> int:
        """Tokens of the text that are not in the reader's memory."""
        if not self._reader.remembers or self._reader.follow(context) < 1:
            return 0
        return max(0, self._reader.num_unread(context, len(context.tokens) - 1))

    def read_on(self, contexts: Sequence[Context], most: int) -> Ask[None]:
        """Read the next tokens of each text; what is known of p there is compared."""
        readings = []
        for context in contexts:
            end = len(context.tokens) - 1
            end -= max(0, self._reader.num_unread(context, end) - most)
            readings.append(Reading(context, end, self._num_wanted(context, end)))
        logits, _ = self._reader.read(readings)
        yield from self._remember(
            readings, warped(logits, [text_span(reading) for reading in readings])
        )

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        """Cut back to where drafts and texts agree; note what verification showed of the drafts."""
        for context in contexts:
            row, agreed = self._rows[context.row], len(context.tokens)
            if row.drafted:
                agreed = row.base
                for ours, theirs in zip(row.drafted, context.tokens[row.base :], strict=False):
                    if ours != theirs:
                        break
                    agreed += 1
            self._reader.settle(context, row.base, agreed)
            row.base, row.drafted = 0, []
        for context, scores in zip(contexts, judged, strict=False):
            if scores is not None:
                row = self._rows[context.row]
                row.scores.append(scores)
                row.told = scores.start + len(scores.alphas)

    def score(self, contexts: Sequence[Context], everything: bool) -> Ask[list[Scores | None]]:
        """Backlog and drafted positions; with ``everything``, read what is missing first."""
        if everything:
            yield from self._catch_up(contexts, None)
        return [self._report(context) for context in contexts]

    def glance(self, contexts: Sequence[Context]) -> Ask[list[Scores | None]]:
        """The end of each text read by itself; what was left out is read when it drafts."""
        skipped = yield from self._catch_up(contexts, self._reader.glance)
        found = [self._report(context) for context in contexts]
        return [
            replace(scores, weight=GLANCE_WEIGHT) if scores and context.row in skipped else scores
            for context, scores in zip(contexts, found, strict=True)
        ]

    def _catch_up(self, contexts: Sequence[Context], most: int | None) -> Ask[set[int]]:
        """Read texts up to their last token, or the last ``most`` that are missing, for scores.

        Returns the rows of which something was left out.
        """
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
                readings.append(Reading(context, end, num, most=most))
        if readings:
            logits, _ = self._reader.read(readings)
            q = warped(logits, [text_span(reading) for reading in readings])
            yield from self._remember(readings, q)
        return skipped

    def _num_wanted(self, context: Context, end: int) -> int:
        """Positions up to ``end`` whose q can still be compared with a p, or 1 to draw there."""
        first = max(self._rows[context.row].told, self._reader.first(context))
        first = min(end, max(first, context.targets_start)) if context.targets else end
        unread = self._reader.num_unread(context, end)
        return max(1, min(unread, MAX_TARGETS, end + 1 - first))

    def _remember(self, readings: Sequence[Reading], q: Dists) -> Ask[None]:
        """Score the q's of positions that texts already have."""
        asks, rows, place = [], [], 0
        for reading in readings:
            context, first = reading.context, reading.end + 1 - reading.num
            num = min(reading.num, len(context.tokens) - first)
            row = self._rows[context.row]
            skip = max(0, row.told - first)
            if num > skip:
                known = q.take(slice(place + skip, place + num))
                asks.append(score_known(context, first + skip, known))
                rows.append(row)
                row.told = first + num
            place += reading.num
        for row, scores in zip(rows, (yield from together(asks)), strict=True):
            if scores is not None:
                row.scores.append(scores)

    def _report(self, context: Context) -> Scores | None:
        """What was not told before, and is not told again."""
        row = self._rows[context.row]
        found, row.scores = joined(row.scores), []
        return found

    def _draft(self, chains: Sequence[Chain], heard: Heard, trees: dict[int, Draft]) -> Ask[None]:
        """Grow trees, and draw chains, with as few looks as they allow."""
        lines = [i for i, chain in enumerate(chains) if chain.tree is None]
        growing = [i for i, chain in enumerate(chains) if chain.tree is not None]
        asks: list[Ask[None]] = []
        if growing:
            asks.append(self._grow([chains[i] for i in growing], heard.take(growing), trees))
        begun = [i for i in lines if chains[i].begins()]
        if begun:
            own = [chains[i] for i in begun]
            draw = look_on if any(chain.looks for chain in own) else draw_blindly
            asks.append(draw(self._reader, own, heard.take(begun)))
        yield from together(asks)

    def _grow(self, chains: Sequence[Chain], heard: Heard, trees: dict[int, Draft]) -> Ask[None]:
        """A tree for each row, made on the device and looked at once."""
        rows = [chain.context.row for chain in chains]
        grown = self._grown(chains, heard)
        seen = yield [tensor for tree in grown for tensor in tree]
        for index, (row, chain) in enumerate(zip(rows, chains, strict=True)):
            context = chain.context
            self._reader.settle(context, len(context.tokens), len(context.tokens))
            tokens, parents = (found.astype(np.int64) for found in seen[2 * index : 2 * index + 2])
            tokens, parents = pruned(tokens, parents, context.eos, context.num_allowed)
            trees[row] = Draft(tokens, None, [self._name] * len(tokens), parents)

    def _grown(self, chains: Sequence[Chain], heard: Heard) -> list[tuple[Tensor, Tensor]]:
        """Tokens and parents of all rows' trees, which grow level by level together."""
        growing = [
            grow(chain.tree, chain.length, self._reader.base(chain.context), heard.logits[index])
            for index, chain in enumerate(chains)
            if chain.tree is not None
        ]
        found: list[tuple[Tensor, Tensor] | None] = [None] * len(chains)
        sent: dict[int, Tensor | None] = dict.fromkeys(range(len(chains)))
        while sent:
            feeds: dict[int, Feed] = {}
            for index, logits in sent.items():
                try:
                    feeds[index] = (
                        next(growing[index]) if logits is None else growing[index].send(logits)
                    )
                except StopIteration as done:
                    found[index] = done.value
            rows = [chains[index].context.row for index in feeds]
            levels = self._reader.read_level(rows, list(feeds.values())) if feeds else []
            sent = dict(zip(feeds, levels, strict=True))
        return [tree for tree in found if tree is not None]
