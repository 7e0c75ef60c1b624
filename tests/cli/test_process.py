"""The command as a process: fast help, Ctrl-C, closed pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import draftwise
from cli.conftest import run_command
from cli.models_on_disk import make_target, save_model
from draftwise.cli import app, refusals

COMMAND = [sys.executable, "-m", "draftwise"]
MANY = ["--max-new-tokens", "150000", "--ignore-eos", "--preset", "plain"]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with room for minutes of text."""
    folder = tmp_path_factory.mktemp("endless")
    return save_model(folder, make_target(max_position_embeddings=200_000))


def test_speculator_imports_neither_model_code_nor_torch_compile() -> None:
    """``from draftwise import Speculator`` takes little longer than torch and the auto classes."""
    code = (
        "import sys\n"
        "from transformers.integrations import sdpa_attention\n"  # some releases load all of torch
        "from transformers import AutoModelForCausalLM\n"  # 5.17 loads all of generate with it
        "theirs = set(sys.modules)\n"
        "from draftwise import Speculator\n"
        "heavy = {'torch._dynamo', 'torch.distributed.tensor', 'sympy', 'typer', 'rich', 'vllm',"
        " 'transformers.modeling_utils', 'transformers.generation.utils', 'fastapi'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules) - theirs) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_what_needs_no_model_imports_no_torch() -> None:
    """Listings need not wait for torch; ``import draftwise`` imports nothing heavy."""
    code = (
        "import sys, draftwise\n"
        "assert not {'numpy', 'typer', 'torch'} & set(sys.modules)\n"
        "from draftwise.cli import main\n"
        "for line in ('--version', 'models'):\n"
        "    sys.argv = ['draftwise', line]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules), line"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == f"draftwise {draftwise.__version__}"


def test_ctrl_c_keeps_the_partial_object_and_the_trace(endless: Path, tmp_path: Path) -> None:
    trace, before = tmp_path / "trace.jsonl", signal.getsignal(signal.SIGINT)

    def press() -> None:
        while not (trace.exists() and trace.read_bytes().count(b"\n") > 3):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    ran = run_command("generate", "Hello", "--target", endless, *MANY, "--json", "--trace", trace)
    (answer,) = ran.objects
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    assert (ran.code, answer["finish_reason"]) == (130, "interrupted")
    assert [token for r in rounds for token in r["tokens"]] == answer["tokens"]
    assert ran.err.count("\n") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_on_a_terminal_resets_its_colours(endless: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "generate", "Hello", "--target", endless, *MANY],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = os.read(ours, 4096)  # the first letters are shown
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    shown += os.read(ours, 1 << 20)
    os.close(ours)
    assert process.returncode == 130
    assert b"\x1b[" in shown
    assert shown.rindex(b"\x1b[0m") > shown.rindex(b"\x1b[2m")  # no text stays dim
    assert b"interrupted" in err
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as end, refusals():
            print("nobody reads this", flush=True)
        assert end.value.code == 141
        print("nor that", flush=True)  # flushed by Python at exit


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which $draftwise is the command."""
    command = f"{sys.executable} -m draftwise"
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        env={**os.environ, "draftwise": command, **environment},
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("$draftwise models > /dev/full", 74, "cannot be written: No space left"),
        ("$draftwise --version > /dev/full", 74, "cannot be written: No space left"),
        ("$draftwise models >&-", 2, "stdout is closed"),
        ("$draftwise models 2>&- | head -1", 0, ""),
        ("$draftwise models | head -1; exit ${PIPESTATUS[0]}", 141, ""),
        ("$draftwise generate -n 1 <&-", 2, "stdin is empty"),
        ("$draftwise generate - -n 1 <&-", 2, "stdin is empty"),
        ("cd $(mktemp -d) && rmdir $PWD && $draftwise models", 2, "the current folder cannot be"),
        ("env -u HOME XDG_CACHE_HOME= $draftwise doctor > /dev/null", 0, ""),
    ],
)
def test_wherever_the_output_goes(line: str, code: int, said: str) -> None:
    if "/dev/full" in line and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    ran = shell(line)
    assert (ran.returncode, b"Traceback" in ran.stderr) == (code, False), ran.stderr
    assert said in ran.stderr.decode()
    assert ran.stderr.count(b"\n") == bool(said)


def test_a_terminal_that_cannot_show_a_letter_gets_another() -> None:
    program = "from draftwise.cli.failures import standing_streams as s\nwith s(): print('\u2192')"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"?\n", b"")


def test_bytes_that_are_no_text_are_refused(pair: tuple[Path, Path]) -> None:
    for line in ("$draftwise generate $'\\xff'", "printf '\\xff' | $draftwise generate"):
        ran = shell(f"{line} --target {pair[0]}", PYTHONUTF8="1")
        assert ran.returncode == 2, ran.stderr
        assert b"Traceback" not in ran.stderr
        assert re.search(rb"no valid Unicode|not UTF-8", ran.stderr)


def test_what_is_loaded_is_said_where_nobody_watches(pair: tuple[Path, Path]) -> None:
    line = ["generate", "Hello", "-n", "3", "--model", str(pair[0])]
    loud, quiet = (CliRunner().invoke(app, [*line, *more]) for more in ((), ("--quiet",)))
    # with the number of threads, unless the machine has one core
    assert loud.stderr.splitlines()[0].partition(" (")[0] == f"loading {pair[0]}"
    assert (quiet.stdout, quiet.stderr) == (loud.stdout, "")


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("draftwise gen", "generate"),
        ("draftwise generate --policy ucb", "ucb1"),
        ("draftwise generate --pre", "--preset"),
    ],
)
def test_the_shell_completes(words: str, known: str) -> None:
    program = "import sys; sys.argv = ['draftwise']; from draftwise.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "_DRAFTWISE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
    )
    assert known in ran.stdout.split()
