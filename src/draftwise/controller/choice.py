"""Choice: which tokens to verify, for all requests at one price of a verified token.

The possible drafts of a request form a curve: the most tokens that a draft of ``w`` tokens is
expected to add, whichever drafters write it. The slope of its upper concave hull is the value of
each further token. The segments of all hulls, best first, are the step's demand. The number of
tokens maximises

    expected tokens - rate * seconds(tokens in the step)

where ``rate`` is the engine's current tokens per second (Dinkelbach's method for the largest
ratio). Seconds may be any function of the number of tokens: a step with a stair is filled up to the
stair's edge, since the tokens before the edge are free.
"""

from __future__ import annotations

import numpy as np

from draftwise.compiled import compiled, warms_up
from draftwise.controller.acceptance import (
    AFTER,
    AFTER_FOUND,
    FOUND,
    GROUP,
    MODEL,
    OFFERED,
    OWN,
    PLAYED_MATCH,
    PLAYED_MODEL,
    ROOM,
    Int32,
    Slots,
    new_slots,
    new_tables,
)
from draftwise.types import Floats, Ints

NUM_PRICES = 512  # number of bins for prices between 0 and 1 expected token
PRICES = np.arange(9) / 8
"""Prices at which the lengths of the model's drafts are compared."""


@compiled
def curve(survival: Floats, facts: Ints, value: Floats, parts: Ints) -> int:
    """value[w]: most expected tokens of a draft of w tokens, -1 if no draft has w.

    survival, facts: of one slot. parts[w]: tokens of the model, and tokens of retrieval, which
    follow the model's. Returns the largest w.
    """
    model, match, after = survival[MODEL], survival[OWN], survival[AFTER]
    room = int(facts[ROOM])
    num_model, num_match = min(int(facts[OFFERED]), room), min(int(facts[FOUND]), room)
    for w in range(len(value)):
        value[w] = -1.0
    value[0] = 0.0
    top, total = 0, 0.0
    for w in range(1, num_model + 1):
        total += model[w - 1]
        value[w] = total
        parts[w, 0], parts[w, 1] = w, 0
        top = w
    if 0 < num_model < room and num_model == facts[OFFERED]:
        for j in range(min(facts[AFTER_FOUND], room - num_model)):
            total += model[num_model - 1] * after[j]
            top = num_model + j + 1
            value[top] = total
            parts[top, 0], parts[top, 1] = num_model, j + 1
    total = 0.0
    for w in range(1, num_match + 1):
        total += match[w - 1]
        if total > value[w]:
            value[w] = total
            parts[w, 0], parts[w, 1] = 0, w
    return max(top, num_match)


@compiled
def hull(value: Floats, top: int, points: Ints) -> int:
    """Write the widths on the rising upper concave hull of value[0..top]; return their number."""
    num = 1
    points[0] = 0
    for w in range(1, top + 1):
        if value[w] <= value[points[num - 1]] + 1e-12:
            continue
        while num >= 2:
            left, middle = points[num - 2], points[num - 1]
            rise = (value[w] - value[middle]) * (middle - left)
            if (value[middle] - value[left]) * (w - middle) > rise:
                break
            num -= 1
        points[num] = w
        num += 1
    return num


@compiled
def _demand(
    slots: Ints, known: Slots, widths: Ints, gains: Floats, parts: Ints, ends: Ints
) -> None:
    """Write the segments of every hull, best first: width, gain, and the draft up to its end.

    ends: [rows + 1] index of each row's first segment.
    """
    length = known.tokens.shape[2]
    value = np.empty(length + 1)
    options = np.empty((length + 1, 2), np.int64)
    points = np.empty(length + 2, np.int64)
    at = 0
    for i in range(len(slots)):
        slot = slots[i]
        ends[i] = at
        top = curve(known.survival[slot], known.facts[slot], value, options)
        for k in range(1, hull(value, top, points)):
            left, right = points[k - 1], points[k]
            widths[at] = right - left
            gains[at] = known.worth[slot] * (value[right] - value[left])
            for part in range(2):
                parts[at, part] = options[right, part]
            at += 1
    ends[len(slots)] = at


@compiled
def _sweep(
    widths: Ints, gains: Floats, prices: Ints, seconds: Floats, rate: float
) -> tuple[int, int]:
    """Return the number of tokens to verify, best first, and the price bin of the last one."""
    tokens = np.zeros(NUM_PRICES, np.int64)
    sums = np.zeros(NUM_PRICES)
    for at in range(len(prices)):
        price = min(int(gains[at] / widths[at] * NUM_PRICES), NUM_PRICES - 1)
        prices[at] = price
        tokens[price] += widths[at]
        sums[price] += gains[at]
    best, drafted, cut = -rate * seconds[0], 0, NUM_PRICES
    num, total = 0, 0.0
    for price in range(NUM_PRICES - 1, -1, -1):
        if tokens[price] == 0:
            continue
        slope = sums[price] / tokens[price]
        for x in range(1, min(tokens[price], len(seconds) - 1 - num) + 1):
            worth = total + slope * x - rate * seconds[num + x]
            if worth > best:
                best, drafted, cut = worth, num + x, price
        num += tokens[price]
        total += sums[price]
        if num >= len(seconds):
            break
    return drafted, cut


@compiled
def _play(slot: int, part: Ints, known: Slots) -> None:
    facts = known.facts[slot]
    facts[PLAYED_MODEL], facts[PLAYED_MATCH] = part[0], part[1]


