"""User turns of everyday chats from templates, by category."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_TURNS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
TEMPLATES: Mapping[str, Sequence[str]] = _TURNS["templates"]
"""Turns by category, with slots in braces: keys of ``SLOTS`` (a digit marks another value), ranges
of ``NUMBERS``, ``pct``, or ``passage``."""
SLOTS: Mapping[str, Sequence[str]] = _TURNS["slots"]
NUMBERS = {"num": (2, 12), "n": (11, 90), "small": (2, 9), "big": (100, 960), "age": (5, 12)}
PASSAGE_WORDS = (40, 160)


def made_turns(seed: int, passages: Sequence[str] = ()) -> Iterator[str]:
    """Turns without end, from all categories in turn; those with passages only if there are any.

    passages: texts of which one or two pieces of ``PASSAGE_WORDS`` fill ``{passage}``.
    """
    rng = random.Random(seed)
    while True:
        for templates in TEMPLATES.values():
            able = [one for one in templates if passages or "{passage" not in one]
            if able:
                yield _filled(rng.choice(able), rng, passages)


def _filled(template: str, rng: random.Random, passages: Sequence[str]) -> str:
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        name = match[1] if match[1] in SLOTS else match[1].rstrip("2345")
        if name == "passage":
            words = rng.choice(passages).split(" ")
            return " ".join(words[: rng.randint(*PASSAGE_WORDS)])
        if name == "pct":
            return str(5 * rng.randint(1, 15))
        if name in NUMBERS:
            return str(rng.randint(*NUMBERS[name]))
        found = rng.choice([one for one in SLOTS[name] if one not in used])
        used.add(found)
        return found

    return re.sub(r"\{([a-z]+[2345]?)\}", value, template)
