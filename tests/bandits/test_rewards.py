"""Rewards against exact enumeration with fractions, without sampling."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from draftwise.bandits.rewards import tokens_by_products, tokens_by_ratios, tokens_by_verdict
from draftwise.registry import REWARDS, make_reward
from draftwise.types import PLAIN, DraftwiseError, Outcome, Plan

Law = list[Fraction]
EMPTY = np.zeros(0)


class World:
    """A target and a drafter on a tiny vocabulary: distributions of fractions for every prefix."""

    def __init__(
        self, p: Callable[[tuple[int, ...]], Law], q: Callable[[tuple[int, ...]], Law], depth: int
    ) -> None:
        self.p, self.q, self.depth = p, q, depth

    def alpha(self, prefix: tuple[int, ...]) -> Fraction:
        laws = zip(self.p(prefix), self.q(prefix), strict=True)
        return sum((min(p, q) for p, q in laws), Fraction(0))

    def texts(self) -> Iterator[tuple[Fraction, list[Fraction], list[Fraction]]]:
        """Every text drawn from p: its probability, alphas and ratios min(1, q/p)."""
        for text in itertools.product(range(len(self.p(()))), repeat=self.depth):
            prob, alphas, ratios = Fraction(1), [], []
            for j, token in enumerate(text):
                p, q = self.p(text[:j])[token], self.q(text[:j])[token]
                alphas.append(self.alpha(text[:j]))
                ratios.append(min(Fraction(1), q / p) if p else Fraction(0))
                prob *= p
            if prob:
                yield prob, alphas, ratios

    def drafts(self) -> Iterator[tuple[Fraction, int, list[Fraction]]]:
        """Every draft from q and verification outcome: probability, accepted count, alphas."""
        for draft in itertools.product(range(len(self.p(()))), repeat=self.depth):
            drawn, survives = Fraction(1), Fraction(1)
            for j, token in enumerate(draft):
                drawn *= self.q(draft[:j])[token]
            if not drawn:
                continue
            alphas = [self.alpha(draft[:j]) for j in range(self.depth)]
            for accepted, token in enumerate(draft):
                p, q = self.p(draft[:accepted])[token], self.q(draft[:accepted])[token]
                keep = min(Fraction(1), p / q)
                yield drawn * survives * (1 - keep), accepted, alphas
                survives *= keep
            yield drawn * survives, self.depth, alphas

    def expected_tokens(self) -> Fraction:
        return sum((prob * (accepted + 1) for prob, accepted, _ in self.drafts()), Fraction(0))


def worked_example() -> World:
    """p = (1/2, 1/2), then (9/10, 1/10) after 0 and (1/10, 9/10) after 1; q = (9/10, 1/10)."""
    half, most, least = Fraction(1, 2), Fraction(9, 10), Fraction(1, 10)
    p = {(): [half, half], (0,): [most, least], (1,): [least, most]}
    return World(lambda prefix: p[prefix], lambda prefix: [most, least], depth=2)


def random_world(seed: int, size: int = 3, depth: int = 3) -> World:
    rng = random.Random(seed)
    made: dict[tuple[str, tuple[int, ...]], Law] = {}

    def law(kind: str, prefix: tuple[int, ...]) -> Law:
        if (kind, prefix) not in made:
            weights = [rng.randint(0, 5) for _ in range(size)]
            weights[rng.randrange(size)] += 1
            made[kind, prefix] = [Fraction(weight, sum(weights)) for weight in weights]
        return made[kind, prefix]

    return World(lambda prefix: law("p", prefix), lambda prefix: law("q", prefix), depth)


def moments(pairs: list[tuple[Fraction, Fraction]]) -> tuple[Fraction, Fraction]:
    """Mean and variance of (probability, value) pairs."""
    assert sum(prob for prob, _ in pairs) == 1
    mean = sum((prob * value for prob, value in pairs), Fraction(0))
    return mean, sum((prob * (value - mean) ** 2 for prob, value in pairs), Fraction(0))


def test_theorem_3_as_printed_is_biased_and_the_ratios_are_not() -> None:
    """In the worked example 53/25 tokens are expected; products of alphas give 49/25."""
    world = worked_example()
    assert world.expected_tokens() == Fraction(53, 25)
    products = moments([(w, tokens_by_products(a, 2)) for w, a, _ in world.texts()])
    ratios = moments([(w, tokens_by_ratios(a, r, 2)) for w, a, r in world.texts()])
    assert products[0] == Fraction(49, 25)
    assert ratios[0] == Fraction(53, 25)
    assert products[1] < ratios[1]  # the lower variance is why the biased estimator is still useful


@pytest.mark.parametrize("seed", range(12))
def test_ratios_are_exactly_unbiased_in_any_world(seed: int) -> None:
    world = random_world(seed)
    mean = sum(w * tokens_by_ratios(a, r, world.depth) for w, a, r in world.texts())
    assert mean == world.expected_tokens()


def test_products_are_biased_in_most_worlds_and_right_for_constant_alphas() -> None:
    worlds = [random_world(seed) for seed in range(12)]
    means = [sum(w * tokens_by_products(a, 3) for w, a, _ in each.texts()) for each in worlds]
    exact = [each.expected_tokens() for each in worlds]
    assert sum(a != b for a, b in zip(means, exact, strict=True)) >= 10
    p, q = [Fraction(3, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(3, 4)]
    constant = World(lambda prefix: p, lambda prefix: q, depth=3)
    mean = sum(w * tokens_by_products(a, 3) for w, a, _ in constant.texts())
    assert mean == constant.expected_tokens() == Fraction(15, 8)


@pytest.mark.parametrize("seed", range(12))
def test_the_verdict_estimator_is_exactly_unbiased_and_less_noisy(seed: int) -> None:
    """The estimator from a round's own verification must have the exact mean and less variance."""
    world = random_world(seed)
    exact = world.expected_tokens()
    verdicts = moments([(w, tokens_by_verdict(a, 3, n)) for w, n, a in world.drafts()])
    counts = moments([(w, Fraction(n + 1)) for w, n, _ in world.drafts()])
    assert verdicts[0] == counts[0] == exact
    assert verdicts[1] <= counts[1]


