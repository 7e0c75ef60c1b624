"""Where to stop: fixed lengths, TapOut, SpecDec++ and draftwise's own rule, at given costs.

One drafter of the zoo answers all held-out prompts of a run in one order. Answers are really
generated; forwards are counted and priced afterwards (``PRICES``), independently of other programs.
Methods that choose by price run once for each price. ``--work`` keeps finished answers, so that an
interrupted run can be resumed. Intervals are over prompts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shared.compare import span, zoo_texts
from shared.script import run, show, track

from draftwise import Speculator

Cost2 = tuple[float, float]
"""Milliseconds of a forward, and of each of its tokens."""
DRAFTER, FIXED = "generalist", (1, 2, 3, 4, 6, 8)
TABLE_1 = ("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin")
GRID = ("max-confidence:0.6", "max-confidence:0.4", "svip:0.9", "svip:1.2", "adaedl:0.5")
"""Thresholds other than the papers' defaults: candidates that tuning could have selected."""
HEAD, LAGGING = "SpecDec++, bundled head", "SpecDec++, bundled head, lag"
UCB, SIMPLE = "TapOut, UCB1, blend", "TapOut, UCB1, simple"
PRICES: dict[str, tuple[Cost2, Cost2]] = {
    "zoo": ((7.5, 0.2), (0.42, 0.02)),
    "dear": ((7.5, 0.2), (1.5, 0.05)),
}
"""Prices of target and drafter: the zoo's, and those of a drafter that costs a fifth of its target,
as with Llama's 1B and 8B."""
BASES = ("plain", "best length", "best rule", UCB, HEAD, LAGGING, "draftwise")


Way = dict[str, Any]
"""Options of ``Speculator.from_pretrained`` other than the target and the drafter."""


def rule(spec: str, length: int = 128) -> Way:
    return {"preset": "tapout", "policy": "fixed:0", "rules": [spec], "lengths": [length]}


def bandit(policy: str = "ucb1:beta=1", reward: str = "blend", **more: Any) -> Way:
    """TapOut: a bandit over the rules of table 1, which learns from all prompts."""
    return {"preset": "tapout", "policy": policy, "reward": reward, "scope": "session", **more}


WAYS: dict[str, Way] = {
    "plain": {"preset": "plain"},
    **{f"length {k}": rule("fixed", k) for k in FIXED},
    **{spec: rule(spec) for spec in TABLE_1},
    HEAD: rule("head", 20),
    LAGGING: rule("head:lag=true", 20),
    "TapOut token, UCB1": rule("tapout-token:bandit=ucb1:beta=1"),
    UCB: bandit(),
    "draftwise": {"preset": "draftwise"},
}
"""Methods at every temperature; the last one, which chooses by price, runs at every price."""
MORE: dict[str, Way] = {
    **{spec: rule(spec) for spec in GRID},
    "TapOut token, Thompson": rule("tapout-token:bandit=thompson-bernoulli"),
    SIMPLE: bandit(reward="simple"),
    "TapOut, UCB-Tuned, blend": bandit("ucb-tuned"),
    "TapOut, Thompson, blend": bandit("thompson-gaussian"),
    **{
        f"lengths, UCB1, {name}": bandit(preset="banditspec", lengths=FIXED, feedback=name)
        for name in ("bandit", "prefix")
    },
}
"""The rest of TapOut's tables, and variants."""


@dataclass(frozen=True)
class Played:
    """One answer and its counts. forwards: of target and drafter, the number of forwards and of
    their tokens."""

    forwards: list[list[int]]
    emitted: int
    rounds: int
    drafted: int
    accepted: int

    def seconds(self, *prices: Cost2) -> float:
        """Seconds at these prices of target and drafter."""
        pairs = zip(prices, self.forwards, strict=False)  # plain decoding has no drafter
        return 1e-3 * sum(each * num + token * tokens for (each, token), (num, tokens) in pairs)


