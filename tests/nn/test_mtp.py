"""MTP heads: every family's names load key by key, into one of the target's own layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig

from draftwise.nn import CausalModel, MtpHead, MtpStyle, load_mtp_head, tiny_config, tiny_module
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError
from eagles import mtp_head

MIMO = {
    "embed_norm": "token_layernorm",
    "hidden_norm": "hidden_layernorm",
    "proj": "input_proj",
    "norm": "final_layernorm",
    "layer": "",
}
LAYOUTS: dict[str, tuple[str, dict[str, str], MtpStyle]] = {
    "speculators": ("mtp_layers.0.", MIMO, MtpStyle()),
    "mimo": ("model.mtp_layers.0.", MIMO, MtpStyle(hidden_first=True)),
    "qwen": (
        "mtp.",
        {
            "embed_norm": "pre_fc_norm_embedding",
            "hidden_norm": "pre_fc_norm_hidden",
            "proj": "fc",
            "norm": "norm",
            "layer": "layers.0",
        },
        MtpStyle(),
    ),
    "deepseek": (
        "model.layers.2.",
        {
            "embed_norm": "enorm",
            "hidden_norm": "hnorm",
            "proj": "eh_proj",
            "norm": "shared_head.norm",
            "layer": "",
        },
        MtpStyle(returns_normed=False),
    ),
}


def target_of(kind: str) -> CausalModel:
    torch.manual_seed(1)
    return CausalModel(tiny_module(tiny_config(AutoConfig.for_model(kind))), "target")


def write(
    folder: Path, target: CausalModel, layout: str, head: MtpHead, **more: Tensor | None
) -> Path:
    """A checkpoint with this head, experts one by one; ``more``: added weights, None = left out."""
    begin, names, _ = LAYOUTS[layout]
    weights: dict[str, Tensor | None] = {}
    for name, tensor in head.state_dict().items():
        first, _, rest = name.partition(".")
        stored = begin + f"{names[first]}.{rest}".removeprefix(".")
        if ".experts." in stored:
            where, _, part = stored.rpartition(".")
            for number, expert in enumerate(tensor):
                rows = {part: expert} if part == "down_proj" else {}
                if not rows:
                    rows = dict(zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True))
                for p, w in rows.items():
                    weights[f"{where}.{number}.{p}.weight"] = w.clone()
        else:
            weights[stored] = tensor
    if layout != "speculators":  # it is stored with the target's weights
        weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(1)
        weights["lm_head.weight"] = torch.zeros(1)
    weights |= more
    folder.mkdir(exist_ok=True)
    kept = {name: tensor.contiguous() for name, tensor in weights.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")
    config: dict[str, Any] = target.module.config.to_dict()
    if layout == "speculators":
        config = {"speculators_model_type": "mtp", "transformer_layer_config": config}
    (folder / "config.json").write_text(json.dumps(config, default=str), "utf-8")
    return folder


def states_of(head: MtpHead, target: CausalModel) -> Tensor:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shares = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shares)

    torch.manual_seed(3)
    hidden = torch.randn(1, 5, target.hidden_size)
    return head(torch.tensor([[1, 2, 3, 4, 5]]), hidden, torch.arange(5)[None], attend)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "glm4_moe", "deepseek_v3", "qwen3_next"])
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.inference_mode()
def test_what_was_written_is_read(tmp_path: Path, layout: str, kind: str) -> None:
    target = target_of(kind)
    head = mtp_head(target, LAYOUTS[layout][2])
    if layout == "deepseek" and target.num_layers != 2:
        pytest.skip("its layers are numbered otherwise")
    found = load_mtp_head(write(tmp_path, target, layout, head), target)
    ours, theirs = states_of(found, target), states_of(head, target)
    assert torch.equal(ours, theirs)
    assert torch.equal(found.logits(ours), head.logits(theirs))


@pytest.mark.parametrize("style", [style for _, _, style in LAYOUTS.values()], ids=[*LAYOUTS])
@torch.inference_mode()
def test_it_computes_the_formula(style: MtpStyle) -> None:
    """Against the library's own layer, with its own attention, mask and rotary positions."""
    target = target_of("llama")
    head = mtp_head(target, style)
    layer = target.module.base_model.layers[-1]
    kept = {name: weights.clone() for name, weights in layer.state_dict().items()}
    layer.load_state_dict(head.layer.state_dict())
    torch.manual_seed(3)
    hidden = torch.randn(1, 5, target.hidden_size)
    embedded = target.module.get_input_embeddings()(torch.tensor([[1, 2, 3, 4, 5]]))
    pair = [head.embed_norm(embedded), head.hidden_norm(hidden)]
    mixed = head.proj(torch.cat(pair[::-1] if style.hidden_first else pair, dim=-1))
    places = torch.arange(5)[None]
    found = layer(
        mixed,
        attention_mask=torch.ones(5, 5, dtype=torch.bool).tril()[None, None],
        position_ids=places,
        position_embeddings=target.module.base_model.rotary_emb(mixed, places),
    )
    found = found[0] if isinstance(found, tuple) else found
    layer.load_state_dict(kept)
    said = target.module.get_output_embeddings()(head.norm(found))
    states = states_of(head, target)
    assert torch.allclose(head.logits(states), said, atol=1e-5)
    drafts_on_from = head.norm(found) if style.returns_normed else found
    assert torch.allclose(states, drafts_on_from, atol=1e-5)


