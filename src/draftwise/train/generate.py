"""Batched sampling from a causal LM: the text that a drafter is distilled from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def continue_prompts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    max_new_tokens: int,
    eos_token_id: int,
    seed: int,
) -> list[list[int]]:
    """Continue every prompt at its own temperature (0 is greedy) until `eos_token_id`.

    Returns the new tokens only, the end token included where it was drawn. One call is one
    batch: its rows run together and leave it when they are done.
    """
    if len(prompts) != len(temperatures) or not all(prompts):
        raise ValueError("give every prompt at least one token and a temperature")
    generator = torch.Generator().manual_seed(seed)
    tokens, mask = _left_padded(prompts, model.device)
    heat = torch.tensor(temperatures, dtype=torch.float32)
    rows = torch.arange(len(prompts))
    cache = DynamicCache(config=model.config)
    answers: list[list[int]] = [[] for _ in prompts]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for _ in range(max_new_tokens):
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            logits_to_keep=1,
        )
        drawn = _draw(output.logits[:, -1].float().cpu(), heat, generator)
        for row, token in zip(rows.tolist(), drawn.tolist(), strict=True):
            answers[row].append(token)
        alive = (drawn != eos_token_id).nonzero()[:, 0]
        if len(alive) == 0:
            break
        if len(alive) < 0.8 * len(drawn):  # dropping rows copies the cache: not for each row
            cache.batch_select_indices(alive.to(model.device))
            rows, heat, drawn = rows[alive], heat[alive], drawn[alive]
            mask, positions = mask[alive], positions[alive]
        tokens = drawn[:, None].to(model.device)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        positions = positions[:, -1:] + 1
    return [_until(answer, eos_token_id) for answer in answers]


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return tokens.to(device), mask.to(device)


def _draw(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """Tokens [B] from `logits` [B, V] at temperatures `heat` [B]."""
    greedy = logits.argmax(-1)
    probs = (logits / heat.clamp(min=1e-4)[:, None]).softmax(-1)
    sampled = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return torch.where(heat > 0, sampled, greedy)


def _until(answer: list[int], eos_token_id: int) -> list[int]:
    # A row that is done may stay in its batch for a while; what it drew then is not text.
    return answer[: answer.index(eos_token_id) + 1] if eos_token_id in answer else answer
