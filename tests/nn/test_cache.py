"""The ragged cache against plain forwards: same logits, whatever was fed, cropped or dropped.

Method: texts of different lengths enter the cache in ragged pieces, with garbage speculated and
cropped in between; every logit is compared with a plain forward of the whole text without any
cache. Relative error 1e-4 in fp32; a wrong mask, position or length gives a hundred times more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwise.nn.attention import RAGGED, Masks
from draftwise.nn.cache import BLOCK, RaggedCache
from draftwise.nn.model import CausalModel
from engine.pairs import reader
from models import CONFIGS

pytestmark = pytest.mark.usefixtures("without_gradients")
TOLERANCE = 1e-4
LENGTHS = (70, 33, 9)
"""Far beyond the sliding window of 12, beyond it, and below it."""

ALL = pytest.mark.parametrize(
    ("kind", "attention"), [(kind, name) for kind in CONFIGS for name in ("sdpa", "eager", RAGGED)]
)


def make(kind: str, attention: str = "sdpa") -> CausalModel:
    return CausalModel(reader(kind, attention=attention), kind)


def texts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 64, (n,), generator=generator).tolist() for n in lengths]


def plain(model: CausalModel, text: list[int]) -> Tensor:
    """[T, V] logits of a forward without a cache."""
    logits: Tensor = model.module(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return logits


def error(model: CausalModel, text: list[int], ours: Tensor) -> float:
    """Largest difference from a plain forward's last logits, relative to the largest logit."""
    expected = plain(model, text)
    return float((ours - expected[-len(ours) :]).abs().max() / expected.abs().max())


def feed(
    model: CausalModel, cache: RaggedCache, pieces: dict[int, list[int]], keep: int = 1
) -> dict[int, Tensor]:
    """Feed each row a piece and return its last ``keep`` logits, or as many as the piece has."""
    logits = model.extend(cache, list(pieces), list(pieces.values()), keep=keep)
    return {
        row: logits.last(index, min(keep, len(piece)))
        for index, (row, piece) in enumerate(pieces.items())
    }


def speculate_and_crop(model: CausalModel, cache: RaggedCache, rows: Sequence[int]) -> None:
    """Feed each of the rows garbage of a different length, then roll back."""
    lengths = cache.lengths.copy()
    garbage = texts_of([2 + 3 * i for i in range(len(rows))], seed=9)
    feed(model, cache, dict(zip(rows, garbage, strict=True)))
    cache.lengths[:] = lengths


@ALL
def test_ragged_rows_with_rejected_drafts(kind: str, attention: str) -> None:
    model, texts = make(kind, attention), texts_of(LENGTHS)
    cache = model.new_cache(3, 90)
    cuts = [(50, 20, 2), (51, 28, 3), (64, 29, 8), LENGTHS]
    start = (0, 0, 0)
    for end in cuts:
        pieces = {row: texts[row][start[row] : end[row]] for row in range(3)}
        found = feed(model, cache, pieces, keep=5)
        assert cache.lengths == list(end)
        for row, logits in found.items():
            assert error(model, texts[row][: end[row]], logits) < TOLERANCE
        speculate_and_crop(model, cache, [0, 1, 2])
        start = end


@ALL
def test_some_rows_only_and_in_any_order(kind: str, attention: str) -> None:
    model, texts = make(kind, attention), texts_of(LENGTHS)
    cache = model.new_cache(3, 90)
    feed(model, cache, {2: texts[2][:4], 0: texts[0][:60]})
    speculate_and_crop(model, cache, [1, 2])
    feed(model, cache, {1: texts[1][:30]})
    speculate_and_crop(model, cache, [2, 0])
    found = feed(model, cache, {2: texts[2][4:], 0: texts[0][60:], 1: texts[1][30:]}, keep=3)
    assert cache.lengths == list(LENGTHS)
    for row, logits in found.items():
        assert error(model, texts[row], logits) < TOLERANCE


@ALL
def test_rows_that_come_and_go_leave_the_others_as_they_were(kind: str, attention: str) -> None:
    model, texts = make(kind, attention), texts_of(LENGTHS)
    cache = model.new_cache(3, 90)
    feed(model, cache, {row: text[:-3] for row, text in enumerate(texts)})
    cache.close(1)
    speculate_and_crop(model, cache, [2, 0])
    newcomer = texts_of((50,), seed=5)[0]
    cache.open(1)
    feed(model, cache, {1: newcomer[:40]})
    found = feed(model, cache, {2: texts[2][-3:], 1: newcomer[40:], 0: texts[0][-3:]}, keep=3)
    for row, text in ((2, texts[2]), (1, newcomer), (0, texts[0])):
        assert error(model, text, found[row]) < TOLERANCE


@ALL
def test_a_copied_beginning_is_read_on_like_the_original(kind: str, attention: str) -> None:
    model, (text, other) = make(kind, attention), texts_of((70, 30))
    cache = model.new_cache(1, 90)
    feed(model, cache, {0: text[:60]})
    row = 4
    cache.open(row)
    cache.copy(0, row, 25)
    forked = [*text[:25], *other]
    found = feed(model, cache, {row: other, 0: text[60:]}, keep=3)
    assert error(model, forked, found[row]) < TOLERANCE
    assert error(model, text, found[0]) < TOLERANCE


