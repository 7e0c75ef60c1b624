"""Streamed text: incomplete characters, rounds of any length."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from cli.models_on_disk import save_tokenizer
from draftwise.engine import Detokenizer


@pytest.mark.parametrize("sizes", [(9, 9, 8), (1,) * 26, (13, 13), (3, 4, 5, 14), (26,), (25, 1)])
def test_rounds_that_end_inside_a_character_lose_nothing(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "é" * 10 + "日本"
    tokens = tokenizer(text)["input_ids"]
    detokenizer, pieces = Detokenizer(tokenizer), []
    for size in sizes:
        pieces.append(detokenizer.push(tokens[:size]))
        del tokens[:size]
    assert "".join(pieces) + detokenizer.flush() == text
