"""``draftwise demo``: equal conditions for both decoders, and correct tables."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from cli.conftest import Ran, run_command
from draftwise import zoo
from draftwise.bench.suites import usual_items
from draftwise.cli.demo import Lane, Stage, race, report
from draftwise.cli.show import colours
from draftwise.colours import PALETTE
from draftwise.engine.outputs import RequestOutput, Result, Stats

PROMPTS = {"letters": ["abc abc", "1\n2\n3\n4\n5\nxyz xyz"], "mixed": ["abc 123", "1 2 3"]}


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]) -> Any:
    """The command on the tiny pair, with prompts of the test."""
    monkeypatch.setattr(zoo, "prompts", lambda: PROMPTS)

    def run(*args: object) -> Ran:
        models = ("--target", pair[0], "--drafter", f"lm:{pair[1]}", "--drafter", "lookup")
        return run_command("demo", *models, "--max-new-tokens", 20, *args)

    return run


def test_without_a_terminal_it_is_plain_text_and_a_table(demo: Any) -> None:
    ran = demo("--prompts", 3)
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    for heading in ("1/3 letters", "2/3 mixed", "3/3 letters", "ratio", "MAT", "written by"):
        assert heading in ran.out
    assert "output identical: yes" in ran.out
    assert "\n3\n4\n5\nxyz xyz" in ran.out
    assert "\n2\n3\n" not in ran.out


def test_all_of_it_as_a_picture(demo: Any, tmp_path: Path) -> None:
    ran = demo("--prompts", 2, "--svg", tmp_path / "demo.svg")
    assert ran.code == 0
    picture = (tmp_path / "demo.svg").read_text().replace("&#160;", " ")
    for word in ("<svg", "1/2 letters", "2/2 mixed", "plain decoding", "lookup", "identical"):
        assert word in picture
    assert PALETTE[0] in picture  # the first drafter's colour


def test_sampled_text_claims_no_identity(demo: Any) -> None:
    ran = demo("--prompts", 1, "--temperature", 1)
    assert "same distribution" in ran.out
    assert "identical" not in ran.out


def _result(tokens: list[int]) -> Result:
    stats = Stats(num_rounds=1, num_drafted=2, num_accepted=1, num_emitted=len(tokens))
    stats.seconds_by_phase["verify"] = 0.5
    stats.pulls["lookup"] = 1
    return Result([1], tokens, "text", ["target"] * len(tokens), "length", stats)


def _shown(*fast: list[int]) -> str:
    console = Console(file=io.StringIO(), width=80)
    pairs = [("a", _result([1, 2]), _result(tokens)) for tokens in fast]
    console.print(report(pairs, is_greedy=True))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_one_different_token_is_said_aloud() -> None:
    assert "output identical: yes" in _shown([1, 2], [1, 2])
    assert "output identical: NO" in _shown([1, 2], [1, 3])


class _Rounds:
    """A generation whose rounds take given numbers of seconds."""

    def __init__(self, seconds: list[float], num_emitted: int) -> None:
        self._seconds, self._num = seconds, num_emitted

    def outputs(self) -> Iterator[RequestOutput]:
        stats = Stats()
        for seconds in self._seconds:
            stats.num_rounds += 1
            stats.num_emitted += self._num
            stats.seconds_by_phase["verify"] += seconds
            tokens, sources = [1] * self._num, ["lookup"] * self._num
            texts = ["x"] * self._num
            yield RequestOutput(0, "x" * self._num, tokens, sources, token_texts=texts, stats=stats)


def _lanes() -> list[Lane]:
    slow, quick = _Rounds([0.4] * 6, 1), _Rounds([0.5] * 2, 3)
    return [Lane("plain", slow), Lane("fast", quick)]  # type: ignore[arg-type]


def test_a_race_gives_both_the_same_seconds() -> None:
    lanes = _lanes()
    for _ in race(lanes, lambda: False):
        if all(lane.is_running for lane in lanes):
            assert abs(lanes[0].seconds - lanes[1].seconds) <= 0.5
    assert [lane.stats.num_emitted for lane in lanes] == [6, 6]
    assert lanes[1].stats.tok_per_s == pytest.approx(6.0)
    assert "".join(text for text, _ in lanes[0].pieces) == "xxxxxx"


def test_panels_stand_side_by_side() -> None:
    lanes = _lanes()
    console = Console(file=io.StringIO(), width=80, height=40, force_terminal=True)
    Stage(console, colours(["lookup"]), is_live=True).play(lanes, race(lanes, lambda: False))
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is shown again
    plain = Text.from_ansi(shown).plain
    last = plain[plain.rindex("plain") - 3 :].split("\n")
    assert last[0].count("╭") == 2
    assert sum(line.count("xxxxxx") for line in last) == 2


def test_at_80_columns_no_figure_of_a_panel_is_cut() -> None:
    lanes = [Lane(title, _Rounds([0.03], 12)) for title in ("plain", "fast")]  # type: ignore[arg-type]
    for lane in lanes:
        lane.step()
    lanes[0].stats.seconds_by_phase["verify"], lanes[1].stats.num_drafted = 0.4, 20
    console = Console(file=io.StringIO(), width=80)
    console.print(Stage(console, {}, is_live=False).picture(lanes))
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert " 400 tok/s = 13.3x · 12.0 tok/round ─╯" in shown


def test_a_chat_model_is_asked_questions_and_others_get_texts() -> None:
    kinds = [one.domain for one in usual_items(is_chat=True)[:7]]
    assert len(set(kinds[:5])) == 5
    assert kinds[5:] == kinds[:2]
    texts = usual_items(is_chat=False)[:3]
    assert all(isinstance(one.first, str) for one in texts)
    assert [one.domain for one in texts] == list(zoo.prompts())[:3]
