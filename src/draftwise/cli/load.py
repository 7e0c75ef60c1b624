"""Input that commands check before they load a model: prompts, templates, names of models."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise import chat, zoo
from draftwise.bench.suites import as_messages, read_items
from draftwise.chat import Message, check_unicode
from draftwise.cli.failures import NOT_WRITTEN, Said, say, waiting
from draftwise.files import TRACE_BYTES, read_text
from draftwise.nn.folder import cached, config_of, find, has_template, place
from draftwise.settings import ZOO, check_drafter
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.chat import Prompt
    from draftwise.speculator import Speculator

_TEMPLATE_BYTES = 1 << 20


def check_models(target: str, drafters: Sequence[str]) -> None:
    check_target(target)
    for spec in drafters:
        check_drafter(spec)


def check_target(target: str) -> None:
    if target == ZOO:
        zoo.target_path()
    elif zoo.is_pretrained(target):
        try:
            zoo.package().check_pieces(target)
        except DraftwiseError as error:
            raise DraftwiseError(f"{error}. Or name another model: --target MODEL") from error
    elif Path(found := find(target)).is_dir():
        config_of(Path(found))


def check_chat(target: str, template: Path | None = None) -> None:
    """Reject an invalid template, or a target without one, if its files are local."""
    if template is not None:
        read_template(template)
    elif not zoo.is_pretrained(target):
        found = Path(zoo.target_path() if target == ZOO else place(target))
        folder = found if found.is_dir() else cached(target)
        if folder is None or has_template(folder):
            return
        if "base_model_name_or_path" not in config_of(folder):  # its base may have a template
            check_template(target)


def check_template(target: str, tokenizer: Any = None) -> None:
    if tokenizer is None or not chat.has_template(tokenizer):
        raise DraftwiseError(
            f"{target} has no chat template: it may be a base model, which continues text. Give "
            "the prompt as text (draftwise generate without --chat), name an instruct model such "
            "as --target smollm2, or give a template with --chat-template FILE"
        )


def read_template(file: Path) -> str:
    """The text of a chat template; DraftwiseError if it cannot be read or parsed."""
    from jinja2 import Environment, TemplateError, TemplateSyntaxError
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012  # marks the assistant's text for training

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        text = read_text(file, _TEMPLATE_BYTES)
        Environment(extensions=[GenerationTag, "jinja2.ext.loopcontrols"]).from_string(text)
    except TemplateError as error:
        where = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise DraftwiseError(f"--chat-template {file}{where}: {error}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DraftwiseError(f"--chat-template {file}: {why}") from None
    return text


@contextmanager
def keeping_memory(speculator: Speculator, state: Path | None) -> Iterator[None]:
    """Save the learned state, however the block ends; exit code 74 if only saving fails."""
    ends_well = False
    try:
        yield
        ends_well = True
    finally:
        try:
            if state is not None:
                speculator.memory.save(state)
        except OSError as error:
            why = error.strerror or error
            say(f"{state} cannot be written ({why}): what was learnt is lost", style="yellow")
            if ends_well:
                raise SystemExit(NOT_WRITTEN) from None


@contextmanager
def loading(what: str, threads: int) -> Iterator[None]:
    """Import torch and load something, with a spinner; what transformers logs is said once."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    used = f" (on {threads} of {cores} cores; --threads N)" if threads < (cores or 1) else ""
    with waiting(f"loading {what}{used}", is_load=True):
        import torch
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_warning()
        logging.disable_default_handler()
        logging.add_handler(handler := Said())
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            logging.remove_handler(handler)
            logging.enable_default_handler()
            logging.set_verbosity_error()


@dataclass(frozen=True, slots=True)
class Given:
    """A prompt with its file and line for error messages (empty for a single prompt)."""

    prompt: str | Sequence[Message]
    where: str = ""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str)

    def as_chat(self, system: str | None = None) -> Given:
        """The prompt as messages; DraftwiseError for a second system message."""
        messages = as_messages(self.prompt)
        if system is not None:
            if any(message.get("role") == "system" for message in messages):
                said = f"{self.where}: there is a system message; leave out --system"
                raise DraftwiseError(said)
            messages = [{"role": "system", "content": system}, *messages]
        return replace(self, prompt=messages)

    def encoded(self, speculator: Speculator) -> Prompt:
        from draftwise.engine.options import encode_all

        try:
            return encode_all(self.prompt, speculator.tokenizer, speculator.target)[0]
        except DraftwiseError as error:
            raise DraftwiseError(f"{self.where}: {error}" if self.where else str(error)) from error


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """A single prompt from the argument, a file or stdin, without a trailing line break."""
    if prompt is not None and file is not None:
        raise DraftwiseError("give the prompt as an argument or with --file, not both")
    if prompt is not None and prompt != "-":
        return _checked(prompt, "the prompt")
    if file is not None:
        return _checked(read_text(file, TRACE_BYTES, pipes=True).removesuffix("\n"), str(file))
    if prompt is None and sys.stdin.isatty():
        raise DraftwiseError("no prompt: give it as an argument, with --file, or on stdin")
    return _checked(sys.stdin.read().removesuffix("\n"), "the prompt on stdin")


def read_batch(file: Path, is_chat: bool = False, system: str | None = None) -> list[Given]:
    """The prompts of a file (``bench.suites``); of several turns, the first.

    is_chat: texts become messages of a user. system: a message before them, which makes them chats.
    """
    found = [Given(item.first, item.where) for item in read_items(file)]
    return [given.as_chat(system) for given in found] if is_chat or system is not None else found


def _checked(prompt: str, where: str) -> str:
    if not prompt:
        raise DraftwiseError(f"{where} is empty: there is nothing to continue")
    check_unicode(where, prompt)
    return prompt
