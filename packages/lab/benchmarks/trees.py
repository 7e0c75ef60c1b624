"""Trees and chains of the same drafter and depth on zoo prompts: tokens per round and per second.

``--policy goodput --trees chain,4x16,chain+4x16``: goodput chooses among plain decoding and these
plans. At a temperature above 0 answers are different samples of one distribution, so tokens are not
compared; MAT is over all rounds of all answers. Clock: CPU time of the process.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from shared.compare import measure, method, zoo_texts
from shared.script import run, show

from draftwise import Speculator


def compare(args: argparse.Namespace) -> dict[str, Any]:
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature, "ignore_eos": True}
    counts = {name: Counter[str]() for name in ("plain", *args.trees.split(","))}

    def speculator(name: str) -> Speculator:
        tree = {"policy": args.policy, "lengths": [args.length], "trees": name.split("+")}
        return Speculator.from_pretrained(
            "zoo", [] if name == "plain" else [f"zoo:{args.drafter}"],
            **({"preset": "plain"} if name == "plain" else {"preset": "metasd", **tree}),
        )  # fmt: skip

    methods = {name: method(speculator(name), counts[name], **options) for name in counts}
    timing = measure(methods, zoo_texts(args.domains), "plain", args.repeats)
    rows = {}
    for name in methods:
        ratio = timing.compare(name, "plain")
        rows[name] = {
            "tok_per_s": timing.tok_per_s(name), "ratio": round(ratio.value, 3),
            "ci95": [round(ratio.low, 3), round(ratio.high, 3)],
            "identical": timing.identical[name],
            "mat": round(counts[name]["num_emitted"] / counts[name]["num_rounds"], 3),
        }  # fmt: skip
    show(rows, f"{args.drafter}, depth {args.length}, T = {args.temperature}")
    return {"trees": rows}


if __name__ == "__main__":
    run(
        __doc__, compare, drafter="generalist", length=5, trees="chain,2x8,4x8,4x16,8x32",
        policy="fixed:0", temperature=0.0, domains=3, tokens=120, repeats=2,
    )  # fmt: skip
