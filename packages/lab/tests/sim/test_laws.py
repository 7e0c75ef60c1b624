"""The environments' distributions against exact formulas, enumerated where possible."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from draftwise.types import DraftwiseError
from draftwise_lab.sim import presets as tables
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import (
    Confident,
    Cycles,
    Drifting,
    Environment,
    IndependentAlphas,
    Load,
    Piecewise,
    TruncatedGeometric,
    text_of,
)
from draftwise_lab.sim.presets import SETTINGS, setting
from draftwise_lab.sim.text import PROMPT_TOKENS, runs_of

FLAT = CostTable({1: (1.0,)}, other_s=0.05)
MEANS = {"x": {"a": 0.75, "b": 0.25}}


@pytest.mark.parametrize("length", [1, 2, 4])
def test_coins_by_position_give_the_truncated_geometric_law(length: int) -> None:
    """BanditSpec eq. (4), with ``==``: all patterns of coins, each with its exact probability."""
    p = Fraction(2, 3)
    law = dict.fromkeys(range(1, length + 2), Fraction(0))
    for coins in itertools.product([True, False], repeat=length):
        accepted = min(int(runs_of(np.array(coins))[0]), length)
        weight = Fraction(1)
        for coin in coins:
            weight *= p if coin else 1 - p
        law[accepted + 1] += weight
    for emitted in range(1, length + 1):
        assert law[emitted] == p ** (emitted - 1) * (1 - p)
    assert law[length + 1] == p**length
    mean = sum(emitted * weight for emitted, weight in law.items())
    assert mean == sum(p**j for j in range(length + 1))
    assert float(mean) == pytest.approx(tables.mean_tokens(2 / 3, length), rel=1e-12)


def test_a_bernoulli_drafter_has_its_alpha_as_its_coins_law() -> None:
    """The share of accepted positions; false alarms at 5 standard errors: 1 in 1.7 million."""
    text = TruncatedGeometric(MEANS, FLAT).texts("x", 0, 40_000, 4)[0]
    for name, alpha in MEANS["x"].items():
        share = (text.tracks[name].runs[:40_000] > 0).mean()
        assert abs(share - alpha) < 5 * np.sqrt(alpha * (1 - alpha) / 40_000)


def test_independent_alphas_have_the_mean_and_variance_of_their_beta() -> None:
    """Beta(a, b): variance m (1 - m) / (a + b + 1); tolerances of 5 standard errors."""
    text = IndependentAlphas(MEANS, FLAT, concentration=3.0).texts("x", 1, 40_000, 4)[0]
    for name, mean in MEANS["x"].items():
        alphas, variance = text.tracks[name].alphas, mean * (1 - mean) / 4.0
        assert abs(alphas.mean() - mean) < 5 * np.sqrt(variance / len(alphas))
        assert alphas.var() == pytest.approx(variance, rel=0.05)
        assert abs(np.corrcoef(alphas[1:], alphas[:-1])[0, 1]) < 5 / np.sqrt(len(alphas))


def test_piecewise_changes_at_equal_shares_and_the_prompt_is_of_the_first_kind() -> None:
    means = {"one": {"a": 0.9}, "two": {"a": 0.1}}
    text = Piecewise({"q": ("one", "two")}, means, FLAT).texts("q", 0, 10, 3)[0]
    track = text.tracks["a"]
    assert track.prompt.tolist() == [0.9] * PROMPT_TOKENS
    assert track.alphas[:10].tolist() == [0.9] * 5 + [0.1] * 5
    assert set(track.alphas[10:].tolist()) == {0.1}


def test_drifting_alphas_wander_around_their_mean_and_remember() -> None:
    world = Drifting({"x": {"a": 0.75}}, FLAT, step=0.2, memory=0.9)
    track = world.texts("x", 3, 50_000, 4)[0].tracks["a"]
    odds = np.log(track.alphas / (1 - track.alphas))
    assert 0.0 < track.alphas.min() < track.alphas.max() < 1.0
    assert odds.mean() == pytest.approx(np.log(3.0), abs=0.05)
    assert odds.std() == pytest.approx(0.2 / np.sqrt(1 - 0.81), rel=0.05)
    assert np.corrcoef(odds[1:], odds[:-1])[0, 1] == pytest.approx(0.9, abs=0.02)


def test_cycles_leave_nothing_to_chance() -> None:
    world = Cycles({"x": {"a": [1.0, 0.0], "b": [0.0]}}, FLAT)
    first, second = (world.texts("x", seed, 12, 3)[0] for seed in (0, 1))
    assert first.tracks["a"].alphas[:4].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert first.tracks["a"].runs.tolist() == second.tracks["a"].runs.tolist()
    assert not first.tracks["b"].runs.any()


def test_load_has_the_same_requests_at_every_batch_size() -> None:
    world = Load((1, 8), (0.2, 0.9), FLAT)
    one, eight = (world.texts(domain, 5, 20, 4)[0] for domain in world.domains)
    assert (one.batch_size, eight.batch_size) == (1, 8)
    assert one.tracks["eagle"].runs.tolist() == eight.tracks["eagle"].runs.tolist()
    assert 0.2 <= one.tracks["eagle"].alphas[0] <= 0.9


def test_confidence_follows_alpha_and_entropy_is_that_of_its_distribution() -> None:
    world = Confident({"x": 0.6}, FLAT, others=3)
    track = world.texts("x", 0, 5_000, 4)[0].tracks["small"]
    assert track.max_probs is not None
    assert track.entropies is not None
    assert track.margins is not None
    assert np.corrcoef(track.alphas, track.max_probs)[0, 1] > 0.8
    top = track.max_probs[7]
    q = np.array([top, *[(1 - top) / 3] * 3])
    assert track.entropies[7] == pytest.approx(-(q * np.log(q)).sum())
    assert track.margins[7] == pytest.approx(max(q[0] - q[1], 0.0))


def test_the_target_ends_the_text_at_its_own_rate() -> None:
    """Geometric with mean 1 / rate, cut at the limit; 5 standard errors at this seed's draws."""
    alphas = {"a": np.full(200, 0.5)}
    lengths = [text_of(alphas, seed, "x", 100, eos_rate=0.2).length for seed in range(400)]
    assert abs(np.mean(lengths) - 5.0) < 5 * np.sqrt(20 / 400)
    assert min(lengths) >= 1
    assert text_of(alphas, 0, "x", 100).length == 100
    assert max(text_of(alphas, s, "x", 2, eos_rate=0.01).length for s in range(50)) == 2


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_preset_draws_proper_texts(name: str) -> None:
    """Shapes and ranges are valid, and a longer text begins like a shorter one."""
    chosen = setting(name)
    world: Environment = chosen.make(None)
    for domain in world.domains:
        [short], [again] = (world.texts(domain, 2, 30, 8) for _ in range(2))
        assert list(short.tracks) == list(world.drafters)
        for drafter, track in short.tracks.items():
            assert len(track.alphas) >= short.limit + 8
            assert track.alphas.min() >= 0.0
            assert track.alphas.max() <= 1.0
            assert track.runs.tolist() == again.tracks[drafter].runs.tolist()


