"""SpecDec++ on the zoo: heads, figure 3's plane, tokens a second; each part is one command.

python benchmarks/specdecpp.py --part heads --work /tmp/zoo    # train them all; KL, calibration
python benchmarks/specdecpp.py --part plane --work /tmp/zoo    # discarded against verified
python benchmarks/specdecpp.py --part speed --work /tmp/zoo    # paired timing of the best

The drafter is the generalist. Heads learn from prompts of four domains (sql, translate, edit,
prose); the other two, python and math, are out of domain, as HumanEval and GSM8K are in the paper.
All measuring is on held-out prompts, sampled at temperature 1 unless said otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from paired import save
from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftwise import zoo
from draftwise.bench.sweep import numbers as n
from draftwise.bench.sweep.figure import draw
from draftwise.bench.sweep.runs import Field, Run, Way, fixed_ways, head_ways
from draftwise.drafters.lm import LMDrafter
from draftwise.nn.load import load_model
from draftwise.train.head import HeadOptions
from draftwise.train.head_run import Judged, Setting, judge_texts, make_head
from draftwise.zoo.corpus import encode_prompt, load_tokenizer
from draftwise.zoo.stops import stop_texts

IN_DOMAIN, OUT_OF_DOMAIN = ("sql", "translate", "edit", "prose"), ("python", "math")
LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 14)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
DEPTHS, WEIGHTS = (0, 1, 2, 3, 4), (1.0, 3.0, 6.0, 12.0)


class Scene:
    """The zoo's target and generalist."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.tokenizer = load_tokenizer(zoo.target_path())
        self.target = load_model(str(zoo.target_path()))
        home = zoo.drafter_paths()["generalist"]
        self.drafter = LMDrafter("generalist", load_model(str(home)), self.target, home)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        return [encode_prompt(self.tokenizer, prompt) for prompt in prompts]

    def judged(self) -> tuple[Setting, Judged]:
        """Drafts along the target's own answers to prompts of the four domains."""
        setting = Setting(self.target.module, self.drafter.model.module)
        texts = [
            stop_texts(setting.target, self.tokenizer, domain, self.work) for domain in IN_DOMAIN
        ]
        rows = [text for row in zip(*texts, strict=True) for text in row]
        return setting, judge_texts(setting, rows, self.work / "specdecpp" / "judged")

    def held_out(self, number: int) -> dict[str, list[list[int]]]:
        """Held-out prompts, in domain and out."""
        prompts = zoo.prompts()
        return {
            name: self.encode([text for domain in domains for text in prompts[domain][:number]])
            for name, domains in (("in domain", IN_DOMAIN), ("out of domain", OUT_OF_DOMAIN))
        }


def folder_of(work: Path, options: HeadOptions) -> Path:
    kind = "tied" if options.tied else options.label
    return work / "specdecpp" / f"{kind}-D{options.num_layers}-w{options.w_rej:g}-s{options.seed}"


def variants() -> list[HeadOptions]:
    """The paper's grid; the other label and tied layers, each with seeds to tell noise by."""
    grid = [HeadOptions(depth, w) for depth in DEPTHS for w in WEIGHTS]
    grid += [HeadOptions(d, 6.0, seed=1) for d in (2, 3, 4)] + [HeadOptions(3, 1.0, seed=1)]
    grid += [HeadOptions(3, w, "analytic", seed=seed) for w in (1.0, 6.0) for seed in (0, 1)]
    return grid + [HeadOptions(d, 6.0, tied=True, seed=seed) for d in (2, 3, 4) for seed in (0, 1)]


