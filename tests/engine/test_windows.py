"""Sliding-window and chunked layers keep only their window; text equals ``generate``'s."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwise.nn import (
    RaggedCache,
    RowSpan,
    Windows,
    attend_raggedly,
    from_first,
    tiny_config,
    tiny_module,
)
from draftwise.speculator import Speculator
from models import near_copy

SIZE, NEW = 8, 120
PROMPTS = [[5, 6, 7, 8] * 5, [11, 12, 11], [*range(20, 75)]]
"""Prompts of 20, 3 and 55 tokens, longer and shorter than the window."""
CONFIGS = {
    "mistral": hf.MistralConfig,
    "gemma2": hf.Gemma2Config,
    "gemma3": hf.Gemma3TextConfig,
    "gpt_oss": hf.GptOssConfig,
    "llama4": hf.Llama4TextConfig,
}
NO_TREES = ("llama4", "2x8")


def windowed(config: Any) -> Any:
    """Like ``tiny_config``, with windows or chunks of ``SIZE``, even without any by default."""
    if getattr(config, "sliding_window", 0) is None:
        config.sliding_window = SIZE
    made = tiny_config(config)
    for name in ("sliding_window", "attention_chunk_size"):
        if getattr(made, name, None):
            setattr(made, name, SIZE)
    return made


@cache
def target(kind: str) -> Any:
    """A tiny random module with windows or chunks of ``SIZE`` that attends far back."""
    config = windowed(CONFIGS[kind]())
    config.tie_word_embeddings = False  # tied embeddings would repeat one token for ever
    module = tiny_module(config)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weights in module.named_parameters():
            looks = any(part in name for part in ("q_proj", "k_proj"))
            if weights.dim() == 2 and not looks and "router" not in name:
                weights.normal_(0, 0.3, generator=generator)
    return module


@cache
def expected(kind: str) -> list[list[int]]:
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = target(kind).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        texts.append([int(token) for token in output[0, len(prompt) :]])
    return texts


def speculator(kind: str, **more: Any) -> Speculator:
    options = {"policy": "fixed:1", "lengths": (6,), "num_prefixes": 0, **more}
    return Speculator.from_pretrained(target(kind), [near_copy(target(kind), 0.05)], **options)


@pytest.mark.parametrize(
    ("kind", "tree"),
    [(kind, tree) for kind in CONFIGS for tree in ("chain", "2x8") if (kind, tree) != NO_TREES],
)
def test_texts_are_those_of_generate(kind: str, tree: str) -> None:
    made = speculator(kind, trees=[tree])
    assert made.target.windows is not None, "nothing would be forgotten"
    ragged = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in ragged] == expected(kind)
    alone = made.generate(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True)
    assert alone.tokens == expected(kind)[0]
    assert len(set(alone.tokens)) > 10
    assert 0 < ragged[0].stats.num_accepted < ragged[0].stats.num_drafted


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_rows_that_go_end_to_end(kind: str) -> None:
    module = copy.deepcopy(target(kind))
    attend_raggedly(module)
    drafter = near_copy(target(kind), 0.05)
    made = Speculator.from_pretrained(
        module, [drafter], policy="fixed:1", lengths=(6,), trees=["2x8"]
    )
    assert made.target.packs
    assert made.target.windows is not None
    ragged = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in ragged] == expected(kind)


@pytest.mark.parametrize("kind", ["gemma3", "llama4"])
def test_teeth_the_self_check_sees_what_is_forgotten_too_early(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bug: tokens still inside the window are dropped."""
    right = Windows.first

    def late(self: Windows, position: int) -> int:
        first = right(self, position)
        return first and min(position + SIZE - 1, first + SIZE + 4)

    monkeypatch.setattr(Windows, "first", late)
    made = speculator(kind)
    assert made.target.windows is None, "the self-check fell back to layers that keep everything"
    text = made.generate(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True).tokens
    assert text == expected(kind)[0]
    made = speculator(kind)
    made.target.forgets = True
    text = made.generate(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True).tokens
    assert text != expected(kind)[0]


@torch.inference_mode()
def test_the_bytes_of_layers_with_windows_stop_growing() -> None:
    """Feeds of 6 tokens, 4 of which are kept: the full-attention layer still grows."""
    model = speculator("gemma3").target
    cache = model.new_cache(forgets=True)
    cache.open(0)
    model.extend(cache, [0], [[*range(1, 41)]], keep=1)
    slots, near, whole = [], [], []
    for length in range(40, 400, 4):
        cache.settle([0], [length])
        model.extend(cache, [0], [[3, 4, 5, 6, 7, 8]], keep=1)
        slots.append(cache.storage(0, layer_idx=0).num_slots)
        near.append(cache.storage(0, layer_idx=0).num_bytes)
        whole.append(cache.storage(0, layer_idx=1).num_bytes)
        assert cache.num_bytes == near[-1] + whole[-1]
    windows = model.windows
    assert windows is not None
    assert windows.most_slots(40) >= slots[0] > max(slots[9:]) <= windows.most_slots(6)
    assert max(near[9:]) == near[-1] < whole[-1] / 10
    assert model.row_bytes(400, 6) < near[-1] + whole[-1] < model.row_bytes(400, 6) * 1.2
    assert model.new_cache(1).window_slots() is None, "drafters keep everything"


