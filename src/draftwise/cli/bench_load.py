"""``draftwise bench --url``: load on any server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from draftwise.cli.failures import Output, quiet, refused_values, say
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.bench.load.client import Server
    from draftwise.bench.load.drive import Load

_PANEL = "Load on a server"


def _option(help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=_PANEL, **more)


Url = Annotated[str | None, _option("An OpenAI-compatible server to load, in place of methods.")]
Concurrency = Annotated[
    str | None, _option("Requests at a time: `1,4,16`. Default: 1.", metavar="N,N,...")
]
Rate = Annotated[
    str | None, _option("Poisson arrivals a second, in place of it: `0.5,2`.", metavar="R,R,...")
]
Requests = Annotated[int | None, _option("Requests a load. Default: each prompt once.")]
Endpoint = Annotated[str, _option("completions or chat.")]
NoStream = Annotated[bool, _option("Whole answers, not streams.", "--no-stream")]
Model = Annotated[str | None, _option("What to ask for. Default: the first that is served.")]
Key = Annotated[str, _option("API key.", "--api-key", envvar="OPENAI_API_KEY")]
Extra = Annotated[str, _option("More fields of each request, as JSON.", metavar="JSON")]


@dataclass(frozen=True, slots=True)
class LoadWish:
    """A load as it was asked for on the command line."""

    url: str
    suite: str
    out: Path
    concurrency: str | None
    rate: str | None
    requests: int | None
    endpoint: str
    stream: bool
    model: str | None
    key: str
    extra: str
    tokens: int
    prompts: int | None
    domains: Sequence[str]
    temperature: float
    seed: int
    with_report: bool
    as_json: bool


def run_load(wish: LoadWish) -> None:
    """Load the server, write what was found, print it. Raises DraftwiseError."""
    with quiet(), refused_values():
        _run_load(wish)


def _run_load(wish: LoadWish) -> None:
    from draftwise.bench.charts.canvas import check_matplotlib
    from draftwise.bench.environment import command, environment
    from draftwise.bench.load.client import CHAT, COMPLETIONS, Server
    from draftwise.bench.load.drive import drive_all
    from draftwise.bench.load.numbers import cautions, summary
    from draftwise.bench.load.report import write_report, write_results
    from draftwise.bench.suites import load_suite

    loads = _loads(wish)
    if wish.endpoint not in {COMPLETIONS, CHAT}:
        raise DraftwiseError(f"--endpoint {wish.endpoint!r}: write {COMPLETIONS} or {CHAT}")
    if wish.with_report:
        check_matplotlib()
    suite = load_suite(wish.suite, wish.prompts, wish.domains)
    prompts = [item.turns[0] for item in suite.items]
    server = Server(wish.url, wish.model or "", wish.key, wish.endpoint)
    server = replace(server, model=wish.model or server.models()[0])
    options = {"max_tokens": wish.tokens, "temperature": wish.temperature, "stream": wish.stream}
    options |= {"seed": wish.seed, **_extra(wish.extra)}
    _warm_up(server, prompts, options)
    num = wish.requests or len(prompts)
    volleys = drive_all(server, prompts, num, loads, options, wish.seed)
    rows = [summary(volley) for volley in volleys]
    settings = {
        "url": wish.url, "model": server.model, "endpoint": wish.endpoint, "suite": wish.suite,
        "num_prompts": len(prompts), "tokens": wish.tokens, "temperature": wish.temperature,
        "stream": wish.stream, "extra": _extra(wish.extra),
    }  # fmt: skip
    results = {
        "command": command(wish.key),
        "settings": settings,
        "loads": rows,
        "environment": environment(1),
    }
    paths = [write_results(results, wish.out)]
    if wish.with_report:
        paths.append(write_report(results, volleys, wish.out))
    if wish.as_json:
        print(json.dumps(results))
        return
    Output().print(loads_table(results))
    for caution in cautions(rows):
        say(caution, style="yellow")
    for error in [error for row in rows for error in row["errors"]][:5]:
        say(error)
    for path in paths:
        say(f"wrote {path}", style="dim")


def loads_table(results: dict[str, Any]) -> Table:
    """A row a load; latencies are median and 99th percentile."""
    table = Table(
        title=results["settings"]["url"],
        caption="ms: milliseconds, median / 99th percentile",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in ("load", "failed", "tok/s", "req/s"):
        table.add_column(heading, justify="left" if heading == "load" else "right", no_wrap=True)
    for heading in ("first token\nms", "per token\nms", "answer\nms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in results["loads"]:
        table.add_row(
            row["load"],
            f"{row['num_errors']} of {row['num_requests']}",
            f"{row['tok_per_s']:.1f}",
            f"{row['requests_per_s']:.2f}",
            *(_milliseconds(row.get(key)) for key in ("ttft_s", "tpot_s", "e2e_s")),
        )
    return table


def _milliseconds(found: dict[str, float] | None) -> str:
    if found is None:
        return ""
    return " / ".join(f"{ms:.0f}" if (ms := 1e3 * found[p]) >= 10 else f"{ms:.1f}"
                      for p in ("p50", "p99"))  # fmt: skip


def _loads(wish: LoadWish) -> list[Load]:
    from draftwise.bench.load.drive import Load

    if wish.concurrency is not None and wish.rate is not None:
        raise DraftwiseError("give --concurrency or --rate, not both")
    try:
        if wish.rate is not None:
            loads = [Load(rate=float(part)) for part in wish.rate.split(",")]
        else:
            loads = [Load(int(part)) for part in (wish.concurrency or "1").split(",")]
    except ValueError:
        raise DraftwiseError("--concurrency and --rate are numbers with commas: 1,4,16") from None
    for load in loads:
        if not (load.rate or load.concurrency or 0) > 0:
            raise DraftwiseError(f"a load of {load}: it must be above 0")
    return loads


def _extra(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise DraftwiseError(f"--extra is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DraftwiseError("--extra is a JSON object of fields")
    return found


def _warm_up(server: Server, prompts: Sequence[str], options: dict[str, Any]) -> None:
    """One request that is not counted; what it says is wrong is said before the load."""
    from draftwise.bench.load.drive import Load, drive

    (shot,) = drive(server, prompts, 1, Load(1), options).shots
    if shot.error:
        raise DraftwiseError(f"{server.url} does not answer: {shot.error}")
