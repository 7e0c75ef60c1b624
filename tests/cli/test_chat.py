"""``draftwise chat``: turns, commands, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chatting import TEMPLATE, save_chat_model
from cli.conftest import Run, run_command
from draftwise import Speculator


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def chat(folder: Path) -> Run:
    def run(*args: object, input_: str | None = None) -> object:
        return run_command("chat", "--target", folder, "--max-new-tokens", 12, *args, input_=input_)

    return run


def test_turns_say_what_generate_says_of_the_conversation(chat: Run, folder: Path) -> None:
    speculator = Speculator.from_pretrained(folder)
    opening = {"role": "system", "content": "Be short."}
    messages: list[dict[str, str]] = [opening]
    said = []
    for text in ("Hello", "And now?"):
        messages.append({"role": "user", "content": text})
        said.append(speculator.generate(messages, max_new_tokens=12).text)
        messages.append({"role": "assistant", "content": said[-1]})
    fresh = [opening, {"role": "user", "content": "Hello"}]
    assert speculator.generate(fresh, max_new_tokens=12).text == said[0]
    ran = chat("--system", "Be short.", input_="Hello\n\nAnd now?\n/reset\nHello\n/quit\nnever\n")
    assert (ran.code, ran.out) == (0, "".join(text + "\n" for text in [*said, said[0]]))
    assert ran.err.count("tok/s") == 3
    assert "a new conversation" in ran.err


def test_commands(chat: Run) -> None:
    ran = chat(input_="Hello\n/nonsense\n/help\n")
    assert ran.code == 0
    assert "tok/s" in ran.err
    assert "no command /nonsense" in ran.err
    for word in ("lookup", "Ctrl-D"):
        assert word in ran.out


def test_a_conversation_that_is_too_long_goes_on_without_the_message(chat: Run) -> None:
    ran = chat(input_="x" * 500 + "\nHello\n")
    assert ran.code == 0
    assert "positions" in ran.err
    assert ran.out == chat(input_="Hello\n").out


def test_a_cut_off_answer_says_so(folder: Path) -> None:
    ran = run_command("chat", "--target", folder, "-n", 8, input_="Hello\n")
    assert "cut off after 8 tokens (--max-new-tokens)" in ran.err


def test_an_answer_ends_at_a_stop_string(chat: Run) -> None:
    whole = chat("-n", 24, input_="Hello\n").out.strip("\n")
    stop = whole[2:6]
    found = chat("-n", 24, "--stop", stop, input_="Hello\n").out
    assert found == whole[: whole.index(stop)] + "\n"


def test_a_saved_conversation(chat: Run, tmp_path: Path) -> None:
    file, other = tmp_path / "talk.jsonl", tmp_path / "other.txt"
    ran = chat("--system", "Be short.", input_=f"Hello\n/save {file}\n")
    (line,) = file.read_text().splitlines()
    messages = json.loads(line)["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[-1]["content"] + "\n" == ran.out
    other.write_text("precious")
    refused = chat(input_=f"/save {other}\n/save\n")
    assert f"{other} exists: name another file" in refused.err
    assert "needs the name of a file" in refused.err
    assert other.read_text() == "precious"


def test_commands_are_told_from_messages(chat: Run) -> None:
    ran = chat(input_="/reset extra\n/Reset\n/nonsense at all\n")
    assert ran.out == ""
    assert "/reset takes nothing after it" in ran.err
    assert "a new conversation" in ran.err
    assert "no command /nonsense; there are: /save" in ran.err
    assert chat(input_=" /reset extra\n").out
    assert chat(input_="/etc/passwd is what?\n").out


def test_policies_and_templates(chat: Run, folder: Path, tmp_path: Path) -> None:
    greedy = chat(input_="Hello\n").out
    assert chat("--policy", "fixed:0", "--plan-lengths", 2, input_="Hello\n").out == greedy
    base, file = save_chat_model(tmp_path / "base", template=None), tmp_path / "t.jinja"
    file.write_text(TEMPLATE)
    given = ("--target", base, "--chat-template", file, "-n", 12)
    assert run_command("chat", *given, input_="Hello\n").out == greedy
    said = run_command("generate", "Hello", "--chat", *given).out
    assert said == greedy.removesuffix("\n")
