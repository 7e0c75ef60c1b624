"""Sequences fixed in advance: acceptance that follows no law, only a plan to mislead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.types import Floats
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.drawing import num_positions, text_of
from draftwise_lab.sim.text import PROMPT_TOKENS, Text


@dataclass(frozen=True)
class Cycles:
    """Each drafter repeats a pattern of alphas along the text.

    Source: BanditSpec, Assumption 5.1 (values fixed before the algorithm starts). Differs: they
    are fixed by position and not by round. patterns: by domain and drafter.
    """

    patterns: Mapping[str, Mapping[str, Sequence[float]]]
    costs: CostTable

    @property
    def domains(self) -> list[str]:
        """All of ``patterns``."""
        return list(self.patterns)

    @property
    def drafters(self) -> list[str]:
        """Those of the first domain; all have the same."""
        return list(self.patterns[self.domains[0]])

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed; patterns of 0 and 1 leave nothing to chance."""
        places = np.arange(num_positions(num_tokens, longest)) - PROMPT_TOKENS
        alphas: dict[str, Floats] = {
            name: np.array(pattern, dtype=np.float64)[places % len(pattern)]
            for name, pattern in self.patterns[domain].items()
        }
        return [text_of(alphas, seed, domain, num_tokens)]
