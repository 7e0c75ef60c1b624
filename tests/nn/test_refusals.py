"""Unsupported models are refused at load with a reason: never wrong text, no traceback.

Tiny random models with memory that cannot be rolled back by position, with attention that counts
slots, with attention code that ignores custom masks, and invalid folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from draftwise import DraftwiseError, Speculator
from draftwise.checks import REMOVED
from draftwise.nn import (
    CausalModel,
    Masks,
    check_model,
    load_model,
    load_tokenizer,
    tiny_config,
    tiny_module,
)
from engine.pairs import reader
from models import CONFIGS, tiny_model
from modules import module_of

check_module = module_of(check_model)

NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **NO_TOKENS,
}
SMALL_STATE: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}

RECURRENT: dict[str, Callable[[], Any]] = {
    "mamba2": lambda: hf.Mamba2Config(
        **SMALL_STATE, state_size=8, num_heads=4, head_dim=16, n_groups=1, **NO_TOKENS
    ),
    "falcon-h1": lambda: hf.FalconH1Config(
        **SIZE,
        head_dim=8,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    "qwen3-next": lambda: hf.Qwen3NextConfig(
        **{**SIZE, "num_hidden_layers": 4},
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    "recurrent-gemma": lambda: hf.RecurrentGemmaConfig(
        **{**SMALL_STATE, "num_hidden_layers": 3},
        num_attention_heads=4,
        intermediate_size=64,
        lru_width=32,
        attention_window_size=16,
        **NO_TOKENS,
    ),
    "bamba": lambda: hf.BambaConfig(
        **SIZE,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
    ),
    "lfm2": lambda: hf.Lfm2Config(**SIZE, layer_types=["conv", "full_attention"]),
}
BY_SLOT: dict[str, Callable[[], Any]] = {
    "bloom": lambda: hf.BloomConfig(
        vocab_size=64, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    ),
    "gpt-neo": lambda: hf.GPTNeoConfig(
        vocab_size=64,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        bos_token_id=None,
        eos_token_id=None,
    ),
    "llama4": lambda: hf.Llama4TextConfig(
        **SIZE, head_dim=8, attention_chunk_size=8, num_local_experts=2, intermediate_size_mlp=64
    ),
}


def build(config: Any) -> Any:
    torch.manual_seed(0)
    return hf.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    "kind", [key.removeprefix("model type ") for key in REMOVED if key.startswith("model type ")]
)
def test_types_that_left_are_refused(kind: str) -> None:
    """An object, whose type nothing but its configuration tells."""
    module = tiny_model()
    module.config.model_type = kind
    with pytest.raises(DraftwiseError, match=f"^model type {kind} has been removed: take a model"):
        load_model(module)


def test_a_recurrent_layer_that_left_is_refused() -> None:
    config = hf.MambaConfig(**SMALL_STATE, state_size=4, **NO_TOKENS)
    with pytest.raises(DraftwiseError, match="model type mamba has been removed"):
        load_model(build(config))


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_memory_is_served_where_the_cache_sees_it(kind: str) -> None:
    """RecurrentGemma keeps its state in the modules, where rows cannot be separated. That of
    transformers 5.17 does not take a mask for each kind of layer either."""
    if kind == "recurrent-gemma":
        with pytest.raises(DraftwiseError, match="on a ragged KV cache"):
            load_model(build(RECURRENT[kind]()))
    else:
        model = load_model(build(RECURRENT[kind]()))
        assert model.has_states
        assert not model.serves_trees


def test_attention_that_takes_no_masks_of_ours_is_refused_by_running() -> None:
    with pytest.raises(DraftwiseError, match=r"cannot speculate with .* ragged KV cache"):
        load_model(build(BY_SLOT["bloom"]()))


@pytest.mark.parametrize("kind", ["gpt-neo", "llama4"])
def test_attention_that_counts_slots_reads_rows_alone(kind: str) -> None:
    """A causal buffer or a temperature by slot is right for one row at a time only."""
    model = load_model(build(BY_SLOT[kind]()))
    assert model.is_alone
    assert not model.serves_trees


def test_windows_that_no_check_reaches_are_crossed_in_a_twin() -> None:
    """GPT-Neo's local layers fail with several rows, Moshi's always; both beyond the window."""
    far = hf.GPTNeoConfig(
        vocab_size=64,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=256,
    )
    assert load_model(build(far)).is_alone
    config = tiny_config(hf.MoshiConfig())
    config.sliding_window = 300
    with pytest.raises(DraftwiseError, match="a tiny twin of it: its logits"):
        load_model(tiny_module(config))


def test_weights_that_are_not_finite() -> None:
    module = tiny_model()
    with torch.no_grad():
        module.model.layers[1].mlp.down_proj.weight[3, 4] = float("nan")
    with pytest.raises(DraftwiseError, match=r"layers\.1\.mlp\.down_proj\.weight is not finite"):
        load_model(module)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_models_pass(kind: str, attention: str) -> None:
    assert load_model(reader(kind, attention=attention)).vocab_size == 64


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_self_check_sees_a_wrong_mask(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Masks._as_bias
    monkeypatch.setattr(
        Masks, "_as_bias", lambda self, allowed: sound(self, torch.ones_like(allowed))
    )
    with pytest.raises(DraftwiseError, match="are off by"):
        check_module.check_model(CausalModel(reader(kind), kind))


@pytest.mark.parametrize("attention", ["flex_attention", "flash_attention_2"])
def test_attention_that_takes_no_masks_is_refused(attention: str) -> None:
    model = tiny_model()
    model.config._attn_implementation = attention
    with pytest.raises(DraftwiseError, match="takes no masks of our own; load it with"):
        load_model(model)


def saved(folder: Path, model: Any) -> Path:
    model.save_pretrained(folder)
    return folder


def test_a_recurrent_folder_is_served(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", build(RECURRENT["mamba2"]()))
    assert load_model(folder).has_states


def test_a_folder_whose_attention_is_eager_only(tmp_path: Path) -> None:
    config = hf.GptOssConfig(
        **SIZE, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4
    )
    model = load_model(saved(tmp_path / "model", build(config)))
    assert model.module.config._attn_implementation == "eager"


def test_a_saved_model_loads(tmp_path: Path) -> None:
    folder = saved(tmp_path / "llama", tiny_model())
    assert load_model(folder, dtype="float32", device="cpu").vocab_size == 64


@pytest.mark.parametrize("source", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all"])
def test_a_missing_folder(source: str) -> None:
    for load in (load_model, load_tokenizer):
        with pytest.raises(DraftwiseError, match="there is no model folder"):
            load(source)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match=r"no config\.json"):
        load_model(tmp_path)


def damaged_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"this is not a tensor file")


def truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damaged_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def unknown_kind(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))


@pytest.mark.parametrize(
    "damage", [damaged_weights, truncated_weights, no_weights, damaged_config, unknown_kind]
)
def test_a_damaged_folder(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = saved(tmp_path / "llama", tiny_model())
    damage(folder)
    with pytest.raises(DraftwiseError, match=r"cannot load a causal LM from|is cut off or damaged"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["float31", "nn"])
def test_an_unknown_dtype(dtype: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "llama", tiny_model())
    with pytest.raises(DraftwiseError, match="the dtypes are: auto, float32, bfloat16, float16"):
        load_model(folder, dtype=dtype)


def test_a_drafter_that_is_a_bare_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path / "llama", tiny_model())
    with pytest.raises(DraftwiseError, match=f"write lm:{folder}"):
        Speculator.from_pretrained(tiny_model(), [str(folder)])


def test_plain_decoding_loads_no_drafter_by_default() -> None:
    assert not Speculator.from_pretrained(tiny_model(), preset="plain").drafters
    assert Speculator.from_pretrained(tiny_model(), preset="plain", lengths=[2]).drafters


def test_a_drafter_with_another_vocabulary() -> None:
    with pytest.raises(DraftwiseError, match=r"logits for 48 tokens and target .* for 64"):
        Speculator.from_pretrained(tiny_model(), [tiny_model(vocab_size=48)])


def test_unfit_drafters_are_refused_like_targets() -> None:
    with pytest.raises(DraftwiseError, match=r"RecurrentGemmaForCausalLM: .* on a ragged KV cache"):
        Speculator.from_pretrained(tiny_model(), [build(RECURRENT["recurrent-gemma"]())])


def test_trees_that_nobody_can_draft_or_serve() -> None:
    with pytest.raises(DraftwiseError, match="no drafter of the pool drafts any"):
        Speculator.from_pretrained(tiny_model(), ["lookup"], trees=["4x16"])
    config = hf.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=64, max_seq_len=128)
    config._attn_implementation = "eager"
    chains_only = build(config)
    with pytest.raises(DraftwiseError, match="serves chains only"):
        Speculator.from_pretrained(chains_only, [tiny_model()], trees=["4x16"])
    with pytest.raises(DraftwiseError, match="serves chains only"):
        Speculator.from_pretrained(chains_only, [tiny_model(), "lookup"], policy="draft-all")
    made = Speculator.from_pretrained(chains_only, [tiny_model(), "lookup"])
    assert len(made.generate([1, 2, 3], max_new_tokens=4).tokens) == 4
