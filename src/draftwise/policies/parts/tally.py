"""What was seen of each plan: counts, sums, squares; the memory that most policies share."""

from __future__ import annotations

import numpy as np

from draftwise.policies.parts.state import Kept, in_range
from draftwise.types import Bools, Floats


class Tally(Kept):
    """Running sums of the values seen.

    State: counts [K] values seen; sums, squares [K] of the values; chosen [K] times chosen;
    num_rounds: rounds learned from (feedback that showed nothing is none).

    >>> tally = Tally(2)
    >>> tally.add(np.array([0.25, 0.0]), np.array([True, False]))
    >>> tally.means().tolist(), tally.unseen()
    ([0.25, 0.0], 1)
    """

    KEPT = ("counts", "sums", "squares", "chosen", "num_rounds")

    def __init__(self, num_plans: int) -> None:
        self.counts: Floats = np.zeros(num_plans)
        self.sums: Floats = np.zeros(num_plans)
        self.squares: Floats = np.zeros(num_plans)
        self.chosen: Floats = np.zeros(num_plans)
        self.num_rounds = 0

    def check_memory(self) -> None:
        """Every round shows each plan one value in [0, 1], or none."""
        in_range("num_rounds", self.num_rounds, 0)
        in_range("counts", self.counts, 0, self.num_rounds)
        in_range("sums", self.sums, 0, self.counts * (1 + 1e-9))
        in_range("squares", self.squares, 0, self.counts * (1 + 1e-9))
        in_range("chosen", self.chosen, 0)

    def add(self, values: Floats, seen: Bools) -> None:
        """Take one round's seen values."""
        told = np.where(seen, values, 0.0)
        self.counts += seen
        self.sums += told
        self.squares += told * told
        self.num_rounds += bool(seen.any())

    def choose(self, plan: int) -> int:
        """Note that ``plan`` is being played; the number of choices so far, this one included."""
        self.chosen[plan] += 1
        return int(self.chosen.sum())

    def means(self) -> Floats:
        """[K] mean value seen; 0 where nothing was."""
        average: Floats = self.sums / np.maximum(self.counts, 1.0)
        return average

    def unseen(self) -> int | None:
        """A plan of which nothing was seen yet, the one chosen least (so that decisions in flight
        do not all go to one plan); None when every plan was seen."""
        if self.counts.min() > 0:
            return None
        return int(np.where(self.counts > 0, np.inf, self.chosen).argmin())
