"""The zoo's drafters: one-layer models, first taught their domain's text, then the target's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from draftwise.train.loop import Progress, Settings, fit
from draftwise_lab.zoo.corpus import batches
from draftwise_lab.zoo.lessons import Lesson, distill
from draftwise_lab.zoo.models import cross_entropy, make_llama
from draftwise_lab.zoo.recipe import DISTILLATION, GENERALIST, PRETRAINING, SEED, TOKENS_PER_STEP
from draftwise_lab.zoo.target import token_ids


def pretrain_drafter(
    name: str,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    *,
    device: str,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> LlamaForCausalLM:
    """Teach the drafter `name` the documents of its domain (the generalist: of all domains).

    Source: MetaSD, appendix F.1, step 1. The checkpoint in `work` makes it resumable.
    """
    model = make_llama(
        vocab_size=len(tokenizer), num_layers=1, token_ids=token_ids(tokenizer), seed=SEED
    ).to(device)
    steps = max(2, round(PRETRAINING.steps * scale))
    fit(
        model,
        lambda m, tokens: cross_entropy(m, tokens.to(device)),
        batches(
            tokenizer,
            seed=SEED + 10,
            rows=TOKENS_PER_STEP // PRETRAINING.context,
            context=PRETRAINING.context,
            domains=() if name == GENERALIST else (name,),
        ),
        Settings(steps, PRETRAINING.lr, min(40, steps // 2), steps // 2, bf16=True),
        checkpoint=work / f"pretrained-{name}.pt",
        progress=progress,
    )
    return model


def distill_drafter(
    name: str,
    model: LlamaForCausalLM,
    lessons: Sequence[Lesson],
    work: Path,
    *,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> None:
    """Teach the pretrained drafter `name` what the target would say, in place.

    Source: MetaSD, appendix F.1, step 2, with soft targets in place of sampled tokens.
    """
    steps = max(2, round(DISTILLATION.steps * scale))
    distill(
        model,
        lessons,
        Settings(steps, DISTILLATION.lr, min(40, steps // 2), steps, bf16=True),
        seed=SEED + 30,
        checkpoint=work / f"distilled-{name}.pt",
        progress=progress,
    )
