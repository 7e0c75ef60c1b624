"""Any Hugging Face pair that shares a tokenizer, here two random ones made on the spot."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise import Speculator


def random_llama(num_layers: int) -> torch.nn.Module:
    """A tiny Llama with random weights: replace it by a folder or a hub id."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config)


speculator = Speculator.from_pretrained(
    random_llama(8),
    drafters=[random_llama(1), "lookup:prompt_lookup_max=4"],
    policy="ucb1:beta=0.01",
    reward="length",
    feedback="bandit",
    lengths=[2, 4],
)
result = speculator.generate([1, 2, 3], max_new_tokens=50, temperature=0.8, seed=0)
print(result.tokens)
print({"MAT": result.stats.mean_accepted_tokens, "pulls": dict(result.stats.pulls)})
