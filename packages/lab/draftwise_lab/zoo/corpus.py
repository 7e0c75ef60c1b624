"""Training data of the zoo: tokenizer, token batches, prompts, and the target's answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from draftwise_lab.train.answers import answers
from draftwise_lab.train.data import Text
from draftwise_lab.zoo import recipe as r
from draftwise_lab.zoo.domains import Document, documents, sample

VOCAB_SIZE = 2048
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}


def train_tokenizer(folder: Path, *, seed: int) -> None:
    """Train the byte-level BPE on 6,000 documents of all domains and save it in `folder`."""
    tokenizer = Tokenizer(models.BPE())
    # Single-digit tokens keep arithmetic learnable; byte-level BPE makes decoding exact.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = documents(random.Random(f"tokenizer {seed}"))
    tokenizer.train_from_iterator((next(stream).text for _ in range(6000)), trainer)
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
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> list[int]:
    """<bos>, prompt, answer, <eos>; prompt and answer are encoded separately, as in generation."""
    answer = tokenizer.encode(document.answer, add_special_tokens=False)
    return [*encode_prompt(tokenizer, document.prompt), *answer, tokenizer.eos_token_id]


def encode_prompt(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    tokens: list[int] = tokenizer.encode(prompt, add_special_tokens=False)
    return [tokenizer.bos_token_id, *tokens]


def as_text(tokenizer: PreTrainedTokenizerFast, document: Document) -> Text:
    """Encode a document as a training text of at most 512 tokens."""
    tokens = encode(tokenizer, document)[:512]
    start = len(encode_prompt(tokenizer, document.prompt))
    return Text(tuple(tokens), min(start, len(tokens) - 1))


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, rows: int, context: int, domains: Sequence[str]
) -> Callable[[int], Tensor]:
    """Return step -> tokens [rows, context]; every row starts with a document and is filled with
    more. `domains` restricts the documents (default: all, by their shares). A row's last document
    is truncated, since half a document at the start of the next row would teach little."""

    def batch(step: int) -> Tensor:
        table = []
        for row in range(rows):
            rng, tokens = random.Random(f"{seed} {step} {row}"), list[int]()
            stream = documents(rng)
            while len(tokens) < context:
                found = sample(rng.choice(domains), rng) if domains else next(stream)
                tokens += encode(tokenizer, found)
            table.append(tokens[:context])
        return torch.tensor(table)

    return batch


def drawn(domain: str, purpose: str, *, heldout: bool = False) -> Callable[[int], Document]:
    """Return number -> document of `domain`; every purpose has a separate random stream."""

    def document(number: int) -> Document:
        rng = random.Random(f"{r.SEED} {purpose} {domain} {number}")
        return sample(domain, rng, heldout=heldout)

    return document


def heldout_stream(domain: str, purpose: str = "held out") -> Iterator[str]:
    """An endless stream of prompts from sources or seeds that no training document comes from.
    Prompts of more than 700 characters are skipped, so that a prompt and a long answer fit into 512
    tokens, and so are answers of fewer than 150."""
    found = map(drawn(domain, purpose, heldout=True), count())
    return (d.prompt for d in found if len(d.prompt) <= 700 and len(d.answer) >= 150)


def heldout_prompts(domain: str) -> list[str]:
    return list(islice(heldout_stream(domain), r.NUM_HELDOUT))


@dataclass(frozen=True)
class Answers:
    """The target's answers, cached in files in ``work``, so that a build can resume. scale: factor
    on the numbers of prompts and documents."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    work: Path
    scale: float = 1.0

    def heldout(self, domain: str) -> list[Text]:
        return self._sampled(heldout_prompts(domain), [1.0], f"heldout-{domain}", r.SEED + 40)

    def for_stops(self, domain: str) -> list[Text]:
        """Answers at temperature 1 to prompts that no drafter was trained on."""
        prompts = (document.prompt for document in map(drawn(domain, "head prompts"), count()))
        short = (prompt for prompt in prompts if len(prompt) <= 700)
        some = list(islice(short, max(2, round(r.NUM_STOP_PROMPTS * self.scale))))
        return self._sampled(some, [1.0], f"head-answers-{domain}", r.SEED + 50)

    def lesson(self, domain: str) -> list[Text]:
        """Answers at four temperatures in turn, each to a different prompt, and real documents."""
        number = max(len(r.TEMPERATURES), round(r.NUM_SAMPLES * self.scale))
        prompts = [document.prompt for document in map(drawn(domain, "samples"), range(number))]
        texts = self._sampled(prompts, r.TEMPERATURES, f"samples-{domain}", r.SEED + 20)
        real = map(drawn(domain, "real"), range(max(1, round(r.NUM_REAL * self.scale))))
        return texts + [as_text(self.tokenizer, document) for document in real]

    def _sampled(
        self, prompts: list[str], temperatures: Sequence[float], name: str, seed: int
    ) -> list[Text]:
        encoded = [encode_prompt(self.tokenizer, prompt) for prompt in prompts]
        heat = [temperatures[i % len(temperatures)] for i in range(len(prompts))]
        return answers(
            self.target, encoded, heat, self.work / f"{name}.json",
            max_new_tokens=r.MAX_NEW_TOKENS, eos_token_id=self.tokenizer.eos_token_id, seed=seed,
            rows=r.ROWS_PER_SAMPLING,
        )  # fmt: skip
