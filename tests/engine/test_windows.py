"""Sliding-window and chunked layers: text equals ``generate``'s."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwise.nn.attention import attend_raggedly
from draftwise.nn.tiny import tiny_config, tiny_module
from draftwise.speculator import Speculator
from models import near_copy

SIZE, NEW = 8, 120
PROMPTS = [[5, 6, 7, 8] * 5, [11, 12, 11], [*range(20, 75)]]
"""Prompts of 20, 3 and 55 tokens, longer and shorter than the window."""
CONFIGS = {
    "mistral": hf.MistralConfig,
    "gemma2": hf.Gemma2Config,
    "gemma3": hf.Gemma3TextConfig,
    "gpt_oss": hf.GptOssConfig,
    "llama4": hf.Llama4TextConfig,
}
NO_TREES = ("llama4", "2x8")


def windowed(config: Any) -> Any:
    """Like ``tiny_config``, with windows or chunks of ``SIZE``, even without any by default."""
    if getattr(config, "sliding_window", 0) is None:
        config.sliding_window = SIZE
    made = tiny_config(config)
    for name in ("sliding_window", "attention_chunk_size"):
        if getattr(made, name, None):
            setattr(made, name, SIZE)
    return made


@cache
def target(kind: str) -> Any:
    """A tiny random module with windows or chunks of ``SIZE`` that attends far back."""
    config = windowed(CONFIGS[kind]())
    config.tie_word_embeddings = False  # tied embeddings would repeat one token for ever
    module = tiny_module(config)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weights in module.named_parameters():
            looks = any(part in name for part in ("q_proj", "k_proj"))
            if weights.dim() == 2 and not looks and "router" not in name:
                weights.normal_(0, 0.3, generator=generator)
    return module


@cache
def expected(kind: str) -> list[list[int]]:
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = target(kind).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        texts.append([int(token) for token in output[0, len(prompt) :]])
    return texts


def speculator(kind: str, **more: Any) -> Speculator:
    options = {"policy": "fixed:1", "lengths": (6,), "num_prefixes": 0, **more}
    return Speculator.from_pretrained(target(kind), [near_copy(target(kind), 0.05)], **options)


@pytest.mark.parametrize(
    ("kind", "tree"),
    [(kind, tree) for kind in CONFIGS for tree in ("chain", "2x8") if (kind, tree) != NO_TREES],
)
def test_texts_are_those_of_generate(kind: str, tree: str) -> None:
    made = speculator(kind, trees=[tree])
    ragged = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in ragged] == expected(kind)
    alone = made.generate(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True)
    assert alone.tokens == expected(kind)[0]
    assert len(set(alone.tokens)) > 10
    assert 0 < ragged[0].stats.num_accepted < ragged[0].stats.num_drafted


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_rows_that_go_end_to_end(kind: str) -> None:
    module = copy.deepcopy(target(kind))
    attend_raggedly(module)
    drafter = near_copy(target(kind), 0.05)
    made = Speculator.from_pretrained(
        module, [drafter], policy="fixed:1", lengths=(6,), trees=["2x8"]
    )
    assert made.target.packs
    ragged = made.generate(PROMPTS, max_new_tokens=NEW, ignore_eos=True)
    assert [result.tokens for result in ragged] == expected(kind)
