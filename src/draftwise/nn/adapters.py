"""LoRA and other adapters of PEFT, merged into the weights of the model that they are for."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from draftwise.install import hint
from draftwise.lines import STATE_BYTES, read_text
from draftwise.types import DraftwiseError

CONFIG = "adapter_config.json"


def base_of(source: str) -> str | None:
    """The folder or hub id of the model that an adapter's folder is for; None = it is no adapter.

    Raises DraftwiseError where it does not say.
    """
    file = Path(source) / CONFIG
    if not file.is_file():
        return None
    try:
        base = json.loads(read_text(file, STATE_BYTES))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DraftwiseError(f"{file} names no base_model_name_or_path ({error!r})") from error
    if not isinstance(base, str) or not base:
        raise DraftwiseError(f"{file} names no base_model_name_or_path")
    return base


def merged(module: Any, folder: str) -> Any:
    """The module with the adapter of this folder in its weights.

    Raises DraftwiseError where ``peft`` is missing, or where the adapter is not this module's:
    other sizes, other layers, weights for only a part of those it names, or none to merge.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise DraftwiseError(
            f"reading the PEFT adapter {folder} needs peft: {hint('peft')}"
        ) from error
    said = f"the adapter {folder} does not fit {type(module).__name__}, the model that it names"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            found = PeftModel.from_pretrained(module, folder).merge_and_unload(safe_merge=True)
        except Exception as error:
            raise DraftwiseError(f"{said}: {str(error).strip()}") from error
    missing = [str(one.message) for one in heard if "missing adapter keys" in str(one.message)]
    if missing:
        raise DraftwiseError(f"{said}: {missing[0][:300]}")
    return found