@torch.inference_mode()
def test_own_embeddings_and_head_are_used(tmp_path: Path) -> None:
    target = target_of("llama")
    size, vocab = target.hidden_size, target.vocab_size
    head = mtp_head(target, LAYOUTS["deepseek"][2])
    names = ("model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight")
    own = {name: torch.randn(vocab, size) for name in names}
    found = load_mtp_head(write(tmp_path, target, "deepseek", head, **own), target)
    states = states_of(found, target)
    assert not torch.allclose(states, states_of(head, target))
    expected = head.norm(states) @ own[names[1]].T
    assert torch.allclose(found.logits(states), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("layout", "more", "complaint"),
    [
        ("mimo", {"model.mtp_layers.0.input_proj.weight": None}, "lacks 'proj.weight'"),
        ("qwen", {"mtp.norm.weight": None}, "lacks 'norm.weight'"),
        ("qwen", {"mtp.other.weight": torch.zeros(1)}, "has 'other.weight', which has no place"),
        (
            "deepseek",
            {"model.layers.2.eh_proj.weight_scale_inv": torch.zeros(1)},
            "has 'proj.weight_scale_inv', which has no place",
        ),
        ("deepseek", {"model.layers.2.hnorm.weight": torch.zeros(3)}, r"shape \(3,\)"),
        ("speculators", {"lm_head.bias": torch.zeros(1)}, "has 'lm_head.bias'"),
        ("speculators", {"mtp_layers.1.final_layernorm.weight": torch.zeros(1)}, "has 2 layers"),
        ("deepseek", {"model.layers.3.enorm.weight": torch.zeros(1)}, "has 2 layers"),
    ],
)
def test_every_key_has_its_place(
    tmp_path: Path, layout: str, more: dict[str, Tensor | None], complaint: str
) -> None:
    target = target_of("llama")
    head = mtp_head(target, LAYOUTS[layout][2])
    with pytest.raises(DraftwiseError, match=complaint):
        load_mtp_head(write(tmp_path, target, layout, head, **more), target)


def test_other_targets_and_checkpoints_without_a_head(tmp_path: Path) -> None:
    target = target_of("llama")
    folder = write(tmp_path / "head", target, "qwen", mtp_head(target))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 48}))
    with pytest.raises(DraftwiseError, match="target of hidden size 48, and target has 64"):
        load_mtp_head(folder, target)
    target.module.save_pretrained(tmp_path / "plain")
    with pytest.raises(DraftwiseError, match=r"no MTP head: no model\.layers\.2\.eh_proj, mtp\.fc"):
        load_mtp_head(tmp_path / "plain", target)


def test_a_checkpoint_that_brings_its_head_drafts_with_it(tmp_path: Path) -> None:
    """``--drafter mtp`` alone loads the head from the target's folder."""
    target = target_of("qwen3")
    target.module.save_pretrained(tmp_path)
    file = write(tmp_path / "head", target, "qwen", mtp_head(target)) / "model.safetensors"
    file.rename(tmp_path / "model-mtp.safetensors")
    made = Speculator.from_pretrained(str(tmp_path), ["mtp"], preset="draftwise")
    plain = Speculator.from_pretrained(str(tmp_path), [], preset="plain")
    said = [one.generate([[5, 9, 33, 5]], max_new_tokens=12)[0] for one in (made, plain)]
    assert said[0].tokens == said[1].tokens
