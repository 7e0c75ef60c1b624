"""Measurements on held-out text: the acceptance matrix and the target's loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from draftwise.train.data import Text, answer_logits, groups, pad
from draftwise.train.drafter import measure_acceptance
from draftwise_lab.zoo.corpus import encode, encode_prompt
from draftwise_lab.zoo.domains import SHARES
from draftwise_lab.zoo.recipe import NUM_HELDOUT, SEED
from draftwise_lab.zoo.samples import answers, drawn, heldout_prompts


def heldout_answers(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, domain: str, work: Path
) -> list[Text]:
    """The target's answers, at temperature 1, to the held-out prompts of `domain`."""
    prompts = heldout_prompts(domain)
    return answers(
        target,
        tokenizer,
        prompts,
        [1.0] * len(prompts),
        work / f"heldout-{domain}.json",
        seed=SEED + 40,
    )


def acceptance_matrix(
    target: PreTrainedModel,
    drafters: Mapping[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
) -> dict[str, dict[str, float]]:
    """Drafter -> domain -> mean acceptance probability on the target's own held-out answers."""
    columns = {
        domain: measure_acceptance(
            target, drafters, heldout_answers(target, tokenizer, domain, work)
        )
        for domain in SHARES
    }
    return {
        name: {domain: round(column[name], 4) for domain, column in columns.items()}
        for name in drafters
    }


@torch.inference_mode()
def heldout_loss(target: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, domain: str) -> float:
    """The target's loss, in nats a token, on the answers of held-out documents of `domain`."""
    document = drawn(domain, "held out", heldout=True)
    texts = []
    for number in range(2 * NUM_HELDOUT):
        found = document(number)
        tokens = encode(tokenizer, found)[:512]
        start = len(encode_prompt(tokenizer, found.prompt))
        texts.append(Text(tuple(tokens), min(start, len(tokens) - 1)))
    total, count = 0.0, 0
    for group in groups(texts, 4096):
        tokens_, positions = (x.to(target.device) for x in pad([texts[i] for i in group]))
        logits = answer_logits(target, tokens_, positions).float()
        truth = tokens_.flatten()[positions + 1]
        loss = torch.nn.functional.cross_entropy(logits, truth, reduction="sum")
        total, count = total + float(loss), count + len(truth)
    return total / count
