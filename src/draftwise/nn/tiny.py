"""Tiny models of any type: small sizes, one layer of each kind, windows of 3 tokens.

On such a model a few tokens exceed windows that the full model exceeds after thousands.
``draftwise models --check`` builds one of every type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

WINDOW = 3
_VOCAB = 99
_QUERIES_AND_KEYS = ("q_proj", "k_proj", "c_attn", "qkv_proj")
"""Parts of the names of query and key weights."""
_LARGEST = 6_000_000  # maximum parameters: a larger model has sizes that ``_SIZES`` lacks


def _named(*rows: tuple[int, str]) -> dict[str, int]:
    return {name: size for size, names in rows for name in names.split()}


_WINDOWS = (
    "sliding_window attention_window_size sliding_window_size attention_chunk_size window_size "
    "local_attention"
)
_SIZES = _named(
    (WINDOW, _WINDOWS),
    (12, "floor_scale log_scaling_n_floor"),
    (
        _VOCAB,
        "vocab_size unpadded_vocab_size vocab_size_per_layer_input pronunciation_vocab_size "
        "shape_vocab_size",
    ),
    (
        64,
        "hidden_size d_model n_embd emb_dim attention_hidden_size lru_width embedding_dim dim "
        "word_embed_proj_dim rotary_hidden_size hidden_dim intermediate_size ffn_dim d_inner "
        "decoder_ffn_dim encoder_ffn_dim moe_intermediate_size shared_expert_intermediate_size "
        "shared_intermediate_size ffn_hidden_size d_ff dff feed_forward_size intermediate_size_mlp "
        "dense_intermediate_size expert_ffn_hidden_size shared_experts_intermediate_size dim_ff "
        "moe_shared_expert_intermediate_size mlp_dim",
    ),
    (512, "max_position_embeddings n_positions model_max_length max_seq_len n_ctx context_length"),
    (32, "image_size patch_size"),
    (24, "qk_head_dim"),
    (
        16,
        "head_dim attention_head_dim v_head_dim linear_key_head_dim linear_value_head_dim d_head "
        "swa_head_dim kv_channels dim_head linear_head_dim global_head_dim index_head_dim "
        "hidden_size_per_layer_input kv_lora_rank q_lora_rank mamba_d_state state_size "
        "ssm_state_size qk_nope_head_dim embedding_size ngram_vocab_size_base "
        "pronunciation_embed_dim shape_embed_dim",
    ),
    (8, "qk_rope_head_dim rotary_dim laurel_rank"),
    (
        4,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads cross_attn_k "
        "encoder_attention_heads attention_heads swa_num_attention_heads linear_num_value_heads "
        "num_encoder_attention_heads num_decoder_attention_heads linear_num_heads mamba_n_heads "
        "mamba_num_heads num_experts n_routed_experts num_local_experts moe_num_experts",
    ),
    (
        2,
        "num_key_value_heads linear_num_key_heads swa_num_key_value_heads num_kv_heads "
        "num_query_groups num_hidden_layers n_layer n_layers num_layers decoder_layers "
        "encoder_layers num_blocks num_encoder_layers num_decoder_layers depth "
        "num_experts_per_tok moe_topk num_experts_per_token moe_k zero_expert_num",
    ),
    (1, "topk_group n_group num_expert_group first_k_dense_replace"),
)
_TWO = ["sliding_attention", "full_attention"]
_OWN: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"head_dim": 8} for kind in ("axk1", "deepseek_v3", "longcat_flash", "youtu")},
    **{kind: {"head_dim": 16} for kind in ("hunyuan_v1_dense", "hunyuan_v1_moe")},
    **{
        kind: {"num_kv_shared_layers": 0, "per_layer_config": {}}
        for kind in ("gemma4_text", "gemma4_unified_text")
    },
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 4]}
            for kind in _TWO
        },
        "layer_types": _TWO,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"head_dim": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "dots1": {
        **_named((4, "n_routed_experts"), (2, "num_experts_per_tok"), (1, "n_shared_experts")),
        "layer_types": _TWO,
    },
    "dots3_note": {"adapter_in_dim": 64},
    "dots3_note_text": {"per_layer_config": {}, "num_key_value_heads": 4, "head_dim": 24},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "intermediate_size": [64, 64],
        "activation_sparsity_pattern": [0.0, 0.0],
        "layer_types": _TWO,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {
        "no_rope_layers": [1, 0],
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "ministral": {"head_dim": 16, "layer_types": _TWO},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2},
    "qwen4_exp_text": _named(
        (16, "indexer_head_dim ple_embed_dim"),
        (8, "indexer_budget hc_lowrank"),
        (2, "indexer_n_heads indexer_compress_ratio hc_count heads_per_ngram"),
        (1, "indexer_kv_heads split_ngram_parts"),
    ),
    "reformer": {"axial_pos_shape": [16, 32], "axial_pos_embds_dim": [32, 32]},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {
        **_named((128, "attention_hidden_size"), (32, "attention_head_dim")),
        **_named((5, "num_hidden_layers"), (4, "num_key_value_heads")),
        **_named((32, "mamba_headdim"), (4, "n_mamba_heads")),
        "layers_block_type": ["linear_attention", "hybrid"] * 2 + ["linear_attention"],
        "hybrid_layer_ids": [1, 3],
    },
    "zaya": {"num_experts_per_tok": 1},
}
"""Per type: sizes that depend on each other, and lists by layer."""


def tiny_config(config: Any) -> Any:
    """A configuration of the same type with tiny sizes; raises what its validation raises."""
    given = config.to_dict()
    made: dict[str, Any] = {
        name: size
        for name, size in _SIZES.items()
        if isinstance(given.get(name), int) and not isinstance(given[name], bool)
    }
    if given.get("num_key_value_heads") == given.get("num_attention_heads") is not None:
        made["num_key_value_heads"] = made.get("num_attention_heads", 4)
    made.update(_layers(given))
    if "is_decoder" in given:
        made["is_decoder"] = True
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        known = given.get(name)
        if name in given and known is None:
            made[name] = None  # the type's default may lie outside the vocabulary
        if isinstance(known, (list, tuple)) or (isinstance(known, int) and known >= _VOCAB):
            made[name] = 1
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            made[name] = tiny_config(getattr(config, name))
    made.update(_OWN.get(config.model_type, {}))
    return type(config)(**{**_kept(config, given, made), **made})


def tiny_module(config: Any) -> Any:
    """A random float32 module on the CPU, always the same. Raises ValueError if it is large."""
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"it still has {size:,} parameters: nn/tiny.py does not know its sizes")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        _sharpen(module)
    return module


@torch.no_grad()
def _sharpen(module: Any) -> None:
    """Enlarge queries, keys and embeddings, so that a wrong mask changes the logits."""
    for name, weights in module.named_parameters():
        if weights.dim() == 2 and any(part in name for part in _QUERIES_AND_KEYS):
            weights.normal_(0, 0.25)
        elif weights.dim() == 2 and any(part in name for part in ("lm_head", "embed", "wte")):
            weights.normal_(0, 0.3)


def has_far_edges(config: Any) -> bool:
    given = config.to_dict()
    has_window = any(isinstance(given.get(name), int) for name in _WINDOWS.split())
    return has_window or "local" in str(given.get("attention_types"))


def _kept(config: Any, given: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Other settings that differ from the type's defaults: flags, names, ropes."""
    usual = type(config)().to_dict()
    kept: dict[str, Any] = {
        name: value
        for name, value in given.items()
        if name not in {*made, "model_type", "dtype"}
        if isinstance(value, (bool, float, str)) and value != usual.get(name)
    }
    rope = given.get("rope_parameters")
    if isinstance(rope, dict) and "rope_parameters" not in made and rope:
        kept["rope_parameters"] = _tiny_rope(rope, made)
    return kept


def _tiny_rope(rope: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The same rope for small heads."""
    found = dict(rope)
    width = made.get("head_dim") or made.get("hidden_size", 64) // 4
    half = int(width * found.get("partial_rotary_factor", 1.0)) // 2
    for name in ("short_factor", "long_factor"):
        if name in found:
            found[name] = [found[name][index % len(found[name])] for index in range(half)]
    return found


def _layers(given: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    name = "layer_types" if given.get("layer_types") else "layers_block_type"
    num = 2
    if given.get(name):
        kinds = list(dict.fromkeys(given[name]))
        made[name] = kinds if len(kinds) > 1 else kinds * 2
        made["num_hidden_layers"] = num = len(made[name])
    if given.get("mlp_layer_types"):
        made["mlp_layer_types"] = (list(dict.fromkeys(given["mlp_layer_types"])) * num)[:num]
    return made
