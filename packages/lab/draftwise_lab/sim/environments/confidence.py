"""A drafter that knows how sure it is: what stop rules need to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from draftwise.types import Floats
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.drawing import num_positions, stream, text_of
from draftwise_lab.sim.text import PROMPT_TOKENS, Text


@dataclass(frozen=True)
class Confident:
    """alphas i.i.d. from a Beta, and a top probability that follows them with noise.

    Source: this project's own, for TapOut's rules (table 1). The rest of q is spread evenly over
    ``others`` tokens, which gives its entropy and the margin of its two largest.
    means: alpha by domain. noise: standard deviation of the top probability around alpha.
    """

    means: Mapping[str, float]
    costs: CostTable
    concentration: float = 1.5
    noise: float = 0.15
    others: int = 8
    drafter: str = "small"

    @property
    def domains(self) -> list[str]:
        """All of ``means``."""
        return list(self.means)

    @property
    def drafters(self) -> list[str]:
        """The one drafter."""
        return [self.drafter]

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed."""
        num, mean, size = num_positions(num_tokens, longest), self.means[domain], self.concentration
        rng = stream(seed, domain, "alphas")
        alphas = rng.beta(mean * size, (1.0 - mean) * size, num)
        least = 1.0 / (self.others + 1)
        tops = np.clip(alphas + rng.normal(0.0, self.noise, num), least, 0.999)[PROMPT_TOKENS:]
        text = text_of({self.drafter: alphas}, seed, domain, num_tokens)
        rest = (1.0 - tops) / self.others
        track = replace(
            text.tracks[self.drafter],
            max_probs=tops,
            entropies=_entropies(tops, rest, self.others),
            margins=np.maximum(tops - rest, 0.0),
        )
        return [replace(text, tracks={self.drafter: track})]


def _entropies(tops: Floats, rest: Floats, others: int) -> Floats:
    """[P] nats of one token of probability ``tops`` and ``others`` of probability ``rest``."""
    entropies: Floats = -(tops * np.log(tops) + others * rest * np.log(rest))
    return entropies
