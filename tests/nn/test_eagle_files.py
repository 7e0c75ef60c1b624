"""EAGLE checkpoints: the exact keys of each layout load, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwise.nn.eagle import EagleHead
from draftwise.nn.eagle_files import load_head
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError
from draftwise_lab.train.eagle import new_head
from draftwise_lab.train.save import save_head
from eagles import eagle_head
from engine.pairs import reader, target

HIDDEN, INNER, HEADS, KV, DIM, VOCAB, DRAFT = 32, 48, 4, 2, 8, 64, 20
LAYER = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rope_theta": 500000.0, "vocab_size": VOCAB,
}  # fmt: skip


def layer_shapes(prefix: str, inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * DIM, inputs),
        f"{prefix}self_attn.k_proj.weight": (KV * DIM, inputs),
        f"{prefix}self_attn.v_proj.weight": (KV * DIM, inputs),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
    }


def third_shapes(prefix: str) -> dict[str, tuple[int, ...]]:
    return layer_shapes(prefix, 2 * HIDDEN) | {
        f"{prefix}hidden_norm.weight": (HIDDEN,),
        f"{prefix}input_layernorm.weight": (HIDDEN,),
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT, HIDDEN),
    }


BIASES = {
    f"layers.0.self_attn.{name}_proj.bias": (heads * DIM,)
    for name, heads in (("q", HEADS), ("k", KV), ("v", KV))
}
EMBEDDING = {"embed_tokens.weight": (VOCAB, HIDDEN)}
SPECULATORS = {
    "draft_vocab_size": DRAFT,
    "norm_before_residual": False,
    "speculators_model_type": "eagle3",
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": LAYER,
}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], str]] = {
    "authors, EAGLE-3": (
        {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT},
        third_shapes("midlayer."),
        "d2t",
    ),
    "authors, EAGLE-3 with embeddings": (
        {**LAYER, "draft_vocab_size": DRAFT, "target_hidden_size": HIDDEN},
        third_shapes("midlayer.") | EMBEDDING,
        "d2t",
    ),
    "authors, EAGLE-1": (
        {**LAYER, "architectures": ["LlamaForCausalLM"], "bias": False},
        layer_shapes("layers.0.", HIDDEN) | EMBEDDING | {"fc.weight": (HIDDEN, 2 * HIDDEN)},
        "",
    ),
    "authors, EAGLE-1 with biases, for Qwen": (
        {**LAYER, "model_type": "qwen2", "bias": True},
        layer_shapes("layers.0.", HIDDEN)
        | BIASES
        | {"fc.weight": (HIDDEN, 2 * HIDDEN), "fc.bias": (HIDDEN,)},
        "",
    ),
    "speculators, EAGLE-3": (SPECULATORS, third_shapes("layers.0.") | EMBEDDING, "d2t"),
    "vLLM's names of speculators, EAGLE-3": (
        SPECULATORS,
        third_shapes("layers.0."),
        "draft_id_to_target_id",
    ),
    "speculators, EAGLE-3 with Qwen3's layer": (
        {**SPECULATORS, "transformer_layer_config": {**LAYER, "model_type": "qwen3"}},
        third_shapes("layers.0.")
        | {f"layers.0.self_attn.{name}_norm.weight": (DIM,) for name in "qk"},
        "d2t",
    ),
    "speculators, EAGLE-1": (
        {
            "speculators_model_type": "eagle",
            "fusion_bias": False,
            "layernorms": False,
            "transformer_layer_config": LAYER,
        },
        layer_shapes("transformer.", HIDDEN) | {"fusion_fc.weight": (HIDDEN, 2 * HIDDEN)},
        "",
    ),
}
ALL = pytest.mark.parametrize("layout", LAYOUTS)


def checkpoint(layout: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A random checkpoint with exactly this layout's keys."""
    settings, shapes, offsets = LAYOUTS[layout]
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    if offsets:
        ids = torch.randperm(VOCAB, generator=generator)[:DRAFT].sort().values
        weights[offsets] = ids - torch.arange(DRAFT)
        weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
        weights["t2d"][ids] = True
    return dict(settings), weights


