"""Runs the quick commands and code blocks of the README and the docs from top to bottom."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import docs_typed
import pytest

from draftwise.integrations.vllm.options import parse_options

QUICK = {
    page: quick
    for page in docs_typed.pages()
    if (
        quick := [c for c in docs_typed.commands(page.read_text("utf-8")) if docs_typed.is_quick(c)]
    )
}
VLLM = docs_typed.ROOT / "docs" / "tutorials" / "vllm.md"


@pytest.fixture
def typed(tmp_path: Path) -> docs_typed.Typist:
    return docs_typed.Typist(docs_typed.linked(tmp_path / "page"), docs_typed.here(tmp_path))


@pytest.mark.parametrize(
    "page", QUICK, ids=lambda page: page.relative_to(docs_typed.ROOT).as_posix()
)
def test_a_page_works_as_it_is_typed(page: Path, typed: docs_typed.Typist) -> None:
    with typed:
        for command in QUICK[page]:
            row = typed.type(command)
            assert row.result == "ok", f"{page}:{row.line}: {row.command}\n{row.output}"


def test_every_tutorial_is_typed_whole() -> None:
    for page in sorted((docs_typed.ROOT / "docs" / "tutorials").glob("*.md")):
        commands = docs_typed.commands(page.read_text("utf-8"))
        assert page == VLLM or len(QUICK[page]) >= len(commands) - 1 >= 2  # all but `pip install`


def test_a_command_that_fails_is_told_from_one_that_works(typed: docs_typed.Typist) -> None:
    page = "```bash\necho no such word; false\ntrue\n```\n\n```python\nprint(undefined)\n```\n"
    with typed:
        rows = [typed.type(command) for command in docs_typed.commands(page)]
    assert [row.result[:6] for row in rows] == ["FAILED", "ok", "FAILED"]
    assert ("no such word" in rows[0].output, "NameError" in rows[2].output) == (True, True)


def test_a_long_command_whose_program_is_unknown_fails_alone(typed: docs_typed.Typist) -> None:
    with typed:
        row = typed.type(docs_typed.Command(1, "bash", "cd packages/lab", "long"))
    assert row.result.startswith("FAILED: cd --help: ")


def test_a_run_that_is_ended_ends_its_commands(tmp_path: Path) -> None:
    page, told = tmp_path / "page.md", tmp_path / "pid"
    page.write_text(f"```bash\necho $$ > {told}~; mv {told}~ {told}; sleep 600\n```\n")
    script = docs_typed.ROOT / "scripts" / "docs_typed.py"
    run = subprocess.Popen([sys.executable, script, "--quick", "--work", tmp_path / "work", page])
    end = time.monotonic() + 60
    while not told.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    run.terminate()
    run.wait(60)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_server_that_ends_well_after_ctrl_c_is_ok(
    typed: docs_typed.Typist, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = "trap 'sleep 0.2; exit 0' INT; echo serving; while :; do sleep 0.01; done"
    page = f'<!-- typed: until serving -->\n\n```bash\nbash -c "{loop}"\nfalse\n```\n'
    monkeypatch.setattr(docs_typed, "time", Impatient)
    with typed:
        rows = [typed.type(command) for command in docs_typed.commands(page) for _ in range(3)]
    assert [row.result for row in rows] == ["ok"] * 3 + ["FAILED: exit status 1"] * 3


class Impatient:
    """``time`` for a loop that looks again without a pause, which sees every state of a file."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def sleep(_: float) -> None: ...


def test_the_options_shown_for_vllm_are_options() -> None:
    """The options that the vLLM page shows are valid; ``make test-vllm`` runs the rest."""
    page = VLLM.read_text("utf-8")
    (shown,) = re.findall(r"--additional-config '(.*?)'", page)
    parse_options(json.loads(shown)["draftwise"])
    code = next(c.code for c in docs_typed.commands(page) if c.language == "python")
    given = [x for x in ast.walk(ast.parse(code)) if isinstance(x, ast.keyword)]
    (config,) = (x for x in given if x.arg == "additional_config")
    assert parse_options(ast.literal_eval(config.value)["draftwise"]).state is None


def declared_options(file: Path) -> set[str]:
    """A benchmark's options, from the keywords of ``run(...)`` and from ``add_argument``."""
    found = {"--part", "--out", "--help"}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"run", "options", "parse"}:
            found |= {"--" + each.arg.replace("_", "-") for each in node.keywords if each.arg}
        if isinstance(node, ast.Constant) and str(node.value).startswith("--"):
            found.add(node.value)
    return found


def test_the_benchmarks_have_the_options_that_pages_name() -> None:
    """Benchmarks declare the options that pages use; ``make docs-typed`` asks each ``--help``."""
    folder, num = docs_typed.ROOT / "packages" / "lab" / "benchmarks", 0
    shared = set[str]().union(*map(declared_options, (folder / "shared").glob("*.py")))
    for page in docs_typed.pages():
        for command in docs_typed.commands(page.read_text("utf-8")):
            words = command.code.partition("#")[0].split()
            if words[:3] != ["python", "-m", "benchmarks"] or len(words) < 4:
                continue
            given = {word.partition("=")[0] for word in words if word.startswith("--")}
            unknown = given - shared - declared_options(folder / f"{words[3]}.py")
            assert not unknown, f"{page.name}:{command.line}: {words[3]} has no {unknown}"
            num += 1
    assert num > 20
