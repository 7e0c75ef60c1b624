"""Callbacks that belong to one request: what they raise is that request's own matter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.errors import BadValue, DraftwiseError
from draftwise.protocols import Mixer, StopRule
from draftwise.types import DraftStep


class GuardedCallback:
    """A callback whose first exception is kept in ``error``; from then on it is not asked again.

    checked: what is made of its answer, called with it and the arguments; raises DraftwiseError for
    an answer that cannot be used. instead: what stands in for its answer after an exception, called
    with the arguments.
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
        """What a process says of the last ``num`` tokens; all stand where it says nothing."""
        tell = getattr(self._call, "num_allowed", None)
        if tell is not None and self.error is None:
            try:
                return max(0, min(int(tell(text, num)), num))
            except Exception as error:
                self.error = error
        return num


def guarded_stop(stop_when: Callable[..., Any]) -> GuardedCallback:
    """``stop_when`` of one request: whatever is true ends its answer, and so does an exception."""

    def checked(answer: Any, *_: Any) -> bool:
        try:
            return bool(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise BadValue("what stop_when returned", answer, "True or False") from error

    return GuardedCallback(stop_when, checked, lambda *_: True)


def guarded_process(process: Callable[..., Any]) -> GuardedCallback:
    """``process`` of one request: returns [V] logits, or leaves them as they are."""

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
    """A mixer that ends every draft from its first exception on, of which ``on_error`` is told.

    Raises whatever reading its ``drafter`` and ``length`` raises.
    """

    def __init__(self, mixer: Mixer, on_error: Callable[[Exception], None]) -> None:
        self._mixer, self._disable, self._is_broken = mixer, on_error, False
        self.drafter, self.length = str(mixer.drafter), int(mixer.length)

    def pick(
        self, step: DraftStep, matches: Mapping[str, int], may_draft: bool = True
    ) -> str | None:
        """What the mixer says, as long as it names somebody who can write."""
        if self._is_broken:
            return None
        try:
            picked = self._mixer.pick(step, matches, may_draft)
            can = may_draft if picked == self.drafter else picked is None or matches.get(picked)
            if not can:
                raise ValueError(f"the mixer picked {picked!r}, which has nothing to write")
            return picked
        except Exception as error:
            self._is_broken = True
            self._disable(error)
            return None

    def num_siblings(self, step: DraftStep, room: int) -> int:
        """What the mixer says, as long as that is a number."""
        if self._is_broken:
            return 0
        try:
            return max(0, int(self._mixer.num_siblings(step, room)))
        except Exception as error:
            self._is_broken = True
            self._disable(error)
            return 0


class GuardedStopRule:
    """A guide that ends every draft from its first exception on, with one warning.

    The tokens drawn before it stay in the draft: dropping them for what the guide made of them
    would change the law.
    """

    def __init__(self, guide: StopRule, rule: str) -> None:
        self._guide, self._rule, self._is_broken = guide, rule, False
        self.needs_probs, self.is_pure = guide.needs_probs, guide.is_pure
        self.never_stops, self.waits_for_hidden = guide.never_stops, guide.waits_for_hidden

    @property
    def needs_hidden(self) -> int:
        """The size of the hidden states that the guide reads, 0 = none."""
        return self._guide.needs_hidden

    def should_continue(self, step: DraftStep) -> bool:
        """What the guide says, as long as it can."""
        if self._is_broken:
            return False
        try:
            return bool(self._guide.should_continue(step))
        except Exception as error:
            self._disable(error)
            return False

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Told on, as long as it listens."""
        if not self._is_broken:
            try:
                self._guide.learn(num_drafted, num_accepted)
            except Exception as error:
                self._disable(error)

    def _disable(self, error: Exception) -> None:
        self._is_broken = True
        warnings.warn(
            f"rule {self._rule!r} raised {error!r}: its request drafts no more with it",
            stacklevel=2,
        )
