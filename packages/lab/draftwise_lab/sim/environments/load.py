"""A server under load: one drafter, and rows of a batch that share every forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.drawing import num_positions, stream, text_of
from draftwise_lab.sim.text import Text


@dataclass(frozen=True)
class Load:
    """Requests of different difficulty, in batches of different size.

    Source: BanditSpec, section 6.2. Differs: one row of the batch is simulated and pays the whole
    batch's forwards. alphas: the range that a request's acceptance probability is drawn from.
    """

    batch_sizes: Sequence[int]
    alphas: tuple[float, float]
    costs: CostTable
    drafter: str = "eagle"

    @property
    def domains(self) -> list[str]:
        """The batch sizes."""
        return [f"batch {size}" for size in self.batch_sizes]

    @property
    def drafters(self) -> list[str]:
        """The one drafter."""
        return [self.drafter]

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """One text a seed: the same texts at every batch size."""
        alpha = stream(seed, "difficulty").uniform(*self.alphas)
        values = {self.drafter: np.full(num_positions(num_tokens, longest), alpha)}
        size = int(domain.removeprefix("batch "))
        return [text_of(values, seed, "load", num_tokens, batch_size=size)]
