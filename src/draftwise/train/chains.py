"""Drafts from random places of texts: what the product of a head's predictions is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwise.train.generate import continue_prompts
from draftwise.train.judgements import distributions_of
from draftwise.train.lesson import Text, answer_hidden, groups, head_logits, pad


@dataclass(frozen=True)
class Chains:
    """Drafts of equal length: hidden [n, L, D] of every token, truth [n, L] = min(1, p/q).

    The product of a row's first numbers is the probability that the draft stands that far, and what
    the rule of SpecDec++ estimates.
    """

    hidden: Tensor
    truth: Tensor


@torch.inference_mode()
def draft_chains(
    target: PreTrainedModel, drafter: PreTrainedModel, texts: Sequence[Text], *,
    length: int = 8, num_chains: int = 256, temperature: float = 1.0, seed: int = 0,
) -> Chains:  # fmt: skip
    """Let the drafter go on from random places of the texts, and judge each of its tokens."""
    rng = np.random.default_rng(seed)
    picks = [texts[int(i)] for i in rng.integers(0, len(texts), num_chains)]
    prefixes = [list(t.tokens[: int(rng.integers(t.start, len(t.tokens)))]) for t in picks]
    drafts = continue_prompts(
        drafter, prefixes, [temperature] * num_chains, max_new_tokens=length, eos_token_id=-1,
        seed=seed,
    )  # fmt: skip
    chains = [Text((*a, *b), len(a)) for a, b in zip(prefixes, drafts, strict=True)]
    hidden = torch.zeros(num_chains, length, drafter.config.get_text_config().hidden_size)
    truth = torch.zeros(num_chains, length)
    for group in groups(chains, 4096):
        states, ratios = _judged(target, drafter, [chains[i] for i in group], temperature)
        hidden[group] = states.view(len(group), length, -1)
        truth[group] = ratios.view(len(group), length)
    return Chains(hidden, truth)


def _judged(
    target: PreTrainedModel, drafter: PreTrainedModel, chains: Sequence[Text], temperature: float
) -> tuple[Tensor, Tensor]:
    """Of every drafted token of the chains: its hidden state [A, D], and min(1, p/q) [A]."""
    tokens, at = pad(chains)
    drawn = tokens.flatten()[at + 1]
    mass = []
    for model in (target, drafter):
        ids, places = tokens.to(model.device), at.to(model.device)
        logits = head_logits(model, answer_hidden(model, ids, places))
        mass.append(distributions_of(logits, temperature).cpu()[torch.arange(len(drawn)), drawn])
    hidden = answer_hidden(drafter, tokens.to(drafter.device), (at + 1).to(drafter.device))
    return hidden.float().cpu(), (mass[0] / mass[1].clamp(min=1e-12)).clamp(max=1.0)
