"""Where answers end: lengths, EOS, stop strings, incomplete characters, NaN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from draftwise.chat import Prompt
from draftwise.engine.outputs import Answer, Ending
from draftwise.speculator import Speculator
from engine.pairs import PROMPTS, plain_greedy, speculator
from engine.scripted import PROMPT, VOCAB, byte_tokenizer, scripted

TOKENIZER = byte_tokenizer()
TEXTS = ["the end.", "écoute là.", "日本の日本", "a日é本b日日", "there they are."]


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def streamed(made: Speculator, **options: object) -> tuple[str, list[str]]:
    """The final text, and the streamed pieces."""
    pieces = [piece for piece, _ in made.stream(PROMPT, **options)]
    return made.generate(PROMPT, **options).text, pieces


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("wrong", [0, 3])
def test_eos_inside_an_accepted_draft_ends_the_answer_there(place: int, wrong: int) -> None:
    script = [9] * 20
    script[place] = 33
    made = scripted(script, length=5, wrong=wrong)
    made.target.module.generation_config = SimpleNamespace(eos_token_id=[33, 50])
    generation = made.start(PROMPT, max_new_tokens=15)
    rounds = list(generation)
    (result,) = generation.results()
    assert result.tokens == script[: place + 1]
    assert result.finish_reason == "eos"
    assert sum(round_.num_emitted for round_ in rounds) == place + 1
    assert made.generate(PROMPT, max_new_tokens=15, ignore_eos=True).tokens == script[:15]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_streamed_pieces_add_up_with_characters_split_over_tokens(text: str, length: int) -> None:
    script = ids(text)
    made = scripted(script, length, wrong=4, tokenizer=TOKENIZER)
    found, pieces = streamed(made, max_new_tokens=len(script))
    assert found == TOKENIZER.decode(script)
    assert "".join(pieces) == found
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    "stop", ["ey", "y a", "t", ["ey are"], ["they x", "re."], ["they", "ere"], ["zz", "y are. Not"]]
)
def test_text_ends_before_a_stop_string_and_is_never_taken_back(
    stop: str | list[str], length: int
) -> None:
    """The start of a possible stop string is held back until the rest is known."""
    whole, stops = "there they are.", [stop] if isinstance(stop, str) else stop
    made = scripted(ids(whole), length, tokenizer=TOKENIZER)
    found, pieces = streamed(made, max_new_tokens=len(ids(whole)), stop=stop)
    assert "".join(pieces) == found
    ends = {whole.index(one) + len(one): whole.index(one) for one in stops if one in whole}
    assert found == whole[: ends[min(ends)] if ends else len(whole)]
    result = made.generate(PROMPT, max_new_tokens=len(ids(whole)), stop=stop)
    assert result.finish_reason == ("stop" if ends else "length")
    told = TOKENIZER.decode(result.tokens)
    assert told.endswith(tuple(stops)) if ends else told == whole


@pytest.mark.parametrize("place", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_end_the_answer_with_the_tokens_so_far(
    place: int, temperature: float
) -> None:
    script = [9] * 20
    script[place] = -1
    result = scripted(script, length=3).generate(
        PROMPT, max_new_tokens=15, temperature=temperature, top_k=1
    )
    assert result.finish_reason == "non-finite logits"
    assert result.tokens == script[:place]
    assert result.stats.num_emitted == place


def test_an_interrupted_answer_keeps_what_it_has() -> None:
    generation = speculator(["good"], "fixed:1").start(PROMPTS[0], max_new_tokens=24)
    rounds = iter(generation)
    emitted = sum(next(rounds).num_emitted for _ in range(3))
    (result,) = generation.results()
    assert result.finish_reason == "interrupted"
    assert result.tokens == plain_greedy(PROMPTS[0], 24)[:emitted]


def with_controls() -> PreTrainedTokenizerFast:
    """Two control tokens, and an added token that is not special."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|x|>", "<|xy|>"]})
    tokenizer.add_tokens([AddedToken("<|own|>", special=False, normalized=False)])
    assert len(tokenizer) <= VOCAB
    return tokenizer


CONTROLS = with_controls()


def spelled(text: str) -> list[int]:
    return list(CONTROLS(text)["input_ids"])


@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize(
    ("text", "stop", "shown", "num_after"),
    [
        ("the end<|x|> more", "<|x|>", "the end", 5),
        ("<|x|>", "<|x|>", "", 0),
        ("a<|x|>b<|xy|>c", "<|xy|>", "ab", 1),
        ("a<|x|>b<|x|>c", "b<|x|>", "a", 1),
        ("a<|x|>b", "<|x|>b", "a", 0),
        ("ab<|x|>c", "b<|x|>c", "a", 0),
        ("a<|xy|><|x|>b", "<|xy|><|x|>", "a", 1),
        ("a<|own|>b", "<|own|>", "a", 1),
        ("a<|own|>b", "own", "a<|", 1),
        ("a<|x|>b", "x", "ab", 0),
        ("日<|x|>a", "<|x|>", "日", 1),
    ],
)
def test_stop_strings_may_name_special_tokens(
    text: str, stop: str, shown: str, num_after: int, length: int
) -> None:
    script = spelled(text)
    made = scripted(script, length, wrong=3, tokenizer=CONTROLS)
    result = made.generate(PROMPT, max_new_tokens=len(script), stop=[stop, "never<|x|>"])
    pieces = [p for p, _ in made.stream(PROMPT, max_new_tokens=len(script), stop=[stop])]
    assert "".join(pieces) == result.text == shown
    assert len(result.tokens) == len(script) - num_after


