"""``draftwise chat``: a conversation in the terminal, each token in its drafter's colour."""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.chat import render
from draftwise.cli import options as o
from draftwise.cli.command import command
from draftwise.cli.failures import graceful, quiet, refused_values, say
from draftwise.cli.load import check, check_chat, keeping_memory, load, no_template
from draftwise.engine.memory import hold
from draftwise.engine.options import RequestParams
from draftwise.settings import Settings
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.cli.talk import Talk
    from draftwise.speculator import Speculator
    from draftwise.train.adapt import DrafterAdapter

ChatSystem = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")]
Adapt = Annotated[
    bool,
    typer.Option("--adapt", help="Train EAGLE heads on the answers while you type (experimental)."),
]
PARAMS = RequestParams(max_new_tokens=512)
SETTINGS = Settings(target="smollm2", scope="session")
BLOCK = '"""'
HELP = f"""\
/continue         go on with an answer that was cut off or stopped
/system [TEXT]    show or change the system message
/temperature [T]  show or change the temperature; 0 is greedy
/save FILE        write the conversation; /load FILE goes on with one
/stats            how fast each turn was, and tokens by drafter
/plain            the last answer again by plain decoding, and how much slower
/reset            begin a new conversation
/quit             leave (so does Ctrl-D)
A message of several lines: paste it, or put it between {BLOCK} and {BLOCK}.
A message that begins with a slash: put a space before it.
Ctrl-C stops an answer, or clears what is typed."""


@command
def chat(
    *,
    settings: Settings = SETTINGS,
    system: ChatSystem = None,
    params: RequestParams = PARAMS,
    chat_template: o.ChatTemplate = None,
    adapt: Adapt = False,
) -> None:
    """Chat with a model in the terminal; tokens are coloured by drafter.

    Enter sends a message; without a terminal, each line of stdin is one. /help lists the commands.
    """
    with quiet():
        with refused_values():
            check(settings)
            check_chat(settings.target, chat_template)
        with hold(settings.state):
            speculator = load(settings, chat_template)
            o.check_vocabulary(params, speculator.target.vocab_size)
            if speculator.tokenizer.chat_template is None:
                raise no_template(settings.target)
            opening = [] if system is None else [{"role": "system", "content": system}]
            render([*opening, {"role": "user", "content": "Hello"}], speculator.tokenizer)
            from draftwise.cli.talk import Talk

            adapters = adapters_of(speculator) if adapt else []
            talk = Talk(speculator, opening, params)
            heard = learning_from(talk, adapters, messages()) if adapters else messages()
            with keeping_memory(speculator, settings.state):
                converse(talk, heard)


def adapters_of(speculator: Speculator) -> list[DrafterAdapter]:
    """One for each EAGLE head; DraftwiseError where there is none."""
    from draftwise.drafters.eagle import EagleDrafter
    from draftwise.nn.heads.eagle import EagleHead
    from draftwise.train.adapt import DrafterAdapter

    heads = [d.head for d in speculator.drafters if isinstance(d, EagleDrafter)]
    found = [
        DrafterAdapter(speculator.target, head) for head in heads if isinstance(head, EagleHead)
    ]
    if not found:
        raise DraftwiseError("--adapt lets EAGLE heads learn: name one, --drafter eagle:HEAD")
    return found


def learning_from(
    talk: Talk, adapters: Sequence[DrafterAdapter], messages: Iterator[str]
) -> Iterator[str]:
    """The same messages; while one is waited for, heads learn from the answers before it."""
    num_heard = 0
    while True:
        new = talk.turns[num_heard:] if num_heard <= len(talk.turns) else talk.turns
        num_heard = len(talk.turns)
        with ExitStack() as idle:
            for adapter in adapters:
                for turn in new:
                    adapter.learn_from(turn.result.prompt_tokens, turn.result.tokens)
                idle.enter_context(adapter.idle())
            message = next(messages, None)
        if message is None:
            return
        yield message


