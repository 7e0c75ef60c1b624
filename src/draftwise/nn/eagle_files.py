"""Files of EAGLE heads: both layouts, matched with parameters by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from draftwise.files import STATE_BYTES, local_path, looks_local, read_text, strict_json
from draftwise.nn.eagle import EagleConfig, EagleHead, lent_rows
from draftwise.nn.folder import check_hub
from draftwise.nn.layout import lay_out, multiplies_bfloat16
from draftwise.nn.load import listed
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

KIND = "EAGLE head"
LENT = "lm_head_from_target"
"""Key of ``config.json``, true if ``lm_head`` is the target's, at the rows of ``d2t``."""
_OURS = {
    "layers.0.": "midlayer.",
    "transformer.": "midlayer.",
    "fusion_fc.": "fc.",
    "draft_id_to_target_id": "d2t",
    "target_id_to_draft_id": "t2d",
}
"""Prefixes of names in other layouts, and here (as in the EAGLE-3 authors' files)."""
_UNKNOWN = ("norm_before_fc", "fc_norm", "norm_output", "layernorms")
"""Unsupported variants of some ``speculators`` heads, which draft nonsense if these are ignored."""
LLAMA = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "vocab_size",
)
"""Fields that a head's configuration shares with a ``LlamaConfig``."""
REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
TAPS = "eagle_aux_hidden_state_layer_ids"


def load_head(source: str | Path, target: CausalModel) -> EagleHead:
    """A head for this target from a folder or hub id, on its device and in its dtype (``_dtype``).

    Takes the authors' layout (``config.json`` and ``model.safetensors`` or ``pytorch_model.bin``)
    and that of vLLM's ``speculators``. Missing embeddings and ``lm_head`` are the target's. Raises
    DraftwiseError for a missing or unmatched key, a wrong shape, an unsupported variant, or a head
    for another target.
    """
    folder = _find_folder(str(source))
    settings = read_settings(folder, KIND)
    weights = _renamed(_head_weights(folder), folder)
    config = _config(settings, weights, target, folder)
    what = f"{KIND} {folder}"
    _refuse_other_target(what, config, target)
    embed = None if "embed_tokens.weight" in weights else target.module.get_input_embeddings()
    lent = _lent(settings, weights, config, target)
    with torch.device("meta"):  # the weights come from the file
        head = EagleHead(config, embed, lent)
    return _filled(head, weights, target, what)


def _lent(
    settings: Mapping[str, Any], weights: Mapping[str, Tensor], config: EagleConfig,
    target: CausalModel,
) -> nn.Module | None:  # fmt: skip
    """The target's output layer for a head without ``lm_head``; with LENT, the ``d2t`` rows."""
    if "lm_head.weight" in weights:
        return None
    theirs: nn.Module = target.module.get_output_embeddings()
    if config.draft_vocab_size == config.vocab_size:
        return theirs
    offsets = weights.get("d2t")
    if not settings.get(LENT) or offsets is None or config.vocab_size != target.vocab_size:
        return None  # the check of the keys reports what is missing
    ids = torch.arange(len(offsets)) + offsets
    if target.module.config.get_text_config().tie_word_embeddings:
        theirs = target.module.get_input_embeddings()  # the same rows, not quantised
    return lent_rows(theirs, ids.clamp(0, target.vocab_size - 1))  # ``fill`` refuses others


def _head_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head's folder; DraftwiseError where there are none."""
    found = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not found:
        raise DraftwiseError(f"{folder} has neither model.safetensors nor pytorch_model.bin")
    return read_weights(found)


