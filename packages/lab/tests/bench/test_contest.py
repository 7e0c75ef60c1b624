"""All methods are interleaved, runs resume, and a planted lossy method is detected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftwise import Speculator
from draftwise.bench.results import make_sheet, turns
from draftwise.bench.session import Asked, Contestant, Encoder, TimedReply, contest
from draftwise.bench.suites import Item
from draftwise.chat import Prompt
from draftwise.types import DraftwiseError
from draftwise_lab.bench.contest import Recorder, contest_results, make_contestants, measure
from draftwise_lab.bench.records import ContestSettings, RunStore, prepare

ITEMS = [Item("0", "x", ("abc abc abc",)), Item("1", "y", ("Hello", "And?"), "writing")]
ASKED = Asked(12)
METHODS = [
    "plain", "draftwise", "fixed:smallx3", "fixed:lookupx4", "transformers",
    "transformers:lookupx4", "transformers:smallx3",
    "transformers:smallx3/heuristic", "transformers:smallx3/confidence=0.2",
]  # fmt: skip


class Lossy:
    """Wraps a contestant and changes the last token of the answers to long prompts."""

    name = "lossy"

    def __init__(self, inner: Contestant) -> None:
        self._inner = inner

    def begin(self) -> None:
        self._inner.begin()

    def warm_up(self, prompt: Prompt, seed: int) -> None:
        self._inner.warm_up(prompt, seed)

    def answer(self, prompt: Prompt, seed: int) -> TimedReply:
        reply = self._inner.answer(prompt, seed)
        reply.tokens[-1] ^= len(prompt.tokens) > 12
        return reply


def store_in(folder: Path) -> RunStore:
    store = RunStore(folder)
    store.begin({})
    return store


def test_everybody_says_the_same_and_a_planted_liar_is_found(
    speculator: Speculator, tmp_path: Path
) -> None:
    made, left_out = make_contestants(METHODS, speculator, ASKED, METHODS)
    assert left_out == {}
    store, names = store_in(tmp_path), [*METHODS, "lossy"]
    contestants: list[Contestant] = [*made, Lossy(made[1])]
    recorder = Recorder(ITEMS, lambda: None)
    plan = turns(names, len(ITEMS), 1, 0)
    encoder = Encoder(speculator, ASKED)
    for found in contest(contestants, ITEMS, encoder, plan, 0, lambda: True, recorder):
        store.add(found)
    runs = store.load(len(names))
    assert len(runs) == len(names) * len(ITEMS)
    found = contest_results(make_sheet(runs, names, can_compare=True))
    lossless = {name: row["lossless"] for name, row in found["methods"].items()}
    assert lossless == dict.fromkeys(METHODS, True) | {"lossy": False}
    assert found["domains"]["x"]["lossy"]["lossless"] is True
    for run in runs:
        assert sum(run.emitted) == run.num_tokens == 12 * len(ITEMS[run.item].turns)
        assert len(run.emitted) == sum(run.num_rounds)
        is_ours = run.method != "lossy" and not run.method.startswith("transformers")
        assert (run.course is not None) == is_ours
    plain = next(run for run in runs if run.method == "plain")
    assert set(plain.emitted) == {1}
    peers = [run for run in runs if run.method == "transformers:smallx3"]
    assert all(max(run.emitted) > 1 for run in peers)


def test_turns_go_on_behind_the_answers(speculator: Speculator) -> None:
    encoder = Encoder(speculator, ASKED)
    first = encoder.prompt(ITEMS[1], []).tokens
    answer = speculator.generate("Hello", max_new_tokens=5).tokens
    second = encoder.prompt(ITEMS[1], [answer]).tokens
    text = speculator.tokenizer.decode(second)
    assert second[: len(first)] == first
    assert text.startswith("Hello\n\n")
    assert text.endswith("\n\nAnd?")


def test_long_prompts_lose_their_beginning_and_are_counted(speculator: Speculator) -> None:
    encoder = Encoder(speculator, ASKED)
    long = Item("long", "x", ("ab" * 400,))
    ids = encoder.prompt(long, []).tokens
    assert len(ids) == speculator.target.max_positions - 12
    assert encoder.cut == {"long"}
    with pytest.raises(DraftwiseError, match="is empty"):
        encoder.prompt(Item("", "x", ("",)), [])
    with pytest.raises(DraftwiseError, match="a prompt needs some"):
        Encoder(speculator, Asked(10_000))


def test_who_cannot_take_part_is_left_out_unless_named(speculator: Speculator) -> None:
    made, left_out = make_contestants(["plain", "fixed:gonex2"], speculator, ASKED, ["presets"])
    assert [c.name for c in made] == ["plain"]
    assert "no drafter 'gone'" in left_out["fixed:gonex2"]
    with pytest.raises(DraftwiseError, match="no drafter 'gone'"):
        make_contestants(["fixed:gonex2"], speculator, ASKED, ["fixed:gonex2"])


def wish_for(folder: Path, questions: Path) -> ContestSettings:
    methods = ("draftwise", "fixed:smallx3")
    return ContestSettings(str(questions), folder, methods, tokens=8, repeats=2)


def test_an_end_in_the_middle_keeps_what_was_measured_and_goes_on(
    speculator: Speculator, questions: Path, tmp_path: Path
) -> None:
    wish = wish_for(tmp_path, questions)
    suite, store = prepare(wish)
    # 3 answers of warm-up, then 3 a turn: the run ends in the middle of turn three
    left = [3 + 3 + 3 + 2]

    def goes_on() -> bool:
        left[0] -= 1
        return left[0] > 0

    found = measure(wish, suite, store, speculator, goes_on, lambda *_: None, explores=False)
    assert found is not None
    assert found.results["is_complete"] is False
    assert found.results["settings"]["num_items_measured"] == 2
    assert len(found.runs) == 2 * 3
    suite, store = prepare(wish)
    told: list[tuple[str, int, int]] = []
    more = measure(
        wish,
        suite,
        store,
        speculator,
        lambda: True,
        lambda *facts: told.append(facts),
        explores=False,
    )
    assert more is not None
    assert more.results["is_complete"] is True
    assert more.runs[: len(found.runs)] == found.runs
    assert {what for what, *_ in told} == {"measuring"}
    assert told[-1] == ("measuring", 18, 18)
    with pytest.raises(DraftwiseError, match="other tokens"):
        prepare(replace(wish, tokens=9))


def test_sampled_answers_are_compared_by_speed_alone(
    speculator: Speculator, questions: Path, tmp_path: Path
) -> None:
    methods = ("fixed:smallx3", "peers")
    wish = replace(wish_for(tmp_path, questions), methods=methods, temperature=1.0)
    suite, store = prepare(wish)
    found = measure(wish, suite, store, speculator, lambda: True, lambda *_: None, explores=False)
    assert found is not None
    rows = found.results["methods"]
    assert {row["lossless"] for row in rows.values()} == {None}
    assert "transformers:smallx5" in rows
    assert rows["fixed:smallx3"]["same_tokens"] < 1.0
