"""Models and tokenizers from a folder or hub id, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from draftwise.nn.attention import GROUPED, share_heads
from draftwise.nn.check import check_model, refuse_recurrent
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError


def load_model(
    source: str | Path | Any, *, dtype: str = "auto", device: str = "auto"
) -> CausalModel:
    """A checked model from a folder, a hub id, or a ``transformers`` module that is used as it is.

    dtype: ``auto`` (the checkpoint's), ``float32``, ``bfloat16``, ``float16``; device: ``auto`` is
    CUDA where there is one. Raises DraftwiseError for what cannot be found, read or served.
    """
    if isinstance(source, (str, Path)):
        name, module = str(source), _from_pretrained(str(source), dtype, device)
    else:
        name, module = type(source).__name__, source
    if module.config._attn_implementation not in {"sdpa", "eager", GROUPED}:
        raise DraftwiseError(
            f"{name} uses attn_implementation={module.config._attn_implementation!r}, which takes "
            "no masks of our own; load it with attn_implementation='sdpa'"
        )
    model = CausalModel(module.eval(), name)
    check_model(model)
    return model


def _from_pretrained(source: str, dtype: str, device: str) -> Any:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise DraftwiseError(f"dtype {dtype!r}: write auto, float32, bfloat16 or float16")
    _refuse_missing(source)
    try:
        refuse_recurrent(AutoConfig.from_pretrained(source), source)
        module = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation="sdpa", device_map=None
        ).to(device)
        share_heads(module)
        return module
    except DraftwiseError:
        raise
    except Exception as error:
        raise DraftwiseError(f"cannot load a causal LM from {source}: {error}") from error


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer of a folder or hub id; raises DraftwiseError where there is none."""
    _refuse_missing(str(source))
    try:
        return AutoTokenizer.from_pretrained(str(source))
    except Exception as error:
        raise DraftwiseError(
            f"cannot load a tokenizer from {source}: {error}. Pass token ids, or tokenizer=..."
        ) from error


def _refuse_missing(source: str) -> None:
    """A path that is not there would be asked of the hub: say so at once instead."""
    looks_local = source.startswith((".", "/", "~")) or source.count("/") > 1
    if looks_local and not Path(source).expanduser().exists():
        raise DraftwiseError(f"there is no model folder {source}")
    if Path(source).is_dir() and not (Path(source) / "config.json").exists():
        raise DraftwiseError(f"{source} has no config.json: it is not a Hugging Face model folder")
