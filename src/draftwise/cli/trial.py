"""``draftwise try``: does it pay on this model and these prompts, within a minute."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwise.bench.methods import DEFAULT, PLAIN, parse_method
from draftwise.bench.results import SHORT_TOKENS, Ratio, Run, make_sheet, rows, turns
from draftwise.bench.suites import read_items, usual_items
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.failures import INTERRUPTED, graceful, refused_values, say
from draftwise.cli.load import check_chat
from draftwise.cli.show import Bars, counted, percentages

if TYPE_CHECKING:
    from draftwise.bench.session import Asked, Encoder
    from draftwise.bench.suites import Item
    from draftwise.speculator import Speculator

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
    seconds: float = option(60.0, "Time after which no further prompt is begun.", least=1.0),
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
    wanted = hardware.settings(target=model, drafters=drafters, seed=seed)
    with refused_values():
        o.check(wanted)
        o.request({"temperature": temperature}, max_new_tokens=max_new_tokens, seed=seed)
        items = None if prompts is None else read_items(prompts)
        if is_chat:
            check_chat(model)
    fast = o.load(wanted)
    from draftwise.bench.session import Asked, Encoder

    asked = Asked(max_new_tokens, temperature)
    encoder = Encoder(fast, asked, is_chat)
    chosen = usual_items(encoder.is_chat)[:10] if items is None else items
    runs, is_stopped = measure(fast, chosen, asked, encoder, seconds, seed)
    if not runs:
        say("interrupted before the first prompt was answered twice", style="yellow")
        raise SystemExit(INTERRUPTED)
    print(verdict(runs, is_greedy=temperature == 0))
    print(paste(model, drafters or ()))
    if is_stopped:
        raise SystemExit(INTERRUPTED)


def measure(
    base: Speculator, items: Sequence[Item], asked: Asked, encoder: Encoder, seconds: float,
    seed: int,
) -> tuple[list[Run], bool]:  # fmt: skip
    """Answer the prompts, each with and without drafts; return the runs, and whether Ctrl-C ended
    it. No prompt is begun after ``seconds``.
    """
    from draftwise.bench.session import OurContestant, contest

    contestants = [OurContestant(parse_method(name), base, asked) for name in METHODS]
    begin, runs = time.monotonic(), list[Run]()
    with graceful() as is_stopped, Bars("prompts") as progress:
        task = progress.add_task("", total=len(items))
        plan = turns(METHODS, len(items), 1, seed)
        for turn in contest(contestants, items, encoder, plan, seed, lambda: not is_stopped()):
            runs += turn
            progress.advance(task)
            if time.monotonic() - begin > seconds:
                break
        return runs, is_stopped()


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
