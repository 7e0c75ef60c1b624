"""The domains: deterministic, well formed, and correct."""

from __future__ import annotations

import random
import re
import sqlite3

import pytest

from draftwise_lab.zoo.domains import (
    ADJECTIVES,
    ANSWER,
    DOMAINS,
    NOUNS,
    SHARES,
    TIMES,
    VERBS,
    apply,
    sample,
)

EQUATION = re.compile(r"(\d+) ([-+*]) (\d+) = (\d+)")


def compute(a: str, sign: str, b: str) -> int:
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]


@pytest.mark.parametrize("name", list(SHARES))
def test_the_same_seed_gives_the_same_document(name: str) -> None:
    first, again = (sample(name, random.Random("seed")) for _ in range(2))
    assert first == again
    assert first != sample(name, random.Random("another"))


@pytest.mark.parametrize("name", list(DOMAINS))
@pytest.mark.parametrize("heldout", [False, True])
def test_documents_begin_with_their_header_and_divide_at_the_answer(
    name: str, heldout: bool
) -> None:
    for seed in range(50):
        document = sample(name, random.Random(seed), heldout=heldout)
        assert document.prompt.startswith(f"### {name}\n")
        assert document.prompt.endswith(ANSWER)
        assert ANSWER not in document.answer


def test_every_equation_of_math_is_true() -> None:
    for seed in range(300):
        document = sample("math", random.Random(seed))
        lines = document.answer.splitlines()
        result = ""
        for line in lines:
            if found := EQUATION.fullmatch(line):
                assert compute(*found.groups()[:3]) == int(found[4]), line
                result = found[4]
            elif line.startswith("answer: "):
                assert line == f"answer: {result}"


def test_math_answers_the_question() -> None:
    for seed in range(300):
        document = sample("math", random.Random(seed))
        for problem in re.split(r"^\d\. ", document.answer, flags=re.MULTILINE)[1:]:
            a, sign, b = problem.splitlines()[0].split()
            assert problem.splitlines()[-1] == f"answer: {compute(a, sign, b)}"


def test_sql_runs_against_its_schema() -> None:
    for seed in range(200):
        document = sample("sql", random.Random(seed))
        with sqlite3.connect(":memory:") as database:
            database.execute(document.prompt.splitlines()[1])
            queries = [x for x in document.answer.splitlines() if not x.startswith("--")]
            assert queries
            for query in queries:
                database.execute(f"EXPLAIN {query}")
        database.close()


def test_translations_have_the_words_of_their_sentences() -> None:
    velish = {*NOUNS.values(), *ADJECTIVES.values(), *TIMES.values(), "le", "nai"}
    stems = tuple(stem for _, _, stem in VERBS.values())
    for seed in range(100):
        document = sample("translate", random.Random(seed))
        english = document.prompt.splitlines()[1:-1]
        lines = document.answer.splitlines()
        assert english == lines[::2]
        assert all(line.startswith("= ") for line in lines[1::2])
        for word in " ".join(line[2:] for line in lines[1::2]).lower().replace(".", "").split():
            singulars = {word, word.removesuffix("n"), word.removesuffix("en")}
            assert singulars & velish or word.startswith(stems)


def test_edits_are_what_their_instruction_says() -> None:
    for seed in range(500):
        for heldout in (False, True):
            document = sample("edit", random.Random(seed), heldout=heldout)
            _, instruction, code = document.prompt.split("\n", 2)
            code = code.removesuffix(ANSWER)
            assert apply(instruction, code) == document.answer
            assert document.answer != code


def test_mixed_documents_change_their_domain() -> None:
    for seed in range(20):
        document = sample("mixed", random.Random(seed))
        names = document.prompt.splitlines()[0].removeprefix("### mixed: ").split(", ")
        assert len(set(names)) == len(names) >= 2
        headers = re.findall(r"^### (\w+)$", document.text, flags=re.MULTILINE)
        assert [name for name in headers if name != "answer"] == names
