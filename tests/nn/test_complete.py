"""Checkpoints that lack weights, or have others: refused by name, never completed at random."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cli.conftest import run_command
from cli.models_on_disk import make_target, save_model
from draftwise import DraftwiseError, Speculator
from draftwise.nn.load import load_model
from models import near_copy

Weights = dict[str, Tensor]
K = "model.layers.1.self_attn.k_proj.weight"


def changed(folder: Path, change: Callable[[Weights], object], **config: Any) -> Path:
    """A saved model whose weights and config were changed."""
    save_model(folder, make_target(tie_word_embeddings=config.pop("tied", False)))
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    told = json.loads((folder / "config.json").read_text("utf-8")) | config
    (folder / "config.json").write_text(json.dumps(told), "utf-8")
    return folder


def without(*names: str) -> Callable[[Weights], object]:
    return lambda weights: [weights.pop(name) for name in names]


def having(name: str, *shape: int) -> Callable[[Weights], object]:
    return lambda weights: weights.update({name: torch.ones(shape)})


WRONG: dict[str, tuple[Callable[[Weights], object], dict[str, Any], str]] = {
    "one weight": (without(K), {}, rf"has no {K}\."),
    "a norm": (without("model.norm.weight"), {}, r"has no model\.norm\.weight"),
    "the head": (without("lm_head.weight"), {}, r"has no lm_head\.weight"),
    "a layer": (lambda _: None, {"num_hidden_layers": 3}, r"has no model\.layers\.2\.\S+, .* more"),
    "a size": (having(K, 8, 32), {}, rf"{K} has the shape \(8, 32\), .* asks for \(\d+, 32\)"),
    "a vocabulary": (
        lambda _: None,
        {"vocab_size": 300},
        r"\(257, 32\).*\(300, 32\) \(and 1",
    ),
    "a bias": (having("model.layers.0.self_attn.q_proj.bias", 32), {}, r"no place for .*q_proj\.b"),
    "a norm more": (having("model.layers.0.self_attn.q_norm.weight", 8), {}, r"place for .*q_norm"),
    "an adapter": (
        having("model.layers.0.mlp.up_proj.lora_A.x", 4, 32),
        {},
        r"place for .*lora",
    ),
    "a scale": (having("model.layers.0.mlp.up_proj.weight_scale", 1), {}, r"place for .*_scale"),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_by_the_names_of_its_weights(case: str, tmp_path: Path) -> None:
    change, config, said = WRONG[case]
    folder = changed(tmp_path / "model", change, **config)
    with pytest.raises(DraftwiseError, match=said):
        load_model(folder)


RIGHT: dict[str, tuple[Callable[[Weights], object], dict[str, Any]]] = {
    "tied": (lambda weights: weights.pop("lm_head.weight", None), {"tied": True}),
    "old tables": (having("model.layers.0.self_attn.rotary_emb.inv_freq", 4), {}),
    "a value head": (having("v_head.summary.weight", 1, 32), {}),
    "a vision tower": (having("visual.blocks.0.attn.qkv.weight", 4, 4), {}),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_may_be_absent_or_spare_is_no_fault(case: str, tmp_path: Path) -> None:
    change, config = RIGHT[case]
    folder = changed(tmp_path / "model", change, **config)
    expected = make_target(tie_word_embeddings="tied" in config)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        assert torch.equal(load_model(folder).module(ids).logits, expected(ids).logits)


def cut_up(folder: Path, num_bytes: int = 20_000) -> list[Path]:
    """The shards of a model."""
    model = make_target()
    save_model(folder, model)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size=num_bytes)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    return shards


def no_shard(folder: Path) -> str:
    shards = cut_up(folder)
    shards[1].unlink()
    return shards[1].name


def no_shard_but_in_the_index(folder: Path) -> str:
    """The index was cut down to the shards that were fetched."""
    shards, file = cut_up(folder), folder / "model.safetensors.index.json"
    index = json.loads(file.read_text("utf-8"))
    lost = [name for name, shard in index["weight_map"].items() if shard == shards[1].name]
    index["weight_map"] = {n: s for n, s in index["weight_map"].items() if n not in lost}
    file.write_text(json.dumps(index), "utf-8")
    return min(lost)


def empty_shard(folder: Path) -> str:
    shards = cut_up(folder)
    lost = min(load_file(shards[1]))
    save_file({}, shards[1], metadata={"format": "pt"})
    return lost


@pytest.mark.parametrize("damage", [no_shard, no_shard_but_in_the_index, empty_shard])
def test_shards_that_are_missing_or_empty(damage: Callable[[Path], str], tmp_path: Path) -> None:
    lost = damage(tmp_path / "model")
    with pytest.raises(DraftwiseError, match=lost):
        load_model(tmp_path / "model")


def test_all_shards_are_one_model(tmp_path: Path) -> None:
    cut_up(tmp_path / "model")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        found, expected = (
            m(ids).logits for m in (load_model(tmp_path / "model").module, make_target())
        )
    assert torch.equal(found, expected)


def test_drafters_are_refused_like_targets(tmp_path: Path) -> None:
    folder = changed(tmp_path / "drafter", without(K))
    with pytest.raises(DraftwiseError, match=f"has no {K}"):
        Speculator.from_pretrained(near_copy(make_target(), 0.1), [f"lm:{folder}"])


@pytest.mark.parametrize(
    ("command", "case"),
    [(("check",), "the head"), (("check",), "a bias"), (("generate", "hi", "-n", 2), "a size")],
)
def test_commands_refuse_it_too_and_keep_the_report_of_the_library(
    command: tuple[Any, ...], case: str, tmp_path: Path
) -> None:
    change, config, _ = WRONG[case]
    folder = changed(tmp_path / "model", change, **config)
    ran = run_command(*command, "--target", folder)
    assert ran.code == 2
    assert ran.out == ""
    assert "LOAD REPORT" in ran.err
    assert ran.err.splitlines()[-1].startswith(f"{folder} ")
