"""``draftwise try``: does it pay on this model and these prompts, within a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from draftwise.bench.results import Ratio, ratio
from draftwise.checks import option
from draftwise.cli import load
from draftwise.cli import options as o
from draftwise.cli.demo import choose_prompts, plain_like
from draftwise.cli.failures import INTERRUPTED, graceful, refused_values, say
from draftwise.cli.show import Bars, counted, percentages
from draftwise.engine.options import RequestParams

if TYPE_CHECKING:
    from draftwise.engine.generation import Result
    from draftwise.speculator import Speculator

FEWEST_PROMPTS = 3  # an interval over fewer prompts says nothing
SHORT_TOKENS = 8  # answers of fewer tokens have nothing to draft
PAYS = 1.03  # a gain below this is not worth a change of a program
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """The answers to one prompt, plain and with drafts, and the wall seconds of both."""

    plain: Result
    fast: Result
    plain_s: float
    fast_s: float


@o.command
def trial(
    *,
    model: Annotated[str, typer.Argument(help="As --target of the other commands.")],
    prompts: Annotated[
        Path | None,
        typer.Argument(
            help="A prompt per line, or jsonl with `prompt` or `messages`. Default: ten questions."
        ),
    ] = None,
    drafters: list[str] | None = option(
        None, "As of `generate`; repeatable.", "--drafter", "-d", metavar="SPEC"
    ),
    seconds: float = option(60.0, "Time after which no further prompt is begun.", least=1.0),
    max_new_tokens: o.MaxNewTokens = 100,
    temperature: o.Temperature = 0.0,
    is_raw: bool = option(
        False, "Continue the prompts as text, although the model has a chat template.", "--raw"
    ),
    seed: int = o.SEED,
    hardware: o.Hardware,
) -> None:
    """Measure in a minute whether draftwise pays on a model and your prompts.

    Each prompt is answered twice, with and without drafts, in random order. Where the model has a
    chat template, prompts are sent as user messages. The verdict names the speed with its
    interval, who wrote the tokens, and the lines that use it.
    """
    wanted = hardware.settings(target=model, drafters=drafters, seed=seed)
    params = o.request({"temperature": temperature}, max_new_tokens=max_new_tokens, seed=seed)
    with refused_values():
        o.check(wanted)
        given = None if prompts is None else load.read_batch(prompts)
    fast = o.load(wanted)
    pairs, is_stopped = measure(fast, _asked(fast, given, is_raw), params, seconds, seed)
    if not pairs:
        say("interrupted before the first prompt was answered twice", style="yellow")
        raise SystemExit(INTERRUPTED)
    print(verdict(pairs, temperature == 0))
    print(paste(model, drafters or ()))
    if is_stopped:
        raise SystemExit(INTERRUPTED)


def _asked(fast: Speculator, given: Sequence[load.Given] | None, is_raw: bool) -> list[Any]:
    """The prompts in the form that the model expects: messages if it has a chat template."""
    has_template = getattr(fast.tokenizer, "chat_template", None) is not None and not is_raw
    if given is None:
        return [chosen.prompt for chosen in choose_prompts(10, fast.tokenizer)]
    chats = [load.as_chat(one, None) if has_template else one for one in given]
    return [one.encoded(fast) for one in chats]


def measure(
    fast: Speculator, prompts: Sequence[Any], params: RequestParams, seconds: float, seed: int
) -> tuple[list[Pair], bool]:
    """Answer the prompts, each with and without drafts; return the pairs, and whether Ctrl-C
    ended the run. No prompt is begun after ``seconds``.
    """
    plain, rng, pairs = plain_like(fast), np.random.default_rng(seed), list[Pair]()
    for one in (plain, fast):  # allocators and lazy imports are charged to neither
        one.generate(prompts[0], replace(params, max_new_tokens=WARM_UP_TOKENS))
    with graceful() as is_stopped, Bars("prompts") as progress:
        task, begin = progress.add_task("", total=len(prompts)), time.perf_counter()
        for prompt in prompts:
            if is_stopped() or time.perf_counter() - begin > seconds:
                break
            order = [plain, fast] if rng.random() < 0.5 else [fast, plain]
            found = {id(one): _timed(one, prompt, params) for one in order}
            (slow, slow_s), (quick, quick_s) = found[id(plain)], found[id(fast)]
            pairs.append(Pair(slow, quick, slow_s, quick_s))
            progress.update(task, advance=1)
        return pairs, is_stopped()


def _timed(speculator: Speculator, prompt: Any, params: RequestParams) -> tuple[Result, float]:
    start = time.perf_counter()
    result: Result = speculator.generate(prompt, params)
    return result, time.perf_counter() - start


def speed(pairs: Sequence[Pair]) -> Ratio:
    """Tokens per second with drafts relative to without, with a 95% interval over the prompts."""
    fast_tokens, fast_s, plain_tokens, plain_s = np.array(
        [
            (len(pair.fast.tokens), pair.fast_s, len(pair.plain.tokens), pair.plain_s)
            for pair in pairs
        ]
    ).T
    return ratio(fast_tokens, fast_s, plain_tokens, plain_s)


def verdict(pairs: Sequence[Pair], is_greedy: bool) -> str:
    """What was measured, in a few lines."""
    found, num = speed(pairs), counted(len(pairs), "prompt")
    tokens = [len(pair.fast.tokens) for pair in pairs]
    rates = [sum(tokens) / sum(pair.fast_s for pair in pairs)]
    rates.append(sum(len(p.plain.tokens) for p in pairs) / sum(p.plain_s for p in pairs))
    lines = [_gain(found, len(pairs))]
    lines.append(f"{num}, {rates[0]:.1f} against {rates[1]:.1f} tokens per second")
    written = Counter(source for pair in pairs for source in pair.fast.sources)
    lines.append(f"written by: {percentages(written)}")
    if is_greedy:
        same = sum(pair.plain.tokens == pair.fast.tokens for pair in pairs)
        lines.append(f"answers equal to plain decoding's: {same} of {len(pairs)}")
    if short := sum(number < SHORT_TOKENS for number in tokens):
        lines.append(
            f"{counted(short, 'answer')} of fewer than {SHORT_TOKENS} tokens: too short to gain; "
            "an instruct model may need its chat template"
        )
    return "\n".join(lines)


def _gain(found: Ratio, num: int) -> str:
    if num < FEWEST_PROMPTS:
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
