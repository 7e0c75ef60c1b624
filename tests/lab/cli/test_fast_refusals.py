"""Invalid command lines of the lab are refused before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cli.test_fast_refusals import check_refusal, covered, leaves_of, typed
from draftwise.cli import LAB_COMMANDS

LINES: tuple[tuple[str, str], ...] = (
    ("sweep --target zoo --drafter lookup --prompts p.txt --out o", "lookup is no drafter for"),
    ("sweep -m zoo -d zoo:python --prompts p.txt -o o --head gone", "no acceptance head in gone"),
    ("sweep --target zoo --drafter zoo --prompts p.txt --out o", "zoo is no drafter for"),
    ("sweep --target zoo --drafter zoo:python --prompts gone.txt --out o", "gone.txt"),
    ("sweep --target zoo --drafter zoo:python --prompts p.txt --out o --lengths a", "--lengths"),
    ("replay gone.jsonl", "there is no trace gone.jsonl"),
    ("replay empty.jsonl", "'request' is missing"),
    ("replay latin1.jsonl", "iconv -f latin1"),
    ("advise gone.jsonl", "there is no trace gone.jsonl"),
    ("advise --prompts gone.txt", "gone.txt"),
    ("advise --prompts p.txt --batch-sizes x", "--batch-sizes 'x': write whole numbers"),
    ("advise --prompts p.txt --for tgi", "--for tgi: write one of vllm"),
    ("advise --prompts p.txt --dtype int3", "unknown dtype"),
    ("advise deep.jsonl", "deep.jsonl, line 1: this is no round of a trace (it is nested too"),
    ("replay objects.npz", "objects.npz is no replay file (it holds no arrays)"),
    ("simulate --drafters 99999999999999", "write whole numbers from 1 to 10,000"),
)
OTHERS = {"zoo info", "zoo build"}
"""Commands that load no model."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Any, ...]]:
    return typed(tmp_path_factory.mktemp("typed"), [line for line, _ in LINES])


@pytest.mark.parametrize(("line", "said"), LINES)
def test_refused_at_once(outcomes: Mapping[str, Any], line: str, said: str) -> None:
    check_refusal(outcomes[line], said)


def test_every_command_is_in_the_table() -> None:
    assert leaves_of(LAB_COMMANDS) - covered(LINES) == OTHERS
