"""Rewrites the tables of the docs from results/.

A page has ``<!-- table NAME -->`` and ``<!-- end -->`` on separate lines; the named table is
written between them. ``make bench-docs`` rewrites all pages, and a test checks them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from mutants import why
from shared.listing import rows_of_the_list
from shared.results import load

ROOT = Path(__file__).parents[3]
PLACE = re.compile(r"^(<!-- table (\S+) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def num(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}"


def span(value: float, low: float, high: float, digits: int = 2) -> str:
    return f"{num(value, digits)} ({num(low, digits)}–{num(high, digits)})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [re.sub(r" +", " ", f"| {' | '.join(line)} |\n") for line in (head, *rows)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


def startup() -> str:
    found = load("startup")["startup_s"]
    heads = [f"`{'python -c ' * (name == 'pass')}{name}`" for name in found]
    return table(heads, [[num(seconds, 3) for seconds in found.values()]])


def benchmarks() -> str:
    return table(["name", "what it shows", "took"], rows_of_the_list())


def overhead() -> str:
    found = load("overhead")["overhead"]
    ms, *shares = zip(*(each.values() for each in found.values()), strict=True)
    rows = [["ms a round", *(num(each, 1) for each in ms)]]
    names = ("policy and bookkeeping", "all Python outside the models")
    for what, own in zip(names, shares, strict=True):
        rows.append([what, *(f"{100 * share:.1f}%" for share in own)])
    return table(["", *(f"`{name}`" for name in found)], rows)


def engine() -> str:
    def ratio(row: Any, key: str) -> str:
        return span(row[key], row["low"], row["high"])

    rows = [
        [f"{r['rows']} at once, relative to plain", ratio(r, "times plain")]
        for r in load("engine_together")["together"]
    ]
    for r in load("engine_arrivals")["arrivals"]:
        key, over = "times batches of 8", "static batches of 8"
        if "times plain" in r:
            key, over = "times plain", f"plain, at most {r['rows']} at once"
        rows.append([f"64 arrivals, load {num(r['load'], 1)}, relative to {over}", ratio(r, key)])
    for part, key, what in (
        ("gap", "longest gap over median round", "longest gap, median rounds"),
        ("chat", "turn 10 over turn 1", "tenth first token over the first"),
    ):
        found = [row[key] for row in load(f"engine_{part}")[part]]
        rows.append([what, span(float(median(found)), min(found), max(found))])
    (room,) = load("engine_memory")["memory"]
    rows.append(["bytes kept over bytes of live tokens", num(room["bytes over live"])])
    rows.append(["MB more after 1,000 requests", num(room["MB more after 1,000"], 1)])
    return table(["", "found"], rows)


def trees() -> str:
    runs = {"T = 0": load("trees_eagle")["trees"], "T = 1": load("trees_eagle_sampled")["trees"]}
    shapes = [name for name in runs["T = 0"] if name != "plain"]
    rows = [
        [name, *(f"{num(x[s]['mat'])}, {span(x[s]['ratio'], *x[s]['ci95'])}" for s in shapes)]
        for name, x in runs.items()
    ]
    return table(["", *(f"`{shape}`" for shape in shapes)], rows)


def argmax() -> str:
    def pair(row: Any, name: str) -> str:
        value, half = row[name], row[f"{name} ci"]
        return f"{num(value, int(value < 10))} ±{num(half, int(value < 10))}"

    keys, rows = ("argmax, all seen", "UCBSpec", "goodput"), []
    for row in load("claims_theory")["argmax"]:
        if row["tokens"] in {500, 2000, 8000}:
            alphas = re.sub(r"(?<!\d)\.", "0.", row["world"].removeprefix("alphas "))
            first = alphas if row["tokens"] == 500 else ""
            rows.append([first, f"{row['tokens']:,}", *(pair(row, key) for key in keys)])
    heads = ["mean alphas", "tokens", "argmax, all seen", "UCBSpec (bandit)"]
    return table([*heads, "`goodput` (free, forgets, looks)"], rows)


def misled() -> str:
    texts = {
        "alternating": "two drafters take turns at being perfect for 50 tokens",
        "first good, then bad": "one is good for 50 tokens in 550, the other steady at 0.6",
        "made for the argmax": "made for the argmax: the leader is wrong at the next token",
    }
    found = load("claims_theory")["misled"]
    keys, rows = ("argmax, all seen", "EXP3Spec", "goodput"), []
    for name, what in texts.items():
        mine = [row for row in found if row["text"] == name]
        for row in (mine[0], mine[-1]):
            cells = [num(row[k], int(abs(row[k]) < 10)) if k in row else "" for k in keys]
            rows.append([what if row is mine[0] else "", f"{row['tokens']:,}", *cells])
    return table(["text", "tokens", "argmax, all seen", "EXP3Spec", "`goodput`"], rows)


def widths() -> str:
    found = load("widths")
    rows = [[way, *(f"{ms:.0f}" for ms in own["least_ms"])] for way, own in found["ways"].items()]
    return table(["tokens read at once", *map(str, found["widths"])], rows)


def serving() -> str:
    rows = []
    files = {"serving": "bundled", "serving_smollm2": "SmolLM2", "serving_smollm2_64": "SmolLM2"}
    ways = product(("over", "first token over"), ("plain", "transformers serve"))
    keys = [" ".join(way) for way in ways]
    for name, target in files.items():
        for row in load(name)["rows"]:
            cells = [num(row[key]) if key in row else "—" for key in keys]
            same = f"{row['answers'] - row['answers_that_differ']} of {row['answers']}"
            rows.append([f"{target}, {row['at_once']}", *cells, same])
    heads = ["target, at once", "over plain", "over `transformers serve`"]
    waits = ["first token, of plain's", "of `transformers serve`'s"]
    return table([*heads, *waits, "answers equal to plain's"], rows)


def mutants() -> str:
    found, rows, sums = load("mutants")["modules"], [], [0, 0, 0]
    for module, each in found.items():
        equal = sum(why(module, mutant["becomes"]) is not None for mutant in each["survivors"])
        own = each["mutants"], equal, each["mutants"] - len(each["survivors"])
        sums = [a + b for a, b in zip(sums, own, strict=True)]
        rows.append([f"`{module}.py`", *counts(*own), num(each["tests_s"], 1)])
    rows.append(["all", *counts(*sums), ""])
    return table(["file", "mutants", "equal", "killed", "of the others", "its tests, s"], rows)


def counts(num: int, equal: int, killed: int) -> list[str]:
    return [str(num), str(equal), str(killed), f"{100 * killed / (num - equal):.1f}%"]


def survivors() -> str:
    rows = []
    for module, each in load("mutants")["modules"].items():
        for mutant in sorted(each["survivors"], key=lambda mutant: mutant["line"]):
            code = mutant["becomes"].replace("|", r"\|")
            reason = why(module, mutant["becomes"]) or "**no test yet**"
            rows.append([f"`{module}.py:{mutant['line']}`", f"`{code}`", reason])
    return table(["where", "becomes", "why no test fails"], rows)


def sglang() -> str:
    rows = [
        [
            row["model"].replace("_", " "), str(row["batch"]), num(row["ladder"]),
            num(row["throughput_aware"]), f"{num(row['best_fixed'])} ({row['best_fixed_steps']})",
            num(row["draftwise"]), num(row["to_better_rule"], 3), num(row["own_ms"]),
        ]
        for row in load("sglang_replay")["rows"]
    ]  # fmt: skip
    heads = ["costs", "requests", "ladder", "throughput-aware", "best fixed (steps)", "draftwise"]
    return table([*heads, "of the better rule", "own ms a step"], rows)


def own_time() -> str:
    steps = load("controller_time")["steps"]
    busy, idle = ([row for row in steps if row["idle"] == kind] for kind in (False, True))

    def ms(row: Any, *keys: str) -> list[str]:
        return [num(row[key], 3) for key in keys]

    step, rows = ("step_ms", "p99_ms"), []
    for drafts, none in zip(busy, idle, strict=True):
        own = [*ms(drafts, *step), *ms(drafts, "work_ms"), *ms(none, *step)]
        rows.append([str(drafts["requests"]), *own])
    heads = ["requests", "drafts", "p99", "during the forward", "nothing to draft", "p99"]
    return table(heads, rows)


def gpu_check() -> str:
    found = load("gpu_check")
    keys = ("method", "requests", "rounds")
    ms = {tuple(row[key] for key in keys): row for row in found["steps"]}
    rows = []
    for row in found["speeds"]:
        step = ms[tuple(row[key] for key in keys)]
        composed = step.get("composed_ms")
        rows.append([
            str(row["requests"]) + (", replaced" if row["rounds"] > 1 else ""),
            row["method"].replace("none", "no drafts"),
            num(step["step_ms"]), num(composed) if composed else "—",
            num(step["emitted_each"]), num(row["tok_per_s"], 0), span(*row["x_plain"]),
        ])  # fmt: skip
    heads = ["requests", "method", "ms a step", "composed for an H100", "tokens a step", "tok/s"]
    return table([*heads, "of no drafts"], rows)


GPU_MODELS = {"8B": "gpu_replay_8b", "70B": "gpu_replay_70b"}


def _gpu(part: str, heads: dict[str, str]) -> str:
    """A row for each model and number of requests; heads: column titles by key of the result."""
    rows = []
    for model, file in GPU_MODELS.items():
        for cell in load(file)[part]:
            found = dict(cell)
            if "chain_counted" in cell:
                found["chain_counted_of_best"] = cell["chain_counted"] / cell["best_speed"]
            rows.append([model, str(cell["requests"]), *(num(found[name]) for name in heads)])
    return table(["costs", "requests", *heads.values()], rows)


def gpu_draftwise() -> str:
    heads = {
        "best_speed": "best fixed rule", "chain": "chain", "chain_counted": "own time counted",
        "chain_of_best": "of best", "chain_counted_of_best": "of best, counted",
        "chain_gap": "gap closed", "chain_cold": "first 2 s",
        "chain_promised": "promised / accepted", "chain_promised_least": "least over 200",
        "chain_promised_most": "most over 200",
    }  # fmt: skip
    return _gpu("cells", heads)


def gpu_others() -> str:
    heads = {
        "chain": "draftwise", "best_chain": "best fixed chain of both",
        "vllm": "vLLM, adaptive",
        "throughput": "SGLang, throughput", "ladder": "SGLang, ladder", "smart": "SMART",
        "best_paper": "best paper", "oracle": "oracle",
    }  # fmt: skip
    return _gpu("cells", heads)


def gpu_gap() -> str:
    names = load(GPU_MODELS["8B"])["gaps"][0]
    return _gpu("gaps", {name: name for name in names if name != "requests"})


def gpu_closed() -> str:
    rows = [
        [model, str(row["requests"]), row["best"], num(row["best_speed"]), num(row["first_batch"]),
         num(row["others"])]
        for model, file in GPU_MODELS.items()
        for row in load(file.replace("replay", "replay_closed"))["closed"]
    ]  # fmt: skip
    heads = ["costs", "requests", "best fixed rule", "its speed", "first batch", "later batches"]
    return table(heads, rows)


def constants() -> str:
    rows = load("controller_constants")["constants"]
    columns = [name for name in rows[0] if name != "constant"]
    return table(
        ["constant", *columns],
        [[f"`{row['constant']}`", *(num(row[name], 3) for name in columns)] for row in rows],
    )


WAYS = {
    "packed": "packed", "padded": "padded", "alone": "one sequence per forward", "": "refused",
}  # fmt: skip


def models() -> str:
    found = load("models")
    groups: dict[str, list[str]] = {}
    for one in sorted(found["types"], key=lambda one: [*WAYS].index(one["rows"])):
        words = [WAYS[one["rows"]]]
        if not one["reason"]:
            words.append("chains and trees" if one["has_trees"] else "chains only")
        words += ["recurrent or hybrid"] * one["has_states"]
        groups.setdefault(", ".join(words), []).append(f"`{one['type']}`")
    num, refused = len(found["types"]), len(groups["refused"])
    served = f"served: {num - refused} of {num} types of transformers"
    return table(
        ["batches", f"{served} {found['environment']['versions']['transformers']}"],
        [[f"{how} ({len(names)})", ", ".join(names)] for how, names in groups.items()],
    )


def refused() -> str:
    in_cells = str.maketrans("|<>", "/()")
    return table(
        ["type", "reason"],
        [
            [f"`{one['type']}`", one["reason"].translate(in_cells)]
            for one in load("models")["types"]
            if one["reason"]
        ],
    )


TABLES: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        startup, benchmarks, overhead, engine, trees, argmax, misled, widths,
        serving, sglang, mutants, survivors, own_time, gpu_draftwise, gpu_others,
        gpu_gap, gpu_check, gpu_closed, constants, models, refused,
    )
}  # fmt: skip


def pages() -> list[Path]:
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def rewritten(text: str) -> str:
    """A page with the tables of the current results. Errors: KeyError for an unknown table."""
    return PLACE.sub(lambda at: f"{at[1]}\n{TABLES[at[2]]()}\n{at[4]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *TABLES], help="print these, write none")
    options = parser.parse_args()
    for name in options.names:
        print(TABLES[name]())
    for page in [] if options.names else pages():
        text = page.read_text("utf-8")
        if (new := rewritten(text)) != text:
            page.write_text(new, "utf-8")
            print(f"rewrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
