"""Loading models and tokenizers: from folders, the hub, PEFT adapters, and objects."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import cached_file, find_adapter_config_file, logging

from draftwise.checks import refuse_removed
from draftwise.errors import shown
from draftwise.install import hint
from draftwise.nn.attention import RAGGED, attend_raggedly
from draftwise.nn.check import check_model
from draftwise.nn.folder import find, hardware, place, read_object
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
    if isinstance(device, str) and device.startswith("cuda"):
        _refuse_missing_gpu(device)
    try:
        module = _read(find(source), dtype, spread)
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


def _refuse_missing_gpu(device: str) -> None:
    num = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= num:
        raise DraftwiseError(
            f"device {device}: torch finds {num or 'no'} GPU{'s' * (num != 1)} here; write cpu, or "
            "install a build for your GPU (https://pytorch.org/get-started/locally)"
        )


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
    source, revision = (find if asks_hub else place)(str(source)), "main"
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


_MOST_SHOWN = 6
_RECOMPUTED = ("rotary_emb",)  # parts of names of tables that old checkpoints hold


def read_completely(auto: Any, source: str, name: str, **options: Any) -> Any:
    """``auto.from_pretrained(source, **options)``, if the checkpoint has all weights of the model.

    auto: a class such as ``AutoModelForCausalLM``. name: the model's name in errors. The library
    draws weights at random that are missing or of another shape, and drops those that it has no
    place for. Raises DraftwiseError that names them, except for dropped ones outside the model's
    layers, such as a vision tower or a value head, which the library reports itself.
    """
    module, found = auto.from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    if missing := found["missing_keys"]:
        raise DraftwiseError(
            f"{name} is incomplete: its checkpoint has no {listed(missing)}. Download it again, "
            "or check that config.json is this checkpoint's"
        )
    if mismatched := found["mismatched_keys"]:
        key, theirs, ours = min(mismatched)
        others = f" (and {len(mismatched) - 1} more)" if len(mismatched) > 1 else ""
        raise DraftwiseError(
            f"{name} does not fit its config.json: {key} has the shape {tuple(theirs)}, and the "
            f"config asks for {tuple(ours)}{others}"
        )
    if dropped := _misplaced(module, found):
        raise DraftwiseError(
            f"{name} does not fit its config.json: the model that it describes has no place for "
            f"{listed(dropped)}"
        )
    return module


def listed(names: Collection[str]) -> str:
    """The first names in order, and the number of the others."""
    shown = ", ".join(sorted(names)[:_MOST_SHOWN])
    return shown if len(names) <= _MOST_SHOWN else f"{shown} and {len(names) - _MOST_SHOWN} more"


def _misplaced(module: Any, found: Mapping[str, Any]) -> set[str]:
    """Dropped weights of layers that the model has, which therefore compute something else.

    A quantiser may drop what it has no use for, such as scales of a cache.
    """
    if getattr(module, "hf_quantizer", None) is not None:
        return set()
    places = dict(module.named_modules())
    groups = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
    inside = {
        key for key, own in places.items()
        if key not in {"", module.base_model_prefix} and not isinstance(own, groups)
    }  # fmt: skip
    return {
        key for key in found["unexpected_keys"]
        if _nearest(key, places) in inside and not any(part in key for part in _RECOMPUTED)
    }  # fmt: skip


def _nearest(key: str, places: Collection[str]) -> str:
    """The innermost module of the model that a weight's name lies in."""
    while key and key not in places:
        key = key.rpartition(".")[0]
    return key


_TOKENIZERS = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model")


class Base(NamedTuple):
    """The model that an adapter was trained on; revision: of a hub id, None = the newest."""

    source: str
    revision: str | None


def base_of(source: str, *, asks_hub: bool = True) -> Base | None:
    """The base model of an adapter; None = it is no adapter. Raises DraftwiseError if it names
    none, or a folder that does not exist.
    """
    try:
        file = find_adapter_config_file(source, local_files_only=not asks_hub)
    except (OSError, ValueError):  # no hub id, or none that can be had: its loader says more
        return None
    if file is None:
        return None
    try:
        settings = read_object(Path(file))
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"{file} names no base_model_name_or_path ({error!r})") from error
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise DraftwiseError(f"{file} names no base_model_name_or_path")
    try:
        return Base(place(base), settings.get("revision") or None)
    except DraftwiseError as error:
        raise DraftwiseError(
            f"the adapter {source} names a base model that cannot be found: {error}. Write where "
            f"it is into base_model_name_or_path of {file}"
        ) from error


def has_tokenizer(adapter: str, *, asks_hub: bool = True) -> bool:
    """Whether an adapter brings a tokenizer, which then replaces its base model's."""
    if Path(adapter).is_dir():
        return any((Path(adapter) / name).is_file() for name in _TOKENIZERS)
    try:
        found = cached_file(
            adapter, _TOKENIZERS[0], local_files_only=not asks_hub,
            _raise_exceptions_for_missing_entries=False,
        )  # fmt: skip
    except OSError:
        return False
    return found is not None


