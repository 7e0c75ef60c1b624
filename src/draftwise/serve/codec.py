"""Between the wire and tokens: prompts to ids, ids to the text and bytes of log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from draftwise.chat import Prompt, encode, render
from draftwise.serve.wire import Message, TokenizeRequest, Tool
from draftwise.types import DraftwiseError

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""For base models: what the messages say, end to end, is the text that is continued."""


class Codec:
    """One model's tokenizer, as requests use it. chat_template: in place of the tokenizer's own.

    A tokenizer that has none gets ``PLAIN_TEMPLATE``. State: texts of tokens that were asked for.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, max_positions: int, chat_template: str | None = None
    ) -> None:
        if tokenizer is None:
            raise DraftwiseError("a server needs a tokenizer: the target has none")
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self.max_positions = max_positions
        self.has_template = chat_template is not None or tokenizer.chat_template is not None
        if not self.has_template:
            chat_template = PLAIN_TEMPLATE
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        if chat_template is not None:
            self._check_template()
        # what cannot fit is not even read: that would take far more memory than the text itself
        self._max_chars = max_positions * max(map(len, tokenizer.get_vocab()))
        self.takes_tools = "tools" in str(tokenizer.chat_template)
        self.text_of = lru_cache(maxsize=65_536)(self._text_of)
        self.bytes_of = lru_cache(maxsize=65_536)(self._bytes_of)

    def chat(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> Prompt:
        """A conversation as the prompt of the next turn. Raises DraftwiseError."""
        turns = [_turn(message) for message in messages]
        self._check_size(sum(len(str(turn.get("content", ""))) for turn in turns))
        if not tools:
            return self._checked(render(turns, self._tokenizer))
        if not self.takes_tools:
            raise DraftwiseError(
                "tools: this model's chat template has no place for them; serve a model whose "
                "template has, or give one with --chat-template"
            )
        listed = [tool.model_dump(exclude_none=True) for tool in tools]
        return self._checked(render(turns, self._tokenizer, tools=listed))

    def prompts(self, given: Sequence[str | list[int]]) -> list[Prompt]:
        """The prompts of a completion, each text or ids. Raises DraftwiseError."""
        return [self._checked(self._prompt(one)) for one in given]

    def _check_template(self) -> None:
        """A template that refuses the simplest message is its owner's mistake, not a client's."""
        try:
            render([{"role": "user", "content": "Hello"}], self._tokenizer)
        except DraftwiseError as error:
            raise DraftwiseError(f"--chat-template: {error}") from None

    def tokens(self, body: TokenizeRequest) -> list[int]:
        """The ids that ``/tokenize`` tells. Raises DraftwiseError."""
        if body.messages is not None:
            return list(self.chat(body.messages, None).tokens)
        text = body.prompt or ""
        self._check_size(len(text))
        ids: list[int] = self._tokenizer(text, add_special_tokens=body.add_special_tokens)[
            "input_ids"
        ]
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids. Raises DraftwiseError for one outside the vocabulary."""
        if tokens and max(tokens) >= self._vocab_size:
            raise DraftwiseError(
                f"tokens: {max(tokens)} is outside the vocabulary of {self._vocab_size}"
            )
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def logit_bias(self, given: Mapping[str, float] | None) -> dict[int, float]:
        """``logit_bias`` by token id. Raises DraftwiseError for what is no token."""
        bias = {}
        for key, value in (given or {}).items():
            token = int(key[:12]) if key.isascii() and key.isdigit() else self._vocab_size
            if token >= self._vocab_size or key != str(token):  # "01" would be "1" once more
                raise DraftwiseError(
                    f"logit_bias: {key[:32]!r} is no token id; write a whole number from 0 to "
                    f"{self._vocab_size - 1}, without leading zeros"
                )
            bias[token] = value
        return bias

    def _prompt(self, given: str | list[int]) -> Prompt:
        if given == "":
            raise DraftwiseError("prompt: it is empty: there is nothing to continue")
        if not isinstance(given, str):
            return Prompt(given)
        self._check_size(len(given))
        return encode(given, self._tokenizer)

    def _check_size(self, num_chars: int) -> None:
        if num_chars > self._max_chars:
            raise DraftwiseError(
                f"the prompt has {num_chars} characters, and no text of more than "
                f"{self._max_chars} fits the model's {self.max_positions} positions"
            )

    def _checked(self, prompt: Prompt) -> Prompt:
        tokens = prompt.tokens
        if not tokens:
            raise DraftwiseError("the prompt has no tokens: there is nothing to continue")
        if max(tokens) >= self._vocab_size:
            raise DraftwiseError(
                f"the prompt has the token {max(tokens)}, outside the vocabulary of "
                f"{self._vocab_size}"
            )
        return prompt

    def _text_of(self, token: int) -> str:
        text: str = self._tokenizer.decode(
            [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _bytes_of(self, token: int) -> bytes:
        """The token's own bytes, half characters too, where the vocabulary spells them."""
        text = self._text_of(token)
        if "\ufffd" not in text:
            return text.encode()
        piece = str(self._tokenizer.convert_ids_to_tokens(token))
        if piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:-1], 16)])
        known = _byte_letters()
        if all(letter in known for letter in piece):
            return bytes(known[letter] for letter in piece)
        return text.encode()


@lru_cache(maxsize=1)
def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level vocabularies spell bytes (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {chr(byte): byte for byte in shown}
    return letters | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def _turn(message: Message) -> dict[str, Any]:
    """A message as templates expect it: without empty fields, arguments of calls as objects."""
    turn = message.model_dump(exclude_none=True)
    for call in turn.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except ValueError:
            continue  # a model once wrote them, and templates print text as it is
        except RecursionError:
            raise DraftwiseError(
                "messages: the arguments of a call are nested too deeply"
            ) from None
    return turn
