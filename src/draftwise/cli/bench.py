"""``draftwise bench``: times methods side by side; prints tables, writes JSON and a report."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from draftwise.checks import option
from draftwise.cli import lab
from draftwise.cli import options as o
from draftwise.cli.failures import INTERRUPTED, Output, graceful, note, refused_values, say
from draftwise.cli.load import alone_in
from draftwise.cli.show import Bars, broken, make_table, yes_or_no
from draftwise.install import lab_hint
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.bench.session import ContestResult

_NAME = 34  # width of the names in a table of 80 columns

_METHODS = (
    f"plain, {', '.join(p for p in PRESETS if p != 'plain')} (with `@LENGTHS`), "
    "`fixed:DRAFTERxLENGTH[/RULE]`, `transformers`, `transformers:lookup`, "
    "`transformers:DRAFTERxLENGTH[/heuristic|/confidence]`, or the groups presets, fixed, "
    "peers; repeatable. Default: all groups."
)
_USUAL: dict[str, Any] = {"tokens": 128, "prompts": 4, "minutes": None}
_QUICK: dict[str, Any] = {"tokens": 64, "prompts": 1, "minutes": 4.0}


MODELS = o.Models(target="zoo")  # the default suite has its prompts


@o.command
def bench(
    *,
    out: Path = option(
        ..., "Folder for results, trace and report. An interrupted bench resumes there.",
        "--out", "-o", metavar="FOLDER",
    ),
    suite: str = option(
        "zoo", "zoo, spec-bench:FILE (its question.jsonl), or a file of prompts (.jsonl, .txt).",
        metavar="SUITE",
    ),
    method: list[str] | None = option(None, _METHODS, metavar="M"),
    is_quick: bool = option(False, "One prompt of each domain, in 4 minutes.", "--quick"),
    models: o.Models = MODELS,
    tokens: int | None = option(
        None, "Maximum number of tokens per answer. Default: 128 (quick: 64).",
        "--tokens", "--max-new-tokens", "-n",
    ),
    repeats: int = option(3, "Number of repeats of every prompt."),
    prompts: int | None = option(None, "Prompts of each domain. Default: 4 (quick: 1)."),
    domain: list[str] | None = option(None, "Use only this domain; repeatable."),
    minutes: float | None = option(None, "Stop measuring after this many minutes."),
    temperature: o.Temperature = 0.0,
    seed: int = o.SEED,
    as_json: bool = option(False, "Print results.json instead of a table.", "--json"),
    no_report: bool = option(False, "Leave out report.html."),
    clock: str = option("wall", "wall, or cpu: CPU time of this process, for shared machines."),
) -> None:  # fmt: skip
    """Time draftwise, its presets, fixed plans and transformers' own methods side by side."""
    began = time.monotonic()
    own = {"tokens": tokens, "prompts": prompts, "minutes": minutes}
    sizes = (_QUICK if is_quick else _USUAL) | {k: n for k, n in own.items() if n is not None}
    limit = sizes.pop("minutes")
    wanted = models.settings(seed=seed)
    with ExitStack() as held:
        with refused_values():
            o.check(wanted)
            from draftwise.bench.runs import BenchSettings, prepare

            chosen = BenchSettings(
                suite, out, methods=tuple(method or ()), domains=tuple(domain or ()), **sizes,
                repeats=repeats, temperature=temperature, seed=seed, clock=clock, setup=wanted,
            )  # fmt: skip
            o.request({"temperature": temperature}, seed=seed)
            items, store = prepare(chosen)
            studio = lab.find("bench.studio")
            with_report = studio is not None and not no_report
            if with_report:
                studio.check_report()
            if studio is None and "fixed" in chosen.methods:
                raise DraftwiseError(
                    f"the lab finds the fixed plans worth measuring ({lab_hint()}); "
                    "without it name one: --method fixed:DRAFTERxLENGTH"
                )
            held.enter_context(alone_in(out))
        speculator = o.load(wanted)
        from draftwise.bench.session import measure

        with graceful() as is_stopped, Bars(is_shown=not as_json) as bars:

            def goes_on() -> bool:
                is_late = limit is not None and time.monotonic() - began > 60 * limit
                return not (is_stopped() or is_late)

            measured = measure(
                chosen, items, store, speculator, goes_on, bars.show, studio, with_report
            )
        if measured is not None:
            _conclude(measured, out, studio if with_report else None, as_json=as_json)
            if studio is None and not no_report:
                say(f"report.html and fixed plans: {lab_hint()}", style="dim")
    if is_stopped():
        say(f"interrupted: {out} has all results; the same command resumes it", style="yellow")
        raise SystemExit(INTERRUPTED)
    if measured is None:
        raise DraftwiseError("nothing was measured in time: give more --minutes")


def _conclude(measured: ContestResult, out: Path, studio: Any, *, as_json: bool) -> None:
    from draftwise.bench.results import cautions

    paths = list(measured.paths)
    if studio is not None:
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


def methods_table(results: dict[str, Any]) -> Table:
    """All methods over all domains, the fastest first."""
    from draftwise.bench.results import extent, interval

    table = make_table(
        "method",
        right=("tok/s", "x plain", "95%", "MAT", "same\ntext"),
        title=f"{results['suite']}: {extent(results['settings'])}",
        caption="Seconds are of whole answers, reading the prompt (prefill) included.",
    )
    for name, row in sorted(results["methods"].items(), key=lambda item: -item[1]["tok_per_s"]):
        shown = Text(broken(name, _NAME), "bold" if name == "draftwise" else "")
        speed, is_same = row["speedup"], row["lossless"]
        rates = f"{row['tok_per_s']:.1f}", f"{speed['median']:.2f}", interval(speed)
        share = Text(f"{row['same_tokens']:.0%}", "dim")
        same = share if is_same is None else yes_or_no(is_same)
        table.add_row(shown, *rates, f"{row['mat']:.2f}", same)
    return table


def comparisons_table(results: dict[str, Any]) -> Table:
    """Speed of draftwise relative to the best other methods of this run."""
    from draftwise.bench.results import interval

    table = make_table("other", right=("ratio", "95%"), title="draftwise, times as fast as")
    for label, row in results["comparisons"].items():
        which = row["methods"] if isinstance(row["methods"], list) else []
        name = "\n".join([label, *(broken(method, _NAME) for method in which)])
        table.add_row(name.replace("\n", "\n  "), f"{row['median']:.2f}", interval(row))
    return table
