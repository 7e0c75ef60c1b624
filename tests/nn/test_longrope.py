"""LongRoPE: texts end with its first table, and equal ``generate``'s up to there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf

from draftwise import DraftwiseError, Speculator
from draftwise.nn.cache import UNLIMITED
from draftwise.nn.model import served_positions
from models import SMALL, near_copy

SWITCH, NEW = 24, 40
PROMPTS = [[5, 6, 7, 8] * 3, [11, 12, 11], [*range(20, 19 + SWITCH)]]
"""The last one leaves room for one token."""
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


KINDS: dict[str, dict[str, Any]] = {
    "phi3": {},
    "a window beside it": {"sliding_window": 9},
    "experts, a scale of each table": {
        "kind": hf.PhimoeConfig,
        "scales": {"short_mscale": 1.0, "long_mscale": 1.5},
        "num_local_experts": 2,
    },
    "llama": {"kind": hf.LlamaConfig},
}


@pytest.mark.parametrize("tree", ["chain", "2x6"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_end_with_the_first_table(kind: str, tree: str) -> None:
    """They equal ``generate``'s up to there, alone and in a batch."""
    target = longrope(**KINDS[kind])
    made = Speculator.from_pretrained(
        target, [near_copy(target, 0.05)], policy="fixed:1", lengths=(3,), trees=[tree]
    )
    assert made.target.max_positions == SWITCH
    expected = [generated(target, prompt)[: SWITCH - len(prompt)] for prompt in PROMPTS]
    results = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in results] == expected
    assert all(result.finish_reason == "length" for result in results)
    for prompt, text in zip(PROMPTS, expected, strict=True):
        alone = made.generate(prompt, max_new_tokens=NEW, ignore_eos=True)
        assert alone.tokens == text
    assert sum(result.stats.num_accepted for result in results) > 0
    for num in (SWITCH, SWITCH + 6):
        with pytest.raises(DraftwiseError, match=f"has {num} tokens, and .* has {SWITCH} position"):
            made.generate([*range(1, num + 1)])


def test_the_second_table_makes_another_text() -> None:
    """With one table the text differs, so that the tests can detect a late end."""
    target, late = longrope(), longrope(switch=200)
    late.load_state_dict(target.state_dict())
    for prompt in PROMPTS:
        below = SWITCH + 1 - len(prompt)
        text, other = generated(target, prompt), generated(late, prompt)
        assert text[:below] == other[:below]
        assert text[below:] != other[below:]


LONG = {"rope_type": "longrope"}
BY_LAYER = {
    "full_attention": LONG | {"original_max_position_embeddings": 30},
    "sliding_attention": LONG | {"original_max_position_embeddings": 20},
    "chunked_attention": {"rope_type": "default"},
}


@pytest.mark.parametrize(
    ("most", "first", "rope", "expected"),
    [
        (None, None, None, UNLIMITED),
        (64, None, None, 64),
        (64, None, {"rope_type": "yarn"}, 64),
        (64, None, LONG, 64),
        (64, 24, LONG, 24),
        (64, 24, {"rope_type": "yarn"}, 64),
        (64, None, BY_LAYER, 20),
        (16, None, LONG | {"original_max_position_embeddings": 30}, 16),
    ],
)
def test_the_positions_that_are_served(most: Any, first: Any, rope: Any, expected: int) -> None:
    given = {
        "max_position_embeddings": most, "original_max_position_embeddings": first,
        "rope_parameters": rope,
    }  # fmt: skip
    config = {name: value for name, value in given.items() if value is not None}
    assert served_positions(SimpleNamespace(**config)) == expected
