"""Functions of the retrieval index: hash chains over texts in flat int32 arrays.

A text has ``tokens`` [size], ``links`` [4 * size] and ``heads`` [4 * buckets]. Sizes are powers of
two; a running text has one bucket for every two tokens, the history one for every token. A place is
the position of a token that may be proposed. For each order (1, 2, 4, 8) ``heads`` holds the newest
place after a context of that many tokens, by bucket of the context's hash, and ``links`` leads from
a place to the next older place of its bucket. The history is a ring; its places count up forever
and are stored modulo 2**32, so a place's age shows whether it was overwritten. Memory is prefetched
for later rows while a row is processed, since cache misses would dominate the time.
Without numba the same functions run as plain Python.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.compiled import HAS_NUMBA, compiled
from draftwise.types import Ints

if HAS_NUMBA:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def _pointer(typing_context: Any, address: Any) -> Any:
        def cast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(types.int32)(types.int64), cast

    @intrinsic  # type: ignore[untyped-decorator]
    def _fetch(typing_context: Any, pointer: Any, index: Any) -> Any:
        """Prefetch pointer[index] into the processor's cache."""

        def fetch(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            integer, any_pointer = ir.IntType(32), ir.PointerType()
            kind = ir.FunctionType(ir.VoidType(), [any_pointer] + [integer] * 3)
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [any_pointer], kind)
            for_reading, stays, data = (integer(number) for number in (0, 3, 1))
            where = builder.bitcast(builder.gep(args[0], [args[1]]), any_pointer)
            builder.call(prefetch, [where, for_reading, stays, data])
            return context.get_dummy_value()

        return types.void(types.CPointer(types.int32), types.int64), fetch

    _hash: Any = np.uint64
else:
    _MEMORY = ctypes.c_int32 * 2**40  # longer than any text

    def _pointer(address: int) -> Any:
        return _MEMORY.from_address(int(address))

    def _fetch(pointer: Any, index: int) -> None:
        pass

    _hash = int


Int32: TypeAlias = NDArray[np.int32]

NUM_ORDERS = 4  # contexts of 1, 2, 4, 8 tokens
LONGEST_CONTEXT = 8
LONGEST_MATCH = 32
MAX_HITS = 8
PATIENCE = 32  # places visited in a bucket, which other contexts may share
CATCH_UP = 64  # ``extend`` indexes a text with at most this many pending tokens

ADDRESS, CAPACITY, LENGTH, INDEXED, TENANT = range(5)  # columns of the table of running texts
NUM_COLUMNS = 8  # a row fills a cache line

_FACTOR, _SPREAD, _WORD = map(_hash, (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 2**64 - 1))
_WRAP = 0xFFFFFFFF
# array elements as arguments, since numba compiles a function once more for each literal
_NUMBERS: Any = np.array([0, -1, NUM_ORDERS])
_ZERO, _ALL, _NUM_ORDERS = _NUMBERS


class Ring(NamedTuple):
    tokens: Int32
    owners: Int32  # the tenant of each token
    links: Int32
    heads: Int32


class Chains(NamedTuple):
    """A text or the history as pointers, which are cheap to pass in compiled code."""

    tokens: Int32
    owners: Int32
    links: Int32
    heads: Int32
    mask: int


@compiled
def chains_at(address: int, capacity: int) -> Chains:
    """The chains of a running text; its block has tokens, links and heads."""
    tokens, links = _pointer(address), _pointer(address + 4 * capacity)
    return Chains(tokens, tokens, links, _pointer(address + 20 * capacity), int(capacity) - 1)


@compiled
def chains_of(ring: Ring) -> Chains:
    return Chains(
        _pointer(ring.tokens.ctypes.data),
        _pointer(ring.owners.ctypes.data),
        _pointer(ring.links.ctypes.data),
        _pointer(ring.heads.ctypes.data),
        len(ring.tokens) - 1,
    )


@compiled
def shift_for(num_buckets: int) -> int:
    """Bits by which a hash is shifted down to its bucket."""
    shift = 64
    while num_buckets > 1:
        num_buckets >>= 1
        shift -= 1
    return shift


@compiled
def head_of(key: Any, shift: int, level: int) -> int:
    return int(NUM_ORDERS * np.int64((key * _SPREAD & _WORD) >> _hash(shift)) + level)


@compiled
def insert(chains: Chains, shift: int, seed: int, place: int, before: int) -> None:
    """Index a place by the contexts of its ``before`` preceding tokens."""
    tokens, _, links, heads, mask = chains
    key = _hash(seed)
    level = 0
    for i in range(min(before, LONGEST_CONTEXT)):
        key = key * _FACTOR + _hash(tokens[(place - 1 - i) & mask]) & _WORD
        if i + 1 == 1 << level:
            head = head_of(key, shift, level)
            links[NUM_ORDERS * (place & mask) + level] = heads[head]
            heads[head] = place
            level += 1


