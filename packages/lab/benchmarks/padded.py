"""A small Llama, and its EAGLE-3 head, padded with zeros to the shape of Llama-3.1-8B.

    python -m benchmarks padded --target FOLDER --drafter HEAD --out FOLDER

Measures a large model's speed where only a small one is available: every forward costs as much as
the large model's, while text and acceptance rate are the small one's. The padded model computes the
small one's logits: a norm's weight is scaled by sqrt(h/H), since its mean runs over H numbers of
which h are not zero, and its epsilon by h/H; RoPE rotates pair i of a head of d dimensions like
pair i D/d of a head of D, so pair i moves there; queries are scaled by sqrt(D/d), as attention
divides by sqrt(D). Zeros draw less power than other numbers, so compute-bound kernels may run
faster than with real weights (about 10% for a product of two 8192 x 8192 matrices on an H200).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from shared.script import options
from torch import Tensor

LARGE: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Padding:
    """Maps weights from the shape of one config to that of another."""

    small: Mapping[str, Any]
    large: Mapping[str, Any]
    dtype: torch.dtype = torch.bfloat16

    def config(self) -> dict[str, Any]:
        """The padded model's config.json; a head keeps its single layer."""
        found = {**self.small, **self.large, "tie_word_embeddings": False}
        found["dtype"] = str(self.dtype).removeprefix("torch.")
        found["rms_norm_eps"] = self.small["rms_norm_eps"] * self._share
        if "draft_vocab_size" in self.small:
            found |= {"num_hidden_layers": 1, "target_hidden_size": self.large["hidden_size"]}
            outputs = found.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
            found["eagle_aux_hidden_state_layer_ids"] = [number + 1 for number in outputs]
            found.pop("lm_head_from_target")
        return found

    @property
    def _share(self) -> float:
        return float(self.small["hidden_size"] / self.large["hidden_size"])

    def pad(self, name: str, weight: Tensor) -> Tensor:
        """Pad a weight of the small model to the large model's shape."""
        hidden = self._padded("hidden_size")
        if weight.dim() == 1:
            return self._put(weight * self._share**0.5, [hidden])
        rows = columns = hidden
        if "_proj" in name and "attn" in name:
            heads = self._heads("k_proj" in name or "v_proj" in name, turns="v_proj" not in name)
            if "o_proj" in name:
                columns = self._heads(False, turns=False)
            else:
                rows = heads
            if "q_proj" in name:
                weight = weight * (self.large["head_dim"] / self.small["head_dim"]) ** 0.5
        elif "gate" in name or "up_proj" in name or "down" in name:
            inner = self._padded("intermediate_size")
            rows, columns = (hidden, inner) if "down" in name else (inner, hidden)
        elif "embed" in name or "lm_head" in name:
            rows = (torch.arange(len(weight)), len(weight))
        # concatenated inputs: embeddings and hidden states, or those of three layers
        num = weight.shape[1] // len(columns[0])
        places = [columns[0] + number * columns[1] for number in range(num)]
        return self._put(weight, [rows, (torch.cat(places), num * columns[1])])

    def empty(self, layer: int) -> dict[str, Tensor]:
        """A layer that adds nothing to the residual stream."""
        prefix, sizes = f"model.layers.{layer}.", self.large
        hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
        queries = sizes["num_attention_heads"] * sizes["head_dim"]
        keys = sizes["num_key_value_heads"] * sizes["head_dim"]
        shapes = {
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        zeros = {name: torch.zeros(shape, dtype=self.dtype) for name, shape in shapes.items()}
        return {f"{prefix}{name}.weight": zero for name, zero in zeros.items()}

    def _padded(self, name: str) -> tuple[Tensor, int]:
        return torch.arange(self.small[name]), self.large[name]

    def _heads(self, is_key: bool, turns: bool) -> tuple[Tensor, int]:
        """Padded positions of all heads' rows; turns: whether RoPE rotates them."""
        size, room = self.small["head_dim"], self.large["head_dim"]
        pairs = torch.arange(size // 2) * (room // size)
        within = torch.cat([pairs, pairs + room // 2]) if turns else torch.arange(size)
        own, new = (
            sizes["num_attention_heads"] // sizes["num_key_value_heads"]
            for sizes in (self.small, self.large)
        )
        heads, num = self._padded("num_key_value_heads" if is_key else "num_attention_heads")
        if not is_key:  # query heads of one key head stay together
            heads = heads // own * new + heads % own
        return (heads[:, None] * room + within).flatten(), num * room

    def _put(self, weight: Tensor, places: list[tuple[Tensor, int]]) -> Tensor:
        made = torch.zeros([size for _, size in places], dtype=self.dtype)
        made[torch.meshgrid(*(where for where, _ in places), indexing="ij")] = weight.to(made.dtype)
        return made


def weights_of(folder: Path) -> dict[str, Tensor]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def write(folder: Path, config: Mapping[str, Any], shards: list[dict[str, Tensor]]) -> None:
    """Write a checkpoint with one file per shard."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))]
    with ThreadPoolExecutor() as threads:
        paths = [folder / name for name in names]
        list(threads.map(lambda shard, path: save_file(shard, path), shards, paths))
    index = {key: name for shard, name in zip(shards, names, strict=True) for key in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}), "utf-8"
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")


def pad_target(folder: Path, padding: Padding, out: Path) -> None:
    """Write the padded target with the small one's tokenizer."""
    weights = weights_of(folder)
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    num, kept = padding.large["num_hidden_layers"], padding.small["num_hidden_layers"]
    by_layer: list[list[str]] = [[] for _ in range(kept + 1)]
    for name in weights:
        layer = name.split(".")[2] if name.startswith("model.layers.") else kept
        by_layer[int(layer)].append(name)
    with ThreadPoolExecutor() as threads:
        shards = list(threads.map(
            lambda names: {name: padding.pad(name, weights[name]) for name in names}, by_layer
        ))  # fmt: skip
    shards += [padding.empty(layer) for layer in range(kept, num)]
    write(out, padding.config(), shards)
    for pattern in ("token*", "*.jinja", "generation_config.json"):
        for path in filter(Path.is_file, folder.glob(pattern)):
            shutil.copy(path, out)


def pad_head(head: Path, target: Path, padding: Padding, out: Path) -> None:
    """Write the padded EAGLE-3 head, with rows of the target's embedding as its output layer."""
    weights = weights_of(head)
    ids = torch.arange(len(weights["d2t"])) + weights["d2t"]
    output = weights_of(target)["model.embed_tokens.weight"][ids]
    shard = {name: weights.pop(name) for name in ("d2t", "t2d")}
    shard |= {name: padding.pad(name, weight) for name, weight in weights.items()}
    shard["lm_head.weight"] = padding.pad("lm_head", output)
    write(out, padding.config(), [shard])


def main() -> None:
    args = options(
        __doc__, target={"type": Path, "required": True}, drafter={"type": Path},
        sizes={"type": json.loads, "default": {}, "help": "other sizes than Llama-3.1-8B's"},
        dtype={"default": "bfloat16", "help": "of the padded weights"},
    )  # fmt: skip
    large, dtype, out = LARGE | args.sizes, getattr(torch, args.dtype), Path(args.out)

    def padding(folder: Path) -> Padding:
        return Padding(json.loads((folder / "config.json").read_text("utf-8")), large, dtype)

    pad_target(args.target, padding(args.target), out / "target")
    if args.drafter:
        pad_head(args.drafter, args.target, padding(args.drafter), out / "head")


if __name__ == "__main__":
    main()
