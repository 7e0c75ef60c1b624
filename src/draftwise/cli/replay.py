"""``draftwise replay`` and ``draftwise advise``: what else could be done with recorded traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from draftwise import registry
from draftwise.bench.replay import (
    ADAPTIVE,
    EXCLUDED,
    WELL_COVERED,
    advise,
    play_trace,
    replay_report,
)
from draftwise.bench.results import FEW_PROMPTS, interval
from draftwise.cli.failures import Output, refusals, say
from draftwise.cli.show import broken, rate, regret_note, signed

Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="Rounds (.jsonl, of generate --trace or bench) or arrays (.npz)."
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="SPEC",
        help=f"{', '.join(registry.POLICIES)}; repeatable, as POLICY[@LENGTHS][/REWARD[/FEEDBACK]]."
        f" Default: {ADAPTIVE}.",
    ),
]
Reward = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(registry.REWARDS)}. Default: that of each policy's paper."),
]
Feedback = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(registry.FEEDBACKS)}. Default: that of each policy's paper."),
]
Lengths = Annotated[str | None, typer.Option(help="Draft lengths: `8`, `2,4,8`, `0-16`.")]
CostsOf = Annotated[
    str | None,
    typer.Option(
        "--costs", help="gpu, cpu, loaded or a JSON file. Default: the trace's own seconds."
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, help="Times that chance is drawn anew, for sampled text.")
]
_NAME = 40
"""Room for a name in a table of 80 columns."""
_MEASURED = "tok/s"
"""The unit of a replay with the trace's own seconds."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one object.")]


@refusals()
def replay(
    trace: Trace,
    policy: Policies = None,
    reward: Reward = None,
    feedback: Feedback = None,
    lengths: Lengths = None,
    costs: CostsOf = None,
    seeds: Seeds = 5,
    as_json: AsJson = False,
) -> None:
    """What would another policy have done on this traffic?"""
    played = play_trace(
        trace, policy or [ADAPTIVE], costs=costs, reward=reward, feedback=feedback,
        lengths=lengths, seeds=seeds,
    )  # fmt: skip
    found = replay_report(trace, played)
    if as_json:
        print(json.dumps(found))
        return
    console = Output()
    console.print(_replay_table(found))
    _tell(regret_note(found["average"]))
    _tell(_unit_note(found["unit"]), EXCLUDED)
    _warn(found.get("coverage"))


@refusals()
def advise_(trace: Trace, costs: CostsOf = None, seeds: Seeds = 5, as_json: AsJson = False) -> None:
    """The best frozen setting for engines that cannot adapt, and what adapting would give."""
    found = advise(trace, costs=costs, seeds=seeds)
    if as_json:
        print(json.dumps(found))
        return
    console = Output()
    console.print(_advice_table(found))
    _tell(_unit_note(found["unit"]), EXCLUDED)
    for name in ("vllm", "transformers"):
        print(f"{name}: {_setting(name, found[name])}")
    num = found["num_requests"]
    if num < FEW_PROMPTS:
        say(
            "with 1 request there is no interval" if num == 1
            else f"with {num} requests the intervals are rough", style="yellow",
        )  # fmt: skip
    _warn(found["coverage"])


def _tell(*notes: str) -> None:
    """What the numbers of a table mean, below it."""
    for note in filter(None, notes):
        print(f"  {note}")


def _unit_note(unit: str) -> str:
    return "" if unit == _MEASURED else f"tok/unit: {unit}"


def _speed_head(unit: str) -> str:
    return unit if unit == _MEASURED else "tok/unit"


def _replay_table(found: dict[str, Any]) -> Table:
    """What was played, what else could have been, and what is known only in hindsight."""
    table = Table(title=f"{found['preset']}: mean over domains", box=box.SIMPLE_HEAD)
    table.add_column("policy", overflow="fold")
    for heading in ("MAT", _speed_head(found["unit"]), "x plain", "regret"):
        table.add_column(heading, justify="right", no_wrap=True)
    recorded = found.get("recorded")
    if recorded:
        speed = recorded["tok_per_s"]
        table.add_row("as recorded", f"{recorded['mat']:.2f}", rate(speed) if speed else "", "", "")
    for label, row in found["average"].items():
        regret = row.get("regret")
        table.add_row(
            broken(label, _NAME),
            f"{row['mat']:.2f}",
            rate(row["tok_per_s"]),
            f"{row['speedup']:.2f}",
            "" if regret is None else signed(regret),
        )
    return table


def _advice_table(found: dict[str, Any]) -> Table:
    """The best length of every drafter, plain decoding and the adaptive default."""
    num = found["num_requests"]
    requests = "1 request" if num == 1 else f"{num} requests"
    table = Table(title=f"{Path(found['trace']).name}: {requests}", box=box.SIMPLE_HEAD)
    table.add_column("setting", overflow="fold")
    for heading in (_speed_head(found["unit"]), "x plain", "95%"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [(_label(row), row) for row in found["by_drafter"]]
    rows.append((f"adaptive: {found['adaptive']['policy']}", found["adaptive"]))
    for label, row in sorted(rows, key=lambda item: -item[1]["tok_per_s"]):
        table.add_row(
            broken(label, _NAME),
            rate(row["tok_per_s"]),
            f"{row['speedup']['median']:.2f}",
            interval(row["speedup"]),
            style="bold" if row == found["best"] else "",
        )
    return table


def _label(row: dict[str, Any]) -> str:
    return f"{row['drafter']}, length {row['length']}" if row["length"] else "none (plain decoding)"


def _setting(engine: str, options: dict[str, Any] | None) -> str:
    """What to paste."""
    if options is None:
        return "do not speculate on this traffic"
    if engine == "vllm":
        return f"--speculative-config '{json.dumps(options)}'"
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _warn(coverage: dict[str, float] | None) -> None:
    """Say which drafters the replay has to guess about."""
    thin = {name: share for name, share in (coverage or {}).items() if share < WELL_COVERED}
    if thin:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in thin.items())
        say(
            f"scored at few of the tokens: {shares}; between them the latest value stands in. "
            "Record with --feedback panoramic to be sure",
            style="yellow",
        )
