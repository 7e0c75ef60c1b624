"""English out of the running Python's help pages and docstrings, to be continued."""

from __future__ import annotations

import random

from draftwise_lab.zoo.domains.document import ANSWER, Document
from draftwise_lab.zoo.domains.sources import passages


def sample(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """A passage of about 300 to 800 characters, its first one or two lines given."""
    room = int(rng.randint(300, 800) * size)
    choices = passages(heldout)
    text = rng.choices(choices, weights=_weights(heldout))[0]
    lines = text.splitlines(keepends=True)
    total = 0
    start = rng.randrange(max(1, len(lines) - 6))
    while start and not lines[start - 1].isspace():
        start -= 1  # begin where a paragraph begins
    end = start
    while end < len(lines) and (total < room or end < start + 2):
        total += len(lines[end])
        end += 1
    given = 2 if end - start > 3 else 1
    answer = "".join(lines[start + given : end]).rstrip() + "\n"
    return Document("### prose\n" + "".join(lines[start : start + given]) + ANSWER, answer)


def _weights(heldout: bool) -> list[int]:
    # Long help topics hold many passages; weighting by length draws every passage about equally.
    return [len(text) for text in passages(heldout)]