@ALL
def test_large_feeds_in_two_parts(
    kind: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a row is shorter than ``keep``, so that its first half is empty."""
    model, texts = make(kind, attention), texts_of((70, 33, 5))
    monkeypatch.setattr(model, "bulk_logits", 1)
    cache = model.new_cache(3, 90)
    found = feed(model, cache, dict(enumerate(texts)), keep=7)
    assert cache.lengths == [70, 33, 5]
    for row, logits in found.items():
        assert error(model, texts[row], logits) < TOLERANCE
    more = texts_of((9, 2, 20), seed=4)
    found = feed(model, cache, dict(enumerate(more)), keep=4)
    for row, logits in found.items():
        assert error(model, texts[row] + more[row], logits) < TOLERANCE


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_row_that_lags_far_behind_in_a_cache_that_is_just_large_enough(kind: str) -> None:
    """The wide piece of one row pads the others; padding needs no storage and changes no logits."""
    model, texts = make(kind), texts_of((40, 38))
    cache = model.new_cache(2, 41)
    feed(model, cache, {0: texts[0][:39], 1: texts[1][:2]})
    found = feed(model, cache, {0: texts[0][39:], 1: texts[1][2:]})
    for row, logits in found.items():
        assert error(model, texts[row], logits) < TOLERANCE
    found = feed(model, cache, {0: [5], 1: [5, 6]})
    assert error(model, [*texts[0], 5], found[0]) < TOLERANCE
    assert error(model, [*texts[1], 5, 6], found[1]) < TOLERANCE


def test_storage_is_what_live_tokens_need() -> None:
    """Two layers of keys and values: heads x slots x head size x 4 bytes, slots in blocks."""
    model = make("llama")
    cache = model.new_cache(3, 5000)
    a_slot = 2 * 2 * 2 * 8 * 4
    assert cache.num_bytes == 0
    feed(model, cache, {0: [1], 1: [2, 3], 2: [4]})
    assert cache.num_bytes == 3 * BLOCK * a_slot
    for row, num in ((0, 999), (1, 200)):
        feed(model, cache, {row: [5] * num})
    live = sum(cache.lengths) * a_slot
    assert cache.num_bytes < 1.125 * live + 3 * BLOCK * a_slot
    cache.close(0)
    assert cache.num_bytes < 1.125 * 202 * a_slot + 2 * BLOCK * a_slot


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_go_end_to_end_where_attention_lets_them(kind: str) -> None:
    """The model's layers see exactly the rows' tokens, without padding."""
    model, texts = make(kind, RAGGED), texts_of(LENGTHS)
    assert model.packs
    widths: list[tuple[int, ...]] = []
    hook = model.module.register_forward_pre_hook(
        lambda *args: widths.append(tuple(args[2]["input_ids"].shape)), with_kwargs=True
    )
    cache = model.new_cache(3)
    feed(model, cache, dict(enumerate(texts)))
    hook.remove()
    assert widths == [(1, sum(LENGTHS))]
    assert not make(kind, "sdpa").packs


# Wrong masks must be detected by the same comparison.


def widened(mask: Any) -> Any:
    """A mask under which every query also attends one slot too far."""
    if isinstance(mask, dict):
        return {name: widened(part) for name, part in mask.items()}
    return mask.roll(1, -1) | mask


@pytest.mark.parametrize("kind", CONFIGS)
def test_teeth_a_mask_one_slot_too_wide(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = make(kind), texts_of(LENGTHS)
    sound = Masks.make
    monkeypatch.setattr(Masks, "make", lambda *args, **more: widened(sound(*args, **more)))
    cache = model.new_cache(3, 90)
    feed(model, cache, {row: text[:-4] for row, text in enumerate(texts)})
    speculate_and_crop(model, cache, [0, 1, 2])
    found = feed(model, cache, {row: text[-4:] for row, text in enumerate(texts)}, keep=4)
    assert max(error(model, texts[row], logits) for row, logits in found.items()) > 1e-2


@pytest.mark.parametrize("kind", ["mistral-sliding", "gemma3-mixed"])
def test_teeth_a_window_one_token_too_long(kind: str) -> None:
    model, texts = make(kind), texts_of(LENGTHS)
    model._masks._window += 1
    cache = model.new_cache(3, 90)
    found = feed(model, cache, dict(enumerate(texts)))
    assert max(error(model, texts[row], logits) for row, logits in found.items()) > 1e-3


def test_teeth_positions_that_forget_the_crop() -> None:
    model, (text,) = make("llama"), texts_of((20,))
    cache = model.new_cache(1, 40)
    feed(model, cache, {0: text[:15]})
    feed(model, cache, {0: [7, 7]})
    found = feed(model, cache, {0: text[15:]})  # lengths were not lowered
    assert error(model, text, found[0]) > 1e-2


@pytest.mark.parametrize("kind", list(CONFIGS))
@pytest.mark.parametrize("bulk", [10**9, 1])
def test_tapped_hidden_states_are_those_of_a_plain_forward(
    kind: str, bulk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for tokens fed without logits, whatever the rows' lengths."""
    model = make(kind)
    monkeypatch.setattr(model, "bulk_logits", bulk)
    model.tap([1, -1])
    cache = model.new_cache(3, 80)
    texts = texts_of(LENGTHS)
    logits = model.extend(cache, [0, 1, 2], texts, keep=4)
    assert sorted(logits.hidden) == [1, model.num_layers]
    for tap, rows in logits.hidden.items():
        for text, ours in zip(texts, rows, strict=True):
            ids = torch.tensor([text])
            output = model.module(input_ids=ids, use_cache=False, output_hidden_states=True)
            expected = output.hidden_states[tap][0]
            assert ours.shape == expected.shape
            assert float((ours - expected).abs().max() / expected.abs().max()) < TOLERANCE


def test_a_layer_that_is_not_there_cannot_be_tapped() -> None:
    with pytest.raises(ValueError, match="which has 2 layers"):
        make("llama").tap([3])
