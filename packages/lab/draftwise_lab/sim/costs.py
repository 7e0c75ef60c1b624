"""Costs of a simulated engine: seconds by number of tokens, batch size and drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from draftwise.files import STATE_BYTES, read_text, strict_json
from draftwise.types import NONE, Costs, DraftwiseError, Floats

SCORE_SHARE = 0.5
"""Cost of a scoring-only forward, relative to a draft step: such forwards run together."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of every call, by batch size.

    target_s: batch size -> seconds of target forwards over 1, 2, .. tokens per row; extrapolated
    with the last slope, and interpolated between batch sizes. draft_s: seconds of one draft step by
    drafter; ``other_s`` for unlisted drafters. score_share: seconds of scoring a drafter that did
    not draft, relative to its draft step. read_share: the same for each further token in a
    drafter's forward (when it catches up, is probed or processes other drafters' tokens).
    """

    target_s: Mapping[int, Sequence[float]]
    draft_s: Mapping[str, float] = field(default_factory=dict)
    other_s: float = 0.0
    score_share: float = SCORE_SHARE
    read_share: float = 0.0

    def at(self, batch_size: int, drafters: Sequence[str], longest: int) -> Costs:
        """Costs that an engine would report for this batch size after measuring everything."""
        known = sorted(self.target_s)
        curves = np.array([_stretched(self.target_s[size], longest + 1) for size in known])
        target_s = np.array([np.interp(batch_size, known, column) for column in curves.T])
        steps = {name: self.draft_s.get(name, self.other_s) for name in drafters if name != NONE}
        reads = {name: self.read_share * s for name, s in steps.items()} if self.read_share else {}
        return Costs(target_s, steps, read_s=reads)


def _stretched(seconds: Sequence[float], num: int) -> Floats:
    """[num] the curve, extrapolated with its last slope."""
    known = np.asarray(seconds, dtype=np.float64)
    slope = known[-1] - known[-2] if len(known) > 1 else 0.0
    more = known[-1] + slope * np.arange(1, num - len(known) + 1)
    return np.concatenate([known, more])[:num]


def _regime(slope: float, small: float, big: float, read_share: float) -> CostTable:
    """Target forward: 1 for one token and ``slope`` for each further one; retrieval: 0.002."""
    draft_s = {"big": big, **dict.fromkeys(("pld3", "sam", "lookup"), 0.002)}
    return CostTable({1: (1.0, 1.0 + slope)}, draft_s, other_s=small, read_share=read_share)


REGIMES: dict[str, CostTable] = {
    "gpu": _regime(0.0, 0.04, 0.15, 0.002),
    "cpu": _regime(0.06, 0.12, 0.2, 0.035),
    "loaded": _regime(0.35, 0.04, 0.15, 0.03),
}
"""Three regimes of real machines: memory-bound, a few cores, a busy server. A further token of a
drafter's forward costs 0.002 to 0.035 of a step: 0.035 for the bundled drafters on one core."""


def load_costs(spec: str) -> CostTable:
    """A cost table by name, or from a JSON file. File: ``{"target_s": [1.0, 1.1], "draft_s":
    {"small": 0.04}, "other_s": 0.05}``; ``target_s`` may also be given by batch size: ``{"1": [..],
    "8": [..]}``. Raises DraftwiseError."""
    if spec in REGIMES:
        return REGIMES[spec]
    path = Path(spec)
    if not path.is_file():
        raise DraftwiseError(
            f"unknown costs {spec!r}; the names are: {', '.join(REGIMES)}, or a JSON file"
        )
    try:
        found = strict_json(read_text(path, STATE_BYTES))
        given = found["target_s"]
        by_batch = given if isinstance(given, dict) else {"1": given}
        usual = {"other_s": 0.0, "score_share": SCORE_SHARE, "read_share": 0.0}
        table = CostTable(
            {int(size): [float(s) for s in curve] for size, curve in by_batch.items()},
            {str(name): float(s) for name, s in found.get("draft_s", {}).items()},
            **{name: float(found.get(name, value)) for name, value in usual.items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DraftwiseError(
            f"{path} is no cost table ({error}): write "
            '{"target_s": [1.0, 1.1], "draft_s": {"DRAFTER": 0.05}}'
        ) from error
    curves = list(table.target_s.values())
    if not curves or any(not curve or min(curve) <= 0 for curve in curves):
        raise DraftwiseError(f"{path}: target_s needs seconds above 0 for at least one token")
    shares = table.score_share, table.read_share
    if min([*table.draft_s.values(), table.other_s, *shares]) < 0:
        raise DraftwiseError(f"{path}: seconds of a draft step cannot be negative")
    return table
