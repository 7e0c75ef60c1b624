"""DFlash heads: ``speculators``' files load key by key, and drafts follow from one block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwise.drafters import Context, DFlashDrafter, DraftTask
from draftwise.nn import BlockShape, DFlashHead, load_dflash_head, rotary_table, turned
from draftwise.stop_rules import Fixed
from draftwise.types import DraftwiseError, SamplingParams
from eagles import dflash_head, features_of
from engine.pairs import PROMPTS, eagle_target
from sessions import opened

TARGET = eagle_target("llama", 64)


def write(
    folder: Path, head: DFlashHead, weights: dict[str, Tensor | None], **changes: Any
) -> Path:
    """Write the head as ``speculators`` does; weights: replacements, None = left out."""
    config = head.config
    layer = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(head.layers),
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rope_parameters": config.rope_parameters,
    }
    settings = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer | changes.pop("layer", {}),
        "draft_vocab_size": config.draft_vocab_size,
        "aux_hidden_state_layer_ids": list(config.taps),
        "block_size": head.block.size,
        "mask_token_id": head.block.mask,
        "sample_from_anchor": head.block.first == 0,
    }
    folder.mkdir(exist_ok=True)
    stored = head.state_dict() | {"embed_tokens.weight": torch.zeros(64, 32)} | weights
    save_file({n: t for n, t in stored.items() if t is not None}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings | changes), "utf-8")
    return folder


def head_of(first: int = 1, **changes: Any) -> DFlashHead:
    return dflash_head(TARGET, BlockShape(5, 63, first), **changes)


def by_hand(head: DFlashHead, text: list[int]) -> Tensor:
    """[S, V] logits of a block after a text, recomputing the whole context, head by head."""
    config, size = head.config, head.block.size
    states = features_of(TARGET, text).get(config.taps, 0, len(text) - 1)
    context = head.hidden_norm(head.fc(states))
    hidden = TARGET.module.get_input_embeddings()(
        torch.tensor([text[-1]] + [head.block.mask] * (size - 1))
    )
    cos, sin = rotary_table(config, 64, head.fc.weight)
    cos, sin = (table[: len(text) - 1 + size, None] for table in (cos, sin))

    def parts(projection: Any, x: Tensor) -> Tensor:
        return projection(x).view(len(x), -1, config.head_dim)

    for layer in head.layers:
        look, normed = layer.self_attn, layer.input_layernorm(hidden)
        both = torch.cat((context, normed))
        k = turned(look.k_norm(parts(look.k_proj, both)), cos, sin)
        v = parts(look.v_proj, both)
        q = turned(look.q_norm(parts(look.q_proj, normed)), cos[-size:], sin[-size:])
        share = config.num_attention_heads // config.num_key_value_heads
        k, v = (x.repeat_interleave(share, 1) for x in (k, v))
        weights = torch.einsum("qhd,khd->hqk", q, k) * config.head_dim**-0.5
        found = torch.einsum("hqk,khd->qhd", weights.softmax(-1), v)
        hidden = hidden + look.o_proj(found.flatten(1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return head.logits(head.norm(hidden))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("size", [64, 50])
@torch.inference_mode()
def test_drafts_have_the_q_of_one_block(tmp_path: Path, size: int, first: int) -> None:
    """Heads are written, loaded, and draft for rows of different lengths, against sums by hand."""
    made = head_of(first, draft_vocab_size=size)
    head = load_dflash_head(write(tmp_path, made, {}), TARGET)
    drafter = DFlashDrafter("dflash", head, TARGET)
    assert drafter.max_length == 5 - first
    contexts = [
        Context(
            row,
            list(prompt),
            SamplingParams(1.0),
            np.random.default_rng(row),
            features=features_of(TARGET, prompt),
        )
        for row, prompt in enumerate(prompt for prompt in PROMPTS if len(prompt) > 1)
    ]
    session = opened(drafter, contexts)
    drafts = session.propose([DraftTask(context, 8, Fixed()) for context in contexts])
    for context, draft in zip(contexts, drafts, strict=True):
        expected = by_hand(made, context.tokens)[first:]
        assert len(draft.tokens) == 5 - first
        said = np.stack([draft.q(node) for node in range(len(draft.tokens))])
        assert np.allclose(said, expected.softmax(-1).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("weights", "changes", "complaint"),
    [
        ({"fc.weight": None}, {}, "lacks 'fc.weight'"),
        ({"layers.1.self_attn.k_norm.weight": None}, {}, "lacks 'layers.1.self_attn.k_norm"),
        ({"markov.weight": torch.zeros(1)}, {}, "has 'markov.weight', which has no place"),
        ({"hidden_norm.weight": torch.zeros(3)}, {}, r"has the shape \(3,\)"),
        ({}, {"speculators_model_type": "dspark"}, "is 'dspark', not 'dflash'"),
        ({}, {"mask_token_id": None}, "no 'mask_token_id'"),
        ({}, {"mask_token_id": 64}, "make no block"),
        ({}, {"aux_hidden_state_layer_ids": None}, "no 'aux_hidden_state_layer_ids'"),
        ({}, {"layer": {"layer_types": ["full_attention", "sliding_attention"]}}, "that slide"),
        ({}, {"layer": {"vocab_size": 80}}, "target of vocabulary 80, and target has 64"),
        ({"d2t": torch.zeros(50, dtype=torch.int64) - 1}, {}, "d2t does not lead to 50 different"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, weights: dict[str, Tensor | None], changes: dict[str, Any], complaint: str
) -> None:
    head = head_of(draft_vocab_size=50)
    with pytest.raises(DraftwiseError, match=complaint):
        load_dflash_head(write(tmp_path, head, weights, **changes), TARGET)
