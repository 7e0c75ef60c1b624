"""Wrappers of a request's callbacks: an exception ends or degrades that request only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from draftwise.errors import BadValue, DraftwiseError
from draftwise.protocols import Mixer, StopRule
from draftwise.types import DraftStep

T = TypeVar("T")


class GuardedCallback:
    """A callback that is not called again after its first exception, which is kept in ``error``.

    checked: converts the result, called with the result and the arguments; raises DraftwiseError
    for an unusable one. instead: the result after an exception, called with the arguments.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        checked: Callable[..., Any],
        instead: Callable[..., Any],
    ) -> None:
        self._call, self._checked, self._instead = call, checked, instead
        self.error: Exception | None = None

    def __call__(self, *args: Any) -> Any:
        if self.error is None:
            try:
                return self._checked(self._call(*args), *args)
            except Exception as error:
                self.error = error
        return self._instead(*args)

    def num_allowed(self, text: Sequence[int], num: int) -> int:
        """How many of the last ``num`` tokens a logits processor allows; all by default."""
        num_allowed = getattr(self._call, "num_allowed", None)
        if num_allowed is not None and self.error is None:
            try:
                return max(0, min(int(num_allowed(text, num)), num))
            except Exception as error:
                self.error = error
        return num


def guarded_stop(stop_when: Callable[..., Any]) -> GuardedCallback:
    """``stop_when`` of one request: a true result or an exception ends the answer."""

    def checked(answer: Any, *_: Any) -> bool:
        try:
            return bool(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise BadValue("what stop_when returned", answer, "True or False") from error

    return GuardedCallback(stop_when, checked, lambda *_: True)


def guarded_process(process: Callable[..., Any]) -> GuardedCallback:
    """``process`` of one request: returns [V] logits, unchanged after an exception."""

    def checked(answer: Any, text: Sequence[int], logits: Tensor) -> Tensor:
        found = torch.as_tensor(answer) if isinstance(answer, np.ndarray) else answer
        if not isinstance(found, Tensor) or not found.is_floating_point():
            must = f"the {len(logits)} logits, as a tensor or array of floats"
            raise BadValue("what process returned", answer, must)
        if found.shape != logits.shape:
            raise DraftwiseError(
                f"process returned logits of the shape {list(found.shape)}, and not "
                f"{list(logits.shape)}"
            )
        return found.to(logits)

    return GuardedCallback(process, checked, lambda text, logits: logits)


class _Guarded:
    """Asks until the first exception, which is passed to ``on_error``."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error, self._is_broken = on_error, False

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        if self._is_broken:
            return instead
        try:
            return what()
        except Exception as error:
            self._is_broken = True
            self._on_error(error)
            return instead


class GuardedMixer(_Guarded):
    """A mixer that ends every draft after its first exception.

    Raises whatever reading its ``drafter`` and ``length`` raises.
    """

    def __init__(self, mixer: Mixer, on_error: Callable[[Exception], None]) -> None:
        super().__init__(on_error)
        self._mixer, self.drafter, self.length = mixer, str(mixer.drafter), int(mixer.length)

    def pick(
        self, step: DraftStep, matches: Mapping[str, int], may_draft: bool = True
    ) -> str | None:
        """The mixer's choice; naming a drafter that cannot write counts as an exception."""

        def pick() -> str | None:
            picked = self._mixer.pick(step, matches, may_draft)
            can = may_draft if picked == self.drafter else picked is None or matches.get(picked)
            if not can:
                raise ValueError(f"the mixer picked {picked!r}, which has nothing to write")
            return picked

        return self._ask(pick, None)

    def num_siblings(self, step: DraftStep, room: int) -> int:
        return self._ask(lambda: max(0, int(self._mixer.num_siblings(step, room))), 0)


class GuardedStopRule(_Guarded):
    """A stop rule that ends every draft after its first exception, with one warning.

    Tokens drawn before the exception stay in the draft: dropping them because of their own values
    would change the output distribution.
    """

    def __init__(self, guide: StopRule, rule: str) -> None:
        super().__init__(self._warn)
        self._guide, self._rule = guide, rule
        self.needs_probs, self.is_pure = guide.needs_probs, guide.is_pure
        self.never_stops, self.waits_for_hidden = guide.never_stops, guide.waits_for_hidden

    @property
    def needs_hidden(self) -> int:  # not copied: loading a head sets it
        return self._guide.needs_hidden

    def should_continue(self, step: DraftStep) -> bool:
        return self._ask(lambda: bool(self._guide.should_continue(step)), False)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        self._ask(lambda: self._guide.learn(num_drafted, num_accepted), None)

    def _warn(self, error: Exception) -> None:
        warnings.warn(
            f"rule {self._rule!r} raised {error!r}: its request no longer drafts with it",
            stacklevel=3,
        )
