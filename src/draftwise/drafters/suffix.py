"""An index of growing texts that finds earlier occurrences of a text's last tokens, newest first.

Hash chains as in Lempel-Ziv compressors: for each order (1, 2, 4, 8 tokens) a table maps the
hash of a context to the latest place after it, and each place links to the one before. Adding a
token costs four table writes, however long the history; an occurrence is confirmed by comparing
tokens, 32 at once, so hash collisions cost only time.

A suffix automaton or tree would need about 500 bytes per token in Python, could not update its
counts in O(1), and could not evict text.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwise.checks import MANY, whole
from draftwise.drafters.protocol import Context
from draftwise.drafters.retrieval import LONGEST_MATCH, NO_MATCH, Finder, Match, RetrievalSession

ORDERS = (1, 2, 4, 8)
_NUM_ORDERS = len(ORDERS)
_LAGS = ORDERS[:-1]
_SPANS = (*(order - 1 for order in ORDERS[1:]), LONGEST_MATCH)
"""The longest match at each order: a longer one would be found at the next."""
_OFFSET_BITS = 32
_OFFSET = (1 << _OFFSET_BITS) - 1
_WORD = 32  # bits of a token
_TAIL = LONGEST_MATCH * _WORD
_KEYS_KEPT = 1024
_MOST_TOKENS = 1 << 26  # maximum tokens of a history, 68 bytes each
_PATIENCE = 4  # places visited per requested match: other contexts may share the bucket


@dataclass(slots=True)
class Tail:
    """The end of a text as the index needs it: hashes of its contexts, and its last 32 tokens.

    keys: at the last positions, the hashes of the 1, 2, 4, 8 tokens before them (fewer at the
    start of a text). tail: one integer, the latest token in its top 32 bits. last: that token.
    """

    keys: list[tuple[int, ...]] = field(default_factory=list)
    tail: int = 0
    num: int = 0
    last: int = 0

    def push(self, token: int) -> None:
        """Append a token; a context of 2k tokens hashes the pair of its halves."""
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
        return Tail(self.keys[-_LAGS[-1] :], self.tail, self.num, self.last)


@dataclass(slots=True)
class Piece:
    """One text: its tokens, and for each token four links to earlier places."""

    tokens: array[int] = field(default_factory=lambda: array("I"))
    links: array[int] = field(default_factory=lambda: array("q"))

    def common(self, offset: int, num: int, wanted: int) -> int:
        """Number of tokens before ``offset`` that equal the last ``num`` tokens ``wanted``, an
        integer: the highest bit of the XOR is in the last token that differs.
        """
        if offset < num:
            wanted >>= (num - offset) * _WORD
            num = offset
        here = int.from_bytes(self.tokens[offset - num : offset].tobytes(), "little")
        return num - ((here ^ wanted).bit_length() + _WORD - 1) // _WORD


class SuffixIndex:
    """Texts by number, and for every context its latest places.

    num_buckets: rounded up to a power of two; about the expected number of tokens. num_matches:
    occurrences examined. max_tokens: maximum tokens kept; beyond it, the oldest texts are dropped
    whole. A text is cut at a quarter of that, and the next one begins with a copy of its last 32
    tokens, so that matches extend across the cut. Memory: 32 bytes a bucket and 36 a token.
    """

    def __init__(self, num_buckets: int, num_matches: int, max_tokens: int = sys.maxsize) -> None:
        size = 1 << max(8, (num_buckets - 1).bit_length())
        self._mask, self._num_matches = size - 1, num_matches
        self._max_tokens, self._longest_text = max_tokens, max(2 * LONGEST_MATCH, max_tokens // 4)
        tables: Any = np.zeros((len(ORDERS), size), dtype=np.int64)
        # reading a memoryview takes half the time of reading an array
        self._heads: list[memoryview[int]] = [memoryview(table) for table in tables]
        self._pieces: dict[int, Piece] = {}
        self._num_pieces = self.num_tokens = 0

    def append(self, number: int, token: int, keys: tuple[int, ...]) -> int:
        """Add a token after context ``keys``; number 0 = a new text. Returns the text's number."""
        piece = self._pieces.get(number)
        if piece is None or len(piece.tokens) >= self._longest_text:
            number, piece = self._new_piece(piece)
        place, mask = number << _OFFSET_BITS | len(piece.tokens), self._mask
        if len(keys) == _NUM_ORDERS:  # unrolled: nearly every token takes this path
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
        """The longest match of more than ``above`` tokens, and the places after it, newest first;
        (0, []) if there is none. Only the newest ``num_matches`` occurrences of the longest order
        count.
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
        """The newest places of the longest match, back from ``place``; (0, []) = none."""
        pieces, order, last = self._pieces, ORDERS[level], ending.last
        longest = num = tail = 0
        places: list[tuple[Piece, int]] = []
        wanted = self._num_matches
        for _ in range(_PATIENCE * wanted):
            piece = pieces.get(place >> _OFFSET_BITS)
            if piece is None:  # none, or dropped with all older ones
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
        piece = Piece()
        if cut is not None:
            piece.tokens.extend(cut.tokens[-LONGEST_MATCH:])
            piece.links.extend([0] * (len(piece.tokens) * _NUM_ORDERS))
            self.num_tokens += len(piece.tokens)
        self._num_pieces += 1
        self._pieces[self._num_pieces] = piece
        return self._num_pieces, piece


class SuffixDrafter:
    """The most frequent continuation of the longest suffix match here or in past outputs.

    Source: SuffixDecoding (Oliaro et al. 2024) and SAM decoding (Hu et al. 2024): an index of the
    request (prompt and output) and a shared one of all outputs that this drafter has seen; the
    longer match proposes, the request's on a tie. Differs: hash chains instead of suffix trees or
    automata (see the module); frequencies are those among the newest ``num_matches`` occurrences of
    the longest match, up to 32 tokens; the longer match wins, not the higher score.

    Outputs are shared after every round; prompts and private requests are not. Each of at most
    ``num_tenants`` tenants (the least recently used is dropped first) has a history of at most
    ``max_tokens`` tokens (oldest outputs dropped first); 0 = none. With a history, the same seed
    may yield another sample of the same distribution.

    Memory: 36 bytes a token, and 32 a token of ``max_tokens`` (of the expected length for the
    request). Time: O(num_matches) a token. probs: None (a point mass, a function of the past
    alone). Errors: ValueError if max_tokens < 0 or num_matches < 1.

    >>> from draftwise.drafters.protocol import Context
    >>> from draftwise.types import SamplingParams
    >>> session = SuffixDrafter("suffix").start()
    >>> context = Context(0, [5, 6, 7, 8, 5, 6], SamplingParams(), rng=None)
    >>> session.open(context, expected=16)
    >>> session.match_length(context), session.tree(context, num_tokens=4).tokens.tolist()
    (2, [7, 8, 5, 6])
    """

    retrieves, can_branch, can_mix = True, True, False
    relative_cost, token_bytes = 0.004, 68

    def __init__(
        self, name: str, max_tokens: int = 262_144, num_matches: int = 8, num_tenants: int = 16
    ) -> None:
        whole("max_tokens", max_tokens, 0, _MOST_TOKENS, "no shared history")
        whole("num_matches", num_matches, 1, MANY), whole("num_tenants", num_tenants, 1, MANY)
        self.name, self._max_tokens, self._num_matches = name, max_tokens, num_matches
        self._num_tenants = num_tenants
        self._histories: dict[str, SuffixIndex] = {}  # least recently used first

    def forgetful(self) -> SuffixDrafter:
        """A drafter with the same options and an empty history."""
        return SuffixDrafter(self.name, self._max_tokens, self._num_matches, self._num_tenants)

    def start(self) -> RetrievalSession:
        def new_finder(expected: int) -> _SuffixFinder:
            return _SuffixFinder(SuffixIndex(expected, self._num_matches), self._history)

        return RetrievalSession(self.name, new_finder)

    def _history(self, tenant: str) -> SuffixIndex | None:
        """A tenant's past outputs; None if none are kept."""
        if not self._max_tokens:
            return None
        history = self._histories.pop(tenant, None)
        if history is None:
            history = SuffixIndex(self._max_tokens, self._num_matches, self._max_tokens)
        self._histories[tenant] = history
        if len(self._histories) > self._num_tenants:
            del self._histories[next(iter(self._histories))]
        return history


