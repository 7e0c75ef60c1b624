"""Guards around what users pass in: callbacks, stop rules, mixers.

An exception in one of them ends its request or disables its drafts, and no others.
"""

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
    """A callback that is not called again after its first exception, which ``error`` holds.

    checked: converts a result, from the result and the arguments. instead: replaces the callback.
    """

    def __init__(
        self, call: Callable[..., Any], checked: Callable[..., Any], instead: Callable[..., Any]
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
        """The number of the last ``num`` tokens that a logits processor allows; default: all."""
        num_allowed = getattr(self._call, "num_allowed", None)
        if num_allowed is not None and self.error is None:
            try:
                return max(0, min(int(num_allowed(text, num)), num))
            except Exception as error:
                self.error = error
        return num


def guarded_stop(stop_when: Callable[..., Any]) -> GuardedCallback:
    """Guard ``stop_when``: a true result or an exception ends the answer."""

    def checked(answer: Any, *_: Any) -> bool:
        try:
            return bool(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise BadValue("what stop_when returned", answer, "True or False") from error

    return GuardedCallback(stop_when, checked, lambda *_: True)


def guarded_process(process: Callable[..., Any]) -> GuardedCallback:
    """Guard ``process``, which returns [V] logits: unchanged ones after an exception."""

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


class GuardedMixer:
    """A mixer that ends every draft once it, or its request's policy, has raised.

    ask: calls a function and returns its result, or the second argument after an exception.
    """

    def __init__(self, mixer: Mixer, ask: Callable[[Callable[[], Any], Any], Any]) -> None:
        self._mixer, self._ask = mixer, ask
        self.drafter, self.length = str(mixer.drafter), int(mixer.length)

    def pick(
        self,
        step: DraftStep,
        matches: Mapping[str, int],
        may_draft: bool = True,
        may_branch: bool = False,
    ) -> str | None:

        def pick() -> str | None:
            picked = self._mixer.pick(step, matches, may_draft, may_branch)
            can = may_draft if picked == self.drafter else picked is None or matches.get(picked)
            if not can:
                raise ValueError(f"the mixer picked {picked!r}, which has nothing to write")
            return picked

        picked: str | None = self._ask(pick, None)
        return picked

    def num_siblings(self, step: DraftStep, room: int) -> int:
        num: int = self._ask(lambda: max(0, int(self._mixer.num_siblings(step, room))), 0)
        return num

    def branch(
        self, depth: int, confidence: float, matches: Mapping[str, int], width: int, room: int
    ) -> tuple[str, int]:
        def branch() -> tuple[str, int]:
            name, num = self._mixer.branch(depth, confidence, matches, width, room)
            if num and name not in matches:
                raise ValueError(f"the mixer picked a branch of {name!r}, which has none")
            return name, min(int(num), room)

        found: tuple[str, int] = self._ask(branch, ("", 0))
        return found


class GuardedStopRule:
    """A stop rule that ends every draft after its first exception, with one warning.

    Tokens drawn before that stay: dropping them by value would change the output distribution.
    """

    def __init__(self, stop_rule: StopRule, rule: str) -> None:
        self._stop_rule, self._rule, self._is_broken = stop_rule, rule, False
        self.needs_probs = stop_rule.needs_probs
        self.never_stops, self.waits_for_hidden = stop_rule.never_stops, stop_rule.waits_for_hidden

    @property
    def needs_hidden(self) -> int:  # not copied: loading a head sets it
        return self._stop_rule.needs_hidden

    def should_continue(self, step: DraftStep) -> bool:
        return self._ask(lambda: bool(self._stop_rule.should_continue(step)), False)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        self._ask(lambda: self._stop_rule.learn(num_drafted, num_accepted), None)

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        if not self._is_broken:
            try:
                return what()
            except Exception as error:
                self._is_broken = True
                said = f"rule {self._rule!r} raised {error!r}: its request no longer drafts with it"
                warnings.warn(said, stacklevel=3)
        return instead
