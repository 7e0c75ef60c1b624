"""Tiny targets with drafters that agree often, rarely, or always; loaded once."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftwise import registry
from draftwise.drafters.eagle import EagleDrafter
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.protocol import Drafter
from draftwise.drafters.retrieval import DatastoreDrafter
from draftwise.engine.engine import Engine
from draftwise.engine.request import Request
from draftwise.nn.model import CausalModel
from draftwise.registry import Preset, Table
from draftwise.retrieval.corpus import replacing, write
from draftwise.speculator import Speculator
from draftwise.types import TreeShape
from eagles import eagle_head, taught_head
from models import head_home, near_copy, tiny_model

POOLS = {
    "good": ["good"],
    "bad": ["bad"],
    "lookup": ["lookup"],
    "suffix": ["suffix"],
    "good+lookup": ["good", "lookup"],
    "good+suffix+datastore": ["good", "suffix", "datastore"],
    "all": ["good", "bad", "lookup"],
    "longer+shorter": ["longer", "shorter"],
    "eagle": ["eagle"],
    "eagle+good+lookup": ["eagle", "good", "lookup"],
    "rounded": ["rounded"],
}
"""Names of pools, and the drafters in them.

``all`` has no ``suffix``: its drafts depend on other requests' answers, so that the tokens of a row
may depend on the rest of the batch (their distribution does not), which tests of ``all`` exclude.
"""

PROMPTS = [
    [5, 9, 33, 5, 9, 33, 5],
    [7],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
    [40, 41, 42, 40, 41, 42, 40, 41],
]
BUDGETS = [24, 13, 17, 1]


def reader(kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random model that attends far back: changing a distant token often changes its next token.

    A model that used only the last token would give the same text with a broken cache.
    """
    model = tiny_model(kind, seed, tie_word_embeddings=False, **changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() < 2:
                continue
            is_token = any(part in name for part in ("lm_head", "embed", "wte", "wpe"))
            is_look = any(part in name for part in ("q_proj", "k_proj"))
            weights.normal_(0, 0.3 if is_token else 0.25 if is_look else 0.2, generator=generator)
    return model


@cache
def target(kind: str = "llama", vocab_size: int = 64) -> CausalModel:
    return CausalModel(reader(kind, vocab_size=vocab_size), "target")


@cache
def lm(name: str, kind: str = "llama", vocab_size: int = 64) -> LMDrafter:
    """``good``: the target plus a little noise; ``bad``: an unrelated model."""
    model = target(kind, vocab_size)
    module = (
        near_copy(model.module, noise=0.04)
        if name == "good"
        else reader(kind, seed=7, vocab_size=vocab_size)
    )
    return LMDrafter(name, CausalModel(module, name), model, head_home(model.hidden_size))


@cache
def padded(name: str, kind: str = "llama", vocab_size: int = 64) -> LMDrafter:
    """``good`` with another number of logits than its target: three more, or two fewer.

    The last row of ``shorter`` is padding, too. Padding rows have the largest logits.
    """
    model, num = target(kind, vocab_size), vocab_size + 3 if name == "longer" else vocab_size - 2
    module = near_copy(model.module, noise=0.04)
    module.resize_token_embeddings(num, mean_resizing=False)
    shared = min(num, vocab_size) - (name == "shorter")
    head, generator = module.get_output_embeddings().weight, torch.Generator().manual_seed(2)
    with torch.no_grad():
        head[shared:] = torch.randn(head[shared:].shape, generator=generator)
    home = head_home(model.hidden_size)
    return LMDrafter(name, CausalModel(module, name), model, home, shared)


@cache
def eagle_target(kind: str = "llama", vocab_size: int = 64) -> CausalModel:
    """A separate target for pools with a head: other pools' targets collect no hidden states."""
    return CausalModel(target(kind, vocab_size).module, "target")


@cache
def eagle(kind: str = "llama", vocab_size: int = 64) -> EagleDrafter:
    """An EAGLE-3 head with a reduced vocabulary, overfitted to the first target's answers."""
    model, size = eagle_target(kind, vocab_size), vocab_size - vocab_size // 6
    if (kind, vocab_size) == ("llama", 64):
        with torch.inference_mode(False), torch.enable_grad():
            texts = [prompt + plain_greedy(prompt, 40) for prompt in PROMPTS]
            head = taught_head(model, texts, size)
    else:
        head = eagle_head(model, draft_vocab_size=size, own=False)
    return EagleDrafter("eagle", head, model)


@cache
def rounded(kind: str = "llama", vocab_size: int = 64) -> EagleDrafter:
    """``eagle`` in bfloat16, beside a target in float32."""
    model, head = eagle_target(kind, vocab_size), copy.deepcopy(eagle(kind, vocab_size).head)
    head = head.to(torch.bfloat16)
    head.target_dtype = model.dtype
    return EagleDrafter("rounded", head, model)


@cache
def store(vocab_size: int = 64) -> DatastoreDrafter:
    """A datastore of the prompts, two of the target's answers, and noise."""
    noise = np.random.default_rng(0).integers(0, vocab_size, (20, 30)).tolist()
    texts = [[t for t in prompt if t < vocab_size] for prompt in PROMPTS] + noise
    if vocab_size == 64:
        texts += [prompt + plain_greedy(prompt, 24) for prompt in PROMPTS[:2]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.store"
        with replacing(file) as stream:
            write(stream, [np.array(text) for text in texts], vocab_size)
        return DatastoreDrafter("datastore", str(file), vocab_size=vocab_size)


INSIDE: dict[str, Callable[[str, int], Drafter]] = {
    "eagle": eagle,
    "rounded": rounded,
}
"""Drafters that read the target's hidden states."""


def drafters(names: Sequence[str], kind: str = "llama", vocab_size: int = 64) -> list[Drafter]:
    """The drafters of these names; other names come from the registry."""
    return [
        lm(name, kind, vocab_size)
        if name in {"good", "bad"}
        else padded(name, kind, vocab_size)
        if name in {"longer", "shorter"}
        else store(vocab_size)
        if name == "datastore"
        else INSIDE[name](kind, vocab_size)
        if name in INSIDE
        else registry.build("drafter", name, {"name": name})
        for name in names
    ]


def speculator(
    names: Sequence[str],
    policy: str = "random",
    *,
    kind: str = "llama",
    vocab_size: int = 64,
    reward: str = "length",
    feedback: str = "free",
    lengths: tuple[int, ...] = (1, 4),
    with_none: bool = True,
    rules: tuple[str, ...] = ("fixed",),
    trees: tuple[TreeShape | None, ...] = (None,),
    **options: Any,
) -> Speculator:
    """A speculator over these drafters, with a seed and with cached models."""
    setting = Preset(policy, reward, feedback, lengths, with_none, rules, trees=trees)
    tokenizer = options.pop("tokenizer", None)
    pool = drafters(names, kind, vocab_size)
    model = (eagle_target if INSIDE.keys() & set(names) else target)(kind, vocab_size)
    return Speculator(model, tokenizer, pool, setting, **{"seed": 0, **options})


def spec(table: Table, name: str) -> str:
    """A name with the options that its table gives for tests."""
    options = ",".join(f"{key}={value}" for key, value in table[name][1].items())
    return f"{name}:{options}" if options else name


@cache
def _greedy(kind: str, prompt: tuple[int, ...], num: int, penalty: float) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    found = target(kind).module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num,
        repetition_penalty=penalty,
    )
    return tuple(found[0, len(prompt) :].tolist())


def plain_greedy(
    prompt: Sequence[int], num: int, kind: str = "llama", penalty: float = 1.0
) -> list[int]:
    """The greedy continuation of a prompt by ``transformers``."""
    return list(_greedy(kind, tuple(prompt), num, penalty))


def run(engine: Engine, *requests: Request) -> None:
    """Admit requests, and run the engine to its end."""
    for request in requests:
        engine.admit(request)
    for _ in range(1000):
        if not engine.has_work:
            return
        engine.step()
    raise AssertionError("the engine never comes to an end")
