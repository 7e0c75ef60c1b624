"""Invalid command lines of the lab are refused before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from cli.test_fast_refusals import check_refusal, covered, leaves_of, typed
from draftwise.cli import LAB_COMMANDS
from draftwise_lab.cli.train import LAYOUTS as TRAIN_LAYOUTS
from draftwise_lab.train.drafter import LOSSES
from draftwise_lab.train.options import LossName
from draftwise_lab.train.save import LAYOUTS as HEAD_LAYOUTS

LINES: tuple[tuple[str, str], ...] = (
    ("contest --out o --suite nothere.jsonl", "there is no file nothere.jsonl"),
    ("contest --out o --method nope", "unknown method 'nope'"),
    ("contest --out o --tokens 0", "--tokens 0: it must be 1 or more"),
    ("contest --out o --model org/not-there", "no folder org/not-there"),
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
    ("prompts make --target base --out o.jsonl", "base has no chat template"),
    ("train drafter --target zoo --prompts nothere.jsonl --out o --layers 1", "nothere.jsonl"),
    ("train drafter --target zoo --prompts self --out o --layers 1", "no chat template"),
    ("train drafter --target zoo --prompts p.txt --out o", "--init MODEL, or --layers N"),
    ("train drafter --target zoo --prompts p.txt --out o --init lookup", "lookup is no drafter"),
    ("train drafter --target zoo --prompts p.txt --out o --layers 1 --loss x", "unknown loss"),
    ("train eagle --target zoo --prompts nothere.jsonl --out o", "nothere.jsonl"),
    ("train eagle --target zoo --data deep.jsonl --out o", "deep.jsonl, line 1: this is not JSON"),
    ("train drafter --target zoo --prompts deep.jsonl --out o --layers 1", "nested too deeply"),
    ("train eagle --target zoo --out o", "--data FILE"),
    ("train eagle --target zoo --prompts p.txt --out o --layout x", "unknown layout"),
    ("train head --target zoo --drafter lookup --prompts p.txt --out o", "lookup is no drafter"),
    ("train head --target zoo --drafter zoo:python --prompts gone.txt --out o", "gone.txt"),
    ("train head --target zoo --drafter zoo:python --prompts p.txt --out o --label x", "label"),
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


def test_the_words_of_an_option_are_those_of_the_module() -> None:
    assert TRAIN_LAYOUTS == HEAD_LAYOUTS
    assert tuple(LOSSES) == get_args(LossName)
