"""The training loop: learning-rate schedule, and checkpoints that resume bit by bit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwise.files import replacing
from draftwise.types import DraftwiseError

Loss = Callable[[Any, Any], Tensor]  # (model, batch) -> a scalar, the mean loss in nats per token
Batches = Callable[[int], Any]  # step -> batch; a pure function, so that runs can resume
Progress = Callable[[int, float], None]  # (steps done, loss of the last step), after every step
CHECKPOINT_S = 120.0


@dataclass(frozen=True)
class TrainingSettings:
    """Warm-up, plateau, then linear decay to zero, all within ``steps``; ``clip`` bounds the
    gradient's norm.
    """

    steps: int
    lr: float = 2e-3
    warmup_steps: int = 50
    decay_steps: int = 0
    clip: float = 1.0
    weight_decay: float = 0.05
    bf16: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup_steps < 0 or self.decay_steps < 0:
            raise ValueError(f"steps must be positive and ramps not negative, got {self}")

    def rate(self, step: int) -> float:
        up = min(1.0, (step + 1) / max(1, self.warmup_steps))
        down = min(1.0, (self.steps - step) / max(1, self.decay_steps))
        return self.lr * min(up, down)


def fit(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    settings: TrainingSettings,
    *,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> list[float]:
    """Train `model` in place and return the loss of every step.

    The run is saved to `checkpoint` every `CHECKPOINT_S` seconds and at the end, and resumes from
    it; on one machine with the same weights, bit by bit. `stop_at` ends a run early without
    changing its schedule. Raises DraftwiseError if loss or gradient is not finite (model and
    checkpoint are those of the last good step) or the checkpoint cannot be written.
    """
    run = TrainingRun(model, settings, checkpoint)
    model.train()
    saved = time.monotonic()
    last = settings.steps if stop_at is None else min(stop_at, settings.steps)
    while (step := len(run.losses)) < last:
        if not run.advance(loss, batches(step)):
            run.save()
            kept = f" (the weights before that step are kept in {checkpoint})" if checkpoint else ""
            raise DraftwiseError(
                f"the loss is no number at step {step}{kept}: start again at a lower rate"
            )
        if progress is not None:
            progress(len(run.losses), run.losses[-1])
        if len(run.losses) == last or time.monotonic() - saved > CHECKPOINT_S:
            run.save()
            saved = time.monotonic()
    return run.losses


class TrainingRun:
    def __init__(
        self, model: nn.Module, settings: TrainingSettings, path: Path | None = None
    ) -> None:
        self._model, self._settings, self._path = model, settings, path
        params = [p for p in model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [  # norms are not decayed
            {"params": [p for p in params if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98))
        self.losses: list[float] = []
        if path is not None and path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
            model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"])
            self.losses = list(state["losses"])

    def advance(self, loss: Loss, batch: Any) -> bool:
        """Run one step; return False, and change nothing, if loss or gradient is not finite."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.rate(len(self.losses))
        device = next(self._model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._settings.bf16):
            value = loss(self._model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.clip)
        found = float(value.detach())
        is_sound = math.isfinite(found) and math.isfinite(float(norm))
        if is_sound:
            self._optimizer.step()
            self.losses.append(found)
        self._optimizer.zero_grad(set_to_none=True)
        return is_sound

    def save(self) -> None:
        if (path := self._path) is None:
            return
        model, optimizer = self._model.state_dict(), self._optimizer.state_dict()
        state = {"model": model, "optimizer": optimizer, "losses": self.losses}
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as unfinished, unfinished.open("wb") as file:
                torch.save({**state, "rng": torch.get_rng_state()}, file)
        except (OSError, RuntimeError) as error:  # torch wraps the file's error
            why = error.strerror if isinstance(error, OSError) else error.__cause__ or error
            before = "; the one before it is whole" if path.exists() else ""
            raise DraftwiseError(
                f"the checkpoint {path} cannot be written ({why}){before}: make room, and give the "
                "same command again to go on"
            ) from error
