"""The six domains of the zoo and the stream of documents made of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from draftwise_lab.zoo.domains import edit, math, mixed, prose, python, sql, translate
from draftwise_lab.zoo.domains.document import ANSWER, Document, Domain

DOMAINS: dict[str, Domain] = {
    "python": python.sample,
    "math": math.sample,
    "sql": sql.sample,
    "prose": prose.sample,
    "translate": translate.sample,
    "edit": edit.sample,
}
# Copying is the hardest skill here, prose the least learnable for a model of this size.
SHARES = {
    "python": 0.16, "math": 0.14, "sql": 0.10, "prose": 0.13, "translate": 0.10, "edit": 0.22,
    "mixed": 0.15,
}  # fmt: skip

__all__ = ["ANSWER", "DOMAINS", "SHARES", "Document", "documents", "sample"]


def sample(name: str, rng: random.Random, *, heldout: bool = False) -> Document:
    """One document of the domain `name` (a key of `SHARES`, `mixed` among them)."""
    if name == "mixed":
        return mixed.sample(rng, DOMAINS, heldout=heldout)
    if name not in DOMAINS:
        raise KeyError(f"unknown domain {name!r}; valid are {sorted(SHARES)}")
    return DOMAINS[name](rng, heldout=heldout)


def documents(rng: random.Random) -> Iterator[Document]:
    """An endless stream of training documents, domains drawn by `SHARES`."""
    names, weights = list(SHARES), list(SHARES.values())
    while True:
        yield sample(rng.choices(names, weights)[0], rng)
