"""``draftwise sweep``: where drafts should stop, fixed lengths against acceptance heads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import Output, quiet, refused_values
from draftwise.cli.prompts import read_batch
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise_lab.bench.sweep.numbers import Point
    from draftwise_lab.bench.sweep.runs import Field, Run, Way

PromptFiles = Annotated[
    list[str],
    typer.Option(
        "--prompts", metavar="[NAME=]FILE", help="Prompts; repeatable, each file is a panel."
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        "-d",
        metavar="SPEC",
        help="The one drafter, a model: PATH, lm:PATH or zoo:NAME.",
    ),
]
Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="FOLDER", help="Folder for sweep.json and sweep.png."),
]
Heads = Annotated[
    list[Path] | None,
    typer.Option("--head", help="Folder of a head; repeatable. Default: the drafter's own."),
]
LengthsOf = Annotated[str, typer.Option(help="Fixed lengths of the baseline.")]
ThresholdsOf = Annotated[str, typer.Option(help="Thresholds h of the heads.")]
Heat = Annotated[
    float,
    typer.Option(
        "--temperature", "-t", metavar="T", help="0 is greedy, where the oracle is exact."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Answers to each prompt, each way.")]
Most = Annotated[int | None, typer.Option(min=1, help="Prompts of each file, at most.")]
Lag = Annotated[bool, typer.Option("--lag", help="Judge one token late, as the released code.")]


@command
def sweep(
    *,
    target: o.Target,
    drafter: Drafter,
    prompts: PromptFiles,
    out: Out,
    head: Heads = None,
    lengths: LengthsOf = "2,4,6,8,10,12,14",
    thresholds: ThresholdsOf = "0.1,0.3,0.5,0.7,0.9",
    temperature: Heat = 1.0,
    max_new_tokens: t.MaxNewTokens = 96,
    repeats: Repeats = 1,
    num_prompts: Most = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Above 1: counts sooner, no seconds.")] = 1,
    lag: Lag = False,
    as_json: o.AsJson = False,
    hardware: o.Hardware,
) -> None:
    """Compare fixed draft lengths with acceptance heads at many thresholds.

    Prints, for each way to stop, discarded tokens and target forwards for each token of the answer,
    the limit if every rejection were known in advance, and what forwards cost.
    """
    with quiet(), refused_values():
        from draftwise.bench.environment import command as command_line
        from draftwise.bench.environment import environment
        from draftwise_lab.bench.sweep.figure import draw, require_plots

        require_plots()
        panels = {name: read_batch(file)[:num_prompts] for name, file in map(_named, prompts)}
        sizes, levels = _numbers("--lengths", lengths), _numbers("--thresholds", thresholds)
        if missing := [folder for folder in head or () if not folder.is_dir()]:
            raise DraftwiseError(f"there is no acceptance head in {missing[0]}")
        t.check_inputs(target, hardware, drafter=drafter)
        from draftwise_lab.bench.sweep.runs import Field, fixed_ways, head_ways

        scene = t.load_scene(target, hardware)
        loaded = t.load_drafter(drafter, scene, hardware)
        folders = head or ([loaded.home / "head"] if loaded.home else [])
        ways = fixed_ways([int(n) for n in sizes])
        ways += head_ways(folders, levels, lag)
        field = Field(
            scene.target, loaded, ways, max_new_tokens=max_new_tokens, temperature=temperature
        )
        out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    points: dict[str, list[Point]] = {}
    with quiet(), t.keeping(out):
        for name, given in panels.items():
            rows = [scene.encode(one.prompt) for one in given]
            runs = _run(field, ways, rows, repeats, batch_size, name)
            points[name], found[name] = _panel(ways, runs, batch_size)
        draw(points, out / "sweep.png")
        record = {
            "command": command_line(),
            "environment": environment(hardware.threads),
            "temperature": temperature,
            "max_new_tokens": max_new_tokens,
            "panels": found,
        }
        (out / "sweep.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if as_json:
        print(json.dumps(record))
        return
    for name, panel in found.items():
        _show(name, panel)


def _named(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    path = Path(file if equals else text)
    return (name if equals else path.stem), path


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise DraftwiseError(f"{option} {text!r}: write numbers with commas") from None


def _run(
    field: Field, ways: Sequence[Way], rows: Sequence[list[int]], repeats: int, size: int, name: str
) -> dict[str, list[Run]]:
    """Every way on every prompt, in turn, beginning with another way each time."""
    found: dict[str, list[Run]] = {way.name: [] for way in ways}
    starts = range(0, len(rows), size)
    done = 0
    for way in ways:  # warm-up, not counted
        field.run(way, rows[:1], 0, 0)
    with t.Bars() as bars:
        update = bars.stage(name, repeats * len(starts) * len(ways))
        for repeat in range(repeats):
            for turn, start in enumerate(starts):
                shift = (turn + repeat) % len(ways)
                for way in [*ways[shift:], *ways[:shift]]:
                    found[way.name] += field.run(way, rows[start : start + size], start, repeat)
                    done += 1
                    update(done)
    return found


def _panel(
    ways: Sequence[Way], runs: Mapping[str, Sequence[Run]], batch_size: int
) -> tuple[list[Point], dict[str, Any]]:
    """All that is said about one set of prompts."""
    from draftwise_lab.bench.sweep import numbers as n

    points = [n.point(way, runs[way.name]) for way in ways]
    fixed = [p for p in points if p.way.is_fixed]
    heads = [p for p in points if not p.way.is_fixed]
    found: dict[str, Any] = {
        "points": [n.as_json(p) for p in points],
        "frontier": [p.way.name for p in n.frontier(heads)],
        "dominated": {
            p.way.name: [q.way.name for q in n.frontier(heads) if n.dominates(q, p)] for p in fixed
        },
    }
    if batch_size == 1:
        everything = [run for own in runs.values() for run in own]
        found["regression"] = asdict(n.regress(everything))
        found["regression_with_verified"] = asdict(n.regress(everything, with_verified=True))
        base = max(fixed, key=lambda p: p.tok_per_s).way.name
        found["best_fixed"] = base
        found["over_best_fixed"] = {
            p.way.name: [round(x, 3) for x in n.gain(runs, p.way.name, base)] for p in points
        }
    return points, found


def _show(name: str, panel: dict[str, Any]) -> None:
    table = Table("stops", "discarded", "verified", "oracle", "length", "tok/s", title=name)
    timed = "regression" in panel
    for row in panel["points"]:
        table.add_row(
            row["way"], f"{row['discard_rate']:.3f}", f"{row['verification_rate']:.3f}",
            f"{row['oracle_verification_rate']:.3f}", f"{row['mean_length']:.2f}",
            f"{row['tok_per_s']:.1f}" if timed else "",
        )  # fmt: skip
    console = Output()
    console.print(table)
    beaten = [way for way, by in panel["dominated"].items() if by]
    console.print(f"fewer of both than a fixed length: {', '.join(beaten) or 'none'}")
    for key in ("regression", "regression_with_verified") if timed else ():
        fit = panel[key]
        console.print(
            f"a draft forward {1000 * fit['draft_s']:.2f} ms, a target forward "
            f"{1000 * fit['target_s']:.2f} ms, a token verified {1000 * fit['verified_s']:.2f} ms; "
            f"R2 {fit['r2']:.3f}"
        )
