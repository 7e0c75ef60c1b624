"""A corpus on disk as a source of retrieval: its suffix array and file format."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from draftwise.files import local_path
from draftwise.files import replacing as complete_file
from draftwise.retrieval.index import Rows
from draftwise.retrieval.kernels import LONGEST_MATCH
from draftwise.types import DraftwiseError

_MAGIC, _VERSION = b"draftwds", 1
_HEADER = struct.Struct("<8sIIIQQQ")
_HEADER_BYTES = 64


def sort_suffixes(text: NDArray[Any], num_symbols: int, depth: int) -> NDArray[np.uint32]:
    """Starts of all suffixes, ordered by their first ``depth`` symbols, then by position.

    A suffix comes before those that it begins. Source: prefix doubling (Manber and Myers 1990),
    sorting only suffixes that are still tied (Larsson and Sadakane 1999). The first pass sorts by
    as many symbols as fit 64 bits; each later one doubles their number, up to ``depth``, so
    repetitive text needs no more passes.

    text: [n] symbols below ``num_symbols``, n < 2**32. Cost: O(n log n) a pass, at most 2 +
    log2(depth) passes; about 60 bytes a symbol at the peak.

    >>> sort_suffixes(np.array([1, 0, 1, 0]), num_symbols=2, depth=4).tolist()
    [3, 1, 2, 0]
    """
    num = len(text)
    bits = num_symbols.bit_length()
    width = max(1, min(64 // bits, depth))
    # the first ``width`` symbols of each suffix as one integer, padded with 0
    keys = np.zeros(num, dtype=np.uint64)
    symbols = np.append(text, np.zeros(width)).astype(np.uint64)
    symbols[:num] += np.uint64(1)
    for offset in range(width):
        keys <<= np.uint64(bits)
        keys |= symbols[offset : offset + num]
    order = np.argsort(keys)
    keys = keys[order]
    slots = np.arange(num)
    ranks = np.zeros(num, dtype=np.uint64)
    members = order
    while True:
        is_new = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
        # a rank is the first slot of a suffix's group, so it stays valid when the group is split
        ranks[members] = np.maximum.accumulate(np.where(is_new, slots, 0))
        is_alone = is_new & np.append(is_new[1:], True)
        slots, members = slots[~is_alone], members[~is_alone]
        if not len(slots):
            break
        seconds = members.astype(np.uint64)  # break ties by position
        if width < depth:
            following = members + min(width, depth - width)
            seconds = np.where(following < num, ranks[np.minimum(following, num - 1)] + 1, 0)
        keys = ranks[members] << np.uint64(32) | seconds
        sorting = np.argsort(keys)
        keys, members = keys[sorting], members[sorting]
        order[slots] = members
        width *= 2
    return order.astype(np.uint32)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that is renamed to ``path`` once it is complete. Raises DraftwiseError at once if it
    cannot be written, or would replace anything but a datastore.
    """
    if path.is_dir():
        raise DraftwiseError(f"{path} is a folder: write the name of a file")
    if os.path.lexists(path) and not (path.is_file() and _begins_well(path)):
        raise DraftwiseError(f"{path} exists and is no datastore: choose another name")
    if not os.access(path.parent, os.W_OK):
        why = "its folder cannot be written to" if path.parent.is_dir() else "there is no folder"
        raise DraftwiseError(f"cannot write {path}: {why}")
    with complete_file(path) as part, part.open("wb") as file:
        yield file


def write(file: BinaryIO, documents: Sequence[NDArray[Any]], vocab_size: int) -> None:
    """Sort the documents' tokens and write the whole datastore.

    Raises DraftwiseError for no tokens, 2**32 or more (with separators), or any outside [0, V).
    """
    documents = [document for document in documents if len(document)]
    num_tokens = sum(map(len, documents)) + len(documents) + 1
    if not documents:
        raise DraftwiseError("the corpus has no tokens: a datastore needs some text")
    if num_tokens >= 2**32:
        raise DraftwiseError(f"the corpus has {num_tokens:,} tokens: a file holds 2**32 at most")
    low, high = (f(f(document) for document in documents) for f in (min, max))
    if low < 0 or high >= vocab_size:
        raise DraftwiseError(
            f"the corpus has token {high if high >= vocab_size else low}, which is not in a "
            f"vocabulary of {vocab_size}: was it made with another tokenizer?"
        )
    separator = np.array([vocab_size])
    text = np.concatenate([part for d in documents for part in (separator, d)] + [separator])
    text = text[::-1].astype(">u2" if vocab_size < 2**16 else ">u4")
    suffixes = sort_suffixes(text, vocab_size + 1, LONGEST_MATCH)
    is_token = text != vocab_size
    suffixes = suffixes[is_token[suffixes] & is_token[np.maximum(suffixes, 1) - 1]]
    starts = np.searchsorted(text[suffixes], np.arange(vocab_size + 1))
    counts = (num_tokens, len(suffixes), len(documents))
    header = _HEADER.pack(_MAGIC, _VERSION, vocab_size, text.itemsize, *counts)
    header += struct.pack("<I", zlib.crc32(header))
    file.write(header.ljust(_HEADER_BYTES, b"\0"))
    for section in (text, suffixes.astype("<u4", copy=False), starts.astype("<u8")):
        file.write(section.data)
        file.write(bytes(_padded(section.nbytes) - section.nbytes))


