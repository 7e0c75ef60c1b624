"""Code of the standard library: the first lines of a function are given, the rest is written."""

from __future__ import annotations

import random

from draftwise_lab.zoo.domains.document import ANSWER, Document
from draftwise_lab.zoo.domains.sources import functions


def sample(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """One or more functions of about 300 to 800 characters; held-out ones from unseen modules."""
    room = rng.randint(300, 800) * size
    text = rng.choice(functions(heldout))
    while len(text) < room:
        text += "\n" + rng.choice(functions(heldout))
    lines = text.splitlines(keepends=True)
    given = rng.randint(1, 3)
    end = given + 1
    while end < len(lines) and sum(map(len, lines[:end])) < room:
        end += 1
    return Document("### python\n" + "".join(lines[:given]) + ANSWER, "".join(lines[given:end]))
