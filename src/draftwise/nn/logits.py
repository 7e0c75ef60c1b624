"""What a ragged forward returns, and how its rows are cut and padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logits:
    """What a ragged forward returned, all rows one after another.

    flat: [M, V]; ends: [R], the place in it behind each row's last. hidden: for each tap of the
    model, R tensors [num_fed, D]: hidden states after every token that was fed to the row, those
    fed without logits included. num_fed: tokens of all rows.
    """

    flat: Tensor
    ends: Sequence[int]
    num_fed: int = 0
    hidden: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)

    def last(self, row: int, num: int) -> Tensor:
        """[num, V] after each of the last ``num`` tokens that were fed to this row."""
        return self.flat[self.ends[row] - num : self.ends[row]]


def last_places(counts: Sequence[int], num: int) -> list[int]:
    """Columns, in order, in which some row has one of its last ``num`` tokens.

    >>> last_places([7, 3], 2)
    [1, 2, 5, 6]
    """
    return sorted({place for count in counts for place in range(max(0, count - num), count)})


def padded(tokens: Sequence[int], width: int) -> list[int]:
    """The tokens, the last of them repeated (0 where there is none)."""
    return [*tokens, *[tokens[-1] if tokens else 0] * (width - len(tokens))]
