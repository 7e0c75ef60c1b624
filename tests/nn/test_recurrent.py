"""Recurrent states by row: ragged inputs, partial rollback, copied rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from draftwise import Speculator
from draftwise.nn.cache import RaggedCache
from draftwise.nn.check import check_model
from draftwise.nn.model import CausalModel, KernelRecorder, keeps_states, shadow
from draftwise.nn.recurrent import MOST_STEPS
from draftwise.nn.tiny import tiny_config, tiny_module

TYPES = {
    "qwen3_next": False,  # gated delta
    "kimi_linear": False,  # KDA
    "granitemoehybrid": False,  # Mamba 2
    "zamba2": False,  # Mamba 2, shared layers
    "lfm2": False,  # convolutions only
    "zaya": True,  # unknown kernels: tokens are recomputed
}
"""A type of each family, and whether it needs one row per forward."""


@cache
def model(kind: str) -> CausalModel:
    made = CausalModel(tiny_module(tiny_config(CONFIG_MAPPING[kind]())), kind)
    check_model(made)
    return made


@cache
def text(kind: str, num: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(
        0, model(kind).vocab_size, (num,), generator=generator
    ).tolist()
    return found


def plain(kind: str, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = (
            model(kind).module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        )
    return found


def feed(kind: str, cache: RaggedCache, rows: list[int], tokens: list[list[int]]) -> torch.Tensor:
    """The logits after the last token of each row."""
    with torch.inference_mode():
        logits = model(kind).extend(cache, rows, tokens, keep=1)
    return torch.cat([logits.last(index, 1) for index in range(len(rows))])


@pytest.mark.parametrize("kind", TYPES)
def test_the_check_finds_how_rows_are_read(kind: str) -> None:
    made = model(kind)
    assert made.has_states
    assert not made.serves_trees
    assert not made.packs
    assert made.is_alone is TYPES[kind]


@pytest.mark.parametrize("kind", TYPES)
def test_a_drafter_goes_back_without_being_told(kind: str) -> None:
    """The length is lowered to a position between draft steps, each of which was one forward."""
    words = text(kind, 12)
    cache = model(kind).new_cache(1)
    feed(kind, cache, [0], [words[:5]])
    for token in words[5:10]:
        feed(kind, cache, [0], [[token]])
    for length in (8, 6, 5):
        cache.lengths[0] = length
        found = feed(kind, cache, [0], [words[length : length + 1]])
        torch.testing.assert_close(
            found, plain(kind, words[: length + 1])[-1:], rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("kind", TYPES)
def test_back_into_a_long_feed(kind: str) -> None:
    """Of a wide forward only the end state is kept: rolling back into it recomputes the rest."""
    words = text(kind, 60)
    cache = model(kind).new_cache(1)
    feed(kind, cache, [0], [words[:50]])
    cache.lengths[0] = 45
    found = feed(kind, cache, [0], [words[45:48]])
    torch.testing.assert_close(found, plain(kind, words[:48])[-1:], rtol=1e-3, atol=1e-4)
    assert cache.lengths == [48]


@pytest.mark.parametrize("num", [20, 33, 34, 60])
@pytest.mark.parametrize("kind", ["zaya", "mamba2"])
def test_text_after_a_prompt_of_any_length_is_the_targets(kind: str, num: int) -> None:
    """A prompt of more than 33 tokens is read in a forward that keeps only the end state."""
    module = tiny_module(tiny_config(CONFIG_MAPPING[kind]()))
    made, words = Speculator.from_pretrained(module, ["lookup"], seed=0), text(kind, num)
    found = made.generate(words, max_new_tokens=8, ignore_eos=True).tokens
    assert found == plain(kind, [*words, *found[:-1]])[num - 1 :].argmax(-1).tolist()


def test_the_check_reads_wide_pieces_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """With states, wider than a kernel's chunk; other models across windows and in halves."""
    widths: dict[str, set[tuple[bool, int]]] = {}
    extend = CausalModel.extend

    def noting(
        model: CausalModel, cache: RaggedCache, rows: Any, tokens: Any, *more: Any, **options: Any
    ) -> Any:
        seen = widths.setdefault(model.name, set())
        seen.add((model.bulk_logits == 0, max(map(len, tokens))))
        return extend(model, cache, rows, tokens, *more, **options)

    monkeypatch.setattr(CausalModel, "extend", noting)
    for kind, widest in (("qwen3_next", 256), ("mistral", 64)):
        check_model(CausalModel(tiny_module(tiny_config(CONFIG_MAPPING[kind]())), kind))
        for in_halves in (True, False):
            assert max(width for halves, width in widths[kind] if halves is in_halves) > widest


