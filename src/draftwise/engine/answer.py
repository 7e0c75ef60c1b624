"""The text of an answer: incremental decoding of its tokens, and the conditions that end it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_HELD = "�"  # a decoder's output for the bytes of an incomplete character
_MOST_TOKENS, _CONTEXT = 64, 8
"""Maximum tokens without a boundary, and context tokens kept at a forced one: a character has at
most four bytes, each of which may be a token."""


class Detokenizer:
    """Incremental decoding; with ``flush``, the text equals one decode of all tokens.

    Text that later tokens may change is held back: an incomplete character at the end, and a run of
    byte tokens (``<0xE4>``), which a decoder replaces as a whole if one byte is invalid.
    State: the tokens since the second-to-last boundary, and the number of their characters that
    were returned. Cost: one decode of these tokens per push, independent of the text's length.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._num_settled = 0  # tokens up to the last boundary, as context for later ones
        self._num_shown = 0  # characters that were returned
        self._num_run = 0  # trailing byte tokens

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
        """The complete characters that ``flush`` would return at this point."""
        text = self.flush() if self._num_run else ""
        return "" if text.endswith(_HELD) else text

    def flush(self) -> str:
        return self._decode(self._tokens)[self._num_shown :] if self._tokenizer else ""

    def _append(self, token: int) -> None:
        last = self._tokens[-1:]
        self._tokens.append(token)
        name = getattr(self._tokenizer, "convert_ids_to_tokens", lambda _: "")(token)
        if isinstance(name, str) and len(name) == 6 and name[:3] == "<0x" and name[5] == ">":
            self._num_run += 1
        elif self._num_run and self._decode([*last, token]) == self._decode(last):
            self._num_run += 1  # a special token inside a run: the decoder skips it
        else:
            self._num_run = 0

    def _move_to(self, start: int, end: int) -> None:
        """Start the context at token ``start``; all text up to token ``end`` was returned."""
        self._tokens, self._num_settled = self._tokens[start:], end - start
        self._num_shown = len(self._decode(self._tokens[: self._num_settled]))

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


@dataclass(frozen=True, slots=True)
class Ending:
    """Conditions that end an answer; ``stop_when`` as in ``RequestParams``."""

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_when: Callable[[Sequence[int]], bool] | None = None


class Answer:
    """The output of one request. Its text ends before a stop string, its tokens with the one that
    completes the string. A possible start of a stop string is held back, so shown text is final.
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
        before = self.num_tokens
        by_token = bool(self._ending.stop) or self._ending.stop_when is not None
        step = 1 if by_token else max(1, len(tokens))
        for start in range(0, len(tokens), step):
            self._take(tokens[start : start + step])
            if self.finish_reason:
                break
        return self.num_tokens - before

    def finish(self, reason: str) -> None:
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
        """Append text, except a possible start of a stop string; end before a complete one."""
        text, stops = self._waiting + piece, self._ending.stop
        ahead = text + self._detokenizer.waiting if stops else text
        if places := [place for stop in stops if (place := ahead.find(stop)) >= 0]:
            self.text, self._waiting = self.text + ahead[: min(places)], ""
            self.finish_reason = "stop"
            return
        cut = max(0, len(text) - self._longest + 1)
        while cut < len(text) and not self._begins_stop(text[cut:]):
            cut += 1
        self.text, self._waiting = self.text + text[:cut], text[cut:]

    def _begins_stop(self, text: str) -> bool:
        at = bisect_left(self._stops, text)  # if any starts with ``text``, this one does
        return at < len(self._stops) and self._stops[at].startswith(text)