def messages() -> Iterator[str]:
    """What is typed, message by message, or the lines of stdin."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    ask = Keyboard().ask if is_terminal else lambda _: input()
    if is_terminal:
        say("/help lists the commands; Ctrl-D leaves", style="dim")
    while True:
        try:
            text = ask("\n> ")
            while text.lstrip().startswith(BLOCK) and not _is_closed(text):
                text += "\n" + ask("... ")
        except EOFError:
            return
        except KeyboardInterrupt:  # out of a block, which is in the history
            continue
        except UnicodeDecodeError as error:
            raise DraftwiseError(f"this is not UTF-8 text: {error}") from error
        yield text.strip().removeprefix(BLOCK).removesuffix(BLOCK) if _is_closed(text) else text


def _is_closed(text: str) -> bool:
    """Whether this is a whole block."""
    bare = text.strip()
    return bare.startswith(BLOCK) and bare.endswith(BLOCK) and len(bare) >= 2 * len(BLOCK)


class Keyboard:
    """A person at a terminal: a line has a history, and a pasted text is one line with breaks.

    State: whether Ctrl-C was pressed last.
    """

    def __init__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):
            import readline

            self._readline = readline
        version = getattr(self._readline, "_READLINE_RUNTIME_VERSION", 0)
        self._knows_pastes = version >= 0x801 and "libedit" not in (self._readline.__doc__ or "")
        if self._knows_pastes:
            self._readline.parse_and_bind("set enable-bracketed-paste on")
        self._was_cleared = False

    def ask(self, prompt: str) -> str:
        """What is typed after the prompt.

        Ctrl-C clears it, which the history keeps. Raises EOFError for Ctrl-D, and for Ctrl-C on an
        empty line after another; KeyboardInterrupt for one that clears a line of a block.
        """
        while True:
            try:
                text = self._read(prompt)
            except KeyboardInterrupt:
                typed = self._typed()
                if self._was_cleared and not typed:
                    sys.stdout.write("\n")
                    raise EOFError from None
                self._was_cleared = True
                if typed:
                    self._readline.add_history(typed)
                say(" (Ctrl-C again, or Ctrl-D, leaves)", style="dim")
                if not prompt.startswith("\n"):
                    raise
            else:
                self._was_cleared = False
                return text

    def _read(self, prompt: str) -> str:
        lines = [input(prompt)]
        # without bracketed paste, the lines of a pasted text are all there at once
        while not self._knows_pastes and _has_more():
            lines.append(input())
        return "\n".join(lines)

    def _typed(self) -> str:
        return "" if self._readline is None else str(self._readline.get_line_buffer())


def _has_more() -> bool:
    try:
        return bool(select.select([sys.stdin], [], [], 0.02)[0])
    except (OSError, ValueError):  # Windows selects among sockets only
        return False


def converse(talk: Talk, messages: Iterator[str]) -> None:
    """Answer each message, or do what a command says, until there are no more."""
    for text in messages:
        named = re.fullmatch(r"/([A-Za-z]+)(?:\s+(.*))?", text.rstrip(), re.DOTALL)
        if named and named[1].lower() in {"quit", "exit", "bye"}:
            return
        if not text.strip():
            continue
        try:
            with graceful() as is_stopped:
                if named:
                    obey(talk, named[1].lower(), named[2] or "", is_stopped)
                else:
                    talk.answer(text, is_stopped)
        except (DraftwiseError, OSError) as error:  # the next message may be answered
            if isinstance(error, BrokenPipeError):
                raise
            say(str(error))


def obey(talk: Talk, name: str, rest: str, is_stopped: Callable[[], bool]) -> None:
    """Do what a command says; DraftwiseError for one that does not exist, or has too much to it."""
    alone: dict[str, Callable[[], Any]] = {
        "continue": lambda: talk.go_on(is_stopped),
        "stats": talk.stats,
        "plain": talk.plain,
        "reset": talk.reset,
        "help": lambda: talk.help(HELP),
    }
    with_text: dict[str, Callable[[str], Any]] = {
        "system": talk.system,
        "temperature": talk.temperature,
        "save": talk.save,
        "load": talk.load,
    }
    if name in with_text:
        with_text[name](rest)
    elif name not in alone:
        known = ", ".join(f"/{one}" for one in [*alone, *with_text, "quit"])
        raise DraftwiseError(
            f"no command /{name}; there are: {known}. To send it as a message, put a space before "
            "it"
        )
    elif rest:
        raise DraftwiseError(
            f"/{name} takes nothing after it. To send this as a message, put a space before it"
        )
    else:
        alone[name]()
