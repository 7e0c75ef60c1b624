"""Constants of the zoo's recipe: seeds, sizes and training phases."""

from __future__ import annotations

from dataclasses import dataclass

SEED = 20261121
TOKENS_PER_STEP = 2048
SPECIALISTS = ("python", "math", "sql", "prose", "translate", "edit")
GENERALIST = "generalist"
DRAFTERS = (*SPECIALISTS, GENERALIST)
EAGLE_GENERALIST = "eagle-generalist"
EAGLES = {
    EAGLE_GENERALIST: (*SPECIALISTS, "mixed"),
    "eagle-python": ("python",),
    "eagle-math": ("math",),
    "eagle-edit": ("edit",),
}
"""EAGLE heads, the generalist first, and the domains that each is trained on."""
TEMPERATURES = (0.0, 0.3, 0.7, 1.0)  # MetaSD, appendix F.1
NUM_SAMPLES = 192  # answers of the target per domain
NUM_REAL = 384  # documents per domain, scored by the target
NUM_HELDOUT = 16  # prompts per domain
ROWS_PER_SAMPLING = 96
MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Phase:
    """One training phase; batches of documents have `TOKENS_PER_STEP` tokens."""

    name: str
    num_layers: int
    steps: int
    context: int
    lr: float
    decay: bool | str = False  # to zero over all steps, or over the last half


# A shallow model trains on the same tokens three times faster; it is then deepened, layer by
# layer, without changing its function, and training continues at full depth.
TARGET_PHASES = (
    Phase("shallow", 8, 4000, 256, 3e-3),
    Phase("deep", 24, 200, 256, 2e-3),
    Phase("long", 24, 450, 512, 2e-3, decay=True),
)

PRETRAINING = Phase("drafter", 1, 900, 256, 4e-3, decay="half")
DISTILLATION = Phase("drafter", 1, 600, 0, 2e-3, decay=True)
# A head trains on endless documents first, or it would memorise its lessons; specialists start from
# the generalist and need only a quarter of the steps.
EAGLE_DOCUMENTS = Phase("documents", 1, 450, 256, 4e-3)
EAGLE_PHASES = (EAGLE_DOCUMENTS, Phase("lessons", 1, 250, 0, 2e-3, decay=True))
SPECIAL_PHASES = (
    Phase("documents", 1, 80, 256, 2e-3),
    Phase("lessons", 1, 100, 0, 1e-3, decay=True),
)
EAGLE_PASSES = {"documents": 2, "lessons": 5}  # draft tokens unrolled in training
EAGLE_DEPTHS = 6  # draft tokens measured

NUM_STOP_PROMPTS = 96  # per domain, for the acceptance heads
STOP_LAYERS, STOP_W_REJ = 3, 1.0  # measured: docs/lab/reproduction/specdecpp.md

NOMINAL_MINUTES = 114.0  # time of the bundled build: two processes on two shared cores
