"""What each constant of the default policy matters: half and double, over speed as it is.

    python -m benchmarks record --stream development --prompts 29 --tokens 120 --out dev.npz
    python -m benchmarks constants --trace dev.npz --out benchmarks/results/constants.json

Requests of development are replayed at given costs (``replay.py``). Halved and doubled are
numbers; of a probability its odds, of a discount what it forgets, of a grid its points.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import replay
from shared.results import save

from draftwise.policies.goodput import looks
from draftwise.policies.goodput.policy import Goodput

Change = Callable[[Any, float], Any]


def times(value: Any, factor: float) -> Any:
    """The number itself; whole numbers stay whole."""
    return type(value)(value * factor)


def odds(value: Any, factor: float) -> Any:
    """A probability, or several."""
    if isinstance(value, tuple):
        return tuple(odds(one, factor) for one in value)
    return factor * value / (factor * value + 1.0 - value)


def log_odds(value: float, factor: float) -> float:
    """Of a probability that is kept as log odds."""
    return value + math.log(factor)


def rest(value: float, factor: float) -> float:
    """What is missing to 1."""
    return max(1.0 - (1.0 - value) * factor, 0.0)


def grid(values: tuple[float, ...], factor: float) -> tuple[float, ...]:
    """Every second point, or one more between each two."""
    if factor < 1:
        return values[::2]
    return tuple(sorted([*values, *((low + high) / 2 for low, high in pairwise(values))]))


CONSTANTS: dict[str, Change] = {
    "discount": rest, "FAST_DISCOUNT": rest, "FAST_ODDS": log_odds, "ERROR_WEIGHT": times,
    "PRIOR": odds, "PRIOR_WEIGHT": times, "POOL_WEIGHT": times, "GOOD_POOL": times,
    "WINDOW": times, "NUM_FEATURES": times, "PASSAGE": times, "PRIOR_VARIANCE": times,
    "TOKEN_WEIGHT": times, "MOST_WEIGHT": times, "SURPRISE": times, "CHANGED": times,
    "FIRST_LOOKS": times, "ANSWER_TOKENS": times, "LOOK_TOKENS": times, "HASTY": times,
    "ACCEPTANCES": grid, "_ROUNDS_A_PRICE": times, "MATCH_PRIORS": odds, "MATCH_WEIGHT": times,
    "MATCH_DISCOUNT": rest, "BIN_WEIGHT": times, "BIN_DISCOUNT": rest, "RATE_SHARE": rest,
}  # fmt: skip
ALIKE = {"LOOK_TOKENS": "GLANCE", "HASTY": "GLANCE_WEIGHT"}
"""What the simulator calls the engine's side of a constant."""
OPTIONS = {"discount": 0.97, "PRIOR": 0.55}
"""What is an option of the policy, too, by its default."""


def homes(name: str) -> Iterator[tuple[Any, str]]:
    """Modules that hold the constant, and its name there."""
    for path, module in list(sys.modules.items()):
        if path.startswith("draftwise.policies.goodput") and hasattr(module, name):
            yield module, name
    if name in ALIKE:
        yield sys.modules["draftwise_lab.sim.reading"], ALIKE[name]


def value_of(name: str) -> Any:
    """As it is."""
    return OPTIONS[name] if name in OPTIONS else getattr(*next(homes(name)))


@contextmanager
def changed(name: str, factor: float) -> Iterator[Any]:
    """The constant is another meanwhile."""
    value = CONSTANTS[name](value_of(name), factor)
    places: list[tuple[Any, str, Any]] = [(*home, value) for home in homes(name)]
    if name in OPTIONS:
        made = functools.partial(Goodput, **{name.lower(): value})
        places.append((replay, "Goodput", made))
    if name == "PRIOR":
        memory = sys.modules["draftwise.policies.goodput.experience"]
        places.append((memory, "_BIAS", math.log(value / (1.0 - value))))
    old = [getattr(module, own) for module, own, _ in places]
    for module, own, new in places:
        setattr(module, own, new)
    looks._beliefs.cache_clear()  # which rest on a grid
    try:
        yield value
    finally:
        for (module, own, _), before in zip(places, old, strict=True):
            setattr(module, own, before)
        looks._beliefs.cache_clear()


def main() -> None:
    """Vary each, replay, compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", required=True, help="of development")
    parser.add_argument("--name", action="append", default=[], choices=list(CONSTANTS))
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--out")
    options = parser.parse_args()
    requests = replay.read(options.trace, options.tokens, 0)
    drafters, found = list(requests[0].text.tracks), {}
    scopes = (replay.REQUEST, replay.AUTO)
    as_is = {scope: replay.play(scope, requests, drafters) for scope in scopes}
    for name in options.name or CONSTANTS:
        rows: dict[str, Any] = {"value": value_of(name)}
        for factor, label in ((0.5, "half"), (2.0, "double")):
            with changed(name, factor) as value:
                rows[f"{label} is"] = value
                for scope in scopes:
                    own = replay.play(scope, requests, drafters)
                    rows[f"{scope}, {label}"] = replay.over(own, as_is[scope])
        found[name] = rows
        print(name, rows, flush=True)
    save(options.out, {"requests": len(requests), "tokens": options.tokens, "constants": found})


if __name__ == "__main__":
    main()
