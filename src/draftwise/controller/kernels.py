"""Compiled functions of the retrieval index: hash chains over texts in flat int32 arrays.

A text is ``tokens`` [size], ``links`` [4 * size] and ``heads`` [4 * number of buckets], sizes being
powers of two. A place is the position of a token that may be proposed. For each order (1, 2, 4, 8)
``heads`` holds the newest place after a context of that many tokens, by bucket of the context's
hash, and ``links`` leads from a place to the next older one of its bucket. The history is a ring:
its places are counted on for ever and stored modulo 2**32, and ``age`` tells what is overwritten.
``retrieval.PlainIndex`` says the same in plain Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.compiled import HAS_NUMBA, compiled

if HAS_NUMBA:
    from numba import carray, types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def _pointer(typing_context: Any, address: Any) -> Any:
        """An address as a pointer to int32."""

        def cast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(types.int32)(types.int64), cast


Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]

NUM_ORDERS = 4  # contexts of 1, 2, 4, 8 tokens
LONGEST_CONTEXT = 8
LONGEST_MATCH = 32
MAX_HITS = 8
PATIENCE = 32  # places looked at in a bucket: other contexts may share it
CATCH_UP = 64  # an extension indexes a text that is at most this much behind

ADDRESS, CAPACITY, LENGTH, INDEXED, TENANT = range(5)  # columns of the table of running texts
NUM_COLUMNS = 8  # a row fills a cache line

NOT_OPEN, BAD_COUNTS, BAD_TOKEN, BAD_NUM_DRAFTED = -1, -2, -3, -4

FACTOR, SPREAD = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_FACTOR, _SPREAD = np.uint64(FACTOR), np.uint64(SPREAD)
_WRAP = 0xFFFFFFFF


class Chains(NamedTuple):
    """A text or the history, with the chains that find its places."""

    tokens: Int32
    owners: Int32  # of the history: the tenant of each token
    links: Int32
    heads: Int32


@compiled
def chains_at(address: int, capacity: int) -> Chains:
    """Views of a running text's block; it has no owners but itself."""
    tokens = carray(_pointer(address), capacity, np.int32)
    links = carray(_pointer(address + 4 * capacity), NUM_ORDERS * capacity, np.int32)
    heads = carray(_pointer(address + 20 * capacity), NUM_ORDERS * capacity, np.int32)
    return Chains(tokens, tokens, links, heads)


@compiled
def shift_for(num_buckets: int) -> int:
    """How far a hash is shifted down to give a bucket."""
    shift = 64
    while num_buckets > 1:
        num_buckets >>= 1
        shift -= 1
    return shift


@compiled
def insert(chains: Chains, shift: int, seed: int, place: int, before: int) -> None:
    """Make a place findable by the contexts that end just before it; ``before``: tokens there."""
    tokens, _, links, heads = chains
    mask = len(tokens) - 1
    key = np.uint64(seed)
    level = 0
    for i in range(min(before, LONGEST_CONTEXT)):
        key = key * _FACTOR + np.uint64(tokens[(place - 1 - i) & mask])
        if i + 1 == 1 << level:
            head = NUM_ORDERS * np.int64((key * _SPREAD) >> np.uint64(shift)) + level
            links[NUM_ORDERS * (place & mask) + level] = heads[head]
            heads[head] = np.int32(place)
            level += 1


@compiled
def newest_places(
    heads: Int32, shift: int, seed: int, ending: Int32, num_ending: int, firsts: Int64
) -> int:
    """The newest place in the bucket of each context at the end of a text; how many contexts."""
    key = np.uint64(seed)
    level = 0
    for i in range(min(num_ending, LONGEST_CONTEXT)):
        key = key * _FACTOR + np.uint64(ending[i])
        if i + 1 == 1 << level:
            head = NUM_ORDERS * np.int64((key * _SPREAD) >> np.uint64(shift)) + level
            firsts[level] = heads[head]
            level += 1
    return level


@compiled
def walk(
    chains: Chains,
    tenant: int,
    newest: int,
    oldest: int,
    ending: Int32,
    num_ending: int,
    place: int,
    level: int,
    places: Int64,
) -> tuple[int, int]:
    """The longest match among the places of a bucket, and how many have it, newest first."""
    tokens, owners, links, _ = chains
    mask = len(tokens) - 1
    longest, num, num_seen = 0, 0, 0
    for _ in range(PATIENCE):
        age = (newest - place) & _WRAP
        if age >= oldest or num_seen == MAX_HITS:
            break
        if tenant < 0 or owners[place & mask] == tenant:
            most = min(num_ending, oldest - age)
            length = 0
            while length < most and tokens[(place - 1 - length) & mask] == ending[length]:
                length += 1
            if length >= 1 << level:
                num_seen += 1
                if length > longest:
                    longest, num = length, 0
                if length == longest:
                    places[num] = newest - age
                    num += 1
        place = int(links[NUM_ORDERS * (place & mask) + level])
    return longest, num


