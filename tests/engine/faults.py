"""Policies and drafters that raise, or return invalid values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from draftwise.drafters.retrieval import LookupDrafter, RetrievalSession
from draftwise.engine.deciders import Bandits, Controlled, Decider
from draftwise.types import Draft


class Faulty:
    """A sound policy except for one method, which raises or returns an invalid value."""

    def __init__(self, sound: Any, method: str, answer: Any) -> None:
        source = "".join(map(inspect.getsource, (Decider, Bandits, Controlled)))
        assert f".{method}(" in source, f"no decider calls {method}"
        self._sound, self._method, self._answer = sound, method, answer

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._sound, name)
        if not callable(self._answer):
            return lambda *_, **__: self._answer
        return self._answer


def raising(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("my own mistake")


class Odd(LookupDrafter):
    """Prompt lookup with corrupted drafts."""

    def __init__(self, spoil: Callable[[list[Draft]], Any], method: str = "propose") -> None:
        super().__init__("odd")
        self._spoil, self._method = spoil, method

    def start(self) -> RetrievalSession:
        session = super().start()
        sound, spoil = getattr(session, self._method), self._spoil

        def spoilt(*given: Any, **options: Any) -> Iterator[Any]:
            found = yield from sound(*given, **options)
            return spoil(found)

        setattr(session, self._method, spoilt)
        return session


def each(**changes: Any) -> Callable[[list[Draft]], list[Draft]]:
    """Return valid drafts of two tokens, except for the changes."""
    two: dict[str, Any] = {"tokens": np.array([5, 9]), "sources": ["odd", "odd"]}
    return lambda drafts: [Draft(**(two | changes)) for _ in drafts]


UNIFORM = torch.full((64,), 1 / 64)
NONSENSE: dict[str, Callable[[list[Draft]], Any]] = {
    "beyond the vocabulary": each(tokens=np.array([5, 64])),
    "negative": each(tokens=np.array([-1, 5])),
    "floats": each(tokens=np.array([5.0, 9.5])),
    "no array": each(tokens=[5, 9]),
    "two dimensions": each(tokens=np.array([[5, 9]])),
    "too long": each(tokens=np.full(50, 7), sources=["odd"] * 50),
    "no sources": each(sources=[]),
    "a parent that is not there": each(parents=np.array([-1, 99])),
    "a circle": each(parents=np.array([1, 0])),
    "too few parents": each(parents=np.array([-1])),
    "too few drafts": lambda drafts: drafts[:-1],
    "nothing": lambda drafts: None,
    "no drafts": lambda drafts: ["x"] * len(drafts),
    "q too narrow": each(probs=[UNIFORM[:9], UNIFORM]),
    "q too wide": each(probs=[UNIFORM, torch.cat((UNIFORM, UNIFORM))]),
    "one q of two": each(probs=[UNIFORM]),
    "q not finite": each(probs=[UNIFORM * float("nan")] * 2),
}