@pytest.mark.parametrize("kind", TYPES)
def test_rows_come_go_and_are_copied(kind: str) -> None:
    words = text(kind, 30)
    cache = model(kind).new_cache(2)
    feed(kind, cache, [0], [words[:9]])
    cache.settle([0], [9])
    assert cache.reachable(0, 9) == 9
    cache.copy(0, 1, 9)
    cache.close(0)
    cache.open(0)
    found = feed(kind, cache, [0, 1], [words[:4], words[9:11]])
    expected = torch.cat([plain(kind, words[:4])[-1:], plain(kind, words[:11])[-1:]])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", TYPES)
def test_what_was_settled_is_forgotten(kind: str) -> None:
    """A row holds the states back to its committed length; without commits, a bounded number."""
    cache = model(kind).new_cache(1)
    feed(kind, cache, [0], [text(kind, 5)])
    sizes = []
    for token in text(kind, 2 * MOST_STEPS, seed=1):
        feed(kind, cache, [0], [[token]])
        cache.settle([0], cache.lengths)
        sizes.append(len(cache.states._steps[0]))
    assert set(sizes) == {1}
    assert cache.crop(0, 7) == 0  # no state is kept for this length: all is recomputed
    for token in text(kind, 2 * MOST_STEPS, seed=1):
        feed(kind, cache, [0], [[token]])
    assert len(cache.states._steps[0]) <= MOST_STEPS


def test_reading_again_stays_right_when_drafts_are_always_refused() -> None:
    words = text("zaya", 20)
    cache = model("zaya").new_cache(1)
    feed("zaya", cache, [0], [words[:3]])
    for length in range(4, 19):
        found = feed("zaya", cache, [0], [[words[length - 1], 1, 2]])
        cache.settle([0], [length])
        assert len(found) == 1
    found = feed("zaya", cache, [0], [words[18:20]])
    torch.testing.assert_close(found, plain("zaya", words)[-1:], rtol=1e-3, atol=1e-4)


def test_the_module_is_never_changed() -> None:
    """The instrumented view shares weights and buffers; the module's own layers stay unchanged."""
    module = model("qwen3_next").module
    view = shadow(module, KernelRecorder())
    assert view is not module
    assert all("forward" not in layer.__dict__ for layer in module.modules())
    ours, theirs = dict(view.named_parameters()), dict(module.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name] is theirs[name] for name in ours)


def test_no_view_of_what_has_no_states() -> None:
    module = tiny_module(tiny_config(CONFIG_MAPPING["llama"]()))
    assert not keeps_states(module)
    assert shadow(module, KernelRecorder()) is module


def test_two_views_do_not_see_each_other() -> None:
    """One module in two engines: states recorded by one are not seen by the other."""
    module = model("qwen3_next").module
    one, other = CausalModel(module, "one"), CausalModel(module, "other")
    caches = [one.new_cache(1), other.new_cache(1)]
    words = text("qwen3_next", 8)
    with torch.inference_mode():
        one.extend(caches[0], [0], [words[:4]], keep=1)
        other.extend(caches[1], [0], [words[:6]], keep=1)
        one.extend(caches[0], [0], [words[4:8]], keep=1)
        caches[0].lengths[0] = 6
        found = one.extend(caches[0], [0], [words[6:]], keep=1).last(0, 1)
    torch.testing.assert_close(found, plain("qwen3_next", words)[-1:], rtol=1e-3, atol=1e-4)
