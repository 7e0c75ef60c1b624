"""The exact distribution of a randomised procedure, by splitting intervals at comparisons.

A ``World`` hands out uniforms that are intervals. ``u < x`` is true on one part of the interval and
false on the other; ``law`` runs the procedure once for each part and adds up the lengths as
fractions. No sampling, no grid, no tolerance: distributions are compared with ``==``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Any

import numpy as np

from draftwise import Draft

Law = dict[Any, Fraction]
Model = Callable[[tuple[int, ...]], Any]
"""Maps a text to a distribution over the next token: an object array of fractions."""

VOCAB = 3


class World:
    """One run: follows the answers in ``taken``, then says True, and records untried branches."""

    def __init__(self, taken: tuple[bool, ...]) -> None:
        self._taken, self._num = taken, 0
        self.weight = Fraction(1)
        self.untried: list[tuple[bool, ...]] = []
        self._said: list[bool] = []

    def uniform(self) -> Uniform:
        """A fresh uniform on [0, 1)."""
        return Uniform(self)

    def uniforms(self, num: int) -> list[Uniform]:
        return [self.uniform() for _ in range(num)]

    def branch(self, share: Fraction) -> bool:
        """True with probability ``share``, strictly between 0 and 1."""
        if self._num < len(self._taken):
            answer = self._taken[self._num]
        else:
            answer = True
            self.untried.append((*self._said, False))
        self._num += 1
        self._said.append(answer)
        self.weight *= share if answer else 1 - share
        return answer


class Uniform:
    """A uniform known to lie in [low, high); may be multiplied by a positive scale."""

    def __init__(self, world: World) -> None:
        self._world, self._low, self._high = world, Fraction(0), Fraction(1)

    def below(self, bound: Any) -> bool:
        """Whether the uniform is below ``bound``; the answer narrows the interval."""
        bound = Fraction(bound)
        if bound <= self._low or bound >= self._high:
            return bound >= self._high
        answer = self._world.branch((bound - self._low) / (self._high - self._low))
        self._low, self._high = (self._low, bound) if answer else (bound, self._high)
        return answer

    def __mul__(self, scale: Any) -> Scaled:
        return Scaled(self, Fraction(scale))

    def __lt__(self, bound: Any) -> bool:
        return self.below(bound)

    def __gt__(self, bound: Any) -> bool:
        return not self.below(bound)


class Scaled:
    """``scale * u``: compared by comparing u; a scale of 0 is the number 0."""

    def __init__(self, uniform: Uniform, scale: Fraction) -> None:
        self._uniform, self._scale = uniform, scale

    def __lt__(self, bound: Any) -> bool:
        if bound is self:  # searchsorted compares its key with itself
            return False
        if self._scale == 0:
            return bool(bound > 0)
        return self._uniform.below(Fraction(bound) / self._scale)

    def __gt__(self, bound: Any) -> bool:
        return bound is not self and not self < bound


def law(procedure: Callable[[World], Hashable]) -> Law:
    """The exact probability of each outcome."""
    found: Law = defaultdict(Fraction)
    ahead: list[tuple[bool, ...]] = [()]
    while ahead:
        world = World(ahead.pop())
        found[procedure(world)] += world.weight
        ahead.extend(world.untried)
    assert sum(found.values()) == 1
    return dict(found)


def model(name: str, parts: int = 4) -> Model:
    """A made-up language model: the text determines the distribution, in multiples of 1/parts."""

    def next_token(text: tuple[int, ...]) -> Any:
        rng = random.Random(f"{name} {text}")
        counts = [0] * VOCAB
        for _ in range(parts):
            counts[rng.randrange(VOCAB)] += 1
        return np.array([Fraction(count, parts) for count in counts], dtype=object)

    return next_token


def own_law(p: Model, length: int) -> Law:
    """The distribution of ``length`` tokens sampled from ``p`` alone."""
    return completed({(): Fraction(1)}, p, length)


def completed(emitted: Law, p: Model, length: int) -> Law:
    """The distribution of texts after ``p`` has continued them to ``length`` tokens."""
    found: Law = defaultdict(Fraction)
    ahead = list(emitted.items())
    while ahead:
        text, weight = ahead.pop()
        if len(text) >= length:
            found[text[:length]] += weight
        else:
            ahead += [((*text, t), weight * x) for t, x in enumerate(p(text)) if x]
    return dict(found)


def texts_of(draft: Draft) -> list[tuple[int, ...]]:
    """The text at the root and at each node of a draft."""
    texts: list[tuple[int, ...]] = [()]
    for node, token in enumerate(draft.tokens.tolist()):
        texts.append((*texts[draft.parent(node) + 1], token))
    return texts