def test_products_on_what_a_verdict_shows_would_be_biased() -> None:
    world = worked_example()
    naive = sum(
        w * (tokens_by_products(a[: n + 1], 2) if n >= 1 else Fraction(1 + n))
        for w, n, a in world.drafts()
    )
    assert naive != world.expected_tokens()


def test_theorem_3_telescopes() -> None:
    """sum_{k=1}^{K+1} k (1 - a_k) prod_{j<k} a_j with a_{K+1} = 0, term by term."""
    alphas = [Fraction(9, 10), Fraction(1, 3), Fraction(4, 7), Fraction(1, 2)]
    for length in range(5):
        padded = [*alphas[:length], Fraction(0)]
        printed = sum(
            k * (1 - padded[k - 1]) * math.prod(padded[: k - 1]) for k in range(1, length + 2)
        )
        assert tokens_by_products(alphas, length) == printed


def test_estimators_say_when_they_do_not_know() -> None:
    assert math.isnan(tokens_by_products([0.5], 2))
    assert math.isnan(tokens_by_ratios([0.5], [0.5], 2))
    assert tokens_by_products([0.5, 0.0], 9) == 1.5
    assert tokens_by_ratios([0.5], [0.0], 9) == 1.5
    assert tokens_by_products([], 0) == 1


@pytest.mark.parametrize("alpha", [Fraction(1, 10), Fraction(1, 2), Fraction(4, 5)])
@pytest.mark.parametrize("longest", [1, 2, 5, 8])
def test_metasd_lemma_5_block_efficiency(alpha: Fraction, longest: int) -> None:
    """Eq. (8), mean and variance of BE, equals the enumeration over the accepted count exactly; the
    reward ``length`` is BE."""
    law = [(alpha**a * (1 - alpha), a) for a in range(longest)] + [(alpha**longest, longest)]
    mean, variance = moments([(prob, Fraction(a, longest)) for prob, a in law])
    n = longest
    assert mean == (alpha - alpha ** (n + 1)) / (n * (1 - alpha))
    printed = 1 - (2 * n + 1) * alpha**n + (2 * n + 1) * alpha ** (n + 1) - alpha ** (2 * n + 1)
    assert variance == alpha * printed / (n * (1 - alpha)) ** 2
    reward, plan = make_reward("length"), Plan("a", n)
    for _, accepted in law:
        outcome = Outcome(plan, n, EMPTY, EMPTY, EMPTY, n, accepted)
        assert reward(outcome) == accepted / n


