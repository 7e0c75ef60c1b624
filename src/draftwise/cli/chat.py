"""``draftwise chat``: a conversation in the terminal, each token in its drafter's colour."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from draftwise.chat import Message, render
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.failures import Output, graceful, note, refused_values, say, without_echo
from draftwise.cli.generate import stream
from draftwise.cli.load import check_chat, check_template, keeping_memory
from draftwise.cli.show import Pen, colours, counted, legend, summary
from draftwise.engine.options import RequestParams
from draftwise.files import local_path
from draftwise.install import hint
from draftwise.state import hold
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.engine.outputs import Result
    from draftwise.speculator import Speculator

PARAMS = RequestParams(max_new_tokens=512)
SETTINGS = o.Settings(target="smollm2", scope="session")
HELP = """\
/save FILE   write the conversation as jsonl, which generate --batch can read
/reset       begin a new conversation
/quit        leave (so does Ctrl-D)
A message that begins with a slash: put a space before it.
Ctrl-C stops an answer, or clears what is typed."""
_PROBE = {"role": "user", "content": "Hello"}


@o.command
def chat(
    *,
    settings: o.Settings = SETTINGS,
    system: str | None = option(None, "System message.", metavar="TEXT"),
    params: RequestParams = PARAMS,
    chat_template: Path | None = o.CHAT_TEMPLATE,
) -> None:
    """Chat with a model in the terminal; tokens are coloured by drafter.

    Enter sends a message; without a terminal, each line of stdin is one. /help lists the commands.
    """
    with refused_values():
        o.check(settings)
        check_chat(settings.target, chat_template)
    with hold(settings.state):
        speculator = o.load(settings, chat_template)
        o.check_vocabulary(params, speculator.target.vocab_size)
        check_template(settings.target, speculator.tokenizer)
        opening = [] if system is None else [{"role": "system", "content": system}]
        render([*opening, _PROBE], speculator.tokenizer)
        talk = Conversation(speculator, opening, params)
        with keeping_memory(speculator, settings.state):
            names = ", ".join(drafter.name for drafter in speculator.drafters)
            drafted = f"drafted by {names}" if names else "not drafted"
            for text in messages(f"{settings.target}, {drafted}"):
                if not talk.takes(text):
                    break


def messages(models: str) -> Iterator[str]:
    """What the user sends: at a terminal typed or pasted texts, else the lines of stdin."""
    ask = _terminal(models) if sys.stdin.isatty() and sys.stdout.isatty() else input
    while True:
        try:
            yield ask()
        except EOFError:
            return
        except KeyboardInterrupt:
            say("(Ctrl-D leaves)", style="dim")
        except UnicodeDecodeError as error:
            raise DraftwiseError(f"this is not UTF-8 text: {error}") from error


def _terminal(models: str) -> Callable[[], str]:
    """Asks for a message; prompt_toolkit has a history, and takes pasted lines as one message."""
    say(f"{models}; /help lists the commands; Ctrl-D leaves", style="dim")
    try:
        from prompt_toolkit import PromptSession
    except ImportError:
        with suppress(ImportError):
            import readline  # noqa: F401  # a history for ``input``
        say(f"each line is a message; for pasted texts: {hint('chat')}", style="dim")
        return lambda: input("\n> ")
    session: Any = PromptSession("\n> ")
    return lambda: str(session.prompt())


class Conversation:
    """A conversation that begins with the messages ``opening``."""

    def __init__(
        self, speculator: Speculator, opening: Sequence[Message], params: RequestParams
    ) -> None:
        self._speculator, self._opening, self._params = speculator, list(opening), params
        self._names = [drafter.name for drafter in speculator.drafters]
        self._console = Output()
        self.messages: list[Message] = list(self._opening)
        self._num_answers = 0

    def takes(self, text: str) -> bool:
        """Obey a command or answer a message; return whether the conversation goes on."""
        named = re.fullmatch(r"/([A-Za-z]+)(?:\s+(.*))?", text.rstrip(), re.DOTALL)
        name = named[1].lower() if named else ""
        if name in {"quit", "exit", "bye"}:
            return False
        try:
            if named:
                self._obey(name, named[2] or "")
            elif text.strip():
                with graceful() as is_stopped, without_echo():
                    self._answer(text, is_stopped)
        except (DraftwiseError, OSError) as error:  # the conversation continues
            if isinstance(error, BrokenPipeError):
                raise
            say(str(error))
        return True

    def _obey(self, name: str, rest: str) -> None:
        if name == "save":
            return self._save(rest)
        alone = {"reset": self._reset, "help": self._help}
        why = f"/{name} takes nothing after it. To send this"
        if name not in alone:
            why = f"no command /{name}; there are: /save, /reset, /help, /quit. To send it"
        elif not rest:
            return alone[name]()
        raise DraftwiseError(f"{why} as a message, put a space before it")

    def _answer(self, text: str, is_stopped: Callable[[], bool]) -> None:
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt, params = render(asked, self._speculator.tokenizer), self._params
        positions = self._speculator.target.max_positions
        if len(prompt.tokens) >= positions:
            raise DraftwiseError(
                f"the conversation would have {len(prompt.tokens)} tokens, and the model has "
                f"{positions} positions: shorten the message, or /reset; it was not sent"
            )
        if params.seed is not None:
            params = replace(params, seed=params.seed + self._num_answers)
        generation = self._speculator.start(prompt, replace(params, token_texts=True))
        stream(generation.outputs(), Pen(self._names, is_chat=True), is_stopped)
        (result,) = generation.results()
        self._num_answers += 1
        self.messages = [*asked, {"role": "assistant", "content": result.text}]
        note(summary(result.stats))
        self._say_why_it_ended(result, positions)

    def _say_why_it_ended(self, result: Result, positions: int) -> None:
        num = len(result.tokens)
        if result.finish_reason == "interrupted":
            say("stopped", style="yellow")
        elif result.finish_reason == "length":
            why = f"cut off after {counted(num, 'token')} (--max-new-tokens)"
            if len(result.prompt_tokens) + num >= positions:
                why = f"the model's context of {positions} tokens is full: /reset begins a new one"
            say(why, style="yellow")

    def _reset(self) -> None:
        self.messages, self._num_answers = list(self._opening), 0
        say("a new conversation", style="dim")

    def _save(self, text: str) -> None:
        if not text:
            raise DraftwiseError("/save needs the name of a file")
        file = local_path(text)
        if file.exists():
            raise DraftwiseError(f"{file} exists: name another file")
        file.write_text(json.dumps({"messages": self.messages}) + "\n", "utf-8")
        say(f"wrote {file}: {counted(len(self.messages), 'message')}", style="dim")

    def _help(self) -> None:
        self._console.print(Text(HELP))
        self._console.print(Text("drafters: ").append(legend(colours(self._names))))
