"""The zoo's target: three phases, from a shallow model on short texts to a deep one on long."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from draftwise.train.loop import Progress, Settings, fit
from draftwise_lab.zoo.copying import prime_copying
from draftwise_lab.zoo.corpus import batches
from draftwise_lab.zoo.models import cross_entropy, deepen, make_llama
from draftwise_lab.zoo.recipe import SEED, TARGET_PHASES, TOKENS_PER_STEP, Phase


def train_target(
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    *,
    device: str,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> LlamaForCausalLM:
    """Train the target through all phases; `scale` multiplies every phase's steps.

    Each phase keeps its checkpoint in `work`, so the stage resumes wherever it was stopped.
    """
    model = make_llama(
        vocab_size=len(tokenizer),
        num_layers=TARGET_PHASES[0].num_layers,
        token_ids=token_ids(tokenizer),
        seed=SEED,
    )
    prime_copying(model, seed=SEED, matchers=(1,))
    model = model.to(device)
    for number, phase in enumerate(TARGET_PHASES):
        depth = model.config.num_hidden_layers
        if phase.num_layers != depth:
            torch.manual_seed(SEED + number)
            model = deepen(model, phase.num_layers // depth).to(device)
        fit(
            model,
            lambda m, tokens: cross_entropy(m, tokens.to(device)),
            batches(
                tokenizer,
                seed=SEED + number,
                rows=TOKENS_PER_STEP // phase.context,
                context=phase.context,
            ),
            phase_settings(phase, scale),
            checkpoint=work / f"target-{phase.name}.pt",
            progress=progress,
        )
    return model


def token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """The special tokens' ids, under the names that a model's configuration uses."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(tokenizer, name) for name in names}


def phase_settings(phase: Phase, scale: float) -> Settings:
    """How a phase trains; `scale` multiplies its steps."""
    steps = max(2, round(phase.steps * scale))
    return Settings(
        steps=steps,
        lr=phase.lr,
        warmup_steps=min(40, steps // 2),
        decay_steps=steps if phase.decay else 0,
        bf16=True,
    )
