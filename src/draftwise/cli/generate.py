"""``draftwise generate``: completes one prompt or many, as streamed text or json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import TextColumn, TimeElapsedColumn

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
    from draftwise.engine.generation import Generation, Result, TraceWriter
    from draftwise.engine.outputs import RequestOutput, Round, Stats
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
        from draftwise.engine.generation import TraceWriter

        # encode all prompts before any answer, and before an earlier trace is overwritten
        texts = [given.encoded(speculator) for given in prompts]
        warn_of_cuts(params.max_new_tokens, texts, speculator)
        with refused_values():
            writer = None if trace is None else TraceWriter(trace)
        job = Job(speculator, params, writer, as_json)
        closing_trace = nullcontext() if writer is None else closing(writer)
        with load.keeping_memory(speculator, settings.state), closing_trace:
            code = run_batch(job, texts, batch_size) if batch else run_single(job, texts[0])
    raise SystemExit(code)


def warn_of_cuts(max_new_tokens: int, prompts: Sequence[Prompt], speculator: Speculator) -> None:
    positions = speculator.target.max_positions
    room = min(positions - len(prompt.tokens) for prompt in prompts)
    if max_new_tokens > room:
        which = "this prompt" if len(prompts) == 1 else "the longest prompt"
        said = f"the context of {positions} tokens has room for {room} after {which}"
        said += "; the answer ends there at the latest"
        say(f"--max-new-tokens {max_new_tokens}: {said}", style="yellow")


def _prompts(
    prompt: str | None, file: Path | None, batch: Path | None, is_chat: bool, system: str | None
) -> list[load.Given]:
    if batch is None:
        given = load.Given(load.read_prompt(prompt, file))
        return [given.as_chat(system) if is_chat or system is not None else given]
    if prompt is not None or file is not None:
        raise DraftwiseError("give one prompt, or many with --batch, not both")
    return load.read_batch(batch, is_chat, system)


@dataclass(frozen=True, slots=True)
class Job:
    """The settings that all prompts share."""

    speculator: Speculator
    params: RequestParams
    trace: TraceWriter | None
    as_json: bool

    def start(
        self, prompts: Sequence[Prompt], first: int, *, token_texts: bool = False
    ) -> Generation:
        """Start a chunk of prompts; first: index of the chunk's first prompt."""
        seed = self.params.seed  # with one seed every chunk of a batch would sample the same tokens
        seed = None if seed is None else seed + first
        params = replace(self.params, seed=seed, token_texts=token_texts)
        return self.speculator.start(list(prompts), params)

    def outputs(
        self, generation: Generation, first: int, is_stopped: Callable[[], bool]
    ) -> Iterator[tuple[RequestOutput, Round]]:
        """Yield and trace rounds until all answers are finished, or Ctrl-C after a whole round."""
        num_seen = 0
        for output in generation.outputs():
            if (round_ := output.round) is None:
                continue
            if self.trace is not None:
                self.trace.write(replace(round_, request=first + round_.request))
            yield output, round_
            num_seen = (num_seen + 1) % round_.batch_size
            if num_seen == 0 and is_stopped():
                return


def run_single(job: Job, prompt: Prompt) -> int:
    """Answer one prompt, streamed unless as JSON."""
    from draftwise.engine.answer import SourceAttribution

    generation, text = job.start([prompt], 0, token_texts=True), ""
    attribution = SourceAttribution()
    pen = Pen([drafter.name for drafter in job.speculator.drafters])
    with graceful() as is_stopped:
        for output, _ in job.outputs(generation, 0, is_stopped):
            text += output.text
            if not job.as_json:
                pen.write(attribution.grow(output, text))
    result = generation.results()[0]
    if job.as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        pen.end(result.text)
        note(summary(result.stats))
    return verdict([result])


def run_batch(job: Job, prompts: Sequence[Prompt], batch_size: int) -> int:
    """Answer prompts in chunks and print the answers in order; return the exit code."""
    results: list[Result] = []
    chunks: list[Stats] = []
    columns = TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
    num_tokens, seconds = 0, 0.0
    with graceful() as is_stopped, Bars("prompts", *columns) as progress:
        task = progress.add_task("", total=len(prompts), rate="")
        for first in range(0, len(prompts), batch_size):
            generation = job.start(prompts[first : first + batch_size], first)
            last = 0
            for output, round_ in job.outputs(generation, first, is_stopped):
                num_tokens += len(output.tokens)
                if round_.round != last:  # rows of a step share its seconds
                    last = round_.round
                    seconds += sum(round_.seconds.values())
                rate = num_tokens / seconds if seconds else 0.0
                progress.update(task, rate=f"{rate:.0f} tok/s")
            chunk = generation.results()
            progress.stop()  # answers replace the bar
            for result in chunk:
                print(json.dumps(result.as_json()) if job.as_json else result.text, flush=True)
            progress.update(task, advance=len(chunk))
            progress.start()
            results += chunk
            chunks.append(total([result.stats for result in chunk], are_together=True))
            if is_stopped():
                break
    if not job.as_json:
        note(summary(total(chunks)))
    return verdict(results)


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
