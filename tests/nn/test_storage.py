"""Allocation, reuse and release of cache rows, and the calls that states receive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwise.nn.cache import RaggedCache, RowKVCache, RowSpan


class Told:
    """Stands in for a recurrent model's states and records its calls."""

    is_used, num_bytes = True, 7

    def __init__(self, known: int = 0) -> None:
        self.known, self.calls = known, []  # type: int, list[Any]

    def reachable(self, row: int, length: int) -> int:
        return min(self.known, length)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


def write(
    cache: RaggedCache, *spans: RowSpan, packed: bool = False, layer: int = 0
) -> torch.Tensor:
    """Feed spans numbers that encode row and slot; returns the keys that attention reads."""
    cache.place(spans, packed)
    wide = max(span.count for span in spans)
    rows = [100.0 * span.row + span.start + torch.arange(float(wide)) for span in spans]
    if packed:
        ends = [row[: span.count] for row, span in zip(rows, spans, strict=True)]
        keys = torch.cat(ends)[None, None, :, None]
    else:
        keys = torch.stack(rows)[:, None, :, None]
    return cache.update(keys, -keys, layer)[0]


def held(cache: RaggedCache, row: int, layer: int = 0) -> list[float]:
    return cache.storage(row).keys[layer].flatten().tolist()


def test_storage_grows_by_blocks_of_32_tokens_or_an_eighth() -> None:
    cache = RaggedCache(1)
    assert cache.storage(0).num_slots == 0
    for end, slots in ((1, 32), (32, 32), (33, 64), (640, 640), (641, 720)):
        cache.place([RowSpan(0, end - 1, 1)])
        assert cache.storage(0).num_slots == slots
    assert RaggedCache(1, 40).capacity == 40
    cache = RaggedCache(1, 40)
    cache.place([RowSpan(0, 32, 1)])
    assert cache.storage(0).num_slots == 40
    cache.place([RowSpan(0, 39, 1)])
    with pytest.raises(ValueError, match="holds 40 tokens a row, and 41 are needed"):
        cache.place([RowSpan(0, 40, 1)])


def test_a_copy_is_cut_to_its_length() -> None:
    cache = RaggedCache(3)
    write(cache, RowSpan(0, 0, 8))
    cache.lengths[0] = 8
    cache.copy(0, 1, 8)
    cache.copy(0, 2, 5)
    assert held(cache, 1)[:9] == held(cache, 0)[:9] == [*map(float, range(8)), 0.0]
    assert held(cache, 2)[:8] == [0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0]
    assert cache.lengths == [8, 8, 5]


def test_what_grows_keeps_what_is_valid_and_nothing_else() -> None:
    cache = RaggedCache(1)
    write(cache, RowSpan(0, 0, 32))
    cache.lengths[0] = 30
    write(cache, RowSpan(0, 32, 1))
    assert held(cache, 0)[:34] == [*map(float, range(30)), 0.0, 0.0, 32.0, 0.0]


def test_rows_side_by_side_are_followed_by_zeros() -> None:
    cache = RaggedCache(2)
    found = write(cache, RowSpan(1, 0, 2), RowSpan(0, 0, 4))
    assert found[:, 0, :, 0].tolist() == [[100.0, 101.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]]
    alone = write(cache, RowSpan(1, 2, 1))
    assert alone.flatten().tolist() == [100.0, 101.0, 102.0]
    alone[0, 0, 0, 0] = 5.0
    assert held(cache, 1)[0] == 5.0  # a view


def test_rows_end_to_end() -> None:
    cache = RaggedCache(3)
    given = write(cache, RowSpan(2, 0, 3), RowSpan(0, 0, 1), RowSpan(1, 0, 2), packed=True)
    assert given.flatten().tolist() == [200.0, 201.0, 202.0, 0.0, 100.0, 101.0]
    assert [k.flatten().tolist() for k, _ in cache.views[0]] == [
        [200.0, 201.0, 202.0], [0.0], [100.0, 101.0],
    ]  # fmt: skip
    assert [v.flatten().tolist() for _, v in cache.views[0]][2] == [-100.0, -101.0]
    assert held(cache, 1)[:3] == [100.0, 101.0, 0.0]


def test_the_library_is_told_where_the_coming_write_begins_and_ends() -> None:
    cache = RaggedCache(2, 50)
    assert (cache.get_seq_length(), cache.get_query_offset()) == (0, 0)
    assert cache.get_mask_sizes(6, 0) == (6, 0)
    assert (cache.get_max_cache_shape(), cache.get_max_length()) == (50, 50)
    with pytest.raises(RuntimeError, match="place"):
        cache.update(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), 0)
    cache.place([RowSpan(0, 4, 3), RowSpan(1, 9, 1)])
    assert (cache.get_seq_length(), cache.get_query_offset()) == (9, 9)
    assert cache.get_mask_sizes(6, 0) == (10, 0)


def test_a_path_of_a_tree_is_moved_together() -> None:
    cache = RaggedCache(1)
    write(cache, RowSpan(0, 0, 8))
    write(cache, RowSpan(0, 0, 8), layer=1)
    cache.keep_path(0, 3, [0, 1])
    assert (cache.lengths, held(cache, 0)[:8]) == ([5], [*map(float, range(8))])
    cache.keep_path(0, 3, [1, 4])
    assert cache.lengths == [5]
    for layer in (0, 1):
        assert held(cache, 0, layer)[:8] == [0.0, 1.0, 2.0, 4.0, 7.0, 5.0, 6.0, 7.0]
        assert cache.storage(0).values[layer].flatten()[3:5].tolist() == [-4.0, -7.0]
    cache.keep_path(0, 3, [])
    assert cache.lengths == [3]


def test_states_are_told_of_rows() -> None:
    states = Told()
    cache = RaggedCache(0, states=states)  # type: ignore[arg-type]
    cache.open(0)
    cache.place([RowSpan(0, 2, 3)], fed=[[5, 6, 7]])
    cache.settle([0], [4])
    cache.open(1)
    cache.copy(0, 1, 0)
    cache.close(0)
    assert states.calls == [
        ("open", 0), ("begin", [0], [2], [[5, 6, 7]]), ("settle", 0, 4),
        ("open", 1), ("copy", 0, 1, 0), ("open", 0),
    ]  # fmt: skip
    cache.place([RowSpan(1, 0, 1)])
    assert states.calls[6:] == []


@pytest.mark.parametrize(
    ("known", "length", "found"), [(9, 5, 5), (9, 8, 6), (3, 5, 3), (-1, 5, 0), (9, 0, 0)]
)
def test_a_row_is_cut_back_as_far_as_its_states_are_known(
    known: int, length: int, found: int
) -> None:
    states: Any = Told(known)
    cache = RaggedCache(1, states=states)
    cache.lengths[0] = 6
    states.calls.clear()
    assert cache.crop(0, length) == found
    assert cache.lengths == [found]
    assert states.calls == ([] if found else [("open", 0)])
    assert cache.reachable(0, 2) == max(0, min(known, 2))


def test_a_grown_row_has_the_slots_asked_for_and_what_it_held() -> None:
    keys, values = torch.randn(2, 1, 2, 4, 8)
    grown = RowKVCache(4, {0: keys}, {0: values}).grown(3, 16)
    assert grown.num_bytes == 2 * 2 * 16 * 8 * 4
    assert grown.keys[0].shape == grown.values[0].shape == (1, 2, 16, 8)
    assert torch.equal(grown.keys[0][:, :, :3], keys[:, :, :3])
    assert torch.equal(grown.values[0][:, :, :3], values[:, :, :3])
