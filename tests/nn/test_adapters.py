"""Adapters with tokens of their own, and from the hub: served as PEFT serves them, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from cli.models_on_disk import VOCAB, make_target, save_model
from draftwise import DraftwiseError, Speculator
from draftwise.nn.load import load_model, load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT's, about embeddings that it saves
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
QUIET: dict[str, Any] = {"task_type": "CAUSAL_LM", "r": 4, "init_lora_weights": False}


def a_base(folder: Path, *, tied: bool = False) -> Path:
    return save_model(folder, make_target(tie_word_embeddings=tied))


def an_adapter(
    base: Path, folder: Path, num_tokens: int = 0, rows: int | None = None, **changes: Any
) -> Path:
    """An adapter whose tokenizer has ``num_tokens`` more than its base, and all weights random.

    rows: of its embeddings; None = as many as it has tokens.
    """
    torch.manual_seed(5)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([f"<|{number}|>" for number in range(num_tokens)])
    model = AutoModelForCausalLM.from_pretrained(base)
    if num_tokens or rows:
        model.resize_token_embeddings(rows or len(tokenizer))
    config = LoraConfig(**{**QUIET, "target_modules": ["q_proj", "v_proj"], **changes})
    peft_model = get_peft_model(model, config)
    with torch.no_grad():
        for name, weight in peft_model.named_parameters():
            if "modules_to_save.default" in name or "trainable_tokens_delta" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    peft_model.save_pretrained(folder)
    if num_tokens:
        tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(module: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    return module(ids).logits


BOTH = {"modules_to_save": ["embed_tokens", "lm_head"]}
TRAINED = {"trainable_token_indices": {"embed_tokens": [VOCAB, VOCAB + 1]}}


@pytest.mark.parametrize(
    ("num_tokens", "tied", "changes"),
    [
        (1, False, BOTH),
        (40, False, BOTH),
        (2, True, {"modules_to_save": ["embed_tokens"]}),
        (2, True, TRAINED),
        (3, False, {"target_modules": ["q_proj", "lm_head", "embed_tokens"]}),
        (0, False, BOTH),
        (0, True, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
        (0, True, {"target_modules": ["lm_head"]}),
        (0, True, {"target_modules": ["q_proj", "embed_tokens"]}),
        (0, True, {"modules_to_save": ["lm_head"]}),
        (0, False, {"use_dora": True}),
        (0, True, {"trainable_token_indices": [4, 9]}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_it_is_merged_as_peft_applies_it(
    tmp_path: Path, num_tokens: int, tied: bool, changes: dict[str, Any]
) -> None:
    base = a_base(tmp_path / "base", tied=tied)
    folder = an_adapter(base, tmp_path / "adapter", num_tokens, **changes)
    ids = torch.cat([IDS, torch.tensor([[VOCAB - 1 + num_tokens]])], 1)
    theirs = logits(AutoPeftModelForCausalLM.from_pretrained(folder), ids)
    made = Speculator.from_pretrained(folder, ["lookup"])
    assert theirs.shape[-1] == made.target.vocab_size == VOCAB + num_tokens
    torch.testing.assert_close(logits(made.target.module, ids), theirs, atol=1e-4, rtol=1e-4)
    assert len(made.tokenizer) == VOCAB + num_tokens
    plain = Speculator.from_pretrained(folder, [], preset="plain")
    assert made.generate(IDS[0], max_new_tokens=8).tokens == (
        plain.generate(IDS[0], max_new_tokens=8).tokens
    )


@pytest.mark.parametrize("tokenizer", ["the adapter's", "the base's"])
def test_its_weights_say_how_many_rows_it_has(tmp_path: Path, tokenizer: str) -> None:
    """Embeddings are often padded to a multiple, and the tokenizer need not be in the folder."""
    base = a_base(tmp_path / "base")
    folder = an_adapter(base, tmp_path / "adapter", 3, 320, **BOTH)
    if tokenizer == "the base's":
        for file in [*folder.glob("token*"), *folder.glob("special*")]:
            file.unlink()
    saved = load_file(folder / "adapter_model.safetensors")
    head = saved["base_model.model.lm_head.weight"]
    module = load_model(folder).module
    assert torch.equal(module.get_output_embeddings().weight, head)
    assert module.config.vocab_size == 320
    assert len(load_tokenizer(folder)) == VOCAB + 3 * (tokenizer == "the adapter's")


def test_a_base_that_is_padded_keeps_its_rows(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", make_target(vocab_size=300))
    folder = an_adapter(base, tmp_path / "adapter", 2, 300, r=2)
    assert load_model(folder).vocab_size == 300
    assert len(load_tokenizer(folder)) == VOCAB + 2


def test_rows_that_nobody_trained_are_refused_by_layer_and_token(tmp_path: Path) -> None:
    """The library draws them at random."""
    base = a_base(tmp_path / "base")
    folder = an_adapter(base, tmp_path / "adapter", 2, modules_to_save=["embed_tokens"])
    change_weights(folder, lambda name: "lm_head" not in name)
    with pytest.raises(DraftwiseError, match=f"no weights of lm_head for {VOCAB}, {VOCAB + 1}:"):
        load_model(folder)


def change_weights(folder: Path, keep: Callable[[str], bool], **more: torch.Tensor) -> None:
    file = folder / "adapter_model.safetensors"
    weights = {name: weight for name, weight in load_file(file).items() if keep(name)}
    save_file(weights | more, file)


def test_weights_that_are_missing_are_refused_and_spare_ones_are_said(tmp_path: Path) -> None:
    base = a_base(tmp_path / "base")
    folder = an_adapter(base, tmp_path / "adapter")
    spare = "base_model.model.model.layers.1.self_attn.o_proj.lora_A.weight"
    change_weights(folder, lambda name: True, **{spare: torch.zeros(4, 32)})
    with pytest.warns(UserWarning, match=f"{spare} fit no layer"):
        load_model(folder)
    change_weights(folder, lambda name: "layers.1.self_attn.q_proj.lora_B" not in name)
    with pytest.raises(DraftwiseError, match=r"missing adapter keys.*layers\.1\.self_attn\.q_proj"):
        load_model(folder)


def set_config(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), "utf-8")


def test_what_cannot_be_merged_says_why(tmp_path: Path) -> None:
    base = a_base(tmp_path / "base")
    prefix = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, prefix).save_pretrained(tmp_path / "prefix")
    with pytest.raises(DraftwiseError, match="type PREFIX_TUNING: it adds virtual tokens"):
        load_model(tmp_path / "prefix")
    folder = an_adapter(base, tmp_path / "late", alora_invocation_tokens=[4, 5])
    with pytest.raises(DraftwiseError, match=r"begins at its invocation tokens"):
        load_model(folder)


def test_an_adapter_of_an_adapter(tmp_path: Path) -> None:
    base = a_base(tmp_path / "base")
    first = an_adapter(base, tmp_path / "first", 2, **BOTH)
    torch.manual_seed(1)
    middle = load_model(first).module
    config = LoraConfig(**QUIET, target_modules=["o_proj"])
    get_peft_model(middle, config).save_pretrained(tmp_path / "second", save_embedding_layers=False)
    set_config(tmp_path / "second", base_model_name_or_path=str(first))
    theirs = logits(middle)
    torch.testing.assert_close(logits(load_model(tmp_path / "second").module), theirs)
    assert len(load_tokenizer(tmp_path / "second")) == VOCAB + 2
    set_config(first, base_model_name_or_path=str(first))
    with pytest.raises(DraftwiseError, match="names itself"):
        load_model(first)


def test_a_base_that_moved_names_the_adapter_and_the_file(tmp_path: Path) -> None:
    folder = an_adapter(a_base(tmp_path / "base"), tmp_path / "adapter")
    set_config(folder, base_model_name_or_path="../base")
    for load in (load_model, load_tokenizer):
        with pytest.raises(DraftwiseError, match=rf"{folder} names .*\.\./base\b.* {folder}/ad"):
            load(folder)


def test_weights_in_a_bin_file_are_read(tmp_path: Path) -> None:
    folder = an_adapter(a_base(tmp_path / "base"), tmp_path / "adapter")
    expected = logits(load_model(folder).module)
    weights = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(weights, folder / "adapter_model.bin")
    assert torch.equal(logits(load_model(folder).module), expected)
    torch.save({name: Path for name in weights}, folder / "adapter_model.bin")  # code, not tensors
    with pytest.raises(DraftwiseError, match=r"weights_only|Unsupported"):
        load_model(folder)


def in_the_hub(cache: Path, name: str, revisions: dict[str, Path]) -> None:
    """Put folders into the hub's cache, by the name of their branch."""
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    for number, (branch, folder) in enumerate(revisions.items()):
        commit = f"{number + 1:040d}"
        (home / "refs" / branch).write_text(commit)
        (home / "snapshots").mkdir(exist_ok=True)
        folder.rename(home / "snapshots" / commit)


def test_names_and_revisions_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter on the hub, on a base there, at the branch that it was trained on."""
    old, new = (save_model(tmp_path / name, make_target(seed)) for seed, name in enumerate("ab"))
    adapter = an_adapter(old, tmp_path / "adapter")
    expected = logits(load_model(adapter).module)
    set_config(adapter, base_model_name_or_path="us/base", revision="v1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    in_the_hub(tmp_path / "hub", "us/base", {"main": new, "v1": old})
    assert torch.equal(logits(load_model(adapter).module), expected)
    in_the_hub(tmp_path / "hub", "us/adapter", {"main": adapter})
    made = Speculator.from_pretrained("us/adapter", ["lookup"])
    assert torch.equal(logits(made.target.module), expected)
    assert len(made.tokenizer) == VOCAB
