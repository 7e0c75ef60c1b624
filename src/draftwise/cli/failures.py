"""How a command ends when it cannot go on: one line on stderr and an exit code, no traceback."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

from rich.console import Console
from rich.text import Text

from draftwise.errors import DraftwiseError
from draftwise.files import not_text

BROKEN = 1
"""Exit code where the model's numbers were not finite."""
REFUSED = 2
"""Exit code where options or input were refused, as for an option that does not exist."""
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13
NOT_WRITTEN = 74
"""Exit code where what was made could not be written (EX_IOERR of sysexits.h)."""


VOICE = SimpleNamespace(notes=True, loads=False)
"""What is printed to stderr besides warnings and errors; ``options.command`` sets it.

notes: summaries, progress, names of files that were written. loads: what is being loaded, also
where stderr is no terminal.
"""


def say(message: str, style: str = "red") -> None:
    """One message on stderr: a line for programs, wrapped between words on a terminal."""
    line = Text(" ".join(message.split()), style=style)
    console = Console(stderr=True)
    console.print(line, soft_wrap=not console.is_terminal, highlight=False)


def note(message: str) -> None:
    """As ``say``, for what ``--quiet`` silences."""
    if VOICE.notes:
        say(message, style="dim")


@contextmanager
def waiting(what: str, *, is_load: bool = False) -> Iterator[None]:
    """Around what takes seconds: a spinner on a terminal; elsewhere one line for a load."""
    console = Console(stderr=True)
    if VOICE.notes and console.is_terminal:
        with console.status(what):
            yield
        return
    if is_load and VOICE.loads:
        say(what, style="dim")
    yield


@contextmanager
def refusals() -> Iterator[None]:
    """What went wrong, as a line for people; exit code 2, 74 (disk), 130 (Ctrl-C), 141 (pipe)."""
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
    """Stdout; a reader that goes away is said as everywhere else, not as rich does it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@contextmanager
def standing_streams() -> Iterator[None]:
    """Around a whole process: text that stdout cannot encode is replaced, and all is flushed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise DraftwiseError("stdout is closed: there is nowhere to print the answer")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        yield
    finally:
        sys.stdout.flush()


@contextmanager
def refused_values() -> Iterator[None]:
    """Around set-up only: an unfit value or file there is the caller's, not a bug of ours."""
    try:
        yield
    except BrokenPipeError:
        raise
    except UnicodeDecodeError as error:
        raise DraftwiseError(str(not_text("the input", error))) from error
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise DraftwiseError(where) from error
    except ValueError as error:
        raise DraftwiseError(str(error)) from error


@contextmanager
def graceful() -> Iterator[Callable[[], bool]]:
    """Ctrl-C as a flag that is read between rounds, so that no round is torn; twice is at once."""
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
def quiet() -> Iterator[None]:
    """Our own warnings as lines on stderr, and no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=r"draftwise\b")
        warnings.showwarning = lambda message, *_, **__: say(str(message), style="yellow")
        yield


def _mute_stdout() -> None:
    """The reader is gone: what is still buffered must not fail again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
