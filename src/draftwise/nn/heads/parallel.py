"""Heads that predict several tokens in one forward: Medusa and DFlash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

from draftwise.nn.heads import eagle, files
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

DFLASH = "DFlash head"
MEDUSA = "Medusa head"
MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
AttendBlock = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, S, d], k and v [N, G, S, d] of N blocks) -> [N, H, S, d]."""
Store = Callable[[int, Tensor, Tensor], None]
"""(layer, k and v [R, G, T, d] of the states read of R texts)."""


class MedusaHeads(nn.ModuleList):
    """Heads that turn the target's last hidden state into logits.

    Source: Medusa (Cai et al. 2024), section 2.1.1; weights named as in the authors' files,
    ``{head}.{layer}.linear.weight`` and, of the head's ``lm_head``, ``{head}.{layers}.weight``.
    """

    def __init__(self, num_heads: int, num_layers: int, hidden_size: int, vocab_size: int) -> None:
        super().__init__(
            nn.Sequential(
                *[ResBlock(hidden_size) for _ in range(num_layers)],
                nn.Linear(hidden_size, vocab_size, bias=False),
            )
            for _ in range(num_heads)
        )

    def logits(self, states: Tensor, num: int) -> Tensor:
        """[num, R, V] of the first heads; from states [R, D] after s, head i predicts s + i + 2."""
        return torch.stack([head(states) for head in list(self)[:num]])

    @property
    def num_parameters(self) -> int:
        return sum(weights.numel() for weights in self.parameters())


class ResBlock(nn.Module):
    """x + SiLU(Wx + b)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, states: Tensor) -> Tensor:
        added: Tensor = states + nn.functional.silu(self.linear(states))
        return added


def load_medusa_heads(source: str | Path, target: CausalModel) -> MedusaHeads:
    """Heads for this target from a folder or hub id, in the target's dtype and on its device.

    Takes the authors' layout: ``config.json`` with ``medusa_num_heads`` and ``medusa_num_layers``,
    and ``medusa_lm_head.safetensors`` or ``.pt``, which may hold more heads than the configuration
    counts: all are used. Raises DraftwiseError for fewer heads, a missing or unmatched key, a wrong
    shape, or heads made for another target.
    """
    folder = files.find_folder(str(source), MEDUSA, MEDUSA_FILES)
    what = f"{MEDUSA} {folder}"
    num_heads, num_layers = _counts(files.read_settings(folder, MEDUSA), folder)
    present = [folder / name for name in MEDUSA_FILES if (folder / name).is_file()]
    if not present:
        raise DraftwiseError(f"{folder} has neither {MEDUSA_FILES[0]} nor {MEDUSA_FILES[1]}")
    weights = files.read_weights(present[:1])
    found = {number for name in weights if (number := name.partition(".")[0]).isdigit()}
    num_heads = max(num_heads, len(found))
    first = weights.get(f"0.{num_layers}.weight")
    if first is not None and first.dim() == 2:
        files.refuse_other_target(what, first.shape[1], first.shape[0], target)
    with torch.device("meta"):  # the weights come from the file
        heads = MedusaHeads(num_heads, num_layers, target.hidden_size, target.vocab_size)
    return files.put_weights(heads, weights, target, what)


def _counts(settings: Mapping[str, Any], folder: Path) -> tuple[int, int]:
    heads, layers = (settings.get(f"medusa_num_{part}") for part in ("heads", "layers"))
    if not (isinstance(heads, int) and isinstance(layers, int) and min(heads, layers) > 0):
        raise DraftwiseError(
            f"{folder}/config.json has medusa_num_heads={heads} and medusa_num_layers={layers}: "
            "both must be numbers from 1 on"
        )
    return heads, layers


@dataclass(frozen=True, slots=True)
class BlockShape:
    """size: slots of a block; slot 0 holds the text's last token. mask: the token in the others.
    first: the slot that predicts the next token: 1, or 0 for heads that are trained that way.
    """

    size: int
    mask: int
    first: int

    @property
    def longest(self) -> int:
        return self.size - self.first


class DFlashHead(eagle.BorrowingHead):
    """Layers that attend to keys and values of the target's states, and to a block in full.

    Source: DFlash (Chen et al. 2026, arXiv 2602.06036), as ``speculators`` 0.9 implements it:
    states of some target layers, reduced by ``fc`` and normed, are keys and values in every layer;
    the block is the last token and masks; slot s predicts the token at its position. Parameters
    are named as in its checkpoints. Cost: one forward of a block per draft.
    """

    def __init__(
        self,
        config: eagle.EagleConfig,
        num_layers: int,
        block: BlockShape,
        embed: nn.Module,
        lm_head: nn.Module | None,
    ) -> None:
        """embed: the target's. lm_head: the target's, or None to create one."""
        super().__init__()
        self.config, self.block, size = config, block, config.hidden_size
        self.fc = nn.Linear(len(config.taps) * config.target_hidden_size, size, bias=False)
        self.hidden_norm, self.norm = (eagle.Norm(size, config.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList(_BlockLayer(config) for _ in range(num_layers))
        self.borrow(size, config.vocab_size, config.draft_vocab_size, embed, lm_head)
        self._angles = eagle.Angles(config)

    def read(self, states: Tensor, positions: Tensor, store: Store, longest: int) -> None:
        """Store keys and values of the target's states [R, T, taps x D] at positions < longest."""
        fused = self.hidden_norm(self.fc(states))
        cos, sin = self._angles(positions, longest, self.fc.weight)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, _BlockLayer)
            store(number, *layer.self_attn.keys_and_values(fused, cos, sin))

    def forward(self, last: Tensor, positions: Tensor, attend: AttendBlock, longest: int) -> Tensor:
        """States [N, S, h] of blocks after the tokens ``last`` [N] at ``positions``; those from
        ``block.first`` on predict the next tokens. longest: exceeds all positions of the blocks.
        """
        slots = torch.arange(self.block.size, device=last.device)
        tokens = torch.full((len(last), self.block.size), self.block.mask, device=last.device)
        tokens[:, 0] = last
        hidden = self.embed(tokens)
        cos, sin = self._angles(positions[:, None] + slots, longest, self.fc.weight)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, cos, sin, partial(attend, number))
        normed: Tensor = self.norm(hidden)
        return normed


