"""``draftwise simulate``: policies on text with known acceptance probabilities, without a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from draftwise.cli.failures import Output
from draftwise.cli.show import make_table
from draftwise.errors import DraftwiseError
from draftwise_lab.cli import options as o
from draftwise_lab.cli.options import regret_note, signed
from draftwise_lab.sim.match import Match, Outcome, make_match, report, run_match
from draftwise_lab.sim.presets import SETTINGS, setting
from draftwise_lab.sim.traces import trace_setting

_NAME, _DOMAINS = 22, 4
"""Maximum width of a name, and of domains per row, in a table of 80 columns."""
_DEFAULT_PRESET = "hedgespec-llama"

PresetName = Annotated[str | None, typer.Option("--preset", help=f"{', '.join(SETTINGS)}.")]
Tokens = Annotated[int | None, typer.Option(min=1, max=10**7, help="Tokens of each text.")]
Seed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Drafters = Annotated[
    str | None, typer.Option(help="Numbers of drafters to compare, such as `2,8,32` (hedgespec-*).")
]
Trace = Annotated[
    Path | None, typer.Option(help="Replay a trace instead: rounds (.jsonl) or arrays (.npz).")
]
Plot = Annotated[Path | None, typer.Option(help="Folder for PNGs (needs the extra `bench`).")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes; seeds are shared among them.")]


def simulate(
    preset: PresetName = None,
    policy: o.Policies = None,
    reward: o.Reward = None,
    feedback: o.Feedback = None,
    tokens: Tokens = None,
    seeds: o.Seeds = 20,
    seed: Seed = 0,
    lengths: o.Lengths = None,
    drafters: Drafters = None,
    trace: Trace = None,
    costs: o.Costs = None,
    as_json: o.AsJson = False,
    plot: Plot = None,
    jobs: Jobs = 1,
) -> None:
    """Compare policies on simulated text, without a model.

    Without --policy, all policies of the preset play, each with its paper's feedback.
    """
    if trace is not None and preset is not None:
        raise DraftwiseError("give --preset or --trace, not both")
    if plot is not None:
        from draftwise_lab.sim.regret import prepare

        prepare(plot)
    if costs is not None and trace is None:
        raise DraftwiseError("--costs goes with --trace: a preset has its own")
    chosen = trace_setting(trace, costs) if trace else setting(preset or _DEFAULT_PRESET)
    name = trace.name if trace else preset or _DEFAULT_PRESET
    sizes: Sequence[int | None] = [None]
    if drafters is not None:
        sizes = o.whole_numbers("--drafters", drafters, "2,8,32")
    found: list[dict[str, Any]] = []
    for size in sizes:
        match = make_match(
            chosen, policy, reward=reward, feedback=feedback, tokens=tokens, lengths=lengths,
            num_drafters=size, with_trails=plot is not None,
        )  # fmt: skip
        outcome = _run(match, range(seed, seed + seeds), jobs, quiet=as_json)
        found.append(report(name, match, outcome, num_drafters=size))
    _show(found, as_json)
    if plot is not None:
        from draftwise_lab.sim.regret import draw

        for path in draw(found, match, outcome, plot):
            print(f"wrote {path}", file=sys.stderr)


def _run(match: Match, seeds: range, jobs: int, *, quiet: bool) -> Outcome:
    """Run the match with a progress bar on stderr, unless ``quiet`` or stderr is no terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        both = [bar.add_task(what, total=len(seeds)) for what in ("hindsight", "play")]
        return run_match(match, seeds, jobs, lambda n, done: bar.update(both[n], completed=done))


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found[0] if len(found) == 1 else found))
        return
    console = Output()
    for one in found:
        console.print(_average_table(one))
        print(f"  {regret_note(one['average'])}")
        print("  best plan: share of rounds with that plan; seconds are without prefill")
        if any(row["ci95"] is None for row in one["average"].values()):
            print("  one text in a domain has no interval: give more --seeds")
        if len(one["domains"]) > 1:
            for at in range(0, len(one["domains"]), _DOMAINS):
                console.print(_domain_table(one, one["domains"][at : at + _DOMAINS]))


def _average_table(one: dict[str, Any]) -> Table:
    size = f", {one['num_drafters']} drafters" if one["num_drafters"] else ""
    title = f"{one['preset']}{size}: {one['tokens']} tokens, averages over domains"
    headings = ("MAT", "±95%", "rounds", "tok/s", "x plain", "regret", "best plan")
    table = make_table("policy", right=headings, title=title, padding=(0, 1, 0, 0))
    for label, row in one["average"].items():
        regret, ratio = row.get("regret"), row.get("best_plan_ratio")
        table.add_row(
            o.broken(label, _NAME), f"{row['mat']:.2f}",
            "" if row["ci95"] is None else f"{row['ci95']:.2f}", f"{row['rounds']:.1f}",
            f"{row['tok_per_s']:.2f}", f"{row['speedup']:.2f}",
            "" if regret is None else signed(regret), "" if ratio is None else f"{ratio:.0%}",
        )  # fmt: skip
    return table


def _domain_table(one: dict[str, Any], domains: Sequence[str]) -> Table:
    table = Table(title="MAT by domain (x plain)", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("policy")
    for domain in domains:
        table.add_column(o.broken(domain, _NAME), justify="right")
    cells = {(row["domain"], row["policy"]): row for row in one["results"]}
    for label in one["average"]:
        rows = (cells[domain, label] for domain in domains)
        texts = [f"{row['mat']:.2f} ({row['speedup']:.2f})" for row in rows]
        table.add_row(o.broken(label, _NAME), *texts)
    return table
