"""Tokens to text as they come, and where an answer ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_HELD = "�"
"""What a decoder shows for bytes whose character is not complete yet."""


class Detokenizer:
    """Text of a growing token sequence, piece by piece; half characters wait for their rest.

    State: the tokens since the last safe boundary. Cost: a decode of those few tokens a push.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = ""
        self._settled = 0

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens add."""
        if self._tokenizer is None:
            return ""
        text = self._decode([*self._tokens, *tokens])
        if text.endswith(_HELD) and len(tokens) > 1:
            # only a half character waits: not the whole draft, and never its first half alone
            return "".join(self.push([token]) for token in tokens)
        self._tokens.extend(tokens)
        if text.endswith(_HELD) and len(self._tokens) - self._settled < 8:
            return ""
        piece = text[len(self._shown) :]
        # the last token stays as context, since some decoders join it with what follows
        self._tokens = self._tokens[-1:]
        self._shown, self._settled = self._decode(self._tokens), 1
        return piece

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        return self._decode(self._tokens)[len(self._shown) :] if self._tokenizer else ""

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


@dataclass(frozen=True, slots=True)
class Ending:
    """When an answer ends: a token of ``eos``, one of the ``stop`` strings, or its full length.

    stop_when: asked after each token with the answer's tokens so far; True ends it there.
    """

    max_new_tokens: int
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_when: Callable[[Sequence[int]], bool] | None = None

    @property
    def by_token(self) -> bool:
        """Whether each token has to be looked at by itself."""
        return bool(self.stop) or self.stop_when is not None


class Answer:
    """One request's output: how many of the emitted tokens count, their text, and why it ended.

    The text ends before a stop string; the tokens end with the one that completed it. What may be
    the beginning of a stop string waits, so that text once shown is never taken back.
    """

    def __init__(self, ending: Ending, tokenizer: Any) -> None:
        self._ending, self._detokenizer = ending, Detokenizer(tokenizer)
        self.num_tokens = 0
        self._tokens: list[int] = []
        self.text, self._waiting = "", ""
        self.finish_reason: str | None = None

    @property
    def num_left(self) -> int:
        """Tokens that may still be emitted."""
        return self._ending.max_new_tokens - self.num_tokens

    def push(self, tokens: Sequence[int]) -> int:
        """Take emitted tokens up to where the answer ends; return how many were taken."""
        before = self.num_tokens
        step = 1 if self._ending.by_token else max(1, len(tokens))
        for start in range(0, len(tokens), step):
            self._take(tokens[start : start + step])
            if self.finish_reason:
                break
        return self.num_tokens - before

    def finish(self, reason: str) -> None:
        """End here for a reason of the engine's."""
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
        """Add to the text what no stop string can begin in, or all before one that is complete."""
        text, stops = self._waiting + piece, self._ending.stop
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        if places:
            self.text, self._waiting = self.text + text[: min(places)], ""
            self.finish_reason = "stop"
            return
        longest = max((len(stop) for stop in stops), default=1)
        num = next(
            (n for n in range(longest - 1, 0, -1) if n <= len(text) and _begins(stops, text[-n:])),
            0,
        )
        self.text += text[: len(text) - num]
        self._waiting = text[len(text) - num :]


def _begins(stops: Sequence[str], ending: str) -> bool:
    return any(stop.startswith(ending) for stop in stops)
