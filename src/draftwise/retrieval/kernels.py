"""Hash chains over texts in flat int32 arrays.

A text has ``tokens`` [size], ``links`` [4 * size] and ``heads`` [4 * buckets]. Sizes are powers of
two; a running text has one bucket for every two tokens, the history one for every token. A place is
the position of a token that may be proposed. For each order (1, 2, 4, 8) ``heads`` holds the newest
place after a context of that many tokens, by bucket of the context's hash, and ``links`` leads from
a place to the next older place of its bucket. The history is a ring; its places count up forever
modulo 2**31, so a place's age shows whether it was overwritten.

Without numba the same functions run as plain Python, on memoryviews of the arrays, whose elements
are read faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwise.compiled import HAS_NUMBA, compiled
from draftwise.types import Ints

Int32: TypeAlias = NDArray[np.int32]

NUM_ORDERS = 4  # contexts of 1, 2, 4, 8 tokens
LONGEST_CONTEXT = 8
LONGEST_MATCH = 32
"""Matches are measured up to this length: longer is no better evidence."""
PATIENCE = 32
"""Places that are visited at least; four per examined one if that is more, as other contexts may
share a bucket."""
CATCH_UP = 64  # ``extend`` indexes a text with at most this many pending tokens

# columns of the table of running texts
START, CAPACITY, LENGTH, INDEXED, TENANT, PROMPT, NUM_COLUMNS = range(7)
WIDTH = 7  # numbers of a running text for each token: itself, 4 links, and 4 heads of half a bucket

_hash: Any = np.uint64 if HAS_NUMBA else int
_FACTOR, _SPREAD, _WORD, _HALF = map(_hash, (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 2**64 - 1, 32))
_WRAP = 0x7FFFFFFF
# array elements as arguments, since numba compiles a function once more for each literal
_NUMBERS: Any = np.array([0, -1])
_ZERO, _ALL = _NUMBERS if HAS_NUMBA else (0, -1)


if HAS_NUMBA:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def _pointer_to(kind: Any) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def pointer(typing_context: Any, address: Any) -> Any:
            def cast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

            return types.CPointer(kind)(types.int64), cast

        return pointer

    _pointer32, _pointer64 = _pointer_to(types.int32), _pointer_to(types.int64)

    @intrinsic  # type: ignore[untyped-decorator]
    def fetch(typing_context: Any, data: Any, place: Any) -> Any:
        """Prefetch data[place] into the processor's cache."""

        def prefetch(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number, pointer = ir.IntType(32), ir.PointerType()
            kind = ir.FunctionType(ir.VoidType(), [pointer] + [number] * 3)
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            where = builder.bitcast(builder.gep(args[0], [args[1]]), pointer)
            builder.call(function, [where, number(0), number(3), number(1)])  # read, stays, data
            return context.get_dummy_value()

        return types.void(types.CPointer(types.int32), types.int64), prefetch

    @compiled
    def numbers(address: int, first: int) -> Any:
        """int32 numbers from an address on. Passing arrays instead, whose references are counted,
        would double the time of a search."""
        return _pointer32(address + 4 * first)

    @compiled
    def long_numbers(address: int) -> Any:
        return _pointer64(address)
else:

    def fetch(data: Any, place: int) -> None:
        pass

    def numbers(address: Any, first: int) -> Any:
        return address[first:] if first else address

    def long_numbers(address: Any) -> Any:
        return address


def view(array: Any) -> Any:
    """An array as the functions of this module take it."""
    return array if HAS_NUMBA else memoryview(array)


def address_of(array: Any) -> Any:
    """What ``numbers`` and ``long_numbers`` take, of an array that lives longer than the call."""
    return array.ctypes.data if HAS_NUMBA else memoryview(array.reshape(-1))


class Chains(NamedTuple):
    """A text, or the history, as places of its parts in an array."""

    data: Any  # a pointer; in arguments of calls an address
    tokens: int
    owners: int  # tenants of the history's tokens
    links: int
    heads: int
    size: int
    num_buckets: int


class Texts(NamedTuple):
    """Running texts, by address: their blocks of WIDTH * capacity numbers; a table of [slots,
    NUM_COLUMNS]."""

    store: Any
    table: Any
    num_slots: int


class Room(NamedTuple):
    """Addresses of what a search writes.

    ending: the end of a text, latest token first. places: of the match; twice as many as vote.
    nexts: the places' next tokens.
    """

    ending: Any
    places: Any
    nexts: Any


class Ring(NamedTuple):
    """The history. data: the address of tokens, owners, links and heads. size: places; buckets."""

    data: Any
    size: int


class MatchRule(NamedTuple):
    """What a search may find.

    A place is examined if its match has at least the tokens of the longest context that occurred.
    """

    num_places: int  # maximum places that are examined, the newest first
    num_votes: int  # maximum places that vote, the newest of the longest match
    decisive: int  # a longer match than this is no better
    least: int  # length of the shortest match


class Asked(NamedTuple):
    """Rows of a search: [rows] slots and maximum tokens; drafts [rows, width] after their texts.

    num_drafted: [rows] tokens of the drafts. only_drafts: rows without a draft are not searched.
    """

    slots: Ints
    limits: Ints
    drafts: Any  # their address
    width: int  # numbers of each draft
    num_drafted: Ints
    only_drafts: bool


class Proposals(NamedTuple):
    """Proposals for each row of a search."""

    tokens: Int32  # [rows, max_draft], valid up to num_tokens
    num_tokens: Int32
    match: Int32  # length of the matched suffix, 0 (no proposal) to 32 (32 or more)
    hits: Int32  # places with such a match that voted
    agree: Int32  # votes for the first proposed token; as match and hits, whatever the limit
    shared: NDArray[np.bool_]  # whether the places are in the history


@compiled
def column(texts: Texts, slot: int, number: int) -> int:
    return int(long_numbers(texts.table)[slot * NUM_COLUMNS + number])


@compiled
def set_column(texts: Texts, slot: int, number: int, value: int) -> None:
    long_numbers(texts.table)[slot * NUM_COLUMNS + number] = value


@compiled
def chains_of(texts: Texts, slot: int) -> Chains:
    start, size = column(texts, slot, START), column(texts, slot, CAPACITY)
    data = numbers(texts.store, _ZERO)
    return Chains(data, start, start, start + size, start + 5 * size, size, size // 2)


@compiled
def ring_chains(history: Ring) -> Chains:
    size = history.size
    return Chains(numbers(history.data, _ZERO), _ZERO, size, 2 * size, 6 * size, size, size)


@compiled
def located(room: Room) -> Room:
    """A room with pointers for addresses."""
    ending, places = numbers(room.ending, _ZERO), long_numbers(room.places)
    return Room(ending, places, long_numbers(room.nexts))


@compiled
def head_of(chains: Chains, key: Any, level: int) -> int:
    """The place of the head of a context's bucket, by the context's hash."""
    spread = (key * _SPREAD & _WORD) >> _HALF
    return chains.heads + NUM_ORDERS * int(spread * _hash(chains.num_buckets) >> _HALF) + level


@compiled
def insert(chains: Chains, seed: int, place: int, before: int) -> None:
    """Index a place by the contexts of its ``before`` preceding tokens."""
    data, mask = chains.data, chains.size - 1
    links = chains.links + NUM_ORDERS * (place & mask)
    key = _hash(seed)
    level = 0
    for i in range(min(before, LONGEST_CONTEXT)):
        key = key * _FACTOR + _hash(data[chains.tokens + ((place - 1 - i) & mask)]) & _WORD
        if i + 1 == 1 << level:
            head = head_of(chains, key, level)
            data[links + level] = data[head]
            data[head] = place & _WRAP
            level += 1


@compiled
def first_place(chains: Chains, seed: int, ending: Any, level: int) -> int:
    """The newest place in the bucket of an ending's context (latest token first)."""
    key = _hash(seed)
    for i in range(1 << level):
        key = key * _FACTOR + _hash(ending[i]) & _WORD
    return int(chains.data[head_of(chains, key, level)])


@compiled
def walk(
    chains: Chains, tenant: int, newest: int, oldest: int, ending: Any, num_ending: int,
    place: int, level: int, rule: MatchRule, places: Any, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Find the longest match among the places of a bucket, and the number of places with it."""
    data, tokens, mask = chains.data, chains.tokens, chains.size - 1
    longest, best, num, num_seen = 0, 0, 0, 0
    for _ in range(max(PATIENCE, 4 * rule.num_places)):
        age = (newest - place) & _WRAP
        if age >= oldest or num_seen == rule.num_places:
            break
        most = min(num_ending, oldest - age)
        length = 0
        while length < most and data[tokens + ((place - 1 - length) & mask)] == ending[length]:
            length += 1
        if length >= 1 << level and (tenant < 0 or data[chains.owners + (place & mask)] == tenant):
            num_seen += 1
            rank = min(length, rule.decisive)
            if rank > best:
                longest, best, num = length, rank, 0
            if rank == best and num < rule.num_votes:
                places[first + num] = newest - age
                num += 1
            if best == rule.decisive and num == rule.num_votes:
                break
        place = data[chains.links + NUM_ORDERS * (place & mask) + level]
    return longest, num


@compiled
def find(
    chains: Chains, tenant: int, newest: int, oldest: int, ending: Any, num_ending: int,
    above: int, rule: MatchRule, places: Any, first: int,
) -> tuple[int, int]:  # fmt: skip
    """Find the longest match of more than ``above`` tokens, and the number of places with it.

    tenant: owner of the places to search; -1: all places of a running text. oldest: age of the
    first overwritten place. ending: latest token first. places[first:] (output): newest first.
    """
    top = NUM_ORDERS - 1
    while 1 << top > rule.decisive:
        top -= 1
    for level in range(top, -1, -1):
        if above >= (LONGEST_MATCH if level == top else (2 << level) - 1):
            break  # the previous order would have found a longer match
        if 1 << level <= num_ending:
            place = first_place(chains, tenant + 1, ending, level)
            if (newest - place) & _WRAP >= oldest:
                continue
            longest, num = walk(
                chains, tenant, newest, oldest, ending, num_ending, place, level, rule, places,
                first,
            )  # fmt: skip
            if longest > above and longest >= rule.least:
                return longest, num
    return 0, 0


@compiled
def write_ending(chains: Chains, length: int, draft: Any, drafted: int, ending: Any) -> int:
    """Write the end of a text with its draft, latest token first; return its length."""
    num = min(length + drafted, LONGEST_MATCH)
    for j in range(min(drafted, num)):
        ending[j] = draft[drafted - 1 - j]
    for j in range(drafted, num):
        ending[j] = chains.data[chains.tokens + length + drafted - 1 - j]
    return num


@compiled
def search(
    texts: Texts, ring: Chains, newest: int, slot: int, draft: Any, drafted: int,
    rule: MatchRule, room: Room,
) -> tuple[int, int, bool]:  # fmt: skip
    """The longest match of a text with its draft: its length, places, and whether it is shared.

    All prompts of a chat template end in the same tokens, which say nothing about the answer. Where
    a match with an earlier answer extends into the prompt, the prompt therefore counts as one
    token, unless the match covers LONGEST_MATCH tokens or the whole text.
    """
    chains, ending, places = chains_of(texts, slot), room.ending, room.places
    length, tenant = column(texts, slot, LENGTH), column(texts, slot, TENANT)
    num_ending = write_ending(chains, length, draft, drafted, ending)
    match, hits = find(
        chains, _ALL, length - 1, length - 1, ending, num_ending, _ZERO, rule, places, _ZERO
    )
    longer, more = find(
        ring, tenant, newest, ring.size - 1, ending, num_ending, match, rule, places, hits
    )
    if longer < num_ending:
        longer = min(longer, 1 + max(0, length + drafted - column(texts, slot, PROMPT)))
    if longer <= match:
        return match, hits, False
    for i in range(more):
        places[i] = places[hits + i]
    return longer, more, True


@compiled
def search_one(
    texts: Texts, history: Ring, newest: int, slot: int, draft: Any, drafted: int,
    rule: MatchRule, room: Room,
) -> tuple[int, int, bool, int]:  # fmt: skip
    """``search`` by addresses, and the most frequent next token (-1: none)."""
    ring, after, room = ring_chains(history), numbers(draft, _ZERO), located(room)
    match, hits, shared = search(texts, ring, newest, slot, after, drafted, rule, room)
    return match, hits, shared, vote(texts, ring, newest, slot, room, hits, shared)


@compiled
def elect(nexts: Any, num: int) -> tuple[int, int]:
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


@compiled
def read(chains: Chains, newest: int, draft: Any, drafted: int, place: int, depth: int) -> int:
    """The token ``depth`` after a place; -1 past the end of a text of the history.

    A running text goes on with its draft, then both repeat. drafted: -1 in the history.
    """
    at = place + depth
    if at > newest:
        if drafted < 0:
            return -1
        end = newest + 1 + drafted
        if at >= end:
            at = place + depth % (end - place)
        if at > newest:
            return int(draft[at - newest - 1])
    return int(chains.data[chains.tokens + (at & (chains.size - 1))])


@compiled
def go_on(
    chains: Chains, newest: int, draft: Any, drafted: int, room: Room, num: int, limit: int,
    out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Write the continuation with the most votes; return its length and its first token's votes."""
    agree, places, nexts = num, room.places, room.nexts
    data, mask = chains.data, chains.size - 1
    for depth in range(limit):
        if num == 1:  # most of the tokens of most proposals
            for at in range(depth, limit):
                token = read(chains, newest, draft, drafted, places[0], at)
                if token < 0:
                    return at, agree
                out[at] = token
            return limit, agree
        kept = _ZERO
        for i in range(num):
            at = places[i] + depth
            if at <= newest:  # most are, and a call would take longer
                token = int(data[chains.tokens + (at & mask)])
            else:
                token = read(chains, newest, draft, drafted, places[i], depth)
            places[kept] = places[i]
            nexts[kept] = token
            kept += token >= 0
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
def append(texts: Texts, slot: int, token: int) -> None:
    """Append a token to a text that has room, and index its place."""
    chains, place = chains_of(texts, slot), column(texts, slot, LENGTH)
    chains.data[chains.tokens + place] = token
    insert(chains, _ZERO, place, place)
    set_column(texts, slot, LENGTH, place + 1)
    set_column(texts, slot, INDEXED, place + 1)


@compiled
def index_text(texts: Texts, slot: int, until: int) -> None:
    """Index the places of a running text up to ``until``."""
    chains = chains_of(texts, slot)
    for place in range(column(texts, slot, INDEXED), until):
        insert(chains, _ZERO, place, place)
    set_column(texts, slot, INDEXED, until)


@compiled
def index_texts(texts: Texts, max_tokens: int) -> tuple[int, bool]:
    """Index pending tokens of running texts, in order of slots.

    Returns the rest of max_tokens, and whether tokens are pending.
    """
    for slot in range(texts.num_slots):
        indexed = column(texts, slot, INDEXED)
        num = column(texts, slot, LENGTH) - indexed
        if num > 0:
            part = min(num, max_tokens)
            index_text(texts, slot, indexed + part)
            max_tokens -= part
            if part < num:
                return max_tokens, True
    return max_tokens, False


@compiled
def extend(
    texts: Texts, slots: Ints, counts: Ints, num: int, tokens: Int32, first: int, at: int
) -> tuple[int, int]:
    """Append tokens[at:] to texts from row ``first`` on.

    Returns the first row without room (or num), and the place of its tokens.
    """
    for i in range(first, num):
        slot, count = slots[i], counts[i]
        length = column(texts, slot, LENGTH)
        if length + count > column(texts, slot, CAPACITY):
            return i, at
        chains = chains_of(texts, slot)
        for j in range(count):
            chains.data[chains.tokens + length + j] = tokens[at + j]
        set_column(texts, slot, LENGTH, length + count)
        if length + count - column(texts, slot, INDEXED) <= CATCH_UP:
            index_text(texts, slot, length + count)
        at += count
    return num, at


@compiled
def remember(
    history: Ring, place: int, tenant: int, text: Int32, first: int, before: int, start: int,
    end: int,
) -> None:  # fmt: skip
    """Write text[start:end] into a region of the history from ``place`` on.

    first: tokens before it are context, and no places. before: tokens in the region so far.
    """
    ring = ring_chains(history)
    for i in range(start, end):
        at = place + i - start
        ring.data[at & (ring.size - 1)] = text[i]
        if i >= first:
            insert(ring, tenant + 1, at, before + i - start)


@compiled
def scan(
    texts: Texts, history: Ring, newest: int, slot: int, tokens: Int32, num_scored: int,
    rule: MatchRule, room: Room, facts: Ints,
) -> None:  # fmt: skip
    """Append tokens to a text with room, and index it.

    facts (output): [num_scored, 2] what would have been proposed in place of each of the last
    tokens (-1: nothing), and the length of the match.
    """
    num, ring, room = len(tokens), ring_chains(history), located(room)
    for i in range(num):
        at = i - (num - num_scored)
        if at >= 0:
            match, hits, shared = search(texts, ring, newest, slot, room.ending, _ZERO, rule, room)
            facts[at, 0] = vote(texts, ring, newest, slot, room, hits, shared)
            facts[at, 1] = match
        append(texts, slot, tokens[i])


@compiled
def vote(
    texts: Texts, ring: Chains, newest: int, slot: int, room: Room, hits: int, shared: bool
) -> int:
    """The most frequent next token of the places of a match; -1: none."""
    if hits == 0:
        return -1
    chains = ring if shared else chains_of(texts, slot)
    for i in range(hits):  # a place has a token
        at = room.places[i] & (chains.size - 1)
        room.nexts[i] = chains.data[chains.tokens + at]
    return int(elect(room.nexts, hits)[0])


@compiled
def fetch_heads(chains: Chains, seed: int, ending: Any, num_ending: int) -> None:
    """Prefetch the heads of an ending's contexts."""
    key = _hash(seed)
    level = 0
    for i in range(min(num_ending, LONGEST_CONTEXT)):
        key = key * _FACTOR + _hash(ending[i]) & _WORD
        if i + 1 == 1 << level:
            fetch(chains.data, head_of(chains, key, level))
            level += 1


@compiled
def fetch_rows(texts: Texts, ring: Chains, asked: Asked, num: int, room: Room) -> None:
    """Prefetch what ``propose`` reads first, of all rows: cache misses would dominate its time."""
    if not HAS_NUMBA:
        return
    for i in range(num):
        chains, length = chains_of(texts, asked.slots[i]), column(texts, asked.slots[i], LENGTH)
        fetch(chains.data, chains.tokens + length - 1)
        fetch(chains.data, chains.tokens + length - 17)
    for i in range(num):
        chains, length = chains_of(texts, asked.slots[i]), column(texts, asked.slots[i], LENGTH)
        draft = numbers(asked.drafts, asked.width * i)
        num_ending = write_ending(chains, length, draft, asked.num_drafted[i], room.ending)
        fetch_heads(chains, _ZERO, room.ending, num_ending)
        fetch_heads(ring, column(texts, asked.slots[i], TENANT) + 1, room.ending, num_ending)


@compiled
def propose(
    texts: Texts, history: Ring, newest: int, asked: Asked, num: int, rule: MatchRule, room: Room,
    found: Proposals, address: Any,
) -> None:  # fmt: skip
    """Propose tokens after each text and its draft. address: of found.tokens."""
    ring, room, max_draft = ring_chains(history), located(room), found.tokens.shape[1]
    fetch_rows(texts, ring, asked, num, room)
    for i in range(num):
        slot, drafted, limit = asked.slots[i], asked.num_drafted[i], asked.limits[i]
        draft = numbers(asked.drafts, asked.width * i)
        match, hits, count, agree, shared = 0, 0, 0, 0, False
        if drafted > 0 or not asked.only_drafts:
            match, hits, shared = search(texts, ring, newest, slot, draft, drafted, rule, room)
        if match > 0:
            chains = ring if shared else chains_of(texts, slot)
            last = newest if shared else column(texts, slot, LENGTH) - 1
            count, agree = go_on(
                chains, last, draft, -1 if shared else drafted, room, hits,
                max(1, min(limit, max_draft)), numbers(address, max_draft * i),
            )  # fmt: skip
        found.num_tokens[i] = min(count, max(0, limit))
        found.match[i], found.hits[i], found.agree[i] = match, hits, agree
        found.shared[i] = shared