@compiled
def heads_after(
    shift: int, seed: int, ending: Int32, num_ending: int, heads: Ints, row: int, column: int
) -> None:
    """Write the indices of the heads for the end of a text (latest token first)."""
    key = _hash(seed)
    level = 0
    for i in range(min(num_ending, LONGEST_CONTEXT)):
        key = key * _FACTOR + _hash(ending[i]) & _WORD
        if i + 1 == 1 << level:
            heads[row, column + level] = head_of(key, shift, level)
            level += 1


@compiled
def walk(
    chains: Chains, tenant: int, newest: int, oldest: int, ending: Int32, num_ending: int,
    place: int, level: int, places: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Find the longest match among the places of a bucket, and the number of places with it."""
    tokens, owners, links, _, mask = chains
    longest, num, num_seen = 0, 0, 0
    for _ in range(PATIENCE):
        age = (newest - place) & _WRAP
        if age >= oldest or num_seen == MAX_HITS:
            break
        older = int(links[NUM_ORDERS * (place & mask) + level])
        _fetch(tokens, (older - 1) & mask)
        _fetch(links, NUM_ORDERS * (older & mask))
        most = min(num_ending, oldest - age)
        length = 0
        while length < most and tokens[(place - 1 - length) & mask] == ending[length]:
            length += 1
        if length >= 1 << level and (tenant < 0 or owners[place & mask] == tenant):
            num_seen += 1
            if length > longest:
                longest, num = length, 0
            if length == longest:
                places[num] = newest - age
                num += 1
        place = older
    return longest, num


@compiled
def find(
    chains: Chains, tenant: int, newest: int, oldest: int, ending: Int32, num_ending: int,
    firsts: Ints, row: int, column: int, above: int, places: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Find the longest match of more than ``above`` tokens, and the number of places with it.

    tenant: owner of the places to search; -1: all places. oldest: age of the first overwritten
    place. ending: latest token first. firsts[row, column:]: the newest place in the bucket of each
    context. places (output): newest first.
    """
    for level in range(NUM_ORDERS - 1, -1, -1):
        if above >= (LONGEST_MATCH if level == NUM_ORDERS - 1 else (2 << level) - 1):
            break  # the previous order would have found a longer match
        if 1 << level <= num_ending:
            place = int(firsts[row, column + level])
            longest, num = walk(
                chains, tenant, newest, oldest, ending, num_ending, place, level, places
            )
            if longest > above:
                return longest, num
    return 0, 0


@compiled
def elect(nexts: Ints, num: int) -> tuple[int, int]:
    """The token with the most votes (ties: the first), and its votes."""
    chosen, votes = nexts[0], 0
    for i in range(num):
        count = 0
        for j in range(i, num):
            count += nexts[j] == nexts[i]
        if count > votes:
            chosen, votes = nexts[i], count
        if 2 * votes >= num:
            break
    return chosen, votes


class Source(NamedTuple):
    """A text up to the place ``newest``, and the draft that continues it.

    num_drafted = -1: a text of the history, which has no continuation.
    """

    tokens: Int32
    mask: int
    newest: int
    draft: Int32
    num_drafted: int


@compiled
def read(source: Source, at: int, proposal: Int32) -> int:
    """The token at a place of a source, followed by its draft and proposal; -1 past the end."""
    tokens, mask, newest, draft, num_drafted = source
    past = at - newest
    if past <= 0:
        return int(tokens[at & mask])
    if num_drafted < 0:
        return -1
    if past <= num_drafted:
        return int(draft[past - 1])
    return int(proposal[past - 1 - num_drafted])


@compiled
def go_on(
    source: Source, places: Ints, num: int, limit: int, nexts: Ints, out: Int32
) -> tuple[int, int]:
    """Write the continuation with the most votes; return its length and its first token's votes."""
    agree = num
    for depth in range(limit):
        if num == 1:
            return follow(source, int(places[0]), depth, limit, out), agree
        kept = _ZERO
        for i in range(num):
            token = read(source, int(places[i]) + depth, out)
            places[kept] = places[i]
            nexts[kept] = token
            kept += token >= 0  # -1: the end of a text of the history
        if kept == 0:
            return depth, agree
        chosen, votes = elect(nexts, kept)
        num = 0
        for i in range(kept):
            places[num] = places[i]
            num += nexts[i] == chosen
        if depth == 0:
            agree = votes
        out[depth] = chosen
    return limit, agree


@compiled
def follow(source: Source, place: int, depth: int, limit: int, out: Int32) -> int:
    """Write the continuation of a single place from ``depth`` on; return its total length."""
    direct = min(limit, source.newest + 1 - place)
    for at in range(depth, limit):
        if at < direct:
            token = int(source.tokens[(place + at) & source.mask])
        else:
            token = read(source, place + at, out)
        if token < 0:
            return at
        out[at] = token
    return limit


@compiled
def index_text(table: Ints, slot: int, until: int) -> None:
    """Index the places of a running text up to ``until``."""
    capacity = int(table[slot, CAPACITY])
    chains = chains_at(table[slot, ADDRESS], capacity)
    shift = shift_for(capacity // 2)
    for place in range(table[slot, INDEXED], until):
        insert(chains, shift, _ZERO, place, place)
    table[slot, INDEXED] = until


@compiled
def index_texts(table: Ints, max_tokens: int) -> tuple[int, bool]:
    """Index pending tokens of running texts, in order of slots.

    Returns the rest of max_tokens, and whether tokens are pending.
    """
    for slot in range(len(table)):
        num = table[slot, LENGTH] - table[slot, INDEXED]
        if num > 0:
            part = min(num, max_tokens)
            index_text(table, slot, table[slot, INDEXED] + part)
            max_tokens -= part
            if part < num:
                return max_tokens, True
    return max_tokens, False


@compiled
def check_open(table: Ints, slot: int) -> None:
    if not (0 <= slot < len(table) and table[slot, CAPACITY] > 0):
        raise ValueError("a slot is not open")


@compiled
def check_tokens(tokens: Int32, num: int) -> None:
    for i in range(num):
        if tokens[i] < 0:
            raise ValueError("token ids must not be negative")


@compiled
def check_extension(
    table: Ints, slots: Ints, counts: Ints, num: int, tokens: Int32, num_tokens: int
) -> None:
    total = 0
    for i in range(num):
        check_open(table, slots[i])
        if counts[i] < 0:
            total = -1
            break
        total += counts[i]
    if total != num_tokens:
        raise ValueError("counts must not be negative and must add up to the number of tokens")
    check_tokens(tokens, num_tokens)


@compiled
def fetch_ends(table: Ints, slots: Ints, num: int) -> None:
    if HAS_NUMBA:
        for i in range(num):
            text, length = _pointer(table[slots[i], ADDRESS]), table[slots[i], LENGTH]
            for back in (1, 17, 33):
                _fetch(text, length - back)


@compiled
def extend(
    table: Ints, slots: Ints, counts: Ints, num: int, tokens: Int32, num_tokens: int, first: int
) -> int:
    """Append tokens to texts from row ``first`` on; return the first row without room, or num.

    Wrong input appends nothing and raises ValueError.
    """
    check_extension(table, slots, counts, num, tokens, num_tokens)
    at = 0
    fetch_ends(table, slots, num)
    for i in range(num):
        slot, count = int(slots[i]), int(counts[i])
        length = int(table[slot, LENGTH])
        if i >= first:
            if length + count > table[slot, CAPACITY]:
                return i
            text = _pointer(table[slot, ADDRESS])
            for j in range(count):
                text[length + j] = tokens[at + j]
            table[slot, LENGTH] = length + count
            if length + count - table[slot, INDEXED] <= CATCH_UP:
                index_text(table, slot, length + count)
        at += count
    return num


@compiled
def remember(ring: Ring, newest: int, tenant: int, text: Int32, start: int, end: int) -> int:
    """Add text[start:end] to the history, with a separator before a new text.

    Returns the newest place.
    """
    tokens, owners, _, _ = ring
    mask = len(tokens) - 1
    shift = shift_for(len(tokens))
    chains = chains_of(ring)
    if start == 0:
        newest += 1
        tokens[newest & mask] = -1
        owners[newest & mask] = tenant
    for i in range(start, end):
        newest += 1
        tokens[newest & mask] = text[i]
        owners[newest & mask] = tenant
        insert(chains, shift, tenant + 1, newest, i)
    return newest


@compiled
def check_proposal(table: Ints, slots: Ints, num: int, drafts: Int32, num_drafted: Ints) -> None:
    for i in range(num):
        check_open(table, slots[i])
        if not 0 <= num_drafted[i] <= drafts.shape[1]:
            raise ValueError("num_drafted must be between 0 and the width of drafts")
        check_tokens(drafts[i], num_drafted[i])


@compiled
def fetch_heads(
    table: Ints, slots: Ints, num: int, drafts: Int32, num_drafted: Ints, ring: Chains,
    endings: Int32, num_endings: Ints, heads: Ints,
) -> None:  # fmt: skip
    """Write the ends of texts with their drafts, and prefetch the heads of their contexts."""
    ring_shift = shift_for(ring.mask + 1)
    for i in range(num):
        slot, drafted = int(slots[i]), int(num_drafted[i])
        capacity, length = int(table[slot, CAPACITY]), int(table[slot, LENGTH])
        chains = chains_at(table[slot, ADDRESS], capacity)
        ending = _pointer(endings.ctypes.data + 4 * LONGEST_MATCH * i)
        num_ending = min(length + drafted, LONGEST_MATCH)
        num_endings[i] = num_ending
        for j in range(min(drafted, LONGEST_MATCH)):
            ending[j] = drafts[i, drafted - 1 - j]
        for j in range(drafted, num_ending):
            ending[j] = chains.tokens[length + drafted - 1 - j]
        heads_after(shift_for(capacity // 2), _ZERO, ending, num_ending, heads, i, _ZERO)
        heads_after(ring_shift, table[slot, TENANT] + 1, ending, num_ending, heads, i, _NUM_ORDERS)
        for level in range(NUM_ORDERS):
            if 1 << level <= num_ending:
                _fetch(chains.heads, heads[i, level])
                _fetch(ring.heads, heads[i, NUM_ORDERS + level])


@compiled
def fetch_places(
    table: Ints, slots: Ints, num: int, ring: Chains, num_endings: Ints, heads: Ints
) -> None:
    """Replace heads by the places that they hold, and prefetch these places."""
    for i in range(num):
        chains = chains_at(table[slots[i], ADDRESS], table[slots[i], CAPACITY])
        for level in range(NUM_ORDERS):
            if 1 << level <= num_endings[i]:
                heads[i, level] = place_at(chains, heads[i, level])
                heads[i, NUM_ORDERS + level] = place_at(ring, heads[i, NUM_ORDERS + level])


@compiled
def place_at(chains: Chains, head: int) -> int:
    """The place that a head holds; its token and link are prefetched."""
    place = int(chains.heads[head])
    _fetch(chains.tokens, (place - 1) & chains.mask)
    _fetch(chains.links, NUM_ORDERS * (place & chains.mask))
    return place


@compiled
def propose(
    table: Ints, slots: Ints, limits: Ints, num: int, drafts: Int32, num_drafted: Ints,
    only_after: bool, ring: Ring, newest: int, tokens: Int32, found: Int32,
    shared: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Propose tokens after each text and its draft; ValueError for wrong input, changing nothing.

    found (output): [4, rows] number of tokens, match, hits, agree. only_after: rows without a
    draft get no proposal.
    """
    check_proposal(table, slots, num, drafts, num_drafted)
    endings = np.empty((num, LONGEST_MATCH), np.int32)
    num_endings = np.empty(num, np.int64)
    heads = np.empty((num, 2 * NUM_ORDERS), np.int64)
    rooms = np.empty((3, MAX_HITS), np.int64)
    nexts, own, elsewhere = rooms[0], rooms[1], rooms[2]
    history = chains_of(ring)
    fetch_ends(table, slots, num)
    fetch_heads(table, slots, num, drafts, num_drafted, history, endings, num_endings, heads)
    fetch_places(table, slots, num, history, num_endings, heads)
    for i in range(num):
        slot, drafted = int(slots[i]), int(num_drafted[i])
        last = int(table[slot, LENGTH]) - 1
        chains = chains_at(table[slot, ADDRESS], table[slot, CAPACITY])
        ending = _pointer(endings.ctypes.data + 4 * LONGEST_MATCH * i)
        num_ending = 0 if only_after and drafted == 0 else int(num_endings[i])
        match, hits = find(
            chains, _ALL, last, last, ending, num_ending, heads, i, _ZERO, _ZERO, own
        )
        longer, more = find(
            history, int(table[slot, TENANT]), newest, history.mask,
            ending, num_ending, heads, i, _NUM_ORDERS, match, elsewhere,
        )  # fmt: skip
        limit = max(1, min(int(limits[i]), tokens.shape[1]))
        draft = _pointer(drafts.ctypes.data + 4 * drafts.shape[1] * i)
        out = _pointer(tokens.ctypes.data + 4 * tokens.shape[1] * i)
        agree = count = 0
        if longer:
            match, hits = longer, more
            source = Source(history.tokens, history.mask, newest, draft, _ALL)
            count, agree = go_on(source, elsewhere, hits, limit, nexts, out)
        elif match:
            source = Source(chains.tokens, chains.mask, last, draft, drafted)
            count, agree = go_on(source, own, hits, limit, nexts, out)
        found[0, i] = min(count, max(0, limits[i]))
        found[1, i], found[2, i], found[3, i] = match, hits, agree
        shared[i] = longer > 0