def heads(scene: Scene) -> dict[str, Any]:
    """Train every head; how well each predicts on held-out drafts."""
    setting, judged = scene.judged()
    found: dict[str, Any] = {}
    table = Table("head", "KL", "KL, weight undone", "ECE", "ECE, undone", "bias of 4", "seconds")
    for options in track(variants(), console=Console(stderr=True)):
        folder = folder_of(scene.work, options)
        start = time.perf_counter()
        found[folder.name] = make_head(setting, judged, options, folder).numbers
        row = found[folder.name] | {"train_s": time.perf_counter() - start}
        table.add_row(
            folder.name, f"{row['kl']:.4f}", f"{row['kl_without_weight']:.4f}", f"{row['ece']:.3f}",
            f"{row['ece_without_weight']:.3f}", f"{row['product_bias'][3]:+.3f}",
            f"{row['train_s']:.1f}",
        )  # fmt: skip
    Console(width=110).print(table)
    return {"heads": found}


def play(
    field: Field, ways: Sequence[Way], prompts: Sequence[list[int]], repeats: int, size: int
) -> dict[str, list[Run]]:
    """Every way on every prompt, interleaved, beginning with another way each time."""
    found: dict[str, list[Run]] = {way.name: [] for way in ways}
    for way in ways:
        field.run(way, prompts[:1], 0, 0)
    turns = [(r, start) for r in range(repeats) for start in range(0, len(prompts), size)]
    for turn, (repeat, start) in enumerate(track(turns, console=Console(stderr=True))):
        shift = turn % len(ways)
        for way in [*ways[shift:], *ways[:shift]]:
            found[way.name] += field.run(way, prompts[start : start + size], start, repeat)
    return found


def plane(scene: Scene, args: argparse.Namespace) -> dict[str, Any]:
    """Figure 3: counts only, so prompts run in batches (a row is what it would be alone)."""
    grid = [folder_of(scene.work, HeadOptions(d, w)) for d in (0, 3) for w in WEIGHTS]
    ways = fixed_ways(LENGTHS) + head_ways(grid, THRESHOLDS, lag=False)
    found: dict[str, Any] = {}
    panels: dict[str, list[n.Point]] = {}
    for name, prompts in scene.held_out(args.prompts).items():
        field = make_field(scene, ways, args)
        runs = play(field, ways, prompts, args.repeats, args.batch)
        points = panels[name] = [n.point(way, runs[way.name]) for way in ways]
        found[name] = describe(points)
        show_plane(name, found[name])
    draw(panels, Path(args.out).with_suffix(".png") if args.out else scene.work / "plane.png")
    return {"temperature": args.temperature, "panels": found}


def describe(points: Sequence[n.Point]) -> dict[str, Any]:
    fixed = [p for p in points if p.way.is_fixed]
    best = n.frontier([p for p in points if not p.way.is_fixed])
    return {
        "points": [n.as_json(p) for p in points],
        "frontier": [p.way.name for p in best],
        "dominated": {p.way.name: [q.way.name for q in best if n.dominates(q, p)] for p in fixed},
        "discards_of_heads_at_its_verification_rate": {
            p.way.name: n.discard_at(best, p.verification_rate) for p in fixed
        },
    }


def show_plane(name: str, found: dict[str, Any]) -> None:
    table = Table(
        "fixed", "discarded", "verified", "oracle", "heads discard", "beaten by", title=name
    )
    for row in found["points"]:
        if row["rule"] == "fixed":
            heads_at = found["discards_of_heads_at_its_verification_rate"][row["way"]]
            table.add_row(
                row["way"], f"{row['discard_rate']:.3f}", f"{row['verification_rate']:.3f}",
                f"{row['oracle_verification_rate']:.3f}",
                "" if heads_at is None else f"{heads_at:.3f}",
                str(len(found["dominated"][row["way"]])),
            )  # fmt: skip
    Console(width=110).print(table)


def make_field(scene: Scene, ways: Sequence[Way], args: argparse.Namespace) -> Field:
    return Field(
        scene.target, scene.drafter, ways,
        max_new_tokens=args.tokens, temperature=args.temperature,
    )  # fmt: skip


def named(way: Way, name: str) -> Way:
    return Way(name, way.length, way.rule, way.about)


