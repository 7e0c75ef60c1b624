"""The choices of a completion and of a chat, whole and in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.serve.codec import Codec
from draftwise.serve.logprobs import chat_logprobs, completion_logprobs
from draftwise.serve.protocol import Delta
from draftwise.serve.reply import REASONS, Pieces
from draftwise.serve.tools import ToolText
from draftwise.serve.wire import ChatRequest, CompletionRequest


class CompletionForm:
    """``/v1/completions``. echoes: by choice, the text and ids of its prompt, where it comes first.

    State: characters that each choice has shown.
    """

    kind, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        body: CompletionRequest,
        codec: Codec,
        echoes: Sequence[tuple[str, Sequence[int]]],
        pieces: Pieces | None,
    ) -> None:
        self._codec, self._echoes, self._pieces = codec, echoes, pieces
        self._has_logprobs, self.is_empty = body.logprobs is not None, body.max_tokens == 0
        self._shown: dict[int, int] = {}

    def opening(self, index: int) -> Mapping[str, Any] | None:
        """A completion begins with its first token."""
        return None

    def piece(self, index: int, delta: Delta) -> Mapping[str, Any] | None:
        """The text, behind the prompt's if it is echoed."""
        if self.is_empty:
            reason = delta.finish_reason and "length"
            delta = replace(
                delta, text="", tokens=[], sources=[], logprobs=[], finish_reason=reason
            )
        if not (delta.text or delta.tokens or delta.finish_reason):
            return None
        text, offset = delta.text, self._shown.get(index)
        logprobs = None
        if offset is None:
            offset = 0
            if self._echoes:
                text = self._echoes[index][0] + text
        if self._has_logprobs:
            logprobs = self._logprobs(index, delta, offset)
        self._shown[index] = offset + len(text)
        reason = REASONS.get(delta.finish_reason or "")
        more = {} if self._pieces is None else self._pieces.of(index, delta)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **more}

    def choice(self, index: int, answer: Delta) -> Mapping[str, Any]:
        """The same, of all of it."""
        choice = self.piece(index, answer)
        assert choice is not None, "a whole answer has a finish reason"
        return choice

    def _logprobs(self, index: int, delta: Delta, offset: int) -> dict[str, Any]:
        tokens, found = list(delta.tokens), list(delta.logprobs)
        if self._echoes and index not in self._shown:
            text, ids = self._echoes[index]
            # what the tokenizer set in front is no part of the text
            offset = len(text) - sum(len(self._codec.text_of(token)) for token in ids)
            tokens = [*ids, *tokens]
            found = [*(delta.prompt_logprobs or ()), *found]  # type: ignore[list-item]
        num = min(len(tokens), len(found))
        return completion_logprobs(tokens[:num], found[:num], self._codec, offset)


class ChatForm:
    """``/v1/chat/completions``. State: by choice, the text in which calls are looked for."""

    kind, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    is_empty = False

    def __init__(self, body: ChatRequest, codec: Codec, num: int, pieces: Pieces | None) -> None:
        self._codec, self._pieces, self._has_logprobs = codec, pieces, body.logprobs
        names = [tool.function.name for tool in body.tools or ()]
        calls = names and body.tool_choice != "none"
        self._texts = [ToolText(names) for _ in range(num)] if calls else []

    def opening(self, index: int) -> Mapping[str, Any] | None:
        """The speaker's role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, delta: Delta) -> Mapping[str, Any] | None:
        """New content; calls come whole, with the end."""
        if not (delta.text or delta.tokens or delta.finish_reason):
            return None
        content, calls = self._split(index, delta)
        change: dict[str, Any] = {"content": content} if content or not calls else {}
        if calls:
            change["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        more = {} if self._pieces is None else self._pieces.of(index, delta)
        return {"index": index, "delta": change, **self._end(delta, calls), **more}

    def choice(self, index: int, answer: Delta) -> Mapping[str, Any]:
        """The whole message."""
        content, calls = self._split(index, answer)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        more = {} if self._pieces is None else self._pieces.of(index, answer)
        return {"index": index, "message": message, **self._end(answer, calls), **more}

    def _split(self, index: int, delta: Delta) -> tuple[str, list[dict[str, Any]]]:
        """Content and calls that this part adds."""
        if not self._texts:
            return delta.text, []
        content = self._texts[index].push(delta.text)
        if delta.finish_reason is None:
            return content, []
        rest, calls = self._texts[index].finish()
        return content + rest, calls

    def _end(self, delta: Delta, calls: Sequence[Any]) -> dict[str, Any]:
        logprobs = chat_logprobs(delta.logprobs, self._codec) if self._has_logprobs else None
        reason = REASONS.get(delta.finish_reason or "")
        return {"logprobs": logprobs, "finish_reason": "tool_calls" if calls else reason}