@compiled
def choose(
    slots: Ints, known: Slots, seconds: Floats, rate: float, drafts: Int32, bounds: Ints
) -> tuple[int, float, float]:
    """Choose the best draft of every request, at one price per token.

    seconds[x]: duration of the step if x drafted tokens are verified. rate: tokens per second.
    drafts (output): [n] concatenated drafts; bounds (output): [rows + 1] where each begins.
    Returns drafted tokens, expected added tokens, and the price of a token.
    """
    rows = len(slots)
    size = rows * known.tokens.shape[2]
    widths, gains = np.empty(size, np.int64), np.empty(size)
    parts, ends = np.empty((size, 2), np.int64), np.empty(rows + 1, np.int64)
    _demand(slots, known, widths, gains, parts, ends)
    prices = np.empty(ends[rows], np.int64)
    drafted, cut = _sweep(widths, gains, prices, seconds, rate)
    left, expected = drafted, 0.0
    for i in range(rows):
        for at in range(ends[i], ends[i + 1]):
            if prices[at] <= cut:
                break
            _play(slots[i], parts[at], known)
            left -= widths[at]
            expected += gains[at] / known.worth[slots[i]]
    if cut < NUM_PRICES:  # requests whose next token has exactly the final price
        for i in range(rows):
            for at in range(ends[i], ends[i + 1]):
                if prices[at] == cut and widths[at] <= left:
                    _play(slots[i], parts[at], known)
                    left -= widths[at]
                    expected += gains[at] / known.worth[slots[i]]
    write(slots, known, drafts, bounds)
    return drafted - left, expected, cut / NUM_PRICES


@compiled
def write(slots: Ints, known: Slots, drafts: Int32, bounds: Ints) -> None:
    """Write the tokens of the chosen drafts to the outputs of ``choose``."""
    end = 0
    for i in range(len(slots)):
        slot = slots[i]
        facts = known.facts[slot]
        num_model, num_match = facts[PLAYED_MODEL], facts[PLAYED_MATCH]
        bounds[i] = end
        for j in range(num_model):
            drafts[end + j] = known.tokens[slot, MODEL, j]
        end += num_model
        source = AFTER if num_model else OWN
        for j in range(num_match):
            drafts[end + j] = known.tokens[slot, source, j]
        end += num_match
    bounds[len(slots)] = end


@compiled
def _surplus(survival: Floats, facts: Ints, after: Floats, price: float, out: Floats) -> None:
    """Add to out[k] the worth of one request's best draft if the model writes k tokens.

    Worth: expected tokens minus their price. Candidates: a prefix of the model's tokens, retrieval
    after all of them, or retrieval alone.
    """
    model, match = survival[MODEL], survival[OWN]
    most, num_match = facts[ROOM], min(facts[FOUND], facts[ROOM])
    alone = 0.0
    for j in range(num_match):
        alone += max(match[j] - price, 0.0)
    out[0] += alone
    total, best, worth = 0.0, 0.0, alone
    for k in range(1, len(out)):
        if k > most:
            out[k] += worth
            continue
        total += model[k - 1] - price
        best = max(best, total)
        more = 0.0
        for j in range(most - k):
            gain = model[k - 1] * after[facts[GROUP], j] - price
            if gain <= 0.0:
                break
            more += gain
        worth = max(alone, best, total + more)
        out[k] += worth


@compiled
def mean_surplus(
    slots: Ints, known: Slots, after: Floats, discount: float, means: Floats, longest: int
) -> None:
    """Update the discounted mean worth of model drafts of 0 .. longest tokens, at all PRICES.

    means: [prices, lengths + 2]; the last entry of a row counts calls. Early calls reflect mostly
    priors, so their weight decays quickly. Of many requests, only some are read.
    """
    stride = max(len(slots) // 16, 1)
    some = slots[int(means[0, -1]) % stride :: stride]
    worth = np.zeros((len(PRICES), longest + 1))
    for slot in some:
        own = np.zeros((len(PRICES), longest + 1))
        for i in range(len(PRICES)):
            price = PRICES[i] / known.worth[slot]
            _surplus(known.survival[slot], known.facts[slot], after, price, own[i])
        worth += known.worth[slot] * own
    weight = max(1.0 - discount ** len(some), 3.0 / (3.0 + means[0, -1]))
    for i in range(len(PRICES)):
        for k in range(means.shape[1] - 1):
            means[i, k] += weight * (worth[i, min(k, longest)] / len(some) - means[i, k])
        means[i, -1] += 1.0


@compiled
def best_length(
    means: Floats, longest: int, num_requests: int, rate: float, seconds: Floats,
    fixed_s: float, each_s: float,
) -> int:  # fmt: skip
    """The length of the model's drafts of the step that is worth most, at its best width.

    seconds[x]: of a step that verifies x drafted tokens. Tokens that are worth W beyond a price p
    bring at most W + p x if x of them are verified, and at some price just that.
    """
    best, length = -rate * seconds[0], 0
    for k in range(longest + 1):
        cost = rate * max(fixed_s + each_s * k, 0.0) if k else 0.0
        at = len(PRICES) - 1
        for x in range(1, len(seconds)):
            total = num_requests * means[at, k] + PRICES[at] * x
            while at > 0:
                less = num_requests * means[at - 1, k] + PRICES[at - 1] * x
                if less >= total:
                    break
                at, total = at - 1, less
            worth = total - rate * seconds[x] - cost
            if worth > best:
                best, length = worth, k
    return length


@warms_up
def _warm_up() -> None:
    one, known = np.zeros(1, np.int64), new_slots(1, 2)
    drafts, bounds = np.zeros(2, np.int32), np.zeros(2, np.int64)
    choose(one, known, np.ones(3), 1.0, drafts, bounds)
    means = np.zeros((len(PRICES), 4))
    mean_surplus(one, known, new_tables(2).after, 0.9, means, 1)
    best_length(means, 1, 1, 1.0, np.ones(3), 0.0, 0.0)