def write(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(weights, folder / "model.safetensors")
    return folder


@ALL
def test_every_layout_loads(layout: str, tmp_path: Path) -> None:
    settings, weights = checkpoint(layout)
    head = load_head(write(tmp_path, settings, weights), target())
    is_third = "EAGLE-3" in layout
    assert head.config.generation == (3 if is_third else 1)
    assert head.config.taps == ((0, 1, 2) if is_third else (2,))
    assert head.config.rope_parameters["rope_theta"] == 500000.0
    assert head.config.rms_norm_eps == 1e-5
    stored = {tuple(t.shape): t for n, t in weights.items() if n != "t2d"}
    for name, ours in head.state_dict().items():
        assert tuple(ours.shape) in stored, name
    if is_third:
        ids = torch.arange(VOCAB)[weights["t2d"]]
        assert torch.equal(head.draft_ids, ids)
    embedding = weights.get("embed_tokens.weight", target().module.get_input_embeddings().weight)
    assert torch.equal(head.embed(torch.tensor([5, 9])), embedding[[5, 9]])
    if not is_third:
        states = torch.randn(2, HIDDEN)
        assert torch.equal(head.logits(states), target().module.lm_head(states))


@ALL
def test_every_missing_or_unmatched_key_is_named(layout: str, tmp_path: Path) -> None:
    settings, weights = checkpoint(layout)
    for name in weights.keys() - {"t2d", "embed_tokens.weight"}:
        if "bias" in name or "q_norm" in name:
            continue  # optional: the checkpoint decides
        rest = {key: tensor for key, tensor in weights.items() if key != name}
        ending = "d2t" if "target_id" in name else name.split(".", 2)[-1]
        with pytest.raises(DraftwiseError, match=rf"lacks .*{ending}"):
            load_head(write(tmp_path, settings, rest), target())
    weights["layers.1.mlp.up_proj.weight"] = torch.zeros(2)
    with pytest.raises(
        DraftwiseError, match=r"has layers.1.mlp.up_proj.weight, which has no place"
    ):
        load_head(write(tmp_path, settings, weights), target())


OF_ANOTHER_TARGET: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 16}, "target of hidden size 16, and target has 32"),
    ({"vocab_size": 65}, "target of vocabulary 65, and target has 64"),
    ({"intermediate_size": 47}, r"gate_proj.weight has the shape \(48, 32\), .* \(47, 32\)"),
    ({"num_hidden_layers": 2}, "head with 2 layers"),
    ({"hidden_size": None}, "no 'hidden_size'"),
]


@ALL
def test_a_head_for_another_target_is_refused(layout: str, tmp_path: Path) -> None:
    for changes, complaint in OF_ANOTHER_TARGET:
        settings, weights = checkpoint(layout)
        inner = settings.get("transformer_layer_config")
        settings |= {"transformer_layer_config": {**inner, **changes}} if inner else changes
        settings.pop("target_hidden_size", None)
        with pytest.raises(DraftwiseError, match=complaint):
            load_head(write(tmp_path, settings, weights), target())


def test_variants_and_offsets_that_are_not_served(tmp_path: Path) -> None:
    settings, weights = checkpoint("speculators, EAGLE-3")
    for changes, complaint in (
        ({"norm_before_fc": True}, "norm_before_fc, which is not served"),
        ({"speculators_model_type": "medusa"}, "kind 'medusa'; served: eagle, eagle3"),
    ):
        with pytest.raises(DraftwiseError, match=complaint):
            load_head(write(tmp_path, settings | changes, weights), target())
    for broken in (weights["d2t"] + VOCAB, torch.zeros(DRAFT, dtype=torch.int64)):
        broken = broken.clone()
        broken[1] = broken[0] - 1  # the same token twice
        with pytest.raises(DraftwiseError, match="d2t does not lead to 20 different tokens below"):
            load_head(write(tmp_path, settings, {**weights, "d2t": broken}), target())


def test_the_whole_vocabulary_needs_no_offsets(tmp_path: Path) -> None:
    settings, weights = checkpoint("authors, EAGLE-3")
    settings["draft_vocab_size"] = VOCAB
    weights["lm_head.weight"] = torch.randn(VOCAB, HIDDEN)
    weights["d2t"] = torch.zeros(VOCAB, dtype=torch.int64)
    assert load_head(write(tmp_path, settings, weights), target()).draft_ids is None
    for name in ("d2t", "t2d", "lm_head.weight"):
        del weights[name]
    borrowing = load_head(write(tmp_path, settings, weights), target())
    assert borrowing.logits(torch.randn(1, HIDDEN)).shape == (1, VOCAB)


