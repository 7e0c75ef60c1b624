"""What every domain of the zoo produces: a prompt and the answer that belongs to it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

ANSWER = "### answer\n"


@dataclass(frozen=True)
class Document:
    """One training document: the text handed to the model and the text it should write."""

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        """Prompt and answer in one string, without the end-of-text token."""
        return self.prompt + self.answer


class Domain(Protocol):
    """A seeded generator of documents: the same `rng` state always gives the same document."""

    def __call__(
        self, rng: random.Random, *, size: float = 1.0, heldout: bool = False
    ) -> Document: ...


def scaled(rng: random.Random, low: int, high: int, size: float) -> int:
    """A count between `low` and `high`, scaled by `size` and never below one."""
    return max(1, round(rng.randint(low, high) * size))