@pytest.mark.parametrize("num_prefixes", [0, 2])
def test_an_engine_holds_little_more_than_windows(num_prefixes: int) -> None:
    """All layers of Mistral have a window: the prompt of 440 tokens makes no difference."""
    made = speculator("mistral", num_prefixes=num_prefixes)
    engine = made.engine(num_prefixes=num_prefixes)
    engine.admit(made.request(PROMPTS[2] * 8, max_new_tokens=60, ignore_eos=True))
    held = []
    while engine.has_work:
        engine.step()
        held.append(engine.num_cache_bytes)
    assert max(held) < 440 * made.target.token_bytes / 5
    assert bool(held[-1]) == bool(num_prefixes)


def test_beginnings_are_shared_as_far_as_windows_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = speculator("gemma3", num_prefixes=2)
    options: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
    engine = made.engine(num_prefixes=2)
    fed, sound = list[int](), made.target.extend

    def extend(cache: Any, rows: Any, tokens: Any, *more: Any) -> Any:
        fed.append(sum(map(len, tokens)))
        return sound(cache, rows, tokens, *more)

    monkeypatch.setattr(made.target, "extend", extend)

    def told(prompt: list[int]) -> tuple[list[int], int]:
        """The answer, and the number of tokens in its first forward."""
        fed.clear()
        request = made.request(prompt, **options)
        engine.admit(request)
        while engine.has_work:
            engine.step()
        return request.context.tokens[len(prompt) :], fed[0]

    long = PROMPTS[2] * 4
    first, _ = told(long)
    turn = [*long, *first, *PROMPTS[0]]
    fresh = speculator("gemma3")
    second, num = told(turn)
    assert num < len(turn) - len(long)
    assert second == fresh.generate(turn, **options).tokens
    other = [*long[:100], *PROMPTS[0]]
    third, num = told(other)
    assert num == len(other) - 1, "the first round reads the last token"
    assert third == fresh.generate(other, **options).tokens


def test_a_row_goes_back_as_far_as_its_windows_are_whole() -> None:
    windows = Windows(frozenset({0}), window=8)
    cache = RaggedCache(3, windows=windows)

    def feed(row: int, count: int) -> None:
        start = cache.lengths[row]
        cache.place([RowSpan(row, start, count)])
        keys = torch.arange(float(start), start + count)[None, None, :, None]
        for layer in (0, 1):
            cache.update(keys, -keys, layer)
        cache.settle([row], [start + count])

    for _ in range(20):
        feed(0, 5)
    storage = cache.storage(0, 0)
    assert 0 < storage.first <= windows.first(100 - 8)
    assert list(storage.keys) == [0]
    assert cache.reachable(0, 99) == 99
    assert cache.reachable(0, 40) == 0
    cache.copy(0, 1, 98)
    feed(1, 4)
    kept = cache.storage(1, 0)
    assert kept.keys[0].flatten()[: 102 - kept.first].tolist() == [*range(kept.first, 102)]
    assert cache.crop(0, 97) == 97
    cache.lengths[0] = 40
    with pytest.raises(ValueError, match="cut back to 40 tokens, and its windows were not kept"):
        cache.place([RowSpan(0, 40, 1)])
    assert cache.crop(0, 30) == 0
    feed(0, 3)
    assert cache.storage(0, 0).keys[0].flatten()[:3].tolist() == [0, 1, 2]
    cache.close(0)
    assert cache.storage(0, 0).num_bytes == 0


def test_chunks_begin_at_a_multiple() -> None:
    windows = Windows(frozenset({0}), chunk=8)
    assert [windows.first(position) for position in (0, 7, 8, 17)] == [0, 0, 8, 16]
    both = Windows(frozenset({0}), window=3, chunk=8)
    assert [both.first(position) for position in (1, 8, 17)] == [0, 6, 15]


def test_masks_are_cut_to_what_is_read() -> None:
    mask = torch.arange(12).view(2, 1, 1, 6)
    even = from_first(mask, [2, 2], [5, 6]).flatten(1).tolist()
    assert even == [[2, 3, 4, 5], [8, 9, 10, 11]]
    ragged = from_first(mask, [4, 1], [5, 4]).flatten(1).tolist()
    assert ragged == [[4, 5, 0], [7, 8, 9]]
