"""How tokens are drawn: one request's parameters, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from draftwise import checks
from draftwise.checks import option
from draftwise.errors import BadValue, DraftwiseError

_BIAS = 1e30
"""The largest bias: above it, a float32 logit would be infinite."""


def _biases(name: str, value: Any) -> dict[int, float]:
    """``logit_bias`` with plain keys and numbers; None is none."""
    must = f"a mapping of token ids, 0 or more, to finite numbers from {-_BIAS:g} to {_BIAS:g}"
    if value is not None and not isinstance(value, Mapping):
        raise BadValue(name, value, must)
    try:
        return {
            checks.whole(name, token, 0): checks.number(name, bias, -_BIAS, _BIAS)
            for token, bias in (value or {}).items()
        }
    except BadValue as error:
        raise BadValue(name, value, must) from error


def _read_biases(texts: Sequence[str] | None) -> dict[int, float]:
    """``"50=-100"`` to a token and what is added to its logit; raises DraftwiseError."""
    found: dict[int, float] = {}
    for text in texts or ():
        token, equals, value = text.partition("=")
        try:
            if not equals or int(token) in found:
                raise ValueError
            found |= _biases("logit_bias", {int(token): float(value)})
        except ValueError:
            raise DraftwiseError(
                f"--logit-bias {text!r}: write ID=VALUE such as 50=-100, each token id once, and a "
                "finite VALUE"
            ) from None
    return found


_penalty = partial(checks.number, least=-checks.LARGE, most=checks.LARGE)
_drawn = partial(option, panel="Sampling", metavar="X")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled, for both target and drafters; names as in vLLM.

    temperature: 0 = greedy. top_k: 0 = all. top_p: in (0, 1]. min_p: in [0, 1], relative to the
    largest probability; 0 = off. repetition_penalty: from 1e-6 to 1e6, 1 = off, for tokens of the
    prompt and the answer. presence_penalty, frequency_penalty: from -1e6 to 1e6, 0 = off;
    subtracted from the logits of tokens in the answer, once or per occurrence. logit_bias: by token
    id, added to the logit. process: a function of all tokens before (prompt included) and [V]
    logits, applied first; None = off. It must be stateless, because it is also called for drafts.
    Raises BadValue (a DraftwiseError and a ValueError) for a value of another type or outside its
    range.
    """

    temperature: float = option(
        0.0,
        "0 is greedy.",
        *("--temperature", "-t"),
        metavar="T",
        check=partial(checks.number, least=0, note="greedy"),
    )
    top_k: int = _drawn(
        0,
        "Keep the K likeliest tokens; 0 keeps all.",
        metavar="K",
        check=partial(checks.whole, least=0, note="all tokens"),
    )
    top_p: float = _drawn(
        1.0,
        "Keep the likeliest tokens with total probability P; 1 keeps all.",
        metavar="P",
        check=checks.share,
    )
    repetition_penalty: float = _drawn(
        1.0, "Divides logits of tokens in prompt and answer; 1 has no effect.", check=checks.scale
    )
    process: Callable[[Sequence[int], Any], Any] | None = option(None, check=checks.function)
    min_p: float = _drawn(
        0.0,
        "Minimum probability relative to the largest; 0 has no effect.",
        metavar="P",
        check=checks.probability,
    )
    presence_penalty: float = _drawn(
        0.0, "Subtracted from logits of tokens in the answer; 0 has no effect.", check=_penalty
    )
    frequency_penalty: float = _drawn(
        0.0, "Subtracted per occurrence of a token in the answer; 0 has no effect.", check=_penalty
    )
    logit_bias: Mapping[int, float] = _drawn(
        dict,
        "Adds VALUE to the logit of token ID: `50=-100`; repeatable.",
        metavar="ID=VALUE",
        kind=list[str] | None,
        read=_read_biases,
        check=_biases,
    )

    @property
    def penalises(self) -> bool:
        """Whether logits depend on which tokens occurred."""
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
        checks.check_fields(self)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise BadValue for a bias of a token that the target does not have."""
        outside = [token for token in self.logit_bias if token >= vocab_size]
        if outside:
            must = f"a mapping of token ids from 0 to {vocab_size - 1:,}, the target's vocabulary"
            raise BadValue("logit_bias", self.logit_bias, must)