@compiled
def find(
    chains: Chains,
    shift: int,
    seed: int,
    tenant: int,
    newest: int,
    oldest: int,
    ending: Int32,
    num_ending: int,
    above: int,
    firsts: Int64,
    places: Int64,
) -> tuple[int, int]:
    """The longest match of an ending that is longer than ``above``, and how many places have it.

    tenant: whose places count; -1: all, and the owners are not read. oldest: the age of the first
    place that is not kept any more. ending: its latest token first. places: out, newest first.
    """
    level = newest_places(chains.heads, shift, seed, ending, num_ending, firsts)
    while level > 0:
        level -= 1
        if above >= (LONGEST_MATCH if level == NUM_ORDERS - 1 else (2 << level) - 1):
            break  # what is longer was found, or would have been, at the order before
        longest, num = walk(
            chains, tenant, newest, oldest, ending, num_ending, firsts[level], level, places
        )
        if longest > above:
            return longest, num
    return 0, 0


@compiled
def elect(nexts: Int64, num: int) -> tuple[int, int]:
    """The token with most votes, ties to the first, and its votes."""
    chosen, votes = nexts[0], 0
    for i in range(num):
        if votes >= num - i:
            break
        count = 0
        for j in range(i, num):
            count += nexts[j] == nexts[i]
        if count > votes:
            chosen, votes = nexts[i], count
    return chosen, votes


@compiled
def read(
    tokens: Int32, at: int, newest: int, draft: Int32, num_drafted: int, proposal: Int32
) -> int:
    """The token at a place of a text that goes on with a draft, then with what is proposed.

    num_drafted: -1: the history, which just ends (-1).
    """
    past = at - newest
    if past <= 0:
        return int(tokens[at & (len(tokens) - 1)])
    if num_drafted < 0:
        return -1
    if past <= num_drafted:
        return int(draft[past - 1])
    return int(proposal[past - 1 - num_drafted])


@compiled
def go_on(
    tokens: Int32,
    newest: int,
    draft: Int32,
    num_drafted: int,
    places: Int64,
    num: int,
    limit: int,
    nexts: Int64,
    out: Int32,
) -> tuple[int, int]:
    """Write the continuation that most places vote for; its length, and the votes for its first."""
    agree = 0
    for depth in range(limit):
        kept = 0
        for i in range(num):
            token = read(tokens, places[i] + depth, newest, draft, num_drafted, out)
            if token >= 0:  # not the end of a text of the history
                places[kept] = places[i]
                nexts[kept] = token
                kept += 1
        if kept == 0:
            return depth, agree
        chosen, votes = elect(nexts, kept)
        num = 0
        for i in range(kept):
            if nexts[i] == chosen:
                places[num] = places[i]
                num += 1
        if depth == 0:
            agree = votes
        out[depth] = chosen
    return limit, agree


@compiled
def index_text(row: Int64, until: int) -> None:
    """Make the places of a running text findable, up to ``until``."""
    chains = chains_at(row[ADDRESS], row[CAPACITY])
    shift = shift_for(row[CAPACITY])
    for place in range(row[INDEXED], until):
        insert(chains, shift, 0, place, place)
    row[INDEXED] = until


@compiled
def index_texts(table: Int64, max_tokens: int) -> tuple[int, bool]:
    """Index what is left of the running texts, in order of slots.

    Returns what is left of max_tokens, and whether a text is still behind.
    """
    for slot in range(len(table)):
        row = table[slot]
        num = row[LENGTH] - row[INDEXED]
        if num > 0:
            part = min(num, max_tokens)
            index_text(row, row[INDEXED] + part)
            max_tokens -= part
            if part < num:
                return max_tokens, True
    return max_tokens, False


@compiled
def is_open(table: Int64, slot: int) -> bool:
    """Whether a running text has this slot."""
    return 0 <= slot < len(table) and table[slot, CAPACITY] > 0


@compiled
def refuse_extension(
    table: Int64, slots: Int64, counts: Int64, num: int, tokens: Int32, num_tokens: int
) -> int:
    """Why an extension cannot be made, as a negative code; 0: it can."""
    total = 0
    for i in range(num):
        if not is_open(table, slots[i]):
            return NOT_OPEN
        if counts[i] < 0:
            return BAD_COUNTS
        total += counts[i]
    if total != num_tokens:
        return BAD_COUNTS
    for i in range(num_tokens):
        if tokens[i] < 0:
            return BAD_TOKEN
    return 0