class _SuffixFinder(Finder):
    resumes = False

    def __init__(self, own: SuffixIndex, history: Callable[[str], SuffixIndex | None]) -> None:
        self._own, self._history, self._ending = own, history, Tail()
        self._shared: SuffixIndex | None = None
        self._shares = False
        self._own_text = self._shared_text = self._num_read = self._num_prompt = 0
        self._unshared: list[tuple[int, tuple[int, ...]]] = []

    def begin(self, context: Context) -> None:
        self._num_prompt = len(context.tokens)
        self._shared = self._history(context.tenant)
        self._shares = self._shared is not None and not context.is_private

    def push(self, token: int) -> None:
        keys = self._ending.keys[-1] if self._ending.keys else ()
        self._own_text = self._own.append(self._own_text, token, keys)
        if self._shares and self._num_read >= self._num_prompt:
            self._unshared.append((token, keys))
        self._ending.push(token)
        self._num_read += 1

    def find(self, draft: Sequence[int]) -> Match:
        ending = self._ending
        if draft:
            ending = ending.copy()
            for token in draft:
                ending.push(token)
        length, places = self._own.find(ending)
        if self._shared is not None:
            longer, elsewhere = self._shared.find(ending, above=length)
            if elsewhere:
                return Match(
                    longer,
                    lambda depth: [p.tokens[at : at + depth].tolist() for p, at in elsewhere],
                    lambda: [piece.tokens[offset] for piece, offset in elsewhere],
                )
        if not places:
            return NO_MATCH
        return Match(
            length,
            lambda depth: [_run_on(*place, draft, depth) for place in places],
            lambda: [piece.tokens[offset] for piece, offset in places],
        )

    def share(self) -> None:
        if self._shared is not None:
            for token, keys in self._unshared:
                self._shared_text = self._shared.append(self._shared_text, token, keys)
        self._unshared = []


def _run_on(piece: Piece, offset: int, draft: Sequence[int], depth: int) -> list[int]:
    """The continuation in the row's text, extended by the draft, then repeated."""
    row = piece.tokens[offset : offset + depth].tolist()
    if len(row) < depth:
        row += draft
        row *= -(-depth // len(row))
    return row[:depth]
