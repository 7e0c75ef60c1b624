"""Loading models and tokenizers: from folders, the hub, adapters, and objects."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from draftwise.checks import refuse_removed
from draftwise.errors import shown
from draftwise.install import hint
from draftwise.nn.attention import RAGGED, attend_raggedly
from draftwise.nn.check import check_model
from draftwise.nn.folder import BORROWS, borrows, check_hardware, place, read_object
from draftwise.nn.heads.eagle import LentHead
from draftwise.nn.heads.files import read_weights, refuse_mismatch, refuse_other_target
from draftwise.nn.layout import lay_out
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

FILE = "model.safetensors"
IDS = "draft_ids"  # tensor next to the weights: the tokens that can be drafted, if not all
Device = str | dict[str, Any]  # one device, or how a model is spread over several
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


def base_of(source: str) -> str | None:
    """The base model of an adapter's folder; None = no adapter. DraftwiseError if it names none."""
    file = Path(source) / "adapter_config.json"
    if not file.is_file():
        return None
    try:
        base = read_object(file).get("base_model_name_or_path")
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"{file} names no base_model_name_or_path ({error!r})") from error
    if not isinstance(base, str) or not base:
        raise DraftwiseError(f"{file} names no base_model_name_or_path")
    return base


def merged(module: Any, folder: str) -> Any:
    """The module with the PEFT adapter in this folder merged into its weights.

    Raises DraftwiseError if ``peft`` is missing, or the adapter has other sizes or layers, is
    incomplete, or cannot be merged.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise DraftwiseError(
            f"reading the PEFT adapter {folder} needs peft: {hint('peft')}"
        ) from error
    problem = f"the adapter {folder} does not fit {type(module).__name__}, the model that it names"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = PeftModel.from_pretrained(module, folder).merge_and_unload(safe_merge=True)
        except Exception as error:
            raise DraftwiseError(f"{problem}: {str(error).strip()}") from error
    missing = [str(one.message) for one in caught if "missing adapter keys" in str(one.message)]
    if missing:
        raise DraftwiseError(f"{problem}: {missing[0][:300]}")
    return found


def load_model(
    source: str | Path | Any, *, dtype: str | torch.dtype = "auto", device: Device = "auto"
) -> CausalModel:
    """A checked model from a folder, a hub id, or a ``transformers`` module, which stays unchanged.

    dtype: ``auto`` (the checkpoint's) or a torch dtype. device: ``auto`` is CUDA if available;
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
    module.eval()
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


def _from_pretrained(source: str, dtype: str | torch.dtype, device: Device) -> Any:
    check_hardware(dtype, device)
    spread: Any = device if isinstance(device, dict) else None
    if isinstance(device, str) and device.startswith("map:"):
        spread = device.removeprefix("map:")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if borrows(source):
        raise DraftwiseError(
            f"{source} has no embeddings of its own: it is a drafter, --drafter lm:{source}"
        )
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


def _read(source: str, dtype: Any, spread: Any) -> Any:
    base, was_shown = base_of(source), logging.is_progress_bar_enabled()
    folder = source if base is None else place(base)
    logging.disable_progress_bar()  # transformers would show one for each model
    try:
        # sdpa where the model has it, else eager (Gemma-2, gpt-oss)
        module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, device_map=spread, trust_remote_code=False
        )
    finally:
        if was_shown:
            logging.enable_progress_bar()
    quantization = getattr(module.config, "quantization_config", None)
    if quantization is not None and getattr(module, "hf_quantizer", None) is None:  # a mere warning
        raise ValueError(f"this transformers knows no quantisation like {quantization}")
    return module if base is None else merged(module, source)


def load_tokenizer(source: str | Path, *, asks_hub: bool = True) -> Any:
    """The tokenizer of a folder or hub id, or DraftwiseError. asks_hub: whether to download it."""
    source = place(str(source))
    if (base := base_of(source)) and not (Path(source) / "tokenizer_config.json").exists():
        source = place(base)
    try:
        return AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=not asks_hub
        )
    except Exception as error:
        raise DraftwiseError(
            f"{_refusal('tokenizer', source, error)}. Pass token ids, or tokenizer=..."
        ) from error


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


def save_borrower(module: Any, folder: Path, dtype: torch.dtype) -> None:
    """Save a causal LM without embeddings and ``lm_head``, with the ids of its ``LentHead``."""
    config = AutoConfig.for_model(**module.config.to_dict())
    setattr(config, BORROWS, True)
    config.architectures, config.dtype = [type(module).__name__], dtype
    config.save_pretrained(folder)
    weights = {n: tensor.to(dtype).cpu().contiguous() for n, tensor in _own(module).items()}
    if isinstance(head := module.get_output_embeddings(), LentHead):
        weights[IDS] = head.ids.cpu()
    save_file(weights, folder / FILE, metadata={"format": "pt"})


def load_borrower(folder: str | Path, target: CausalModel) -> CausalModel:
    """A checked model from a folder of ``save_borrower``, with the target's embeddings,
    ``lm_head``, dtype and device. Raises DraftwiseError for missing or unexpected keys, unknown
    tokens, or other sizes.
    """
    what = f"drafter {folder}"
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    text = config.get_text_config()
    refuse_other_target(what, text.hidden_size, text.vocab_size, target)
    weights = read_weights([Path(folder) / FILE])
    ids = weights.pop(IDS, None)
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < text.vocab_size:
        raise DraftwiseError(f"{what}: {IDS} has tokens beyond the target's {text.vocab_size}")
    module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(target.dtype)
    refuse_mismatch(what, {n: tuple(own.shape) for n, own in _own(module).items()}, weights)
    module.load_state_dict(weights, strict=False)
    module.set_input_embeddings(nn.Identity())  # so that no module of the target is moved
    module.set_output_embeddings(nn.Identity())
    module.to(target.device)
    attend_raggedly(module)
    lay_out(module)
    embed, theirs = target.module.get_input_embeddings(), target.module.get_output_embeddings()
    module.set_input_embeddings(embed)
    module.set_output_embeddings(theirs)
    model = load_model(module.requires_grad_(False))
    if ids is not None:  # after the check, which compares finite logits
        module.set_output_embeddings(LentHead(theirs, ids, text.vocab_size))
        looked_up = sum(p.numel() for p in embed.parameters())
        model.num_parameters = sum(p.numel() for p in module.parameters()) - looked_up
    model.name = str(folder)
    return model


def _own(module: Any) -> Mapping[str, Tensor]:
    lent = (module.get_input_embeddings(), module.get_output_embeddings())
    places = {id(tensor) for layer in lent for tensor in (*layer.parameters(), *layer.buffers())}
    state = module.state_dict(keep_vars=True)
    return {name: value.detach() for name, value in state.items() if id(value) not in places}
