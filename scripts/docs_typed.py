"""Types every command and Python block of the README and the docs as a reader would, top to bottom.

    python scripts/docs_typed.py                     # all, in a fresh clone and a fresh environment
    python scripts/docs_typed.py README.md           # some pages
    python scripts/docs_typed.py --quick             # three minutes, in this environment

A page is typed in a folder, a bash and a Python of its own; pages share the environment, so that
what the README installs is there. What is typed is in blocks marked ``bash``, ``console`` (lines
after ``$``; the rest is output) and ``python``; ``text`` is only shown. A comment before a block
declares what a reader knows and a script does not, items separated by semicolons or lines:

    <!-- typed: MODEL=zoo; slow -->

    WORD=VALUE         what a placeholder stands for, from here to the end of the page
    slow               takes minutes: not with --quick
    long               takes hours: not run; its options are looked up in its --help, and Python
                       is compiled
    skip REASON        not run
    until TEXT         a server: done when it prints TEXT, then interrupted
    ... @ START        only the commands that begin like this, whatever is said of the others
    $ COMMAND          typed before the block

Prints a line a command and a table of pages; ends with 1 if one failed. A run that was interrupted
goes on with the pages that it had not finished.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = {"bash", "console", "python"}
SHOWN = {"text", "json", "jinja"}
QUICK_S, LONGEST_S = 180, 900
_BLOCK = re.compile(
    r"(?:^<!-- typed:(?P<typed>(?:(?!-->).)*)-->\n\s*)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PYTHON = """
import json, os, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    name, code = json.loads(line)
    failed = 0
    try:
        exec(compile(code, name, "exec"), names)
    except BaseException:
        traceback.print_exc()
        failed = 1
    sys.stdout.flush()
    open(os.environ["DONE"] + "~", "w").write(str(failed))
    os.replace(os.environ["DONE"] + "~", os.environ["DONE"])
"""


def pages() -> list[Path]:
    """The pages in order: the README first, since it installs."""
    first = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
    docs = sorted(
        (ROOT / "docs").rglob("*.md"), key=lambda page: ("tutorials" not in str(page), page)
    )
    return [first[0], *docs, *first[1:], *sorted((ROOT / "packages").glob("*/README.md"))]


@dataclass(frozen=True)
class Command:
    """A shell command or a Python block to run, and how to treat it.

    ``treatment`` is empty, ``slow``, ``long``, ``skip`` or ``until``, with its ``argument``.
    """

    line: int
    language: str
    code: str
    treatment: str = ""
    argument: str = ""


@dataclass(frozen=True)
class Row:
    """The outcome of a command. ``result`` is ok, FAILED, or says why it was not run."""

    line: int
    command: str
    seconds: float
    result: str
    output: str = ""

    @classmethod
    def of(cls, command: Command, result: str, seconds: float = 0.0, output: str = "") -> Row:
        shown = command.code.strip().partition("\n")[0].rstrip(" \\")
        return cls(command.line, shown, round(seconds, 1), result, output)


def is_quick(command: Command) -> bool:
    """Whether the command runs with ``--quick``: in a prepared environment, within seconds.

    Servers do not: they need their port.
    """
    is_setup = re.match(r"(pip|make)\b", command.code) is not None
    return not is_setup and not command.treatment


@dataclass
class Declared:
    """The items of a page's comments so far, and those of one block's comment."""

    words: dict[str, str] = field(default_factory=dict)

    def read(self, text: str) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The commands before the block, and (treatment, argument, start) of the other items."""
        before, items = list[str](), list[tuple[str, str, str]]()
        for line in text.strip().splitlines():
            if line.startswith("$ "):
                before.append(line[2:])
                continue
            for item in filter(None, map(str.strip, line.split(";"))):
                what, _, start = item.partition(" @ ")
                name, _, argument = what.partition(" ")
                if name in {"slow", "long", "skip", "until"}:
                    items.append((name, argument, start))
                elif re.fullmatch(r"[\w/.-]+=.+", item):
                    word, _, value = item.partition("=")
                    self.words[word] = value
                else:
                    raise ValueError(f"nothing that can be declared: {item!r}")
        return before, items

    def filled(self, code: str) -> str:
        for word, value in self.words.items():
            code = re.sub(rf"(?<![\w/.]){re.escape(word)}(?![\w/])", lambda _, v=value: v, code)
        return code


