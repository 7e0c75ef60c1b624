"""EAGLE heads: modules (shared with other heads), forward, and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, rotate_half

from draftwise.checks import known
from draftwise.nn.cache import RaggedCache, RowSpan
from draftwise.nn.heads import files
from draftwise.nn.layout import lay_out
from draftwise.nn.model import CausalModel
from draftwise.nn.trees import Branches, ragged_slots, stacked_ids, stacked_rows, tree_masks
from draftwise.types import DraftwiseError


def spread(drafted: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """Expand logits of the tokens ``ids`` [..., len(ids)] to [..., V]: -inf for the others."""
    if ids is None:
        return drafted
    full = drafted.new_full((*drafted.shape[:-1], vocab_size), float("-inf"))
    full[..., ids] = drafted
    return full


class Norm(nn.RMSNorm):
    """RMSNorm of states whose precision may differ from the weight's."""

    def forward(self, states: Tensor) -> Tensor:
        weight = self.weight.to(states.dtype)
        return nn.functional.rms_norm(states, weight.shape, weight, self.eps)


def turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions, with halves as pairs (the layout of Llama and Qwen)."""
    found: Tensor = states * cos + rotate_half(states) * sin
    return found


def rotary_table(config: EagleConfig, num: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [num, d], with the configuration's scaling."""
    rotary = LlamaRotaryEmbedding(config).to(like.device)
    cos, sin = rotary(like, torch.arange(num, device=like.device)[None])
    return cos[0].to(like.dtype), sin[0].to(like.dtype)


class Angles:
    """cos and sin of positions, from a table that grows by doubling."""

    def __init__(self, config: EagleConfig) -> None:
        self._config = config
        self._table: tuple[Tensor, Tensor] | None = None

    def __call__(self, positions: Tensor, needed: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """[R, 1, T, d] each, with ``like``'s dtype and device; needed: exceeds all positions."""
        if self._table is None or needed > len(self._table[0]):
            with torch.inference_mode(False):  # training may use the table later
                self._table = rotary_table(self._config, max(256, 2 * needed), like)
        cos, sin = self._table
        return cos[positions][:, None], sin[positions][:, None]


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [R, H, T, d], k and v [R, G, T, d] of the T new tokens) -> [R, H, T, d]."""


class EagleConfig(LlamaConfig):  # type: ignore[misc]
    """The shape of a head, and of its layer.

    generation: 1 (EAGLE-1 and EAGLE-2, which differ only in the tree) or 3. taps: the hidden states
    it reads, numbered as by ``CausalModel.tap``. draft_vocab_size: tokens that it can draft, 0 =
    all; fewer need ``d2t``. target_hidden_size: 0 = the head's. qk_norm: Qwen3's norms of queries
    and keys. norm_before_residual: the residual is the normed hidden state.
    """

    generation: int = 3
    taps: tuple[int, ...] = ()
    draft_vocab_size: int = 0
    target_hidden_size: int = 0
    fc_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False

    def __post_init__(self, **more: Any) -> None:
        self.draft_vocab_size = self.draft_vocab_size or self.vocab_size
        self.target_hidden_size = self.target_hidden_size or self.hidden_size
        super().__post_init__(**more)


class BorrowingHead(nn.Module):
    """A head that may borrow the target's embeddings and output layer, outside its state dict.

    taps: the target's states that it reads, numbered as by ``CausalModel.tap``. draft_ids:
    [draft_vocab_size] the target's token for each drafted one; None = the same tokens.
    """

    title: str
    taps: tuple[int, ...]

    def borrow(
        self, size: int, vocab_size: int, draft_vocab_size: int, embed: Any, lm_head: Any
    ) -> None:
        """Borrow ``embed`` and ``lm_head``, or create them where they are None."""
        self._vocab_size = vocab_size
        self.embed_tokens = nn.Embedding(vocab_size, size) if embed is None else None
        self.lm_head = nn.Linear(size, draft_vocab_size, bias=False) if lm_head is None else None
        if draft_vocab_size != vocab_size:
            self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.int64))
        # in a tuple, so that torch does not register them as submodules
        self.borrowed: tuple[Any, Any] = (embed, lm_head)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values per token."""
        raise NotImplementedError

    def fuse(self, states: Tensor) -> Tensor:
        """Combine the target's states [..., taps x D] into the input of ``forward``, [..., h]."""
        return states

    def embed(self, tokens: Tensor) -> Tensor:
        found: Tensor = (self.embed_tokens or self.borrowed[0])(tokens)
        return found

    @property
    def draft_ids(self) -> Tensor | None:
        offsets: Tensor | None = getattr(self, "d2t", None)
        if offsets is None:
            return None
        return torch.arange(len(offsets), device=offsets.device) + offsets

    @property
    def num_parameters(self) -> int:
        """Weights used in products of a draft step: all but embeddings, which are looked up."""
        own = sum(p.numel() for name, p in self.named_parameters() if "embed_tokens" not in name)
        borrowed = self.borrowed[1]
        return own + sum(p.numel() for p in borrowed.parameters()) if borrowed else own

    def draft_logits(self, states: Tensor) -> Tensor:
        found: Tensor = (self.lm_head or self.borrowed[1])(states)
        return found

    def logits(self, states: Tensor) -> Tensor:
        """[..., vocab_size] logits, -inf for tokens that the head cannot draft."""
        return spread(self.draft_logits(states), self.draft_ids, self._vocab_size)


