"""Runs the quick commands and code blocks of the README and the docs from top to bottom."""

from __future__ import annotations

import ast
import json
import re
import signal
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


def page_of(*typed: str, code: str, language: str = "bash") -> list[docs_typed.Command]:
    declared = "\n".join(["<!-- typed:", *typed, "-->\n"]) if typed else ""
    return docs_typed.commands(f"# Page\n\n{declared}\n```{language}\n{code}\n```\n")


def test_commands_are_typed_one_by_one_and_share_a_shell(typed: docs_typed.Typist) -> None:
    code = (
        "NAME=kept\necho $NAME \\\n more > file\ncat > lines <<'END'\na\nEND\ngrep kept file lines"
    )
    commands = page_of(code=code)
    assert [command.line for command in commands] == [5, 6, 8, 11]
    with typed:
        assert [typed.type(command).result for command in commands] == ["ok"] * 4


def test_a_command_that_fails_is_told_from_one_that_works(typed: docs_typed.Typist) -> None:
    wrong = page_of(code="echo no such word; false\nexit 3\ntrue")
    wrong += page_of(code="print(undefined)", language="python")
    with typed:
        rows = [typed.type(command) for command in wrong]
    assert [row.result[:6] for row in rows] == ["FAILED", "FAILED", "ok", "FAILED"]
    assert "no such word" in rows[0].output
    assert "NameError" in rows[3].output


def test_python_blocks_share_their_names(typed: docs_typed.Typist) -> None:
    first = page_of(code="x = 3", language="python")
    with typed:
        for command in first + page_of(code="assert x == 3", language="python"):
            assert typed.type(command).result == "ok"


def test_what_is_declared_beside_a_block(typed: docs_typed.Typist) -> None:
    commands = page_of(
        "MODEL=zoo; slow @ sleep; skip needs vLLM @ vllm",
        "$ touch ready-for-MODEL",
        code="test -e ready-for-zoo # MODEL, not MODELS\nsleep 9\nvllm serve MODEL",
    )
    assert [c.code.strip() for c in commands][1] == "test -e ready-for-zoo # zoo, not MODELS"
    assert [docs_typed.is_quick(command) for command in commands] == [True, True, False, False]
    with typed:
        results = [typed.type(commands[i]).result for i in (0, 1, 3)]
    assert results == ["ok", "ok", "skipped: needs vLLM"]


def test_what_is_said_of_a_command_counts_before_what_is_said_of_its_block() -> None:
    code = "make demo\ndraftwise serve\ndraftwise bench"
    commands = page_of("slow; until serving @ draftwise serve; long @ draftwise bench", code=code)
    assert [command.treatment for command in commands] == ["slow", "until", "long"]
    assert not any(map(docs_typed.is_quick, commands))


def test_a_server_is_stopped_once_it_serves(typed: docs_typed.Typist) -> None:
    code = 'python -c \'import time; print("it is " + "ready", flush=True); time.sleep(99)\''
    (serves,) = page_of("until it is ready", code=code)
    (fails,) = page_of("until it is ready", code="false")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # like `&` and nohup
    try:
        with typed:
            assert typed.type(serves).result == "ok"
            assert typed.type(fails).result.startswith("FAILED")
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_options_of_a_long_command_are_looked_up(typed: docs_typed.Typist) -> None:
    right, wrong, unknown = page_of(
        "long",
        code="draftwise generate --policy goodput\ndraftwise chat --nonesuch 3\npython nothere.py",
    )
    with typed:
        assert typed.type(right).result == "options exist"
        assert typed.type(wrong).result == "FAILED: no option --nonesuch"
        assert typed.type(unknown).result.startswith("FAILED: python nothere.py --help")


@pytest.mark.parametrize("page", ["```\nmake demo\n```\n", "```bash\necho 'open\n```\n"])
def test_a_block_says_what_it_is_and_is_whole(page: str) -> None:
    with pytest.raises(ValueError, match=r"mark the block|no whole command"):
        docs_typed.commands(page)
    with pytest.raises(ValueError, match="right before its block"):
        docs_typed.commands("<!-- typed: slow -->\n\nText.\n\n```bash\ntrue\n```\n")
    with pytest.raises(ValueError, match="nothing that can be declared"):
        page_of("slowly", code="true")


def test_a_run_resumes_and_says_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\necho again >> ../count\n```\n")
    run = docs_typed.Run(tmp_path / "work", quick=True)
    assert run.page(page) == run.page(page) == {"ok": 1}
    assert (tmp_path / "work" / "count").read_text().split() == ["again"]
    page.write_text("```bash\necho again >> ../count\nfalse\n```\n")
    assert run.page(page) == run.page(page) == {"FAILED": 1, "ok": 1}
    assert (tmp_path / "work" / "count").read_text().split() == ["again"] * 3
    assert "page.md:3" in capsys.readouterr().out


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
