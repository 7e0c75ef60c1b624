"""``draftwise generate``: completes one prompt or many, as streamed text or json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwise import chat
from draftwise.checks import option
from draftwise.cli import load
from draftwise.cli import options as o
from draftwise.cli.failures import BROKEN, INTERRUPTED, graceful, note, refused_values, say
from draftwise.cli.show import Bars, Pen, summary, total
from draftwise.engine.options import RequestParams
from draftwise.state import hold
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.chat import Prompt
    from draftwise.engine.outputs import RequestOutput, Result, Stats
    from draftwise.speculator import Speculator


@o.command
def generate(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="Text to continue. Default: --file or stdin.")
    ] = None,
    settings: o.Settings,
    params: RequestParams,
    is_chat: bool = o.AS_CHAT,
    system: str | None = option(None, "System message; implies --chat.", metavar="TEXT"),
    file: Path | None = option(None, "Read the prompt from a file.", "--file", "-f"),
    batch: Path | None = option(
        None, "File with one prompt per line, or jsonl with `prompt`, `messages` or `turns`.",
        "--batch", "-b",
    ),
    as_json: bool = o.AS_JSON,
    chat_template: Path | None = o.CHAT_TEMPLATE,
    batch_size: int = option(8, "Prompts of --batch that run together.", panel="Running", least=1),
    trace: Path | None = option(
        None, "Write one jsonl line per round to this file.", panel="Running"
    ),
) -> None:  # fmt: skip
    """Complete a prompt with speculative decoding."""
    with refused_values():
        target = settings.target
        prompts = _prompts(prompt, file, batch, is_chat, system)
        o.check(settings)
        are_chats = any(given.is_chat for given in prompts)
        if are_chats:
            load.check_chat(target, chat_template)
        elif chat_template is not None:
            raise DraftwiseError("--chat-template is for --chat, or prompts with `messages`")
        if trace is not None:
            trace.open("a").close()  # check that it is writable, and keep its content for now
    with hold(settings.state):
        speculator = o.load(settings, chat_template)
        o.check_vocabulary(params, speculator.target.vocab_size)
        if are_chats:
            load.check_template(target, speculator.tokenizer)
        # encode all prompts before any answer, and before an earlier trace is overwritten
        texts = [given.encoded(speculator) for given in prompts]
        warn_of_cuts(params.max_new_tokens, texts, speculator)
        with load.keeping_memory(speculator, settings.state):
            if batch:
                results = run_batch(speculator, texts, params, trace, as_json, batch_size)
            else:
                results = run_single(speculator, texts[0], params, trace, as_json)
        if not are_chats and chat.has_template(speculator.tokenizer):
            hint_at_chat(results)
    raise SystemExit(verdict(results))


def warn_of_cuts(max_new_tokens: int, prompts: Sequence[Prompt], speculator: Speculator) -> None:
    positions = speculator.target.max_positions
    room = min(positions - len(prompt.tokens) for prompt in prompts)
    if max_new_tokens > room:
        which = "this prompt" if len(prompts) == 1 else "the longest prompt"
        said = f"the context of {positions} tokens has room for {room} after {which}"
        said += "; the answer ends there at the latest"
        say(f"--max-new-tokens {max_new_tokens}: {said}", style="yellow")


def hint_at_chat(results: Sequence[Result]) -> None:
    """Point at --chat where an instruct model answered plain text with its end token."""
    num = sum(not result.text.strip() and result.finish_reason == "eos" for result in results)
    if num:
        where = f" for {num} of {len(results)} prompts" if len(results) > 1 else ""
        said = f"the model returned no text{where}; an instruct model usually needs --chat"
        say(said, style="yellow")


def _prompts(
    prompt: str | None, file: Path | None, batch: Path | None, is_chat: bool, system: str | None
) -> list[load.Given]:
    if batch is None:
        given = load.Given(load.read_prompt(prompt, file))
        return [given.as_chat(system) if is_chat or system is not None else given]
    if prompt is not None or file is not None:
        raise DraftwiseError("give one prompt, or many with --batch, not both")
    return load.read_batch(batch, is_chat, system)


def run_single(
    speculator: Speculator, prompt: Prompt, params: RequestParams, trace: Path | None, as_json: bool
) -> list[Result]:
    """Answer one prompt, streamed unless as JSON."""
    generation = speculator.start(prompt, replace(params, token_texts=True), trace=trace)
    pen = None if as_json else Pen([drafter.name for drafter in speculator.drafters])
    with graceful() as is_stopped:
        stream(generation.outputs(), pen, is_stopped)
    generation.close()
    (result,) = generation.results()
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        note(summary(result.stats))
    return [result]


def stream(
    outputs: Iterator[RequestOutput], pen: Pen | None, is_stopped: Callable[[], bool]
) -> None:
    """Show an answer as it grows, until its end or Ctrl-C. pen: None = show nothing."""
    from draftwise.engine.outputs import SourceAttribution

    attribution, text = SourceAttribution(), ""
    for output in outputs:
        text += output.text
        if pen is not None:
            pen.write(attribution.grow(output, text))
        if is_stopped():
            break
    if pen is not None:
        pen.write(attribution.finish(text))
        pen.end(text)


def run_batch(
    speculator: Speculator, prompts: Sequence[Prompt], params: RequestParams, trace: Path | None,
    as_json: bool, batch_size: int,
) -> list[Result]:  # fmt: skip
    """Answer prompts in chunks, so that later ones begin with what earlier ones taught, and print
    the answers in order."""
    from draftwise.engine.outputs import TraceWriter

    results: list[Result] = []
    chunks: list[Stats] = []
    with refused_values():
        writer = None if trace is None else TraceWriter(trace)
    closing_trace = nullcontext() if writer is None else closing(writer)
    with closing_trace, graceful() as is_stopped, Bars("prompts") as progress:
        task = progress.add_task("", total=len(prompts))
        for first in range(0, len(prompts), batch_size):
            # with one seed every chunk of a batch would sample the same tokens
            seed = None if params.seed is None else params.seed + first
            chunk = list(prompts[first : first + batch_size])
            generation = speculator.start(chunk, replace(params, seed=seed))
            for round_ in generation:
                if writer is not None:
                    writer.write(replace(round_, request=first + round_.request))
                if is_stopped():
                    break
            answers = generation.results()
            progress.stop()  # answers replace the bar
            for result in answers:
                print(json.dumps(result.as_json()) if as_json else result.text, flush=True)
            progress.update(task, advance=len(answers))
            progress.start()
            results += answers
            chunks.append(total([result.stats for result in answers], are_together=True))
            if is_stopped():
                break
    if not as_json:
        note(summary(total(chunks)))
    return results


def verdict(results: Sequence[Result]) -> int:
    reasons = [result.finish_reason for result in results]
    if "interrupted" in reasons:
        say("interrupted: the text so far was kept", style="yellow")
        return INTERRUPTED
    broken = [str(i) for i, reason in enumerate(reasons) if reason == "non-finite logits"]
    if broken:
        where = f" (prompts {', '.join(broken)})" if len(reasons) > 1 else ""
        say(f"stopped: the target's logits are not finite{where}; the tokens so far were kept")
        return BROKEN
    return 0
