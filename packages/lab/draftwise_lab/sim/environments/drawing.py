"""Streams of chance, and a text from arrays of acceptance probabilities."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from draftwise.types import Floats
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.text import PROMPT_TOKENS, Text, bernoulli_track

Means = Mapping[str, Mapping[str, float]]
"""Mean acceptance probability by domain and drafter."""


@dataclass(frozen=True)
class FromMeans:
    """What environments share that are told by each drafter's mean in each domain."""

    means: Means
    costs: CostTable

    @property
    def domains(self) -> list[str]:
        """All of ``means``."""
        return list(self.means)

    @property
    def drafters(self) -> list[str]:
        """Those of the first domain; all have the same."""
        return list(self.means[self.domains[0]])


def stream(seed: int, *names: str) -> np.random.Generator:
    """A stream of its own for these names, whatever else is drawn.

    >>> bool(stream(0, "a").random() == stream(0, "a").random() != stream(0, "b").random())
    True
    """
    key = tuple(zlib.crc32(name.encode()) for name in names)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def num_positions(num_tokens: int, longest: int) -> int:
    """Positions that alphas are needed at: the prompt's, the text's, and a draft past its end."""
    return PROMPT_TOKENS + num_tokens + longest + 1


def text_of(
    alphas: Mapping[str, Floats], seed: int, domain: str, num_tokens: int,
    eos_rate: float = 0.0, batch_size: int = 1,
) -> Text:  # fmt: skip
    """A text from each drafter's alphas [``num_positions``]; the coins are drawn here.

    eos_rate: probability that a token is the last; the target draws it, so no policy can change it.
    """
    length = num_tokens
    if eos_rate > 0.0:
        length = min(num_tokens, int(stream(seed, domain, "", "end").geometric(eos_rate)))
    tracks = {
        name: bernoulli_track(
            values[PROMPT_TOKENS:], stream(seed, domain, name, "coins"), values[:PROMPT_TOKENS]
        )
        for name, values in alphas.items()
    }
    return Text(f"{domain}-{seed}", num_tokens, length, tracks, batch_size)