class EagleHead(BorrowingHead):
    """A head's weights and arithmetic; parameters are named as in the authors' EAGLE-3 checkpoints.

    Source: EAGLE (Li et al. 2024), section 3; EAGLE-3 (Li et al. 2025), section 3.1. Slot s reads
    token s + 1 and the target's hidden states after token s; its output g predicts token s + 2.
    EAGLE-1 mixes both by ``fc`` at every step, has no norm before its layer, and uses the target's
    ``lm_head``. EAGLE-3 reduces three layers' states by ``fc``, feeds its attention both, normed
    and concatenated, and continues drafts from g (before ``norm``) instead of the target's states.
    """

    def __init__(
        self, config: EagleConfig, embed: nn.Module | None = None, lm_head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config, size, is_third = config, config.hidden_size, config.generation == 3
        inputs = len(config.taps) * config.target_hidden_size if is_third else 2 * size
        self.fc = nn.Linear(inputs, size, bias=config.fc_bias)
        self.midlayer = _Layer(config)
        self.norm = Norm(size, config.rms_norm_eps) if is_third else None
        self.borrow(size, config.vocab_size, config.draft_vocab_size, embed, lm_head)
        self._angles = Angles(config)
        self.title, self.taps = f"EAGLE-{config.generation}", config.taps

    @property
    def token_bytes(self) -> int:
        return int(2 * self.config.num_key_value_heads * self.config.head_dim * self.dtype.itemsize)

    def fuse(self, states: Tensor) -> Tensor:
        return self.fc(states) if self.config.generation == 3 else states

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend, longest: int = 0
    ) -> Tensor:
        """g [R, T, h] of tokens [R, T] with fused or drafted states [R, T, h].

        longest: exceeds all positions; 0 = computed from them, which waits for the device.
        """
        embedded = self.embed(tokens)
        cos, sin = self._angles(positions, longest or int(positions.max()) + 1, self.fc.weight)
        if self.config.generation == 1:
            hidden = self.fc(torch.cat((embedded, hidden), dim=-1))
        found: Tensor = self.midlayer(embedded, hidden, cos, sin, attend)
        return found

    def draft_logits(self, states: Tensor) -> Tensor:
        return super().draft_logits(states if self.norm is None else self.norm(states))

    def set_vocabulary(self, ids: Tensor) -> None:
        """Set the tokens [draft_vocab_size] that a new head drafts, in ascending order."""
        self.get_buffer("d2t").copy_(ids - torch.arange(len(ids)))

    @property
    def lent_rows(self) -> nn.Module | None:
        """The rows of the target's output layer that the head uses, if not all."""
        return self.borrowed[1] if self.draft_ids is not None else None


