"""Models in common forms: eager attention, torch dtypes, hub ids, other tokenizers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config

from cli.models_on_disk import make_target, save_model
from draftwise import DraftwiseError, Speculator
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.pool import load_drafters
from draftwise.registry import preset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("target"), make_target())


def test_a_model_with_eager_attention_only_loads_from_its_folder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
        sliding_window=12, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    speculator = Speculator(load_model(tmp_path), None, [], preset("plain"))
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    found = speculator.generate(ids, max_new_tokens=24, ignore_eos=True).tokens
    wanted = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)
    assert found == wanted[0, len(ids) :].tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"])
def test_dtypes_are_taken_as_transformers_takes_them(folder: Path, dtype: Any) -> None:
    assert load_model(folder, dtype=dtype).dtype == torch.bfloat16
    assert Speculator.from_pretrained(folder, ["lookup"], dtype=dtype).target.dtype == (
        torch.bfloat16
    )


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        (None, None),
        ("auto", "auto"),
        ("cpu", None),
        (torch.device("cpu"), "auto"),
        ({"": "cpu"}, None),
    ],
)  # fmt: skip
def test_devices_and_no_dtype_as_transformers_takes_them(
    folder: Path, dtype: Any, device: Any
) -> None:
    model = load_model(folder, dtype=dtype, device=device)
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")
    made = Speculator.from_pretrained(folder, [f"lm:{folder}"], dtype=dtype, device=device)
    assert (made.target.dtype, made.target.device.type) == (torch.float32, "cpu")


def test_devices_that_are_not_here_are_refused(folder: Path) -> None:
    for device in (True, 1.5, torch.device("meta"), ["cpu"]):
        with pytest.raises(DraftwiseError, match="unknown device"):
            load_model(folder, device=device)
    if not torch.cuda.is_available():
        for device in (0, torch.device("cuda:7")):
            with pytest.raises(DraftwiseError, match="cuda"):
                load_model(folder, device=device)


def test_hub_ids_that_cannot_be_had_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is asked once, before a target is loaded for the drafter; transformers never is."""
    asked = list[str]()

    def model_info(_: object, name: str, **__: object) -> None:
        asked.append(name)
        raise ConnectionError

    def loads(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("draftwise.speculator.load_model", loads)
    monkeypatch.setattr("draftwise.nn.load.find_adapter_config_file", loads)
    name = "nobody/nothing"
    for load in (
        partial(load_model, name), partial(load_tokenizer, name),
        partial(Speculator.from_pretrained, "zoo", f"eagle:{name}"),
        partial(Speculator.from_pretrained, "zoo", ["lookup", f"a=lm:{name}"]),
    ):  # fmt: skip
        with pytest.raises(DraftwiseError, match=f"no folder {name}, .* cannot be reached now"):
            load()
    assert asked == [name] * 4


def test_tokenizers_are_compared_wherever_a_drafter_comes_from(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = save_model(tmp_path / "other", make_target())
    text = (other / "tokenizer.json").read_text("utf-8")
    (other / "tokenizer.json").write_text(
        text.replace('"a": 64', '"a": 65').replace('"b": 65', '"b": 64'), "utf-8"
    )
    a, b = load_tokenizer(folder).get_vocab(), load_tokenizer(other).get_vocab()
    assert a != b
    target = load_model(folder)
    with pytest.raises(DraftwiseError, match="number tokens differently"):
        load_drafters([f"lm:{other}"], target, str(folder), dtype="auto", device="cpu")
    # a hub id is no folder: the tokenizer that it loads decides
    monkeypatch.setattr("draftwise.pool.load_model", lambda *_, **__: load_model(other))
    known = {"org/drafter": other, str(folder): folder}
    monkeypatch.setattr(
        "draftwise.pool.load_tokenizer", lambda name, **_: load_tokenizer(known[name])
    )
    with pytest.raises(DraftwiseError, match="number tokens differently"):
        load_drafters(["lm:org/drafter"], target, str(folder), dtype="auto", device="cpu")


def test_quantised_activations_are_said_at_load() -> None:
    model = make_target()
    load_model(model)  # no warning: warnings are errors here
    model.lm_head.weight.act_quant_kwargs = object()  # as in torchao's Int8Tensor
    with pytest.warns(UserWarning, match=r"quantises activations .* \(lm_head\)") as heard:
        load_model(model)
    assert len(heard) == 1