def test_taps_and_rotary_settings_of_the_config(tmp_path: Path) -> None:
    """The head's own settings take precedence; without rotary settings the target's are used."""
    settings, weights = checkpoint("authors, EAGLE-3")
    settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 0, 0]}  # outputs: SGLang
    del settings["rope_theta"]
    deep = CausalModel(reader(rope_parameters={"rope_type": "default", "rope_theta": 7.0}), "deep")
    head = load_head(write(tmp_path, settings, weights), deep)
    assert head.config.taps == (1, 1, 2)
    assert head.config.rope_parameters == {"rope_type": "default", "rope_theta": 7.0}
    settings["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]  # inputs: vLLM, which takes precedence
    assert load_head(write(tmp_path, settings, weights), deep).config.taps == (0, 1, 2)
    settings |= {"rope_theta": 9.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    head = load_head(write(tmp_path, settings, weights), deep)
    assert head.config.rope_parameters == {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0}


def test_a_pickled_checkpoint_loads_too(tmp_path: Path) -> None:
    settings, weights = checkpoint("authors, EAGLE-1")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert load_head(tmp_path, target()).config.generation == 1


def test_what_is_no_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match=r"no EAGLE head in \./gone"):
        load_head("./gone", target())
    with pytest.raises(DraftwiseError, match=r"no config\.json"):
        load_head(tmp_path, target())
    (tmp_path / "config.json").write_text(json.dumps(LAYER))
    with pytest.raises(DraftwiseError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load_head(tmp_path, target())
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DraftwiseError, match="cannot be read as weights"):
        load_head(tmp_path, target())


HEADS_TO_SAVE: dict[str, dict[str, Any]] = {
    "third": {"draft_vocab_size": DRAFT},
    "third, whole vocabulary": {"own": False},
    "third, variants": {"qk_norm": True, "norm_before_residual": True, "taps": (0, 0, 1)},
    "third, biases": {"fc_bias": True, "attention_bias": True, "mlp_bias": True},
}


@pytest.mark.parametrize("layout", ["authors", "speculators"])
@pytest.mark.parametrize("kind", HEADS_TO_SAVE)
def test_what_is_saved_is_what_was_there(kind: str, layout: str, tmp_path: Path) -> None:
    head = eagle_head(target(), **HEADS_TO_SAVE[kind])
    save_head(head, tmp_path, layout=layout, verifier="some/target")
    again = load_head(tmp_path, target())
    assert same_config(head, again)
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_first_head_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match="EAGLE-1 heads can be read, and not written"):
        save_head(eagle_head(target(), 1), tmp_path)
    assert not [*tmp_path.iterdir()]


def same_config(one: EagleHead, other: EagleHead) -> bool:
    return bool(one.config.to_dict() == other.config.to_dict())


@pytest.mark.parametrize("is_fast", [True, False])
@torch.no_grad()
def test_a_file_in_bfloat16_stays_so_where_that_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """Beside a target in float32 on a CPU with the instructions; logits are the target's dtype."""
    monkeypatch.setattr("draftwise.nn.eagle_files.multiplies_bfloat16", lambda: is_fast)
    half, single = torch.bfloat16, torch.float32
    ids = torch.arange(0, VOCAB, 2)
    for name, head in {
        "own": eagle_head(target(), draft_vocab_size=DRAFT),
        "lent": new_head(target().module, ids, seed=0, lends=True),
        "of the target": eagle_head(target(), own=False),
    }.items():
        for dtype in (half, single):
            save_head(head, tmp_path / f"{name}-{dtype}", dtype=dtype)
            loaded = load_head(tmp_path / f"{name}-{dtype}", target())
            is_half = is_fast and dtype == half and name != "of the target"
            assert loaded.dtype == (half if is_half else single), (name, dtype)
            states = torch.randn(2, loaded.config.hidden_size)
            assert loaded.fuse(torch.randn(2, loaded.fc.in_features)).dtype == loaded.dtype
            logits = loaded.draft_logits(states.to(loaded.dtype))
            assert logits.dtype == single
            close = 0.05 if is_half else 1e-2 if dtype == half else 1e-5
            assert torch.allclose(logits, head.draft_logits(states), atol=close, rtol=close)
    assert (
        load_head(tmp_path / f"own-{half}", CausalModel(reader().half(), "t")).dtype == torch.half
    )


def test_saved_names_are_those_that_others_read(tmp_path: Path) -> None:
    head = eagle_head(target(), draft_vocab_size=DRAFT)
    save_head(head, tmp_path / "a", dtype=torch.float16)
    save_head(head, tmp_path / "s", layout="speculators")
    authors, speculators = (load_file(tmp_path / x / "model.safetensors") for x in "as")
    assert authors.keys() == third_shapes("midlayer.").keys() | EMBEDDING.keys() | {"d2t", "t2d"}
    assert speculators.keys() == third_shapes("layers.0.").keys() | EMBEDDING.keys() | {
        "d2t",
        "t2d",
    }
    assert authors["fc.weight"].dtype == torch.float16
    assert authors["t2d"].sum() == DRAFT
    with pytest.raises(DraftwiseError, match="unknown layout 'gguf'"):
        save_head(head, tmp_path, layout="gguf")