class _Layer(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size, is_third = config.hidden_size, config.generation == 3
        self.self_attn = Attention(config, 2 * size if is_third else size, o_bias=False)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = Norm(size, config.rms_norm_eps)
        self.input_layernorm = Norm(size, config.rms_norm_eps) if is_third else None
        self.hidden_norm = Norm(size, config.rms_norm_eps) if is_third else None
        self._residual_is_normed = config.norm_before_residual

    def forward(
        self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        """A decoder layer over ``hidden``, in EAGLE-1 without a norm before its attention.

        In EAGLE-3, attention reads the normed embeddings, concatenated with the normed states.
        """
        inputs = hidden
        if self.input_layernorm is not None and self.hidden_norm is not None:
            normed = self.hidden_norm(hidden)
            inputs = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
            hidden = normed if self._residual_is_normed else hidden
        hidden = hidden + self.self_attn(inputs, cos, sin, attend)
        added: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added


class Attention(nn.Module):
    """Attention of Llama and Qwen with the caller's cache and masks."""

    def __init__(self, config: EagleConfig, num_inputs: int, *, o_bias: bool) -> None:
        super().__init__()
        self._dim, bias = config.head_dim, config.attention_bias
        queries = config.num_attention_heads * self._dim
        keys = config.num_key_value_heads * self._dim
        self.q_proj = nn.Linear(num_inputs, queries, bias=bias)
        self.k_proj = nn.Linear(num_inputs, keys, bias=bias)
        self.v_proj = nn.Linear(num_inputs, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=o_bias)
        self.q_norm = Norm(self._dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = Norm(self._dim, config.rms_norm_eps) if config.qk_norm else None

    def keys_and_values(self, inputs: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[R, G, T, d] each, of inputs [R, T, h]."""
        keys = turned(self._heads(self.k_proj, self.k_norm, inputs), cos, sin)
        return keys, self._heads(self.v_proj, None, inputs)

    def forward(self, inputs: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q = turned(self._heads(self.q_proj, self.q_norm, inputs), cos, sin)
        found = attend(q, *self.keys_and_values(inputs, cos, sin))
        output: Tensor = self.o_proj(found.transpose(1, 2).flatten(2))
        return output

    def _heads(self, projection: nn.Module, norm: nn.Module | None, inputs: Tensor) -> Tensor:
        rows, width, _ = inputs.shape
        found: Tensor = projection(inputs).view(rows, width, -1, self._dim)
        return (found if norm is None else norm(found)).transpose(1, 2)


def read(
    head: BorrowingHead,
    cache: RaggedCache,
    rows: Sequence[int],
    tokens: Sequence[Sequence[int] | Tensor],
    hidden: Sequence[Tensor],
    trees: Sequence[Branches | None] = (),
) -> list[Tensor]:
    """Feed each of R rows its next slots, advance the cache's lengths; return R g [num_fed, h].

    tokens, hidden: [num_fed] and [num_fed, h] of each row, at least one slot. trees: [R], None = a
    chain; empty = all are chains.
    Raises ValueError if a row does not fit into the cache.
    """
    spans = [RowSpan(r, cache.lengths[r], len(fed)) for r, fed in zip(rows, tokens, strict=True)]
    device = hidden[0].device
    positions, seen = _look(spans, trees, device)
    cache.place(spans)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.update(k, v, 0)
        return scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, enable_gqa=q.shape[1] != keys.shape[1]
        )

    width, longest = max(span.count for span in spans), max(span.end for span in spans)
    ids = stacked_ids(tokens, width, device)
    states = head(ids, stacked_rows(hidden, width), positions, attend, longest)
    for span in spans:
        cache.lengths[span.row] = span.end
    return [states[index, : span.count] for index, span in enumerate(spans)]


def _look(
    spans: Sequence[RowSpan], trees: Sequence[Branches | None], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Positions [R or 1, T] of the slots, and their mask [R, 1, T, used]; None = all slots."""
    counts = [span.count for span in spans]
    width, used = max(counts), max(span.end for span in spans)
    if not any(trees) and all(span.end == used and span.count == width for span in spans):
        keys = torch.arange(used, device=device)
        positions = keys[None, used - width :]
        return positions, None if width == 1 else keys <= positions[:, None, :, None]
    slots = ragged_slots([span.start for span in spans], counts)
    queries, _, seen = tree_masks(trees, slots, used, device)
    return queries, seen[:, None]


@torch.no_grad()
def lent_rows(layer: nn.Module, ids: Tensor) -> nn.Linear:
    """A frozen copy [n, D] of the rows of an output layer [V, D] for the tokens [n].

    Source: FR-Spec (Zhao et al. 2025, arXiv 2502.14856): drafting over frequent tokens saves most
    of the output layer's cost; the target verifies over all tokens.
    """
    own = {name: weights[ids.to(weights.device)] for name, weights in layer.named_parameters()}
    with torch.device("meta"):
        lent = nn.Linear(own["weight"].shape[1], len(ids), bias="bias" in own)
    lent.load_state_dict(own, assign=True)
    return lent.requires_grad_(False)


Borrowing = TypeVar("Borrowing", bound=BorrowingHead)
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
_TAPS = "eagle_aux_hidden_state_layer_ids"


def load_head(source: str | Path, target: CausalModel) -> EagleHead:
    """A head for this target from a folder or hub id, in the target's dtype and on its device.

    Takes the authors' layout (``config.json`` and ``model.safetensors`` or ``pytorch_model.bin``)
    and that of vLLM's ``speculators``. Missing embeddings and ``lm_head`` are the target's. Raises
    DraftwiseError for a missing or unmatched key, a wrong shape, an unsupported variant, or a head
    for another target.
    """
    folder = files.find_folder(str(source), KIND, ["*.safetensors", "*.bin"])
    settings = files.read_settings(folder, KIND)
    weights = _renamed(read_head_weights(folder), folder)
    config = _config(settings, weights, target, folder)
    what = f"{KIND} {folder}"
    files.refuse_other_target(what, config.target_hidden_size, config.vocab_size, target)
    embed = None if "embed_tokens.weight" in weights else target.module.get_input_embeddings()
    lent = _lent(settings, weights, config, target)
    with torch.device("meta"):  # the weights come from the file
        head = EagleHead(config, embed, lent)
    return fill(head, weights, target, what)


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


def read_head_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head's folder; DraftwiseError where there are none."""
    found = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not found:
        raise DraftwiseError(f"{folder} has neither model.safetensors nor pytorch_model.bin")
    return files.read_weights(found)


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
    files.refuse_missing(f"{KIND} {folder}", layer, REQUIRED)
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
    outputs = (settings.get("eagle_config") or {}).get(_TAPS) or []
    given = settings.get(_TAPS) or [number + 1 for number in outputs]
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


def fill(head: Borrowing, weights: dict[str, Tensor], target: CausalModel, what: str) -> Borrowing:
    """``put_weights`` and ``lay_out``; DraftwiseError for tokens that the target lacks."""
    offsets = weights.get("d2t")
    if "d2t" not in head.state_dict() and offsets is not None and not offsets.any():
        weights.pop("d2t")  # the whole vocabulary, in its order
    files.put_weights(head, weights, target, what)
    ids, size = head.draft_ids, target.vocab_size
    drafted = set() if ids is None else set(ids.tolist())
    if ids is not None and (len(drafted) < len(ids) or not drafted <= set(range(size))):
        raise DraftwiseError(
            f"{what}: d2t does not lead to {len(ids)} different tokens below {size}"
        )
    lay_out(head)
    return head


LAYOUTS = ("authors", "speculators")
_PREFIXES = {
    ("authors", 3): ("midlayer.", "fc."),
    ("authors", 1): ("layers.0.", "fc."),
    ("speculators", 3): ("layers.0.", "fc."),
    ("speculators", 1): ("transformer.", "fusion_fc."),
}
"""Prefixes of the names of the layer and of ``fc``, by layout and generation."""


def save_head(
    head: EagleHead,
    folder: Path,
    *,
    layout: str = "authors",
    dtype: torch.dtype | None = None,
    verifier: str = "",
) -> None:
    """Write ``config.json`` and ``model.safetensors``, without borrowed modules, except that
    ``speculators`` needs the rows of ``lm_head`` if the head uses only some of the target's.

    layout: ``authors`` (SafeAILab/EAGLE) or ``speculators`` (vLLM). dtype: of the stored weights,
    None = as they are. verifier: the target's name, for vLLM. Raises DraftwiseError for an unknown
    layout.
    """
    known("layout", layout, LAYOUTS)
    config = head.config
    layer, fc = _PREFIXES[layout, config.generation]
    weights = {
        re.sub(r"^fc\.", fc, re.sub(r"^midlayer\.", layer, name)): tensor
        for name, tensor in head.state_dict().items()
    }
    settings = _settings(config, layout, verifier)
    if head.lent_rows is not None and layout == "authors":
        settings[LENT] = True
    elif head.lent_rows is not None:
        weights["lm_head.weight"] = head.lent_rows.get_parameter("weight")
    copies = {
        name: tensor.detach().to(dtype if tensor.is_floating_point() else None).clone().contiguous()
        for name, tensor in weights.items()
    }
    if head.draft_ids is not None:
        copies["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        copies["t2d"][head.draft_ids.cpu()] = True
    folder.mkdir(parents=True, exist_ok=True)
    save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, "utf-8")


def _settings(config: EagleConfig, layout: str, verifier: str) -> dict[str, Any]:
    layer = {
        **{name: getattr(config, name) for name in LLAMA},
        "model_type": "llama",
        "num_hidden_layers": 1,
        "rope_parameters": config.rope_parameters,
        "rope_theta": config.rope_parameters["rope_theta"],  # where transformers 4 looks
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": False,
    }
    is_third = config.generation == 3
    names = ("draft_vocab_size", "target_hidden_size", "norm_before_residual") if is_third else ()
    own: dict[str, Any] = {name: getattr(config, name) for name in names}
    if layout == "authors" and not is_third:
        return layer | {"architectures": ["LlamaForCausalLM"], "bias": config.fc_bias}
    if layout == "authors":
        # layers whose output is tapped, not their input: see ``_taps``
        own["eagle_config"] = {_TAPS: [tap - 1 for tap in config.taps]}
        return layer | own | {"architectures": ["LlamaForCausalLMEagle3"]}
    algorithm = "eagle3" if is_third else "eagle"
    first = {"fusion_bias": config.fc_bias, "layernorms": False}
    own |= {_TAPS: list(config.taps)} if is_third else first
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return own | {
        "architectures": [f"{algorithm.capitalize()}Speculator"],
        "speculators_model_type": algorithm,
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier or None, "architectures": []},
        },
    }