@pytest.mark.parametrize("longest", [1, 2, 5])
def test_metasd_lemma_6_block_divergence_and_lemma_7(longest: int) -> None:
    """Eq. (12): mean alpha and variance var(nu) / N <= 1 / (4 N), over all alphas from nu on {1/8,
    5/8, 1}; eq. (13) relates it to BE. The reward ``divergence`` is BD."""
    quarter = Fraction(1, 4)
    nu = {Fraction(1, 8): 2 * quarter, Fraction(5, 8): quarter, Fraction(1): quarter}
    alpha = sum(prob * value for value, prob in nu.items())
    spread = sum(prob * (value - alpha) ** 2 for value, prob in nu.items())
    reward, plan, pairs = make_reward("divergence"), Plan("a", longest), []
    for alphas in itertools.product(nu, repeat=longest):
        floats = np.array([float(value) for value in alphas])
        value = reward(Outcome(plan, longest, EMPTY, EMPTY, floats, longest, 0))
        exact = sum(alphas, Fraction(0)) / longest
        assert value == pytest.approx(float(exact), abs=1e-15)
        pairs.append((math.prod(nu[value] for value in alphas), exact))
    mean, variance = moments(pairs)
    assert (mean, variance) == (alpha, spread / longest)
    assert variance <= Fraction(1, 4 * longest)
    block_efficiency = sum(alpha**k for k in range(1, longest + 1)) / longest
    assert block_efficiency == (1 - alpha**longest) / (longest * (1 - alpha)) * mean


def played(length: int, drafted: int, accepted: int, **facts: float) -> Outcome:
    return Outcome(Plan("a", length), 8, EMPTY, EMPTY, EMPTY, drafted, accepted, **facts)


def counterfactual(plan: Plan, alphas: list[float], ratios: list[float] | None = None) -> Outcome:
    array = np.array(alphas)
    return Outcome(plan, 8, array, np.array(ratios or alphas), array)


def test_length_is_one_minus_the_loss_of_banditspec() -> None:
    """Eq. (6): (L + 1 - Y) / L with Y = accepted + 1, L = 8."""
    for accepted in range(9):
        loss = (8 + 1 - (accepted + 1)) / 8
        assert make_reward("length")(played(8, 8, accepted)) == pytest.approx(1 - loss)


def test_blend_by_hand() -> None:
    """TapOut 3.2: 1/2 * 2/8 + 1/2 * 2/4; alpha = 1 is the simple reward; an empty draft gives 0."""
    assert make_reward("blend")(played(4, 4, 2)) == 0.5 * 0.25 + 0.5 * 0.5
    assert make_reward("blend:alpha=1")(played(4, 4, 2)) == make_reward("simple")(played(4, 4, 2))
    assert make_reward("blend:0.25")(played(4, 2, 2)) == 0.25 * 0.25 + 0.75
    assert make_reward("blend")(Outcome(PLAIN, 8, EMPTY, EMPTY, EMPTY, 0, 0)) == 0
    assert make_reward("blend")(played(4, 0, 0)) == 0  # a drafter with nothing to propose


def test_blend_of_a_plan_that_did_not_play() -> None:
    """0.5 + 0.25 tokens are expected of 2 drafted; the length under a stop rule is unknown."""
    value = make_reward("blend")(counterfactual(Plan("a", 2), [0.5, 0.5]))
    assert value == 0.5 * 0.75 / 8 + 0.5 * 0.75 / 2
    other = Plan("a", 2, "max-confidence:0.8")
    assert math.isnan(make_reward("blend")(counterfactual(other, [0.5, 0.5])))


def test_divergence_needs_every_drafted_position() -> None:
    reward, alphas = make_reward("divergence"), np.array([0.5, 0.5])
    assert reward(Outcome(Plan("a", 8), 8, EMPTY, EMPTY, alphas, 2, 0)) == 0.125  # stopped early
    assert math.isnan(reward(Outcome(Plan("a", 8), 8, EMPTY, EMPTY, alphas, 3, 0)))
    assert reward(counterfactual(Plan("a", 1), [0.5, 0.5])) == 0.5 / 8


