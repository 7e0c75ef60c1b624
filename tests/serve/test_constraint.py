"""Constrained answers: the mask depends on the text alone, not on the order of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.serve.constraint import Grammars, grammar_of, json_grammar
from draftwise.serve.schemas import ResponseFormat, StructuredOutputs
from draftwise.types import DraftwiseError
from engine.scripted import VOCAB, byte_tokenizer

TOKENIZER = byte_tokenizer()
TOKENIZER.add_special_tokens({"eos_token": "<end>"})
EOS = TOKENIZER.eos_token_id  # the model has more tokens than the tokenizer, as is common
GRAMMARS = Grammars(TOKENIZER, VOCAB, {EOS})


def regex(text: str, ends: Collection[int] = (), ignores_eos: bool = False) -> Any:
    grammar = grammar_of(StructuredOutputs(regex=text))
    assert grammar is not None
    return next(GRAMMARS.constraints(grammar, [2], ends, ignores_eos))


def allowed(constraint: Any, answer: list[int]) -> set[int]:
    masked = constraint([7, 7, *answer], torch.zeros(VOCAB))
    return set(np.flatnonzero(np.isfinite(masked.numpy())).tolist())


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def test_only_what_the_grammar_allows() -> None:
    made = regex("ab+c")
    assert allowed(made, []) == set(ids("a"))
    assert allowed(made, ids("a")) == set(ids("b"))
    assert allowed(made, ids("ab")) == {*ids("b"), *ids("c")}
    assert allowed(made, ids("abc")) == {EOS}
    assert allowed(made, [*ids("abc"), EOS]) == {EOS}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from([*ids("abc"), EOS]), max_size=6), max_size=8))
def test_the_order_of_questions_changes_nothing(paths: list[list[int]]) -> None:
    """Masks are requested path by path, back and forth, and beyond what is allowed."""
    made = regex("(ab|ba)*c")
    for path in paths:
        assert allowed(made, path) == allowed(regex("(ab|ba)*c"), path)


def test_every_end_is_allowed_where_the_text_is_complete_and_nowhere_else() -> None:
    """``own`` is an ordinary token of the vocabulary, which the grammar could take for text."""
    (own,) = ids("b")
    made = regex("a[ab]*", ends=[own, VOCAB - 1, VOCAB + 5])
    assert allowed(made, []) == set(ids("a"))
    assert allowed(made, ids("a")) == {*ids("a"), own, VOCAB - 1, EOS}
    for end in (own, VOCAB - 1, EOS):
        assert allowed(made, [*ids("a"), end]) == {own, VOCAB - 1, EOS}
        assert made.num_allowed([7, 7, *ids("aa"), end], 2) in {1, 2}
    assert allowed(made, [own]) == set(range(VOCAB)), "it was forbidden"


def test_an_answer_that_ignores_ends_goes_on_while_its_form_allows_more() -> None:
    made = regex("a{1,3}", ignores_eos=True)
    assert allowed(made, ids("a")) == allowed(made, ids("aa")) == set(ids("a"))
    assert allowed(made, ids("aaa")) == {EOS}


def test_texts_of_a_form() -> None:
    made = regex("(ab)+c?")
    for text, is_one in (
        ("", False),
        ("ab", True),
        ("aba", False),
        ("ababc", True),
        ("abx", False),
    ):
        assert made.is_complete(text) is is_one
    allowed(made, ids("ab"))
    assert not made.is_complete("a"), "it does not depend on what was consumed"


def test_drafts_end_before_what_is_forbidden() -> None:
    made = regex("ab+c")
    for answer, num, stand in [("abbc", 4, 4), ("abbc", 2, 2), ("aca", 2, 0), ("abca", 3, 2)]:
        assert made.num_allowed([7, 7, *ids(answer)], num) == stand
    assert made.num_allowed([7, 7, *ids("cab")], 2) == 2, "behind a forbidden one all is as it was"
    assert made.num_allowed([7, 7, *ids("abc"), EOS], 1) in {0, 1}


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_end_in_the_language(seed: int) -> None:
    rng, made = np.random.default_rng(seed), regex("[ab]{2,5}(c|de)")
    answer: list[int] = []
    while not answer or answer[-1] != EOS:
        answer.append(int(rng.choice(sorted(allowed(made, answer)))))
    assert re.fullmatch("[ab]{2,5}(c|de)", TOKENIZER.decode(answer[:-1]))


def test_forms() -> None:
    assert ResponseFormat(type="text").schema_of_answer is None
    made = grammar_of(StructuredOutputs(choice=["ab", "cd"]))
    assert made is not None
    assert allowed(next(GRAMMARS.constraints(made, [2])), []) == {*ids("a"), *ids("c")}
    made = grammar_of(StructuredOutputs(grammar='start: "a" "b"'))
    assert made is not None
    assert allowed(next(GRAMMARS.constraints(made, [2])), ids("a")) == set(ids("b"))
    assert json.loads(json_grammar({"type": "object"}))


@pytest.mark.parametrize("wanted", [{"regex": "(a"}, {"grammar": "start: nothing"}])
def test_grammars_that_cannot_be_read(wanted: dict[str, str]) -> None:
    grammar = grammar_of(StructuredOutputs(**wanted))
    assert grammar is not None
    with pytest.raises(DraftwiseError, match="grammar"):
        next(GRAMMARS.constraints(grammar, [0]))


@pytest.mark.parametrize("value", ["\ud800", json.loads("[" * 400 + "]" * 400)])
def test_errors_of_a_schema_name_the_schema(value: Any) -> None:
    with pytest.raises(DraftwiseError, match=r"^the schema cannot be used: "):
        json_grammar({"const": value})
