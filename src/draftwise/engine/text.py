"""Incremental detokenisation, and the end of an answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_HELD = "�"  # what a decoder returns for bytes of an incomplete character
_MOST_TOKENS, _CONTEXT = 64, 8
"""Most tokens without a boundary, and tokens kept before a forced one: a character has at most four
bytes, each of which may be a token."""


class Detokenizer:
    """The text of a growing token sequence; with ``flush`` it equals one decode of all tokens.

    Text that later tokens may change is held back: an incomplete character at the end, and a run of
    byte tokens (``<0xE4>``), which a decoder replaces as a whole if one byte is invalid.
    State: the tokens since the last boundary but one, and the number of their characters that were
    returned. Cost: one decode of these tokens per push, whatever the length of the text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._num_settled = 0  # tokens up to the last boundary, as context for later ones
        self._num_shown = 0  # characters that were returned
        self._num_run = 0  # tokens at the end that are a run of bytes

    def push(self, tokens: Sequence[int]) -> str:
        """Append tokens; return the new text that no later token can change."""
        if self._tokenizer is None:
            return ""
        for token in tokens:
            self._append(token)
        end = len(self._tokens) - self._num_run
        if end == self._num_settled:
            return ""
        text = self._decode(self._tokens[:end])
        is_half = text.endswith(_HELD)
        piece = text[self._num_shown : len(text) - is_half]
        if is_half:
            self._num_shown += len(piece)
            if end > _MOST_TOKENS:  # only the last character is incomplete
                self._move_to(end - _CONTEXT, end)
                self._num_shown -= 1
        elif piece:  # without text (a special token) the boundary stays
            self._move_to(self._num_settled, end)
        return piece

    @property
    def waiting(self) -> str:
        """The complete characters that ``flush`` would return now."""
        text = self.flush() if self._num_run else ""
        return "" if text.endswith(_HELD) else text

    def flush(self) -> str:
        """The text held back, at the end of the answer."""
        return self._decode(self._tokens)[self._num_shown :] if self._tokenizer else ""

    def _append(self, token: int) -> None:
        last = self._tokens[-1:]
        self._tokens.append(token)
        name = getattr(self._tokenizer, "convert_ids_to_tokens", lambda _: "")(token)
        if isinstance(name, str) and len(name) == 6 and name[:3] == "<0x" and name[5] == ">":
            self._num_run += 1
        elif self._num_run and self._decode([*last, token]) == self._decode(last):
            self._num_run += 1  # a special token inside a run: the decoder does not see it
        else:
            self._num_run = 0

    def _move_to(self, start: int, end: int) -> None:
        """Begin the context at ``start``; all tokens up to ``end`` were given out."""
        self._tokens, self._num_settled = self._tokens[start:], end - start
        self._num_shown = len(self._decode(self._tokens[: self._num_settled]))

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


@dataclass(frozen=True, slots=True)
class Ending:
    """When an answer ends: a token of ``eos``, one of the ``stop`` strings, or its full length.

    stop_when: called after each token with the answer's tokens so far; True ends the answer.
    """

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_when: Callable[[Sequence[int]], bool] | None = None


class Answer:
    """One request's output: number of tokens, text, and finish reason.

    The text ends before a stop string; the tokens end with the one that completed it. A possible
    beginning of a stop string is held back, so that text once shown is never withdrawn.
    """

    def __init__(self, ending: Ending, tokenizer: Any) -> None:
        self._ending, self._detokenizer = ending, Detokenizer(tokenizer)
        self._stops = sorted(ending.stop)
        self._longest = max(map(len, ending.stop), default=1)
        self.num_tokens = 0
        self._tokens: list[int] = []
        self.text, self._waiting = "", ""
        self.finish_reason: str | None = None

    @property
    def num_left(self) -> int:
        return self._ending.max_new_tokens - self.num_tokens

    def push(self, tokens: Sequence[int]) -> int:
        """Append emitted tokens up to the end of the answer; return the number appended."""
        before = self.num_tokens
        by_token = bool(self._ending.stop) or self._ending.stop_when is not None
        step = 1 if by_token else max(1, len(tokens))
        for start in range(0, len(tokens), step):
            self._take(tokens[start : start + step])
            if self.finish_reason:
                break
        return self.num_tokens - before

    def finish(self, reason: str) -> None:
        """End the answer for a reason of the engine."""
        self.finish_reason = reason
        self.text += self._waiting + self._detokenizer.flush()
        self._waiting = ""

    def _take(self, tokens: Sequence[int]) -> None:
        taken = list(tokens[: self.num_left])
        ends = [i for i, token in enumerate(taken) if token in self._ending.eos]
        taken = taken[: ends[0] + 1] if ends else taken
        self.num_tokens += len(taken)
        self._tokens.extend(taken)
        self._show(self._detokenizer.push(taken))
        if self.finish_reason is not None:
            return
        if ends:
            self.finish("eos")
        elif self.num_left == 0:
            self.finish("length")
        elif self._ending.stop_when is not None and self._ending.stop_when(self._tokens):
            self.finish("stop")

    def _show(self, piece: str) -> None:
        """Append text, except a possible beginning of a stop string; end before a complete one."""
        text, stops = self._waiting + piece, self._ending.stop
        ahead = text + self._detokenizer.waiting if stops else text
        places = [place for stop in stops if (place := ahead.find(stop)) >= 0]
        if places:
            self.text, self._waiting = self.text + ahead[: min(places)], ""
            self.finish_reason = "stop"
            return
        most = min(self._longest - 1, len(text))
        # of the sorted stops, the one at the place of an ending begins with it, if any does
        num = next(
            (
                n
                for n in range(most, 0, -1)
                for at in (bisect_left(self._stops, text[-n:]),)
                if at < len(self._stops) and self._stops[at].startswith(text[-n:])
            ),
            0,
        )
        self.text += text[: len(text) - num]
        self._waiting = text[len(text) - num :]
