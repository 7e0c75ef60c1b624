"""Training a drafter for any target: initialisation, losses and acceptance."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwise.types import DraftwiseError
from draftwise_lab.train.data import (
    Batch,
    Text,
    answer_logits,
    groups,
    observed_batches,
    pad,
    shuffled,
)
from draftwise_lab.train.loop import Loss, TrainingSettings
from draftwise_lab.train.options import DrafterOptions

MOST_KEPT_BYTES = 2 << 30  # larger states of the target are not cached, but computed every epoch


def first_layers(target: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """A drafter initialised with the target's embeddings, first layers, norm and head.

    Errors: DraftwiseError unless the target has more layers than ``num_layers``.
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
    drafter.load_state_dict(target.state_dict(), strict=False)  # casts, and skips other layers
    return drafter.to(target.device)


def acceptance(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """[A] sum_v min(p_v, q_v) of logits [A, V] (Leviathan et al. 2023, theorem 3.5)."""
    return torch.minimum(p_logits.float().softmax(-1), q_logits.float().softmax(-1)).sum(-1)


def distillation_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy against the target's distribution plus the probability of a rejection.

    Source: MetaSD, appendix F.1, distils on sampled text; soft targets and the second term, one
    minus `acceptance`, are from DistillSpec (Zhou et al. 2023).
    """
    logits = answer_logits(model, batch.tokens, batch.positions).float()
    soft = nn.functional.cross_entropy(logits, batch.logits.float().softmax(-1))
    return soft + 1 - acceptance(batch.logits, logits).mean()


def sequence_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy against the tokens that the target sampled.

    Source: MetaSD, appendix F.1 (sequence-level self-distillation, Kim and Rush 2016).
    """
    logits = answer_logits(model, batch.tokens, batch.positions).float()
    return nn.functional.cross_entropy(logits, batch.tokens.flatten()[batch.positions + 1])


LOSSES: Mapping[str, Loss] = {"logits": distillation_loss, "sequence": sequence_loss}


def drafter_batches(
    target: PreTrainedModel,
    texts: Sequence[Text],
    options: DrafterOptions,
    folder: Path,
) -> Callable[[int], Batch]:
    """step -> batch of these texts, with the target's logits if the loss needs them.

    The target processes the texts only once if its states, 2 D bytes per token, fit into
    ``MOST_KEPT_BYTES`` in ``folder``. Errors: OSError if the disk has less room.
    """
    if options.loss == "sequence":
        group = shuffled(groups(texts, options.batch_tokens), options.seed)

        def sequences(step: int) -> Batch:
            tokens, positions = (x.to(target.device) for x in pad([texts[i] for i in group(step)]))
            return Batch(tokens, positions, torch.empty(0))

        return sequences
    num_learned = sum(len(text.tokens) - text.start for text in texts)
    fits = 2 * num_learned * target.config.get_text_config().hidden_size <= MOST_KEPT_BYTES
    observed = observed_batches(
        target, {"states": texts}, (), seed=options.seed,
        tokens_per_batch=options.batch_tokens, keep=folder if fits else None,
    )  # fmt: skip

    def batch(step: int) -> Batch:
        said = observed(step)
        return Batch(said.tokens, said.positions, said.logits())

    return batch


def drafter_settings(texts: Sequence[Text], options: DrafterOptions) -> TrainingSettings:
    """The schedule: warm-up over 3% (MetaSD, appendix F.2), then a linear decay to zero instead of
    the paper's cosine."""
    steps = max(10, round(options.epochs * len(groups(texts, options.batch_tokens))))
    warmup = max(1, round(0.03 * steps))
    return TrainingSettings(steps, options.lr, warmup, steps, bf16=bool(options.bf16))


@torch.inference_mode()
def measure_acceptance(
    target: PreTrainedModel,
    drafters: Mapping[str, PreTrainedModel],
    texts: Sequence[Text],
    sharpness: float = 1.0,
) -> dict[str, float]:
    """Mean acceptance probability of every drafter over the trained positions of `texts`.

    The target processes the texts once for all drafters. sharpness: 1 / temperature.
    """
    totals, count = dict.fromkeys(drafters, 0.0), 0
    for group in groups(texts, 4096):
        tokens, positions = pad([texts[i] for i in group])
        p = sharpness * answer_logits(target, tokens, positions)
        for name, drafter in drafters.items():
            q = sharpness * answer_logits(drafter, tokens, positions)
            totals[name] += float(acceptance(p, q).sum())
        count += len(positions)
    return {name: total / count for name, total in totals.items()}
