"""Unsupported models are refused at load with a reason: never wrong text, no traceback.

Tiny random models with memory that cannot be rolled back by position, with attention that counts
slots, with attention code that ignores custom masks, and invalid folders.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import CONFIG_MAPPING

from draftwise import DraftwiseError, Speculator
from draftwise.checks import REMOVED
from draftwise.nn import check as check_module
from draftwise.nn.attention import Masks
from draftwise.nn.load import load_model
from draftwise.nn.model import CausalModel
from draftwise.nn.tiny import tiny_config, tiny_module
from engine.pairs import reader
from models import CONFIGS, tiny_model


def build(kind: str, **changes: Any) -> Any:
    """A tiny random model of a type."""
    return tiny_module(tiny_config(CONFIG_MAPPING[kind](**changes)))


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
    with pytest.raises(DraftwiseError, match="model type mamba has been removed"):
        load_model(build("mamba"))


@pytest.mark.parametrize("kind", ["mamba2", "falcon_h1", "qwen3_next", "bamba", "lfm2"])
def test_recurrent_memory_is_served_where_the_cache_sees_it(kind: str) -> None:
    model = load_model(build(kind))
    assert model.has_states
    assert not model.serves_trees


@pytest.mark.parametrize("kind", ["recurrent_gemma", "bloom"])
def test_other_memory_and_masks_are_refused_by_running(kind: str) -> None:
    """RecurrentGemma keeps its state in the modules, where rows cannot be separated. That of
    transformers 5.17 does not take a mask for each kind of layer either."""
    with pytest.raises(DraftwiseError, match=r"cannot speculate with .* ragged KV cache"):
        load_model(build(kind))


@pytest.mark.parametrize("kind", ["gpt_neo", "llama4_text"])
def test_attention_that_counts_slots_reads_rows_alone(kind: str) -> None:
    """A causal buffer or a temperature by slot is right for one row at a time only."""
    model = load_model(build(kind))
    assert model.is_alone
    assert not model.serves_trees


def test_windows_that_no_check_reaches_are_crossed_in_a_twin() -> None:
    """Moshi's fail beyond the window alone."""
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


DAMAGED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "weights": ("model.safetensors", lambda file: file.write_bytes(b"this is not a tensor file")),
    "half": ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:2000])),
    "no weights": ("model.safetensors", Path.unlink),
    "config": ("config.json", lambda file: file.write_text('{"model_type": ')),
    "unknown": ("config.json", lambda file: file.write_text('{"model_type": "no-such-model"}')),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_folder(name: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    folder = saved(tmp_path / "llama", tiny_model())
    damage(folder / name)
    with pytest.raises(DraftwiseError, match=r"cannot load a causal LM from|is cut off or damaged"):
        load_model(folder)


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
        Speculator.from_pretrained(tiny_model(), [build("recurrent_gemma")])


def test_trees_that_nobody_can_draft_or_serve() -> None:
    with pytest.raises(DraftwiseError, match="no drafter of the pool drafts any"):
        Speculator.from_pretrained(tiny_model(), ["lookup"], trees=["4x16"])
    chains_only = build("mpt")
    small = tiny_model(vocab_size=chains_only.config.vocab_size)
    with pytest.raises(DraftwiseError, match="serves chains only"):
        Speculator.from_pretrained(chains_only, [small], trees=["4x16"])
    made = Speculator.from_pretrained(chains_only, [small, "lookup"])
    assert len(made.generate([1, 2, 3], max_new_tokens=4).tokens) == 4
