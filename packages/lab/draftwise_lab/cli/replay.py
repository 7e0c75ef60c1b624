"""``draftwise replay`` and ``draftwise advise``: what else could be done with recorded traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from draftwise import registry
from draftwise.cli.failures import Output, refusals, say
from draftwise_lab.bench.replay import ADAPTIVE, WELL_COVERED, advise, play_trace, replay_report

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
    Output().print(_replay_table(found))
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
    for name in ("vllm", "transformers"):
        print(f"{name}: {_setting(name, found[name])}")
    _warn(found["coverage"])


def _replay_table(found: dict[str, Any]) -> Table:
    """What was played, what else could have been, and what is known only in hindsight."""
    table = Table(title=f"{found['preset']}: all domains alike", box=box.SIMPLE_HEAD)
    table.add_column("policy", overflow="fold")
    for heading in ("MAT", found["unit"], "x plain", "regret"):
        table.add_column(heading, justify="right", no_wrap=True)
    recorded = found.get("recorded")
    if recorded:
        rate = recorded["tok_per_s"]
        table.add_row(
            "as recorded", f"{recorded['mat']:.2f}", f"{rate:.1f}" if rate else "", "", ""
        )
    for label, row in found["average"].items():
        regret = row.get("regret")
        table.add_row(
            label,
            f"{row['mat']:.2f}",
            f"{row['tok_per_s']:.4g}",
            f"{row['speedup']:.2f}",
            "" if regret is None else f"{regret:.1f}",
        )
    return table


def _advice_table(found: dict[str, Any]) -> Table:
    """The best length of every drafter, plain decoding and the adaptive default."""
    num = found["num_requests"]
    table = Table(title=f"{found['trace']}: {num} requests", box=box.SIMPLE_HEAD)
    table.add_column("setting", overflow="fold")
    for heading in (found["unit"], "x plain", "95%"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [(_label(row), row) for row in found["by_drafter"]]
    rows.append((f"adaptive: {found['adaptive']['policy']}", found["adaptive"]))
    for label, row in sorted(rows, key=lambda item: -item[1]["tok_per_s"]):
        low, high = row["speedup"]["ci95"]
        table.add_row(
            label, f"{row['tok_per_s']:.4g}", f"{row['speedup']['median']:.2f}",
            f"{low:.2f}-{high:.2f}", style="bold" if row == found["best"] else "",
        )  # fmt: skip
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
