"""``draftwise contest``: draftwise against transformers; prints tables, writes JSON, a report."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from draftwise.bench.results import cautions, interval
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.bench import methods_table
from draftwise.cli.failures import INTERRUPTED, Output, graceful, note, refused_values, say
from draftwise.cli.show import make_table
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError
from draftwise_lab.cli.options import StageBars, alone_in, broken
from draftwise_lab.plotting import require_matplotlib

if TYPE_CHECKING:
    from draftwise_lab.bench.contest import ContestResult

_NAME = 34  # width of the names in a table of 80 columns

_METHODS = (
    f"plain, {', '.join(p for p in PRESETS if p != 'plain')} (with `@LENGTHS`), "
    "`fixed:DRAFTERxLENGTH` (with `/RULE`), `transformers`, `transformers:lookup`, "
    "`transformers:DRAFTERxLENGTH` (with `/heuristic` or `/confidence`), or the groups "
    "presets, fixed, peers; repeatable. Default: all groups."
)
_USUAL: dict[str, Any] = {"tokens": 128, "prompts": 4, "minutes": None}
_QUICK: dict[str, Any] = {"tokens": 64, "prompts": 1, "minutes": 4.0}


MODELS = o.Models(target="zoo")  # the default suite has its prompts


@o.command
def contest(
    *,
    out: Path = option(
        ..., "Folder for results, trace and report. An interrupted bench resumes there.",
        "--out", "-o", metavar="FOLDER",
    ),
    suite: str = option("zoo", "As of `draftwise bench`.", metavar="SUITE"),
    method: list[str] | None = option(None, _METHODS, metavar="M"),
    is_quick: bool = option(False, "One prompt of each domain, in 4 minutes.", "--quick"),
    models: o.Models = MODELS,
    is_chat: bool | None = o.CHAT_OR_RAW,
    tokens: int | None = option(
        None, "Maximum number of tokens per answer. Default: 128 (quick: 64).",
        "--tokens", "-n", metavar="N",
    ),
    repeats: int = option(3, "Number of repeats of every prompt."),
    prompts: int | None = option(None, "Prompts of each domain. Default: 4 (quick: 1)."),
    domain: list[str] | None = option(None, "Use only this domain; repeatable.", metavar="NAME"),
    minutes: float | None = option(None, "Stop measuring after this many minutes."),
    temperature: o.Temperature = 0.0,
    seed: int = o.SEED,
    as_json: bool = option(False, "Print results.json instead of a table.", "--json"),
    no_report: bool = option(False, "Leave out report.html."),
    clock: str = option("wall", "wall, or cpu: CPU time of this process, for shared machines."),
) -> None:  # fmt: skip
    """Time draftwise against transformers' methods, with a report; resumes."""
    began = time.monotonic()
    own = {"tokens": tokens, "prompts": prompts, "minutes": minutes}
    sizes = (_QUICK if is_quick else _USUAL) | {k: n for k, n in own.items() if n is not None}
    limit = sizes.pop("minutes")
    wanted = models.settings(seed=seed)
    with ExitStack() as held:
        with refused_values():
            o.check(wanted)
            from draftwise_lab.bench.records import ContestSettings, prepare

            chosen = ContestSettings(
                suite, out, methods=tuple(method or ()), domains=tuple(domain or ()), **sizes,
                repeats=repeats, temperature=temperature, seed=seed, clock=clock,
                is_chat=is_chat, setup=wanted,
            )  # fmt: skip
            o.request({"temperature": temperature}, seed=seed)
            items, store = prepare(chosen)
            if not no_report:
                require_matplotlib("the report needs", ", or use --no-report")
            held.enter_context(alone_in(out))
        speculator = o.load(wanted)
        from draftwise_lab.bench.contest import measure

        with graceful() as is_stopped, StageBars(is_shown=not as_json, is_brief=True) as bars:

            def goes_on() -> bool:
                is_late = limit is not None and time.monotonic() - began > 60 * limit
                return not (is_stopped() or is_late)

            measured = measure(chosen, items, store, speculator, goes_on, bars.show, not no_report)
        if measured is not None:
            _conclude(measured, out, with_report=not no_report, as_json=as_json)
    if is_stopped():
        say(f"interrupted: {out} has all results; the same command resumes it", style="yellow")
        raise SystemExit(INTERRUPTED)
    if measured is None:
        raise DraftwiseError("nothing was measured in time: give more --minutes")


def _conclude(measured: ContestResult, out: Path, *, with_report: bool, as_json: bool) -> None:
    from draftwise_lab.bench import studio

    paths = list(measured.paths)
    if with_report:
        found = (measured.results, measured.runs, measured.suite, measured.tokenizer)
        paths.append(studio.write_report(*found, out))
    if as_json:
        print(json.dumps(measured.results))
        return
    console = Output()
    console.print(methods_table(measured.results))
    console.print(comparisons_table(measured.results))
    for caution in cautions(measured.results):
        say(caution, style="yellow")
    for path in dict.fromkeys([*paths[:2], paths[-1]]):
        note(f"wrote {path}")


def comparisons_table(results: dict[str, Any]) -> Table:
    """Speed of draftwise relative to the best other methods of this run."""
    table = make_table("other", right=("ratio", "95%"), title="draftwise, times as fast as")
    for label, row in results["comparisons"].items():
        which = row["methods"] if isinstance(row["methods"], list) else []
        name = "\n".join([label, *(broken(method, _NAME) for method in which)])
        table.add_row(name.replace("\n", "\n  "), f"{row['median']:.2f}", interval(row))
    return table
