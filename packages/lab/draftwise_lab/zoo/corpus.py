"""Tokens for the zoo: the tokenizer, and batches that are pure functions of (seed, step)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from draftwise_lab.zoo.domains import Document, documents, sample

VOCAB_SIZE = 2048
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}


def train_tokenizer(folder: Path, *, seed: int, num_documents: int = 6000) -> None:
    """Train the byte-level BPE on documents of all domains and save it in `folder`."""
    tokenizer = Tokenizer(models.BPE())
    # Single digits keep arithmetic learnable; the byte level makes decoding exact.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = documents(random.Random(f"tokenizer {seed}"))
    tokenizer.train_from_iterator((next(stream).text for _ in range(num_documents)), trainer)
    bos = SPECIAL["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
        **SPECIAL,
    )
    fast.save_pretrained(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in `folder`."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> list[int]:
    """<bos>, prompt, answer, <eos>; prompt and answer are encoded apart, as when generating."""
    answer = tokenizer.encode(document.answer, add_special_tokens=False)
    return [*encode_prompt(tokenizer, document.prompt), *answer, tokenizer.eos_token_id]


def encode_prompt(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """<bos> and the prompt."""
    tokens: list[int] = tokenizer.encode(prompt, add_special_tokens=False)
    return [tokenizer.bos_token_id, *tokens]


def _stream(rng: random.Random, domains: tuple[str, ...]) -> Iterator[Document]:
    if not domains:
        yield from documents(rng)
    while True:
        yield sample(rng.choice(domains), rng)


def batches(
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    rows: int,
    context: int,
    domains: tuple[str, ...] = (),
) -> Callable[[int], Tensor]:
    """step -> tokens [rows, context]; every row begins with a document and is filled with more.

    `domains` restricts the documents (default: all, by their shares). What does not fit the row
    is dropped: documents are endless, and half a document at the start of a row teaches little.
    """

    def batch(step: int) -> Tensor:
        table = []
        for row in range(rows):
            stream = _stream(random.Random(f"{seed} {step} {row}"), domains)
            tokens: list[int] = []
            while len(tokens) < context:
                tokens += encode(tokenizer, next(stream))
            table.append(tokens[:context])
        return torch.tensor(table)

    return batch
