"""What more drafters bring: two folders of ``draftwise bench``, on the prompts that both answered.

    python benchmarks/more_drafters.py ./retrieval ./all

Each folder's draftwise is compared with its own plain decoding, which ran beside it; the gain is
the ratio of these ratios, by category, of CPU seconds.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from shared.results import save


def seconds(folder: Path) -> tuple[dict[str, str], dict[tuple[str, str], float]]:
    """Category by prompt; CPU seconds by prompt and method."""
    items = json.loads((folder / "results.json").read_text())["settings"]["items"]
    categories, spent = dict[str, str](), dict[tuple[str, str], float]()
    for line in (folder / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        if "method" in run:
            name = items[int(run["item"])]
            categories[name] = run["domain"]
            spent[name, run["method"]] = sum(run["cpu_s"])
    return categories, spent


def main() -> None:
    """Compare, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("few", type=Path)
    parser.add_argument("more", type=Path)
    parser.add_argument("--out")
    args = parser.parse_args()
    categories, few = seconds(args.few)
    _, more = seconds(args.more)
    sums, num = defaultdict[str, Any](lambda: np.zeros(4)), 0
    for name, category in categories.items():
        places = [
            (side, (name, method)) for side in (few, more) for method in ("plain", "draftwise")
        ]
        if all(place in side for side, place in places):
            num += 1
            for each in (category, "all"):
                sums[each] += [side[place] for side, place in places]
    found = {
        category: {"few": a / b, "more": c / d, "gain": (c / d) / (a / b)}
        for category, (a, b, c, d) in sums.items()
    }
    save(args.out, {"prompts": num, "categories": found})


if __name__ == "__main__":
    main()
