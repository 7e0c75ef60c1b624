"""SpecDec++ on the zoo: heads, figure 3's plane, tokens a second; each part is one command.

python -m benchmarks specdecpp --part heads --work FOLDER  # train them all; KL, calibration
python -m benchmarks specdecpp --part plane --work FOLDER  # discarded against verified
python -m benchmarks specdecpp --part speed --work FOLDER  # paired timing of the best

The drafter is the generalist. Heads learn from prompts of four domains (sql, translate, edit,
prose); the other two, python and math, are out of domain, as HumanEval and GSM8K are in the paper.
All measuring is on held-out prompts, sampled at temperature 1 unless said otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save

from draftwise import zoo
from draftwise.drafters.lm import LMDrafter
from draftwise.nn.load import load_model
from draftwise.train.data import Text
from draftwise.train.head import (
    HeadOptions,
    Judged,
    Label,
    Setting,
    draft_chains,
    judge_all,
    judge_texts,
    measure_head,
    train_head,
)
from draftwise.train.head import save as save_head
from draftwise_lab.bench.sweep import numbers as n
from draftwise_lab.bench.sweep.figure import draw
from draftwise_lab.bench.sweep.runs import Field, Run, Way, fixed_ways, head_ways
from draftwise_lab.zoo.corpus import encode_prompt, load_tokenizer
from draftwise_lab.zoo.evaluate import heldout_answers
from draftwise_lab.zoo.stops import stop_texts

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

    def test_texts(self) -> dict[str, list[Text]]:
        """The target's answers to held-out prompts, in domain and out."""
        return {
            name: [
                text
                for domain in domains
                for text in heldout_answers(self.target.module, self.tokenizer, domain, self.work)
            ]
            for name, domains in (("in domain", IN_DOMAIN), ("out of domain", OUT_OF_DOMAIN))
        }

    def held_out(self, number: int) -> dict[str, list[list[int]]]:
        """Held-out prompts, in domain and out."""
        prompts = zoo.prompts()
        return {
            name: self.encode([text for domain in domains for text in prompts[domain][:number]])
            for name, domains in (("in domain", IN_DOMAIN), ("out of domain", OUT_OF_DOMAIN))
        }


def folder_of(work: Path, head: HeadOptions) -> Path:
    kind = "tied" if head.tied else head.label
    return work / "specdecpp" / f"{kind}-D{head.num_layers}-w{head.w_rej:g}-s{head.seed}"


def options(num_layers: int, w_rej: float, label: Label = "sampled", **more: Any) -> HeadOptions:
    return HeadOptions(num_layers, w_rej, label, **more)


def variants() -> list[HeadOptions]:
    """The paper's grid; the other label and tied layers, each with seeds to tell noise by."""
    grid = [options(depth, w) for depth in DEPTHS for w in WEIGHTS]
    grid += [options(d, 6.0, seed=1) for d in (2, 3, 4)] + [options(3, 1.0, seed=1)]
    grid += [options(3, w, "analytic", seed=seed) for w in (1.0, 6.0) for seed in (0, 1)]
    return grid + [options(d, 6.0, tied=True, seed=seed) for d in (2, 3, 4) for seed in (0, 1)]


def heads(scene: Scene) -> dict[str, Any]:
    """Train every head; how well each predicts on drafts along answers to held-out prompts."""
    setting, judged = scene.judged()
    tests = {}
    for name, texts in scene.test_texts().items():
        folder = scene.work / "specdecpp" / "judged" / name.replace(" ", "-")
        some = judge_all(replace(setting, temperature=1.0, seed=1), texts, folder)
        chains = draft_chains(setting.target, setting.drafter, texts, num_chains=512)
        tests[name] = Judged(judged.taught, some, chains)
    found: dict[str, Any] = {}
    table = Table("head", "KL in", "undone", "ECE in", "undone", "bias of 4", "KL out", "undone")
    for variant in track(variants(), console=Console(stderr=True)):
        folder = folder_of(scene.work, variant)
        head = train_head(judged.taught, variant)
        save_head(head, folder, {"w_rej": variant.w_rej, "label": variant.label})
        rows = {n: measure_head(test, head, variant.w_rej).numbers for n, test in tests.items()}
        found[folder.name] = rows
        inside, outside = rows["in domain"], rows["out of domain"]
        table.add_row(
            folder.name, f"{inside['kl']:.4f}", f"{inside['kl_without_weight']:.4f}",
            f"{inside['ece']:.3f}", f"{inside['ece_without_weight']:.3f}",
            f"{inside['product_bias'][3]:+.3f}", f"{outside['kl']:.4f}",
            f"{outside['kl_without_weight']:.4f}",
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
    grid = [folder_of(scene.work, options(d, w)) for d in (0, 3) for w in WEIGHTS]
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


def contestants(work: Path) -> list[Way]:
    """Fixed lengths; the paper's recommended head; an unweighted one with the other label, lag."""
    ways = fixed_ways((1, 2, 3, 4, 6, 8))
    paper, ours = options(3, 6.0), options(3, 1.0, "analytic")
    for name, head, thresholds, lag in (
        ("paper", paper, (0.7, 0.9), False),
        ("ours", ours, (0.5, 0.7, 0.9), False),
        ("ours, lag", ours, (0.5, 0.7, 0.9), True),
    ):
        chosen = head_ways([folder_of(work, head)], thresholds, lag)
        ways += [Way(f"{name} h={x.about['h']:g}", x.length, x.rule, x.about) for x in chosen]
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
