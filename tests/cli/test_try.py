"""``draftwise try``: the measurement, its verdict, and the lines to paste."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import run_command
from draftwise.bench.results import Run
from draftwise.cli.bench import paste, verdict


def run(method: str, item: int, num: int, seconds: float, first: int = 0) -> Run:
    tokens = [list(range(first, first + num))]
    return Run(method, 0, item, "x", tokens, [seconds], [seconds], [num], [1] * num, num, num,
               {"lookup": num})  # fmt: skip


def pairs(seconds: list[tuple[float, float]], num: int = 40, first: int = 0) -> list[Run]:
    """Both runs for each (plain, fast) seconds, with equal answers of ``num`` tokens."""
    return [
        run(method, first + item, num, taken)
        for item, both in enumerate(seconds)
        for method, taken in zip(("plain", "draftwise"), both, strict=True)
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ([(4.0, 2.0)] * 5, "It pays: 2.00 times"),
        ([(4.0, 5.0)] * 5, "It does not pay: 0.80 times"),
        ([(4.0, 4.0), (4.0, 3.0), (4.0, 5.2)], "No clear gain: 0.98 times"),
        ([(4.0, 3.95)] * 5, "No clear gain: 1.01 times"),
        ([(4.0, 2.0)] * 2, "2.00 times plain decoding, on too few prompts"),
    ],
)
def test_the_verdict_follows_the_interval(seconds: list[tuple[float, float]], said: str) -> None:
    assert verdict(pairs(seconds), is_greedy=True).startswith(said)


def test_a_difference_from_plain_decoding_is_counted() -> None:
    found = [*pairs([(4.0, 2.0)] * 3), run("plain", 3, 9, 4.0), run("draftwise", 3, 9, 2.0, 1)]
    assert "equal to plain decoding's: 3 of 4" in verdict(found, is_greedy=True)
    assert "equal" not in verdict(found, is_greedy=False)


def test_short_answers_are_pointed_out() -> None:
    assert "1 answer of fewer than 8" in verdict(
        [*pairs([(4.0, 2.0)] * 3), *pairs([(1.0, 1.0)], 7, 3)], is_greedy=True
    )
    assert "fewer than" not in verdict(pairs([(4.0, 2.0)] * 3, 8), is_greedy=True)


def test_the_lines_to_paste_name_the_drafters() -> None:
    lines = paste("folder", ["lookup", "lm:small"])
    assert "--target folder --drafter lookup --drafter lm:small" in lines
    assert "from_pretrained('folder', drafters=['lookup', 'lm:small'])" in lines


@pytest.mark.parametrize("form", ["text", "prompt", "turns", "messages"])
def test_the_command_answers_every_prompt_of_a_file(form: str, tmp_path: Path) -> None:
    texts = [f"### math\nAdd {n} and 3." for n in (4, 5, 6)]
    entries: dict[str, list[str]] = {
        "text": [text.replace("\n", " ") for text in texts],
        "prompt": [json.dumps({"prompt": text}) for text in texts],
        "turns": [json.dumps({"turns": [text]}) for text in texts],
        "messages": [
            json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts
        ],
    }
    file = tmp_path / ("prompts.txt" if form == "text" else "prompts.jsonl")
    file.write_text("\n".join(entries[form]) + "\n")
    ran = run_command("try", "zoo", file, "--drafter", "lookup", "--max-new-tokens", 12)
    if form == "messages":  # the bundled model has no chat template
        assert ran.code == 2
        assert "chat template" in ran.err
        return
    assert ran.code == 0, ran.err
    assert "3 prompts" in ran.out
    assert "equal to plain decoding's: 3 of 3" in ran.out
    assert "draftwise serve --target zoo --drafter lookup" in ran.out


def test_after_the_time_no_prompt_is_begun_but_the_fewest() -> None:
    ran = run_command("try", "zoo", "--drafter", "lookup", "--seconds", 1, "-n", 100)
    assert ran.code == 0, ran.err
    assert "3 prompts" in ran.out


def test_an_unknown_file_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    ran = run_command("try", "zoo", tmp_path / "none.jsonl")
    assert ran.code == 2
    assert "none.jsonl" in ran.err
