"""Folders with tiny random models and a byte-level tokenizer, for the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from models import byte_level, near_copy, tiny_model

VOCAB = 257
POSITIONS = 400


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer of single bytes and <eos>."""
    inner = byte_level(["<eos>"])
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(folder)


def save_model(folder: Path, model: Any) -> Path:
    """Save a model with its tokenizer as transformers does."""
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def make_target(seed: int = 7, **changes: Any) -> Any:
    """A random model that emits printable ASCII only, so that each token is one letter."""
    given: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": POSITIONS}
    model = tiny_model("llama", seed, **(given | changes))
    with torch.no_grad():
        model.lm_head.weight[94:] *= 0.02  # tokens that are not ASCII
    return model


def save_pair(folder: Path) -> tuple[Path, Path]:
    """A target, and a drafter that agrees with it often but not always."""
    target = make_target()
    return (
        save_model(folder / "target", target),
        save_model(folder / "drafter", near_copy(target, 0.1)),
    )
