"""Structured output: masks on the logits of both target and drafters, computed by llguidance.

A mask depends on the text alone. It changes the target's distribution and each drafter's in the
same way, so verification needs no change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftwise.serve.schemas import MAX_GRAMMAR_CHARS, StructuredOutputs
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from torch import Tensor


class Grammars:
    """Compiles grammars for one tokenizer. State: its token table, built on first use."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos: Collection[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, sorted(eos)

    def constraints(
        self, grammar: str, nums_prompt: Sequence[int], ends: Collection[int] = (),
        ignores_eos: bool = False,
    ) -> Iterator[Constraint]:  # fmt: skip
        """Yield one constraint per answer, from the lengths of the prompts.

        ends: tokens that end these answers in addition to the model's. ignores_eos: whether an
        answer goes on while its form allows more. Errors: DraftwiseError for a grammar that cannot
        be parsed or that no text matches. The grammar is compiled once, and its first mask, which
        can take half a second, is computed here rather than in the engine's thread.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            why = " ".join(matcher.get_error().split())[:500]
            raise DraftwiseError(f"the grammar cannot be used: {why}")
        matcher.compute_bitmask()
        _check(matcher)
        every = {*self._eos, *(token for token in ends if token < self._vocab_size)}
        form = Form(matcher, self._tokens, self._vocab_size, frozenset(every), ignores_eos)
        for num_prompt in nums_prompt:
            yield Constraint(form, num_prompt)

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer

        if self._tokenizer is None or not self._eos:
            why = "answers of a given form need a tokenizer and an end-of-text token"
            raise DraftwiseError(why)
        return from_tokenizer(self._tokenizer, n_vocab=self._vocab_size, eos_token=self._eos)


class Form(NamedTuple):
    """What the constraints of one HTTP request share; the matcher has consumed nothing."""

    matcher: Any
    tokens: LLTokenizer
    vocab_size: int
    ends: frozenset[int]
    ignores_eos: bool


class Constraint:
    """A ``SamplingParams.process`` that masks tokens that the grammar forbids.

    Tokens that end the answer are allowed where its text is complete, and nowhere else, even if
    the grammar could take them for text.
    State: a matcher and the answer's tokens that it has consumed. Paths of a draft may come in any
    order: the matcher rolls back to the prefix shared with the previous path. After a forbidden
    token nothing is masked: that token has probability 0 and ends the draft.
    """

    def __init__(self, form: Form, num_prompt: int) -> None:
        self._form, self._num_prompt = form, num_prompt
        self._matcher = form.matcher.deep_copy()
        self._ends = sorted(form.ends)
        self._read: list[int] = []
        self._is_over = False  # whether an end token followed

    def is_complete(self, text: str) -> bool:
        """Whether an answer may consist of this text."""
        matcher, tokens = self._form.matcher.deep_copy(), self._form.tokens.greedy_tokenize(text)
        num: int = matcher.try_consume_tokens(tokens) if tokens else 0
        return num == len(tokens) and bool(matcher.is_accepting())

    def __call__(self, text: Sequence[int], logits: Tensor) -> Tensor:
        """[V] logits after a text, -inf for forbidden tokens. Errors: DraftwiseError."""
        import torch

        if not self._follow(text[self._num_prompt :]):
            return logits
        allowed = torch.from_numpy(self._allowed())
        return logits.masked_fill(~allowed.to(logits.device), float("-inf"))

    def num_allowed(self, text: Sequence[int], num: int) -> int:
        """The number of a text's last ``num`` tokens that come before a forbidden one."""
        answer = list(text[self._num_prompt :])
        if not self._follow(answer[: len(answer) - num]):
            return num
        new = answer[len(answer) - num :]
        end = next((n for n, token in enumerate(new) if token in self._form.ends), num)
        allowed: int = self._matcher.validate_tokens(new[:end])
        return allowed

    def _follow(self, answer: Sequence[int]) -> bool:
        """Advance the matcher to this answer; return whether the grammar allows it."""
        shared = len(self._read)
        if self._read != list(answer[:shared]):
            pairs = zip(self._read, answer, strict=False)
            shared = next((n for n, (a, b) in enumerate(pairs) if a != b), min(shared, len(answer)))
        if shared < len(self._read):
            self._matcher.rollback(len(self._read) - shared)
            del self._read[shared:]
        new = list(answer[shared:])
        end = next((n for n, token in enumerate(new) if token in self._form.ends), len(new))
        num = self._matcher.try_consume_tokens(new[:end]) if end else 0
        _check(self._matcher)
        self._read += new[:num]
        self._is_over = num == end < len(new) and self._form.ends.issuperset(new[end:])
        return num == len(new) or (self._is_over and self._matcher.is_accepting())

    def _allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[V] whether each token may come next; only end tokens if the text is complete."""
        mask = np.zeros(self._form.vocab_size, dtype=np.bool_)
        if self._is_over or self._matcher.is_stopped():
            mask[self._ends] = True
            return mask
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        _check(self._matcher)
        mask |= np.unpackbits(bits, bitorder="little")[: len(mask)].astype(np.bool_)
        mask[self._ends] = False
        goes_on = self._form.ignores_eos and bool(mask.any())
        mask[self._ends] = not goes_on and self._matcher.is_accepting()
        return mask


@dataclass(frozen=True, slots=True)
class MinTokens:
    """A ``SamplingParams.process`` that forbids tokens that end an answer before its least length.

    num_prompt: tokens of the prompt. least: of the answer. ends: the forbidden tokens.
    """

    num_prompt: int
    least: int
    ends: Sequence[int]

    def __call__(self, text: Sequence[int], logits: Tensor) -> Tensor:
        if len(text) - self.num_prompt >= self.least:
            return logits
        allowed = logits.clone()
        allowed[list(self.ends)] = float("-inf")
        return allowed


def _check(matcher: Any) -> None:
    """A matcher beyond its limits allows everything, so the answer ends with an error instead."""
    if matcher.is_error():
        why = matcher.get_error().partition("\n")[0]
        raise DraftwiseError(f"no text fits the grammar, or it is too large to follow: {why}")


def grammar_of(form: StructuredOutputs) -> str:
    """The grammar of a form. ValueError if it cannot be parsed."""
    from llguidance import LLMatcher, grammar_from

    if (schema := form.schema_of_answer) is not None:
        return json_grammar(schema)
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice is not None:
        return grammar_from("choice", json.dumps(form.choice))
    return grammar_from("grammar", form.grammar or "")


_JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Fixed whitespace: small models otherwise fill their answers with blanks."""


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of values that match a JSON schema. DraftwiseError if it is too large."""
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(_checked(schema), overrides=_JSON_STYLE)
    except ValueError as error:
        raise DraftwiseError(f"the schema cannot be used: {error}") from None


def tagged_grammar(
    tags: tuple[str, str], call: Mapping[str, Any], answer: Mapping[str, Any] | None,
    most: int | None, are_tokens: bool,
) -> str:  # fmt: skip
    """The grammar of calls between two tags, which match the schema ``call``.

    answer: the schema of an answer without calls; None = free text around the calls. most: maximum
    number of calls. are_tokens: whether the tags are tokens of the vocabulary, which llguidance
    tells from their text. Errors: DraftwiseError.
    """
    from llguidance import LLMatcher

    begin, end = (json.dumps(tag) for tag in tags)
    if are_tokens:
        begin, end = f"{begin} | {tags[0]}", f"{end} | {tags[1]}"
    times = "*" if most is None else f"{{0,{most}}}"
    calls = (
        f"call{times}" if answer is None else f"(call{times.replace('*', '+').replace('0', '1')})"
    )
    lines = [
        "%llguidance {}",
        f"start: {calls} TEXT" if answer is None else f"start: answer | {calls}",
        f"call: open GAP {_json_rule(call)} GAP close GAP",
        f"open: head | TEXT {tags[0]}"
        if are_tokens and answer is None
        else "open: head"
        if answer is None
        else f"open: {begin}",
        f"head[lazy]: TEXT {json.dumps(tags[0])}",
        f"close: {end}",
        r"GAP: /[ \n]*/",
        r"TEXT: /(.|\n)*/",
    ]
    if answer is not None:
        lines.append(f"answer: {_json_rule(answer)}")
    try:
        return LLMatcher.grammar_from_lark("\n".join(lines))
    except ValueError as error:
        raise DraftwiseError(f"the schema of a tool cannot be used: {error}") from None


def _json_rule(schema: Mapping[str, Any]) -> str:
    return f"%json {_checked({'x-guidance': _JSON_STYLE, **schema})}"


def rootless(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what it says of its own origin, where llguidance would look for it."""
    return {key: value for key, value in schema.items() if key not in ("$schema", "$id")}


def _checked(schema: Mapping[str, Any]) -> str:
    if len(text := json.dumps(rootless(schema))) > MAX_GRAMMAR_CHARS:
        why = f"the schema has {len(text)} characters, and at most {MAX_GRAMMAR_CHARS} are read"
        raise DraftwiseError(why)
    return text
