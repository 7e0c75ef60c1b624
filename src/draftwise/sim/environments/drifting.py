"""Drifting alphas: every drafter's acceptance wanders slowly along the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwise.sim.costs import CostTable
from draftwise.sim.environments.drawing import Means, num_positions, stream, text_of
from draftwise.sim.text import Text


@dataclass(frozen=True)
class Drifting:
    """The log-odds of alpha follow an autoregressive walk around the drafter's mean.

    Source: this project's own; MetaSD appendix H.2 names the case. step: standard deviation of
    the walk's step a token; memory: share of a deviation that the next token keeps, below 1.
    """

    means: Means
    costs: CostTable
    step: float = 0.2
    memory: float = 0.99

    @property
    def domains(self) -> list[str]:
        """All of ``means``."""
        return list(self.means)

    @property
    def drafters(self) -> list[str]:
        """Those of the first domain; all have the same."""
        return list(self.means[self.domains[0]])

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed; the walk starts in its stationary law."""
        num, alphas = num_positions(num_tokens, longest), {}
        spread = self.step / np.sqrt(1.0 - self.memory**2)
        for name, mean in self.means[domain].items():
            steps = stream(seed, domain, name, "walk").normal(0.0, self.step, num)
            steps[0] *= spread / self.step
            walk = np.zeros(num)
            deviation = 0.0
            for place, drawn in enumerate(steps.tolist()):
                deviation = self.memory * deviation + drawn
                walk[place] = deviation
            alphas[name] = 1.0 / (1.0 + np.exp(-walk) * (1.0 - mean) / mean)
        return [text_of(alphas, seed, domain, num_tokens)]
