"""Whatever a caller gives as prompts and seeds, as token ids and streams of randomness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError


def is_single(prompts: Any) -> bool:
    """Whether this is one prompt (text or ids) rather than a batch of them."""
    if isinstance(prompts, str):
        return True
    if hasattr(prompts, "ndim"):
        return bool(prompts.ndim == 1)
    return (
        len(prompts) > 0
        and not isinstance(prompts[0], (str, Sequence))
        and not hasattr(prompts[0], "ndim")
    )


def encode_all(prompts: Any, tokenizer: Any, target: CausalModel) -> list[list[int]]:
    """Text, ids, or a list of either, to a list of token ids.

    Raises DraftwiseError for no prompt, an empty one, text without a tokenizer, an id outside the
    vocabulary, or a prompt that leaves no position for an answer; the prompt is named by its index.
    """
    batch = [prompts] if is_single(prompts) else list(prompts)
    if not batch:
        raise DraftwiseError("no prompt was given")
    return [_encode(index, prompt, tokenizer, target) for index, prompt in enumerate(batch)]


def randomness(seed: int | Sequence[int], num: int) -> list[np.random.SeedSequence]:
    """One source of randomness a prompt; a prompt alone gets what its own seed gives it."""
    if not isinstance(seed, Sequence):
        return np.random.SeedSequence(seed).spawn(num)
    if len(seed) != num:
        raise DraftwiseError(f"{len(seed)} seeds for {num} prompts: give one, or one each")
    return [np.random.SeedSequence(own).spawn(1)[0] for own in seed]


def eos_tokens(target: CausalModel, tokenizer: Any) -> Sequence[int]:
    """The tokens that end an answer, as the model's own generation config says."""
    config = getattr(target.module, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    if eos is None:
        eos = getattr(tokenizer, "eos_token_id", None)
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def _encode(index: int, prompt: Any, tokenizer: Any, target: CausalModel) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise DraftwiseError(
                "a text prompt needs a tokenizer: pass token ids, or tokenizer=..."
            )
        ids = list(tokenizer(prompt)["input_ids"])
    else:
        ids = [int(token) for token in (prompt.tolist() if hasattr(prompt, "tolist") else prompt)]
    if not ids:
        raise DraftwiseError(f"prompt {index} is empty: there is nothing to continue")
    if min(ids) < 0 or max(ids) >= target.vocab_size:
        raise DraftwiseError(
            f"prompt {index} has the token {max(ids, key=abs)}, outside the vocabulary of "
            f"{target.vocab_size}: was it made with another tokenizer?"
        )
    if len(ids) >= target.max_positions:
        raise DraftwiseError(
            f"prompt {index} has {len(ids)} tokens, and {target.name} has {target.max_positions} "
            "positions: shorten it"
        )
    return ids
