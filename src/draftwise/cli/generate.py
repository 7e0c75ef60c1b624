"""``draftwise generate``: one prompt or many, text as it comes or as json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from draftwise.cli import options as o
from draftwise.cli.command import command
from draftwise.cli.failures import quiet, refused_values
from draftwise.cli.load import (
    check,
    check_chat,
    keeping_memory,
    load,
    no_template,
    tell_of_cuts,
)
from draftwise.cli.prompts import Given, as_chat, read_batch, read_prompt
from draftwise.engine.memory import hold
from draftwise.engine.options import RequestParams
from draftwise.settings import Settings
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.chat import Prompt
    from draftwise.engine.records import TraceWriter
    from draftwise.speculator import Speculator


@command
def generate(
    *,
    prompt: o.Prompt = None,
    settings: Settings,
    params: RequestParams,
    is_chat: o.AsChat = False,
    system: o.System = None,
    file: o.PromptFile = None,
    batch: o.BatchFile = None,
    as_json: o.AsJson = False,
    chat_template: o.ChatTemplate = None,
    batch_size: o.BatchSize = 8,
    trace: o.Trace = None,
    aliases: o.Aliases,
) -> None:
    """Complete a prompt with speculative decoding."""
    with quiet():
        with refused_values():
            settings = aliases.applied(settings)
            target = settings.target
            prompts = _prompts(prompt, file, batch, batch_size)
            if is_chat or system is not None:
                prompts = [as_chat(given, system) for given in prompts]
            check(settings)
            if any(not isinstance(given.prompt, str) for given in prompts):
                check_chat(target, chat_template)
            elif chat_template is not None:
                raise DraftwiseError("--chat-template is for --chat, or prompts with `messages`")
            _check_writable(trace)
        with hold(settings.state):
            speculator = load(settings, chat_template)
            o.check_vocabulary(params, speculator.target.vocab_size)
            from draftwise.cli.answer import Job, run_batch, run_single
            from draftwise.engine.records import TraceWriter

            # all prompts before any answer, and before an earlier trace is overwritten
            texts = [_encoded(given, speculator, target) for given in prompts]
            tell_of_cuts(params.max_new_tokens, texts, speculator)
            with refused_values():
                writer = None if trace is None else TraceWriter(trace)
            job = Job(speculator, params, writer, as_json)
            with keeping_memory(speculator, settings.state), _closing(writer):
                if batch is None:
                    code = run_single(job, texts[0])
                else:
                    code = run_batch(job, texts, batch_size)
    raise SystemExit(code)


def _prompts(
    prompt: str | None, file: Path | None, batch: Path | None, batch_size: int
) -> list[Given]:
    """The prompts, wherever they come from."""
    if batch is None:
        prompts = [Given(read_prompt(prompt, file))]
    elif prompt is not None or file is not None:
        raise DraftwiseError("give one prompt, or many with --batch, not both")
    else:
        prompts = read_batch(batch)
    if batch_size < 1:
        raise DraftwiseError(f"--batch-size {batch_size}: it must be 1 or more")
    return prompts


def _encoded(given: Given, speculator: Speculator, target: str) -> Prompt:
    """One prompt as token ids; DraftwiseError names the line of a file."""
    from draftwise.engine.prompts import encode_all

    if not isinstance(given.prompt, str) and speculator.tokenizer.chat_template is None:
        raise no_template(target)
    try:
        return encode_all(given.prompt, speculator.tokenizer, speculator.target)[0]
    except DraftwiseError as error:
        if given.where:
            raise DraftwiseError(f"{given.where}: {error}") from error
        raise


@contextmanager
def _closing(writer: TraceWriter | None) -> Iterator[None]:
    """Whatever ends the work, the trace is closed."""
    try:
        yield
    finally:
        if writer is not None:
            writer.close()


def _check_writable(trace: Path | None) -> None:
    """Refuse a trace that cannot be written before any work; what is there stays for now."""
    if trace is not None:
        trace.open("a").close()
