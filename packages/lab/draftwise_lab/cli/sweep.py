"""``draftwise sweep``: fixed draft lengths against acceptance heads as stop rules."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from draftwise.checks import comma_separated, option
from draftwise.cli import options as o
from draftwise.cli.failures import Output, refused_values
from draftwise.cli.load import read_batch
from draftwise.types import DraftwiseError
from draftwise_lab.cli import train as t
from draftwise_lab.plotting import require_matplotlib


@o.command
def sweep(
    *,
    target: o.Target,
    drafter: str = option(
        ..., "The model drafter: PATH, lm:PATH or zoo:NAME.", "--drafter", "-d", metavar="SPEC"
    ),
    prompts: list[str] = option(
        ..., "Prompts; repeatable, each file is a panel.", metavar="[NAME=]FILE"
    ),
    out: Path = option(
        ..., "Folder for sweep.json and sweep.png.", "--out", "-o", metavar="FOLDER"
    ),
    head: list[Path] | None = option(
        None, "Folder of a head; repeatable. Default: the drafter's own."
    ),
    lengths: str = option("2,4,6,8,10,12,14", "Fixed lengths of the baseline."),
    thresholds: str = option("0.1,0.3,0.5,0.7,0.9", "Thresholds h of the heads."),
    temperature: float = option(
        1.0, "0 is greedy, where the oracle is exact.", "--temperature", "-t", metavar="T"
    ),
    max_new_tokens: int = option(
        96, "Maximum number of tokens per answer.", "--max-new-tokens", "-n", least=1, metavar="N"
    ),
    repeats: int = option(1, "Answers per prompt and setting.", least=1),
    num_prompts: int | None = option(None, "Maximum number of prompts per file.", least=1),
    batch_size: int = option(1, "Above 1: faster counts, without timings.", least=1),
    lag: bool = option(False, "Check one token late, as the released code.", "--lag"),
    as_json: bool = o.AS_JSON,
    hardware: o.Hardware,
) -> None:
    """Compare fixed draft lengths with acceptance heads at many thresholds.

    Prints discarded tokens and target forwards per token of the answer for each setting, the limit
    if every rejection were known in advance, and the cost of forwards.
    """
    with refused_values():
        from draftwise.bench.results import command as command_line
        from draftwise.bench.results import environment

        require_matplotlib()
        panels = {name: read_batch(file)[:num_prompts] for name, file in map(_named, prompts)}
        sizes, levels = _numbers("--lengths", lengths), _numbers("--thresholds", thresholds)
        if missing := [folder for folder in head or () if not folder.is_dir()]:
            raise DraftwiseError(f"there is no acceptance head in {missing[0]}")
        base, _ = t.begin(target, hardware, drafter=drafter)
        from draftwise_lab.bench import sweep as s
        from draftwise_lab.bench.commit import commit

        loaded = t.load_drafter(drafter, base, hardware)
        folders = head or ([loaded.home / "head"] if loaded.home else [])
        ways = s.fixed_ways([int(n) for n in sizes])
        ways += s.head_ways(folders, levels, lag)
        settings = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        field = s.Field(base.target, loaded, ways, **settings)
        out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    points: dict[str, list[s.Point]] = {}
    with t.keeping(out) as bars:
        for name, given in panels.items():
            rows = [list(one.encoded(base).tokens) for one in given]
            tick = bars.stage(name, s.num_turns(ways, rows, repeats, batch_size))
            runs = s.play(field, ways, rows, repeats, batch_size, tick)
            points[name] = [s.point(way, runs[way.name]) for way in ways]
            found[name] = s.panel(points[name], runs if batch_size == 1 else None)
        s.draw(points, out / "sweep.png")
        record = {
            "command": command_line(),
            "environment": environment(hardware.threads, commit=commit()),
            **settings,
            "panels": found,
        }
        (out / "sweep.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if as_json:
        print(json.dumps(record))
        return
    for name, found_there in found.items():
        _show(name, found_there)


def _named(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    path = Path(file if equals else text)
    return (name if equals else path.stem), path


def _numbers(option: str, text: str) -> list[float]:
    return comma_separated(text, float, -inf, f"{option} {text!r}: write numbers with commas")


def _show(name: str, panel: dict[str, Any]) -> None:
    from draftwise_lab.bench.sweep import panel_table

    console = Output()
    console.print(panel_table(name, panel))
    beaten = [way for way, by in panel["dominated"].items() if by]
    console.print(f"fewer of both than a fixed length: {', '.join(beaten) or 'none'}")
    for fit in (panel[key] for key in ("regression", "regression_with_verified") if key in panel):
        console.print(
            f"a draft forward {1000 * fit['draft_s']:.2f} ms, a target forward "
            f"{1000 * fit['target_s']:.2f} ms, a token verified {1000 * fit['verified_s']:.2f} ms; "
            f"R2 {fit['r2']:.3f}"
        )
