"""The zoo's acceptance heads: what ends each drafter's drafts under SpecDec++."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from draftwise.train.data import Text
from draftwise.train.head import HeadOptions, Measured, Setting, judge_texts, make_head
from draftwise.train.loop import Progress
from draftwise_lab.zoo.domains import SHARES
from draftwise_lab.zoo.recipe import GENERALIST, NUM_STOP_PROMPTS, SEED, STOP_LAYERS, STOP_W_REJ
from draftwise_lab.zoo.samples import answers, head_prompts


def stop_texts(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    domain: str,
    work: Path,
    *,
    scale: float = 1.0,
) -> list[Text]:
    """The target's answers at temperature 1 to prompts that no drafter learned from."""
    prompts = head_prompts(domain, max(2, round(NUM_STOP_PROMPTS * scale)))
    heats = [1.0] * len(prompts)
    path = work / f"head-answers-{domain}.json"
    return answers(target, tokenizer, prompts, heats, path, seed=SEED + 50)


def domains_of(name: str) -> Sequence[str]:
    """What the drafter ``name`` drafts: its own domain, or all of them."""
    return tuple(SHARES) if name == GENERALIST else (name,)


def train_stop(
    name: str,
    target: PreTrainedModel,
    drafter: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    work: Path,
    *,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> Measured:
    """Train the head of the drafter ``name`` and write it beside its weights, as ``head``.

    Source: SpecDec++, section 4.4. The same functions as ``draftwise train head``.
    """
    texts = [
        text
        for domain in domains_of(name)
        for text in stop_texts(target, tokenizer, domain, work, scale=scale)
    ]
    setting = Setting(target, drafter, seed=SEED + 60)
    judged = judge_texts(setting, texts, work / f"head-judged-{name}")
    return make_head(
        setting,
        judged,
        HeadOptions(STOP_LAYERS, STOP_W_REJ, "analytic", seed=SEED),
        work / "drafters" / name / "head",
        checkpoint=work / f"head-{name}.pt",
        progress=progress,
    )
