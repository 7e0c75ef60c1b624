"""EAGLE heads: arithmetic against transformers' layers, also on a ragged cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaRotaryEmbedding,
)

from draftwise.nn.attention import branches
from draftwise.nn.cache import HiddenStates, RaggedCache
from draftwise.nn.eagle import EagleConfig, EagleHead, read
from eagles import eagle_head
from engine.pairs import target

TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [7, 7, 2], [40, 41, 42, 43, 44, 45]]
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


pytestmark = pytest.mark.usefixtures("without_gradients")


def llama_config(config: EagleConfig) -> LlamaConfig:
    made = LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=512,
        rope_parameters=dict(config.rope_parameters),
    )
    made._attn_implementation = "eager"
    return made


def rotary_and_mask(config: LlamaConfig, num: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    cos_sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(num)[None])
    return cos_sin, torch.full((num, num), float("-inf")).triu(1)[None, None]


def normed(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    return states * (states.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def first_by_the_library(head: EagleHead, tokens: Tensor, hidden: Tensor) -> Tensor:
    """EAGLE-1: the library's decoder layer without the norm before its attention."""
    config = llama_config(head.config)
    layer = LlamaDecoderLayer(config, 0).eval()
    layer.load_state_dict(head.midlayer.state_dict(), strict=False)
    layer.input_layernorm = nn.Identity()
    (cos, sin), mask = rotary_and_mask(config, tokens.shape[1])
    mixed = head.fc(torch.cat((head.embed(tokens), hidden), dim=-1))
    return layer(mixed, attention_mask=mask, position_embeddings=(cos, sin))


def third_by_the_library(head: EagleHead, tokens: Tensor, hidden: Tensor) -> Tensor:
    """EAGLE-3: the library's attention over both inputs, everything else written out."""
    config, weights = llama_config(head.config), head.midlayer.state_dict()
    attention = LlamaAttention(config, 0).eval()
    for name in ("q_proj", "k_proj", "v_proj"):
        wide = weights[f"self_attn.{name}.weight"]
        setattr(attention, name, nn.Linear(wide.shape[1], wide.shape[0], bias=False))
    attention.load_state_dict(head.midlayer.self_attn.state_dict())
    position_embeddings, mask = rotary_and_mask(config, tokens.shape[1])
    eps = head.config.rms_norm_eps
    both = torch.cat(
        (
            normed(head.embed(tokens), weights["input_layernorm.weight"], eps),
            normed(hidden, weights["hidden_norm.weight"], eps),
        ),
        dim=-1,
    )
    attended, _ = attention(both, attention_mask=mask, position_embeddings=position_embeddings)
    middle = hidden + attended
    inner = normed(middle, weights["post_attention_layernorm.weight"], eps)
    gate = inner @ weights["mlp.gate_proj.weight"].T
    up = inner @ weights["mlp.up_proj.weight"].T
    return middle + (nn.functional.silu(gate) * up) @ weights["mlp.down_proj.weight"].T


def read_all(head: EagleHead, texts: Sequence[list[int]], states: Sequence[Tensor]) -> list[Tensor]:
    cache = RaggedCache(len(texts), 40)
    return read(head, cache, list(range(len(texts))), texts, states)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("generation", [1, 3])
def test_a_head_computes_what_the_librarys_layers_do(generation: int, rope: str) -> None:
    head = eagle_head(target(), generation, rope_parameters=ROPES[rope])
    for norm in (m for m in head.modules() if type(m).__name__ == "Norm"):
        norm.weight.copy_(torch.rand(norm.weight.shape) + 0.5)
    hidden = torch.randn(1, 10, head.config.hidden_size)
    tokens = torch.tensor([TEXTS[0]])
    reference = first_by_the_library if generation == 1 else third_by_the_library
    expected = reference(head, tokens, hidden)[0]
    assert torch.allclose(read_all(head, TEXTS[:1], [hidden[0]])[0], expected, atol=1e-5)


def test_logits_are_the_authors() -> None:
    """EAGLE-1 applies the target's ``lm_head`` directly; EAGLE-3 its own, after its norm."""
    states = torch.randn(4, 32)
    first, third = eagle_head(target(), 1, own=False), eagle_head(target(), 3)
    assert torch.equal(first.logits(states), target().module.lm_head(states))
    assert third.norm is not None
    assert third.lm_head is not None
    assert torch.equal(third.logits(states), third.lm_head(third.norm(states)))


def test_a_small_vocabulary_stands_where_d2t_says() -> None:
    head = eagle_head(target(), draft_vocab_size=20)
    states, ids = torch.randn(3, 32), head.draft_ids
    assert ids is not None
    logits = head.logits(states)
    assert torch.equal(logits[:, ids], head.draft_logits(states))
    others = sorted(set(range(64)) - set(ids.tolist()))
    assert (logits[:, others] == float("-inf")).all()


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"norm_before_residual": True}])
@pytest.mark.parametrize("generation", [1, 3])
def test_ragged_pieces_are_the_whole(generation: int, changes: dict[str, Any]) -> None:
    """Rows of different lengths, in pieces, with drafts rolled back and rows dropped in between."""
    head = eagle_head(target(), generation, **changes)
    states = [torch.randn(len(text), 32) for text in TEXTS]
    alone = [read_all(head, [text], [state])[0] for text, state in zip(TEXTS, states, strict=True)]
    together = read_all(head, TEXTS, states)
    cache = RaggedCache(3, 20)
    firsts = [4, 1, 2]
    read(head, cache, [0, 1, 2], [t[:n] for t, n in zip(TEXTS, firsts, strict=True)],
         [s[:n] for s, n in zip(states, firsts, strict=True)])  # fmt: skip
    read(head, cache, [0, 2], [[9, 9], [8]], [torch.randn(2, 32), torch.randn(1, 32)])
    cache.lengths = firsts.copy()
    cache.close(1)
    found = read(head, cache, [2, 0], [TEXTS[2][2:], TEXTS[0][4:]], [states[2][2:], states[0][4:]])
    for one, other in zip(alone, together, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert torch.allclose(found[0], alone[2][2:], atol=1e-5)
    assert torch.allclose(found[1], alone[0][4:], atol=1e-5)


def test_a_tree_is_all_of_its_paths() -> None:
    head = eagle_head(target())
    text, text_states = TEXTS[0][:5], torch.randn(5, 32)
    parents, tokens, states = [-1, -1, 0, 1, 1], [5, 6, 7, 8, 9], torch.randn(5, 32)
    cache = RaggedCache(1, 20)
    read(head, cache, [0], [text], [text_states])
    (whole,) = read(head, cache, [0], [tokens], [states], [branches(parents, base=5)])
    for path in ([0, 2], [1, 3], [1, 4]):
        own = read_all(
            head, [text + [tokens[n] for n in path]], [torch.cat((text_states, states[path]))]
        )[0]
        assert torch.allclose(whole[path], own[5:], atol=1e-5)


def test_features_are_kept_in_order_and_nothing_is_made_up() -> None:
    kept, states = HiddenStates(), torch.randn(100, 4)
    kept.put(0, {1: states[:7], 3: -states[:7]})
    kept.put(7, {1: states[7:], 3: -states[7:]})
    assert torch.equal(kept.get([1, 3], 5, 90), torch.cat((states, -states), dim=-1)[5:90])
    with pytest.raises(ValueError, match="those of 101 do not follow"):
        kept.put(101, {1: states[:1], 3: states[:1]})
    with pytest.raises(ValueError, match="only 100 positions are known"):
        kept.get([1], 99, 101)
