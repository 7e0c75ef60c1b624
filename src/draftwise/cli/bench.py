"""``draftwise bench``: times presets and fixed plans against plain decoding, side by side."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from draftwise.bench.environment import command, environment
from draftwise.bench.methods import DEFAULT, PLAIN, parse_method, with_plain
from draftwise.bench.results import (
    cautions,
    extent,
    interval,
    make_sheet,
    rounded,
    summary,
    turns,
)  # fmt: skip
from draftwise.bench.suites import load_suite
from draftwise.checks import known, option
from draftwise.cli import options as o
from draftwise.cli.failures import INTERRUPTED, Output, graceful, refused_values, say
from draftwise.cli.load import check_chat
from draftwise.cli.show import Bars, broken, make_table, yes_or_no
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.bench.results import Run

_NAME = 34  # width of the names in a table of 80 columns
_PER_DOMAIN = 4  # prompts of each domain of the zoo and of Spec-Bench
MODELS = o.Models(target="zoo")  # always installed, and fast
SUITE = (
    "zoo, questions, spec-bench:FILE (its question.jsonl), or a file of prompts: one per line, or "
    "jsonl with `prompt`, `messages` or `turns`. Default: zoo for the bundled models, else ten "
    "questions."
)
_METHODS = (
    f"{', '.join(p for p in PRESETS if p != PLAIN)} (with `@LENGTHS`), or "
    "`fixed:DRAFTERxLENGTH[/RULE]`; repeatable. Default: draftwise. Plain decoding takes part."
)


@o.command
def bench(
    *,
    suite: str | None = option(None, SUITE, metavar="SUITE"),
    is_chat: bool | None = o.CHAT_OR_RAW,
    method: list[str] | None = option(None, _METHODS, metavar="M"),
    models: o.Models = MODELS,
    tokens: int = option(
        128, "Maximum number of tokens per answer.", "--tokens", "-n", least=1
    ),
    repeats: int = option(3, "Number of repeats of every prompt.", least=1),
    prompts: int | None = option(
        None, "Prompts of each domain. Default: 4 of zoo and spec-bench, else all.", least=1
    ),
    domain: list[str] | None = option(None, "Use only this domain; repeatable.", metavar="NAME"),
    minutes: float | None = option(None, "Stop measuring after this many minutes."),
    temperature: o.Temperature = 0.0,
    seed: int = o.SEED,
    clock: str = option("wall", "wall, or cpu: CPU time of this process, for shared machines."),
    as_json: bool = option(False, "Print all results as JSON instead of a table.", "--json"),
) -> None:  # fmt: skip
    """Time presets and fixed plans against plain decoding, on your prompts.

    Every method answers every prompt, in random order, in one process. Where the model has a chat
    template, prompts are sent as user messages.
    """
    began, wanted = time.monotonic(), models.settings(seed=seed)
    suite = suite or ("zoo" if wanted.target == "zoo" else "questions")
    names = with_plain(method or [DEFAULT])
    if prompts is None and (suite == "zoo" or suite.startswith("spec-bench:")):
        prompts = _PER_DOMAIN
    with refused_values():
        o.check(wanted)
        known("clock", clock, ("wall", "cpu"))
        for name in names:
            parse_method(name)
        o.request({"temperature": temperature}, seed=seed)
        found = load_suite(suite, prompts, domain or ())
        if is_chat:
            check_chat(wanted.target)
    base = o.load(wanted)
    if not base.drafters:
        raise DraftwiseError("a bench needs a drafter: give --drafter")
    from draftwise.bench.session import Asked, Encoder, OurContestant, contest

    asked, pool = Asked(tokens, temperature), [drafter.name for drafter in base.drafters]
    encoder = Encoder(base, asked, is_chat)
    contestants = [OurContestant(parse_method(name, pool), base, asked) for name in names]
    plan, runs = list(turns(names, len(found.items), repeats, seed)), list["Run"]()
    with graceful() as is_stopped, Bars("prompts", is_shown=not as_json) as bars:

        def goes_on() -> bool:
            is_late = minutes is not None and time.monotonic() - began > 60 * minutes
            return not (is_stopped() or is_late)

        task = bars.add_task("", total=len(plan))
        for turn in contest(contestants, found.items, encoder, plan, seed, goes_on):
            runs += turn
            bars.advance(task)
    if not runs:
        raise DraftwiseError("nothing was measured in time: give more --minutes")
    settings = {
        "target": wanted.target, "tokens": tokens, "temperature": temperature, "seed": seed,
        "clock": clock, "is_chat": encoder.is_chat, "num_items": len(found.items),
        "num_items_measured": len({run.item for run in runs}),
        "repeats": 1 + max(run.repeat for run in runs), "num_prompts_cut": len(encoder.cut),
    }  # fmt: skip
    is_exact = temperature == 0 and str(base.target.dtype) in ("torch.float32", "torch.float64")
    results = {
        "suite": suite, "settings": settings, "drafters": pool,
        "is_complete": len(runs) == len(plan) * len(names),
        **summary(make_sheet(runs, names, can_compare=is_exact, clock=clock)),
        "environment": environment(wanted.threads), "command": command(),
    }  # fmt: skip
    show(rounded(results), as_json=as_json)
    if is_stopped():
        raise SystemExit(INTERRUPTED)


def show(results: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results))
        return
    Output().print(methods_table(results))
    for caution in cautions(results):
        say(caution, style="yellow")


def methods_table(results: dict[str, Any]) -> Table:
    """All methods over all domains, the fastest first."""
    table = make_table(
        "method",
        right=("tok/s", "x plain", "95%", "MAT", "same\ntext"),
        title=f"{results['suite']}: {extent(results['settings'])}",
        caption="Seconds are of whole answers, reading the prompt (prefill) included.",
    )
    for name, row in sorted(results["methods"].items(), key=lambda item: -item[1]["tok_per_s"]):
        shown = Text(broken(name, _NAME), "bold" if name == DEFAULT else "")
        speed, is_same = row["speedup"], row["lossless"]
        rates = f"{row['tok_per_s']:.1f}", f"{speed['median']:.2f}", interval(speed)
        share = Text(f"{row['same_tokens']:.0%}", "dim")
        same = share if is_same is None else yes_or_no(is_same)
        table.add_row(shown, *rates, f"{row['mat']:.2f}", same)
    return table
