"""Models on several devices, merged adapters, formats whose package is missing."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model

from cli.models_on_disk import make_target, save_model, save_tokenizer
from draftwise import DraftwiseError, Speculator
from draftwise.nn.load import load_model, load_tokenizer
from models import near_copy, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
MANY: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base"), make_target())


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes the base model's text."""
    torch.manual_seed(5)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    folder = tmp_path_factory.mktemp("adapter")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT imports a deprecated name from transformers
        get_peft_model(load_model(base).module, config).save_pretrained(folder)
    _rename_base(folder, base)
    return folder


def _rename_base(folder: Path, base: Path | None) -> None:
    file = folder / "adapter_config.json"
    told = json.loads(file.read_text("utf-8")) | {"base_model_name_or_path": base and str(base)}
    file.write_text(json.dumps(told), "utf-8")


@pytest.mark.parametrize(
    "device",
    [
        {"": "cpu"},
        "map:auto",
        {
            "model.embed_tokens": "cpu",
            "model.rotary_emb": "cpu",
            "model.layers.0": "cpu",
            "model.layers.1": "disk",
            "model.norm": "cpu",
            "lm_head": "cpu",
        },
    ],
    ids=["one", "auto", "a layer on disk"],
)
def test_a_target_spread_by_a_device_map(base: Path, device: Any) -> None:
    plain = Speculator.from_pretrained(base, [], preset="plain", device="cpu")
    made = Speculator.from_pretrained(
        base, [near_copy(plain.target.module, 0.03)], policy="fixed:1", lengths=(3,), device=device
    )
    found = made.generate([PROMPT, PROMPT[:3]], **MANY)
    expected = plain.generate([PROMPT, PROMPT[:3]], **MANY)
    assert [r.tokens for r in found] == [r.tokens for r in expected]
    assert sum(r.stats.num_accepted for r in found) > 0


def test_a_device_that_is_not_there(base: Path) -> None:
    with pytest.raises(DraftwiseError, match="it must be map: and one of auto, balanced"):
        load_model(base, device="map:nonsense")


def test_an_adapter_is_merged_and_the_base_drafts(base: Path, adapter: Path) -> None:
    made = Speculator.from_pretrained(adapter, [f"lm:{base}"], policy="fixed:1", lengths=(3,))
    assert made.tokenizer.get_vocab() == load_tokenizer(base).get_vocab()
    found = made.generate(PROMPT, **MANY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoPeftModelForCausalLM.from_pretrained(adapter).generate(
            input_ids=torch.tensor([PROMPT]), max_new_tokens=20, min_new_tokens=20, do_sample=False
        )
    assert found.tokens == theirs[0, len(PROMPT) :].tolist()
    plain = Speculator.from_pretrained(base, [], preset="plain").generate(PROMPT, **MANY)
    assert found.tokens != plain.tokens
    assert 0 < found.stats.num_accepted < found.stats.num_drafted


def test_an_adapter_of_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = tiny_model("llama", vocab_size=257, hidden_size=48)
    others = {"wide": other, "other layers": tiny_model("gpt2", vocab_size=257)}
    for name, module in others.items():
        home = tmp_path / name
        home.mkdir()
        _copy(adapter, home / "adapter")
        _rename_base(home / "adapter", save_model(home / "base", module))
        with pytest.raises(DraftwiseError, match=r"does not fit .*, the model that it names"):
            load_model(home / "adapter")


def test_an_adapter_that_names_no_model(adapter: Path, tmp_path: Path) -> None:
    _copy(adapter, tmp_path / "adapter")
    _rename_base(tmp_path / "adapter", None)
    with pytest.raises(DraftwiseError, match="names no base_model_name_or_path"):
        load_model(tmp_path / "adapter")
    _rename_base(tmp_path / "adapter", tmp_path / "gone")
    with pytest.raises(DraftwiseError, match="there is no model folder"):
        load_model(tmp_path / "adapter")


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "of_tomorrow"},
    ],
    ids=lambda config: config["quant_method"],
)
def test_quantised_checkpoints_whose_format_cannot_be_read(
    base: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    _copy(base, tmp_path / "base")
    file = tmp_path / "base" / "config.json"
    told = json.loads(file.read_text("utf-8")) | {"quantization_config": config}
    file.write_text(json.dumps(told), "utf-8")
    with pytest.raises(DraftwiseError, match=r"cannot load a causal LM from .*base: \S+"):
        load_model(tmp_path / "base")


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    if not (target / "adapter_config.json").exists():
        save_tokenizer(target)
