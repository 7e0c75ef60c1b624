"""``custom_generate=draftwise.transformers()`` compared with ``generate``, option by option."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    DynamicCache,
    LogitsProcessor,
    StoppingCriteria,
    TextStreamer,
)
from transformers.generation import GenerateDecoderOnlyOutput

import draftwise
from draftwise import DraftwiseError
from draftwise.nn import cache_argument, tiny_config, tiny_module
from engine.scripted import byte_tokenizer
from models import tiny_model

PROMPTS = torch.tensor([[5, 6, 7, 8, 5, 6, 7], [9, 9, 1, 2, 3, 9, 9]])
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
NUM = 24
PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
TESTED: set[str] = set()
"""Options of the page's table that a test in this file covers."""


def covers(*options: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Record options, as written in the first column of the page's table, as covered by a test."""
    TESTED.update(options)
    return lambda test: test


def test_every_option_of_the_page_is_tested() -> None:
    rows = [line.split("|") for line in PAGE.read_text("utf-8").splitlines() if line[:1] == "|"]
    named = [option.strip() for row in rows[2:] for option in row[1].split(", ")]
    assert len(named) > 20
    assert sorted(set(named) ^ TESTED) == []


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", seed=3)


@pytest.fixture(scope="module")
def ours() -> Any:
    return draftwise.transformers(["lookup", tiny_model("llama", seed=4)], lengths=[1, 3, 6])


class OddOnly(LogitsProcessor):
    """Penalises even or odd tokens, depending on the prefix's sum."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, (input_ids[0].sum() % 2) :: 2] -= 5.0  # in place, as some processors do
        return scores


class AfterSum(StoppingCriteria):
    """Ends a row as soon as its tokens sum to a multiple of 11."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.sum(-1) % 11 == 0


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "an end": {"eos_token_id": [3, 17], "pad_token_id": 0},
    "an end, no pad": {"eos_token_id": 17},
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "least length": {"min_new_tokens": 9, "eos_token_id": [3, 17], "pad_token_id": 0},
    "a processor": {"logits_processor": [OddOnly()]},
    "a criterion": {"stopping_criteria": [AfterSum()], "eos_token_id": 17, "pad_token_id": 0},
    "one token": {"max_new_tokens": 1},
    "no time": {"max_time": 0.0, "pad_token_id": 0},
}


@covers(
    "greedy and sampled text", "`max_new_tokens`", "`eos_token_id`", "left padding", "`max_time`",
    "`repetition_penalty`", "`no_repeat_ngram_size`", "`min_new_tokens`",
    "your `logits_processor`", "your `stopping_criteria`",
)  # fmt: skip
@pytest.mark.parametrize("mask", [None, LEFT], ids=["even", "left-padded"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_greedy_answers_are_those_of_generate(model: Any, ours: Any, name: str, mask: Any) -> None:
    options = {"max_new_tokens": NUM, "do_sample": False, "attention_mask": mask, **SETTINGS[name]}
    expected = model.generate(PROMPTS, **options)
    answers = model.generate(PROMPTS, custom_generate=ours, **options)
    assert answers.tolist() == expected.tolist()


def test_it_drafted_and_its_numbers_can_be_read(model: Any, ours: Any) -> None:
    model.generate(PROMPTS[:1], custom_generate=ours, max_new_tokens=NUM, do_sample=False)
    stats = ours.results[0].stats
    assert stats.num_emitted == NUM
    assert stats.num_drafted > 0


@covers("`stop_strings`")
def test_stop_strings_end_an_answer_where_generate_does(model: Any, ours: Any) -> None:
    tokenizer = byte_tokenizer()
    options = {"max_new_tokens": NUM, "do_sample": False, "eos_token_id": 17, "pad_token_id": 0}
    whole = model.generate(PROMPTS, **options)[0, PROMPTS.shape[1] :].tolist()
    options |= {"stop_strings": [tokenizer.decode(whole[4:6]), "!"], "tokenizer": tokenizer}
    expected = model.generate(PROMPTS, **options)
    assert len(set(expected[0, -(NUM - 8) :].tolist())) == 1, "the stop string ended it"
    answers = model.generate(PROMPTS, custom_generate=ours, **options)
    assert answers.tolist() == expected.tolist()


@covers("greedy and sampled text", "`temperature`", "`top_k`", "`top_p`", "`min_p`")
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 3.0}]
)
def test_sampled_tokens_follow_the_law_of_generate(model: Any, options: dict[str, Any]) -> None:
    """Second and third token, 1,500 draws each way; chi-square, false alarm 1e-3 per setting.

    The prompt leaves room for full drafts, so that both tokens come out of drafts.
    """
    torch.manual_seed(0)
    ours = draftwise.transformers(
        [tiny_model("llama", seed=4)], preset="metasd", policy="fixed:0", lengths=[3],
        reward="length", feedback="bandit",
    )  # fmt: skip
    rows = PROMPTS[:1].repeat(1500, 1)
    given = {"max_new_tokens": 3, "do_sample": True, "temperature": 2.0, "top_k": 0, **options}
    theirs = model.generate(rows, **given)[:, -2:] % 8
    mine = model.generate(rows, custom_generate=ours, **given)[:, -2:] % 8
    for place in range(2):
        counts = torch.stack([torch.bincount(x[:, place], minlength=8) for x in (theirs, mine)])
        kept = counts[:, counts.sum(0) > 10].double()
        expected = kept.sum(0, keepdim=True) / 2
        statistic = float(((kept - expected) ** 2 / expected).sum())
        degrees = torch.tensor((kept.shape[1] - 1) / 2)
        p = 1 - torch.special.gammainc(degrees, torch.tensor(statistic / 2))
        assert p > 1e-3 / 2


