"""Tiny EAGLE heads of every kind for tiny targets, random or fitted to given texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from draftwise.nn.cache import HiddenStates
from draftwise.nn.eagle import EagleConfig, EagleHead
from draftwise.nn.eagle_files import default_taps
from draftwise.nn.model import CausalModel
from draftwise_lab.train.data import Text, observed_batches
from draftwise_lab.train.eagle import draft_vocabulary, eagle_loss, new_head
from draftwise_lab.train.loop import TrainingSettings, fit


def eagle_config(target: CausalModel, generation: int = 3, **changes: Any) -> EagleConfig:
    """The configuration of a small head for a target."""
    taps = default_taps(target.num_layers) if generation == 3 else (target.num_layers,)
    given: dict[str, Any] = {
        "generation": generation,
        "hidden_size": target.hidden_size,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": target.hidden_size // 4,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": target.vocab_size,
        "target_hidden_size": target.hidden_size,
        "taps": taps,
    }
    return EagleConfig(**(given | changes))


def eagle_head(
    target: CausalModel, generation: int = 3, seed: int = 0, own: bool = True, **changes: Any
) -> EagleHead:
    """A random head. With ``own``, the head has its own embeddings and ``lm_head``."""
    torch.manual_seed(seed)
    config = eagle_config(target, generation, **changes)
    lends_head = not own and config.draft_vocab_size == config.vocab_size
    head = EagleHead(
        config,
        None if own else target.module.get_input_embeddings(),
        target.module.get_output_embeddings() if lends_head else None,
    )
    with torch.no_grad():
        for name, weights in head.named_parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.3 if "lm_head" in name or "embed" in name else 0.15)
        if config.draft_vocab_size < config.vocab_size:
            ids = torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values
            head.set_vocabulary(ids)
    return head.eval().requires_grad_(False)


def taught_head(target: CausalModel, texts: Sequence[Sequence[int]], size: int) -> EagleHead:
    """A head overfitted to these texts, with a draft vocabulary of ``size`` tokens."""
    lesson = [Text(tuple(text), 1) for text in texts]
    ids = draft_vocabulary(lesson, size, target.vocab_size)
    head = new_head(target.module, ids, seed=0)
    batches = observed_batches(target.module, {"texts": lesson}, head.config.taps, seed=0)
    fit(head, partial(eagle_loss, num_passes=3), batches, TrainingSettings(80, 5e-3, 10, 40))
    return head.eval().requires_grad_(False)


@torch.inference_mode()
def features_of(target: CausalModel, text: Sequence[int]) -> HiddenStates:
    """Hidden states of all tokens of a text but the last, in the engine's format."""
    found = HiddenStates()
    if len(text) > 1:
        ids = torch.tensor([list(text)[:-1]])
        states = target.module(input_ids=ids, use_cache=False, output_hidden_states=True)
        found.put(0, {tap: states.hidden_states[tap][0] for tap in target.taps})
    return found