def contestants(work: Path) -> list[Way]:
    """Every fixed length; one head at its thresholds; its lagging, analytic and tied kin."""
    plain = folder_of(work, HeadOptions(3, 6.0))
    kin = {
        "w1": folder_of(work, HeadOptions(3, 1.0)),
        "analytic": folder_of(work, HeadOptions(3, 6.0, "analytic")),
        "tied": folder_of(work, HeadOptions(3, 6.0, tied=True)),
        "D0": folder_of(work, HeadOptions(0, 6.0)),
    }
    ways = fixed_ways(LENGTHS[:6])
    ways += [
        named(way, f"head h={way.about['h']:g}") for way in head_ways([plain], THRESHOLDS, False)
    ]
    ways += [
        named(way, f"lag h={way.about['h']:g}") for way in head_ways([plain], THRESHOLDS, True)
    ]
    for name, folder in kin.items():
        chosen = (0.1, 0.3, 0.5) if name == "w1" else (0.3, 0.5, 0.7)
        ways += [named(w, f"{name} h={w.about['h']:g}") for w in head_ways([folder], chosen, False)]
    return ways


def speed(scene: Scene, args: argparse.Namespace) -> dict[str, Any]:
    """Paired and interleaved; how forwards explain the seconds; how far the oracle is."""
    ways, found = contestants(scene.work), {}
    for name, prompts in scene.held_out(args.prompts).items():
        runs = play(make_field(scene, ways, args), ways, prompts, args.repeats, 1)
        everything = [run for own in runs.values() for run in own]
        fits = [n.regress(everything), n.regress(everything, with_verified=True)]
        points = [n.point(way, runs[way.name]) for way in ways]
        base = max((p for p in points if p.way.is_fixed), key=lambda p: p.tok_per_s).way.name
        found[name] = {
            "best_fixed": base,
            "regressions": [vars(fit) for fit in fits],
            "ways": {
                p.way.name: n.as_json(p) | {
                    "over_best_fixed": [round(x, 3) for x in n.gain(runs, p.way.name, base)],
                    "predicted_tok_per_s": [round(fit.tok_per_s(p), 1) for fit in fits],
                    "oracle_tok_per_s": round(oracle_speed(fits[1], p), 1),
                }
                for p in points
            },
        }  # fmt: skip
        show_speed(name, found[name])
    return {"temperature": args.temperature, "panels": found}


def oracle_speed(fit: n.Regression, p: n.Point) -> float:
    """Tokens a second of theorem 4.1: no discards, |S| + 1 target forwards, the rest drafted."""
    drafted = max(0.0, 1 - p.oracle_rate)
    return 1 / ((fit.draft_s + fit.verified_s) * drafted + fit.target_s * p.oracle_rate)


def show_speed(name: str, found: dict[str, Any]) -> None:
    table = Table(
        "way", "tok/s", f"x {found['best_fixed']}", "95%", "discarded", "verified", "oracle",
        "length", title=name,
    )  # fmt: skip
    for way, row in found["ways"].items():
        value, low, high = row["over_best_fixed"]
        table.add_row(
            way, f"{row['tok_per_s']:.1f}", f"{value:.3f}", f"{low:.3f} to {high:.3f}",
            f"{row['discard_rate']:.3f}", f"{row['verification_rate']:.3f}",
            f"{row['oracle_verification_rate']:.3f}", f"{row['mean_length']:.2f}",
        )  # fmt: skip
    Console(width=110).print(table)
    for fit in found["regressions"]:
        print(json.dumps({k: round(v, 6) for k, v in fit.items()}))


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", required=True, choices=["heads", "plane", "speed"])
    parser.add_argument("--work", type=Path, required=True, help="where heads and answers lie")
    parser.add_argument("--prompts", type=int, default=8, help="of each domain")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="prompts together (plane)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    scene = Scene(args.work)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "heads": lambda: heads(scene),
        "plane": lambda: plane(scene, args),
        "speed": lambda: speed(scene, args),
    }
    save(args.out, parts[args.part]())


if __name__ == "__main__":
    main()
