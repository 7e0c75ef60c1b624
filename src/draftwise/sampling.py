"""How tokens are drawn: one request's parameters, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn, applied alike to target and drafter; names as in vLLM.

    temperature: 0 = greedy; top_k: 0 = all; top_p: in (0, 1]; min_p: in [0, 1], of the largest
    probability; 0 = none. repetition_penalty: > 0, 1 = none, for tokens of prompt and answer.
    presence_penalty, frequency_penalty: subtracted from logits of tokens that the answer has, once
    and once for each time; 0 = none. logit_bias: by token, added to its logit. process: whatever
    else is done to [V] logits first, given all tokens before; None = nothing. It may keep nothing
    from one call to the next: drafts are asked about, too. Raises ValueError for values outside.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    process: Callable[[Sequence[int], Any], Any] | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    @property
    def penalises(self) -> bool:
        """Whether tokens that occurred are scored differently."""
        answered = self.presence_penalty != 0 or self.frequency_penalty != 0
        return self.repetition_penalty != 1.0 or answered

    @property
    def reads_text(self) -> bool:
        """Whether a distribution depends on the tokens before it, and not on logits alone."""
        return self.penalises or self.process is not None

    @property
    def edits(self) -> bool:
        """Whether logits are changed before temperature looks at them."""
        return self.reads_text or bool(self.logit_bias)

    def __post_init__(self) -> None:
        bad = {t: b for t, b in self.logit_bias.items() if t < 0 or not math.isfinite(b)}
        checks = {
            f"temperature is {self.temperature}: it must be 0 (greedy) or more": self.temperature
            >= 0,
            f"top_k is {self.top_k}: it must be 0 (all tokens) or more": self.top_k >= 0,
            f"top_p is {self.top_p}: it must be above 0 and at most 1": 0 < self.top_p <= 1,
            f"repetition_penalty is {self.repetition_penalty}: it must be above 0 (1 = none)": (
                0 < self.repetition_penalty < math.inf
            ),
            f"min_p is {self.min_p}: it must be from 0 (none) to 1": 0 <= self.min_p <= 1,
            f"presence_penalty is {self.presence_penalty}: it must be a finite number": (
                math.isfinite(self.presence_penalty)
            ),
            f"frequency_penalty is {self.frequency_penalty}: it must be a finite number": (
                math.isfinite(self.frequency_penalty)
            ),
            f"logit_bias has {bad}: it takes token ids and finite numbers": not bad,
        }
        for message, is_met in checks.items():
            if not is_met:
                raise ValueError(message)
