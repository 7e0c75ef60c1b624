"""``draftwise chat``: turns, commands, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatting import save_chat_model
from cli.conftest import Run, run_command
from cli.models_on_disk import make_target, save_model
from draftwise import Speculator
from draftwise.nn import load_model, save_head
from eagles import eagle_head


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
    ran = chat(input_="/stats\n/plain\nHello\n/plain\n/stats\n/nonsense\n/help\n")
    assert ran.code == 0
    assert "no turns yet" in ran.err
    assert "no answer to compare with" in ran.err
    assert "same tokens: yes" in ran.err
    assert "no command /nonsense" in ran.err
    for word in ("first token", "tokens written", "lookup", "Ctrl-D"):
        assert word in ran.out


def test_a_conversation_that_is_too_long_goes_on_without_the_message(chat: Run) -> None:
    ran = chat(input_="x" * 500 + "\nHello\n")
    assert ran.code == 0
    assert "positions" in ran.err
    assert ran.out == chat(input_="Hello\n").out


def test_what_cannot_chat_is_refused_at_once(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", make_target())
    assert "no chat template" in run_command("chat", "--target", base, input_="Hello\n").refusal
    assert "no chat template" in run_command("chat", "--target", "zoo", input_="Hello\n").refusal


def test_heads_learn_between_turns_and_the_answers_stay(
    folder: Path, chat: Run, tmp_path: Path
) -> None:
    target = load_model(str(folder))
    save_head(eagle_head(target), tmp_path)
    talk = {"input_": "Hello\nAnd now?\n/reset\nHello\n"}
    spec = ("--drafter", f"eagle:{tmp_path}")
    assert chat(*spec, "--adapt", **talk).out == chat(**talk).out
    refused = chat("--adapt", **talk)
    assert refused.code == 2
    assert "name one, --drafter eagle:HEAD" in refused.err
