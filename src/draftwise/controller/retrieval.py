"""Retrieval for running requests: propose the tokens after the longest match of a text's suffix.

Source: SuffixDecoding (Oliaro et al. 2024). Differs: hash chains in place of suffix trees; the
longest match wins, up to 32 tokens; the 8 newest places with that match vote on each token of the
continuation; the request's text takes precedence over its tenant's history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwise.controller import kernels
from draftwise.controller.compiled import warms_up
from draftwise.controller.kernels import Int32
from draftwise.types import Ints

SLICE = 2048  # prompt tokens that ``open`` indexes: less than half a millisecond
LONGEST_DRAFT = 128
"""The longest draft; also the tokens copied beyond those to index, and of the end of a text."""
FULL = 0.7  # share of a block beyond which ``work`` prepares a larger one
CLEARED = 32
"""Heads of a larger block that ``work`` clears per token of its budget: fresh memory is slow."""
PROMPT_TAIL = 8  # last prompt tokens that enter the history with an answer: the longest context

Numbers: TypeAlias = Sequence[int] | Ints
Tokens: TypeAlias = Sequence[int] | Int32


@dataclass(frozen=True)
class Proposals:
    """Proposals for each text, in the order of the slots passed.

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
class MemoryUsage:
    """Bytes of running texts, of the history, and of answers waiting to enter the history."""

    requests: int
    history: int
    waiting: int


