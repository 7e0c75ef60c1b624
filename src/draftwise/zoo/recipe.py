"""The numbers of the zoo's recipe: seeds, sizes and phases."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 20261121
TOKENS_PER_STEP = 2048


@dataclass(frozen=True)
class Phase:
    """One phase of the target's training: `steps` batches of `TOKENS_PER_STEP` tokens."""

    name: str
    num_layers: int
    steps: int
    context: int
    lr: float
    decay: bool = False


# A shallow model learns the same tokens three times faster; it is then made deeper, layer by
# layer, without changing its function, and learns on with all of its depth.
TARGET_PHASES = (
    Phase("shallow", 8, 2200, 256, 3e-3),
    Phase("deep", 24, 850, 256, 2e-3),
    Phase("long", 24, 550, 512, 2e-3, decay=True),
)
