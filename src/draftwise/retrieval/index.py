"""Retrieval from running texts and earlier answers: what followed the end of a text before.

Source: SuffixDecoding (Oliaro et al. 2024) and SAM decoding (Hu et al. 2024). Differs: hash chains
in place of suffix trees and automata; the longest match wins, up to 32 tokens; the newest places
with that match vote on each token of the continuation; the request's text takes precedence over
its tenant's history at equal length.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from draftwise.compiled import warms_up
from draftwise.retrieval import kernels
from draftwise.retrieval.kernels import (
    LONGEST_MATCH,
    WIDTH,
    Asked,
    Int32,
    MatchRule,
    Proposals,
    address_of,
    view,
)
from draftwise.types import Floats, Ints

Rows: TypeAlias = Sequence[Sequence[int]]
"""Continuations of one match; ties go to the first row."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest matching end of a text: ``length`` tokens, of which a source knows what followed.

    Each source has a subclass, which reads continuations only as deep as they are asked for.
    """

    length: int

    def rows(self, depth: int) -> Rows:
        """The continuations, at most ``depth`` tokens of each."""
        return []

    def proposal(self) -> int:
        """The most frequent next token; ties go to the first; -1 = none."""
        path = most_frequent_path(self.rows(1), 1)
        return path[0][0] if path else -1


NO_MATCH = Match(0)


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Continuations merged into a prefix tree, the likeliest nodes first.

    tokens: [N]. parents: [N], each below its node's index; -1 = the end of the text. probs: [N],
    the share of all rows that run through the node: cumulative along its path.
    """

    tokens: Ints
    parents: Ints
    probs: Floats


def most_frequent_path(rows: Rows, length: int) -> list[tuple[int, tuple[int, ...]]]:
    """The path that takes the most frequent continuation at each step, at most ``length`` tokens.

    Each token comes with the counts of all candidates, the token's first. Ties go to the earliest
    row; rows that have ended do not vote, and the path ends where all have.

    >>> most_frequent_path([[7, 8], [5, 6], [5, 9, 1]], 3)
    [(5, (2, 1)), (6, (1, 1))]
    """
    path: list[tuple[int, tuple[int, ...]]] = []
    for depth in range(length):
        if len(rows) == 1:
            path += [(token, (1,)) for token in rows[0][depth:length]]
            break
        groups = _split(rows, depth)
        if not groups:
            break
        counts = {token: len(group) for token, group in groups.items()}
        token = max(counts, key=counts.__getitem__)
        rows, own = groups[token], counts.pop(token)
        path.append((token, (own, *counts.values())))
    return path


def continuation_tree(
    rows: Rows, num_tokens: int, *, top_k: int | None = None, length: int | None = None
) -> TokenTree:
    """The ``num_tokens`` likeliest nodes of the rows' prefix tree, best first.

    A node's probability is the share of all rows that run through it, as in SuffixDecoding; ties go
    to the shallower node, then to the earlier row. top_k: maximum number of children of a node;
    length: maximum depth.

    >>> continuation_tree([[5, 6], [5, 9], [7]], num_tokens=3).probs.round(2).tolist()
    [0.67, 0.33, 0.33]
    """
    order = itertools.count()
    heap: list[tuple[int, int, int, int, int, Rows]] = []

    def open_children(parent: int, depth: int, members: Rows) -> None:
        if length is not None and depth >= length:
            return
        groups = sorted(_split(members, depth).items(), key=lambda item: -len(item[1]))
        for token, group in groups[:top_k]:
            heapq.heappush(heap, (-len(group), next(order), parent, depth, token, group))

    nodes: list[tuple[int, int, float]] = []
    open_children(-1, 0, rows)
    while heap and len(nodes) < num_tokens:
        negative, _, parent, depth, token, group = heapq.heappop(heap)
        nodes.append((token, parent, -negative / len(rows)))
        open_children(len(nodes) - 1, depth + 1, group)
    tokens, parents, probs = zip(*nodes, strict=True) if nodes else ((), (), ())
    edges = np.array([tokens, parents], dtype=np.int64)
    return TokenTree(edges[0], edges[1], np.array(probs, dtype=np.float64))


