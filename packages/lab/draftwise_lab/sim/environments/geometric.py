"""Truncated geometric: every drafter has one acceptance probability for the whole text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwise_lab.sim.environments.drawing import FromMeans, num_positions, text_of
from draftwise_lab.sim.text import Text


@dataclass(frozen=True)
class TruncatedGeometric(FromMeans):
    """Emitted tokens follow ``p^(x-1) (1-p)`` for x <= L and ``p^L`` for x = L + 1.

    Source: BanditSpec, eq. (4). Differs: none, except at the end of the text, which cuts drafts.
    means: p by domain and drafter. eos_rate: as in ``text_of``.
    """

    eos_rate: float = 0.0

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed."""
        num = num_positions(num_tokens, longest)
        alphas = {name: np.full(num, alpha) for name, alpha in self.means[domain].items()}
        return [text_of(alphas, seed, domain, num_tokens, self.eos_rate)]
