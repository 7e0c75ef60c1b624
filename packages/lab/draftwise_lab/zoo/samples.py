"""What the drafters learn from: the target's own answers, and its opinion of real documents."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from draftwise.train.answers import answers as sample_answers
from draftwise.train.data import Text
from draftwise_lab.zoo.corpus import encode, encode_prompt
from draftwise_lab.zoo.domains import Document, sample
from draftwise_lab.zoo.lessons import Lesson, teach
from draftwise_lab.zoo.recipe import (
    MAX_NEW_TOKENS,
    NUM_HELDOUT,
    NUM_REAL,
    NUM_SAMPLES,
    ROWS_PER_SAMPLING,
    SEED,
    TEMPERATURES,
)


def drawn(domain: str, purpose: str, *, heldout: bool = False) -> Callable[[int], Document]:
    """number -> document of `domain`; every purpose has a stream of its own."""

    def document(number: int) -> Document:
        rng = random.Random(f"{SEED} {purpose} {domain} {number}")
        return sample(domain, rng, heldout=heldout)

    return document


def heldout_prompts(domain: str) -> list[str]:
    """Prompts from sources or seeds that no training document comes from.

    Prompts longer than 700 characters and empty answers are passed over, so that a prompt and
    a long answer fit comfortably into 512 tokens.
    """
    document = drawn(domain, "held out", heldout=True)
    found = (document(number) for number in count())
    good = (d.prompt for d in found if len(d.prompt) <= 700 and len(d.answer) >= 150)
    return list(islice(good, NUM_HELDOUT))


def head_prompts(domain: str, number: int) -> list[str]:
    """Training prompts, of at most 700 characters, that no drafter learned from."""
    document = drawn(domain, "head prompts")
    prompts = (document(i).prompt for i in count())
    return list(islice((prompt for prompt in prompts if len(prompt) <= 700), number))


def answers(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    temperatures: list[float],
    path: Path,
    *,
    seed: int,
) -> list[Text]:
    """The target's answers to `prompts`, in batches; `path` keeps finished ones for a resume."""
    return sample_answers(
        target,
        [encode_prompt(tokenizer, prompt) for prompt in prompts],
        temperatures,
        path,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        seed=seed,
        rows=ROWS_PER_SAMPLING,
    )


def make_lesson(
    domain: str,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    *,
    scale: float = 1.0,
) -> Lesson:
    """The lesson of one domain: sampled answers at four temperatures, and real documents.

    Prompts are endless, so every sample has a prompt of its own and the temperatures alternate.
    """
    number = max(len(TEMPERATURES), round(NUM_SAMPLES * scale))
    document = drawn(domain, "samples")
    prompts = [document(i).prompt for i in range(number)]
    heat = [TEMPERATURES[i % len(TEMPERATURES)] for i in range(number)]
    texts = answers(
        target, tokenizer, prompts, heat, work / f"samples-{domain}.json", seed=SEED + 20
    )
    document = drawn(domain, "real")
    for i in range(max(1, round(NUM_REAL * scale))):
        real = document(i)
        start = len(encode_prompt(tokenizer, real.prompt))
        texts.append(Text(tuple(encode(tokenizer, real)[:512]), min(start, 511)))
    return teach(target, texts, work / f"lesson-{domain}")