def merged(module: Any, adapter: str) -> Any:
    """The module with a PEFT adapter merged into its weights, on ``module``'s devices.

    adapter: a folder or a hub id. An adapter for more tokens than the module has, which was trained
    after ``resize_token_embeddings``, resizes it. Raises DraftwiseError if ``peft`` is missing, or
    the adapter has other sizes or layers, lacks weights, or cannot be merged.
    """
    try:
        from peft import PeftConfig, PeftModel, load_peft_weights
    except ImportError as error:
        raise DraftwiseError(
            f"reading the PEFT adapter {adapter} needs peft: {hint('peft')}"
        ) from error
    problem = f"the adapter {adapter} does not fit {type(module).__name__}, the model that it names"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config, weights = PeftConfig.from_pretrained(adapter), load_peft_weights(adapter, "cpu")
            _refuse_unmergeable(adapter, config)
            old_rows = _grow(module, config, weights)
            found: Any = PeftModel.from_pretrained(module, adapter)
            unused = weights.keys() - _names_of(found)
            _untie(found.get_base_model())
            found = found.merge_and_unload(safe_merge=True)
        except DraftwiseError:
            raise
        except Exception as error:
            raise DraftwiseError(f"{problem}: {str(error).strip()}") from error
    for one in caught:
        if "missing adapter keys" in str(one.message):
            raise DraftwiseError(f"{problem}: {str(one.message)[:300]}")
        if issubclass(one.category, UserWarning):
            warnings.warn(f"{adapter}: {one.message}", stacklevel=2)
    if unused:
        warnings.warn(
            f"{adapter}: {listed(unused)} fit no layer that its config names, and are not used",
            stacklevel=2,
        )
    _refuse_empty_rows(found, old_rows, adapter)
    return found


def _names_of(peft_model: Any) -> set[str]:
    from peft import get_peft_model_state_dict

    own = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    return {*own, *peft_model.state_dict()}  # embeddings may be saved under their own names


def _refuse_unmergeable(adapter: str, config: Any) -> None:
    kind = getattr(config.peft_type, "value", config.peft_type)
    if config.is_prompt_learning or config.is_adaption_prompt:
        raise DraftwiseError(
            f"the adapter {adapter} is of the type {kind}: it adds virtual tokens to each prompt, "
            "and has no weights to merge into its base model. Serve it with transformers"
        )
    if getattr(config, "alora_invocation_tokens", None):
        raise DraftwiseError(
            f"the adapter {adapter} begins at its invocation tokens (aLoRA), so it cannot be "
            "merged into its base model. Serve it with transformers"
        )


def _embeddings(module: Any) -> Iterator[nn.Module]:
    for layer in (module.get_input_embeddings(), module.get_output_embeddings()):
        if layer is not None:
            yield layer


def _grow(module: Any, config: Any, weights: Mapping[str, Tensor]) -> int:
    """Give the module a row for each token that the adapter has weights of, and return its old
    number of rows. New rows are not numbers until the adapter fills them.
    """
    old = int(module.get_input_embeddings().weight.shape[0])
    new = max([old, *_rows(module, weights), *_trained(config)])
    if new > old:
        module.resize_token_embeddings(new, mean_resizing=False)
        with torch.no_grad():
            for layer in _embeddings(module):
                layer.weight[old:] = torch.nan  # type: ignore[operator]
    return old


def _untie(model: Any) -> None:
    """Give embeddings and vocabulary weights that are one tensor a tensor each if an adapter
    changes one of them: merged into both, it would count in both.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = list(_embeddings(model))
    bases: list[Any] = [
        layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer for layer in layers
    ]
    is_changed = any(base is not layer for base, layer in zip(bases, layers, strict=True))
    if is_changed and len(bases) == 2 and bases[0].weight is bases[1].weight:
        bases[1].weight = nn.Parameter(bases[1].weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


def _rows(module: Any, weights: Mapping[str, Tensor]) -> Iterator[int]:
    """Sizes of the vocabulary in an adapter's embeddings and vocabulary weights."""
    layers = list(_embeddings(module))
    for place_, layer in module.named_modules():
        if not any(layer is own for own in layers):
            continue
        for name, weight in weights.items():
            _, is_there, part = name.partition(f".{place_}.")
            if is_there and part in {"weight", "bias", "lora_B.weight"}:
                yield int(weight.shape[0])
            elif is_there and part == "lora_embedding_A":
                yield int(weight.shape[1])


def _trained(config: Any) -> Iterator[int]:
    """One more than each token id that the adapter trained alone."""
    given = getattr(config, "trainable_token_indices", None) or []
    for indices in given.values() if isinstance(given, dict) else [given]:
        yield from (index + 1 for index in indices)


def _refuse_empty_rows(module: Any, old: int, adapter: str) -> None:
    for layer in _embeddings(module):
        weight: Any = layer.weight
        if weight.shape[0] == old:
            continue
        empty = weight[old:].isnan().flatten(1).any(dim=1).nonzero().flatten() + old
        if len(empty):
            name = next(name for name, own in module.named_modules() if own is layer)
            raise DraftwiseError(
                f"the adapter {adapter} has tokens that its base model does not have, and no "
                f"weights of {name} for {listed([str(int(token)) for token in empty])}: train and "
                "save it with modules_to_save or trainable_token_indices"
            )