def blocks(text: str) -> Iterator[tuple[int, str, str, str]]:
    """First line, language, code and comment of each fenced block of a page."""
    declared = len(re.findall(r"^<!-- typed:", text, re.MULTILINE))
    if declared != sum(found["typed"] is not None for found in _BLOCK.finditer(text)):
        raise ValueError("a comment <!-- typed: ... --> stands right before its block")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        yield line, found["language"], found["code"], found["typed"] or ""


def commands(text: str) -> list[Command]:
    """The commands of a page. Raises ValueError for a block that is not declared properly."""
    found, declared = list[Command](), Declared()
    for first, language, code, typed in blocks(text):
        if language not in LANGUAGES | SHOWN:
            raise ValueError(
                f"line {first}: mark the block {' or '.join(sorted(LANGUAGES))}, or text"
            )
        before, items = declared.read(typed)
        if language in SHOWN:
            continue
        whole = next(((name, said) for name, said, start in items if not start), ("", ""))
        treated_before = {"long": ("skip", "long"), "until": ("", "")}.get(whole[0], whole)
        found += [Command(first, "bash", declared.filled(line), *treated_before) for line in before]
        pieces = [(0, code)] if language == "python" else _lines(code, language == "console")
        for offset, piece in pieces:
            language = "python" if language == "python" else "bash"
            treated = _treated(piece, items)
            found.append(Command(first + offset, language, declared.filled(piece), *treated))
    return found


