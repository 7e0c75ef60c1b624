"""Retrieval for all running requests: propose what followed the longest match of a text's end.

Source: SuffixDecoding (Oliaro et al. 2024). Differs: hash chains in place of suffix trees; the
longest match wins, up to 32 tokens; the 8 newest places with that match vote on each token of the
continuation; a request's own text takes precedence over its tenant's history.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwise.controller import kernels
from draftwise.controller.compiled import HAS_NUMBA, warms_up
from draftwise.controller.kernels import (
    CATCH_UP,
    LONGEST_CONTEXT,
    LONGEST_MATCH,
    MAX_HITS,
    NUM_ORDERS,
    PATIENCE,
)

SLICE = 2048
"""Prompt tokens that ``open`` indexes: less than half a millisecond."""
PROMPT_TAIL = 8
"""Last prompt tokens that enter the history with an answer: the longest context."""

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Proposals:
    """Proposals for each text, in the order of the given slots.

    The next call of the same method overwrites the arrays.

    tokens: [rows, max_draft], valid up to num_tokens. match: length of the matched suffix, 0 (no
    proposal) to 32 (32 or more). hits: places with such a match that voted, 1 to 8. agree: votes
    for the first proposed token. shared: whether the places are in the history. match, hits and
    agree do not depend on the limit.
    """

    tokens: Int32
    num_tokens: Int32
    match: Int32
    hits: Int32
    agree: Int32
    shared: NDArray[np.bool_]


@dataclass(frozen=True)
class Memory:
    """Bytes of running texts, of the history, and of answers waiting to enter the history."""

    requests: int
    history: int
    waiting: int


class RetrievalIndex(ABC):
    """Longest-suffix-match retrieval over every running text and its tenant's shared history.

    The history is a ring of the latest ``history_tokens`` tokens of all tenants (rounded up to a
    power of two; 0: no history). An answer enters it after its request has closed, with the last 8
    tokens of the prompt, and is cut to half of the ring. Texts of other tenants are never proposed,
    and texts with ``shares=False`` never enter the history. Not thread-safe.

    slot: the caller's number of a running request, reusable after ``close``; memory grows with the
    largest slot. tenant: 0 to 2**31 - 2. Token ids: 0 to 2**31 - 1. Errors: ValueError, and nothing
    is changed.

    >>> index = make_index(max_draft=4)
    >>> index.open(0, [5, 6, 7, 8, 5])
    >>> index.extend([0], [6], [1])
    >>> found = index.propose([0], [4])
    >>> found.match[0].item(), found.tokens[0].tolist()
    (2, [7, 8, 5, 6])
    """

    def __init__(self, max_draft: int = 16, history_tokens: int = 1 << 18) -> None:
        if max_draft < 1 or not 0 <= history_tokens <= 1 << 30:
            raise ValueError(
                f"max_draft={max_draft} must be at least 1,"
                f" history_tokens={history_tokens} between 0 and 2**30"
            )
        self.max_draft = max_draft
        self._ring_size = power_of_two(max(2, history_tokens)) if history_tokens else 0
        self._shares: dict[int, tuple[int, int]] = {}  # by slot: tenant, length of prompt
        self._waiting: deque[tuple[int, Int32]] = deque()
        self._num_waiting = self._num_remembered = 0

    def open(
        self, slot: int, tokens: Sequence[int] | Int32, *, tenant: int = 0, shares: bool = True
    ) -> None:
        """Copy a new request's text [n] and index its first 2,048 tokens (``work``: the rest)."""
        text = np.asarray(tokens, dtype=np.int32)
        if slot < 0 or self._is_open(slot):
            raise ValueError(f"slot {slot} is already open: close it first")
        if not 0 <= tenant < 2**31 - 1:
            raise ValueError(f"tenant={tenant} must be between 0 and 2**31 - 2")
        if len(text) and text.min() < 0:
            raise ValueError(f"token ids must not be negative, but {text.min()} is one of them")
        self._open(slot, text, tenant)
        if shares and self._ring_size:
            self._shares[slot] = tenant, len(text)
        self._index(slot, SLICE)

    def close(self, slot: int) -> None:
        """Free a slot. ``work`` later adds its answer to the history, if the request shares it."""
        if not self._is_open(slot):
            raise ValueError(f"slot {slot} is not open")
        tenant, num_prompt = self._shares.pop(slot, (0, self.length(slot)))
        if self.length(slot) > num_prompt:
            text = self.text(slot)[max(0, num_prompt - PROMPT_TAIL) :][-(self._ring_size // 2) :]
            self._waiting.append((tenant, text))
            self._num_waiting += len(text)
            while self._num_waiting - len(self._waiting[0][1]) >= self._ring_size:
                self._num_waiting -= len(self._waiting.popleft()[1])
                self._num_remembered = 0
        self._close(slot)

    def work(self, max_tokens: int) -> bool:
        """Index at most ``max_tokens`` pending tokens; return whether some are left.

        Running texts come first, in order of slots, then closed ones, the oldest first.
        """
        left, is_behind = self._index_texts(max_tokens)
        while left > 0 and self._waiting:
            tenant, text = self._waiting[0]
            end = min(len(text), self._num_remembered + left)
            self._remember(tenant, text, self._num_remembered, end)
            left -= end - self._num_remembered
            self._num_remembered = end
            if end == len(text):
                self._waiting.popleft()
                self._num_waiting -= end
                self._num_remembered = 0
        return is_behind or bool(self._waiting)

    @abstractmethod
    def extend(
        self,
        slots: Sequence[int] | Int64,
        tokens: Sequence[int] | Int32,
        counts: Sequence[int] | Int64,
    ) -> None:
        """Append a step's tokens: counts[i] tokens to slots[i]; tokens: [sum of counts].

        Texts with at most 64 pending tokens are indexed to their end, others by ``work``.
        """

    @abstractmethod
    def propose(self, slots: Sequence[int] | Int64, limits: Sequence[int] | Int64) -> Proposals:
        """Propose at most limits[i] tokens (and at most max_draft) after the text of slots[i]."""

    @abstractmethod
    def propose_after(
        self,
        slots: Sequence[int] | Int64,
        drafts: Int32,
        num_drafted: Sequence[int] | Int64,
        limits: Sequence[int] | Int64,
    ) -> Proposals:
        """The same after the text and the first num_drafted[i] tokens of drafts[i]; none if 0."""

    @abstractmethod
    def length(self, slot: int) -> int:
        """The number of tokens of a text."""

    @abstractmethod
    def text(self, slot: int) -> Int32:
        """A copy of a text."""

    @abstractmethod
    def memory(self) -> Memory:
        """Current memory."""

    @abstractmethod
    def _is_open(self, slot: int) -> bool: ...

    @abstractmethod
    def _open(self, slot: int, text: Int32, tenant: int) -> None: ...

    @abstractmethod
    def _close(self, slot: int) -> None: ...

    @abstractmethod
    def _index(self, slot: int, max_tokens: int) -> None: ...

    @abstractmethod
    def _index_texts(self, max_tokens: int) -> tuple[int, bool]:
        """Index running texts; return the rest of max_tokens, and whether tokens are pending."""

    @abstractmethod
    def _remember(self, tenant: int, text: Int32, start: int, end: int) -> None:
        """Add text[start:end] to the history."""


def make_index(
    max_draft: int = 16, history_tokens: int = 1 << 18, *, compiled: bool | None = None
) -> RetrievalIndex:
    """The compiled index where numba is installed, otherwise the plain one."""
    if compiled if compiled is not None else HAS_NUMBA:
        return CompiledIndex(max_draft, history_tokens)
    return PlainIndex(max_draft, history_tokens)


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least ``least``."""
    return 1 << max(0, least - 1).bit_length()


def capacity_for(num_tokens: int) -> int:
    """Capacity of a new text: it can grow by half before it has to move."""
    return power_of_two(num_tokens + num_tokens // 2 + 64)


class CompiledIndex(RetrievalIndex):
    """The index in flat arrays: one block of 28 bytes per token for each running text.

    A block has room for ``capacity_for`` tokens and doubles when it is full; each bucket then
    splits in two. Memory: 28 to 112 bytes per token, and 40 per token of the history.
    """

    def __init__(self, max_draft: int = 16, history_tokens: int = 1 << 18) -> None:
        super().__init__(max_draft, history_tokens)
        if not HAS_NUMBA:
            raise ModuleNotFoundError("CompiledIndex needs numba: pip install numba")
        self._blocks: dict[int, Int32] = {}
        self._table = np.zeros((16, kernels.NUM_COLUMNS), np.int64)
        size = max(2, self._ring_size)
        self._newest = size  # so that no place is 0, which means none
        self._ring = kernels.Ring(*(np.zeros(size * width, np.int32) for width in (1, 1, 4, 4)))
        self._room(64)
        self._tokens = np.zeros(1024, np.int32)

    def _room(self, num_rows: int) -> None:
        """Allocate the arrays for arguments and results of calls."""
        self._slots, self._counts, self._num_drafted, self._undrafted = np.zeros(
            (4, num_rows), np.int64
        )
        self._drafts = np.zeros((num_rows, 0), np.int32)
        self._answers = [
            (
                np.zeros((num_rows, self.max_draft), np.int32),
                np.zeros((4, num_rows), np.int32),
                np.zeros(num_rows, np.bool_),
            )
            for _ in range(2)
        ]

    def _is_open(self, slot: int) -> bool:
        return slot in self._blocks

    def _open(self, slot: int, text: Int32, tenant: int) -> None:
        if slot >= len(self._table):
            table = np.zeros((power_of_two(slot + 1), kernels.NUM_COLUMNS), np.int64)
            table[: len(self._table)] = self._table
            self._table = table
        self._place(slot, capacity_for(len(text)))[: len(text)] = text
        self._table[slot, kernels.LENGTH :] = len(text), 0, tenant, 0, 0, 0

    def _place(self, slot: int, capacity: int) -> Int32:
        """Allocate a slot's block."""
        block = np.zeros(7 * capacity, np.int32)
        self._blocks[slot] = block
        self._table[slot, : kernels.LENGTH] = block.ctypes.data, capacity
        return block

    def _grow(self, slot: int) -> None:
        """Move a text to a block of twice the size."""
        old, num = self._blocks[slot], int(self._table[slot, kernels.CAPACITY])
        new = self._place(slot, 2 * num)
        new[:num] = old[:num]
        new[2 * num : 6 * num] = old[num : 5 * num]
        heads = old[5 * num :].reshape(num // 2, 1, 4)
        new[10 * num :].reshape(num // 2, 2, 4)[:] = heads

    def _close(self, slot: int) -> None:
        self._table[slot] = 0
        del self._blocks[slot]

    def length(self, slot: int) -> int:
        if slot not in self._blocks:
            raise ValueError(f"slot {slot} is not open")
        return int(self._table[slot, kernels.LENGTH])

    def text(self, slot: int) -> Int32:
        num = self.length(slot)
        return self._blocks[slot][:num].copy()

    def memory(self) -> Memory:
        blocks = sum(block.nbytes for block in self._blocks.values())
        waiting = sum(text.nbytes for _, text in self._waiting)
        return Memory(
            blocks + self._table.nbytes, sum(array.nbytes for array in self._ring), waiting
        )

    def _index(self, slot: int, max_tokens: int) -> None:
        until = min(max_tokens, int(self._table[slot, kernels.LENGTH]))
        kernels.index_text(self._table, slot, until)

    def _index_texts(self, max_tokens: int) -> tuple[int, bool]:
        return kernels.index_texts(self._table, max_tokens)

    def _remember(self, tenant: int, text: Int32, start: int, end: int) -> None:
        self._newest = kernels.remember(self._ring, self._newest, tenant, text, start, end)

    def extend(
        self,
        slots: Sequence[int] | Int64,
        tokens: Sequence[int] | Int32,
        counts: Sequence[int] | Int64,
    ) -> None:
        num, num_tokens = len(slots), len(tokens)
        if num > len(self._slots):
            self._room(power_of_two(num))
        if num_tokens > len(self._tokens):
            self._tokens = np.zeros(power_of_two(num_tokens), np.int32)
        self._slots[:num] = slots
        self._counts[:num] = counts
        self._tokens[:num_tokens] = tokens
        done = 0
        while True:
            done = kernels.extend(
                self._table, self._slots, self._counts, num, self._tokens, num_tokens, done
            )
            if done == num:
                return
            if done < 0:
                raise ValueError(_REFUSALS[done])
            self._grow(int(self._slots[done]))

    def propose(self, slots: Sequence[int] | Int64, limits: Sequence[int] | Int64) -> Proposals:
        if len(slots) > len(self._slots):
            self._room(power_of_two(len(slots)))
        return self._propose(slots, self._drafts, self._undrafted, limits, False)

    def propose_after(
        self,
        slots: Sequence[int] | Int64,
        drafts: Int32,
        num_drafted: Sequence[int] | Int64,
        limits: Sequence[int] | Int64,
    ) -> Proposals:
        num, width = np.shape(drafts)
        if num > len(self._slots):
            self._room(power_of_two(num))
        if width > self._drafts.shape[1]:
            self._drafts = np.zeros((len(self._slots), width), np.int32)
        self._drafts[:num, :width] = drafts
        self._num_drafted[:num] = num_drafted
        return self._propose(slots, self._drafts, self._num_drafted, limits, True)

    def _propose(
        self,
        slots: Sequence[int] | Int64,
        drafts: Int32,
        num_drafted: Int64,
        limits: Sequence[int] | Int64,
        is_after: bool,
    ) -> Proposals:
        num = len(slots)
        self._slots[:num] = slots
        self._counts[:num] = limits
        tokens, found, shared = self._answers[is_after]
        code = kernels.propose(
            self._table, self._slots, self._counts, num, drafts, num_drafted, is_after,
            self._ring, self._newest, tokens, found, shared,
        )  # fmt: skip
        if code < 0:
            raise ValueError(_REFUSALS[code])
        num_tokens, match, hits, agree = found[:, :num]
        return Proposals(tokens[:num], num_tokens, match, hits, agree, shared[:num])


_REFUSALS = {
    kernels.NOT_OPEN: "a slot is not open",
    kernels.BAD_COUNTS: "counts must not be negative and must add up to the number of tokens",
    kernels.BAD_TOKEN: "token ids must not be negative",
    kernels.BAD_NUM_DRAFTED: "num_drafted must be between 0 and the width of drafts",
}


@dataclass
class _Chains:
    """The newest places after each context, oldest first, by bucket of the context's hash."""

    num_buckets: int
    buckets: list[dict[int, list[int]]] = field(
        default_factory=lambda: [{} for _ in range(NUM_ORDERS)]
    )

    def insert(self, place: int, ending: Sequence[int], seed: int) -> None:
        """Index a place by the contexts that end just before it."""
        for buckets, bucket in zip(self.buckets, self._hashes(ending, seed), strict=False):
            places = buckets.setdefault(bucket, [])
            places.append(place)
            if len(places) > PATIENCE:
                del places[0]

    def walk(self, ending: Sequence[int], seed: int) -> Iterator[tuple[int, list[int]]]:
        """Orders, longest first, each with the places in its context's bucket, newest first."""
        hashes = list(self._hashes(ending, seed))
        for level in reversed(range(len(hashes))):
            yield 1 << level, self.buckets[level].get(hashes[level], [])[::-1]

    def double(self) -> None:
        """Split each bucket in two with the same places."""
        self.num_buckets *= 2
        self.buckets = [
            {2 * b + half: list(old[b]) for b in old for half in (0, 1)} for old in self.buckets
        ]

    def _hashes(self, ending: Sequence[int], seed: int) -> Iterator[int]:
        """Buckets of the contexts of 1, 2, 4, 8 tokens; ending: latest token first."""
        key, order = seed, 1
        for num, token in enumerate(ending[:LONGEST_CONTEXT], start=1):
            key = (key * kernels.FACTOR + token) % 2**64
            if num == order:
                yield (key * kernels.SPREAD) % 2**64 * self.num_buckets >> 64
                order *= 2


@dataclass
class _Text:
    """A running text; indexed: the first place that is not in the chains yet."""

    tokens: list[int]
    tenant: int
    chains: _Chains
    indexed: int = 0

    def index(self, until: int) -> None:
        for place in range(self.indexed, until):
            self.chains.insert(place, self.tokens[max(0, place - LONGEST_CONTEXT) : place][::-1], 0)
        self.indexed = until


class PlainIndex(RetrievalIndex):
    """The reference in plain Python, which also runs where numba is missing."""

    def __init__(self, max_draft: int = 16, history_tokens: int = 1 << 18) -> None:
        super().__init__(max_draft, history_tokens)
        self._texts: dict[int, _Text] = {}
        self._history: list[int] = []  # at least the latest tokens; -1 before each text
        self._owners: list[int] = []
        self._num_dropped = 0  # tokens dropped from the front of the list
        self._chains = _Chains(max(2, self._ring_size))

    def _is_open(self, slot: int) -> bool:
        return slot in self._texts

    def _open(self, slot: int, text: Int32, tenant: int) -> None:
        self._texts[slot] = _Text(text.tolist(), tenant, _Chains(capacity_for(len(text)) // 2))

    def _close(self, slot: int) -> None:
        del self._texts[slot]

    def length(self, slot: int) -> int:
        return len(self._of(slot).tokens)

    def text(self, slot: int) -> Int32:
        return np.array(self._of(slot).tokens, np.int32)

    def _of(self, slot: int) -> _Text:
        if slot not in self._texts:
            raise ValueError(_REFUSALS[kernels.NOT_OPEN])
        return self._texts[slot]

    def memory(self) -> Memory:
        """An estimate: 500 bytes per token."""
        requests = sum(len(text.tokens) for text in self._texts.values())
        return Memory(500 * requests, 500 * len(self._history), 4 * self._num_waiting)

    def _index(self, slot: int, max_tokens: int) -> None:
        text = self._texts[slot]
        text.index(min(len(text.tokens), text.indexed + max_tokens))

    def _index_texts(self, max_tokens: int) -> tuple[int, bool]:
        for slot in sorted(self._texts):
            text = self._texts[slot]
            before = text.indexed
            self._index(slot, max_tokens)
            max_tokens -= text.indexed - before
            if text.indexed < len(text.tokens):
                return max_tokens, True
        return max_tokens, False

    def _remember(self, tenant: int, text: Int32, start: int, end: int) -> None:
        tokens = text.tolist()
        for at in range(start, end):
            if at == 0:
                self._history.append(-1)
                self._owners.append(tenant)
            self._history.append(tokens[at])
            self._owners.append(tenant)
            place = self._num_dropped + len(self._history) - 1
            self._chains.insert(place, tokens[max(0, at - LONGEST_CONTEXT) : at][::-1], tenant + 1)
        if len(self._history) > 2 * self._ring_size:
            self._num_dropped += len(self._history) - self._ring_size
            del self._history[: -self._ring_size], self._owners[: -self._ring_size]

    def extend(
        self,
        slots: Sequence[int] | Int64,
        tokens: Sequence[int] | Int32,
        counts: Sequence[int] | Int64,
    ) -> None:
        flat, nums = [int(token) for token in tokens], [int(count) for count in counts]
        texts = [self._of(int(slot)) for slot in slots]
        if any(num < 0 for num in nums) or sum(nums) != len(flat):
            raise ValueError(_REFUSALS[kernels.BAD_COUNTS])
        if any(token < 0 for token in flat):
            raise ValueError(_REFUSALS[kernels.BAD_TOKEN])
        at = 0
        for text, num in zip(texts, nums, strict=True):
            text.tokens += flat[at : at + num]
            at += num
            while len(text.tokens) > 2 * text.chains.num_buckets:
                text.chains.double()
            if len(text.tokens) - text.indexed <= CATCH_UP:
                text.index(len(text.tokens))

    def propose(self, slots: Sequence[int] | Int64, limits: Sequence[int] | Int64) -> Proposals:
        return self._propose(slots, [[]] * len(slots), limits)

    def propose_after(
        self,
        slots: Sequence[int] | Int64,
        drafts: Int32,
        num_drafted: Sequence[int] | Int64,
        limits: Sequence[int] | Int64,
    ) -> Proposals:
        width = np.shape(drafts)[1]
        if any(not 0 <= num <= width for num in num_drafted):
            raise ValueError(_REFUSALS[kernels.BAD_NUM_DRAFTED])
        kept = [[int(t) for t in row[:num]] for row, num in zip(drafts, num_drafted, strict=True)]
        if any(token < 0 for row in kept for token in row):
            raise ValueError(_REFUSALS[kernels.BAD_TOKEN])
        return self._propose(slots, [row or None for row in kept], limits)

    def _propose(
        self,
        slots: Sequence[int] | Int64,
        drafts: Sequence[list[int] | None],
        limits: Sequence[int] | Int64,
    ) -> Proposals:
        texts = [self._of(int(slot)) for slot in slots]
        num = len(texts)
        num_tokens, match, hits, agree = np.zeros((4, num), np.int32)
        tokens, shared = np.zeros((num, self.max_draft), np.int32), np.zeros(num, np.bool_)
        for row, (text, draft, limit) in enumerate(zip(texts, drafts, limits, strict=True)):
            if draft is None:
                continue
            match[row], places, shared[row] = self._match(text, draft)
            read = self._read_shared if shared[row] else partial(read_own, text.tokens + draft)
            proposal, agree[row] = vote(places, read, self.max_draft)
            hits[row], num_tokens[row] = len(places), min(len(proposal), max(0, limit))
            tokens[row, : len(proposal)] = proposal
        return Proposals(tokens, num_tokens, match, hits, agree, shared)

    def _match(self, text: _Text, draft: list[int]) -> tuple[int, list[int], bool]:
        """The longest match, its places (newest first), and whether they are in the history."""
        ending = (text.tokens[-LONGEST_MATCH:] + draft)[: -LONGEST_MATCH - 1 : -1]

        def own(place: int) -> list[int]:
            return text.tokens[max(0, place - LONGEST_MATCH) : place]

        def shared(place: int) -> list[int]:
            at = place - self._num_dropped
            oldest = max(0, len(self._history) - self._ring_size)  # that is kept
            if at <= oldest or self._owners[at] != text.tenant:
                return []
            return self._history[max(oldest, at - LONGEST_MATCH) : at]

        match, places = longest(ending, text.chains.walk(ending, 0), own, above=0)
        walk = self._chains.walk(ending, text.tenant + 1)
        longer, elsewhere = longest(ending, walk, shared, above=match)
        return (longer, elsewhere, True) if elsewhere else (match, places, False)

    def _read_shared(self, place: int, _: list[int]) -> int:
        """The token at a place of the history; -1 where its text ends."""
        at = place - self._num_dropped
        return self._history[at] if at < len(self._history) else -1


def read_own(text: list[int], place: int, proposal: list[int]) -> int:
    """The token at a place of a text that continues with its proposal."""
    return text[place] if place < len(text) else proposal[place - len(text)]


def longest(
    ending: Sequence[int],
    chains: Iterable[tuple[int, list[int]]],
    before: Callable[[int], list[int]],
    above: int,
) -> tuple[int, list[int]]:
    """The longest match of more than ``above`` tokens, and its places, newest first.

    ending: latest token first. chains: candidates by order. before: the tokens before a place.
    """
    for order, places in chains:
        if above >= (LONGEST_MATCH if order == LONGEST_CONTEXT else 2 * order - 1):
            break  # the previous order would have found a longer match
        lengths = ((in_common(before(place), ending), place) for place in places)
        hits = list(islice(((n, place) for n, place in lengths if n >= order), MAX_HITS))
        match = max((n for n, _ in hits), default=0)
        if match > above:
            return match, [place for n, place in hits if n == match]
    return 0, []


def in_common(before: list[int], ending: Sequence[int]) -> int:
    """The number of last tokens of ``before`` that agree with an ending (latest token first)."""
    num = 0
    for token, other in zip(reversed(before), ending, strict=False):
        if token != other:
            break
        num += 1
    return num


def vote(
    places: list[int], read: Callable[[int, list[int]], int], limit: int
) -> tuple[list[int], int]:
    """The continuation with most votes (ties: newest place), and the votes for its first token."""
    proposal: list[int] = []
    agree = 0
    while len(proposal) < limit:
        nexts = [(place, read(place + len(proposal), proposal)) for place in places]
        counts = Counter(token for _, token in nexts if token >= 0)
        if not counts:
            break
        chosen, votes = counts.most_common(1)[0]
        agree = agree or votes
        proposal.append(chosen)
        places = [place for place, token in nexts if token == chosen]
    return proposal, agree


@warms_up
def _exercise() -> None:
    """Call every compiled function once."""
    index = CompiledIndex(max_draft=2, history_tokens=16)
    index.open(0, [1, 2, 1])
    index.extend([0], [2], [1])
    index.propose([0], [2])
    index.propose_after([0], np.array([[1]], np.int32), [1], [2])
    index.close(0)
    index.work(16)
