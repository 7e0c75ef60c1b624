"""Drifting alphas: every drafter's acceptance wanders slowly along the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwise_lab.sim.environments.drawing import FromMeans, num_positions, stream, text_of
from draftwise_lab.sim.text import Text


@dataclass(frozen=True)
class Drifting(FromMeans):
    """The log-odds of alpha follow an autoregressive walk around the drafter's mean.

    Source: this project's own; MetaSD appendix H.2 names the case. step: standard deviation of
    the walk's step a token; memory: share of a deviation that the next token keeps, below 1.
    """

    step: float = 0.2
    memory: float = 0.99

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