class Priced:
    """A model whose single-row forwards are counted and advance a clock by their price."""

    def __init__(self, model: Any, price: Cost2, clock: list[float]) -> None:
        self._model, self._price, self._clock = model, price, clock
        self.counts = [0, 0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def extend(self, cache: Any, rows: Any, tokens: Any, *more: Any, **options: Any) -> Any:
        (num,) = map(len, tokens)
        self.counts = [self.counts[0] + 1, self.counts[1] + num]
        self._clock[0] += 1e-3 * (self._price[0] + self._price[1] * num)
        return self._model.extend(cache, rows, tokens, *more, **options)


def play(
    way: Way, texts: Sequence[str], prices: tuple[Cost2, Cost2], options: dict[str, Any]
) -> list[Played]:
    """Answer every prompt alone, with a separate seed, on a clock with these prices."""
    drafters = [] if way["preset"] == "plain" else [f"zoo:{DRAFTER}"]
    spec = Speculator.from_pretrained("zoo", drafters, **{"scope": "request", **way})
    clock, found = [0.0], list[Played]()
    spec._num_prefixes = 0  # prefill every prompt
    target: Any = Priced(spec.target, prices[0], clock)
    spec.target, models = target, [target]
    spec._pool = dataclasses.replace(spec._pool, target=target, clock=lambda: clock[0])
    for drafter in spec.drafters:
        own: Any = drafter
        own.model = Priced(own.model, prices[1], clock)
        models.append(own.model)
    for seed, text in enumerate(texts):
        for model in models:
            model.counts = [0, 0]
        rounds = list(spec.start(text, seed=seed, **options))
        sums = {
            what: sum(getattr(round_, f"num_{what}") for round_ in rounds)
            for what in ("emitted", "drafted", "accepted")
        }
        found.append(Played([model.counts for model in models], rounds=len(rounds), **sums))
    return found


def remembered(path: Path, make: Callable[[], list[Played]]) -> list[Played]:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([dataclasses.asdict(played) for played in make()]))
    return [Played(**row) for row in json.loads(path.read_text())]


def table(args: argparse.Namespace) -> dict[str, Any]:
    """Every method relative to others, by price."""
    texts = zoo_texts(args.domains)
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature}
    folder = Path(args.work) / f"T{args.temperature:g}-{args.domains}x{args.tokens}"
    played: dict[str, dict[str, list[Played]]] = {price: {} for price in PRICES}
    for name, way in track((WAYS | (MORE if args.more else {})).items()):
        for price, costs in PRICES.items():
            path = folder / f"{name}{f' @{price}' if name == 'draftwise' else ''}.json"
            make = functools.partial(play, way, texts, costs, options)
            played[price][name] = remembered(path, make)
    found = {p: compare(played[p], costs) for p, costs in PRICES.items()}
    for price, own in found.items():
        show(
            {n: {**row["over"], "m": row["m"], "%": row["rate"]} for n, row in own["ways"].items()},
            f"T = {args.temperature:g}, prices: {price}; best: {own['best']}",
        )
    return {"temperature": args.temperature, "costs_ms": PRICES, "prices": found}


def compare(played: dict[str, list[Played]], costs: tuple[Cost2, Cost2]) -> dict[str, Any]:
    """Each method's speed relative to others, and the paper's m and %."""
    seconds = {n: np.array([p.seconds(*costs) for p in rows]) for n, rows in played.items()}
    tokens = {n: np.array([float(p.emitted) for p in rows]) for n, rows in played.items()}
    speed = {n: float(tokens[n].sum() / seconds[n].sum()) for n in played}

    best = {
        "best length": max((f"length {k}" for k in FIXED), key=speed.__getitem__),
        "best rule": max(TABLE_1, key=speed.__getitem__),
    }
    rows: dict[str, Any] = {}
    for name, own in played.items():
        rounds, drafted, accepted = (
            sum(getattr(p, key) for p in own) for key in ("rounds", "drafted", "accepted")
        )
        over = {base: best.get(base, base) for base in BASES}
        rows[name] = {
            "tok_per_s": round(speed[name], 1),
            "m": round(accepted / rounds, 3),
            "rate": round(accepted / max(drafted, 1), 3),
            "over": {
                base: span(tokens[name], seconds[name], tokens[of], seconds[of])
                for base, of in over.items()
            },
        }
    return {"best": best, "ways": rows}


if __name__ == "__main__":
    run(
        __doc__, table, work=".", temperature=0.0, domains=8, tokens=160,
        more={"action": "store_true", "help": "tuned rules and variants, too"},
    )  # fmt: skip
