"""Prompt lookup: continue the text as it went on after an earlier occurrence of its own ending."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.drafters.protocol import Context, DraftTask, score_known
from draftwise.types import Draft, DraftStep, Scores

LONGEST_MATCH = 32
"""Matches are measured up to this many tokens: longer ones say nothing more."""


class LookupDrafter:
    """The longest n-gram at the end of the text that occurred before; its latest occurrence wins.

    Source: prompt lookup decoding (Saxena 2023), names as in vLLM; unlike the original the longest
    match wins, then the latest, and a continuation may be of any length. Index: last position of
    each n-gram of ``prompt_lookup_min`` to ``prompt_lookup_max`` tokens of the request's own text.
    Memory: one dict entry per n-gram. Time: O(prompt_lookup_max) a token. probs: None (point mass).
    Errors: ValueError if not 1 <= prompt_lookup_min <= prompt_lookup_max.

    With the text ``5 6 7 8 5 6`` and n = 2 the match is ``5 6``, and ``7 8 5 ...`` is proposed.
    """

    retrieves, can_mix = True, False
    can_branch = False
    relative_cost = 0.002

    def __init__(self, name: str, prompt_lookup_min: int = 1, prompt_lookup_max: int = 8) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min={prompt_lookup_min} and prompt_lookup_max={prompt_lookup_max}: "
                "1 <= min <= max is needed"
            )
        self.name, self._sizes = name, (prompt_lookup_min, prompt_lookup_max)

    def start(self, num_rows: int, capacity: int) -> LookupSession:
        """An empty index for each row."""
        return LookupSession(self.name, *self._sizes, num_rows)


class _Index:
    """One text's n-grams, and the proposals that its own past made for each position."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._sizes = range(smallest, largest + 1)
        self._last: dict[tuple[int, ...], int] = {}
        self.length = 0
        self.known_start = 0
        self.known: list[tuple[int, int]] = []  # (proposed token or -1, match length) by position
        self.match = 0
        self._source = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the text up to its present end, one token after another."""
        while self.length < len(tokens):
            proposal = tokens[self._source] if self.match else -1
            self.known.append((proposal, self.match))
            self.length += 1
            self._find(tokens)

    def _find(self, tokens: Sequence[int]) -> None:
        """The longest earlier occurrence of the ending; then remember the ending itself."""
        end = self.length
        self.match = self._source = 0
        for size in self._sizes:
            if size > end:
                break
            ending = tuple(tokens[end - size : end])
            found = self._last.get(ending)
            if found is not None:
                self.match, self._source = size, found
            self._last[ending] = end
        if self.match == self._sizes[-1]:
            self.match = _common_suffix(tokens, self._source, end, self.match)

    def peek(self, tokens: Sequence[int], drafted: Sequence[int]) -> tuple[int, int]:
        """Tokens of the longest match behind a draft, and the token that follows it."""
        if not drafted:
            return (self.match, tokens[self._source]) if self.match else (0, -1)
        end, match, source = len(tokens) + len(drafted), 0, 0
        tail = (*tokens[-self._sizes[-1] :], *drafted)[-self._sizes[-1] :]
        for size in self._sizes:
            found = self._last.get(tail[len(tail) - size :]) if size <= len(tail) else None
            if found is None:
                break
            match, source = size, found
        if match == self._sizes[-1]:
            match = _common_suffix([*tokens, *drafted], source, end, match)
        if not match:
            return 0, -1
        behind = source - len(tokens)
        return match, tokens[source] if behind < 0 else drafted[behind]

    def propose(self, tokens: Sequence[int], length: int) -> list[int]:
        """The continuation of the match, running on into itself where it reaches the end."""
        if not self.match:
            return []
        text = list(tokens)
        for offset in range(length):
            text.append(text[self._source + offset])
        return text[len(tokens) :]


def _common_suffix(tokens: Sequence[int], source: int, end: int, known: int) -> int:
    """How many tokens before ``source`` and ``end`` agree, at most ``LONGEST_MATCH``."""
    length = known
    while (
        length < min(source, LONGEST_MATCH)
        and tokens[source - 1 - length] == tokens[end - 1 - length]
    ):
        length += 1
    return length


class LookupSession:
    """An index for each row, brought up to date whenever it is asked."""

    def __init__(self, name: str, smallest: int, largest: int, num_rows: int) -> None:
        self._name = name
        self._indices = [_Index(smallest, largest) for _ in range(num_rows)]

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """The continuation of each row's match, as far as its guide goes on."""
        drafts = []
        for task in tasks:
            tokens = self._index(task.context).propose(task.context.tokens, task.length)
            # a proposal of mass one: certain in its own eyes, so rules on confidence never stop it
            certain = (1.0, 1.0, 0.0, 1.0)
            kept = 0
            while kept < len(tokens) and task.guide.goes_on(DraftStep(kept, task.length, *certain)):
                kept += 1
            drafts.append(Draft.chain(tokens[:kept], None, self._name))
        return drafts

    def commit(self, contexts: Sequence[Context]) -> None:
        """Nothing to drop: only verified text is indexed."""

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """What lookup would have proposed at each new position: free every round."""
        reports = []
        for context in contexts:
            index = self._index(context)
            reports.append(
                score_known(
                    context,
                    index.known_start,
                    [token for token, _ in index.known],
                    [match for _, match in index.known],
                )
            )
            index.known, index.known_start = [], index.length
        return reports

    def glance(self, contexts: Sequence[Context]) -> list[Scores | None]:
        """The same as any look: it is free."""
        return self.score(contexts, everything=True)

    def match_length(self, context: Context) -> int:
        """Tokens of the longest match at the end of the text, 0 = none."""
        return self._index(context).match

    def peek(self, context: Context, drafted: Sequence[int]) -> tuple[int, int]:
        """The match at the end of text and draft, and what follows it."""
        return self._index(context).peek(context.tokens, drafted)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' indices."""
        self._indices = [self._indices[row] for row in rows]

    def _index(self, context: Context) -> _Index:
        index = self._indices[context.row]
        index.extend(context.tokens)
        return index
