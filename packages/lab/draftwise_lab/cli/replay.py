"""``draftwise replay`` and ``draftwise advise``: counterfactuals on recorded traffic."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from draftwise.bench.results import FEW_PROMPTS, interval
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.failures import Output, refusals, refused_values, say
from draftwise.cli.load import check_chat, read_batch
from draftwise.cli.show import Bars, counted, make_table
from draftwise.settings import expand
from draftwise.types import NONE, DraftwiseError
from draftwise_lab.bench import advice as a
from draftwise_lab.cli import options as lab

Trace = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="Rounds (.jsonl, of generate --trace or bench) or arrays (.npz)."
    ),
]
_ENGINES = ", ".join(a.ENGINES)
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--for", metavar="ENGINE", help=f"{', '.join(a.ENGINES)}; repeatable. Default: all"
    ),
]
_NAME = 40
"""Maximum width of a name in a table of 80 columns."""


@refusals()
def replay(
    trace: Trace,
    policy: lab.Policies = None,
    reward: lab.Reward = None,
    feedback: lab.Feedback = None,
    lengths: lab.Lengths = None,
    costs: lab.Costs = None,
    seeds: lab.Seeds = 5,
    as_json: lab.AsJson = False,
) -> None:
    """Play other policies on recorded traffic."""
    played = a.play_trace(
        trace, policy or [a.ADAPTIVE], costs=costs, reward=reward, feedback=feedback,
        lengths=lengths, seeds=seeds,
    )  # fmt: skip
    found = a.replay_report(trace, played)
    if as_json:
        print(json.dumps(found))
        return
    Output().print(_replay_table(found))
    _tell(lab.regret_note(found["average"]), _unit_note(found["unit"]), a.EXCLUDED)
    _warn(found.get("coverage"))


MODELS = o.Models(target="zoo")


@o.command
def advise_(
    *,
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]", help="Rounds (.jsonl) or arrays (.npz), as for `replay`."
        ),
    ] = None,
    prompts: Path | None = option(
        None, "Answer these first: one per line, or jsonl with `prompt`, `messages` or `turns`.",
        *("--prompts", "--batch", "-b"), metavar="FILE",
    ),
    engines: Engines = None,
    weights: list[str] | None = option(
        None, "A drafter's folder, hub id or `.gguf` file (for llama.cpp), which a trace does not "
        "know; repeatable.", metavar="NAME=PATH",
    ),
    costs: lab.Costs = None,
    seeds: lab.Seeds = 5,
    as_json: lab.AsJson = False,
    models: o.Models = MODELS,
    is_chat: bool = o.AS_CHAT,
    max_new_tokens: int = option(
        64, "Maximum number of tokens per answer.", "--max-new-tokens", "-n", metavar="N", least=1
    ),
    batch_sizes: str = option(
        "1", "Batch sizes to time with --prompts, for vLLM's and SGLang's tables.", metavar="N,N"
    ),
) -> None:  # fmt: skip
    """Find the best fixed setting for engines that do not adapt, and what adapting would gain.

    Reads a trace (`generate --trace`, `serve --trace`, `contest`), or answers --prompts once, with
    drafters and lengths drawn at random. Prints settings for vLLM, SGLang, llama.cpp and
    transformers, the expected gain, and what the gain excludes.
    """
    names = a.check_engines(engines)
    if (trace is None) == (prompts is None):
        raise DraftwiseError("give a TRACE, or --prompts FILE for a short run; not both")
    if trace is not None:
        found = a.advise(trace, costs=costs, seeds=seeds, engines=names, weights=weights or ())
    else:
        sizes = sorted({*lab.whole_numbers("--batch-sizes", batch_sizes, "1,4,16")})
        found = _after_a_run(
            prompts, models.settings(), is_chat, max_new_tokens, sizes, seeds, names, weights or ()
        )
    if as_json:
        print(json.dumps(found))
        return
    Output().print(_advice_table(found))
    _tell(_unit_note(found["unit"]), a.EXCLUDED, a.OF_TEXTS)
    for name, advice in found["engines"].items():
        _print_advice(name, advice)
    num = found["num_requests"]
    if num < FEW_PROMPTS:
        say(
            "with 1 request there is no interval" if num == 1
            else f"with {num} requests the intervals are rough", style="yellow",
        )  # fmt: skip
    _warn(found["coverage"])


def _after_a_run(
    prompts: Path | None, wanted: o.Settings, is_chat: bool, num: int, sizes: list[int],
    seeds: int, engines: list[str], weights: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    assert prompts is not None
    with refused_values():
        given = read_batch(prompts, is_chat)
        o.check(wanted)
        if any(one.is_chat for one in given):
            check_chat(wanted.target)
    base = o.load(wanted)
    from draftwise.bench.session import Asked
    from draftwise.engine.options import encode_all
    from draftwise.pool import resolve_target
    from draftwise_lab.bench.scout import Question, scout, sources_of, time_batches

    texts = [list(encode_all(one.prompt, base.tokenizer, base.target)[0].tokens) for one in given]
    specs = expand(wanted.drafters or resolve_target(wanted.target)[1])
    sources = a.with_weights(sources_of(base, specs), weights)
    with tempfile.TemporaryDirectory() as folder, Bars("prompts") as progress:
        path = Path(folder) / "trace.jsonl"
        task = progress.add_task("", total=len(texts) + 6 * len(sizes))

        def tick() -> bool:
            progress.advance(task)
            return True

        # one prompt at a time, with plans drawn at random and all drafters scored
        scout(base, [Question("prompts", text) for text in texts], Asked(num), path, 0, tick)
        options: dict[str, Any] = {"seeds": seeds, "sources": sources}
        found = a.advise(path, engines=engines, **options)
        if len(sizes) > 1:
            names = {one.get("drafter") for one in found["engines"].values()} - {None, NONE}
            tables = {name: time_batches(base, texts, name, sizes, tick) for name in names}
            for engine in found["engines"]:
                if table := tables.get(found["engines"][engine].get("drafter")):
                    again = a.advise(path, engines=[engine], at_batch=table, **options)
                    found["engines"] |= again["engines"]
    return found | {"trace": str(prompts)}


def _print_advice(engine: str, advice: dict[str, Any]) -> None:
    if advice["paste"] is None:
        print(f"{engine}: {advice.get('why') or 'do not speculate on this traffic'}")
        return
    print(f"{engine}:", advice["paste"], sep="\n" if "\n" in advice["paste"] else " ")
    for row in advice["by_batch"] or [{"batch_size": None, **advice}]:
        where = "" if row["batch_size"] is None else f" with {row['batch_size']} at once"
        what = f"{row['length']} tokens" if row["length"] else "no drafts"
        found = "as plain decoding"
        if gain := row["speedup"]:
            around = f" ({interval(gain)})" if interval(gain) else ""
            found = f"{gain['median']:.2f} x plain{around}"
        print(f"  expected{where}: {what}, {found}")
    print(f"  not in it: {'; '.join(advice['excludes'])}")


def _tell(*notes: str) -> None:
    for note in filter(None, notes):
        print(f"  {note}")


def _speed_head(unit: str) -> str:
    return unit if unit == "tok/s" else "tok/unit"


def _unit_note(unit: str) -> str:
    return "" if _speed_head(unit) == unit else f"tok/unit: {unit}"


def _replay_table(found: dict[str, Any]) -> Table:
    title = f"{found['preset']}: mean over domains"
    headings = ("MAT", _speed_head(found["unit"]), "x plain", "regret")
    table = make_table("policy", right=headings, title=title)
    if recorded := found.get("recorded"):
        speed = recorded["tok_per_s"]
        rate = lab.rate(speed) if speed else ""
        table.add_row("as recorded", f"{recorded['mat']:.2f}", rate, "", "")
    for label, row in found["average"].items():
        regret = row.get("regret")
        table.add_row(
            lab.broken(label, _NAME), f"{row['mat']:.2f}", lab.rate(row["tok_per_s"]),
            f"{row['speedup']:.2f}", "" if regret is None else lab.signed(regret),
        )  # fmt: skip
    return table


def _advice_table(found: dict[str, Any]) -> Table:
    title = f"{Path(found['trace']).name}: {counted(found['num_requests'], 'request')}"
    headings = (_speed_head(found["unit"]), "x plain", "95%")
    table = make_table("setting", right=headings, title=title)
    rows = [(_label(row), row) for row in found["by_drafter"]]
    rows.append((f"adaptive: {found['adaptive']['policy']}", found["adaptive"]))
    for label, row in sorted(rows, key=lambda item: -item[1]["tok_per_s"]):
        table.add_row(
            lab.broken(label, _NAME), lab.rate(row["tok_per_s"]), f"{row['speedup']['median']:.2f}",
            interval(row["speedup"]), style="bold" if row == found["best"] else "",
        )  # fmt: skip
    return table


def _label(row: dict[str, Any]) -> str:
    return f"{row['drafter']}, length {row['length']}" if row["length"] else "none (plain decoding)"


def _warn(coverage: dict[str, float] | None) -> None:
    """Warn about drafters whose scores the replay has to fill in."""
    thin = {name: share for name, share in (coverage or {}).items() if share < a.WELL_COVERED}
    if thin:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in thin.items())
        say(
            f"scored at few of the tokens: {shares}; between them the latest value stands in. "
            "Record with --feedback panoramic to be sure",
            style="yellow",
        )
