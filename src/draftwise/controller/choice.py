"""Choice: which tokens to verify, for all requests at one price of a verified token.

A request's options form a curve: the most tokens that a draft of ``w`` tokens is expected to add,
whoever writes them. Its upper concave hull says what each further token is worth. All segments of
all hulls, best first, are the step's demand; the number of tokens is the one that maximises

    expected tokens - rate * seconds(tokens in the step)

where ``rate`` is the tokens a second that the engine makes at present (Dinkelbach's form of the
largest ratio). Seconds may be any function of the number of tokens: a stair is filled up to its
edge, since the tokens on it are free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.compiled import compiled, warms_up

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_PRICES = 512
"""Prices of a token that are told apart, between 0 and 1 expected token."""


@compiled
def _pair(deep: float, flat: float, joint: float) -> float:
    """Probability that one of two branches is accepted at a depth that both reach.

    joint: learnt, 1 where they are independent, 0 where the weaker one adds nothing.
    """
    high, low = max(deep, flat), min(deep, flat)
    return high + joint * low * (1.0 - high)


@compiled
def curve(
    model: Floats, match: Floats, after: Floats, num_model: int, room: int, joint: float,
    branches: bool, value: Floats, parts: Ints,
) -> int:  # fmt: skip
    """value[w]: most expected tokens of a draft of w tokens, -1 where no draft has w.

    model, match, after: [length] survival of the model's draft, of retrieval, and of retrieval
    after all num_model tokens of the model. parts[w]: tokens of the model, of retrieval, and 1 for
    two branches. Returns the largest w.
    """
    length = len(match)
    value[:] = -1.0
    value[0] = 0.0
    parts[0] = 0
    total = 0.0
    for w in range(1, min(num_model, room) + 1):
        total += model[w - 1]
        value[w] = total
        parts[w, 0], parts[w, 1], parts[w, 2] = w, 0, 0
    if 0 < num_model < room:
        for j in range(min(length, room - num_model)):
            if after[j] <= 0.0:
                break
            total += model[num_model - 1] * after[j]
            w = num_model + j + 1
            value[w] = total
            parts[w, 0], parts[w, 1], parts[w, 2] = num_model, j + 1, 0
    total = 0.0
    for w in range(1, min(length, room) + 1):
        if match[w - 1] <= 0.0:
            break
        total += match[w - 1]
        if total > value[w]:
            value[w] = total
            parts[w, 0], parts[w, 1], parts[w, 2] = 0, w, 0
    top = room
    if branches and num_model and match[0] > 0.0:
        deep, flat, total = 0, 0, 0.0
        for w in range(1, len(value)):
            gain_deep, gain_flat = -1.0, -1.0
            if deep < min(num_model, room):
                other = match[deep] if deep < flat else 0.0
                gain_deep = _pair(model[deep], other, joint) - other
            if flat < min(length, room):
                other = model[flat] if flat < deep else 0.0
                gain_flat = _pair(other, match[flat], joint) - other
            if gain_deep <= 0.0 and gain_flat <= 0.0:
                break
            if gain_deep >= gain_flat:
                total += gain_deep
                deep += 1
            else:
                total += gain_flat
                flat += 1
            if deep and flat and total > value[w]:
                value[w] = total
                parts[w, 0], parts[w, 1], parts[w, 2] = deep, flat, 1
                top = max(top, w)
    return min(top, len(value) - 1)


@compiled
def hull(value: Floats, top: int, points: Ints) -> int:
    """Widths on the upper concave hull of value[0..top], which rises; returns how many."""
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
def choose(
    model: Floats, match: Floats, after: Floats, num_model: Ints, room: Ints, joint: float,
    branches: bool, seconds: Floats, rate: float, parts: Ints,
) -> tuple[int, float, float]:  # fmt: skip
    """The best draft of every request; parts[i] as in ``curve``.

    model, match, after: [rows, length]. seconds[x]: of the step if x drafted tokens are verified.
    rate: tokens a second. Returns drafted tokens, tokens they are expected to add, and the price of
    a token.
    """
    rows, length = match.shape
    widest = 2 * length
    value = np.empty((rows, widest + 1))
    options = np.empty((rows, widest + 1, 3), np.int64)
    points = np.empty((rows, widest + 2), np.int64)
    nums = np.empty(rows, np.int64)
    tokens = np.zeros(NUM_PRICES, np.int64)
    gains = np.zeros(NUM_PRICES)
    for i in range(rows):
        top = curve(
            model[i], match[i], after[i], num_model[i], room[i], joint, branches, value[i],
            options[i],
        )  # fmt: skip
        nums[i] = hull(value[i], top, points[i])
        for k in range(1, nums[i]):
            width = points[i, k] - points[i, k - 1]
            gain = value[i, points[i, k]] - value[i, points[i, k - 1]]
            price = min(int(gain / width * NUM_PRICES), NUM_PRICES - 1)
            tokens[price] += width
            gains[price] += gain
    most = len(seconds) - 1
    best = -rate * seconds[0]
    drafted, expected = 0, 0.0
    cut, num, total = NUM_PRICES, 0, 0.0
    for price in range(NUM_PRICES - 1, -1, -1):
        if tokens[price] == 0:
            continue
        slope = gains[price] / tokens[price]
        for x in range(1, tokens[price] + 1):
            if num + x > most:
                break
            worth = total + slope * x - rate * seconds[num + x]
            if worth > best:
                best, drafted, expected, cut = worth, num + x, total + slope * x, price
        num += tokens[price]
        total += gains[price]
        if num > most:
            break
    left = drafted
    for i in range(rows):
        parts[i] = 0
        for k in range(1, nums[i]):
            width = points[i, k] - points[i, k - 1]
            gain = value[i, points[i, k]] - value[i, points[i, k - 1]]
            if min(int(gain / width * NUM_PRICES), NUM_PRICES - 1) <= cut:
                break
            parts[i] = options[i, points[i, k]]
            left -= width
    if cut < NUM_PRICES:  # requests whose next token has the price of the last one bought
        for i in range(rows):
            for k in range(1, nums[i]):
                width = points[i, k] - points[i, k - 1]
                gain = value[i, points[i, k]] - value[i, points[i, k - 1]]
                if min(int(gain / width * NUM_PRICES), NUM_PRICES - 1) == cut and width <= left:
                    parts[i] = options[i, points[i, k]]
                    left -= width
    return drafted - left, expected, cut / NUM_PRICES


@compiled
def surplus_by_length(
    model: Floats, match: Floats, after: Floats, room: Ints, joint: float, branches: bool,
    price: float, out: Floats,
) -> None:  # fmt: skip
    """out[i, k]: expected tokens less their price, had the model written k tokens for request i.

    model: [rows, lengths] survival of a draft as long as may be. after: [rows, lengths, length]
    survival of retrieval after k + 1 tokens of the model. The best draft is counted, by parts: the
    model's first tokens, with or without retrieval after all of them, retrieval alone, or both as
    branches.
    """
    rows, length = match.shape
    for i in range(rows):
        most = min(room[i], length)
        alone = 0.0
        for j in range(most):
            alone += max(match[i, j] - price, 0.0)
        out[i, 0] = alone
        total, best = 0.0, 0.0
        for k in range(1, out.shape[1]):
            if k > most:
                out[i, k] = out[i, k - 1]
                continue
            total += model[i, k - 1] - price
            best = max(best, total)
            more = 0.0
            for j in range(most - k):
                gain = model[i, k - 1] * after[i, k - 1, j] - price
                if gain <= 0.0:
                    break
                more += gain
            worth = max(alone, best, total + more)
            if branches and alone > 0.0:
                both = 0.0
                for j in range(most):
                    deep = model[i, j] if j < k and model[i, j] > price else 0.0
                    flat = match[i, j] if match[i, j] > price else 0.0
                    if deep + flat == 0.0:
                        break
                    one = max(deep, flat) - price
                    two = _pair(deep, flat, joint) - 2 * price
                    both += two if deep > 0.0 and flat > 0.0 and two > one else one
                worth = max(worth, both)
            out[i, k] = worth


@warms_up
def _warm_up() -> None:
    survival, one = np.full((1, 2), 0.5), np.ones(1, np.int64)
    choose(
        survival, survival, survival, one, one, 0.5, True, np.ones(3), 1.0,
        np.zeros((1, 3), np.int64),
    )  # fmt: skip
    surplus_by_length(
        survival, survival, np.zeros((1, 2, 2)), one, 0.5, True, 0.1, np.zeros((1, 3))
    )
