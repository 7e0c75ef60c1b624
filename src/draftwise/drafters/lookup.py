"""Prompt lookup: proposes the continuation of an earlier occurrence of the text's last tokens."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.checks import whole
from draftwise.drafters.protocol import Context
from draftwise.drafters.retrieval import LONGEST_MATCH, NO_MATCH, Finder, Match, RetrievalSession
from draftwise.errors import BadValue

_LONGEST = 64  # tokens of the longest n-gram: each size up to it is looked up for every token


class LookupDrafter:
    """The longest n-gram at the end of the text that occurred before; its latest occurrence wins.
    A request's ``prediction`` counts as text before its prompt.

    Source: prompt lookup decoding (Saxena 2023), names as in vLLM. Differs: the longest match wins,
    then the latest, and a continuation may be of any length. Memory: one dict entry per token, and
    one per n-gram of ``prompt_lookup_min`` to ``prompt_lookup_max`` tokens that recurred. Time:
    O(prompt_lookup_max) a token. probs: None (point mass).
    Errors: ValueError if not 1 <= prompt_lookup_min <= prompt_lookup_max.

    With the text ``5 6 7 8 5 6`` and n = 2 the match is ``5 6``, and ``7 8 5 ...`` is proposed.
    """

    retrieves, can_branch, can_mix = True, False, False
    relative_cost, token_bytes = 0.002, 200

    def __init__(self, name: str, prompt_lookup_min: int = 1, prompt_lookup_max: int = 8) -> None:
        whole("prompt_lookup_max", prompt_lookup_max, 1, _LONGEST)
        if whole("prompt_lookup_min", prompt_lookup_min, 1) > prompt_lookup_max:
            must = f"at most prompt_lookup_max, which is {prompt_lookup_max}"
            raise BadValue("prompt_lookup_min", prompt_lookup_min, must)
        self.name, self._sizes = name, (prompt_lookup_min, prompt_lookup_max)

    def start(self) -> RetrievalSession:
        return RetrievalSession(self.name, lambda expected: _LookupFinder(*self._sizes))


class _LookupFinder(Finder):
    """The last end position of each n-gram of one text: ``~end`` if it occurred once; longer
    n-grams that end with it are stored when it recurs.
    """

    def __init__(self, smallest: int, largest: int) -> None:
        self._sizes = range(smallest, largest + 1)
        self._last: dict[tuple[int, ...], int] = {}
        self._text: list[int] = []
        self._match = NO_MATCH

    def begin(self, context: Context) -> None:
        """Index the request's prediction as if it stood before the prompt, after the prompt's last
        tokens, so that an answer is expected to begin as it does. It belongs to this request alone.
        """
        if context.prediction:
            self.resumes = False
            for token in (*context.tokens[-self._sizes[-1] :], *context.prediction):
                self.push(token)

    def push(self, token: int) -> None:
        """Find the longest earlier occurrence of the ending, then store the ending."""
        text, last = self._text, self._last
        text.append(token)
        end, length, source = len(text), 0, 0
        tail = tuple(text[-self._sizes[-1] :])
        num = len(tail)
        for size in self._sizes:
            if size > num:
                break
            ending = tail[num - size :]
            found = last.get(ending)
            if found is None:
                last[ending] = ~end
                break
            if found < 0:
                found = ~found
                if found > size < self._sizes[-1]:
                    last[tuple(text[found - size - 1 : found])] = ~found
            last[ending] = end
            length, source = size, found
        self._match = self._matched((), length, source)

    def find(self, draft: Sequence[int]) -> Match:
        if not draft:
            return self._match
        text, largest = self._text, self._sizes[-1]
        tail, length, source = (*text[-largest:], *draft)[-largest:], 0, 0
        for size in self._sizes:
            found = self._last.get(tail[len(tail) - size :]) if size <= len(tail) else None
            if found is None:
                break
            length, source = size, found
            if found < 0:  # the only occurrence: extend the match by comparing tokens
                source = ~found
                most = min(len(tail), source)
                while length < most and text[source - 1 - length] == tail[-1 - length]:
                    length += 1
                break
        return self._matched(draft, length, source)

    def _matched(self, draft: Sequence[int], length: int, source: int) -> Match:
        if not length:
            return NO_MATCH
        text, num = self._text, len(self._text)
        if length == self._sizes[-1]:
            tokens = [*text, *draft] if draft else text
            most = min(source, LONGEST_MATCH)
            while length < most and tokens[source - 1 - length] == tokens[-1 - length]:
                length += 1

        def rows(depth: int) -> list[list[int]]:
            row = text[source : min(source + depth, num)]
            row += draft[max(0, source - num) : max(0, source + depth - num)]
            row *= -(-depth // len(row))
            return [row[:depth]]

        return Match(length, rows, lambda: [text[source] if source < num else draft[source - num]])
