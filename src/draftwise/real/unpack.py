"""From a GGUF file to a plain Hugging Face folder in the user's cache: once, and checked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from draftwise.install import hint
from draftwise.real.catalog import PRETRAINED, Pretrained
from draftwise.types import DraftwiseError

CACHE_VARIABLE = "DRAFTWISE_CACHE"
"""Names a folder in place of the platform's cache folder."""
RECORD = "draftwise.json"
"""What a folder was made from, its licence, and the hash of its weights; written last."""

Say = Callable[[str], None]


def cache_folder() -> Path:
    """Where unpacked models lie."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser() if given else user_cache_path("draftwise")


def is_pretrained(target: str) -> bool:
    """Whether this is a name of the catalogue, or names a GGUF file."""
    return target in PRETRAINED or target.endswith(".gguf")


def check_pieces(target: str) -> list[Path]:
    """The files of a catalogue name or ``.gguf`` path, which are not read.

    Raises DraftwiseError for one that is missing, or is no GGUF file.
    """
    known = PRETRAINED.get(target)
    pieces = known.files() if known else [Path(target).expanduser()]
    for piece in pieces:
        if not piece.is_file():
            raise DraftwiseError(f"there is no file {target}")
    if known is None:  # the catalogue's are checked by their hash
        with pieces[0].open("rb") as file:
            begins_well = file.read(4) == b"GGUF"
        if not begins_well:
            raise DraftwiseError(f"{target} is no GGUF file: it does not begin with GGUF")
    return pieces


def unpacked(target: str, say: Say | None = None) -> Path:
    """The plain folder of a catalogue name or of a ``.gguf`` file, made where it is not there yet.

    Weights are kept in float32, which holds every dequantised value as it is: four bytes each. say:
    told what is being done, None = stderr. Raises DraftwiseError for a file that is missing, is not
    what the catalogue says, or is no causal LM that can be read.
    """
    stderr = sys.stderr  # as it is now: progress bars are kept from it where it is no terminal
    say = say or (lambda line: print(line, file=stderr, flush=True))
    known = PRETRAINED.get(target)
    pieces = check_pieces(target)
    name = known.name if known else pieces[0].stem
    folder = cache_folder() / f"{name}-{_mark(pieces)}"
    if (folder / RECORD).exists():
        return folder
    say(f"unpacking {known.title if known else pieces[0].name} into {folder}, once")
    digest = _sha256(pieces)
    if known and digest != known.sha256:
        raise DraftwiseError(
            f"the GGUF file of {known.title} has the hash {digest}, not {known.sha256}: install "
            f"{known.package} again"
        )
    if known:
        say(f"{known.title} ({known.origin}), licence: {known.licence}; its text: {folder}/LICENCE")
    _make(folder, pieces, name, {"sha256": digest}, known, say)
    return folder


def _mark(pieces: Sequence[Path]) -> str:
    """A short name for these very files: cheap, so that it is asked at every start."""
    facts = [(piece.name, piece.stat().st_size) for piece in pieces]
    if len(pieces) == 1:
        with pieces[0].open("rb") as file:  # a GGUF file begins with all it says of itself
            facts.append((hashlib.sha256(file.read(1 << 20)).hexdigest(), 0))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _sha256(pieces: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        with piece.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _make(
    folder: Path, pieces: Sequence[Path], name: str, record: dict[str, Any],
    known: Pretrained | None, say: Say,
) -> None:  # fmt: skip
    """Unpack beside the folder and move it into place whole, so that a stopped run leaves none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as work:
        source, made = Path(work) / f"{name}.gguf", Path(work) / "made"
        if len(pieces) == 1:
            source.symlink_to(pieces[0].resolve())
        else:
            with source.open("wb") as whole:
                for piece in pieces:
                    with piece.open("rb") as part:
                        shutil.copyfileobj(part, whole, 1 << 22)
        _convert(source, made, say)
        weights = sorted(made.glob("*.safetensors"))
        record |= {"weights": {file.name: _sha256([file]) for file in weights}}
        if known:
            record |= {"model": known.title, "package": known.package}
            record |= {"origin": known.origin, "licence": known.licence}
            (made / "LICENCE").write_bytes(known.terms_text())
        (made / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _convert(source: Path, out: Path, say: Say) -> None:
    """Read a GGUF file with ``transformers``, and write what it holds as a plain model.

    ``save_pretrained`` refuses a model that was read from GGUF, so a plain one takes its weights
    over. Raises DraftwiseError where the file cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file, safely = str(source.parent), source.name, {"trust_remote_code": False}
    try:
        # the library draws its progress whether or not there is a terminal to draw it on
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            say("  reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, **safely)
            say("  reading the weights (a minute or less)")
            read = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=file, dtype=torch.float32, **safely
            )
    except ImportError as error:
        raise DraftwiseError(
            f"reading GGUF needs two more packages ({error}): {hint('gguf')}"
        ) from error
    except Exception as error:
        raise DraftwiseError(
            f"cannot read {source.resolve()}: it is cut off, damaged, or of a kind that this "
            f"transformers does not know ({error}). Download it again"
        ) from error
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    say("  writing")
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)
