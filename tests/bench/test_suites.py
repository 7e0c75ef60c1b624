"""Prompt suites from every source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwise import zoo
from draftwise.bench.suites import load_suite
from draftwise.cli.load import read_batch
from draftwise.types import DraftwiseError


def test_the_zoo_has_every_domain_mixed_ones_and_copies() -> None:
    suite = load_suite("zoo", 2)
    assert set(suite.domains) == {*zoo.prompts(), "copy"}
    assert len(suite.items) == 2 * len(suite.domains)
    first = suite.items[: len(suite.domains)]
    assert [item.domain for item in first] == suite.domains
    copies = [item.turns[0] for item in suite.items if item.domain == "copy"]
    assert all(text.startswith("### edit\nDelete line 2.\n") for text in copies)


def test_spec_bench_groups_categories_and_keeps_turns(questions: Path) -> None:
    for name in (f"spec-bench:{questions}", str(questions)):
        suite = load_suite(name)
        assert suite.domains == ["mt_bench", "translation"]
        assert [item.id for item in suite.items] == ["81", "241", "82"]
        assert [item.category for item in suite.items] == ["writing", "translation", "coding"]
        assert suite.items[0].turns == ("Write a line.", "And another.")
    assert len(load_suite(str(questions), 1).items) == 2


def test_one_loader_takes_texts_conversations_and_turns(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    asked = {"role": "user", "content": "b"}
    lines = [{"prompt": "a"}, {"messages": [asked]}, {"turns": ["c", "d"]}, {"turns": ["e"]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = load_suite(str(file)).items
    assert [item.turns for item in items] == [("a",), ([asked],), ("c", "d"), ("e",)]
    assert [item.first for item in items] == ["a", [asked], [{"role": "user", "content": "c"}], "e"]
    assert [item.text for item in items] == ["a", "b", "c", "e"]
    assert items[2].where == f"{file}, line 3"
    assert [given.prompt for given in read_batch(file)] == [item.first for item in items]


def test_ten_questions_of_five_kinds_are_always_there() -> None:
    suite = load_suite("questions")
    assert len(suite.items) == 2 * len(suite.domains) == 10


def test_any_file_of_prompts(tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("one\n\ntwo\n")
    assert [item.turns for item in load_suite(str(text)).items] == [("one",), ("two",)]
    jsonl = tmp_path / "mine.jsonl"
    jsonl.write_text('{"prompt": "a", "domain": "x", "id": "q1"}\n{"prompt": "b"}\n"c"\n')
    suite = load_suite(str(jsonl))
    assert suite.domains == ["x", "mine"]
    assert suite.items[0].id == "q1"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1: this is not JSON"),
        ([json.dumps({"prompt": "a"}), json.dumps({"text": "b"})], "line 2: no text under"),
        ([json.dumps({"turns": []})], "line 1: no text"),
        ([json.dumps({"turns": ["a", ""]})], "line 1: no text"),
        ([json.dumps({"prompt": ""})], "line 1: no text"),
        ([json.dumps({"messages": [{"content": "a"}, "b"]}), "[1]"], "line 2: no text"),
        ([json.dumps({"messages": ["a"]})], 'line 1: "messages" is no list of messages'),
        ([], "has no prompts"),
    ],
)
def test_bad_files_are_named_by_line(tmp_path: Path, lines: list[str], message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DraftwiseError, match=message):
        load_suite(str(file))


def test_some_domains_only(questions: Path) -> None:
    assert load_suite("zoo", 2, ["mixed", "copy"]).domains == ["mixed", "copy"]
    with pytest.raises(DraftwiseError, match="no domain 'x'; it has: mt_bench, translation"):
        load_suite(str(questions), None, ["x"])


def test_unknown_suites(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match="there is no file nope"):
        load_suite("nope")
    with pytest.raises(DraftwiseError, match="spec-bench:FILE"):
        load_suite("spec-bench")
    with pytest.raises(DraftwiseError, match="there is no file"):
        load_suite(f"spec-bench:{tmp_path}/gone.jsonl")
