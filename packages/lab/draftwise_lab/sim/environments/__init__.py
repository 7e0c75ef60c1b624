"""Where texts come from: one small file for each kind of world.

An environment names its drafters, its domains and its costs, and draws texts. It never sees a
policy, so it cannot answer two of them differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.text import Text


class Environment(Protocol):
    """A family of texts by domain, with the drafters that fare along them."""

    @property
    def drafters(self) -> Sequence[str]:
        """Names of the drafters, retrieval included."""
        ...

    @property
    def domains(self) -> Sequence[str]:
        """Names of the domains; results are given for each."""
        ...

    @property
    def costs(self) -> CostTable:
        """What everything costs."""
        ...

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """The domain's texts for this seed, always the same ones.

        num_tokens: the engine's limit; longest: the longest draft that may start at its end.
        """
        ...
