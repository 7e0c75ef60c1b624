"""Independent alphas: each position draws every drafter's acceptance probability anew."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise_lab.sim.environments.drawing import FromMeans, num_positions, stream, text_of
from draftwise_lab.sim.text import Text


@dataclass(frozen=True)
class IndependentAlphas(FromMeans):
    """alpha at each position is drawn i.i.d. from a distribution of the drafter's own.

    Source: MetaSD, Assumption 1 (eq. 3). Differs: the paper leaves the distribution open; here it
    is Beta with the given mean. concentration: a + b of the Beta; small = all or nothing.
    """

    concentration: float = 2.0
    eos_rate: float = 0.0

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed."""
        num, size = num_positions(num_tokens, longest), self.concentration
        alphas = {
            name: stream(seed, domain, name, "alphas").beta(mean * size, (1.0 - mean) * size, num)
            for name, mean in self.means[domain].items()
        }
        return [text_of(alphas, seed, domain, num_tokens, self.eos_rate)]
