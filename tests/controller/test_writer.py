"""The source of each token of a draft: bins and prices by hand, and implied choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from draftwise.controller.rates import Bins, bin_of
from draftwise.controller.writer import GoodputMixer, Prices
from draftwise.types import DraftStep

NAN = float("nan")
FLAT = [1.0] * 17
STEEP = [float(n) for n in range(1, 18)]


def mixer(
    alpha: float = 0.6,
    draft_s: float = 0.1,
    target_s: Sequence[float] = FLAT,
    rate: float = 1.0,
    bins: Bins | None = None,
    ladder: Mapping[int, float] = {1: 0.3, 20: 0.95},
) -> GoodputMixer:
    prices = Prices(rate, target_s, {"lm": draft_s, "copy": 0.001})
    own = Bins() if bins is None else bins
    rungs = [next(a for m, a in ladder.items() if m >= min(n, max(ladder))) for n in range(1, 33)]
    return GoodputMixer("lm", 8, alpha, own, prices, {"copy": rungs})


def step(depth: int, confidence: float = NAN) -> DraftStep:
    return DraftStep(depth, 8, max_prob=confidence)


def test_bins_by_hand() -> None:
    """Confidences 0.7, 0.95, (a copy), 0.7 with alphas 1, 0, 1, 0.5: the bin of 0.7 gets 1 and 0.5,
    the second discounting the first by 0.995, and 0 for the next token; that of 0.95 gets 0 and no
    next token."""
    bins = Bins()
    bins.add([0.7, 0.95, NAN, 0.7], [1.0, 0.0, 1.0, 0.5])
    middle, high = bin_of(0.7), bin_of(0.95)
    assert (bins.own.num[middle], bins.own.den[middle]) == pytest.approx((0.995 + 0.5, 1.995))
    assert (bins.after.num[middle], bins.after.den[middle]) == (0.0, 1.0)
    assert (bins.own.num[high], bins.own.den[high], bins.after.den[high]) == (0.0, 1.0, 0.0)
    assert bins.own.rate(middle) == pytest.approx((1.495 + 3 * 0.725) / 4.995)
    assert bins.after.rate(middle) == pytest.approx((0 + 3 * (0.14 + 0.75 * 0.69)) / 4)
    assert sum(bins.own.den) == pytest.approx(2.995)


def test_gain_by_hand() -> None:
    """T = 1, 1.5, 3.5: with a = 0.8 one more token brings 0.8 - 0.5 - 0.1 = 0.2, two bring 0.8 +
    0.64 - 2.5 - 0.2 < 0. A free third one makes three of them 0.8 + 0.64 + 0.512 - 2.5 - 0.3 < 0:
    still 0.2."""
    prices = Prices(1.0, [1.0, 1.5, 3.5], {"lm": 0.1})
    assert prices.gain(0, 1.0, [0.8] * 3, "lm") == pytest.approx(0.2)


def test_a_step_of_the_costs_is_jumped_over_where_it_pays() -> None:
    """The second token alone costs 0.9 and brings 0.85; the four after it are free."""
    stairs = Prices(1.0, [1.0, 1.9, 1.9, 1.9, 1.9, 1.9], {"lm": 0.0})
    assert stairs.gain(0, 1.0, [0.85], "lm") < 0
    assert stairs.gain(0, 1.0, [0.85] * 5, "lm") > 1


def test_the_better_offer_writes() -> None:
    assert mixer().pick(step(0), {}) == "lm"
    assert mixer().pick(step(0), {"copy": 0}) == "lm"
    assert mixer().pick(step(0), {"copy": 20}) == "copy"
    assert mixer(draft_s=0.05, ladder={1: 0.3}).pick(step(0), {"copy": 1}) == "lm"


def test_nobody_writes_what_does_not_pay() -> None:
    assert mixer(alpha=0.05).pick(step(0), {}) is None
    assert mixer(draft_s=0.9).pick(step(0), {"copy": 0}) is None
    assert mixer(target_s=STEEP, ladder={20: 0.95}).pick(step(0), {"copy": 20}) is None
    assert mixer(target_s=STEEP, rate=0.5, ladder={20: 0.95}).pick(step(0), {"copy": 20}) == "copy"


def test_a_draft_ends_where_it_is_no_longer_believed() -> None:
    """With flat costs a draft ends after unsure tokens, as the next is hardly reached."""
    for confidence, length in ((0.1, 2), (0.995, 8)):
        made, depth = mixer(), 0
        while depth < 8 and made.pick(step(depth, confidence), {}) is not None:
            depth += 1
        assert (depth <= length) if confidence < 0.5 else depth == length


def test_copied_tokens_count_by_their_match() -> None:
    """A token after a copied one has the acceptance of a first token; copied tokens of acceptance
    0.4 leave less to gain than those of a long match."""
    sure, unsure = mixer(draft_s=0.25), mixer(draft_s=0.25, ladder={5: 0.4})
    assert sure.pick(step(0), {"copy": 20}) == "copy"
    assert sure.pick(step(1), {}) == "lm"
    assert unsure.pick(step(0), {"copy": 5}) == "copy"
    assert unsure.pick(step(1), {}) is None


def test_what_bins_learnt_decides() -> None:
    """The same confidence, followed by accepted tokens once and by rejected ones once."""
    for alpha, picked in ((1.0, "lm"), (0.0, None)):
        bins = Bins()
        for _ in range(50):
            bins.add([0.7, 0.7], [1.0, alpha])
        made = mixer(bins=bins, draft_s=0.3)
        made.pick(step(0), {})
        assert made.pick(step(1, 0.7), {}) == picked


def test_confidences_that_are_nan_teach_nothing() -> None:
    bins = Bins()
    bins.add([NAN, NAN], [1.0, 0.0])
    assert bins == Bins()


def test_siblings_are_bought_while_they_are_worth_their_width() -> None:
    """Shares of a bin of confidence 0.275: 0.13, 0.07, 0.04, ..: a token of width costs 0.05."""
    prices = Prices(1.0, [1.0 + 0.05 * width for width in range(12)], {})
    assert prices.best_siblings(1, 1.0, [0.13, 0.07, 0.04]) == 2
    assert prices.best_siblings(1, 0.5, [0.13, 0.07, 0.04]) == 1
    stair = Prices(1.0, [1.0, 1.1, 1.1, 1.1, 1.1, 1.4], {})
    assert stair.best_siblings(1, 1.0, [0.1, 0.01, 0.01, 0.01]) == 3


def test_siblings_are_learnt_by_confidence_and_rank() -> None:
    bins = Bins()
    before = bins.siblings(2)
    for _ in range(50):
        bins.add_siblings([(0.4, 1, False), (0.4, 2, True)])
    after = bins.siblings(2)
    assert after[0] < 0.1 * before[0]
    assert after[1] > 0.9
    assert after[2:] == before[2:]
    twin = Bins()
    twin.load(bins.state())
    assert twin == bins


def test_siblings_leave_room_for_the_chain() -> None:
    """A chain that is nearly always accepted is worth more than alternatives to its tokens."""
    bins = Bins()
    bins.add([0.97] * 60, [1.0] * 60)
    made = mixer(alpha=0.95, bins=bins)
    made.pick(step(0), {})
    assert made.num_siblings(step(1, 0.97), 8) == 0


def test_branches_are_bought_where_the_draft_may_be_rejected() -> None:
    """A match of 20 differs from a draft that is accepted with 0.275 or 0.995: its tokens add (1 -
    a) * 0.4 * (1, 0.95, 0.95^2, ..), and a token of width costs 0.1."""
    prices = [1.0 + 0.1 * width for width in range(17)]
    made = mixer(target_s=prices)
    made.pick(step(0), {})
    assert made.branch(0, 0.275, {"copy": 20}, 1, 6) == ("copy", 6)
    assert made.branch(0, 0.275, {"copy": 1}, 1, 6) == ("copy", 0)
    assert made.branch(0, 0.995, {"copy": 20}, 1, 6) == ("copy", 0)
    assert made.branch(0, 0.275, {"other": 20}, 1, 6) == ("", 0)
    assert made.branch(3, 0.275, {"copy": 20}, 1, 6) == ("", 0), "nothing was drafted there"


def test_a_branch_needs_its_place_to_be_reached() -> None:
    prices = [1.0 + 0.04 * width for width in range(17)]
    made = mixer(target_s=prices, draft_s=0.0)
    made.pick(step(0), {})
    assert made.pick(step(1, 0.1), {}) == "lm"
    assert made.branch(0, 0.275, {"copy": 20}, 2, 6) == ("copy", 6)
    assert made.branch(1, 0.275, {"copy": 20}, 2, 6) == ("copy", 0)