class Store:
    """A memory-mapped datastore. Raises DraftwiseError for a file that is missing, truncated, or
    not a datastore.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            with local_path(path).open("rb") as file:
                if os.fstat(file.fileno()).st_size < _HEADER_BYTES:
                    raise DraftwiseError(f"{path} is no datastore, or was cut off: build it again")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DraftwiseError(f"cannot read the datastore {path}: {error.strerror}") from error
        header = self._map[: _HEADER.size]
        (crc,) = struct.unpack_from("<I", self._map, _HEADER.size)
        magic, version, self.vocab_size, width, num, num_suffixes, docs = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise DraftwiseError(f"{path} is no datastore: make one with draftwise datastore build")
        if crc != zlib.crc32(header):
            raise DraftwiseError(f"{path} has a damaged header: build the datastore again")
        if version != _VERSION:
            raise DraftwiseError(
                f"{path} is a datastore of version {version}, and {_VERSION} is read here: "
                "build it again"
            )
        self._width, self.num_tokens, self.num_documents = width, num, docs
        ends = np.cumsum([_HEADER_BYTES, _padded(width * num), _padded(4 * num_suffixes)]).tolist()
        size = ends[2] + 8 * (self.vocab_size + 1)
        if len(self._map) != size:
            raise DraftwiseError(
                f"{path} has {len(self._map):,} bytes instead of {size:,}: it was cut off or "
                "changed; build the datastore again"
            )
        self._tokens = np.frombuffer(self._map, f">u{width}", num, _HEADER_BYTES)
        self._suffixes = np.frombuffer(self._map, "<u4", num_suffixes, ends[1])
        # elements of a memoryview are read faster than those of an array
        self._starts = np.frombuffer(self._map, "<u8", self.vocab_size + 1, ends[2]).data
        self._places = self._suffixes.data

    def find(self, ending: Sequence[int]) -> tuple[int, int, int]:
        """Length of the longest match (at most 32) and its suffixes [first, last); zeros = none."""
        ending = ending[-LONGEST_MATCH:]
        if not ending or ending[-1] >= self.vocab_size:
            return 0, 0, 0
        first, last = self._starts[ending[-1]], self._starts[ending[-1] + 1]
        if first == last:
            return 0, 0, 0
        width, text_map, places = self._width, self._map, self._places
        text = struct.pack(f">{len(ending)}{'H' if width == 2 else 'I'}", *reversed(ending))

        def context(place: int) -> bytes:
            start = _HEADER_BYTES + width * place
            return text_map[start : start + len(text)]

        # the longest common prefix is with a neighbour of the insertion point
        at = bisect_left(places, text, first, last, key=context)
        neighbours = [places[i] for i in (at - 1, at) if first <= i < last]
        length = max(_common_bytes(context(place), text) for place in neighbours) // width
        if length > 1:
            text = text[: length * width]
            first = bisect_left(places, text, first, at, key=context)
            last = bisect_right(places, text, at, last, key=context)
        return length, first, last

    def nexts(self, first: int, last: int, num: int) -> list[int]:
        """The first tokens of ``continuations``."""
        tokens: list[int] = self._tokens[self._suffixes[_spread(first, last, num)] - 1].tolist()
        return tokens

    def continuations(self, first: int, last: int, num: int, depth: int) -> Rows:
        """Continuations of these suffixes in the corpus: at most ``num``, evenly spaced."""
        places = self._suffixes[_spread(first, last, num)].astype(np.int64)
        following = places[:, None] - np.arange(1, depth + 1)
        rows: list[list[int]] = self._tokens[np.maximum(following, 0)].tolist()
        # up to the separator at the end of the document
        return [row[: row.index(end)] if (end := self.vocab_size) in row else row for row in rows]


def _spread(first: int, last: int, num: int) -> NDArray[np.int64]:
    if last - first <= num:
        return np.arange(first, last)
    return first + np.arange(num) * (last - first) // num


def _common_bytes(one: bytes, other: bytes) -> int:
    one = one.ljust(len(other), b"\0")  # shorter only at a file's end, after the last separator
    differs = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return len(one) - (differs.bit_length() + 7) // 8


def _begins_well(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise DraftwiseError(f"cannot write {path}: {error.strerror}") from error


def _padded(num_bytes: int) -> int:
    """Sections begin at multiples of eight."""
    return -(-num_bytes // 8) * 8
