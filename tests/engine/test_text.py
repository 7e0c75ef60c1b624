"""Text equals one decode of prompt and tokens, for any decoder, chunking and stop.

Byte tokens are the exception: a decoder replaces a whole run of them for one broken character.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from draftwise.engine.outputs import Answer, Detokenizer, Ending, RequestOutput, SourceAttribution
from engine.vocabularies import BYTES, CHARACTERS, KINDS, added, decoded, made, of_pieces, spelled


def grouped(tokens: Sequence[int], sizes: random.Random) -> list[list[int]]:
    groups, rest = [], list(tokens)
    while rest:
        num = sizes.choice([1, 1, 1, 2, 3, 7])
        groups.append(rest[:num])
        rest = rest[num:]
    return groups


def tokens_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Any tokens, including partial characters and special tokens; characters in bytes."""
    whole: Any = st.just([])
    if "byte" in kind:
        whole = st.sampled_from(CHARACTERS).map(lambda text: spelled(kind, text))
    one = st.integers(0, len(made(kind)) - 1).map(lambda token: [token])
    special = st.sampled_from(["<s>", "<|own|>", "<think>", "</s>"])
    others = special.map(lambda name: [made(kind).convert_tokens_to_ids(name)])
    return st.lists(st.one_of(one, whole, others), max_size=40).map(
        lambda found: [token for tokens in found for token in tokens]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_text_final_text_and_one_decode_are_equal(kind: str) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(tokens_of(kind), tokens_of(kind), st.randoms(use_true_random=False))
    @example([], [], random.Random(0))
    def check(prompt: list[int], tokens: list[int], sizes: random.Random) -> None:
        prompt = prompt[:30]
        answer, streamed = Answer(Ending(10**6), made(kind), prompt), ""
        for group in grouped(tokens, sizes):
            answer.push(group)
            assert answer.text.startswith(streamed)
            streamed = answer.text
        answer.finish("length")
        assert answer.text.startswith(streamed)
        assert answer.text == added(kind, prompt, tokens)

    check()


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_tokens_add_up(kind: str, skips: bool) -> None:
    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(tokens_of(kind))
    def check(tokens: list[int]) -> None:
        answer = Answer(Ending(10**6), made(kind), by_token=True, skip_special_tokens=skips)
        answer.push(tokens)
        answer.finish("length")
        assert len(answer.token_texts) == len(tokens)
        assert "".join(answer.token_texts) == answer.text == decoded(kind, tokens, skips=skips)

    check()


@pytest.mark.parametrize(
    ("kind", "prompt", "answer", "text"),
    [
        ("byte fallback", ["▁hello"], ["▁world", "!"], " world!"),
        ("byte fallback", ["<s>"], ["▁world"], "world"),
        ("byte fallback", ["a", "<s>"], ["▁world"], " world"),
        ("byte fallback", ["a"] * 100, ["▁world"], " world"),
        ("byte fallback", [], ["▁world", "▁is"], "world is"),
        ("byte fallback, unstripped", ["▁hello"], ["▁world"], " world"),
        ("metaspace", ["▁hello"], ["▁world", "▁is"], " world is"),
        ("word piece", ["hello"], ["##lo", "do", "n't"], "lo don't"),
        ("byte fallback", ["<0xE4>"], ["<0xBD>", "<0xA0>", "a"], "你a"),
        ("byte fallback", ["<0xE4>"], ["a"], "a"),
        ("byte fallback", ["�"], ["a"], "a"),
        ("byte fallback", ["<0xE4>"], ["<s>"], ""),
    ],
)
def test_an_answer_continues_its_prompt(
    kind: str, prompt: list[str], answer: list[str], text: str
) -> None:
    prompt_ids, ids = (made(kind).convert_tokens_to_ids(names) for names in (prompt, answer))
    for step in (1, len(ids)):
        told = Answer(Ending(len(ids)), made(kind), prompt_ids)
        for start in range(0, len(ids), step):
            told.push(ids[start : start + step])
        assert told.text == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("byte fallback", text) for text in ("မြန်မာ", "你好😀", "é👍🏽", "ไทย")),
        ("byte fallback, unstripped", "မြန်မာ"),
        ("byte level", "你好😀ไทย"),
    ],
)
def test_only_the_cut_character_is_replaced(kind: str, text: str) -> None:
    """Whatever the cut, and whole characters are shown as soon as their last byte is there."""
    raw, tokens = text.encode(), spelled(kind, text)
    for num in range(1, len(tokens) + 1):
        answer = Answer(Ending(num), made(kind))
        answer.push(tokens[: num - 1])
        assert answer.text == raw[: num - 1].decode(errors="ignore")
        answer.push(tokens[num - 1 :])
        assert (answer.text, answer.num_tokens) == (raw[:num].decode(errors="replace"), num)


