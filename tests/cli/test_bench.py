"""``draftwise bench``: chat by default, interleaved methods, results without a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cli.conftest import run_command
from cli.models_on_disk import save_pair

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SHORT = ("--tokens", 12, "--repeats", 1)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target with a chat template."""
    target, _ = save_pair(tmp_path_factory.mktemp("chat"))
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(target)
    return target


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "mine.jsonl"
    asked = [{"role": "user", "content": "abc abc"}]
    lines = [{"prompt": "abc abc abc"}, {"messages": asked}, {"turns": ["x y x y", "again"]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_every_form_of_prompt_is_asked_as_chat_and_the_answers_are_equal(
    chat_model: Path, prompts: Path
) -> None:
    ran = run_command(
        "bench", "--target", chat_model, "--suite", prompts, "--method", "draftwise", "--method",
        "fixed:lookupx3", "--json", *SHORT,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["settings"]["is_chat"] is True
    assert found["settings"]["num_items_measured"] == 3
    assert list(found["methods"]) == ["plain", "draftwise", "fixed:lookupx3"]
    assert all(row["lossless"] for row in found["methods"].values())
    assert found["methods"]["plain"]["speedup"] == {"median": 1.0, "ci95": [1.0, 1.0]}
    assert found["is_complete"] is True


def test_raw_sends_text_and_refuses_conversations(chat_model: Path, prompts: Path) -> None:
    line = ("bench", "--target", chat_model, "--json", *SHORT)
    ran = run_command(*line, "--suite", prompts, "--raw")
    assert (ran.code, ran.out) == (2, "")
    assert "line 2 has messages, which need a chat template" in ran.err
    prompts.write_text('{"prompt": "abc abc"}\n')
    raw = json.loads(run_command(*line, "--suite", prompts, "--raw").out)
    assert raw["settings"]["is_chat"] is False


def test_a_model_without_a_template_gets_text_and_cannot_chat(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc abc abc\n")
    line = ("bench", "--target", pair[0], "--suite", file, *SHORT)
    assert "has no chat template" in run_command(*line, "--chat").refusal
    ran = run_command(*line)
    assert ran.code == 0, ran.err
    assert "x plain" in ran.out
    assert "With 1 prompt there is no interval" in ran.err
    assert "fewer than" not in ran.err


def test_answers_too_short_to_mean_anything_are_pointed_out(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc abc abc\nxyz\n")
    ran = run_command("bench", "--target", pair[0], "--suite", file, "--tokens", 7, "--repeats", 1)
    assert "2 answers have fewer than 8 tokens" in ran.err


def test_no_time_at_all(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\n")
    own = "bench", "--target", pair[0], "--suite", file
    assert "give more --minutes" in run_command(*own, "--minutes", 0).refusal
    monkeypatch.setattr("draftwise.cli.bench._MINUTES", 0.0)  # without the option
    assert "give more --minutes" in run_command(*own).refusal
