"""Where answers end: lengths, EOS, stop strings, incomplete characters, NaN."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from draftwise.engine import Answer, Ending
from draftwise.speculator import Speculator
from engine.pairs import BUDGETS, POOLS, PROMPTS, plain_greedy, speculator
from engine.scripted import PROMPT, byte_tokenizer, scripted

TOKENIZER = byte_tokenizer()
TEXTS = ["the end.", "écoute là.", "日本の日本", "a日é本b日日", "there they are."]


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def streamed(made: Speculator, **options: object) -> tuple[str, list[str]]:
    """The final text, and the streamed pieces."""
    pieces = [piece for piece, _ in made.stream(PROMPT, **options)]
    return made.generate(PROMPT, **options).text, pieces


@pytest.mark.parametrize("budget", range(1, 9))
def test_exactly_as_many_tokens_as_asked(budget: int) -> None:
    """Draft lengths of 1, 3 and 8 with shorter and longer answers."""
    for length in (1, 3, 8):
        result = speculator(["good"], "fixed:1", lengths=(length,)).generate(
            PROMPTS[0], max_new_tokens=budget
        )
        assert result.tokens == plain_greedy(PROMPTS[0], budget)
        assert (result.finish_reason, result.stats.num_emitted) == ("length", budget)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("wrong", [0, 3])
def test_eos_inside_an_accepted_draft_ends_the_answer_there(place: int, wrong: int) -> None:
    script = [9] * 20
    script[place] = 33
    made = scripted(script, length=5, wrong=wrong)
    made.target.module = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[33, 50]))
    generation = made.start(PROMPT, max_new_tokens=15)
    rounds = list(generation)
    (result,) = generation.results()
    assert result.tokens == script[: place + 1]
    assert result.finish_reason == "eos"
    assert sum(round_.num_emitted for round_ in rounds) == place + 1
    assert made.generate(PROMPT, max_new_tokens=15, ignore_eos=True).tokens == script[:15]


def test_eos_of_one_row_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [plain_greedy(p, n) for p, n in zip(PROMPTS, BUDGETS, strict=True)]
    end = expected[0][4]
    made = speculator(POOLS["all"])
    monkeypatch.setattr(made.target.module.generation_config, "eos_token_id", end)
    cut = [t[: t.index(end) + 1] if end in t else t for t in expected]
    assert cut[0] != expected[0]
    results = made.generate(PROMPTS, max_new_tokens=BUDGETS)
    assert [result.tokens for result in results] == cut


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
@pytest.mark.parametrize(("stop", "rest"), [("ey", "there th"), ("y a", "there the"), ("t", "")])
def test_stop_string_over_tokens_and_rounds(stop: str, rest: str, length: int) -> None:
    """The text ends before the stop string, the tokens with the token that completes it."""
    script = ids("there they are.")
    made = scripted(script, length, tokenizer=TOKENIZER)
    result = made.generate(PROMPT, max_new_tokens=len(script), stop=stop)
    assert (result.text, result.finish_reason) == (rest, "stop")
    assert TOKENIZER.decode(result.tokens).endswith(stop)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("stop", [["ey are"], ["they x", "re."], ["zzz", "y are. Not"]])
def test_what_was_streamed_is_never_taken_back(stop: list[str], length: int) -> None:
    """The start of a possible stop string is held back until the rest is known."""
    script = ids("there they are.")
    made = scripted(script, length, tokenizer=TOKENIZER)
    found, pieces = streamed(made, max_new_tokens=len(script), stop=stop)
    assert "".join(pieces) == found
    whole = "there they are."
    cuts = [whole.index(s) for s in stop if s in whole]
    assert found == whole[: min(cuts, default=len(whole))]


def test_the_first_of_several_stop_strings_counts() -> None:
    answer = Answer(Ending(100, stop=("they", "ere")), TOKENIZER)
    assert answer.push(ids("there they")) < len(ids("there they"))
    assert (answer.text, answer.finish_reason) == ("th", "stop")


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
