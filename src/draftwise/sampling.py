"""How tokens are drawn: one request's parameters, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwise import checks
from draftwise.errors import BadValue

_BIAS = 1e30
"""The largest bias: above it, a float32 logit would be infinite."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn, the same for target and drafter; names as in vLLM.

    temperature: 0 = greedy; top_k: 0 = all; top_p: in (0, 1]; min_p: in [0, 1], of the largest
    probability; 0 = none. repetition_penalty: from 1e-6 to 1e6, 1 = none, for tokens of prompt and
    answer. presence_penalty, frequency_penalty: from -1e6 to 1e6, subtracted from logits of tokens
    that the answer has, once and once for each time; 0 = none. logit_bias: by token, added to its
    logit. process: whatever else is done to [V] logits first, given all tokens before; None =
    nothing. It may keep nothing from one call to the next: it is called for drafts and, where
    drafters are scored on the prompt, for beginnings of the prompt, too. Raises BadValue (a
    DraftwiseError and a ValueError) for a value of another type or outside its range.
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
        found = {
            "temperature": checks.number("temperature", self.temperature, 0, note="greedy"),
            "top_k": checks.whole("top_k", self.top_k, 0, note="all tokens"),
            "top_p": checks.share("top_p", self.top_p),
            "repetition_penalty": checks.scale("repetition_penalty", self.repetition_penalty),
            "process": checks.function("process", self.process),
            "min_p": checks.probability("min_p", self.min_p),
            "logit_bias": _biases(self.logit_bias),
        }
        for name in ("presence_penalty", "frequency_penalty"):
            found[name] = checks.number(name, getattr(self, name), -checks.LARGE, checks.LARGE)
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises BadValue for a bias of a token that the target does not have."""
        outside = [token for token in self.logit_bias if token >= vocab_size]
        if outside:
            must = f"a mapping of token ids from 0 to {vocab_size - 1:,}, the target's vocabulary"
            raise BadValue("logit_bias", self.logit_bias, must)


def _biases(value: Any) -> dict[int, float]:
    """``logit_bias`` with plain keys and numbers; None is none."""
    must = f"a mapping of token ids, 0 or more, to finite numbers from {-_BIAS:g} to {_BIAS:g}"
    if value is not None and not isinstance(value, Mapping):
        raise BadValue("logit_bias", value, must)
    try:
        return {
            checks.whole("logit_bias", token, 0): checks.number("logit_bias", bias, -_BIAS, _BIAS)
            for token, bias in (value or {}).items()
        }
    except BadValue as error:
        raise BadValue("logit_bias", value, must) from error
