"""A model that copies before it is trained."""

from __future__ import annotations

import torch

from draftwise_lab.zoo.models import make_llama, prime_copying


def test_a_primed_model_copies_before_it_has_learned_anything() -> None:
    model = make_llama(vocab_size=512, num_layers=2, seed=0)
    prime_copying(model, seed=0, matchers=(1,))
    period = torch.randperm(512, generator=torch.Generator().manual_seed(0))[:24]
    tokens = period.repeat(3)[None]
    guesses = model(tokens).logits[0, 24:-1].argmax(-1)
    assert (guesses == tokens[0, 25:]).float().mean() > 0.5
