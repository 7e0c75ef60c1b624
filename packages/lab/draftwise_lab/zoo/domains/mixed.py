"""Documents that walk through two or three domains, so that the text changes its domain midway."""

from __future__ import annotations

import random

from draftwise_lab.zoo.domains.document import Document, Domain


def sample(
    rng: random.Random, table: dict[str, Domain], *, size: float = 0.6, heldout: bool = False
) -> Document:
    """Two or three sections of different domains; all but the first section's prompt is answer."""
    names = rng.sample(sorted(table), rng.randint(2, 3))
    sections = [table[name](rng, size=size, heldout=heldout) for name in names]
    answer = sections[0].answer + "".join(section.text for section in sections[1:])
    return Document(f"### mixed: {', '.join(names)}\n{sections[0].prompt}", answer)
