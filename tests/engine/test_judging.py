"""Verification of tokens that the target cannot read, or that end an answer."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from draftwise.drafters.lm import LMDrafter
from draftwise.nn.model import CausalModel
from draftwise.registry import Preset
from draftwise.speculator import Speculator
from draftwise.types import SamplingParams, TreeShape
from models import tiny_model

POISON = 5
PROMPT = [3, 1, 4, 1]


def target_that_cannot_read(poison: int) -> CausalModel:
    """A target whose hidden states are not finite after one token; that token's logit is 0."""
    module = tiny_model(vocab_size=8, tie_word_embeddings=False)
    with torch.no_grad():
        module.get_input_embeddings().weight[poison] = float("nan")
        module.get_output_embeddings().weight[poison] = 0.0
    return CausalModel(module, "target")


def drafter_that_likes(token: int, target: CausalModel) -> LMDrafter:
    """A drafter that often proposes this token."""
    module = tiny_model(vocab_size=8, seed=1)
    with torch.no_grad():
        module.get_output_embeddings().weight[token] *= 3
    return LMDrafter("likes", CausalModel(module, "likes"), target)


@pytest.mark.parametrize("tree", [None, TreeShape(3, 9)])
def test_a_drafted_token_that_cannot_be_read_costs_a_round_and_not_the_answer(
    tree: TreeShape | None,
) -> None:
    target = target_that_cannot_read(POISON)
    drafter = drafter_that_likes(POISON, target)
    setting = Preset("fixed:0", "length", "free", (3,), False, trees=(tree,))
    made = Speculator(target, None, [drafter], setting)
    plain = Speculator(target, None, [drafter], Preset("fixed:0", "length", "free", (1,), True))
    drafts: Counter[bool] = Counter()
    for seed in range(6):
        prompt = [*PROMPT, seed % 5]
        expected = plain.generate(prompt, max_new_tokens=16)
        generation = made.start(prompt, max_new_tokens=16)
        drafts.update(round_.num_drafted > 0 for round_ in generation)
        (result,) = generation.results()
        assert result.finish_reason == expected.finish_reason
        assert result.tokens == expected.tokens
    assert drafts[True]


def test_such_rounds_have_the_law_of_the_target() -> None:
    """The first token's counts follow plain decoding's probabilities, by a chi-square test."""
    target = target_that_cannot_read(POISON)
    drafter = drafter_that_likes(POISON, target)
    setting = Preset("fixed:0", "length", "free", (2,), False)
    made = Speculator(target, None, [drafter], setting)
    sampling, num = SamplingParams(1.0), 500
    with torch.inference_mode():
        logits = target.module(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    p = logits.double().softmax(-1).numpy()
    results = made.generate([PROMPT] * num, max_new_tokens=3, sampling=[sampling] * num, seed=0)
    counts = Counter(result.tokens[0] for result in results)
    statistic = sum((counts[t] - num * p[t]) ** 2 / (num * p[t]) for t in range(8))
    # 7 degrees of freedom: 40 is beyond one in 10^5
    assert statistic < 40
    assert counts[POISON]  # emitted; the next logits are not finite, as in plain decoding
    ends = {r.finish_reason for r in results if r.tokens[0] == POISON}
    assert ends == {"non-finite logits"}
    assert {r.finish_reason for r in results if POISON not in r.tokens} == {"length"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["fixed", "max-confidence:0.0"])
def test_nothing_is_drafted_behind_a_token_that_ends_the_answer(
    rule: str, temperature: float
) -> None:
    """Tokens drafted after one that ends the answer must not be verified."""
    module = tiny_model(vocab_size=8)
    target = CausalModel(module, "target")
    drafter = LMDrafter("same", CausalModel(module, "same"), target)
    setting = Preset("fixed:0", "length", "free", (6,), False, (rule,))
    made = Speculator(target, None, [drafter], setting)
    ends = 0
    for seed in range(8):
        generation = made.start(
            [*PROMPT, seed % 8],
            max_new_tokens=20,
            temperature=temperature,
            seed=seed,
            eos_token_ids=[2, 6],
        )
        rounds = list(generation)
        (result,) = generation.results()
        if result.finish_reason == "eos" and len(result.tokens) < 19:
            ends += 1
            # the same model drafts: all is accepted, and the last draft ends with the end token
            assert rounds[-1].num_drafted <= rounds[-1].num_accepted <= 6
    assert ends