@compiled
def extend(
    table: Int64,
    slots: Int64,
    counts: Int64,
    num: int,
    tokens: Int32,
    num_tokens: int,
    first: int,
) -> int:
    """Append tokens to texts from row ``first`` on; the first row that needs more room, or num.

    Nothing is appended and a code of refusal returned if the input is wrong.
    """
    code = refuse_extension(table, slots, counts, num, tokens, num_tokens)
    if code < 0:
        return code
    at = 0
    for i in range(num):
        row = table[slots[i]]
        length, count = row[LENGTH], counts[i]
        if i >= first:
            if length + count > row[CAPACITY]:
                return i
            text = carray(_pointer(row[ADDRESS]), row[CAPACITY], np.int32)
            for j in range(count):
                text[length + j] = tokens[at + j]
            row[LENGTH] = length + count
            if length + count - row[INDEXED] <= CATCH_UP:
                index_text(row, length + count)
        at += count
    return num


@compiled
def remember(ring: Chains, newest: int, tenant: int, text: Int32, start: int, end: int) -> int:
    """Add text[start:end] to the history, a separator before its first token; the newest place."""
    tokens, owners, _, _ = ring
    mask = len(tokens) - 1
    shift = shift_for(len(tokens))
    if start == 0:
        newest += 1
        tokens[newest & mask] = -1
        owners[newest & mask] = tenant
    for i in range(start, end):
        newest += 1
        tokens[newest & mask] = text[i]
        owners[newest & mask] = tenant
        insert(ring, shift, tenant + 1, newest, i)
    return newest


@compiled
def refuse_proposal(table: Int64, slots: Int64, num: int, drafts: Int32, num_drafted: Int64) -> int:
    """Why nothing can be proposed, as a negative code; 0: it can."""
    for i in range(num):
        if not is_open(table, slots[i]):
            return NOT_OPEN
        if not 0 <= num_drafted[i] <= drafts.shape[1]:
            return BAD_NUM_DRAFTED
        for j in range(num_drafted[i]):
            if drafts[i, j] < 0:
                return BAD_TOKEN
    return 0


@compiled
def propose(
    table: Int64,
    slots: Int64,
    limits: Int64,
    num: int,
    drafts: Int32,
    num_drafted: Int64,
    only_after: bool,
    ring: Chains,
    newest: int,
    tokens: Int32,
    found: Int32,
    shared: NDArray[np.bool_],
) -> int:
    """Propose after each text and its draft; 0, or a code of refusal and nothing is done.

    found: out, [4, rows]: number of tokens, match, hits, agree. only_after: rows without a draft
    get nothing.
    """
    code = refuse_proposal(table, slots, num, drafts, num_drafted)
    ending = np.empty(LONGEST_MATCH, np.int32)
    firsts = np.empty(NUM_ORDERS, np.int64)
    nexts, own, elsewhere = np.empty((3, MAX_HITS), np.int64)
    ring_shift = shift_for(len(ring.tokens))
    for i in range(num if code == 0 else 0):
        found[:, i] = 0
        shared[i] = False
        if only_after and num_drafted[i] == 0:
            continue
        row = table[slots[i]]
        length, tenant = row[LENGTH], row[TENANT]
        chains = chains_at(row[ADDRESS], row[CAPACITY])
        num_ending = min(length + num_drafted[i], LONGEST_MATCH)
        for j in range(num_ending):
            past = num_drafted[i] - j
            ending[j] = drafts[i, past - 1] if past > 0 else chains.tokens[length - 1 + past]
        match, hits = find(
            chains, shift_for(row[CAPACITY]), 0, -1,
            length - 1, length - 1, ending, num_ending, 0, firsts, own,
        )  # fmt: skip
        longer, more = find(
            ring, ring_shift, tenant + 1, tenant,
            newest, len(ring.tokens) - 1, ending, num_ending, match, firsts, elsewhere,
        )  # fmt: skip
        limit = max(1, min(limits[i], tokens.shape[1]))
        agree = count = 0
        if longer:
            match, hits = longer, more
            count, agree = go_on(
                ring.tokens, newest, drafts[i], -1, elsewhere, hits, limit, nexts, tokens[i]
            )
        elif match:
            count, agree = go_on(
                chains.tokens, length - 1, drafts[i], num_drafted[i],
                own, hits, limit, nexts, tokens[i],
            )  # fmt: skip
        found[0, i] = min(count, max(0, limits[i]))
        found[1, i], found[2, i], found[3, i] = match, hits, agree
        shared[i] = longer > 0
    return code
