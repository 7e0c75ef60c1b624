"""Malicious files: none of their code runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.models_on_disk import make_target, save_model
from draftwise.engine.deciders import SharedPolicyState
from draftwise.files import check_size, read_text, strict_json
from draftwise.nn.eagle_files import read_weights
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.registry import make_policy
from draftwise.types import PLAIN, DraftwiseError
from draftwise_lab.train.head import load as load_acceptance_head

CODE = "from pathlib import Path\nPath({!r}).touch()\n"


class Payload:
    """Creates a folder when unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self._mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A folder that hostile code would create."""
    return tmp_path / "ran"


def test_the_payload_works(mark: Path, tmp_path: Path) -> None:
    """The payload runs when loaded as a pickle, so the tests below can fail."""
    torch.save({"a": Payload(mark)}, tmp_path / "x.bin")
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert mark.exists()


def test_a_model_whose_weights_are_a_pickle(mark: Path, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_target())
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Payload(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(DraftwiseError, match="cannot load"):
        load_model(folder)
    assert not mark.exists()


def test_heads_that_are_pickles(mark: Path, tmp_path: Path) -> None:
    torch.save({"layers.0.weight": Payload(mark)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DraftwiseError, match="cannot be read as weights"):
        read_weights([tmp_path / "pytorch_model.bin"])
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(DraftwiseError, match="cannot be read as weights"):
        load_acceptance_head(tmp_path)
    assert not mark.exists()


def test_a_model_that_brings_code(mark: Path, tmp_path: Path) -> None:
    """For known and unknown model types, and for a folder's custom generation code."""
    folder = save_model(tmp_path / "model", make_target())
    for name in ("modeling.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(CODE.format(str(mark)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"}
    (folder / "config.json").write_text(json.dumps(config))
    load_model(folder)  # a known type: the library's own code is used
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "unheard-of"}))
    with pytest.raises(DraftwiseError, match="which is not run here"):
        load_model(folder)
    assert not mark.exists()


def test_a_tokenizer_that_brings_code(mark: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizing.py").write_text(CODE.format(str(mark)))
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["tokenizing.Tokenizer", null]}}'
    )
    with pytest.raises(DraftwiseError, match="which is not run here"):
        load_tokenizer(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_shards_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", make_target())
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(DraftwiseError, match="not in its folder"):
        load_model(folder)
    index.write_text("[" * 100_000)
    with pytest.raises(DraftwiseError, match="no list of shards"):
        load_model(folder)


STATES = {
    "deep": "[" * 200_000,
    "not a number": '{"draftwise": NaN}',
    "twice": '{"draftwise": 1, "draftwise": 1}',
    "infinite": '{"draftwise": 1e999}',
    "negative infinity": '{"draftwise": -1e999}',
    "400 digits": '{"draftwise": %s}' % ("9" * 400),
    "a list": "[]",
    "no text": "\x00\x01",
}


@pytest.mark.parametrize("text", STATES.values(), ids=STATES)
def test_state_files_are_read_strictly(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    memory = SharedPolicyState("session", make_policy("goodput", 1, plans=[PLAIN]), "goodput")
    with pytest.raises(DraftwiseError, match="cannot load"):
        memory.load(tmp_path / "state.json")


def test_files_are_bounded(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large.json", tmp_path / "pipe"
    with large.open("wb") as file:
        file.truncate(1 << 40)  # a sparse terabyte
    os.mkfifo(pipe)
    memory = SharedPolicyState("session", make_policy("goodput", 1, plans=[PLAIN]), "goodput")
    for path, why in ((large, "the most that is read"), (pipe, "no plain file")):
        with pytest.raises(DraftwiseError, match=why):
            memory.load(path)
    with pytest.raises(ValueError, match="no plain file"):
        read_text(Path("/dev/zero"), 10)
    large.unlink()
    with pytest.raises(FileNotFoundError):
        check_size(large, 10)
    assert strict_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