def test_expected_length_values() -> None:
    printed, exact = make_reward("expected-length"), make_reward("expected-length:exact")
    outcome = counterfactual(Plan("a", 2), [0.5, 0.5, 0.9], [1.0, 0.2, 0.3])
    assert printed(outcome) == 1.75 / 9
    assert exact(outcome) == 2.0 / 9
    assert printed(Outcome(PLAIN, 8, EMPTY, EMPTY, EMPTY, 0, 0)) == 1 / 9
    assert printed(counterfactual(Plan("a", 8), [1.0] * 8)) == 1
    assert math.isnan(printed(counterfactual(Plan("a", 4), [0.5, 0.5])))
    own = Outcome(Plan("a", 4), 8, np.array([0.5, 0.25]), np.ones(2), EMPTY, 4, 1)
    assert printed(own) == exact(own) == 1.75 / 9
    assert printed(played(4, 4, 1)) == 2 / 9  # without alphas the count is used


def test_acceptance_values() -> None:
    reward = make_reward("acceptance")
    assert reward(counterfactual(Plan("a", 2), [0.5, 0.25, 1.0])) == 0.375
    assert math.isnan(reward(Outcome(PLAIN, 8, EMPTY, EMPTY, EMPTY, 0, 0)))


def test_throughput_by_hand() -> None:
    """L = 8: the first round's 2 s bound 9 tokens. Rates 2, 3, 1; then 5 tokens in 0.5 s exceed the
    bound, which becomes 9 tokens a second."""
    reward = make_reward("throughput")
    rounds = [
        (3, 2.0, 2 / 4.5),
        (2, 1.0, 3 / 4.5),
        (0, 1.0, 1 / 4.5),
        (4, 0.5, 1.0),
        (3, 1.0, 4 / 9),
    ]
    for accepted, seconds, value in rounds:
        assert reward(played(4, 4, accepted, seconds=seconds)) == pytest.approx(value)
    assert math.isnan(reward(played(4, 4, 2, seconds=0.0)))
    assert math.isnan(reward(counterfactual(Plan("a", 2), [0.5, 0.5])))


@pytest.mark.parametrize("order", [1, -1])
def test_throughput_does_not_depend_on_the_order_of_trying(order: int) -> None:
    """Five arms of rising speed, one token each: the first arm tried gets no extra reward."""
    reward, rates = make_reward("throughput"), [5.0, 6.0, 7.0, 8.0, 9.0][::order]
    values = [reward(played(4, 4, 0, seconds=1.0 / rate)) for rate in rates]
    assert np.array(values) / values[0] == pytest.approx(np.array(rates) / rates[0])


def test_throughput_survives_a_slow_start_and_a_glitch() -> None:
    reward = make_reward("throughput")
    reward(played(4, 4, 0, seconds=100.0))  # includes compilation
    for _ in range(10):
        reward(played(4, 4, 4, seconds=1.0))
    assert 0.5 < reward(played(4, 4, 4, seconds=1.0)) <= 1.0
    bound = reward.bound
    reward(played(4, 4, 4, seconds=1e-9))
    assert reward.bound == 2 * bound


@pytest.mark.parametrize("name", sorted(REWARDS))
def test_every_reward_stays_in_0_to_1_or_says_nan(name: str) -> None:
    rng, reward = np.random.default_rng(0), make_reward(name)
    for _ in range(500):
        length, longest = int(rng.integers(1, 9)), 8
        drafted = int(rng.integers(0, length + 1))
        alphas = rng.random(8) if rng.random() < 0.8 else (rng.random(8) < 0.5) * 1.0
        told = {"num_drafted": drafted, "num_accepted": int(rng.integers(0, drafted + 1))}
        facts = told if rng.random() < 0.5 else {}
        outcome = Outcome(
            Plan("a", length), longest, alphas, rng.random(8), alphas,
            seconds=float(rng.random()), **facts,
        )  # fmt: skip
        value = reward(outcome)
        assert math.isnan(value) or 0 <= value <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blend:alpha=1.5", "alpha"), ("throughput:decay=0", "decay"),
        ("expected-length:sums", "one of products, exact"),
        ("length:alpha=1", "its options are: none"), ("speed", "expected-length"),
    ],
)  # fmt: skip
def test_bad_specs_say_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(DraftwiseError, match=message):
        make_reward(text)
