"""Tiny random models in folders, with a byte-level tokenizer: what the command line can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from models import near_copy, tiny_model

EOS = 256
VOCAB = 257


def save_tokenizer(folder: Path) -> None:
    """Bytes as tokens, and one that ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


def save_model(folder: Path, model: Any) -> Path:
    """A model folder as transformers writes it, with the tokenizer."""
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_pair(folder: Path) -> tuple[Path, Path]:
    """A target, and a drafter that agrees with it often but not always."""
    target = tiny_model("llama", vocab_size=VOCAB)
    return (
        save_model(folder / "target", target),
        save_model(folder / "drafter", near_copy(target, 0.3)),
    )