def _split(rows: Rows, depth: int) -> dict[int, list[Sequence[int]]]:
    """Rows by their token at ``depth``, in the order of first appearance."""
    groups: dict[int, list[Sequence[int]]] = {}
    for row in rows:
        if depth < len(row):
            groups.setdefault(row[depth], []).append(row)
    return groups


SLICE = 2048  # prompt tokens that ``open`` indexes: less than half a millisecond
LONGEST_DRAFT = 128
DEFAULT_RULE = MatchRule(num_places=8, num_votes=8, decisive=LONGEST_MATCH, least=1)
PROMPT_TAIL = LONGEST_MATCH  # last prompt tokens, the context of an answer's first ones

Numbers: TypeAlias = Sequence[int] | Ints
Tokens: TypeAlias = Sequence[int] | Int32


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes of running texts, of the history, and of answers waiting to enter the history."""

    requests: int
    history: int
    waiting: int


@dataclass(eq=False, slots=True)
class _Answer:
    """An answer that enters the history, in parts while its request runs."""

    tenant: int
    num_shared: int  # tokens of its text that are in the history, or precede the answer
    start: int = 0  # its latest region of the history: first place,
    place: int = 0  # next place to write, and
    end: int = 0  # end


class History:
    """The latest ``max_tokens`` tokens (rounded up to a power of two) of answers of all tenants.

    A ring of regions, each with a separator before it; an answer fills its region, then gets
    another one, which begins with a copy of its last tokens as context. Several indices may share a
    history. 0: no history. Memory: 40 bytes per token.
    """

    def __init__(self, max_tokens: int) -> None:
        self.size = power_of_two(max(2, max_tokens)) if max_tokens else 0
        size = max(2, self.size)
        self.newest = size  # no place is 0, which means none
        self._data = np.zeros(10 * size, np.int32)
        self.ring = kernels.Ring(address_of(self._data), size)
        self._waiting: deque[tuple[_Answer, Int32, int, int]] = deque()
        self._num_waiting = self._num_added = 0

    def add(self, answer: _Answer, text: Int32, num_context: int, room: int) -> None:
        """Let a part of an answer wait for ``work``.

        text: the part after ``num_context`` tokens of context, which are never proposed. room: size
        of a new region, at least. What exceeds the history is forgotten, the oldest first.
        """
        num_cut = max(0, len(text) - self.size // 2)
        if num_cut:
            answer.end = 0
        text, num_context = text[num_cut:].copy(), max(0, num_context - num_cut)
        self._waiting.append((answer, text, num_context, room))
        self._num_waiting += len(text)
        while self._num_waiting - len(self._waiting[0][1]) >= self.size:
            dropped, part, *_ = self._waiting.popleft()
            dropped.end = self._num_added = 0  # what follows in its text begins a region
            self._num_waiting -= len(part)

    def work(self, max_tokens: int) -> bool:
        """Index at most ``max_tokens`` waiting tokens, the oldest first; return whether some are
        left."""
        while max_tokens > 0 and self._waiting:
            answer, text, num_context, room = self._waiting[0]
            if self._num_added == 0:
                self._num_added = self._begin(answer, len(text), num_context, room)
            start, end = self._num_added, min(len(text), self._num_added + max_tokens)
            kernels.remember(
                self.ring, answer.place, answer.tenant, view(text), num_context,
                answer.place - answer.start, start, end,
            )  # fmt: skip
            answer.place += end - start
            max_tokens -= end - start
            self._num_added = end
            if end == len(text):
                self._waiting.popleft()
                self._num_waiting -= end
                self._num_added = 0
        return bool(self._waiting)

    def _begin(self, answer: _Answer, num: int, num_context: int, room: int) -> int:
        """Find room for the next ``num`` tokens of an answer; return how many of them, which are
        context, the history has already."""
        is_kept = answer.end > 0 and self.newest - answer.start < self.size // 2
        missing = answer.place + num - num_context - answer.end
        if is_kept and missing > 0 and answer.end == self.newest + 1:
            answer.end = self._reserve(answer.tenant, missing)
        elif not is_kept or missing > 0:
            num_context = 0
            answer.start = answer.place = self.newest + 2
            answer.end = self._reserve(answer.tenant, 1 + max(num, min(room, self.size // 2)))
        return num_context

    def _reserve(self, tenant: int, num: int) -> int:
        """Clear the next places for a tenant; return the end of them."""
        places = (self.newest + 1 + np.arange(num)) & (self.size - 1)
        self._data[places], self._data[self.size + places] = -1, tenant
        self.newest += num
        return self.newest + 1

    def row(self, place: int, depth: int) -> list[int]:
        """At most ``depth`` tokens from a place to the end of its text."""
        places = np.arange(place, min(place + depth, self.newest + 1)) & (self.size - 1)
        row: list[int] = self._data[places].tolist()
        return row[: row.index(-1)] if -1 in row else row

    @property
    def num_bytes(self) -> int:
        return self._data.nbytes

    @property
    def waiting_bytes(self) -> int:
        return sum(text.nbytes for _, text, *_ in self._waiting)


@dataclass(frozen=True, slots=True)
class _VotedMatch(Match):
    """A match whose most frequent next token has been elected."""

    token: int

    def proposal(self) -> int:
        return self.token


@dataclass(frozen=True, slots=True)
class HistoryMatch(_VotedMatch):
    history: History
    places: Sequence[int]

    def rows(self, depth: int) -> Rows:
        return [self.history.row(place, depth) for place in self.places]


@dataclass(frozen=True, slots=True)
class TextMatch(_VotedMatch):
    """A match in the text itself, which goes on with its draft, then both repeat."""

    text: Int32
    draft: list[int]
    places: Sequence[int]

    def rows(self, depth: int) -> Rows:
        return [self._row(place, depth) for place in self.places]

    def _row(self, place: int, depth: int) -> list[int]:
        row: list[int] = self.text[place : place + depth].tolist()
        if len(row) < depth:
            row += self.draft
            row *= -(-depth // len(row))
        return row[:depth]


class RetrievalIndex:
    """Longest-suffix-match retrieval over every running text and its tenant's shared history.

    An answer enters the history after its request has closed, or with ``share``, behind the last 32
    tokens of the prompt, and is cut to half of the history. Texts of other tenants are never
    proposed, and texts with ``shares=False`` never enter the history. Not thread-safe.

    Memory: 28 to 112 bytes per token of the running texts. A text moves to a block of twice the
    size when its block is full.

    slot: the caller's id of a running request, reusable after ``close``; memory grows with the
    largest slot. tenant: 0 to 2**31 - 2. Token ids: 0 to 2**31 - 1. Errors: ValueError, and nothing
    changes.

    >>> index = RetrievalIndex(max_draft=4)
    >>> index.open(0, [5, 6, 7, 8, 5])
    >>> index.extend([0], [6], [1])
    >>> found = index.propose([0], [4])
    >>> found.match[0].item(), found.tokens[0].tolist()
    (2, [7, 8, 5, 6])
    """

    def __init__(
        self, max_draft: int = 16, history: int | History = 1 << 18, rule: MatchRule = DEFAULT_RULE
    ) -> None:
        size = history if isinstance(history, int) else history.size
        if not 1 <= max_draft <= LONGEST_DRAFT or not 0 <= size <= 1 << 30:
            raise ValueError(
                f"max_draft={max_draft} must be between 1 and {LONGEST_DRAFT},"
                f" history={size} between 0 and 2**30"
            )
        self.max_draft = max_draft
        self.history = History(history) if isinstance(history, int) else history
        self._rule = rule
        self._answers: dict[int, _Answer] = {}  # of slots that share them
        self._free: dict[int, list[int]] = {}  # by capacity: starts of blocks
        self._num_used = 0
        self._store = np.zeros(WIDTH * 1024, np.int32)
        self._table = np.zeros((16, kernels.NUM_COLUMNS), np.int64)
        self._view()
        self._places = np.zeros(2 * rule.num_votes, np.int64)
        self._written = np.zeros(LONGEST_MATCH, np.int32), np.zeros(rule.num_votes, np.int64)
        ending, nexts = map(address_of, self._written)
        self._search_room = kernels.Room(ending, address_of(self._places), nexts)
        self._after = np.zeros(LONGEST_DRAFT, np.int32)  # the draft of a search
        self._after_address = address_of(self._after)
        self._room(8)

    def _view(self) -> None:
        self._texts = kernels.Texts(
            address_of(self._store), address_of(self._table), len(self._table)
        )

    def _room(self, num_rows: int, width: int = 0) -> None:
        """Allocate the arrays for arguments and results of calls."""
        self._numbers = np.zeros((4, num_rows), np.int64)
        self._drafts = np.zeros((num_rows, width), np.int32)
        self._results = [new_proposals(num_rows, self.max_draft) for _ in range(2)]
        self._views: dict[tuple[bool, int], Proposals] = {}

    def open(
        self, slot: int, tokens: Tokens, *, tenant: int = 0, shares: bool = True,
        num_prompt: int | None = None,
    ) -> None:  # fmt: skip
        """Begin a request with its text [n], of which ``work`` indexes all but 2,048 tokens.

        num_prompt: tokens of the whole text that are no answer; default: n. A match with an earlier
        answer counts them as one token, unless it covers 32 tokens or the whole text.
        """
        text = np.asarray(tokens, np.int32)
        num = len(text)
        if slot < 0 or (slot < len(self._table) and self._table[slot, kernels.CAPACITY]):
            raise ValueError(f"slot {slot} is already open: close it first")
        if not 0 <= tenant < 2**31 - 1:
            raise ValueError(f"tenant={tenant} must be between 0 and 2**31 - 2")
        _check(text)
        if slot >= len(self._table):
            table = np.zeros((power_of_two(slot + 1), kernels.NUM_COLUMNS), np.int64)
            table[: len(self._table)] = self._table
            self._table = table
        capacity = capacity_for(num)
        start = self._allocate(capacity)
        self._store[start : start + num] = text
        num_prompt = num if num_prompt is None else num_prompt
        self._table[slot] = start, capacity, num, 0, tenant, num_prompt
        self._view()
        if shares and self.history.size:
            self._answers[slot] = _Answer(tenant, num_prompt)
        kernels.index_text(self._texts, slot, min(SLICE, num))

    def _allocate(self, capacity: int) -> int:
        """The start of a block whose heads are cleared."""
        if free := self._free.get(capacity):
            start = free.pop()
        else:
            start, self._num_used = self._num_used, self._num_used + WIDTH * capacity
            if self._num_used > len(self._store):
                store = np.zeros(power_of_two(self._num_used), np.int32)
                store[:start] = self._store[:start]
                self._store = store
                self._view()
        self._store[start + 5 * capacity : start + WIDTH * capacity] = 0
        return start

    def _release(self, slot: int) -> None:
        start, capacity = self._table[slot, : kernels.LENGTH].tolist()
        self._free.setdefault(capacity, []).append(start)

    def _grow(self, slot: int) -> None:
        """Move a full text to a block of twice the size."""
        num = int(self._table[slot, kernels.CAPACITY])
        start = self._allocate(2 * num)
        old_start = int(self._table[slot, kernels.START])
        old = self._store[old_start : old_start + WIDTH * num]
        new = self._store[start : start + WIDTH * 2 * num]
        new[:num] = old[:num]
        new[2 * num : 6 * num] = old[num : 5 * num]
        heads = old[5 * num :].reshape(num // 2, 1, 4)
        new[10 * num :].reshape(num // 2, 2, 4)[:] = heads
        self._release(slot)
        self._table[slot, : kernels.LENGTH] = start, 2 * num

    def share(self, slot: int, room: int = 0) -> None:
        """Let an answer's new tokens wait to enter the history.

        room: tokens of the history that are reserved for it at a time, so that answers that grow
        together do not interrupt each other.
        """
        num, answer = self.length(slot), self._answers.get(slot)
        if answer is not None and num > answer.num_shared:
            begin, first = int(self._table[slot, kernels.START]), answer.num_shared
            num_context = min(first, PROMPT_TAIL)
            text = self._store[begin + first - num_context : begin + num]
            self.history.add(answer, text, num_context, room)
            answer.num_shared = num

    def close(self, slot: int) -> None:
        """Free a slot. ``work`` later adds its answer to the history if the request shares it."""
        self.share(slot)
        self._answers.pop(slot, None)
        self._release(slot)
        self._table[slot] = 0
        if not self._table[:, kernels.CAPACITY].any():
            self._free.clear()
            self._num_used = 0

    def work(self, max_tokens: int) -> bool:
        """Index at most ``max_tokens`` pending tokens; return whether some are left.

        Running texts come first, in order of slots, then closed ones, the oldest first.
        """
        left, is_behind = kernels.index_texts(self._texts, max_tokens)
        return self.history.work(left) or is_behind

    def extend(self, slots: Numbers, tokens: Tokens, counts: Numbers) -> None:
        """Append a step's tokens: counts[i] tokens to slots[i]; tokens: [sum of counts].

        Texts with at most 64 pending tokens are indexed to their end, others by ``work``.
        """
        text = np.array(tokens, np.int32)
        rows, nums = self._take(slots, counts)
        self._check_open(rows)
        if (nums < 0).any() or nums.sum() != len(text):
            raise ValueError("counts must not be negative and must add up to the number of tokens")
        _check(text)
        done = at = 0
        while True:
            done, at = kernels.extend(
                self._texts, view(rows), view(nums), len(rows), view(text), done, at
            )
            if done == len(rows):
                return
            self._grow(int(rows[done]))

    def propose(self, slots: Numbers, limits: Numbers) -> Proposals:
        """Propose at most limits[i] tokens (and at most max_draft) after the text of slots[i].

        The next call of the same method overwrites the arrays.
        """
        rows, most = self._take(slots, limits)
        return self._propose(rows, most, self._numbers[2], False)

    def propose_after(
        self, slots: Numbers, drafts: Int32, num_drafted: Numbers, limits: Numbers
    ) -> Proposals:
        """Propose after the text plus the first num_drafted[i] tokens of drafts[i]; none if 0."""
        num, width = np.shape(drafts)
        if width > self._drafts.shape[1]:
            self._room(power_of_two(num), width)
        rows, most = self._take(slots, limits)
        self._drafts[:num, :width] = drafts
        drafted = self._numbers[3]
        drafted[:num] = num_drafted
        if (drafted[:num] < 0).any() or (drafted[:num] > width).any():
            raise ValueError("num_drafted must be between 0 and the width of drafts")
        is_drafted = np.arange(width) < drafted[:num, None]
        _check(np.where(is_drafted, self._drafts[:num, :width], 0))
        return self._propose(rows, most, drafted, True)

    def _take(self, slots: Numbers, numbers: Numbers) -> tuple[Ints, Ints]:
        """Slots and their numbers as arrays of the index."""
        num = len(slots)
        if num > self._numbers.shape[1]:
            self._room(power_of_two(num), self._drafts.shape[1])
        self._numbers[0, :num] = slots
        self._numbers[1, :num] = numbers
        return self._numbers[0, :num], self._numbers[1, :num]

    def _check_open(self, slots: Ints) -> None:
        inside = (slots >= 0) & (slots < len(self._table))
        if not inside.all() or not self._table[slots, kernels.CAPACITY].all():
            raise ValueError("a slot is not open")

    def _propose(self, slots: Ints, limits: Ints, drafted: Ints, is_after: bool) -> Proposals:
        num, found = len(slots), self._results[is_after]
        self._check_open(slots)
        drafts, width = address_of(self._drafts), self._drafts.shape[1]
        asked = Asked(view(slots), view(limits), drafts, width, view(drafted), is_after)
        kernels.propose(
            self._texts, self.history.ring, self.history.newest, asked, num, self._rule,
            self._search_room, found, address_of(found.tokens),
        )  # fmt: skip
        if (is_after, num) not in self._views:  # slicing six arrays takes as long as a search
            self._views[is_after, num] = Proposals._make(array[:num] for array in found)
        return self._views[is_after, num]

    def read(self, slot: int, tokens: Tokens, num_scored: int) -> list[tuple[int, int]]:
        """Append tokens, and return what would have been proposed in place of each of the last
        ``num_scored`` ones (-1: nothing), and the length of the match."""
        text = np.array(tokens, np.int32)
        while self.length(slot) + len(text) > self._table[slot, kernels.CAPACITY]:
            self._grow(slot)
        facts = np.zeros((num_scored, 2), np.int64)
        kernels.scan(
            self._texts, self.history.ring, self.history.newest, slot, view(text), num_scored,
            self._rule, self._search_room, facts,
        )  # fmt: skip
        return [(token, match) for token, match in facts.tolist()]

    def find(self, slot: int, draft: Sequence[int] = ()) -> Match:
        """The longest match of a text with its draft, valid until the text grows."""
        num = len(draft)
        if num > len(self._after):
            self._after = np.zeros(power_of_two(num), np.int32)
            self._after_address = address_of(self._after)
        self._after[:num] = draft
        match, hits, shared, token = kernels.search_one(
            self._texts, self.history.ring, self.history.newest, slot, self._after_address, num,
            self._rule, self._search_room,
        )  # fmt: skip
        places = self._places[:hits].tolist()
        if shared:
            return HistoryMatch(match, token, self.history, places)
        start, num = self._table.item(slot, kernels.START), self._table.item(slot, kernels.LENGTH)
        return TextMatch(match, token, self._store[start : start + num], list(draft), places)

    def length(self, slot: int) -> int:
        if not (0 <= slot < len(self._table) and self._table[slot, kernels.CAPACITY]):
            raise ValueError(f"slot {slot} is not open")
        return int(self._table[slot, kernels.LENGTH])

    def text(self, slot: int) -> Int32:
        num, start = self.length(slot), int(self._table[slot, kernels.START])
        return self._store[start : start + num].copy()

    def memory(self) -> MemoryUsage:
        """Blocks of running texts and free ones between them, the history, and what waits."""
        used = 4 * self._num_used + self._table.nbytes
        return MemoryUsage(used, self.history.num_bytes, self.history.waiting_bytes)


def _check(tokens: Int32) -> None:
    if len(tokens) and (least := tokens.min(initial=0)) < 0:
        raise ValueError(f"token ids must not be negative, but {least} is one of them")


def new_proposals(num_rows: int, max_draft: int) -> Proposals:
    num_tokens, match, hits, agree = np.zeros((4, num_rows), np.int32)
    tokens, shared = np.zeros((num_rows, max_draft), np.int32), np.zeros(num_rows, np.bool_)
    return Proposals(tokens, num_tokens, match, hits, agree, shared)


def power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def capacity_for(num_tokens: int) -> int:
    """Capacity of a new text, which can then grow by half before it has to move."""
    return power_of_two(num_tokens + num_tokens // 2 + 64)


@warms_up
def _exercise() -> None:
    index = RetrievalIndex(max_draft=2, history=16)
    index.open(0, [1, 2, 1])
    index.extend([0], [2], [1])
    index.propose([0], [2])
    index.propose_after([0], np.array([[1]], np.int32), [1], [2])
    index.read(0, [1], 1)
    index.find(0)
    index.close(0)
    index.work(16)
