"""Errors of commands: one line on stderr and an exit code, no traceback."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console
from rich.text import Text

from draftwise.errors import DraftwiseError
from draftwise.files import not_text

BROKEN = 1  # exit code for logits that are not finite
REFUSED = 2  # exit code for invalid options or input, as in click for unknown options
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13
NOT_WRITTEN = 74  # exit code for output that could not be written (EX_IOERR of sysexits.h)

VOICE = SimpleNamespace(notes=True)
"""notes: whether stderr gets more than warnings and errors; set by ``options.command``."""


def say(message: str, style: str = "red") -> None:
    """Print a message to stderr: wrapped on a terminal, one line otherwise."""
    line = Text(" ".join(message.split()), style=style)
    console = Console(stderr=True)
    with suppress(OSError):  # a full disk behind stderr stops no answer
        console.print(line, soft_wrap=not console.is_terminal, highlight=False)


def note(message: str) -> None:
    """Like ``say``, but silenced by ``--quiet``."""
    if VOICE.notes:
        say(message, style="dim")


class Said(logging.Handler):
    """Prints what a library logs, such as its report on weights, each message once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (message := record.getMessage()) not in self._said:
            self._said.add(message)
            text = Text.from_ansi(message, style="yellow")
            Console(stderr=True).print(text, soft_wrap=True, highlight=False)


@contextmanager
def waiting(what: str, *, is_load: bool = False) -> Iterator[None]:
    """Show a spinner on a terminal; elsewhere, print one line if something is loaded."""
    console = Console(stderr=True)
    if is_load and not console.is_terminal:
        note(what)
    with console.status(what) if VOICE.notes and console.is_terminal else nullcontext():
        yield


@contextmanager
def refusals() -> Iterator[None]:
    """Print expected errors as one line and exit: 2, 74 (disk), 130 (Ctrl-C), 141 (pipe)."""
    try:
        yield
    except DraftwiseError as error:
        say(str(error))
        raise SystemExit(REFUSED) from None
    except KeyboardInterrupt:
        say("interrupted", style="yellow")
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _mute_stdout()
        raise SystemExit(BROKEN_PIPE) from None
    except OSError as error:
        _mute_stdout()
        say(f"{error.filename or 'the output'} cannot be written: {error.strerror or error}")
        raise SystemExit(NOT_WRITTEN) from None


class Output(Console):
    """Stdout; a closed pipe raises BrokenPipeError, while rich would exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@contextmanager
def standing_streams() -> Iterator[None]:
    """Make the standard streams safe for the whole process, for any encoding of stdout.

    Raises DraftwiseError for a closed stdout, and for a current folder that was deleted, in which
    torch does not start.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise DraftwiseError("stdout is closed: there is nowhere to print the answer")
    try:
        os.getcwd()
    except OSError as error:
        raise DraftwiseError(
            f"the current folder cannot be read ({error.strerror}), maybe it was deleted: change "
            "to another one"
        ) from error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        yield
    finally:
        sys.stdout.flush()


@contextmanager
def refused_values() -> Iterator[None]:
    """Convert ValueError and OSError, which input causes in set-up, to DraftwiseError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except UnicodeDecodeError as error:
        raise DraftwiseError(str(not_text("the input", error))) from error
    except FileNotFoundError as error:
        folder = Path(str(error.filename)).parent
        is_folder_there = error.filename is None or folder.is_dir()
        what = "file" if is_folder_there else f"folder {folder} for"
        raise DraftwiseError(f"there is no {what} {error.filename}") from error
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise DraftwiseError(where) from error
    except ValueError as error:
        raise DraftwiseError(str(error)) from error


@contextmanager
def graceful() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C set a flag that is read between rounds; a second Ctrl-C interrupts at once."""
    is_pressed = False

    def press(*_: object) -> None:
        nonlocal is_pressed
        if is_pressed:
            raise KeyboardInterrupt
        is_pressed = True

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: is_pressed
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def without_echo() -> Iterator[None]:
    """Keep keys pressed meanwhile, Ctrl-C among them, out of what is shown; the next prompt reads
    them.
    """
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def own_warnings() -> Iterator[None]:
    """Print warnings of draftwise and of model libraries about their users' models as lines on
    stderr; suppress all others, which are for programmers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("once", category=UserWarning, module=r"(transformers|peft)\b")
        warnings.filterwarnings("always", module=r"draftwise\b")
        warnings.showwarning = lambda message, *_, **__: say(str(message), style="yellow")
        yield


def _mute_stdout() -> None:
    """Redirect buffered output to /dev/null, so that it does not fail again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
