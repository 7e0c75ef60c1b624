"""Suffix decoding: go on as this text, or any earlier output, most often went on from here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftwise.checks import MANY, whole
from draftwise.drafters.continuations import Rows
from draftwise.drafters.protocol import Context
from draftwise.drafters.retrieval import NO_MATCH, Match, RetrievalSession
from draftwise.drafters.suffix_index import Piece, SuffixIndex, Tail

_MOST_TOKENS = 1 << 26
"""Tokens of the longest history, of a few hundred bytes each."""


class SuffixDrafter:
    """The most frequent continuation of the longest suffix found here or in past outputs.

    Source: SuffixDecoding (Oliaro et al. 2024) and SAM decoding (Hu et al. 2024): an index of the
    request (prompt and output) and a shared one of all outputs that this drafter has seen; the
    longer match proposes, the request's own on a tie. Differs: hash chains instead of suffix trees
    or automata (``suffix_index`` says why); frequencies are those among the newest ``num_matches``
    occurrences of the longest match, up to 32 tokens; the longer match wins, not the higher score.
    Index: contexts of 1, 2, 4 and 8 tokens, and the longest match among the places behind them.

    An output is shared round by round, after the round's rows were scored, so requests that run
    together help each other and an answer that is never finished is not lost; prompts are not
    shared, and private requests share nothing. Each tenant has a history of its own, at most
    ``num_tenants`` of them (of more, the one used least recently is forgotten), each of at most
    ``max_tokens`` tokens, oldest outputs dropped first; 0 = none, and then an answer depends on its
    own request alone. With a history a draft depends on what was
    said before: the same seed may draw another sample, of the same law.

    Memory: 36 bytes a token and 32 a token of ``max_tokens`` (of those expected for its own).
    Time: O(num_matches) a token. probs: None (a point mass, a function of the past alone).
    Errors: ValueError if max_tokens < 0 or num_matches < 1.

    >>> from draftwise.drafters.protocol import Context
    >>> from draftwise.types import SamplingParams
    >>> session = SuffixDrafter("suffix").start()
    >>> context = Context(0, [5, 6, 7, 8, 5, 6], SamplingParams(), rng=None)
    >>> session.open(context, expected=16)
    >>> session.match_length(context), session.tree(context, num_tokens=4).tokens.tolist()
    (2, [7, 8, 5, 6])
    """

    retrieves, can_mix = True, False
    can_branch = True
    relative_cost, token_bytes = 0.004, 68

    def __init__(
        self, name: str, max_tokens: int = 262_144, num_matches: int = 8, num_tenants: int = 16
    ) -> None:
        whole("max_tokens", max_tokens, 0, _MOST_TOKENS, "no shared history")
        whole("num_matches", num_matches, 1, MANY), whole("num_tenants", num_tenants, 1, MANY)
        self.name, self._max_tokens, self._num_matches = name, max_tokens, num_matches
        self._num_tenants = num_tenants
        self._histories: dict[str, SuffixIndex] = {}  # the latest used last

    def forgetful(self) -> SuffixDrafter:
        """Another of the same options, without a history."""
        return SuffixDrafter(self.name, self._max_tokens, self._num_matches, self._num_tenants)

    @property
    def num_shared_tokens(self) -> int:
        """Tokens of past outputs that are kept now, of all tenants."""
        return sum(history.num_tokens for history in self._histories.values())

    def start(self) -> RetrievalSession:
        """An index for each row, beside the shared one."""
        return RetrievalSession(self.name, self._new_finder)

    def _new_finder(self, expected: int) -> _Finder:
        return _Finder(SuffixIndex(expected, self._num_matches), self._history)

    def _history(self, tenant: str) -> SuffixIndex | None:
        """A tenant's past outputs; None where none are kept."""
        if not self._max_tokens:
            return None
        history = self._histories.pop(tenant, None)
        if history is None:
            history = SuffixIndex(self._max_tokens, self._num_matches, self._max_tokens)
        self._histories[tenant] = history
        if len(self._histories) > self._num_tenants:
            del self._histories[next(iter(self._histories))]
        return history


class _Finder:
    """One row: its own text's index, and what of its output was not shared yet."""

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
                    lambda depth: _continuations(elsewhere, depth),
                    lambda: _nexts(elsewhere),
                )
        if not places:
            return NO_MATCH
        return Match(
            length,
            lambda depth: [_run_on(*place, draft, depth) for place in places],
            lambda: _nexts(places),
        )

    def share(self) -> None:
        if self._shared is not None:
            for token, keys in self._unshared:
                self._shared_text = self._shared.append(self._shared_text, token, keys)
        self._unshared = []


def _nexts(places: Sequence[tuple[Piece, int]]) -> list[int]:
    """The tokens at these places."""
    return [piece.tokens[offset] for piece, offset in places]


def _continuations(places: Sequence[tuple[Piece, int]], depth: int) -> Rows:
    """How past outputs went on, as far as they went."""
    return [piece.tokens[offset : offset + depth].tolist() for piece, offset in places]


def _run_on(piece: Piece, offset: int, draft: Sequence[int], depth: int) -> list[int]:
    """How the own text went on, through the draft at its end and then into itself."""
    row = piece.tokens[offset : offset + depth].tolist()
    if len(row) < depth:
        row += draft
        row *= -(-depth // len(row))
    return row[:depth]