def _renamed(weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The same weights under this project's names, without ``t2d``, which follows from ``d2t``."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        start = next((start for start in _OURS if name.startswith(start)), "")
        ours = _OURS.get(start, "") + name.removeprefix(start)
        if ours in found:
            raise DraftwiseError(f"{folder}: {name!r} is there twice, under two layouts' names")
        found[ours] = tensor
    found.pop("t2d", None)
    return found


def _config(
    settings: Mapping[str, Any], weights: Mapping[str, Tensor], target: CausalModel, folder: Path
) -> EagleConfig:
    layer = settings.get("transformer_layer_config", settings)
    _refuse_missing(f"{KIND} {folder}", layer)
    served = [name for name in _UNKNOWN if settings.get(name)]
    if served or layer.get("num_hidden_layers", 1) != 1:
        what = served[0] if served else f"{layer['num_hidden_layers']} layers"
        raise DraftwiseError(f"{folder} is an EAGLE head with {what}, which is not served")
    is_third = _is_third(settings, weights)
    return head_config(
        settings, layer, target.module.config, generation=3 if is_third else 1,
        taps=_taps(settings, target) if is_third else (target.num_layers,),
        fc_bias="fc.bias" in weights or bool(settings.get("fusion_bias")),
        attention_bias="midlayer.self_attn.q_proj.bias" in weights,
        mlp_bias="midlayer.mlp.up_proj.bias" in weights,
        qk_norm="midlayer.self_attn.q_norm.weight" in weights,
        norm_before_residual=bool(settings.get("norm_before_residual")),
    )  # fmt: skip


def head_config(
    settings: Mapping[str, Any], layer: Mapping[str, Any], config: Any, **own: Any
) -> EagleConfig:
    """The config of a head; layer: its Llama part. config: the target's. own: further fields.

    Raises DraftwiseError for values of another type.
    """
    found = {name: layer[name] for name in LLAMA if layer.get(name)}
    sizes = {name: settings.get(name) or 0 for name in ("draft_vocab_size", "target_hidden_size")}
    try:
        return EagleConfig(**(found | sizes | own), rope_parameters=rope_of(layer, config))
    except Exception as error:
        raise DraftwiseError(f"this config.json describes no head: {error}") from error


def _is_third(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> bool:
    kind = settings.get("speculators_model_type")
    if kind not in {None, "eagle", "eagle3"}:
        raise DraftwiseError(f"this is a speculator of the kind {kind!r}; served: eagle, eagle3")
    is_named = any("eagle3" in str(name).lower() for name in settings.get("architectures") or [])
    marks = {"midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight", "d2t"}
    return kind == "eagle3" or is_named or bool(marks & weights.keys())


def default_taps(num_layers: int) -> tuple[int, ...]:
    """States that EAGLE-3 heads read by default: inputs of layers 2, n/2 and n - 3.

    >>> default_taps(32)
    (2, 16, 29)
    """
    return tuple(sorted((min(2, num_layers), num_layers // 2, max(0, num_layers - 3))))


def _taps(settings: Mapping[str, Any], target: CausalModel) -> tuple[int, ...]:
    """Taps in ascending order, in which states are concatenated; tap n is the INPUT of layer n.

    vLLM and speculators number them so; ``eagle_config`` (SGLang, SpecForge, ModelOpt) lists layers
    whose OUTPUT is read, which is the input of the next.
    """
    outputs = (settings.get("eagle_config") or {}).get(TAPS) or []
    given = settings.get(TAPS) or [number + 1 for number in outputs]
    return tuple(sorted(given)) if given else default_taps(target.num_layers)


def rope_of(layer: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """The head's rotary settings in the form of transformers 5, or else those of its target.

    config: the target's. If settings differ by layer type, those of windowed layers are used, since
    the next token depends on nearby ones.
    """
    found = dict(layer.get("rope_parameters") or layer.get("rope_scaling") or {})
    if "type" in found:
        found["rope_type"] = found.pop("type")
    if layer.get("rope_theta"):
        found.setdefault("rope_theta", layer["rope_theta"])
    if not found:
        found = dict(getattr(config.get_text_config(), "rope_parameters", None) or {})
    kinds = {name: own for name, own in found.items() if isinstance(own, Mapping)}
    return dict(kinds.get("sliding_attention", next(iter(kinds.values()), found)))


def _filled(
    head: EagleHead, weights: dict[str, Tensor], target: CausalModel, what: str
) -> EagleHead:
    """Load all weights into a head on ``meta``, floats as ``_dtype`` says, and lay them out.

    Raises DraftwiseError for keys and shapes that do not fit, and for tokens that the target lacks.
    """
    places, buffers = head.state_dict(), dict(head.named_buffers())
    offsets = weights.get("d2t")
    if "d2t" not in places and offsets is not None and not offsets.any():
        weights.pop("d2t")  # the whole vocabulary, in its order
    _refuse_mismatch(what, {name: tuple(place.shape) for name, place in places.items()}, weights)
    dtype = _dtype(head, weights, target)
    cast = {
        name: tensor.to(target.device, places[name].dtype if name in buffers else dtype)
        for name, tensor in weights.items()
    }
    head.load_state_dict(cast, strict=True, assign=True)
    ids, size = head.draft_ids, target.vocab_size
    drafted = set() if ids is None else set(ids.tolist())
    if ids is not None and (len(drafted) < len(ids) or not drafted <= set(range(size))):
        raise DraftwiseError(
            f"{what}: d2t does not lead to {len(ids)} different tokens below {size}"
        )
    head.target_dtype = target.dtype
    lay_out(head)
    if head.lent_rows is not None:  # no submodule of the head
        lay_out(head.lent_rows.to(dtype))
    return head.eval().requires_grad_(False)


def _dtype(head: EagleHead, weights: Mapping[str, Tensor], target: CausalModel) -> torch.dtype:
    """The target's dtype, or bfloat16 if the file is in it and a CPU multiplies it faster.

    Drafts are verified with the probabilities that they were drawn from, so that a head of lower
    precision is as lossless.
    """
    is_of_target = head.borrowed[1] is not None and head.draft_ids is None  # its output layer
    floats = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    is_slow = target.dtype == torch.float32 and target.device.type == "cpu"
    if floats == {torch.bfloat16} and is_slow and multiplies_bfloat16() and not is_of_target:
        return torch.bfloat16
    return target.dtype


def _find_folder(source: str) -> Path:
    """A local folder, or the snapshot of a hub id; else DraftwiseError."""
    path = local_path(source)
    if path.is_dir():
        return path
    if looks_local(source) or "/" not in source:
        raise DraftwiseError(f"there is no {KIND} in {source}: give a folder or a hub id")
    check_hub(source)
    try:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(source, allow_patterns=["config.json", "*.safetensors", "*.bin"])
        )
    except Exception as error:
        raise DraftwiseError(f"cannot get the {KIND} {source}: {error}") from error


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


def _refuse_missing(what: str, settings: Mapping[str, Any]) -> None:
    """Raise DraftwiseError if a required number is missing in ``config.json``."""
    for key in REQUIRED:
        if not isinstance(settings.get(key), int):
            raise DraftwiseError(f"{what}: its config.json has no {key!r}")


def _refuse_other_target(what: str, config: EagleConfig, target: CausalModel) -> None:
    """Raise DraftwiseError, with both sizes, for a head that was made for another target."""
    for size, theirs, ours in (
        ("hidden size", config.target_hidden_size, target.hidden_size),
        ("vocabulary", config.vocab_size, target.vocab_size),
    ):
        if theirs != ours:
            raise DraftwiseError(
                f"{what} was made for a target of {size} {theirs}, and {target.name} has {ours}: a "
                "head serves only the target that it was trained on"
            )


def _refuse_mismatch(
    what: str, wanted: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]
) -> None:
    """Raise DraftwiseError for a key that is missing, unexpected, or of another shape."""
    if missing := wanted.keys() - weights.keys():
        raise DraftwiseError(f"{what} lacks {listed(missing)}")
    if unmatched := weights.keys() - wanted.keys():
        raise DraftwiseError(f"{what} has {listed(unmatched)}, which has no place")
    for name, shape in wanted.items():
        if tuple(weights[name].shape) != shape:
            raise DraftwiseError(
                f"{what}: {name} has the shape {tuple(weights[name].shape)}, and its config.json "
                f"asks for {shape}"
            )
