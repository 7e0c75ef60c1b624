"""Kernels that choose drafts on the device; the tests have their specification in numpy.

``scan`` compares every place of a text with the text's end, ``recall`` every place of the history
with the ends of several texts, a block of places in each program; ``mix`` reduces the blocks of a
request, and writes its draft. A row without a new token (a part of a prompt) gets no draft.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from draftwise.controller import acceptance, mixing
from draftwise.controller.rates import NUM_MATCHES
from draftwise.retrieval.kernels import LONGEST_MATCH

LOWEST, HIGHEST = tl.constexpr(acceptance.LOWEST), tl.constexpr(acceptance.HIGHEST)
NUM_BUCKETS = tl.constexpr(NUM_MATCHES)
LONGEST = tl.constexpr(LONGEST_MATCH)
NOTHING, RETRIEVAL, MODEL = (
    tl.constexpr(drafter) for drafter in (mixing.NOTHING, mixing.RETRIEVAL, mixing.MODEL)
)
FOUND = 5
"""Numbers of a match: its length, latest place (in the history: its age), hits, and the least and
largest next token."""
NUM_FOUND = tl.constexpr(FOUND)
FACTS = 8
"""Numbers of a row after its own, after and head's tokens, and the confidence of its draft (in
millionths): twice length, hits and whether the next
tokens agree, then the drafter, and the tokens that the head wrote."""
NUM_FACTS = tl.constexpr(FACTS)
ROW = 7
"""Numbers of a row that the host sends: whether it may use the model, retrieval, its room, whether
it is new in its slot, its two factors (as bits of float32), and its tenant."""
NUM_ROW = tl.constexpr(ROW)
BLOCK = 1024
GROUP = 8  # rows of a program of ``recall``, which reads its block once
VARYING = (
    "num_blocks", "num_recalled", "num_rows", "num_head", "newest", "size", "head_stride",
    "given_stride", "slots_ptr", "num_sampled_ptr", "num_rejected_ptr", "head_ptr", "given_ptr",
    "hazards_ptr", "rows_ptr", "factors_ptr",
)  # fmt: skip
"""Arguments that change from step to step. Triton would compile a kernel once more when one of them
is 1, or a multiple of 16 (a pointer: aligned), for the first time."""
kernel = functools.partial(triton.jit, do_not_specialize=VARYING)


@triton.jit
def _end_token(text_ptr, num, head_ptr, num_drafted, j):
    """Token j from the end of text and draft; -2 before its start."""
    from_head = j < num_drafted
    at = num + num_drafted - 1 - j
    drafted = tl.load(head_ptr + num_drafted - 1 - j, mask=from_head, other=-2).to(tl.int32)
    written = tl.load(text_ptr + at, mask=(~from_head) & (at >= 0), other=-2)
    return tl.where(from_head, drafted, written)


@triton.jit
def _store_found(found_ptr, lengths, order, nexts_ptr):
    """Store the longest match of a block of places, and the last in ``order`` that has it."""
    longest = tl.max(lengths, axis=0)
    is_hit = (lengths == longest) & (longest > 0)
    nexts = tl.load(nexts_ptr, mask=is_hit, other=0)
    tl.store(found_ptr, longest)
    tl.store(found_ptr + 1, tl.max(tl.where(is_hit, order, 0), axis=0))
    tl.store(found_ptr + 2, tl.sum(is_hit.to(tl.int32), axis=0))
    tl.store(found_ptr + 3, tl.min(tl.where(is_hit, nexts, 0x7FFFFFFF), axis=0))
    tl.store(found_ptr + 4, tl.max(tl.where(is_hit, nexts, -1), axis=0))


@triton.jit
def _extend(lengths, alive, tokens_ptr, places, text_ptr, num, head_ptr, num_drafted, j):
    """Lengths of matches before ``places`` that are ``alive`` after j tokens."""
    num_alive = tl.sum(alive.to(tl.int32), axis=0)
    while num_alive > 0:
        token = _end_token(text_ptr, num, head_ptr, num_drafted, j)
        before = places - 1 - j
        alive = alive & (before >= 0)
        alive = alive & (tl.load(tokens_ptr + before, mask=alive, other=-1) == token)
        lengths += alive.to(tl.int32)
        j += 1
        num_alive = tl.where(j < LONGEST, tl.sum(alive.to(tl.int32), axis=0), 0)
    return lengths


@kernel
def _scan_kernel(
    text_ptr, text_stride, slots_ptr, lengths_ptr, num_sampled_ptr, head_ptr, head_stride,
    found_ptr, num_blocks, num_head, BLOCK: tl.constexpr,
):  # fmt: skip
    row, after, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    found_ptr += ((row * 2 + after) * num_blocks + block) * NUM_FOUND
    slot = tl.load(slots_ptr + row).to(tl.int64)
    num = tl.load(lengths_ptr + slot)
    is_idle = (tl.load(num_sampled_ptr + row) == 0) | ((after > 0) & (num_head == 0))
    if is_idle | (block * BLOCK >= num):
        tl.store(found_ptr, 0)
        return
    text_ptr += slot * text_stride
    places = block * BLOCK + tl.arange(0, BLOCK)
    alive, lengths = (places > 0) & (places < num), tl.zeros([BLOCK], tl.int32)
    head_ptr += row * head_stride
    lengths = _extend(
        lengths, alive, text_ptr, places, text_ptr, num, head_ptr, after * num_head, 0
    )  # fmt: skip
    _store_found(found_ptr, lengths, places, text_ptr + places)


@kernel
def _recall_kernel(
    ring_ptr, owners_ptr, newest, size, text_ptr, text_stride, slots_ptr, lengths_ptr,
    num_sampled_ptr, head_ptr, head_stride, rows_ptr, found_ptr, num_rows, num_blocks, num_head,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = (places > 0) & (places < size)
    inside = inside & (tl.load(ring_ptr + places, mask=inside, other=-1) >= 0)
    before = tl.load(ring_ptr + places - 1, mask=inside, other=-1)
    ages = (places - newest + size) % size
    for i in range(2 * GROUP):
        row, after = tl.program_id(1) * GROUP + i // 2, i % 2
        if row < num_rows:
            found = found_ptr + ((row * 2 + after) * num_blocks + block) * NUM_FOUND
            slot = tl.load(slots_ptr + row).to(tl.int64)
            num, num_drafted = tl.load(lengths_ptr + slot), after * num_head
            is_idle = (tl.load(num_sampled_ptr + row) == 0) | ((after > 0) & (num_head == 0))
            text, head = text_ptr + slot * text_stride, head_ptr + row * head_stride
            token = _end_token(text, num, head, num_drafted, 0)
            alive = inside & (before == token) & (~is_idle)
            tenant = tl.load(rows_ptr + row * NUM_ROW + 6)
            alive = alive & (tl.load(owners_ptr + places, mask=alive, other=-2) == tenant)
            lengths = _extend(
                alive.to(tl.int32), alive, ring_ptr, places, text, num, head, num_drafted, 1
            )  # fmt: skip
            _store_found(found, lengths, ages, ring_ptr + places)


@triton.jit
def _reduce(found_ptr, num_blocks, BLOCKS: tl.constexpr):
    """The longest match of all blocks: length, last in order, hits, and whether they agree."""
    blocks = tl.arange(0, BLOCKS)
    inside = blocks < num_blocks
    at = found_ptr + blocks * NUM_FOUND
    lengths = tl.load(at, mask=inside, other=0)
    longest = tl.max(lengths, axis=0)
    is_best = inside & (lengths == longest) & (longest > 0)
    place = tl.max(tl.load(at + 1, mask=is_best, other=0), axis=0)
    hits = tl.sum(tl.load(at + 2, mask=is_best, other=0), axis=0)
    low = tl.min(tl.load(at + 3, mask=is_best, other=0x7FFFFFFF), axis=0)
    high = tl.max(tl.load(at + 4, mask=is_best, other=-1), axis=0)
    return longest, place, hits, ((longest > 0) & (low == high)).to(tl.int32)


@triton.jit
def _follow(text_ptr, head_ptr, num, num_drafted, place, steps, wanted):
    """Tokens ``steps`` after a place; past the end of text and draft they repeat."""
    at = place + steps % tl.maximum(num + num_drafted - place, 1)
    drafted = tl.load(head_ptr + at - num, mask=wanted & (at >= num), other=0).to(tl.int32)
    return tl.where(at < num, tl.load(text_ptr + at, mask=wanted & (at < num), other=0), drafted)


@triton.jit
def _survival(hazards, factor):
    hazards = tl.minimum(tl.maximum(hazards * factor, LOWEST), HIGHEST)
    return tl.cumprod(1.0 - hazards, axis=0)


@triton.jit
def _bucket(match):
    bucket = tl.maximum(tl.minimum(match, 2), 0)
    bucket = tl.where(match > 2, 3, bucket)
    bucket = tl.where(match > 4, 4, bucket)
    bucket = tl.where(match > 8, 5, bucket)
    return tl.where(match > 16, 6, bucket)


@triton.jit
def _best(
    found_ptr, num_blocks, BLOCKS: tl.constexpr, recalled_ptr, num_recalled,
    RECALLED: tl.constexpr, newest, size,
):  # fmt: skip
    """The match in the text, or a longer one in the history: ``shared``."""
    match, place, hits, agree = _reduce(found_ptr, num_blocks, BLOCKS)
    match2, age, hits2, agree2 = _reduce(recalled_ptr, num_recalled, RECALLED)
    shared = match2 > match
    place = tl.where(shared, (age + newest) % tl.maximum(size, 1), place)
    hits, agree = tl.where(shared, hits2, hits), tl.where(shared, agree2, agree)
    return tl.where(shared, match2, match), place, hits, agree, shared


@triton.jit
def _retrieved(
    shared, match, text_ptr, head_ptr, num, num_drafted, ring_ptr, size, place, steps, inside
):  # fmt: skip
    """Tokens ``steps`` after a match, and whether there are any up to each."""
    wanted = inside & (match > 0)
    own = _follow(text_ptr, head_ptr, num, num_drafted, place, steps, wanted & (~shared))
    at = place + steps
    recalled = tl.load(ring_ptr + at, mask=wanted & shared & (at < size), other=-1)
    tokens = tl.where(shared, recalled, own)
    is_valid = tl.cumprod((wanted & (tokens >= 0)).to(tl.int32), axis=0)
    return tokens, is_valid > 0


@kernel
def _mix_kernel(
    text_ptr, text_stride, slots_ptr, lengths_ptr, num_sampled_ptr, num_rejected_ptr, head_ptr,
    head_stride, found_ptr, num_blocks, recalled_ptr, num_recalled, ring_ptr, newest, size,
    num_head, given_ptr, given_stride, hazards_ptr, rows_ptr, factors_ptr, memory_ptr, drafts_ptr,
    confidence_ptr, facts_ptr, price, GIVEN: tl.constexpr, NUM: tl.constexpr,
    WIDTH: tl.constexpr, BLOCKS: tl.constexpr, RECALLED: tl.constexpr, NUM_OUTCOMES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    inside = lanes < NUM
    rows_ptr += row * NUM_ROW
    factors_ptr += row * NUM_ROW
    facts_ptr += row * (4 * NUM + NUM_FACTS)
    head_ptr += row * head_stride
    num = tl.load(lengths_ptr + slot)
    text_ptr += slot * text_stride
    may_use_model, may_use_retrieval = tl.load(rows_ptr), tl.load(rows_ptr + 1)
    room, is_new = tl.load(rows_ptr + 2), tl.load(rows_ptr + 3)
    model_factor, own_factor = tl.load(factors_ptr + 4), tl.load(factors_ptr + 5)

    # the outcome of the model's draft that this step has verified
    num_sampled = tl.load(num_sampled_ptr + row)
    kept = tl.maximum(num_sampled - 1, 0)
    verified = kept + tl.load(num_rejected_ptr + row)
    played = tl.minimum(tl.load(memory_ptr + slot * 2 + 1), verified)
    outcome = tl.load(memory_ptr + slot * 2)
    seen = tl.where(kept == 0, 1, tl.where(kept < played, 2, 3))
    outcome = tl.where((played > 0) & (num_sampled > 0), seen, outcome)
    outcome = tl.where(is_new > 0, 0, outcome)

    # what occurred before: the text's end, and its end with the head's tokens
    found_ptr += row * 2 * num_blocks * NUM_FOUND
    recalled_ptr += row * 2 * num_recalled * NUM_FOUND
    match, place, hits, agree, shared = _best(
        found_ptr, num_blocks, BLOCKS, recalled_ptr, num_recalled, RECALLED, newest, size
    )
    num_after = tl.where(num_head > 0, 1, 0)
    match2, place2, hits2, agree2, shared2 = _best(
        found_ptr + num_blocks * NUM_FOUND, num_blocks * num_after, BLOCKS,
        recalled_ptr + num_recalled * NUM_FOUND, num_recalled * num_after, RECALLED, newest, size,
    )  # fmt: skip
    own_tokens, has_own = _retrieved(
        shared, match, text_ptr, head_ptr, num, 0, ring_ptr, size, place, lanes, inside
    )
    after_tokens, has_after = _retrieved(
        shared2, match2, text_ptr, head_ptr, num, num_head, ring_ptr, size, place2, lanes, inside
    )
    # the same in the lanes behind the head's tokens
    later, is_head = tl.maximum(lanes - num_head, 0), lanes < num_head
    late_tokens, has_late = _retrieved(
        shared2, match2, text_ptr, head_ptr, num, num_head, ring_ptr, size, place2, later, inside
    )

    # survival
    at = hazards_ptr + (outcome * NUM_BUCKETS + _bucket(match)) * NUM + lanes
    model = _survival(tl.load(at, mask=inside, other=1.0), model_factor)
    if GIVEN > 0:
        given = tl.load(given_ptr + row * given_stride + lanes, mask=inside & is_head, other=1.0)
        model = tl.cumprod(given, axis=0)
    hazards_ptr += NUM_OUTCOMES * NUM_BUCKETS * NUM
    own = _survival(tl.load(hazards_ptr + agree * NUM_BUCKETS + _bucket(match + lanes)), own_factor)
    own = tl.where(has_own, own, 0.0)
    kind = 1 + tl.minimum(num_head, 3)
    hazards = tl.load(hazards_ptr + kind * NUM_BUCKETS + _bucket(match2 + later))
    hazards = tl.minimum(tl.maximum(hazards * own_factor, LOWEST), HIGHEST)
    late = tl.cumprod(tl.where(is_head, 1.0, 1.0 - hazards), axis=0)
    through = tl.sum(tl.where(lanes == num_head - 1, model, 0.0), axis=0)
    uses_late = (may_use_retrieval > 0) & (num_head > 0) & has_late & (~is_head)
    chain = tl.where(is_head, model, tl.where(uses_late, through * late, 0.0))

    # choice
    wanted = inside & (lanes < room)
    own_worth = tl.sum(tl.where(wanted, tl.maximum(own - price, 0.0), 0.0), axis=0)
    chain_worth = tl.sum(tl.where(wanted, tl.maximum(chain - price, 0.0), 0.0), axis=0)
    own_worth = tl.where((may_use_retrieval > 0) & (match > 0), own_worth, -1.0)
    chain_worth = tl.where((may_use_model > 0) & (num_head > 0), chain_worth, -1.0)
    drafter = tl.where(own_worth > chain_worth, RETRIEVAL, MODEL)
    has_none = (num_sampled == 0) | (tl.maximum(own_worth, chain_worth) < 0.0)
    drafter = tl.where(has_none, NOTHING, drafter)

    offered = tl.load(head_ptr + lanes, mask=inside & is_head, other=-1).to(tl.int32)
    is_own = drafter == RETRIEVAL
    tokens = tl.where(is_own, own_tokens, tl.where(is_head, offered, late_tokens))
    has_token = inside & tl.where(is_own, has_own, is_head | uses_late)
    last = tl.sum(has_token.to(tl.int32), axis=0) - 1
    last = tl.sum(tl.where(lanes == last, tokens, 0), axis=0)
    draft = tl.where(has_token, tokens, last)
    draft = tl.where(has_none, tl.load(text_ptr + num - 1), draft)
    # the confidence of a token: its survival over that of the token before
    alive = tl.where(wanted & (~has_none), tl.where(is_own, own, chain), 0.0)
    before = tl.sum(tl.where((lanes[:, None] - 1) == lanes[None, :], alive[None, :], 0.0), axis=1)
    before = tl.where(lanes == 0, 1.0, before)
    confidence = tl.where(before > 0.0, alive / tl.where(before > 0.0, before, 1.0), 0.0)

    tl.store(memory_ptr + slot * 2, outcome)
    tl.store(memory_ptr + slot * 2 + 1, tl.where(drafter == MODEL, num_head, 0))
    tl.store(drafts_ptr + row * NUM + lanes, draft.to(tl.int64), mask=inside)
    tl.store(confidence_ptr + row * NUM + lanes, confidence, mask=inside)
    tl.store(facts_ptr + lanes, tl.where(has_own, own_tokens, -1), mask=inside)
    tl.store(facts_ptr + NUM + lanes, tl.where(has_after, after_tokens, -1), mask=inside)
    tl.store(facts_ptr + 2 * NUM + lanes, offered, mask=inside)
    millionths = (confidence * 1e6).to(tl.int32)
    tl.store(facts_ptr + 3 * NUM + lanes, millionths, mask=inside)
    facts_ptr += 4 * NUM
    tl.store(facts_ptr, match)
    tl.store(facts_ptr + 1, hits)
    tl.store(facts_ptr + 2, agree)
    tl.store(facts_ptr + 3, match2)
    tl.store(facts_ptr + 4, hits2)
    tl.store(facts_ptr + 5, agree2)
    tl.store(facts_ptr + 6, drafter)
    tl.store(facts_ptr + 7, tl.where(num_sampled > 0, num_head, -1))


class Drafting:
    """Buffers of the kernels, for ``num_slots`` texts of at most ``max_len`` tokens.

    After a call: drafts int64 [slots, num] and confidence float32 [slots, num], by row of the
    batch; facts int32 [slots, 4 * num + FACTS]. memory int32 [slots, 2]: by slot, the outcome of
    the last draft, and the model's tokens in the present one. ring, owners: the latest ``history``
    tokens of earlier answers, -1 before each text and at ``newest``, where the next one begins, and
    their tenants. searches: whether texts are searched at all.
    """

    def __init__(
        self, num_slots: int, max_len: int, num: int, device: torch.device, history: int = 0,
        searches: bool = True,
    ) -> None:  # fmt: skip
        def zeros(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_slots, width), dtype=dtype, device=device)

        self.num, self._most_blocks = num, triton.cdiv(max_len, BLOCK) if searches else 0
        self.drafts = zeros(num, torch.int64)
        self.confidence = zeros(num, torch.float32)
        self.facts = zeros(4 * num + FACTS, torch.int32)
        self.memory = zeros(2, torch.int32)
        self._found = zeros(2 * max(self._most_blocks, 1) * FOUND, torch.int32)
        self.size, self._filled, self.newest = history, 0, 0
        self._most_recalled = max(triton.cdiv(history, BLOCK), 1)
        self.ring, self.owners = torch.full((2, max(history, 1)), -1, dtype=torch.int32).to(device)
        self._recalled = zeros(2 * self._most_recalled * FOUND, torch.int32)

    def remember(self, tokens: torch.Tensor, tenant: int) -> None:
        """Add an answer to the history: int32 [n], of which the last half of the ring is kept."""
        tokens = tokens[-(self.size // 2) :]
        if not self.size or not len(tokens):
            return
        text = tokens.new_full((len(tokens) + 2,), -1)  # with what separates it from others
        text[1:-1] = tokens
        at, num = self.newest, len(text)
        part = min(num, self.size - at)
        for begin, end, place in ((0, part, at), (part, num, 0)):
            self.ring[place : place + end - begin] = text[begin:end]
            self.owners[place : place + end - begin] = tenant
        self.newest = (at + num - 1) % self.size
        self._filled = self.size if at + num > self.size else max(self._filled, at + num)

    def forget(self) -> None:
        """Clear the history."""
        self.ring.fill_(-1)
        self._filled = self.newest = 0

    def warm_up(
        self, text: torch.Tensor, lengths: torch.Tensor, given: torch.Tensor | None = None
    ) -> None:
        """Compile the kernels that ``__call__`` launches with such arguments, before any draft."""
        device, filled = text.device, self._filled
        none = torch.zeros(1, dtype=torch.int32, device=device)
        num = acceptance.NUM_OUTCOMES * NUM_MATCHES * self.num
        hazards = torch.zeros(num + acceptance.NUM_KINDS * NUM_MATCHES, device=device)
        rows = torch.zeros((1, ROW), dtype=torch.int32, device=device)
        self._filled = min(self.size, 1)
        self(text, lengths, none, none, none, self.drafts, 0, hazards, rows, 0.0, 1, given)
        self._filled = filled

    def __call__(
        self, text: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor,
        num_sampled: torch.Tensor, num_rejected: torch.Tensor, head: torch.Tensor, num_head: int,
        hazards: torch.Tensor, rows: torch.Tensor, price: float, longest: int,
        given: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Draft for the rows of a batch.

        text: int32 [slots, max_len]; lengths: int32 [slots]. slots, num_sampled, num_rejected:
        [rows]. head: int64 [rows, >= num_head]. hazards: float32, both arrays of ``Hazards``, flat.
        rows: int32 [rows, ROW]. longest: an upper bound of the texts' lengths. given: float32
        [rows, num] confidence of the head's tokens, in place of its hazards.
        """
        num_rows = len(slots)
        num_blocks = min(triton.cdiv(longest, BLOCK), self._most_blocks)
        num_recalled = triton.cdiv(self._filled, BLOCK)
        batch = text, text.stride(0), slots, lengths, num_sampled
        drafted = head, head.stride(0)
        confidence = (hazards, 0) if given is None else (given, given.stride(0))
        if num_blocks:
            _scan_kernel[(num_rows, 2 if num_head else 1, num_blocks)](
                *batch, *drafted, self._found, num_blocks, num_head, BLOCK=BLOCK
            )
        if num_recalled:
            _recall_kernel[(num_recalled, triton.cdiv(num_rows, GROUP))](
                self.ring, self.owners, self.newest, self.size, *batch, *drafted, rows,
                self._recalled, num_rows, num_recalled, num_head, BLOCK=BLOCK, GROUP=GROUP,
            )  # fmt: skip
        _mix_kernel[(num_rows,)](
            *batch, num_rejected, *drafted, self._found, num_blocks, self._recalled, num_recalled,
            self.ring, self.newest, self.size, num_head, *confidence, hazards, rows,
            rows.view(torch.float32), self.memory, self.drafts, self.confidence, self.facts,
            float(price),
            GIVEN=int(given is not None), NUM=self.num,
            WIDTH=triton.next_power_of_2(self.num),
            BLOCKS=triton.next_power_of_2(max(self._most_blocks, 1)),
            RECALLED=triton.next_power_of_2(self._most_recalled),
            NUM_OUTCOMES=acceptance.NUM_OUTCOMES,
        )  # fmt: skip
