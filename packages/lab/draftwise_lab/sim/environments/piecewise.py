"""Piecewise stationary: the text changes its subject, and another drafter becomes the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.drawing import Means, num_positions, text_of
from draftwise_lab.sim.text import PROMPT_TOKENS, Text


@dataclass(frozen=True)
class Piecewise:
    """Constant alphas within a segment; the prompt is of the first segment's kind.

    Source: MetaSD, appendix H.2 (queries that hold two tasks). Differs: none.
    queries: the segments' kinds, in order, by query; each segment is an equal share of the limit.
    means: alpha by kind of segment and drafter.
    """

    queries: dict[str, Sequence[str]]
    means: Means
    costs: CostTable

    @property
    def domains(self) -> list[str]:
        """The queries."""
        return list(self.queries)

    @property
    def drafters(self) -> list[str]:
        """Those of the first kind; all have the same."""
        return list(next(iter(self.means.values())))

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed."""
        kinds = self.queries[domain]
        places = np.arange(num_positions(num_tokens, longest)) - PROMPT_TOKENS
        segments = np.clip(places * len(kinds) // num_tokens, 0, len(kinds) - 1)
        alphas = {
            name: np.array([self.means[kind][name] for kind in kinds])[segments]
            for name in self.drafters
        }
        return [text_of(alphas, seed, domain, num_tokens)]
