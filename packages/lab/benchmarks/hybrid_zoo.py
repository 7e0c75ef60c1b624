"""A small trained hybrid: the zoo's target with Mamba 2 in place of some of its attention.

It is a Granite 4 in kind (``granitemoehybrid`` without experts): 19 layers of attention, whose
weights begin as the bundled target's, and 5 of Mamba 2, whose outputs begin at nought. These first
learn to say what the attention in their place says to the same input; then all of it is trained, on
the zoo's corpus. It is not bundled; the row about `lookup` on hybrids
(docs/reproduction/models.md) makes it again. What was stopped goes on from its checkpoints.

    python -m benchmarks hybrid_zoo ./hybrid-zoo --steps 150
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM, LlamaForCausalLM

from draftwise import zoo
from draftwise.train.loop import Loss, Settings, fit
from draftwise_lab.zoo.corpus import batches, load_tokenizer
from draftwise_lab.zoo.models import cross_entropy

SEED = 20261122
MAMBA = (9, 12, 15, 18, 21)
"""Every third of the target's layers attends to some purpose, the others were put in later and
change nothing. Without the first of those (0, 3) there is no text: they are kept."""


def make_hybrid(target: LlamaForCausalLM) -> GraniteMoeHybridForCausalLM:
    """The target's layers, the attention of every third replaced, in float32."""
    old = target.config
    kinds = [
        "linear_attention" if index in MAMBA else "full_attention"
        for index in range(old.num_hidden_layers)
    ]
    config = GraniteMoeHybridConfig(
        vocab_size=old.vocab_size,
        hidden_size=old.hidden_size,
        intermediate_size=old.intermediate_size,
        shared_intermediate_size=old.intermediate_size,
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        num_attention_heads=old.num_attention_heads,
        num_key_value_heads=old.num_key_value_heads,
        attention_multiplier=old.head_dim**-0.5,
        position_embedding_type="rope",
        num_local_experts=0,
        mamba_n_heads=8,
        mamba_d_state=32,
        mamba_chunk_size=64,
        max_position_embeddings=old.max_position_embeddings,
        rms_norm_eps=old.rms_norm_eps,
        rope_parameters=dict(old.rope_parameters),
        tie_word_embeddings=True,
        bos_token_id=old.bos_token_id,
        eos_token_id=old.eos_token_id,
        pad_token_id=old.pad_token_id,
    )
    torch.manual_seed(SEED)
    model = GraniteMoeHybridForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        model.model.norm.weight.copy_(target.model.norm.weight)
        for layer, before in zip(model.model.layers, target.model.layers, strict=True):
            _fill(layer, before)
    return model


def _fill(layer: torch.nn.Module, before: torch.nn.Module) -> None:
    """One layer from the target's; a Mamba layer says nothing at first."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        getattr(layer, name).weight.copy_(getattr(before, name).weight)
    gates = (before.mlp.gate_proj.weight, before.mlp.up_proj.weight)
    layer.shared_mlp.input_linear.weight.copy_(torch.cat(gates))
    layer.shared_mlp.output_linear.weight.copy_(before.mlp.down_proj.weight)
    if layer.mamba is None:
        layer.self_attn.load_state_dict(before.self_attn.state_dict())
    else:
        layer.mamba.out_proj.weight.zero_()


class Imitation:
    """How far the Mamba layers are from the attention layers in whose place they stand.

    Calling it gives the mean over layers of the squared error over the attention's own square.
    """

    def __init__(self, target: LlamaForCausalLM, model: GraniteMoeHybridForCausalLM) -> None:
        self._target = target.eval().requires_grad_(False)
        self._heard: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.layers = torch.nn.ModuleList()
        for index, layer in enumerate(model.model.layers):
            if layer.mamba is not None:
                self.layers.append(layer.mamba)
                before = target.model.layers[index].self_attn
                before.register_forward_hook(partial(self._hear, index), with_kwargs=True)

    def _hear(
        self, index: int, layer: object, args: object, more: dict[str, torch.Tensor], said: Any
    ) -> None:
        self._heard[index] = more["hidden_states"], said[0]

    def __call__(self, layers: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [B, T]."""
        with torch.no_grad():
            self._target(input_ids=tokens, use_cache=False)
        errors = [
            (layer(hidden_states=heard) - said).square().mean() / said.square().mean()
            for layer, (heard, said) in zip(self.layers, self._heard.values(), strict=True)
        ]
        return torch.stack(errors).mean()


def main() -> None:
    """Train it, or go on where it was stopped, and say what the Mamba layers are good for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rows", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(zoo.target_path())
    target = LlamaForCausalLM.from_pretrained(zoo.target_path())
    model = make_hybrid(target)
    held_out = batches(tokenizer, seed=SEED + 1, rows=16, context=128)(0)
    print("the target's loss:", round(_loss(target, held_out), 3))
    print("loss before:", round(_loss(model, held_out), 3), flush=True)
    imitation = Imitation(target, model)
    stages: list[tuple[str, torch.nn.Module, Loss, int, float]] = [
        ("imitation", imitation.layers, imitation, args.steps, 3e-3),
        ("all", model, cross_entropy, args.steps // 3, 2e-4),
    ]
    for name, trained, loss, steps, rate in stages:
        fit(
            trained,
            loss,
            batches(tokenizer, seed=SEED, rows=args.rows, context=128),
            Settings(steps=steps, lr=rate, warmup_steps=10, decay_steps=steps // 2),
            checkpoint=args.folder / f"{name}.pt",
            progress=lambda step, loss, name=name: print(name, step, round(loss, 3), flush=True),
        )
    model.eval().save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    print("loss after:", round(_loss(model, held_out), 3))
    with torch.no_grad():
        for layer in model.model.layers:
            if layer.mamba is not None:
                layer.mamba.out_proj.weight.zero_()
    print("loss without its Mamba layers:", round(_loss(model, held_out), 3))


@torch.no_grad()
def _loss(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    return float(cross_entropy(model.eval(), tokens))


if __name__ == "__main__":
    main()
