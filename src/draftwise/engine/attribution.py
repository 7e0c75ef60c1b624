"""Attribution of a growing text to the drafters that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwise.engine.answer import Detokenizer
from draftwise.engine.engine import Result
from draftwise.engine.outputs import TARGET, RequestOutput

Piece = tuple[str, str]  # a piece of text, and its drafter or ``target``


class SourceAttribution:
    """Splits the growing text of one answer into pieces by drafter.

    Tokens are decoded here a second time, one by one, only to find the boundaries between them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._ends: list[tuple[int, str]] = []  # end offset and drafter of each piece
        self._num_decoded = self._num_shown = 0

    def grow(self, new: RequestOutput | Result, text: str) -> list[Piece]:
        """The pieces that ``new`` adds to the answer; text: the answer so far, including them."""
        self._read(new.tokens, new.sources)
        return self.finish(text)

    def _read(self, tokens: Sequence[int], sources: Sequence[str]) -> None:
        for token, source in zip(tokens, sources, strict=True):
            self._num_decoded += len(self._detokenizer.push([token]))
            end = self._num_decoded + len(self._detokenizer.waiting)
            if end > (self._ends[-1][0] if self._ends else self._num_shown):
                self._ends.append((end, source))

    def finish(self, text: str) -> list[Piece]:
        """The pieces of ``text`` that have not been returned yet."""
        pieces, end = list[Piece](), len(text)
        while self._num_shown < end:
            while self._ends and self._ends[0][0] <= self._num_shown:
                self._ends.pop(0)
            stop, source = self._ends[0] if self._ends else (end, TARGET)
            stop = min(stop, end)
            pieces.append((text[self._num_shown : stop], source))
            self._num_shown = stop
        return pieces


def attributed(tokenizer: Any, tokens: Sequence[int], sources: Sequence[str]) -> list[Piece]:
    """The pieces of a finished answer; their concatenation equals one decode of all tokens."""
    attribution, whole = SourceAttribution(tokenizer), Detokenizer(tokenizer)
    attribution._read(tokens, sources)
    return attribution.finish(whole.push(tokens) + whole.flush())
