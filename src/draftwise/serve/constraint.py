"""Answers of a given form: masks on the logits of both target and drafters, by llguidance.

A mask is a function of the text alone, so it changes the distribution that is sampled from, for
the target and every drafter in the same way, and nothing about how drafts are verified.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwise.serve.schemas import MAX_GRAMMAR_CHARS, ResponseFormat, StructuredOutputs
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from llguidance._lib import JsonCompileOptions
    from torch import Tensor

_COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
}  # fmt: skip
"""One way to write each value: small models otherwise fill their answers with blanks."""


class Grammars:
    """Makes constraints for one tokenizer. State: its table of tokens, built when first needed."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos: Collection[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, sorted(eos)

    def constraints(self, grammar: str, nums_prompt: Sequence[int]) -> Iterator[Constraint]:
        """What holds answers to a grammar, each after a prompt of the given length.

        Raises DraftwiseError for a grammar that cannot be read, or that no text fits. It is
        compiled once, and the first mask, which can take half a second, is made here, not in the
        engine's thread.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            why = " ".join(matcher.get_error().split())[:500]
            raise DraftwiseError(f"the grammar cannot be used: {why}")
        matcher.compute_bitmask()
        _check(matcher)
        for num_prompt in nums_prompt:
            yield Constraint(matcher.deep_copy(), num_prompt, self._vocab_size, self._eos)

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        if self._tokenizer is None or not self._eos:
            raise DraftwiseError(
                "answers of a given form need a tokenizer and an end-of-text token"
            )
        return from_tokenizer(self._tokenizer, n_vocab=self._vocab_size, eos_token=self._eos)


class Constraint:
    """``SamplingParams.process`` that leaves only what the grammar allows next.

    State: a matcher and the answer's tokens that it has read. Paths of a draft are asked about in
    any order: it goes back to what the new path shares with the last one. After a token that the
    grammar forbids nothing is masked: that token has probability 0 and ends the draft.
    """

    def __init__(self, matcher: Any, num_prompt: int, vocab_size: int, eos: Sequence[int]) -> None:
        self._matcher, self._num_prompt = matcher, num_prompt
        self._vocab_size, self._eos = vocab_size, list(eos)
        self._read: list[int] = []

    def __call__(self, text: Sequence[int], logits: Tensor) -> Tensor:
        """[V] logits after ``text`` (prompt and answer so far), with -inf where forbidden.

        Raises DraftwiseError for a grammar that is too large to follow.
        """
        import torch

        if not self._follow(text[self._num_prompt :]):
            return logits
        allowed = torch.from_numpy(self._allowed())
        return logits.masked_fill(~allowed.to(logits.device), float("-inf"))

    def num_allowed(self, text: Sequence[int], num: int) -> int:
        """How many of the last ``num`` tokens of a text stand before one that is forbidden."""
        answer = list(text[self._num_prompt :])
        if not self._follow(answer[: len(answer) - num]):
            return num
        allowed: int = self._matcher.validate_tokens(answer[len(answer) - num :])
        return allowed

    def _follow(self, answer: Sequence[int]) -> bool:
        """Bring the matcher to this answer; whether the grammar allows it."""
        shared = len(self._read)
        if self._read != list(answer[:shared]):
            pairs = zip(self._read, answer, strict=False)
            shared = next((n for n, (a, b) in enumerate(pairs) if a != b), min(shared, len(answer)))
        if shared < len(self._read):
            self._matcher.rollback(len(self._read) - shared)
            del self._read[shared:]
        new = list(answer[shared:])
        num = self._matcher.try_consume_tokens(new) if new else 0
        _check(self._matcher)
        self._read += new[:num]
        is_over = self._matcher.is_stopped() and all(token in self._eos for token in new[num:])
        return num == len(new) or is_over

    def _allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[V] whether each token may come next; where the grammar is through, the end alone."""
        if self._matcher.is_stopped():
            mask = np.zeros(self._vocab_size, dtype=np.bool_)
            mask[self._eos] = True
            return mask
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        _check(self._matcher)
        return np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(np.bool_)


def _check(matcher: Any) -> None:
    """A matcher that met its limits allows anything: the answer has to end there instead."""
    if matcher.is_error():
        why = matcher.get_error().partition("\n")[0]
        raise DraftwiseError(f"no text fits the grammar, or it is too large to follow: {why}")


def grammar_of(form: ResponseFormat | None, structured: StructuredOutputs | None) -> str | None:
    """The grammar that these fields ask for, if any; ValueError for one that cannot be read."""
    if structured is None:
        if form is None or form.type == "text":
            return None
        schema = form.json_schema
        return json_grammar({"type": "object"} if schema is None else schema.schema_)
    from llguidance import LLMatcher, grammar_from

    if structured.json_ is not None:
        return json_grammar(structured.json_)
    if structured.regex is not None:
        return LLMatcher.grammar_from_regex(structured.regex)
    if structured.choice is not None:
        return grammar_from("choice", json.dumps(structured.choice))
    return grammar_from("grammar", structured.grammar or "")


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of values that fit a JSON schema. Raises DraftwiseError for a large one."""
    from llguidance import LLMatcher

    text = json.dumps(schema)
    if len(text) > MAX_GRAMMAR_CHARS:
        raise DraftwiseError(
            f"the schema has {len(text)} characters, and at most {MAX_GRAMMAR_CHARS} are read"
        )
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=_COMPACT)
    except ValueError as error:
        raise DraftwiseError(f"the schema cannot be used: {error}") from None
