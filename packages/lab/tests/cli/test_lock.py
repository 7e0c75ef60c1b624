"""One process at a time per folder, and messages about unusable folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import run_command
from draftwise import DraftwiseError
from draftwise_lab.cli import train as t
from draftwise_lab.cli.options import alone_in

HOLD = (
    "import sys; from pathlib import Path; from draftwise_lab.cli.options import alone_in\n"
    "with alone_in(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(DraftwiseError, match="another draftwise is at work"), t.keeping(tmp_path):
        pass
    refusal = run_command("contest", "--out", tmp_path, "--suite", "zoo").refusal
    assert "another draftwise is at work" in refusal
    holder.kill()  # the lock is released however the process ends
    holder.communicate()
    with alone_in(tmp_path):
        pass


def test_what_differs_from_earlier_work_is_named(tmp_path: Path) -> None:
    t.claim(tmp_path / "work", {"target": "a", "training": [3.0]})
    t.claim(tmp_path / "work", {"target": "a", "training": [3.0]})
    with pytest.raises(DraftwiseError, match=r"\(training differ\)"):
        t.claim(tmp_path / "work", {"target": "a", "training": [4.0]})


def test_a_file_where_a_folder_is_wanted_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DraftwiseError, match="is a file, or lies below one"), t.keeping(folder):
            pass
