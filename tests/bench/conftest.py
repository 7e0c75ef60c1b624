"""Fixtures with tiny models and questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.models_on_disk import save_pair
from draftwise import Speculator

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write a line.", "And another."]},
    {"question_id": 241, "category": "translation", "turns": ["Say: one <two> & three"]},
    {"question_id": 82, "category": "coding", "turns": ["def f(x): return x x x"]},
]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it."""
    return save_pair(tmp_path_factory.mktemp("bench-models"))


@pytest.fixture(scope="session")
def speculator(pair: tuple[Path, Path]) -> Speculator:
    """A target with a draft model and prompt lookup."""
    return Speculator.from_pretrained(str(pair[0]), [f"small=lm:{pair[1]}", "lookup"])


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in Spec-Bench's format."""
    file = tmp_path_factory.mktemp("suite") / "question.jsonl"
    file.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS), "utf-8")
    return file
