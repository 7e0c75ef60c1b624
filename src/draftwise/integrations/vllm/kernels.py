"""Kernels that choose drafts on the device; ``draftwise.controller.mixing`` is their specification.

``scan`` compares every place of a text with the text's end, a block of places in each program;
``mix`` reduces the blocks of a request, and writes its draft. A row without a new token (a part of
a prompt) gets no draft.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from draftwise.controller import acceptance, mixing
from draftwise.controller.kernels import LONGEST_MATCH

LOWEST, HIGHEST = tl.constexpr(acceptance.LOWEST), tl.constexpr(acceptance.HIGHEST)
NUM_BUCKETS = tl.constexpr(acceptance.NUM_MATCHES)
LONGEST = tl.constexpr(LONGEST_MATCH)
NOTHING, RETRIEVAL, MODEL = (
    tl.constexpr(drafter) for drafter in (mixing.NOTHING, mixing.RETRIEVAL, mixing.MODEL)
)
FOUND = 5
"""Numbers of a match: its length, place, hits, and the least and largest next token."""
NUM_FOUND = tl.constexpr(FOUND)
FACTS = 8
"""Numbers of a row after its own, after and head's tokens: twice length, hits and whether the next
tokens agree, then the drafter, and the tokens that the head wrote."""
NUM_FACTS = tl.constexpr(FACTS)
ROW = 6
"""Numbers of a row that the host sends: whether it may use the model, retrieval, its room, whether
it is new in its slot, and its two factors (as bits of float32)."""
NUM_ROW = tl.constexpr(ROW)
BLOCK = 1024


@triton.jit
def _scan_kernel(
    text_ptr, text_stride, slots_ptr, lengths_ptr, num_sampled_ptr, head_ptr, head_stride,
    found_ptr, num_blocks, num_head, BLOCK: tl.constexpr,
):  # fmt: skip
    row, after, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    found_ptr += ((row * 2 + after) * num_blocks + block) * NUM_FOUND
    slot = tl.load(slots_ptr + row).to(tl.int64)
    num = tl.load(lengths_ptr + slot)
    num_drafted = after * num_head
    is_idle = (tl.load(num_sampled_ptr + row) == 0) | ((after > 0) & (num_head == 0))
    if is_idle | (block * BLOCK >= num):
        tl.store(found_ptr, 0)
        return
    text_ptr += slot * text_stride
    head_ptr += row * head_stride
    places = block * BLOCK + tl.arange(0, BLOCK)
    alive = (places > 0) & (places < num)
    lengths = tl.zeros([BLOCK], tl.int32)
    j = 0
    num_alive = tl.sum(alive.to(tl.int32), axis=0)
    while num_alive > 0:
        from_head = j < num_drafted
        at = num + num_drafted - 1 - j
        drafted = tl.load(head_ptr + num_drafted - 1 - j, mask=from_head, other=-2).to(tl.int32)
        written = tl.load(text_ptr + at, mask=(~from_head) & (at >= 0), other=-2)
        token = tl.where(from_head, drafted, written)
        before = places - 1 - j
        alive = alive & (before >= 0)
        alive = alive & (tl.load(text_ptr + before, mask=alive, other=-1) == token)
        lengths += alive.to(tl.int32)
        j += 1
        num_alive = tl.where(j < LONGEST, tl.sum(alive.to(tl.int32), axis=0), 0)
    longest = tl.max(lengths, axis=0)
    is_hit = (lengths == longest) & (longest > 0)
    nexts = tl.load(text_ptr + places, mask=is_hit, other=0)
    tl.store(found_ptr, longest)
    tl.store(found_ptr + 1, tl.max(tl.where(is_hit, places, 0), axis=0))
    tl.store(found_ptr + 2, tl.sum(is_hit.to(tl.int32), axis=0))
    tl.store(found_ptr + 3, tl.min(tl.where(is_hit, nexts, 0x7FFFFFFF), axis=0))
    tl.store(found_ptr + 4, tl.max(tl.where(is_hit, nexts, -1), axis=0))


@triton.jit
def _reduce(found_ptr, num_blocks, BLOCKS: tl.constexpr):
    """The longest match of all blocks: length, latest place, hits, and whether they agree."""
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
def _mix_kernel(
    text_ptr, text_stride, slots_ptr, lengths_ptr, num_sampled_ptr, num_rejected_ptr, head_ptr,
    head_stride, found_ptr, num_blocks, num_head, hazards_ptr, rows_ptr, factors_ptr, memory_ptr,
    drafts_ptr, confidence_ptr, facts_ptr, price, NUM: tl.constexpr, WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr, NUM_OUTCOMES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    lanes = tl.arange(0, WIDTH)
    inside = lanes < NUM
    rows_ptr += row * NUM_ROW
    facts_ptr += row * (3 * NUM + NUM_FACTS)
    head_ptr += row * head_stride
    num = tl.load(lengths_ptr + slot)
    text_ptr += slot * text_stride
    may_use_model, may_use_retrieval = tl.load(rows_ptr), tl.load(rows_ptr + 1)
    room, is_new = tl.load(rows_ptr + 2), tl.load(rows_ptr + 3)
    # the outcome of the model's draft that this step has verified
    num_sampled = tl.load(num_sampled_ptr + row)
    kept = tl.maximum(num_sampled - 1, 0)
    verified = kept + tl.load(num_rejected_ptr + row)
    played = tl.minimum(tl.load(memory_ptr + slot * 2 + 1), verified)
    outcome = tl.load(memory_ptr + slot * 2)
    seen = tl.where(kept == 0, 1, tl.where(kept < played, 2, 3))
    outcome = tl.where((played > 0) & (num_sampled > 0), seen, outcome)
    outcome = tl.where(is_new > 0, 0, outcome)

    found_ptr += row * 2 * num_blocks * NUM_FOUND
    match, place, hits, agree = _reduce(found_ptr, num_blocks, BLOCKS)
    found_ptr += num_blocks * NUM_FOUND
    num_scanned = tl.where(num_head > 0, num_blocks, 0)
    match2, place2, hits2, agree2 = _reduce(found_ptr, num_scanned, BLOCKS)
    model_factor, own_factor = (
        tl.load(factors_ptr + row * NUM_ROW + 4),
        tl.load(factors_ptr + row * NUM_ROW + 5),
    )
    at = hazards_ptr + (outcome * NUM_BUCKETS + _bucket(match)) * NUM + lanes
    model = _survival(tl.load(at, mask=inside, other=1.0), model_factor)
    hazards_ptr += NUM_OUTCOMES * NUM_BUCKETS * NUM
    at = hazards_ptr + agree * NUM_BUCKETS + _bucket(match + lanes)
    own = _survival(tl.load(at), own_factor)
    # lane j of ``after`` is its token j - num_head, behind the head's tokens
    later = tl.maximum(lanes - num_head, 0)
    kind = 1 + tl.minimum(num_head, 3)
    hazards = tl.load(hazards_ptr + kind * NUM_BUCKETS + _bucket(match2 + later))
    hazards = tl.minimum(tl.maximum(hazards * own_factor, LOWEST), HIGHEST)
    after = tl.cumprod(tl.where(lanes < num_head, 1.0, 1.0 - hazards), axis=0)
    through = tl.sum(tl.where(lanes == num_head - 1, model, 0.0), axis=0)
    uses_after = (may_use_retrieval > 0) & (match2 > 0)
    after = tl.where(uses_after & (num_head > 0), through * after, 0.0)
    chain = tl.where(lanes < num_head, model, after)

    wanted = inside & (lanes < room)
    own_worth = tl.sum(tl.where(wanted, tl.maximum(own - price, 0.0), 0.0), axis=0)
    chain_worth = tl.sum(tl.where(wanted, tl.maximum(chain - price, 0.0), 0.0), axis=0)
    own_worth = tl.where((may_use_retrieval > 0) & (match > 0), own_worth, -1.0)
    chain_worth = tl.where((may_use_model > 0) & (num_head > 0), chain_worth, -1.0)
    is_own = own_worth > chain_worth
    drafter = tl.where(is_own, RETRIEVAL, tl.where(chain_worth < 0.0, NOTHING, MODEL))
    drafter = tl.where(num_sampled > 0, drafter, NOTHING)

    has_own, has_after = inside & (match > 0), inside & (match2 > 0)
    own_tokens = _follow(text_ptr, head_ptr, num, 0, place, lanes, has_own)
    after_tokens = _follow(text_ptr, head_ptr, num, num_head, place2, lanes, has_after)
    end = tl.where(uses_after, NUM, num_head)
    steps = tl.minimum(lanes, end - 1)
    late = _follow(
        text_ptr, head_ptr, num, num_head, place2, tl.maximum(steps - num_head, 0),
        inside & uses_after & (steps >= num_head),
    )  # fmt: skip
    written = tl.load(
        head_ptr + tl.minimum(steps, num_head - 1), mask=inside & (num_head > 0), other=0
    ).to(tl.int32)
    last = tl.load(text_ptr + num - 1)
    draft = tl.where(steps < num_head, written, late)
    draft = tl.where(drafter == RETRIEVAL, own_tokens, draft)
    draft = tl.where(drafter == NOTHING, last, draft)
    alive = tl.where(drafter == RETRIEVAL, own, chain)
    alive = tl.where(wanted & (drafter != NOTHING), alive, 0.0)
    # the confidence of a token: its survival over that of the token before
    shifted = tl.sum(tl.where((lanes[:, None] - 1) == lanes[None, :], alive[None, :], 0.0), axis=1)
    shifted = tl.where(lanes == 0, 1.0, shifted)
    confidence = tl.where(shifted > 0.0, alive / tl.where(shifted > 0.0, shifted, 1.0), 0.0)

    tl.store(memory_ptr + slot * 2, outcome)
    model_tokens = tl.where(drafter == MODEL, num_head, 0)
    tl.store(memory_ptr + slot * 2 + 1, model_tokens)
    tl.store(drafts_ptr + row * NUM + lanes, draft.to(tl.int64), mask=inside)
    tl.store(confidence_ptr + row * NUM + lanes, confidence, mask=inside)
    tl.store(facts_ptr + lanes, tl.where(has_own, own_tokens, -1), mask=inside)
    tl.store(facts_ptr + NUM + lanes, tl.where(has_after, after_tokens, -1), mask=inside)
    offered = tl.load(head_ptr + lanes, mask=inside & (lanes < num_head), other=-1).to(tl.int32)
    tl.store(facts_ptr + 2 * NUM + lanes, offered, mask=inside)
    facts_ptr += 3 * NUM
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
    batch; facts int32 [slots, 3 * num + FACTS]. memory int32 [slots, 2]: by slot, the outcome of
    the last draft, and the model's tokens in the present one.
    """

    def __init__(self, num_slots: int, max_len: int, num: int, device: torch.device) -> None:
        def zeros(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_slots, width), dtype=dtype, device=device)

        self.num, self._most_blocks = num, triton.cdiv(max_len, BLOCK)
        self.drafts = zeros(num, torch.int64)
        self.confidence = zeros(num, torch.float32)
        self.facts = zeros(3 * num + FACTS, torch.int32)
        self.memory = zeros(2, torch.int32)
        self._found = zeros(2 * self._most_blocks * FOUND, torch.int32)

    def __call__(
        self, text: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor,
        num_sampled: torch.Tensor, num_rejected: torch.Tensor, head: torch.Tensor, num_head: int,
        hazards: torch.Tensor, rows: torch.Tensor, price: float, longest: int,
    ) -> None:  # fmt: skip
        """Draft for the rows of a batch.

        text: int32 [slots, max_len]; lengths: int32 [slots]. slots, num_sampled, num_rejected:
        [rows]. head: int64 [rows, >= num_head]. hazards: float32, both arrays of ``Hazards``, flat.
        rows: int32 [rows, ROW]. longest: an upper bound of the texts' lengths.
        """
        num_rows = len(slots)
        num_blocks = min(max(triton.cdiv(longest, BLOCK), 1), self._most_blocks)
        batch = text, text.stride(0), slots, lengths, num_sampled
        _scan_kernel[(num_rows, 2 if num_head else 1, num_blocks)](
            *batch, head, head.stride(0), self._found, num_blocks, num_head, BLOCK=BLOCK
        )
        _mix_kernel[(num_rows,)](
            *batch, num_rejected, head, head.stride(0), self._found, num_blocks, num_head, hazards,
            rows, rows.view(torch.float32), self.memory, self.drafts, self.confidence, self.facts,
            float(price), NUM=self.num, WIDTH=triton.next_power_of_2(self.num),
            BLOCKS=triton.next_power_of_2(self._most_blocks),
            NUM_OUTCOMES=acceptance.NUM_OUTCOMES,
        )  # fmt: skip