class RetrievalIndex:
    """Longest-suffix-match retrieval over every running text and its tenant's shared history.

    The history is a ring of the latest ``history_tokens`` tokens of all tenants (rounded up to a
    power of two; 0: no history). An answer enters it after its request has closed, with the last 8
    tokens of the prompt, and is cut to half of the ring. Texts of other tenants are never proposed,
    and texts with ``shares=False`` never enter the history. Not thread-safe.

    A running text is one block of 28 bytes per token, with room for ``capacity_for`` tokens. Before
    a block is full, ``work`` indexes its text in a block of twice the size. Memory: 28 to 112 bytes
    per token, and 40 per token of the history.

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

    def __init__(self, max_draft: int = 16, history_tokens: int = 1 << 18) -> None:
        if not 1 <= max_draft <= LONGEST_DRAFT or not 0 <= history_tokens <= 1 << 30:
            raise ValueError(
                f"max_draft={max_draft} must be between 1 and {LONGEST_DRAFT},"
                f" history_tokens={history_tokens} between 0 and 2**30"
            )
        self.max_draft = max_draft
        self._ring_size = power_of_two(max(2, history_tokens)) if history_tokens else 0
        self._shares: dict[int, tuple[int, int]] = {}  # by slot: tenant, length of prompt
        self._waiting: deque[tuple[int, Int32]] = deque()
        self._num_waiting = self._num_remembered = 0
        self._blocks: dict[int, Int32] = {}
        self._uncopied: dict[int, Tokens] = {}
        self._ahead: dict[int, Int32] = {}  # the next block of at most one text
        self._num_cleared = 0
        self._ahead_table = np.zeros((1, kernels.NUM_COLUMNS), np.int64)
        self._table = np.zeros((16, kernels.NUM_COLUMNS), np.int64)
        size = max(2, self._ring_size)
        self._newest = size  # no place is 0, which means none
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
        self._views: dict[tuple[bool, int], Proposals] = {}

    def open(self, slot: int, tokens: Tokens, *, tenant: int = 0, shares: bool = True) -> None:
        """Begin a request with its text [n], of which the first 2,048 tokens are indexed.

        ``work`` copies and indexes the rest; until then the caller must not change ``tokens``.
        """
        num = len(tokens)
        begin = np.asarray(tokens[: SLICE + LONGEST_DRAFT], np.int32)
        end = np.asarray(tokens[max(num - LONGEST_DRAFT, 0) :], np.int32)
        if slot < 0 or slot in self._blocks:
            raise ValueError(f"slot {slot} is already open: close it first")
        if not 0 <= tenant < 2**31 - 1:
            raise ValueError(f"tenant={tenant} must be between 0 and 2**31 - 2")
        if num and (least := min(begin.min(), end.min())) < 0:
            raise ValueError(f"token ids must not be negative, but {least} is one of them")
        if slot >= len(self._table):
            table = np.zeros((power_of_two(slot + 1), kernels.NUM_COLUMNS), np.int64)
            table[: len(self._table)] = self._table
            self._table = table
        capacity = capacity_for(num)
        self._blocks[slot] = block = new_block(capacity)
        block[: len(begin)] = begin
        block[num - len(end) : num] = end
        self._table[slot] = block.ctypes.data, capacity, num, 0, tenant, 0, 0, 0
        if num > len(begin):
            self._uncopied[slot] = tokens
        if shares and self._ring_size:
            self._shares[slot] = tenant, num
        kernels.index_text(self._table, slot, min(SLICE, num))

    def _copy(self, max_tokens: int) -> None:
        """Copy tokens of new texts, as many as the indexing of ``max_tokens`` may read."""
        for slot, tokens in sorted(self._uncopied.items()):
            start = int(self._table[slot, kernels.INDEXED]) + LONGEST_DRAFT
            # an id that was not checked must neither stop the engine nor be negative
            part = np.asarray(tokens[start : start + max_tokens], np.int64) & 0x7FFFFFFF
            self._blocks[slot][start : start + len(part)] = part
            max_tokens -= len(part)
            if start + len(part) >= len(tokens):
                del self._uncopied[slot]

    def _grow(self, slot: int) -> None:
        """Move a full text, which ``work`` did not move in time, to a block of twice the size."""
        old, num = self._blocks[slot], int(self._table[slot, kernels.CAPACITY])
        new = new_block(2 * num)
        new[:num] = old[:num]
        new[2 * num : 6 * num] = old[num : 5 * num]
        heads = old[5 * num :].reshape(num // 2, 1, 4)
        new[10 * num :].reshape(num // 2, 2, 4)[:] = heads
        self._place(slot, new)

    def _place(self, slot: int, block: Int32) -> None:
        """Set the block of a slot, and drop one that ``work`` is preparing for the slot."""
        self._blocks[slot] = block
        self._table[slot, : kernels.LENGTH] = block.ctypes.data, len(block) // 7
        self._ahead.pop(slot, None)

    def _grow_ahead(self, max_tokens: int) -> int:
        """Index the fullest text in a block of twice the size; return the rest of max_tokens."""
        if not self._ahead:
            capacities = self._table[:, kernels.CAPACITY]
            shares = self._table[:, kernels.LENGTH] / np.maximum(capacities, 1)
            slot = int(shares.argmax())
            if shares[slot] < FULL:
                return 0
            block = self._ahead[slot] = np.empty(2 * len(self._blocks[slot]), np.int32)
            self._ahead_table[0, : kernels.TENANT] = block.ctypes.data, len(block) // 7, 0, 0
            self._num_cleared = 0
        ((slot, block),) = self._ahead.items()
        heads = block[5 * len(block) // 7 :]
        if (left := len(heads) - self._num_cleared) > 0:
            num = min(left, CLEARED * max_tokens)
            heads[self._num_cleared : self._num_cleared + num] = 0
            self._num_cleared += num
            return max_tokens - -(-num // CLEARED)
        start, length = int(self._ahead_table[0, kernels.INDEXED]), self.length(slot)
        end = min(start + max_tokens, length)
        block[start:end] = self._blocks[slot][start:end]
        kernels.index_text(self._ahead_table, 0, end)
        if end == length:
            self._place(slot, block)
        return max_tokens - (end - start)

    def close(self, slot: int) -> None:
        """Free a slot. ``work`` later adds its answer to the history if the request shares it."""
        num = self.length(slot)
        tenant, num_prompt = self._shares.pop(slot, (0, num))
        if num > num_prompt:
            text = self._blocks[slot][max(0, num_prompt - PROMPT_TAIL) : num]
            text = text[-(self._ring_size // 2) :].copy()
            self._waiting.append((tenant, text))
            self._num_waiting += len(text)
            while self._num_waiting - len(self._waiting[0][1]) >= self._ring_size:
                self._num_waiting -= len(self._waiting.popleft()[1])
                self._num_remembered = 0
        self._table[slot] = 0
        del self._blocks[slot]
        self._uncopied.pop(slot, None)
        self._ahead.pop(slot, None)

    def work(self, max_tokens: int) -> bool:
        """Index at most ``max_tokens`` pending tokens; return whether some are left.

        Running texts come first, in order of slots, then closed ones, the oldest first.
        """
        self._copy(max_tokens)
        left, is_behind = kernels.index_texts(self._table, max_tokens)
        while left > 0 and self._waiting:
            tenant, text = self._waiting[0]
            start, end = self._num_remembered, min(len(text), self._num_remembered + left)
            self._newest = kernels.remember(self._ring, self._newest, tenant, text, start, end)
            left -= end - start
            self._num_remembered = end
            if end == len(text):
                self._waiting.popleft()
                self._num_waiting -= end
                self._num_remembered = 0
        if left >= SLICE:
            while left > 0:
                left = self._grow_ahead(left)
        return is_behind or bool(self._waiting)

    def extend(self, slots: Numbers, tokens: Tokens, counts: Numbers) -> None:
        """Append a step's tokens: counts[i] tokens to slots[i]; tokens: [sum of counts].

        Texts with at most 64 pending tokens are indexed to their end, others by ``work``.
        """
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
            self._grow(int(self._slots[done]))

    def propose(self, slots: Numbers, limits: Numbers) -> Proposals:
        """Propose at most limits[i] tokens (and at most max_draft) after the text of slots[i]."""
        if len(slots) > len(self._slots):
            self._room(power_of_two(len(slots)))
        return self._propose(slots, self._drafts, self._undrafted, limits, False)

    def propose_after(
        self, slots: Numbers, drafts: Int32, num_drafted: Numbers, limits: Numbers
    ) -> Proposals:
        """Propose after the text plus the first num_drafted[i] tokens of drafts[i]; none if 0."""
        num, width = np.shape(drafts)
        if num > len(self._slots):
            self._room(power_of_two(num))
        if width > self._drafts.shape[1]:
            self._drafts = np.zeros((len(self._slots), width), np.int32)
        self._drafts[:num, :width] = drafts
        self._num_drafted[:num] = num_drafted
        return self._propose(slots, self._drafts, self._num_drafted, limits, True)

    def _propose(
        self, slots: Numbers, drafts: Int32, num_drafted: Ints, limits: Numbers, is_after: bool
    ) -> Proposals:
        num = len(slots)
        self._slots[:num] = slots
        self._counts[:num] = limits
        tokens, found, shared = self._answers[is_after]
        kernels.propose(
            self._table, self._slots, self._counts, num, drafts, num_drafted, is_after,
            self._ring, self._newest, tokens, found, shared,
        )  # fmt: skip
        if (is_after, num) not in self._views:  # slicing six arrays takes as long as a search
            num_tokens, match, hits, agree = found[:, :num]
            self._views[is_after, num] = Proposals(
                tokens[:num], num_tokens, match, hits, agree, shared[:num]
            )
        return self._views[is_after, num]

    def length(self, slot: int) -> int:
        if slot not in self._blocks:
            raise ValueError(f"slot {slot} is not open")
        return int(self._table[slot, kernels.LENGTH])

    def text(self, slot: int) -> Int32:
        """The whole text, once ``work`` has copied it."""
        num = self.length(slot)
        return self._blocks[slot][:num].copy()

    def memory(self) -> MemoryUsage:
        blocks = sum(block.nbytes for block in (*self._blocks.values(), *self._ahead.values()))
        waiting = sum(text.nbytes for _, text in self._waiting)
        return MemoryUsage(
            blocks + self._table.nbytes, sum(array.nbytes for array in self._ring), waiting
        )


def power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def new_block(capacity: int) -> Int32:
    """Tokens, links and heads of a text; only heads are read before they are written."""
    block = np.empty(7 * capacity, np.int32)
    block[5 * capacity :] = 0
    return block


def capacity_for(num_tokens: int) -> int:
    """Capacity of a new text, which can then grow by half before it has to move."""
    return power_of_two(num_tokens + num_tokens // 2 + 64)


@warms_up
def _exercise() -> None:
    index = RetrievalIndex(max_draft=2, history_tokens=16)
    index.open(0, [1, 2, 1])
    index.extend([0], [2], [1])
    index.propose([0], [2])
    index.propose_after([0], np.array([[1]], np.int32), [1], [2])
    index.close(0)
    index.work(16)
