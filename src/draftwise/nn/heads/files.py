"""Files of draft heads: finds and reads them, and matches weights with parameters by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from draftwise.files import STATE_BYTES, local_path, looks_local, read_text, strict_json
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

Head = TypeVar("Head", bound=nn.Module)


def find_folder(source: str, kind: str, files: Sequence[str]) -> Path:
    """A local folder, or the snapshot of a hub id with these ``files``; else DraftwiseError."""
    path = local_path(source)
    if path.is_dir():
        return path
    if looks_local(source) or "/" not in source:
        raise DraftwiseError(f"there is no {kind} in {source}: give a folder or a hub id")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(source, allow_patterns=["config.json", *files]))
    except Exception as error:
        raise DraftwiseError(f"cannot get the {kind} {source}: {error}") from error


def read_settings(folder: Path, kind: str) -> dict[str, Any]:
    """Read the folder's ``config.json``. DraftwiseError if it is missing or not JSON."""
    try:
        found: dict[str, Any] = strict_json(read_text(folder / "config.json", STATE_BYTES))
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"{folder} has no config.json of a {kind}: {error}") from error
    return found


def read_weights(files: Sequence[Path]) -> dict[str, Tensor]:
    """Read all tensors of these files; DraftwiseError for a file that cannot be read."""
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                weights |= load_file(file)
            else:
                weights |= torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise DraftwiseError(f"{file} cannot be read as weights: {error}") from error
    return weights


def refuse_missing(what: str, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise DraftwiseError if a number, or list of numbers, is missing in ``config.json``."""
    for key in keys:
        if not isinstance(settings.get(key), (int, list)) or settings[key] == []:
            raise DraftwiseError(f"{what}: its config.json has no {key!r}")


def refuse_other_target(what: str, hidden_size: int, vocab_size: int, target: CausalModel) -> None:
    """Raise DraftwiseError, with both sizes, for a head that was made for another target."""
    for size, theirs, ours in (
        ("hidden size", hidden_size, target.hidden_size),
        ("vocabulary", vocab_size, target.vocab_size),
    ):
        if theirs != ours:
            raise DraftwiseError(
                f"{what} was made for a target of {size} {theirs}, and {target.name} has {ours}: a "
                "head serves only the target that it was trained on"
            )


def refuse_mismatch(
    what: str, wanted: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]
) -> None:
    """Raise DraftwiseError for a key that is missing, unexpected, or of another shape."""
    if missing := sorted(wanted.keys() - weights.keys()):
        raise DraftwiseError(f"{what} lacks {_listed(missing)}")
    if unmatched := sorted(weights.keys() - wanted.keys()):
        raise DraftwiseError(f"{what} has {_listed(unmatched)}, which has no place")
    for name, shape in wanted.items():
        if tuple(weights[name].shape) != shape:
            raise DraftwiseError(
                f"{what}: {name} has the shape {tuple(weights[name].shape)}, and its config.json "
                f"asks for {shape}"
            )


def put_weights(head: Head, weights: Mapping[str, Tensor], target: CausalModel, what: str) -> Head:
    """Load all weights into a head on ``meta``: floats in the target's dtype, buffers unchanged."""
    places, buffers = head.state_dict(), dict(head.named_buffers())
    refuse_mismatch(what, {name: tuple(place.shape) for name, place in places.items()}, weights)
    cast = {
        name: tensor.to(target.device, places[name].dtype if name in buffers else target.dtype)
        for name, tensor in weights.items()
    }
    head.load_state_dict(cast, strict=True, assign=True)
    return head.eval().requires_grad_(False)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
