"""What a forward of 1 to 65 tokens costs: the library's products, and those of draftwise.

Milliseconds of processor time after 100 tokens of text: minimum and median of the interleaved
repeats. Verifying four drafted tokens is a forward of five.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from typing import Any

import torch
from shared.compare import interleaved_ms
from shared.script import run, show, track

from draftwise.nn.layout import put_back
from draftwise.nn.load import load_model
from draftwise.nn.model import CausalModel
from draftwise.pool import resolve_target

WIDTHS = (1, 2, 3, 5, 9, 17, 33, 65)
TEXT = list(range(100, 200))


def ways(target: str) -> dict[str, CausalModel]:
    made: dict[str, CausalModel] = {}
    for dtype in ("float32", "bfloat16"):
        for how in ("products of torch", "products of draftwise"):
            made[f"{dtype}, {how}"] = load_model(target, dtype=dtype)
        put_back(made[f"{dtype}, products of torch"].module)
    return made


@torch.inference_mode()
def measure(models: dict[str, CausalModel], repeats: int) -> dict[str, dict[str, list[float]]]:
    """[widths] minimum and median milliseconds of each layout."""
    caches = {}
    for name, model in models.items():
        caches[name] = model.new_cache(1)
        model.extend(caches[name], [0], [TEXT], 1)
    found: dict[str, list[list[float]]] = {name: [] for name in models}
    for width in track(WIDTHS):

        def forward(name: str, width: int = width) -> None:
            caches[name].settle([0], [len(TEXT)])
            models[name].extend(caches[name], [0], [TEXT[:width]], width)

        calls = {name: functools.partial(forward, name) for name in models}
        for name, spent in interleaved_ms(calls, repeats).items():
            found[name].append(spent)
    return {
        name: {
            "least_ms": [min(times) for times in own],
            "median_ms": [statistics.median(times) for times in own],
        }
        for name, own in found.items()
    }


def compare(args: argparse.Namespace) -> dict[str, Any]:
    rows = measure(ways(str(resolve_target(args.target)[0])), args.repeats)
    least = {n: dict(zip(map(str, WIDTHS), r["least_ms"], strict=True)) for n, r in rows.items()}
    show(least, "least of the repeats, ms")
    return {"widths": list(WIDTHS), "ways": rows}


if __name__ == "__main__":
    run(__doc__, compare, target="smollm2", repeats=9)
