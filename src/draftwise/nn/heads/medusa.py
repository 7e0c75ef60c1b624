"""Medusa heads: what the target says next but one, next but two, ..., from one hidden state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwise.nn.heads.files import (
    find_folder,
    put_weights,
    read_settings,
    read_weights,
    refuse_other_target,
)
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

KIND = "Medusa head"
FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


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
        """[num, R, V] of the first heads, from states [R, D] after token s; head i: s + i + 2."""
        return torch.stack([head(states) for head, _ in zip(self, range(num), strict=False)])

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
    counts: all are used. Raises DraftwiseError for fewer heads, a missing or unmatched key, a
    shape, or heads made for another target.
    """
    folder = find_folder(str(source), KIND, FILES)
    what = f"{KIND} {folder}"
    num_heads, num_layers = _counts(read_settings(folder, KIND), folder)
    files = [folder / name for name in FILES if (folder / name).is_file()]
    if not files:
        raise DraftwiseError(f"{folder} has neither {FILES[0]} nor {FILES[1]}")
    weights = read_weights(files[:1])
    found = {number for name in weights if (number := name.partition(".")[0]).isdigit()}
    num_heads = max(num_heads, len(found))
    first = weights.get(f"0.{num_layers}.weight")
    if first is not None and first.dim() == 2:
        refuse_other_target(what, first.shape[1], first.shape[0], target)
    with torch.device("meta"):  # the weights come from the file
        heads = MedusaHeads(num_heads, num_layers, target.hidden_size, target.vocab_size)
    return put_weights(heads, weights, target, what)


def _counts(settings: Mapping[str, Any], folder: Path) -> tuple[int, int]:
    heads, layers = (settings.get(f"medusa_num_{part}") for part in ("heads", "layers"))
    if not (isinstance(heads, int) and isinstance(layers, int) and min(heads, layers) > 0):
        raise DraftwiseError(
            f"{folder}/config.json has medusa_num_heads={heads} and medusa_num_layers={layers}: "
            "both must be numbers from 1 on"
        )
    return heads, layers