class _BlockLayer(nn.Module):
    def __init__(self, config: eagle.EagleConfig) -> None:
        super().__init__()
        self.self_attn = eagle.Attention(config, config.hidden_size, o_bias=config.attention_bias)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = eagle.Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = eagle.Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attend: eagle.Attend) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin, attend)
        added: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added


def load_dflash_head(source: str | Path, target: CausalModel) -> DFlashHead:
    """A head for this target from a folder or hub id, in the target's dtype and on its device.

    Takes ``speculators``' layout. Embeddings are the target's, as is ``lm_head`` if the files have
    none and every token can be drafted. Raises DraftwiseError for a missing or unmatched key, a
    wrong shape, an unsupported variant (sliding layers), or a head made for another target.
    """
    folder = files.find_folder(str(source), DFLASH, ["*.safetensors", "*.bin"])
    settings, weights = files.read_settings(folder, DFLASH), eagle.read_head_weights(folder)
    what = f"{DFLASH} {folder}"
    if (kind := settings.get("speculators_model_type")) != "dflash":
        raise DraftwiseError(f"{what}: speculators_model_type is {kind!r}, not 'dflash'")
    for name in ("t2d", "embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"):
        weights.pop(name, None)  # derived from d2t, or the target's
    layer = settings.get("transformer_layer_config") or {}
    block = _block(settings, layer, what)
    taps = tuple(settings["aux_hidden_state_layer_ids"])
    bias = "layers.0.self_attn.q_proj.bias" in weights
    config = eagle.head_config(
        settings, layer, target.module.config, taps=taps, attention_bias=bias, qk_norm=True
    )
    files.refuse_other_target(what, config.target_hidden_size, config.vocab_size, target)
    if config.hidden_size != target.hidden_size:
        raise DraftwiseError(
            f"{what} is {config.hidden_size} wide, and its target's embeddings {target.hidden_size}"
        )
    is_whole = config.draft_vocab_size == config.vocab_size and "lm_head.weight" not in weights
    embed = target.module.get_input_embeddings()
    lm_head = target.module.get_output_embeddings() if is_whole else None
    with torch.device("meta"):  # the weights come from the file
        head = DFlashHead(config, layer["num_hidden_layers"], block, embed, lm_head)
    return eagle.fill(head, weights, target, what)


def _block(settings: Mapping[str, Any], layer: Mapping[str, Any], what: str) -> BlockShape:
    """The shape of a block; DraftwiseError for missing numbers and unsupported variants."""
    files.refuse_missing(what, layer, (*eagle.REQUIRED, "num_hidden_layers"))
    files.refuse_missing(
        what, settings, ("block_size", "mask_token_id", "aux_hidden_state_layer_ids")
    )
    if "sliding_attention" in (layer.get("layer_types") or []):
        raise DraftwiseError(f"{what} has layers that slide, which are not served")
    size, mask = settings["block_size"], settings["mask_token_id"]
    first = 0 if settings.get("sample_from_anchor") else 1
    if size <= first or not 0 <= mask < layer["vocab_size"]:
        raise DraftwiseError(f"{what}: block_size={size} and mask_token_id={mask} make no block")
    return BlockShape(size, mask, first)
