"""What a bench is asked to measure; whatever is wrong with it is said before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwise.bench.methods import check_methods, default_methods
from draftwise.bench.runs import Store
from draftwise.bench.suites import Suite, load_suite
from draftwise.types import DraftwiseError

CLOCKS = ("wall", "cpu")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be measured.

    methods: empty = the default ones. domains: empty = all. prompts: of each domain at most, None =
    all. tokens: of each answer at most. fixed: how many fixed plans the first look proposes of all
    and of each domain. clock: ``wall``, or ``cpu`` where others use the machine, too.
    """

    suite: str
    out: Path
    methods: Sequence[str] = ()
    domains: Sequence[str] = ()
    prompts: int | None = None
    tokens: int = 128
    repeats: int = 3
    temperature: float = 0.0
    seed: int = 0
    threads: int = 1
    clock: str = "wall"
    fixed: tuple[int, int] = (2, 1)
    models: dict[str, Any] = field(default_factory=dict)

    def settings(self, suite: Suite) -> dict[str, Any]:
        """What two runs must share to be one bench."""
        return {
            "suite": self.suite,
            "items": [item.id for item in suite.items],
            "asked": list(self.methods or default_methods()),
            "tokens": self.tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "threads": self.threads,
            "models": {name: value for name, value in self.models.items() if value},
        }


def prepare(wish: Wish) -> tuple[Suite, Store]:
    """All that can be refused before a model is loaded; raises DraftwiseError."""
    for name, value in (("tokens", wish.tokens), ("repeats", wish.repeats)):
        if value < 1:
            raise DraftwiseError(f"--{name} {value}: it must be 1 or more")
    if wish.prompts is not None and wish.prompts < 1:
        raise DraftwiseError(f"--prompts {wish.prompts}: it must be 1 or more")
    if wish.clock not in CLOCKS:
        raise DraftwiseError(f"unknown clock {wish.clock!r}; the clocks are: {', '.join(CLOCKS)}")
    check_methods(wish.methods)
    suite = load_suite(wish.suite, wish.prompts, wish.domains)
    store = Store(wish.out)
    earlier = store.settings()
    wanted = wish.settings(suite)
    if earlier is not None:
        for key, value in wanted.items():
            if earlier.get(key) != value:
                raise DraftwiseError(
                    f"{wish.out} holds a bench with other {key}; give another --out, or remove it"
                )
    return suite, store
