"""Sensitivity of the controller to its constants: the replay with each at half and double.

    python -m benchmarks controller_constants --data FOLDER --out results.json

Compilation freezes constants, so each variant is a copy of the package with one line changed, in a
separate process. For a discount, 1 - discount is halved and doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.script import run, show, track

import draftwise

CONSTANTS = {
    "acceptance": ("DISCOUNT", "REQUEST_DISCOUNT", "REQUEST_WEIGHT", "PRIOR_WEIGHT", "LOWEST"),
    "choice": ("NUM_PRICES",),
    "costs": ("SCALE_STEPS", "SCALE_CHANGE", "PAUSE"),
    "guard": (
        "credit", "share", "probe_share", "WITH_MODEL", "MARGIN", "IDLE_STEPS", "IDLE_MOST",
    ),
}  # fmt: skip
_NUMBER = re.compile(r"\d+\.?\d*(?:e-?\d+)?")


def changed(source: str, name: str, factor: float) -> str:
    """A module's source with all numbers of one constant scaled by a factor."""
    found = re.search(
        rf"^ *((?:[A-Z_]+, )*{name}(?:, [A-Z_]+)*)(?:: float)? = (.*)$", source, re.MULTILINE
    )
    assert found, name
    names = found[1].split(", ")

    def number(found: re.Match[str]) -> str:
        value = float(found[0])
        if "DISCOUNT" in name:
            return repr(1 - factor * (1 - value))
        new = value * factor
        return repr(new if "." in found[0] or "e" in found[0] else max(1, round(new)))

    values = found[2].split(", ") if len(names) > 1 else [found[2]]
    values[names.index(name)] = _NUMBER.sub(number, values[names.index(name)])
    return f"{source[: found.start(2)]}{', '.join(values)}{source[found.end() :]}"


def speeds(data: Path, sizes: list[int], folder: Path, module: str = "", name: str = "",
           factor: float = 1.0) -> list[float]:  # fmt: skip
    package = Path(draftwise.__file__).parent
    copy = Path(tempfile.mkdtemp(dir=folder)) / package.name
    copy.mkdir()
    for each in package.iterdir():
        if each.name != "controller":
            (copy / each.name).symlink_to(each)
    # includes the compiled code
    shutil.copytree(package / "controller", copy / "controller")
    if module:
        file = copy / "controller" / f"{module}.py"
        file.write_text(changed(file.read_text(), name, factor))
    paths = [str(copy.parent), str(Path(__file__).parent), str(Path(__file__).parents[1])]
    child = subprocess.run(
        [sys.executable, __file__, "--data", str(data), "--requests", *map(str, sizes), "--one"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=True, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    return list(json.loads(child.stdout))


def one(data: Path, sizes: list[int]) -> Iterator[float]:
    import random

    from gpu_replay import NUM_REQUESTS, Prices, drive, load

    texts, prices = load(data), Prices(data / "step_costs.npz", "llama8b_bf16_1xh100")
    for size in sizes:
        some = random.Random(100).sample(texts, NUM_REQUESTS.get(size, 3 * size))
        yield drive(some, size, prices, seed=0).speed()


def vary(args: argparse.Namespace) -> dict[str, Any]:
    """Replay every constant at half and double; in a child process, replay with its package."""
    if args.one:
        print(json.dumps(list(one(args.data, args.requests))))
        raise SystemExit
    rows = []
    with tempfile.TemporaryDirectory() as place:
        base = speeds(args.data, args.requests, Path(place))
        for module, names in CONSTANTS.items():
            for name in track(names, module):
                row: dict[str, object] = {"constant": f"{module}.{name}"}
                for label, factor in (("half", 0.5), ("double", 2.0)):
                    found = speeds(args.data, args.requests, Path(place), module, name, factor)
                    for size, now, before in zip(args.requests, found, base, strict=True):
                        row[f"{label}, {size}"] = now / before
                rows.append(row)
    show(rows, "speed relative to the constants as they are")
    return {"speeds": base, "constants": rows}


if __name__ == "__main__":
    data = {"type": Path, "required": True, "help": "folder of the replay's data"}
    hidden = {"action": "store_true", "help": argparse.SUPPRESS}
    run(__doc__, vary, data=data, requests=[4, 64], one=hidden)