def _treated(code: str, items: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """The treatment of the command's longest declared start, or that of the whole block."""
    found = [(len(start), name, arg) for name, arg, start in items if code.startswith(start)]
    return max(found, default=(0, "", ""), key=lambda one: one[0])[1:]


def _lines(code: str, is_console: bool) -> Iterator[tuple[int, str]]:
    """The commands of a block, each as many lines as bash needs, and where they begin."""
    held, start = "", 0
    for number, line in enumerate(code.splitlines()):
        if not held:
            start = number
            if not line.strip() or line.startswith("#") or (is_console and line[:2] != "$ "):
                continue
            line = line[2:] if is_console else line
        held += f"{line}\n"
        checked = subprocess.run(["bash", "-n"], input=held, capture_output=True, text=True)
        if not line.endswith("\\") and checked.returncode == 0 and not checked.stderr:
            yield start, held
            held = ""
    if held:
        raise ValueError(f"this is no whole command: {held}")


class Session:
    """A bash or a Python in which the commands of a page run one after another."""

    def __init__(
        self, program: list[str], folder: Path, env: dict[str, str], private: Path
    ) -> None:
        self._is_bash = program[0] == "bash"
        self._done = private / f"{Path(program[0]).name}.done"
        self.log = private / f"{Path(program[0]).name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                program,
                cwd=folder,
                env=env | {"DONE": str(self._done)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # commands started with `&` or nohup ignore SIGINT: their servers would never end
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def type(self, command: Command, longest_s: float) -> str:
        """Run a command to its end; returns how it failed, or nothing."""
        until = command.argument if command.treatment == "until" else ""
        self._done.unlink(missing_ok=True)
        began = self.log.stat().st_size
        self._send(command, in_background=bool(until))
        end = time.monotonic() + longest_s
        while not self._done.exists():
            if until and until in self.log.read_bytes()[began:].decode(errors="replace"):
                until = ""
                stops = b'touch "$DONE.stops"; kill -INT -- -$!; wait $!; rm "$DONE.stops"\n'
                self._write(stops + b'echo 0 > "$DONE~"; mv "$DONE~" "$DONE"\n')
            if self._process.poll() is not None:
                return "ended the session"
            if time.monotonic() > end:
                return f"took more than {longest_s:.0f} s"
            time.sleep(0.05)
        status = self._done.read_text().strip()
        return "" if status == "0" else f"exit status {status}"

    def _send(self, command: Command, *, in_background: bool) -> None:
        if not self._is_bash:
            self._write(json.dumps([f"line {command.line}", command.code]).encode() + b"\n")
            return
        code = f"{{\n{command.code}\n}} </dev/null"
        done = 'echo $? > "$DONE~"; mv "$DONE~" "$DONE"\n'
        if in_background:  # job control gives the command a process group, which SIGINT reaches
            before = 'echo 1 > "$DONE~"; mv "$DONE~" "$DONE"'  # it was interrupted
            ended = f'test -e "$DONE.stops" || {{ {before}; }}'
            code, done = f"set -m; {{ {code}\n{ended}; }} &\nset +m", ""
        self._write(f"{code}\n{done}".encode())

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; the caller will notice
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def close(self) -> None:
        """End the session and its background processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Typist:
    """Runs one page's commands in ``folder``; logs are in a folder next to it."""

    def __init__(self, folder: Path, env: dict[str, str], longest_s: float = LONGEST_S) -> None:
        self._folder, self._longest_s = folder, longest_s
        self._private = folder.parent / f"{folder.name}.logs"
        self._private.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._env, self._shared = {"PORT": str(free.getsockname()[1])} | env, env
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Typist:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._sessions.values():
            session.close()

    def type(self, command: Command) -> Row:
        began, output = time.monotonic(), ""
        if command.treatment == "skip":
            result = f"skipped: {command.argument}"
        elif command.treatment == "long":
            result = self._looked_up(command)
        else:
            problem, output = self._ran(command)
            result = f"FAILED: {problem}" if problem else "ok"
        return Row.of(command, result, time.monotonic() - began, output)

    def _looked_up(self, command: Command) -> str:
        if command.language == "python":
            compile(command.code, "block", "exec")
            return "compiles"
        return unknown_options(command.code, self._shared) or "options exist"

    def _ran(self, command: Command) -> tuple[str, str]:
        name = command.language
        if name not in self._sessions:
            python = shutil.which("python", path=self._env["PATH"]) or sys.executable
            program = ["bash", "-uo", "pipefail"] if name == "bash" else [python, "-uc", _PYTHON]
            self._sessions[name] = Session(program, self._folder, self._env, self._private)
        session = self._sessions[name]
        before = session.log.stat().st_size
        problem = session.type(command, self._longest_s)
        if problem and not problem.startswith("exit"):
            self._sessions.pop(name).close()
        output = session.log.read_bytes()[before:].decode(errors="replace")
        return problem, output[-2000:] if problem else ""


def unknown_options(code: str, env: dict[str, str]) -> str:
    """FAILED and the options of a command that its program does not know, or nothing."""
    words = shlex.split(code, comments=True)
    if words[0] == "make":
        line = ["make", "-n", *words[1:]]
    elif words[0] == "draftwise":  # with the words that name a command
        line = [words[0], *[word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)], "--help"]
    else:
        program = next(i for i, word in enumerate(words) if not word.startswith(("python", "-m")))
        line = [*words[: program + 1 + (words[program] == "benchmarks")], "--help"]
    status, printed = _help(tuple(line), tuple(env.items()))
    if status:
        return f"FAILED: {shlex.join(line)}: {printed.strip()[-300:]}"
    given = sorted({found[0] for word in words if (found := re.match(r"--\w[\w-]*", word))})
    missing = [name for name in given if words[0] != "make" and name not in printed]
    return f"FAILED: no option {', '.join(missing)}" if missing else ""


@cache
def _help(line: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> tuple[int, str]:
    """Exit status and output; cached per program, since some take long to start."""
    wide = dict(env) | {"COLUMNS": "300"}
    both = subprocess.STDOUT
    try:
        ran = subprocess.run(
            line, cwd=ROOT, env=wide, stdout=subprocess.PIPE, stderr=both, text=True
        )
    except OSError as error:  # no such program: a failure of this command, not of the run
        return 127, str(error)
    return ran.returncode, ran.stdout


def here(work: Path) -> dict[str, str]:
    """An environment in which this interpreter and this checkout are used by name."""
    programs = work / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, module in {"draftwise": "-m draftwise", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}


def linked(folder: Path) -> Path:
    """A folder of links that looks like a checkout, in which pages can leave files."""
    folder.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


def fresh(work: Path) -> dict[str, str]:
    """A new virtual environment with the other variables of a reader's shell."""
    if not (work / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    return os.environ | {
        "PATH": f"{work / 'venv' / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(work / "venv"),
        "DRAFTWISE_CACHE": str(work / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_NO_COMPILE": "1",
        "PIP_QUIET": "1",
    }


def cloned(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
    return folder


class Run:
    """A run over pages, which stores the results of each page in ``work``."""

    def __init__(self, work: Path, *, quick: bool, longest_s: float = LONGEST_S) -> None:
        self._work, self._quick, self._longest_s = work, quick, longest_s
        work.mkdir(parents=True, exist_ok=True)
        self._env = here(work) if quick else fresh(work)
        self._end = time.monotonic() + QUICK_S
        self._head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True)

    def page(self, page: Path) -> Counter[str]:
        """Run a page unless this revision's run did; print its rows and count the results."""
        name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
        kept = self._work / f"{name.replace('/', '_')}.json"
        state = hashlib.sha256(self._head.stdout + page.read_bytes()).hexdigest()
        rows = [] if (known := _read(kept, state)) is None else known
        for row in rows or self._typed(page, self._work / kept.stem.removesuffix(".md")):
            place = f"{name}:{row.line}"
            print(
                f"{place:34} {row.seconds:7.1f} s  {row.command[:70]:70}  {row.result}", flush=True
            )
            if row.output:
                print("    | " + "\n    | ".join(row.output.strip().splitlines()[-15:]))
            rows = rows if known else [*rows, row]
        kept.write_text(
            json.dumps({"state": state, "rows": [asdict(row) for row in rows]}, indent=1)
        )
        return Counter(row.result.partition(":")[0] for row in rows)

    def _typed(self, page: Path, folder: Path) -> Iterator[Row]:
        typed = commands(page.read_text("utf-8"))
        if not any(map(is_quick, typed)) if self._quick else not typed:
            return
        shutil.rmtree(folder, ignore_errors=True)
        copied = (linked if self._quick else cloned)(folder)
        with Typist(copied, self._env, self._longest_s) as typist:
            for command in typed:
                if self._quick and not is_quick(command):
                    yield Row.of(command, "skipped: not quick")
                elif self._quick and time.monotonic() > self._end:
                    yield Row.of(command, "skipped: the time is over")
                else:
                    yield typist.type(command)


def _read(kept: Path, state: str) -> list[Row] | None:
    """The rows of a page that ran to its end without a failure in this state, else None."""
    try:
        known = json.loads(kept.read_text("utf-8"))
    except OSError:
        return None
    rows = [Row(**row) for row in known["rows"]]
    is_good = known["state"] == state and not any(row.result[:6] == "FAILED" for row in rows)
    return rows if is_good and rows else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, help="only these")
    parser.add_argument("--quick", action="store_true", help="three minutes, in this environment")
    parser.add_argument("--work", type=Path, default=ROOT / ".docs-typed", help="what a run keeps")
    parser.add_argument(
        "--longest", type=float, default=LONGEST_S, help="seconds that a command may take"
    )
    options = parser.parse_args()
    # a session that outlives its run would report its command as done to the next run
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = options.work.resolve() / ("quick" if options.quick else "full")
    run = Run(work, quick=options.quick, longest_s=options.longest)
    totals = Counter[str]()
    for page in [page.resolve() for page in options.pages] or pages():
        totals += run.page(page)
    print(", ".join(f"{num} {what}" for what, num in sorted(totals.items())))
    sys.exit(1 if totals["FAILED"] else 0)


if __name__ == "__main__":
    main()
