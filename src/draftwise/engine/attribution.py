"""Attribution of a growing text to the drafters that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwise.engine.answer import Answer, Ending
from draftwise.engine.outputs import TARGET, RequestOutput

Piece = tuple[str, str]  # a piece of text, and its drafter or ``target``


class SourceAttribution:
    """Splits the growing text of one answer into pieces by drafter.

    The request needs ``token_texts``. num_shown: characters of the text that are not asked for.
    """

    def __init__(self, num_shown: int = 0) -> None:
        self._ends: list[tuple[int, str]] = []  # end offset and drafter of each piece
        self._num_told = self._num_shown = num_shown

    def grow(self, new: RequestOutput, text: str) -> list[Piece]:
        """The pieces that ``new`` adds to the answer; text: the answer so far, including them."""
        self._read(new.token_texts, new.sources)
        return self.finish(text)

    def _read(self, texts: Sequence[str], sources: Sequence[str]) -> None:
        for text, source in zip(texts, sources, strict=True):
            self._num_told += len(text)
            if text:
                self._ends.append((self._num_told, source))

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
    """The pieces of a finished answer; their concatenation is the text of all tokens."""
    attribution, answer = SourceAttribution(), Answer(Ending(len(tokens)), tokenizer, by_token=True)
    answer.push(tokens)
    attribution._read(answer.token_texts, sources)
    return attribution.finish(answer.text)