def test_the_global_seed_repeats_it(model: Any) -> None:
    ours = draftwise.transformers(["lookup"], preset="metasd")

    def once(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        options = {"max_new_tokens": NUM, "do_sample": True, "temperature": 2.0}
        return list(model.generate(PROMPTS, custom_generate=ours, **options).tolist())

    assert once(1) == once(1) != once(2)


@covers("`num_return_sequences`", "`return_dict_in_generate`")
def test_several_sequences_and_the_output_object(model: Any, ours: Any) -> None:
    output = model.generate(
        PROMPTS, custom_generate=ours, max_new_tokens=4, do_sample=True, temperature=2.0,
        num_return_sequences=3, return_dict_in_generate=True,
    )  # fmt: skip
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.sequences.shape == (6, 11)


class Streamer:
    """Records the values that it receives."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append(value.tolist())

    def end(self) -> None:
        self.pieces.append("end")


@covers("`streamer`")
def test_a_streamer_is_given_what_generate_gives_it(model: Any, ours: Any) -> None:
    theirs, mine = Streamer(), Streamer()
    options = {"max_new_tokens": NUM, "do_sample": False, "eos_token_id": 17}
    model.generate(PROMPTS[:1], streamer=theirs, **options)
    model.generate(PROMPTS[:1], streamer=mine, custom_generate=ours, **options)
    assert mine.pieces == theirs.pieces
    assert mine.pieces[0] == PROMPTS[:1].tolist()
    assert len(mine.pieces) > 3


def test_a_text_streamer_prints_the_answer(
    model: Any, ours: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_tokenizer()
    output = model.generate(
        PROMPTS[:1], custom_generate=ours, max_new_tokens=NUM, do_sample=False,
        streamer=TextStreamer(tokenizer, skip_prompt=True),
    )  # fmt: skip
    assert capsys.readouterr().out == tokenizer.decode(output[0, PROMPTS.shape[1] :]) + "\n"


def test_a_streamer_of_several_sequences_is_refused(model: Any, ours: Any) -> None:
    with pytest.raises(DraftwiseError, match="here are 2: leave out streamer="):
        model.generate(PROMPTS, custom_generate=ours, streamer=Streamer(), max_new_tokens=4)


def test_callables_of_others_are_given_what_they_were_before(model: Any, ours: Any) -> None:
    given: dict[str, Any] = {}

    def theirs(model: Any, input_ids: torch.Tensor, own: int = 0, **rest: Any) -> torch.Tensor:
        given.update(rest, own=own)
        return input_ids

    assert ours is not None  # the hook is in place
    model.generate(PROMPTS, custom_generate=theirs, own=3, max_new_tokens=4)
    assert given["own"] == 3
    assert given.keys().isdisjoint({"tokenizer", "streamer", "assistant_model"})


@covers(
    "`num_beams`", "`output_scores`", "`output_hidden_states`", "`guidance_scale`",
    "`cache_implementation`", "right padding", "`assistant_model`",
    "`prompt_lookup_num_tokens`", "`use_mtp`", "`penalty_alpha`", "`dola_layers`",
)  # fmt: skip
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "output_hidden_states",
        ),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"guidance_scale": 2.0}, "UnbatchedClassifierFreeGuidance"),
        ({"attention_mask": LEFT.flip(-1)}, "on the right"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]}, "one prompt at a time"),
        ({"assistant_model": tiny_model("llama", seed=4)}, "honour assistant_model"),
        ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens"),
        ({"use_mtp": True}, "use_mtp"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
        ({"dola_layers": "high"}, "dola_layers"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    model: Any, ours: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(DraftwiseError, match=named):
        model.generate(PROMPTS, custom_generate=ours, max_new_tokens=4, **options)


@covers("your `cache` (`past_key_values` before 5.24)")
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")  # transformers 5.24
@pytest.mark.filterwarnings("ignore:`cache_params` is deprecated")
@pytest.mark.parametrize("name", ["past_key_values", "cache_params", "cache"])
@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_a_cache_with_tokens_in_it_is_refused(kind: str, name: str) -> None:
    """Under each name that a release has for it; a cache of recurrent states has no length."""
    target = tiny_module(tiny_config(CONFIG_MAPPING[kind]())).eval()
    own, names = cache_argument(target)
    if own != "cache" and name not in names:
        pytest.skip(f"this transformers has no {name} of {kind}")
    hook = draftwise.transformers(["lookup"])
    options = {"custom_generate": hook, "max_new_tokens": 4, "do_sample": False}
    options["attention_mask"] = torch.ones_like(PROMPTS)
    full, empty = DynamicCache(config=target.config), DynamicCache(config=target.config)
    expected = target.generate(PROMPTS, **options)
    assert torch.equal(target.generate(PROMPTS, **options, **{name: empty}), expected)
    target(PROMPTS[:, :3], **{own: full})
    with pytest.raises(DraftwiseError, match="already holds tokens"):
        target.generate(PROMPTS, **options, **{name: full})


def test_a_model_that_nobody_needs_is_given_back() -> None:
    """The hook keeps measurements of a model without keeping the model alive."""
    hook = draftwise.transformers(["lookup"])
    short_lived = tiny_model("llama", seed=5)
    for _ in range(2):
        short_lived.generate(PROMPTS[:1], custom_generate=hook, max_new_tokens=4, do_sample=False)
    is_alive = weakref.ref(short_lived)
    del short_lived
    gc.collect()
    assert is_alive() is None