def test_names_alone_make_no_byte_tokens() -> None:
    """A decoder without byte fallback spells them out."""
    tokenizer = of_pieces([*BYTES, "a"], decoders.Fuse())
    ids = tokenizer.convert_tokens_to_ids(["a", "<0xE4>", "a"])
    answer = Answer(Ending(3), tokenizer)
    answer.push(ids)
    assert answer.text == tokenizer.decode(ids) == "a<0xE4>a"


@pytest.mark.parametrize("kind", KINDS)
def test_text_ends_before_the_first_stop_and_tokens_with_the_one_that_completed_it(
    kind: str,
) -> None:
    """The reference decodes all tokens after each of them."""

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(tokens_of(kind), st.randoms(use_true_random=False), st.data())
    def check(tokens: list[int], sizes: random.Random, data: st.DataObject) -> None:
        text = decoded(kind, tokens)
        start = data.draw(st.integers(0, max(0, len(text) - 1)))
        stop = text[start : start + data.draw(st.integers(1, 5))]
        if not stop.strip("�") or "�" in stop:
            return  # incomplete bytes, which later tokens may complete
        answer = Answer(Ending(10**6, stop=(stop, "never")), made(kind))
        streamed = ""
        for group in grouped(tokens, sizes):
            answer.push(group)
            assert answer.text.startswith(streamed)
            streamed = answer.text
            if answer.finish_reason:
                break
        if not answer.finish_reason:
            answer.finish("length")
        texts = (decoded(kind, tokens[:num]) for num in range(len(tokens) + 1))
        num = next((n for n, told in enumerate(texts) if stop in told), len(tokens))
        assert answer.num_tokens == num
        assert answer.text == decoded(kind, tokens[:num]).partition(stop)[0]

    check()


def attributed(kind: str, tokens: list[int], sources: list[str]) -> list[tuple[str, str]]:
    answer = Answer(Ending(len(tokens)), made(kind), by_token=True)
    answer.push(tokens)
    output = RequestOutput(token_texts=answer.token_texts, sources=sources)
    return SourceAttribution().grow(output, answer.text)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_by_writer_are_one_decode(kind: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(tokens_of(kind))
    @example(spelled("byte fallback", "你好") if kind == "byte fallback" else [])
    def check(tokens: list[int]) -> None:
        pieces = attributed(kind, tokens, [f"drafter {i % 3}" for i in range(len(tokens))])
        assert "".join(piece for piece, _ in pieces) == decoded(kind, tokens)

    check()


def test_each_byte_fallback_character_has_the_writer_of_its_last_byte() -> None:
    """The source of a character is that of its last byte, even in a run that is shown late."""
    kind = "byte fallback"
    world = made(kind).convert_tokens_to_ids("▁world")
    tokens = [*spelled(kind, "你好"), world]
    sources = ["a", "a", "a", "b", "b", "c", "target"]
    assert attributed(kind, tokens, sources) == [
        ("你", "a"),
        ("好", "c"),
        (" world", "target"),
    ]


@pytest.mark.parametrize("kind", ["byte fallback", "byte level"])
def test_a_long_run_of_broken_bytes_costs_little(kind: str, monkeypatch: Any) -> None:
    """Decodes must not grow with the run, where earlier text can no longer change."""
    detokenizer, sizes = Detokenizer(made(kind)), []
    sound = Detokenizer._decode
    monkeypatch.setattr(
        Detokenizer,
        "_decode",
        lambda self, tokens: sizes.append(len(tokens)) or sound(self, tokens),
    )
    half = spelled(kind, "你")[:1]
    text = "".join(detokenizer.push(half) for _ in range(300)) + detokenizer.flush()
    assert text == decoded(kind, half * 300)
    assert sum(sizes) < 300 * 100
