"""Locates a model in a folder or on the hub, and checks its files, data type and device.

Imports no torch.
"""

from __future__ import annotations

import json
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from draftwise.checks import known
from draftwise.errors import BadValue
from draftwise.files import STATE_BYTES, local_path, looks_local, read_text, strict_json
from draftwise.types import DraftwiseError

CONFIGS = ("config.json", "adapter_config.json")
DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""How accelerate spreads a model over devices."""


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; raises OSError and ValueError."""
    found = json.loads(read_text(file, STATE_BYTES))
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _has(file: Path, key: str) -> bool:
    """Whether a JSON object sets this key; False for a file that cannot be read."""
    try:
        return bool(read_object(file).get(key))
    except (OSError, ValueError):  # the code that loads the file reports the error
        return False


def place(source: str) -> str:
    """A folder's path with ``~`` expanded, or a hub id unchanged.

    Errors: DraftwiseError for a path that does not exist, which transformers would treat as a hub
    id, and for a folder without a valid model.
    """
    path = local_path(source)
    if not source or (looks_local(source) and not path.exists()):
        raise DraftwiseError(
            f"there is no model folder {source or repr(source)}: give a model's folder, a hub id, "
            "a .gguf file, or zoo, the bundled toy"
        )
    if path.is_dir() and not any((path / name).exists() for name in CONFIGS):
        raise DraftwiseError(f"{source} has no config.json: it is not a Hugging Face model folder")
    if path.is_file():
        raise DraftwiseError(f"{source} is a file: name a model folder, a hub id or a .gguf file")
    for index in path.glob("*.index.json"):
        _refuse_escapes(index)
    for weights in path.glob("*.safetensors"):
        _refuse_cut(weights)
    return str(path) if path.exists() else source


def config_of(folder: Path) -> dict[str, Any]:
    """The config of a model or an adapter. Errors: DraftwiseError if missing or invalid."""
    file = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    if file is None:
        raise DraftwiseError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"{file} is no model's config ({error}): download it again") from error


def has_template(folder: Path) -> bool:
    places = ("chat_template.*", "additional_chat_templates/*", "tekken.json")  # Mistral's own
    if any(any(folder.glob(place)) for place in places):
        return True
    return _has(folder / "tokenizer_config.json", "chat_template")


def _refuse_cut(weights: Path) -> None:
    try:
        with safe_open(weights, "np"):
            return
    except (OSError, SafetensorError) as error:
        size = weights.stat().st_size
        raise DraftwiseError(
            f"{weights} is cut off or damaged ({size:,} bytes): download it again"
        ) from error


def _refuse_escapes(index: Path) -> None:
    """Raise DraftwiseError if a shard index names a file outside its folder."""
    try:
        shards = set(strict_json(read_text(index, STATE_BYTES))["weight_map"].values())
        outside = [name for name in shards if Path(name).name != name or name == ".."]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DraftwiseError(f"{index} is no list of shards ({error!r})") from error
    if outside:
        raise DraftwiseError(f"{index} names {outside[0]!r}, which is not in its folder")


def hardware(dtype: Any, device: Any) -> tuple[Any, Any]:
    """A data type and a device; None is ``auto``, and a ``torch.device`` or a GPU's number becomes
    a name.

    Raises DraftwiseError for an unknown data type or device.
    """
    dtype = "auto" if dtype is None else dtype
    if device is None:
        device = "auto"
    elif isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"
    elif str(type(device)) == "<class 'torch.device'>":  # this module loads no torch
        device = str(device)
    if str(type(dtype)) != "<class 'torch.dtype'>":
        known("dtype", dtype, DTYPES)
    if not isinstance(device, dict):
        _check_device(device)
    return dtype, device


def _check_device(device: Any) -> None:
    kind, _, rest = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind == "map":
        if rest not in MAPS:
            raise BadValue("device", device, f"map: and one of {', '.join(MAPS)}")
        if find_spec("accelerate") is None:
            raise DraftwiseError(f"device {device} needs accelerate: pip install accelerate")
    elif kind not in DEVICES or (rest and not rest.isdigit()) or (kind == "auto" and rest):
        raise DraftwiseError(
            f"unknown device {device!r}; write {', '.join(DEVICES)}, cuda:1, or map:auto"
        )
    elif kind == "mps" and sys.platform != "darwin":
        raise BadValue("device", device, "cpu, cuda or auto: mps is for Macs")


PATIENCE_S = 2.0  # timeout of connecting to the hub, and of its answer


def find(source: str) -> str:
    """A model's folder, or the id of a model that is in the cache or on the hub.

    Errors: DraftwiseError for anything else, within seconds: transformers asks six times, and
    waits between them.
    """
    found = place(source)
    if not Path(found).is_dir():
        check_hub(found)
    return found


def cached(model: str) -> Path | None:
    """The folder of a hub model in the local cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(model, name) for name in CONFIGS)
    return next((Path(file).parent for file in found if isinstance(file, str)), None)


def check_hub(model: str) -> None:
    """Reject an invalid hub id, and a model neither in the cache nor on the hub."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        has_tokenizer = isinstance(try_to_load_from_cache(model, "tokenizer_config.json"), str)
        if has_tokenizer or cached(model) is not None:
            return
    except HFValidationError:
        raise DraftwiseError(f"there is no model folder {model}, and it is no hub id") from None
    said = f"there is no folder {model}, and no model of that name was fetched from the hub before"
    if constants.HF_HUB_OFFLINE:
        raise DraftwiseError(f"{said}; HF_HUB_OFFLINE forbids to fetch one")
    answer: Exception | None = ConnectionError()

    def ask() -> None:
        from huggingface_hub import HfApi

        nonlocal answer
        try:
            HfApi(endpoint=constants.ENDPOINT).model_info(model, timeout=PATIENCE_S)
            answer = None
        except Exception as error:
            answer = error

    # in a thread, because a DNS lookup has no timeout
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(3 * PATIENCE_S)
    # by name, because the hub's client changed its HTTP library, and with it the classes
    if type(answer).__name__.startswith("Connect"):
        raise DraftwiseError(
            f"{said}; {constants.ENDPOINT} cannot be reached now. Name a folder that exists, or "
            "go online"
        )
    # for other errors, loading has a better message
    if isinstance(answer, RepositoryNotFoundError) and answer.response.status_code in {401, 404}:
        raise DraftwiseError(
            f"there is no folder {model}, and {constants.ENDPOINT} has no public model {model}: "
            "check the name; for a private one, log in (hf auth login)"
        )
