"""PEFT adapters: which base model they name, and merging them into it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import cached_file, find_adapter_config_file

from draftwise.install import hint
from draftwise.nn.complete import listed
from draftwise.nn.folder import place, read_object
from draftwise.types import DraftwiseError

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
