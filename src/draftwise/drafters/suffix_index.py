"""An index of growing texts that finds where a text's ending occurred before, newest first.

Hash chains as in Lempel-Ziv compressors: for each order (1, 2, 4, 8 tokens) a table maps the
hash of a context to the latest place behind it, and each place links to the one before. Adding a
token costs four table writes whatever the history; an occurrence is confirmed by comparing tokens,
32 at once, so hash collisions cost time and nothing else.

Why not a suffix automaton or tree: it needs about 500 bytes a token in Python, its counts are not
O(1) to keep up to date, and nothing can be taken out of it again. Here a token costs 36 bytes and
8 for each bucket of four tables, and what is evicted is simply not found any more.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise.drafters.retrieval import LONGEST_MATCH

ORDERS = (1, 2, 4, 8)
_NUM_ORDERS = len(ORDERS)
_LAGS = ORDERS[:-1]
_SPANS = (*(order - 1 for order in ORDERS[1:]), LONGEST_MATCH)
"""The longest match at each order: one token more would have been found at the next."""
_OFFSET_BITS = 32
_OFFSET = (1 << _OFFSET_BITS) - 1
_WORD = 32  # bits of a token
_TAIL = LONGEST_MATCH * _WORD
_KEYS_KEPT = 1024
_PATIENCE = 4  # places looked at for each match wanted: other contexts may share the bucket


class Tail:
    """The end of a text as the index needs it: hashes of its contexts, and its last 32 tokens.

    keys: at the last positions, the hashes of the 1, 2, 4, 8 tokens before them (fewer at the
    start of a text). tail: one integer, the latest token in its top 32 bits. last: that token.
    """

    __slots__ = ("keys", "last", "num", "tail")

    def __init__(self) -> None:
        self.keys: list[tuple[int, ...]] = []
        self.tail = self.num = self.last = 0

    def push(self, token: int) -> None:
        """One more token: a context of 2k is the pair of its halves."""
        keys = self.keys
        if len(keys) >= 4 and len(keys[-4]) > 2:  # all but the first tokens of a text
            two = hash((keys[-1][0], token))
            four = hash((keys[-2][1], two))
            found: tuple[int, ...] = (token, two, four, hash((keys[-4][2], four)))
        else:
            found = (token,)
            for level, lag in enumerate(_LAGS):
                if len(keys) >= lag and len(keys[-lag]) > level == len(found) - 1:
                    found += (hash((keys[-lag][level], found[level])),)
        if len(keys) > _KEYS_KEPT:
            del keys[: -_LAGS[-1]]
        keys.append(found)
        self.tail = self.tail >> _WORD | token << (_TAIL - _WORD)
        self.num, self.last = min(self.num + 1, LONGEST_MATCH), token

    def copy(self) -> Tail:
        """The same ending, to go on with apart."""
        twin = Tail()
        twin.keys, twin.tail = self.keys[-_LAGS[-1] :], self.tail
        twin.num, twin.last = self.num, self.last
        return twin


@dataclass(slots=True)
class Piece:
    """One text: its tokens, and for each token four links to earlier places."""

    tokens: array[int] = field(default_factory=lambda: array("I"))
    links: array[int] = field(default_factory=lambda: array("q"))

    def common(self, offset: int, num: int, wanted: int) -> int:
        """How many tokens before ``offset`` are those of ``wanted``, which is the last ``num``.

        One XOR of both as integers: the highest bit that differs is in the last token that does.
        """
        if offset < num:
            wanted >>= (num - offset) * _WORD
            num = offset
        here = int.from_bytes(self.tokens[offset - num : offset].tobytes(), "little")
        return num - ((here ^ wanted).bit_length() + _WORD - 1) // _WORD


class SuffixIndex:
    """Texts by number, and for every context its latest places.

    num_buckets: rounded up to a power of two; about the tokens expected. num_matches: occurrences
    looked at. max_tokens: tokens kept, at most; beyond, the oldest texts are dropped whole. A text
    of a quarter of that is cut: what follows is a text of its own that begins with a copy of the
    last 32 tokens, so that matches reach across the cut. State: four tables of 8 bytes a bucket,
    mapped when first touched, and 36 bytes a token.
    """

    def __init__(self, num_buckets: int, num_matches: int, max_tokens: int = sys.maxsize) -> None:
        size = 1 << max(8, (num_buckets - 1).bit_length())
        self._mask, self._num_matches = size - 1, num_matches
        self._max_tokens, self._longest_text = max_tokens, max(2 * LONGEST_MATCH, max_tokens // 4)
        self._heads = [_zeros(size) for _ in ORDERS]
        self._pieces: dict[int, Piece] = {}
        self._num_pieces = self.num_tokens = 0

    def append(self, number: int, token: int, keys: tuple[int, ...]) -> int:
        """Add a token behind the context ``keys`` to a text; return the text's number.

        Number 0 begins a new text, and so does one that was dropped.
        """
        piece = self._pieces.get(number)
        if piece is None or len(piece.tokens) >= self._longest_text:
            number, piece = self._new_piece(piece)
        place, mask = number << _OFFSET_BITS | len(piece.tokens), self._mask
        if len(keys) == _NUM_ORDERS:  # unrolled: this is what a token costs
            one, two, four, eight = self._heads
            a, b, c, d = keys
            a, b, c, d = a & mask, b & mask, c & mask, d & mask
            piece.links.fromlist([one[a], two[b], four[c], eight[d]])
            one[a] = two[b] = four[c] = eight[d] = place
        else:
            links = [0] * _NUM_ORDERS
            for level, (heads, key) in enumerate(zip(self._heads, keys, strict=False)):
                links[level], heads[key & mask] = heads[key & mask], place
            piece.links.fromlist(links)
        piece.tokens.append(token)
        self.num_tokens += 1
        while self.num_tokens > self._max_tokens:
            self.num_tokens -= len(self._pieces.pop(next(iter(self._pieces))).tokens)
        return number

    def find(self, ending: Tail, above: int = 0) -> tuple[int, list[tuple[Piece, int]]]:
        """The longest match of more than ``above`` tokens, and the places behind it, newest first.

        Of the newest ``num_matches`` occurrences of the longest order that occurs, those count
        that agree with the ending longest; (0, []) if there are none.
        """
        keys, heads, mask = ending.keys[-1] if ending.keys else (), self._heads, self._mask
        for level in range(len(keys) - 1, -1, -1):
            if _SPANS[level] <= above:
                break
            place = heads[level][keys[level] & mask]
            if place:
                longest, places = self._longest(level, place, ending)
                if longest > above:
                    return longest, places
        return 0, []

    def _longest(self, level: int, place: int, ending: Tail) -> tuple[int, list[tuple[Piece, int]]]:
        """From this place back, the newest behind the context that agree with the ending longest.

        (0, []) if this bucket has other contexts only.
        """
        pieces, order, last = self._pieces, ORDERS[level], ending.last
        longest = num = tail = 0
        places: list[tuple[Piece, int]] = []
        wanted = self._num_matches
        for _ in range(_PATIENCE * wanted):
            piece = pieces.get(place >> _OFFSET_BITS)
            if piece is None:  # none, or dropped, and what is older with it
                break
            offset = place & _OFFSET
            if offset and piece.tokens[offset - 1] == last:
                if not num:
                    num = min(_SPANS[level], ending.num)
                    tail = ending.tail >> (_TAIL - num * _WORD)
                common = piece.common(offset, num, tail) if level else 1
                if common >= order:
                    if common > longest:
                        longest, places = common, []
                    if common == longest:
                        places.append((piece, offset))
                    wanted -= 1
                    if not wanted:
                        break
            place = piece.links[offset * _NUM_ORDERS + level]
        return longest, places

    def _new_piece(self, cut: Piece | None) -> tuple[int, Piece]:
        """A new text; behind one that was cut, it begins with a copy of its end."""
        piece = Piece()
        if cut is not None:
            piece.tokens.extend(cut.tokens[-LONGEST_MATCH:])
            piece.links.extend([0] * (len(piece.tokens) * len(ORDERS)))
            self.num_tokens += len(piece.tokens)
        self._num_pieces += 1
        self._pieces[self._num_pieces] = piece
        return self._num_pieces, piece


def _zeros(size: int) -> memoryview[int]:
    """[size] zeros of 64 bits; reading one costs half of what it does in an array of numpy."""
    table: Any = np.zeros(size, dtype=np.int64)
    return memoryview(table)
