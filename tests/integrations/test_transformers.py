"""``custom_generate=draftwise.transformers()`` beside ``generate`` itself, setting by setting."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria
from transformers.generation import GenerateDecoderOnlyOutput

import draftwise
from draftwise import DraftwiseError
from models import tiny_model

PROMPTS = torch.tensor([[5, 6, 7, 8, 5, 6, 7], [9, 9, 1, 2, 3, 9, 9]])
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
NUM = 24


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", seed=3)


@pytest.fixture(scope="module")
def ours() -> Any:
    return draftwise.transformers(["lookup", tiny_model("llama", seed=4)], lengths=[1, 3, 6])


class OddOnly(LogitsProcessor):
    """Even tokens are forbidden after an odd number of tokens: it looks at the prefix."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, (input_ids[0].sum() % 2) :: 2] -= 5.0  # in place, as some do
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
}


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


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 3.0}]
)
def test_sampled_tokens_follow_the_law_of_generate(model: Any, options: dict[str, Any]) -> None:
    """Second and third token, 1,500 draws each way; chi-square, false alarm 1e-3 a setting.

    The prompt is as long as the draft is sure to reach: both tokens come out of drafts.
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


def test_several_sequences_and_the_output_object(model: Any, ours: Any) -> None:
    output = model.generate(
        PROMPTS, custom_generate=ours, max_new_tokens=4, do_sample=True, temperature=2.0,
        num_return_sequences=3, return_dict_in_generate=True,
    )  # fmt: skip
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.sequences.shape == (6, 11)


def test_a_streamer_gets_prompt_tokens_and_end(model: Any) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.pieces: list[list[int]] = []
            self.ended = False

        def put(self, value: torch.Tensor) -> None:
            self.pieces.append(value.flatten().tolist())

        def end(self) -> None:
            self.ended = True

    streamer = Streamer()
    ours = draftwise.transformers(["lookup"], streamer=streamer)
    output = model.generate(PROMPTS[:1], custom_generate=ours, max_new_tokens=NUM, do_sample=False)
    assert [token for piece in streamer.pieces for token in piece] == output[0].tolist()
    assert streamer.ended


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"guidance_scale": 2.0}, "UnbatchedClassifierFreeGuidance"),
        ({"attention_mask": LEFT.flip(-1)}, "on the right"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]}, "one prompt at a time"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    model: Any, ours: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(DraftwiseError, match=named):
        model.generate(PROMPTS, custom_generate=ours, max_new_tokens=4, **options)


def test_a_cache_with_tokens_in_it_is_refused(model: Any, ours: Any) -> None:
    cache = DynamicCache(config=model.config)
    model(PROMPTS[:, :3], past_key_values=cache)
    with pytest.raises(DraftwiseError, match="already holds tokens"):
        model.generate(PROMPTS, custom_generate=ours, past_key_values=cache, max_new_tokens=4)


def test_a_model_that_nobody_needs_is_given_back() -> None:
    """The hook remembers what it measured of a model, and not the model itself."""
    hook = draftwise.transformers(["lookup"])
    short_lived = tiny_model("llama", seed=5)
    for _ in range(2):
        short_lived.generate(PROMPTS[:1], custom_generate=hook, max_new_tokens=4, do_sample=False)
    is_alive = weakref.ref(short_lived)
    del short_lived
    gc.collect()
    assert is_alive() is None
