"""The zoo's EAGLE heads: trained on what the target says of its own answers, without a detour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from draftwise.nn.heads.eagle import EagleHead, load_head, save_head
from draftwise.nn.model import CausalModel
from draftwise.train.data import Observed, Text, observe, observed_batches
from draftwise.train.eagle import acceptance_by_depth, eagle_loss, new_head
from draftwise.train.loop import Progress, fit
from draftwise_lab.zoo.corpus import batches as document_batches
from draftwise_lab.zoo.recipe import (
    EAGLE_DEPTHS,
    EAGLE_DOCUMENTS,
    EAGLE_GENERALIST,
    EAGLE_LESSONS,
    EAGLE_PASSES,
    SEED,
    SPECIAL_DOCUMENTS,
    SPECIAL_LESSONS,
    TOKENS_PER_STEP,
)
from draftwise_lab.zoo.target import phase_settings


def train_zoo_eagle(
    name: str,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    lessons: Mapping[str, Sequence[Text]],
    work: Path,
    *,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> EagleHead:
    """Train the head `name`: on documents of its domains, then on the texts of these lessons.

    Specialists begin as the generalist, whose last checkpoint is in `work`. Checkpoints make it
    resumable; what the target says of lessons is kept in `work/states`, which heads share.
    """
    head = new_head(target, None, seed=SEED)
    is_general = name == EAGLE_GENERALIST
    if not is_general:
        start = torch.load(work / f"lessons-{EAGLE_GENERALIST}.pt", weights_only=True)
        head.load_state_dict(start["model"])
    taps, domains = head.config.taps, () if is_general else tuple(lessons)
    documents = EAGLE_DOCUMENTS if is_general else SPECIAL_DOCUMENTS
    last = EAGLE_LESSONS if is_general else SPECIAL_LESSONS
    for phase, batches in (
        (documents, _document_batches(target, tokenizer, taps, domains)),
        (last, observed_batches(target, lessons, taps, seed=SEED + 50, keep=work / "states")),
    ):
        fit(
            head,
            partial(eagle_loss, num_passes=EAGLE_PASSES[phase.name]),
            batches,
            phase_settings(phase, scale),
            checkpoint=work / f"{phase.name}-{name}.pt",
            progress=progress,
        )
    return head


def _document_batches(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    taps: Sequence[int],
    domains: tuple[str, ...],
) -> Callable[[int], Observed]:
    """step -> what the target says of new documents."""
    context = EAGLE_DOCUMENTS.context
    tokens = document_batches(
        tokenizer,
        seed=SEED + 70,
        rows=TOKENS_PER_STEP // context,
        context=context,
        domains=domains,
    )

    def batch(step: int) -> Observed:
        texts = [Text(tuple(row), 1) for row in tokens(step).tolist()]
        with torch.autocast(target.device.type, torch.bfloat16):
            return observe(target, texts, taps)

    return batch


def pack_eagle(head: EagleHead, folder: Path) -> None:
    """Write a head in the authors' layout and in half precision; it loads in the target's."""
    save_head(head, folder, dtype=torch.float16)


def depth_matrix(
    target: PreTrainedModel, folders: Mapping[str, Path], heldout: Mapping[str, Sequence[Text]]
) -> dict[str, dict[str, list[float]]]:
    """Head -> domain -> mean acceptance probability of a draft's 1st, 2nd, ... token.

    Measured at temperature 1 on the target's own held-out answers, as for the drafters.
    """
    adapter = CausalModel(target, "target")
    heads = {name: load_head(folder, adapter) for name, folder in folders.items()}
    return {
        name: {
            domain: [
                round(alpha, 4) for alpha in acceptance_by_depth(head, target, texts, EAGLE_DEPTHS)
            ]
            for domain, texts in heldout.items()
        }
        for name, head in heads.items()
    }