def test_a_stop_string_that_names_a_token_ends_a_cut_character() -> None:
    half = spelled("é")[:1]
    answer = Answer(Ending(9, stop=("<|x|>",)), CONTROLS)
    answer.push([*spelled("a"), *half, *spelled("<|x|>b")])
    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("a�", 3, "stop")


@pytest.mark.parametrize("skips", [True, False])
def test_special_tokens_are_shown_on_request(skips: bool) -> None:
    script = spelled("a<|x|>b<|own|>c<|xy|>d")
    made = scripted(script, 3, tokenizer=CONTROLS)
    options = {"max_new_tokens": len(script), "skip_special_tokens": skips, "stop": "<|xy|>"}
    assert made.generate(PROMPT, **options).text == ("ab<|own|>c" if skips else "a<|x|>b<|own|>c")


def test_a_prompt_is_no_part_of_a_stop_string() -> None:
    script = spelled("op here, stop."[:-1].replace(",", ""))
    made = scripted(script, 3, tokenizer=CONTROLS)
    answer = Answer(Ending(99, stop=("stop",)), CONTROLS, spelled("st"))
    answer.push(script)
    assert answer.text == "op here "
    assert made.generate(PROMPT, max_new_tokens=99, stop="stop").text == "op here "


@pytest.mark.parametrize("ignores", [True, False])
@pytest.mark.parametrize("includes", [True, False])
@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize(
    ("end", "text", "whole", "num"),
    [
        (" ", "the", "the ", 4),
        ("<|own|>", "the a", "the a<|own|>", 6),
        ("<|x|>", "the a<|own|>b", "the a<|own|>b", 8),
    ],
)
def test_text_ends_before_a_stop_token_and_tokens_with_it(
    end: str, text: str, whole: str, num: int, length: int, includes: bool, ignores: bool
) -> None:
    script = spelled("the a<|own|>b<|x|>c")
    made = scripted(script, length, tokenizer=CONTROLS)
    (token,) = spelled(end)
    result = made.generate(
        PROMPT, max_new_tokens=len(script), stop_token_ids=[token], ignore_eos=ignores,
        include_stop_str_in_output=includes,
    )  # fmt: skip
    assert (result.text, len(result.tokens)) == (whole if includes else text, num)
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("includes", [True, False])
def test_what_ended_an_answer_can_be_in_its_text(includes: bool) -> None:
    made = scripted(spelled("there<|x|> they are"), 3, tokenizer=CONTROLS)
    options: Any = {"max_new_tokens": 12, "include_stop_str_in_output": includes}
    for stop, before in (([" th", "ey"], "there"), ("re<|x|> t", "the"), ("<|x|>", "there")):
        text = made.generate(PROMPT, stop=stop, **options).text
        assert text == before + (" th" if isinstance(stop, list) else stop) * includes


def test_ends_of_the_file_the_tokenizer_and_the_template_count_together() -> None:
    script = spelled("ab<|own|>c<|x|>d<|xy|>e")
    tokenizer = with_controls()
    own, x, xy = (spelled(name)[0] for name in ("<|own|>", "<|x|>", "<|xy|>"))
    for config, eos, turn_ends, text in (
        (None, None, (), "ab<|own|>cde"),
        ([x, 63], "<|xy|>", (), "ab<|own|>c"),
        (xy, "<|x|>", (), "ab<|own|>c"),
        (None, "<|xy|>", (), "ab<|own|>cd"),
        (xy, None, (own,), "ab"),
    ):
        made = scripted(script, 3, tokenizer=tokenizer)
        tokenizer.eos_token = eos
        made.target.module.generation_config = SimpleNamespace(eos_token_id=config)
        made.target.module.config = SimpleNamespace()
        prompt = Prompt(PROMPT, frozenset(turn_ends))
        assert made.generate(prompt, max_new_tokens=len(script)).text == text
        whole = made.generate(prompt, max_new_tokens=len(script), ignore_eos=True)
        assert whole.text == "ab<|own|>cde"


class Bracketed:
    """A form: texts of letters in brackets, here ``a`` and ``b``. It masks nothing."""

    def __call__(self, text: object, logits: Any) -> Any:
        return logits

    def is_complete(self, text: str) -> bool:
        return text.count("a") == text.count("b")


@pytest.mark.parametrize("length", [1, 5])
def test_a_form_ends_only_where_it_is_complete(length: int) -> None:
    script = spelled("acabcb.c")
    made = scripted(script, length, tokenizer=CONTROLS)
    options: Any = {"max_new_tokens": len(script), "process": Bracketed()}
    assert made.generate(PROMPT, stop="c", **options).text == "acabcb."
    assert made.generate(PROMPT, stop="cb", **options).text == "acabcb.c"
    (c,) = spelled("c")
    assert made.generate(PROMPT, stop_token_ids=c, **options).text == "acabcb."
    assert made.generate(PROMPT, eos_token_ids=c, ignore_eos=True, **options).text == "a"
