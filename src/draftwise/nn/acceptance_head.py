"""The acceptance head of SpecDec++ as a torch module, and its file: what training works on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from draftwise.lines import replacing, write_text
from draftwise.nn.head_files import read_settings, read_weights
from draftwise.types import DraftwiseError


class ResBlock(nn.Module):
    """x + SiLU(Wx + b)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[.., D] -> [.., D]."""
        return hidden + nn.functional.silu(self.linear(hidden))


class AcceptanceHead(nn.Module):
    """Hidden state of a drafted token -> the log-odds that it is accepted.

    Source: SpecDec++, section 5.1: a ResNet of ``num_layers`` + 1 layers with SiLU.
    Differs: the residual layers are independent; the authors' code repeats one module, so that all
    of theirs share their weights (``tied=True``).
    """

    def __init__(self, hidden_size: int, num_layers: int, *, tied: bool = False) -> None:
        super().__init__()
        if hidden_size < 1 or num_layers < 0:
            raise ValueError(f"hidden_size {hidden_size} and num_layers {num_layers} make no head")
        self.hidden_size, self.num_layers = hidden_size, num_layers
        if tied:
            blocks = [ResBlock(hidden_size)] * num_layers
        else:
            blocks = [ResBlock(hidden_size) for _ in range(num_layers)]
        self.model = nn.Sequential(*blocks, nn.Linear(hidden_size, 2))

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, D] -> [N], in float32."""
        logits: Tensor = self.model(hidden).float()
        return logits[:, 1] - logits[:, 0]


def save(head: AcceptanceHead, folder: str | Path, about: Mapping[str, Any] | None = None) -> None:
    """Write the authors' layout, in half precision; ``about`` adds keys to the config."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"hidden_size": head.hidden_size, "num_layers": head.num_layers, **(about or {})}
    # tied layers are written out one by one, as the authors' checkpoints have them
    tensors = {k: v.detach().cpu().half().clone() for k, v in head.state_dict().items()}
    write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")
    with replacing(folder / "model.safetensors") as unfinished:  # it may be being read
        save_file(tensors, unfinished, {"format": "pt"})


def load(folder: str | Path) -> AcceptanceHead:
    """Read a head, ours or the authors' (``model.safetensors`` or ``pytorch_model.bin``).

    Raises DraftwiseError where there is none.
    """
    folder = Path(folder)
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if not (folder / "config.json").exists() or not (safe.exists() or pickled.exists()):
        raise DraftwiseError(f"there is no acceptance head in {folder}: it needs config.json")
    config = read_settings(folder, "acceptance head")
    config = config.get("config", config)
    head = AcceptanceHead(int(config["hidden_size"]), int(config.get("num_layers", 0)))
    stored = read_weights([safe if safe.exists() else pickled])
    first = {name: value for name, value in stored.items() if name.startswith("model.0.linear")}
    for index in range(head.num_layers):  # a file of tied layers may hold them once
        for name, value in first.items():
            stored.setdefault(name.replace("model.0", f"model.{index}"), value)
    head.load_state_dict({name: value.float() for name, value in stored.items()})
    return head
