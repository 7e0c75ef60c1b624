"""``draftwise bench`` times methods side by side; ``draftwise try`` says whether drafting pays."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from draftwise.bench.results import (
    SHORT_TOKENS,
    Ratio,
    Run,
    cautions,
    command,
    environment,
    extent,
    interval,
    make_sheet,
    rows,
    summary,
    turns,
)  # fmt: skip
from draftwise.bench.suites import (
    DEFAULT,
    PLAIN,
    load_suite,
    parse_method,
    read_items,
    usual_items,
    with_plain,
)
from draftwise.checks import known, option
from draftwise.cli import options as o
from draftwise.cli.failures import INTERRUPTED, Output, graceful, refused_values, say
from draftwise.cli.load import check_chat
from draftwise.cli.show import Bars, counted, make_table, percentages, yes_or_no
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.bench.session import Encoder
    from draftwise.bench.suites import Item

_MINUTES = 2.5  # of one's own prompts
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
    minutes: float | None = option(
        None, "Stop measuring after this many minutes. Default: 2.5; of zoo and spec-bench, all."
    ),
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
    if suite == "zoo" or suite.startswith("spec-bench:"):
        prompts = prompts or _PER_DOMAIN
    else:
        minutes = _MINUTES if minutes is None else minutes
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
    from draftwise.bench.session import Asked, Encoder

    encoder = Encoder(base, Asked(tokens, temperature), is_chat)
    end = None if minutes is None else began + 60 * minutes
    runs, is_stopped = measure(names, encoder, found.items, seed, end, repeats=repeats)
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
        "suite": suite, "settings": settings,
        "drafters": [drafter.name for drafter in base.drafters],
        "is_complete": len(runs) == len(found.items) * repeats * len(names),
        **summary(make_sheet(runs, names, can_compare=is_exact, clock=clock)),
        "environment": environment(wanted.threads), "command": command(),
    }  # fmt: skip
    show(results, as_json=as_json)
    if is_stopped:
        raise SystemExit(INTERRUPTED)


def measure(
    names: Sequence[str], encoder: Encoder, items: Sequence[Item], seed: int, end: float | None,
    *, repeats: int = 1, fewest: int = 0,
) -> tuple[list[Run], bool]:  # fmt: skip
    """Let all methods answer the prompts; return complete turns, and whether Ctrl-C ended it.

    end: moment of the monotonic clock after which no answer is begun; None = never. fewest: prompts
    that are answered in any case.
    """
    from draftwise.bench.session import OurContestant, contest

    base, pool = encoder.base, [drafter.name for drafter in encoder.base.drafters]
    contestants = [OurContestant(parse_method(name, pool), base, encoder.asked) for name in names]
    plan, runs = list(turns(names, len(items), repeats, seed)), list["Run"]()
    with graceful() as is_stopped, Bars("prompts") as bars:

        def goes_on() -> bool:
            is_late = end is not None and time.monotonic() > end
            return not is_stopped() and not (is_late and len(runs) >= fewest * len(names))

        task = bars.add_task("", total=len(plan))
        for turn in contest(contestants, items, encoder, plan, seed, goes_on):
            runs += turn
            bars.advance(task)
        return runs, is_stopped()


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
        shown = Text(name, "bold" if name == DEFAULT else "")
        speed, is_same = row["speedup"], row["lossless"]
        rates = f"{row['tok_per_s']:.1f}", f"{speed['median']:.2f}", interval(speed)
        share = Text(f"{row['same_tokens']:.0%}", "dim")
        same = share if is_same is None else yes_or_no(is_same)
        table.add_row(shown, *rates, f"{row['mat']:.2f}", same)
    return table


FEWEST_PROMPTS = 3  # an interval over fewer prompts says nothing
PAYS = 1.03  # a gain below this is not worth a change of a program
METHODS = (PLAIN, DEFAULT)


@o.command
def trial(
    *,
    model: Annotated[str, typer.Argument(help="As --target of the other commands.")],
    prompts: Annotated[
        Path | None,
        typer.Argument(
            help="A prompt per line, or jsonl with `prompt`, `messages` or `turns`. Default: ten "
            "questions."
        ),
    ] = None,
    drafters: list[str] | None = option(
        None, "As of `generate`; repeatable.", "--drafter", "-d", metavar="SPEC"
    ),
    seconds: float = option(
        60.0, "Time, loading included, after which no fourth prompt is begun.", least=1.0
    ),
    max_new_tokens: o.MaxNewTokens = 100,
    temperature: o.Temperature = 0.0,
    is_chat: bool | None = o.CHAT_OR_RAW,
    seed: int = o.SEED,
    hardware: o.Hardware,
) -> None:
    """Measure in a minute whether draftwise pays on a model and your prompts.

    Each prompt is answered twice, with and without drafts, in random order. Where the model has a
    chat template, prompts are sent as user messages. The verdict names the speed with its
    interval, who wrote the tokens, and the lines that use it.
    """
    end = time.monotonic() + seconds
    wanted = hardware.settings(target=model, drafters=drafters, seed=seed)
    with refused_values():
        o.check(wanted)
        o.request({"temperature": temperature}, max_new_tokens=max_new_tokens, seed=seed)
        items = None if prompts is None else read_items(prompts)
        if is_chat:
            check_chat(model)
    fast = o.load(wanted)
    from draftwise.bench.session import Asked, Encoder

    encoder = Encoder(fast, Asked(max_new_tokens, temperature), is_chat)
    chosen = usual_items(encoder.is_chat)[:10] if items is None else items
    runs, is_stopped = measure(METHODS, encoder, chosen, seed, end, fewest=FEWEST_PROMPTS)
    if not runs:
        say("interrupted before the first prompt was answered twice", style="yellow")
        raise SystemExit(INTERRUPTED)
    print(verdict(runs, is_greedy=temperature == 0))
    print(paste(model, drafters or ()))
    if is_stopped:
        raise SystemExit(INTERRUPTED)


def verdict(runs: Sequence[Run], *, is_greedy: bool) -> str:
    """What was measured, in a few lines."""
    sheet = make_sheet(runs, METHODS, can_compare=is_greedy)
    plain, fast = (rows(sheet)[name] for name in METHODS)
    num = fast["num_answers"]
    lines = [_gain(sheet.timing.compare(DEFAULT, PLAIN))]
    rates = f"{fast['tok_per_s']:.1f} against {plain['tok_per_s']:.1f} tokens per second"
    lines.append(f"{counted(num, 'prompt')}, {rates}")
    lines.append(f"written by: {percentages(fast['written'])}")
    if is_greedy:
        same = round(num * fast["same_tokens"])
        lines.append(f"answers equal to plain decoding's: {same} of {num}")
    if short := fast["num_short"]:
        lines.append(
            f"{counted(short, 'answer')} of fewer than {SHORT_TOKENS} tokens: too short to gain; "
            "an instruct model needs its chat template"
        )
    return "\n".join(lines)


def _gain(found: Ratio) -> str:
    if found.num_prompts < FEWEST_PROMPTS:
        return f"{found.value:.2f} times plain decoding, on too few prompts to be sure"
    interval = (
        f"{found.value:.2f} times plain decoding (95% interval {found.low:.2f} to {found.high:.2f})"
    )
    if found.low >= 1.0 and found.value >= PAYS:
        return f"It pays: {interval}"
    if found.high < 1.0:
        return f"It does not pay: {interval}"
    return f"No clear gain: {interval}"


def paste(model: str, drafters: Sequence[str]) -> str:
    """The lines that use draftwise with this model."""
    named = "".join(f" --drafter {spec}" for spec in drafters)
    listed = f", drafters={list(drafters)!r}" if drafters else ""
    return (
        f"\n  draftwise serve --target {model}{named}\n"
        f"  draftwise.Speculator.from_pretrained({model!r}{listed}).generate(...)"
    )
