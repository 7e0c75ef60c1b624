"""Training a drafter for any target: where it starts, what it reads, and how the run is cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwise.nn.heads.eagle import LentHead
from draftwise.train.distill import distillation_loss, learn, sequence_loss
from draftwise.train.eagle import draft_vocabulary, observed_batches
from draftwise.train.lesson import Batch, Text, group_order, groups, pad
from draftwise.train.loop import Progress, Settings
from draftwise.types import DraftwiseError

LossName = Literal["logits", "sequence"]

MOST_KEPT_BYTES = 2 << 30
"""Above this the target's states are not kept on disk, and it reads the texts in every epoch."""


@dataclass(frozen=True)
class DrafterOptions:
    """How a drafter learns; the rate suits small models.

    loss: ``logits``, soft targets and the rejection probability; ``sequence``, the sampled tokens.
    """

    loss: LossName = "logits"
    epochs: float = 3.0
    lr: float = 5e-4
    tokens_per_batch: int = 2048
    bf16: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in {"logits", "sequence"}:
            raise ValueError(f"loss is {self.loss!r}: write logits or sequence")
        if not self.epochs > 0 or not self.lr > 0:
            raise ValueError(f"epochs and learning rate must be above 0: {self}")


def first_layers(
    target: PreTrainedModel, num_layers: int, *, lends: bool = False
) -> PreTrainedModel:
    """A drafter that starts as the target's embeddings, first layers, norm and head.

    lends: embeddings and head stay as they are, to be the target's own where it drafts. Raises
    DraftwiseError where the target has no more layers than that.
    """
    config = copy.deepcopy(target.config)
    own = config.get_text_config()
    if not 0 < num_layers < own.num_hidden_layers:
        raise DraftwiseError(
            f"--layers {num_layers}: the target has {own.num_hidden_layers}, and a drafter needs "
            "at least one and fewer than those"
        )
    own.num_hidden_layers = num_layers
    if getattr(own, "layer_types", None):
        own.layer_types = own.layer_types[:num_layers]
    drafter: PreTrainedModel = AutoModelForCausalLM.from_config(config).float()
    weights: dict[str, Tensor] = {
        name: value for name, value in target.state_dict().items() if name in drafter.state_dict()
    }
    drafter.load_state_dict({k: v.float().cpu() for k, v in weights.items()}, strict=False)
    if lends:
        drafter.get_input_embeddings().requires_grad_(False)
        drafter.get_output_embeddings().requires_grad_(False)
    return drafter.to(target.device)


def narrow(drafter: PreTrainedModel, texts: Sequence[Text], size: int) -> Tensor | None:
    """Let a drafter with a lent ``lm_head`` draft the tokens [size] learned most often, and them
    alone; returns them, None where it drafts all."""
    head = drafter.get_output_embeddings()
    vocab_size = drafter.config.get_text_config().vocab_size
    ids = draft_vocabulary(texts, size, vocab_size)
    if ids is not None:
        drafter.set_output_embeddings(LentHead(head, ids, vocab_size))
    return ids


def drafter_batches(
    target: PreTrainedModel,
    texts: Sequence[Text],
    options: DrafterOptions,
    folder: Path,
    ids: Tensor | None = None,
) -> Callable[[int], Batch]:
    """step -> batch of these texts, with the target's logits where the loss wants them.

    ids: the tokens whose logits are wanted; None = all. The target reads the texts once, if its
    states, 2 D bytes a token, fit into ``MOST_KEPT_BYTES`` in ``folder``: logits are made anew of
    them. Errors: OSError where the disk has less room than that.
    """
    if options.loss == "sequence":
        return _sequences(texts, options)
    num_learned = sum(len(text.tokens) - text.start for text in texts)
    fits = 2 * num_learned * target.config.get_text_config().hidden_size <= MOST_KEPT_BYTES
    observed = observed_batches(
        target, {"states": texts}, (), seed=options.seed,
        tokens_per_batch=options.tokens_per_batch, keep=folder if fits else None,
    )  # fmt: skip

    def batch(step: int) -> Batch:
        said = observed(step)
        return Batch(said.tokens, said.positions, said.logits(ids), ids)

    return batch


def _sequences(texts: Sequence[Text], options: DrafterOptions) -> Callable[[int], Batch]:
    """step -> batch of the texts alone."""
    table = groups(texts, options.tokens_per_batch)

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, len(table))
        group = table[group_order(len(table), options.seed, epoch)[place]]
        return Batch(*pad([texts[i] for i in group]), torch.empty(0))

    return batch


def drafter_settings(texts: Sequence[Text], options: DrafterOptions) -> Settings:
    """The schedule: warm up over 3% (MetaSD, appendix F.2), then fall linearly to zero."""
    a_epoch = len(groups(texts, options.tokens_per_batch))
    steps = max(10, round(options.epochs * a_epoch))
    return Settings(
        steps,
        options.lr,
        warmup_steps=max(1, round(0.03 * steps)),
        decay_steps=steps,
        bf16=options.bf16,
    )


def train_drafter(
    drafter: PreTrainedModel,
    read: Callable[[int], Batch],
    settings: Settings,
    options: DrafterOptions,
    *,
    checkpoint: Path,
    progress: Progress | None = None,
    stop_at: int | None = None,
) -> list[float]:
    """Train ``drafter`` in place, as far as ``stop_at``; called again it goes on.

    Source: MetaSD, appendices F.1 and F.2. Differs: a linear fall of the rate where the paper has a
    cosine; soft targets by default (``distillation_loss``).
    """
    loss: Any = sequence_loss if options.loss == "sequence" else distillation_loss
    return learn(
        drafter, read, settings, loss=loss, checkpoint=checkpoint, progress=progress,
        stop_at=stop_at,
    )  # fmt: skip