def test_a_stream_belongs_to_its_drafter_alone() -> None:
    """Adding a drafter, or requesting more text, must not change existing draws."""
    few = TruncatedGeometric({"x": {"a": 0.5}}, FLAT).texts("x", 0, 20, 4)[0]
    many = TruncatedGeometric({"x": {"b": 0.5, "a": 0.5}}, FLAT).texts("x", 0, 40, 4)[0]
    assert (few.tracks["a"].runs[:10] > 0).tolist() == (many.tracks["a"].runs[:10] > 0).tolist()
    other = many.tracks["b"].runs[: len(few.tracks["a"].runs)]
    assert few.tracks["a"].runs.tolist() != other.tolist()


def test_unknown_presets_and_pools_are_refused() -> None:
    with pytest.raises(DraftwiseError, match="unknown preset 'nope'; the presets are: hedgespec"):
        setting("nope")
    with pytest.raises(DraftwiseError, match="leave --drafters out"):
        setting("nonstationary").make(3)
    assert len(setting("nonstationary").make(5).drafters) == 5


@pytest.mark.parametrize("num", [2, 7, 64])
def test_a_pool_of_any_size_has_one_specialist_in_each_domain(num: int) -> None:
    world = setting("hedgespec-llama").make(num)
    assert isinstance(world, TruncatedGeometric)
    for index, (domain, name) in enumerate(
        zip(tables.DOMAINS, tables.HEDGESPEC_DRAFTERS, strict=True)
    ):
        alphas = world.means[domain]
        specialist = tables.alpha_of(tables.HEDGESPEC_LLAMA[name][index], 8)
        assert len(alphas) == num
        assert list(alphas.values()).index(max(alphas.values())) == num // 2
        assert max(alphas.values()) == pytest.approx(specialist)


@pytest.mark.parametrize("mat", [1.0, 2.5, 8.49, 9.0])
def test_alpha_inverts_the_mean(mat: float) -> None:
    assert tables.mean_tokens(tables.alpha_of(mat, 8), 8) == pytest.approx(mat, abs=1e-9)
