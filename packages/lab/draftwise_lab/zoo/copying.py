"""An initialisation under which a transformer can copy from its context from the first step.

A model that completes `A B ... A` with `B` needs two attention layers that work together: one that
carries every token to its successor, and one that looks for the token's own copies there. Found
by gradient alone this takes small models more tokens than they have time for, and until then they
ignore their prompt. Here the pair is put in place; training refines it and spreads it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

_SLOW_RADIANS = 0.02  # frequencies below this hardly turn within a hundred tokens
_NUM_FAST = 5  # frequencies that tell a token's neighbours apart
_NEAR = 9.0  # sharpness of the previous-token heads, in logits a frequency
_MATCH = 30.0  # sharpness of the matching heads, in logits for a perfect match
_EMBEDDING = 0.2  # standard deviation; large, so that optimizer steps do not swamp the circuit
_ANSWER = 2.0  # how much louder what was found is than the token itself


@torch.no_grad()
def prime_copying(model: LlamaForCausalLM, *, seed: int, matchers: tuple[int, ...]) -> None:
    """Put a previous-token layer into layer 0 and matching heads into the layers `matchers`.

    The hidden dimensions begin in three parts: a token's identity, the identity of the token
    before it (written by layer 0), and a constant that makes layer 0's queries and keys depend on
    position alone. The heads of `matchers` compare the first part with the second of earlier
    positions and add what they find to the first. All of it is only a start: every weight is
    trained. Source: Olsson et al. 2022, "In-context learning and induction heads" (the circuit);
    Trockman and Kolter 2023, "Mimetic initialization of self-attention layers" (starting there).
    Errors: ValueError unless heads times head size is the hidden size, without shared keys.
    """
    config = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.num_key_value_heads != heads or hidden % (2 * heads):
        raise ValueError("copying needs one key head for every query head of hidden/heads dims")
    generator = torch.Generator().manual_seed(seed)
    size = hidden // heads
    theta = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    part = hidden // 2 - hidden // 32
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0.0, 0.1 * _EMBEDDING, generator=generator)
    embedding[:, :part].normal_(0.0, _EMBEDDING, generator=generator)
    embedding[:, 2 * part :] = 1.75 * _EMBEDDING
    # The head shares the embedding: what grew there shrinks here, so that logits start small.
    model.model.norm.weight.fill_(0.25)
    _previous_token(model, theta, part)
    for index in matchers:
        _matching(model, index, theta, part, generator)


def _previous_token(model: LlamaForCausalLM, theta: Tensor, part: int) -> None:
    """Layer 0: constant queries and keys whose rotary product peaks one token back."""
    attention = model.model.layers[0].self_attn
    hidden, half = model.config.hidden_size, len(theta)
    heads = hidden // (2 * half)
    query, key = torch.zeros(2 * half), torch.zeros(2 * half)
    fast = torch.arange(_NUM_FAST)
    query[fast], query[fast + half] = theta[fast].cos(), -theta[fast].sin()
    key[fast] = 1.0
    common = torch.zeros(hidden)
    common[2 * part :] = 1.0 / (hidden - 2 * part)  # the normalised constant is about 2.1
    gain = (_NEAR * (2 * half) ** 0.5) ** 0.5 / 2.1
    for weight, vector in ((attention.q_proj.weight, query), (attention.k_proj.weight, key)):
        weight[: hidden // 2] = gain * torch.outer(vector.repeat(heads // 2), common)
    place = torch.arange(part)
    attention.v_proj.weight[place] = 0.0
    attention.v_proj.weight[place, place] = 0.5
    attention.o_proj.weight[:, place] = 0.0
    attention.o_proj.weight[part + place, place] = 2 * _EMBEDDING * 0.8


def _matching(
    model: LlamaForCausalLM, index: int, theta: Tensor, part: int, generator: torch.Generator
) -> None:
    """Layer `index`: queries from the token itself, keys from the copy of the token before."""
    attention = model.model.layers[index].self_attn
    hidden, half = model.config.hidden_size, len(theta)
    slow = (theta < _SLOW_RADIANS).float()
    keep = torch.cat([slow, slow]).repeat(hidden // (2 * half))[:, None]
    probes = keep * torch.randn(hidden, part, generator=generator) / part**0.5
    gain = (_MATCH * (2 * half) ** 0.5 / (2 * float(slow.sum()))) ** 0.5
    attention.q_proj.weight[:, :part] += gain * probes
    attention.k_proj.weight[:, part : 2 * part] += gain * probes
    place = torch.arange(part)
    for start in (0, hidden // 2):  # two heads carry the identity, the other two carry it again
        attention.v_proj.weight[start + place] *= 0.2
        attention.v_proj.weight[start + place, place] += 0.5
        attention.o_proj.weight[place, start + place] += _ANSWER * _EMBEDDING
