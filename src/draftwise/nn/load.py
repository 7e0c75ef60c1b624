"""Loading models and tokenizers: from folders, the hub, adapters, and objects."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from draftwise.checks import refuse_removed
from draftwise.errors import shown
from draftwise.nn.adapters import base_of, has_tokenizer, merged
from draftwise.nn.attention import RAGGED, attend_raggedly
from draftwise.nn.check import check_model
from draftwise.nn.complete import read_completely
from draftwise.nn.folder import hardware, place
from draftwise.nn.layout import lay_out
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

Dtype = str | torch.dtype | None
Device = str | torch.device | int | dict[str, Any] | None
"""One device, or how a model is spread over several."""
_FEW = 256
"""Tokens: a shorter vocabulary may be what the library makes without any file of a tokenizer."""
_ROUNDING = {"Linear8bitLt", "LinearActivationQuantizedTensor"}
"""LLM.int8() of bitsandbytes; torchao before 0.14: later ones carry ``act_quant_kwargs``."""


def rounding_layer(module: Any) -> str | None:
    """The name of a layer that quantises its activations at run time; None if there is none.

    Rounding to 8 bits amplifies last-bit differences between a forward over one token and one over
    several, so greedy answers can differ from plain decoding's at a near tie, as they do in
    transformers with and without a cache (measured in docs/lab/log.md).
    """
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        marks = {type(layer).__name__, type(weight).__name__}
        if marks & _ROUNDING or getattr(weight, "act_quant_kwargs", None) is not None:
            return name or type(layer).__name__
    return None


@contextmanager
def in_eval_mode(module: Any) -> Iterator[None]:
    """Switch dropout off, and afterwards restore the mode of each submodule."""
    trained = [own for own in module.modules() if own.training]
    module.eval()
    try:
        yield
    finally:
        for own in trained:
            own.training = True


def load_model(
    source: str | Path | Any, *, dtype: Dtype = "auto", device: Device = "auto"
) -> CausalModel:
    """A checked model from a folder, a hub id, or a ``transformers`` module, which stays unchanged.

    dtype: ``auto`` or None (the checkpoint's), a torch dtype or its name. device: ``auto`` or None
    is CUDA if available; a ``torch.device``, its name, or a GPU's number;
    ``map:auto``, ``map:balanced``, ... or a dict of devices by module become the library's
    ``device_map``. A PEFT adapter's folder loads its base and merges the adapter. Raises
    DraftwiseError for a model that cannot be found, read or served.
    """
    if isinstance(source, (str, Path)):
        name, module = str(source), _from_pretrained(str(source), dtype, device)
    else:
        name, module = source.__class__.__name__, source  # through a weak proxy, too
        if not hasattr(getattr(module, "config", None), "_attn_implementation"):
            raise DraftwiseError(
                f"{shown(source)} is no model: give a folder, a hub id, or a causal LM of "
                "transformers"
            )
    if module.config._attn_implementation not in {"sdpa", "eager", RAGGED}:
        raise DraftwiseError(
            f"{name} uses attn_implementation={module.config._attn_implementation!r}, which takes "
            "no masks of our own; load it with attn_implementation='sdpa'"
        )
    refuse_removed(f"model type {module.config.get_text_config().model_type}")
    with in_eval_mode(module):
        model = CausalModel(module, name)
        check_model(model)
    if (layer := rounding_layer(module)) is not None:
        warnings.warn(
            f"{name} quantises activations as it computes ({layer}): a verification of several "
            "tokens rounds otherwise than plain decoding, so answers can differ from it where two "
            "tokens are nearly level; weight-only quantisation does not",
            stacklevel=2,
        )
    return model


def _from_pretrained(source: str, dtype: Dtype, device: Device) -> Any:
    dtype, device = hardware(dtype, device)
    spread: Any = device if isinstance(device, dict) else None
    if isinstance(device, str) and device.startswith("map:"):
        spread = device.removeprefix("map:")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        module = _read(place(source), dtype, spread)
        if spread is None:
            module = module.to(device)
        if module.config._attn_implementation == "sdpa":
            attend_raggedly(module)
        if spread is None:
            lay_out(module)
        return module
    except DraftwiseError:
        raise
    except Exception as error:
        raise _refusal("causal LM", source, error) from error


def _read(source: str, dtype: Any, spread: Any, revision: str | None = None) -> Any:
    if (base := base_of(source)) is not None:
        if base.source == source:
            raise DraftwiseError(f"the adapter {source} names itself as its base model")
        return merged(_read(base.source, dtype, spread, base.revision), source)
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # transformers would show one for each model
    try:
        # sdpa where the model has it, else eager (Gemma-2, gpt-oss)
        module = read_completely(
            AutoModelForCausalLM, source, source, dtype=dtype, device_map=spread,
            revision=revision or "main", trust_remote_code=False,
        )  # fmt: skip
    finally:
        if was_shown:
            logging.enable_progress_bar()
    quantization = getattr(module.config, "quantization_config", None)
    if quantization is not None and getattr(module, "hf_quantizer", None) is None:  # a mere warning
        raise ValueError(f"this transformers knows no quantisation like {quantization}")
    return module


def load_tokenizer(source: str | Path, *, asks_hub: bool = True) -> Any:
    """The tokenizer of a folder or hub id, or DraftwiseError. asks_hub: whether to download it."""
    source, revision = place(str(source)), "main"
    base = base_of(source, asks_hub=asks_hub)
    if base is not None and not has_tokenizer(source, asks_hub=asks_hub):
        source, revision = base.source, base.revision or "main"
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=not asks_hub, revision=revision
        )
        special = {*tokenizer.all_special_tokens}
        if len(tokenizer) < _FEW and special.issuperset(tokenizer.get_vocab()):
            raise ValueError("it has no vocabulary, only special tokens")
    except Exception as error:
        raise DraftwiseError(
            f"{_refusal('tokenizer', source, error)}. Pass token ids, or tokenizer=..."
        ) from error
    return tokenizer


def _refusal(what: str, source: str, error: Exception) -> DraftwiseError:
    problem = f"cannot load a {what} from {source}"
    if not Path(source).is_dir() and isinstance(error, OSError):
        first_line = str(error).strip().partition("\n")[0]
        return DraftwiseError(
            f"{problem}: it is no folder here, and the hub did not give it ({first_line}). "
            "Name a folder, or a hub id that is in the cache or can be reached"
        )
    if "trust_remote_code" in str(error):
        return DraftwiseError(
            f"{problem}: it brings Python code of its own, which is not run here. If you trust it, "
            "load it yourself (trust_remote_code=True) and pass the object"
        )
    return DraftwiseError(f"{problem}: {error}")
