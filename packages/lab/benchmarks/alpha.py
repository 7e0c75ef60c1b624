"""Does alpha from score() predict acceptance? Every drafter, chains at temperature 1.

Each drafter drafts in every round, on the held-out prompts of all domains. Positions up to the
first rejection are judged: predicted is the mean of their alphas from the drafter's ``score()``,
realised the share of them that was accepted. The difference comes with its standard error at this
number of positions.

``watched`` predicts drafters that do not play: all drafters are scored along plainly decoded
answers, and rounds are simulated along them, a token being kept with its probability min(1, q/p)
(HedgeSpec, theorem 3).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show, track

from draftwise import Speculator, zoo

ROWS = 28
ANSWER = 180


def measure(name: str, num_tokens: int, length: int, temperature: float) -> dict[str, Any]:
    """Predicted and realised acceptance of a drafter over at least ``num_tokens`` tokens."""
    made = Speculator.from_pretrained(
        "zoo", [spec_of(name)], preset="metasd", policy="fixed:0", lengths=[length]
    )
    alphas: list[float] = []
    accepted = emitted = rounds = 0
    for batch in itertools.count():
        if emitted >= num_tokens:
            break
        options = {"max_new_tokens": ANSWER, "temperature": temperature, "ignore_eos": True}
        for round_ in made.start(prompts(batch), seed=batch, **options):
            emitted, rounds = emitted + round_.num_emitted, rounds + 1
            judged = min(round_.num_accepted + 1, round_.num_drafted)
            scores = round_.scores.get(name)
            if not judged or scores is None:
                continue
            offset = round_.position - scores.start
            found = scores.alphas[offset : offset + judged]
            if len(found) == judged:  # an answer that ended cuts its last draft short
                alphas += found.tolist()
                accepted += round_.num_accepted
    values = np.array(alphas)
    return {
        "tokens": emitted,
        "mat": round(emitted / rounds, 3),
        "judged": len(values),
        "predicted": round(float(values.mean()), 4),
        "realised": round(accepted / len(values), 4),
        "chance": round(float(np.sqrt((values * (1 - values)).sum()) / len(values)), 4),
    }


def watch(
    names: Sequence[str], num_tokens: int, length: int, temperature: float
) -> dict[str, float]:
    """Predicted acceptance of drafters that never play, from scores along plainly decoded text."""
    made = Speculator.from_pretrained(
        "zoo",
        [spec_of(name) for name in names],
        policy="fixed:0",
        feedback="panoramic:per_token=true",
        reward="acceptance",
        lengths=[1],
    )
    reached, kept = Counter[str](), Counter[str]()
    options = {"max_new_tokens": ANSWER, "temperature": temperature, "ignore_eos": True}
    for batch in range(-(-num_tokens // (ROWS * ANSWER))):
        known: dict[tuple[str, int], dict[int, tuple[float, float]]] = defaultdict(dict)
        for round_ in made.start(prompts(batch), seed=batch, **options):
            for name, scores in round_.scores.items():
                alphas = scores.alphas.copy()
                if scores.matches is not None:
                    alphas[scores.matches == 0] = np.nan  # nothing is drafted there
                pairs = zip(alphas.tolist(), scores.ratios.tolist(), strict=True)
                if round_.position <= scores.start + len(scores.alphas):
                    known[name, round_.request] |= dict(enumerate(pairs, scores.start))
        for (name, _), by_position in known.items():
            judged, accepted = as_if_played(by_position, length)
            reached[name] += judged
            kept[name] += accepted
    return {name: round(kept[name] / reached[name], 4) for name in names}


def as_if_played(known: dict[int, tuple[float, float]], length: int) -> tuple[float, float]:
    """Positions that rounds would judge along this text, and drafted tokens they would keep.

    known: alpha (nan where nothing is drafted) and ratio by position. A round may begin wherever
    the previous one ends; the ratio is the probability that the text's own token was drafted and
    kept.
    """
    begins: Counter[int] = Counter({min(known, default=0): 1.0})
    judged = accepted = 0.0
    for start in sorted(known):
        weight = begins[start]
        for position in range(start, start + length):
            if position not in known:
                break
            alpha, ratio = known[position]
            if not np.isnan(alpha):
                judged += weight
                accepted += weight * alpha
            begins[position + 1] += weight * (1 - ratio)
            weight *= ratio
        else:
            begins[start + length + 1] += weight
    return judged, accepted


def prompts(batch: int) -> list[str]:
    texts = [text for texts in zip(*zoo.prompts().values(), strict=True) for text in texts]
    return [texts[(batch * ROWS + row) % len(texts)] for row in range(ROWS)]


def spec_of(name: str) -> str:
    return name if name in {"lookup", "suffix"} else f"zoo:{name}"


def compare(args: argparse.Namespace) -> dict[str, Any]:
    known = [*zoo.drafter_paths(), *zoo.eagle_paths(), "lookup", "suffix"]
    names = args.drafters.split(",") if args.drafters else known
    watched = watch(names, args.tokens, args.length, args.temperature)
    rows = {}
    for name in track(names):
        row = rows[name] = measure(name, args.tokens, args.length, args.temperature)
        row["watched"] = watched[name]
        row["difference"] = round(row["realised"] - row["predicted"], 4)
    show(rows)
    is_there = args.out is not None and Path(args.out).exists()  # with other drafters' rows
    return {"alpha": (json.loads(Path(args.out).read_text())["alpha"] if is_there else {}) | rows}


if __name__ == "__main__":
    drafters = {"help": "names with commas; default: all of the zoo, lookup and suffix"}
    run(__doc__, compare, drafters=drafters, tokens=20_000, length=5, temperature=1.0)
