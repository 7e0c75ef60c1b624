"""LongRoPE across its switch: text equals ``generate``'s, token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

from draftwise import DraftwiseError, Speculator
from draftwise.nn import load_model, recompute_states
from models import SMALL, near_copy
from modules import module_of

feeds = module_of(recompute_states)

SWITCH, NEW = 24, 40
PROMPTS = [[5, 6, 7, 8] * 3, [11, 12, 11], [*range(20, 20 + SWITCH)], [*range(1, 31)]]
"""The prompts end below the switch, at it, and after it."""
SIZE = {name: value for name, value in SMALL.items() if name != "max_position_embeddings"}


def longrope(
    kind: Any = hf.Phi3Config, switch: int = SWITCH, scales: Any = None, **more: Any
) -> Any:
    """A tiny random model whose two rotary tables differ strongly."""
    torch.manual_seed(0)
    config = kind(
        **SIZE,
        max_position_embeddings=256,
        original_max_position_embeddings=switch,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [3.0, 5.0, 7.0, 9.0],
            "original_max_position_embeddings": switch,
            "attention_factor": 1.0,
            **(scales or {}),
        },
        **more,
    )
    module = hf.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, weights in module.named_parameters():
            if "qkv_proj" in name or "lm_head" in name or "embed" in name:
                weights.normal_(0, 0.3)
    return module


def generated(module: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = module.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
    )
    return [int(token) for token in output[0, len(prompt) :]]


@pytest.fixture(scope="module")
def target() -> Any:
    return longrope()


@pytest.fixture(scope="module")
def expected(target: Any) -> list[list[int]]:
    return [generated(target, prompt) for prompt in PROMPTS]


def test_the_second_table_makes_another_text(target: Any, expected: list[list[int]]) -> None:
    """With one table the text differs, so that the tests can detect a missing switch."""
    late = longrope(switch=200)
    late.load_state_dict(target.state_dict())
    texts = [generated(late, prompt) for prompt in PROMPTS[:2]]
    for prompt, text, other in zip(PROMPTS, texts, expected, strict=False):
        below = SWITCH + 1 - len(prompt)
        assert text[:below] == other[:below]
        assert text[below:] != other[below:]


@pytest.mark.parametrize("tree", ["chain", "2x6"])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_answers_across_the_switch(
    target: Any, expected: list[list[int]], length: int, tree: str
) -> None:
    if tree != "chain" and length == 1:
        tree = "2x2"
    made = Speculator.from_pretrained(
        target, [near_copy(target, 0.05)], policy="fixed:1", lengths=(length,), trees=[tree]
    )
    assert (made.target.switch, made.target.max_positions) == (SWITCH, 256)
    results = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in results] == expected
    for prompt, text in zip(PROMPTS, expected, strict=True):
        alone = made.generate(prompt, max_new_tokens=NEW, ignore_eos=True)
        assert alone.tokens == text
        assert alone.stats.num_accepted


def test_prompts_that_share_a_beginning(target: Any) -> None:
    """A row must recompute a shared prefix whose keys were rotated with the other table."""
    made = Speculator.from_pretrained(target, ["lookup"], policy="fixed:1", lengths=(3,))
    long = [*range(1, SWITCH + 6)]
    for end in (len(long), 12, len(long) - 1, SWITCH, SWITCH + 1, 7):
        result = made.generate(long[:end], max_new_tokens=NEW, ignore_eos=True)
        assert result.tokens == generated(target, long[:end])


def test_a_conversation_across_the_switch(target: Any) -> None:
    """Each turn begins with the whole conversation, whose keys are reused."""
    made = Speculator.from_pretrained(
        target, [near_copy(target, 0.05)], policy="fixed:1", lengths=(3,)
    )
    text = [5, 6, 7]
    for _ in range(4):
        answer = made.generate(text, max_new_tokens=8, ignore_eos=True).tokens
        assert answer == generated(target, text)[:8]
        text = [*text, *answer, 9, 10]


def test_experts_and_a_scale_of_each_table() -> None:
    """PhiMoE also scales attention by the table in use."""
    scales = {"short_mscale": 1.0, "long_mscale": 1.5}
    module = longrope(hf.PhimoeConfig, scales=scales, num_local_experts=2)
    made = Speculator.from_pretrained(module, [near_copy(module, 0.05)], policy="fixed:1")
    assert made.target.switch == SWITCH
    results = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [r.tokens for r in results] == [generated(module, prompt) for prompt in PROMPTS]


def test_a_sliding_window_beside_it() -> None:
    module = longrope(sliding_window=9)
    made = Speculator.from_pretrained(
        module, [near_copy(module, 0.05)], policy="fixed:1", lengths=(3,)
    )
    results = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [r.tokens for r in results] == [generated(module, prompt) for prompt in PROMPTS]


def test_the_self_check_crosses_the_switch(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: keys of the first table stay after the switch, as seen in a tiny twin."""

    def catch_up(extend: Any, feed: Any, again: Any) -> Any:
        return extend(feed)

    assert load_model(target).switch == SWITCH
    monkeypatch.setattr(feeds, "recompute_last", catch_up)
    with pytest.raises(DraftwiseError, match=r"a tiny twin of it: its logits .* are off by"):
        load_model(longrope(switch=200))
