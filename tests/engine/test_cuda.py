"""Losslessness on a CUDA device, with the bundled models in fp32; skipped without one.

``DRAFTWISE_TEST_DEVICE=cpu pytest tests/engine/test_cuda.py`` runs the same on a CPU.
"""

from __future__ import annotations

import os
import warnings
from functools import cache

import pytest
import torch

from draftwise import Speculator, zoo
from draftwise.nn.model import CausalModel
from draftwise.registry import POLICIES, STOP_RULES
from engine.pairs import spec

DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"
)
POOLS = {
    "models": ["zoo:math", "zoo:sql", "lookup"],
    "heads": ["zoo:eagle-math", "zoo:eagle-python", "lookup", "suffix"],
    "default": None,
}
NUM = 24
WAITS = 2
"""Synchronisations in a round with drafts of fixed length (docs/lab/reproduction/engine.md)."""


@cache
def target() -> CausalModel:
    return Speculator.from_pretrained("zoo", [], device=DEVICE, dtype="float32").target


@cache
def prompts() -> list[list[int]]:
    tokenizer = Speculator.from_pretrained("zoo", [], device="cpu").tokenizer
    texts = [texts[0] for texts in zoo.prompts().values()]
    return [tokenizer(text)["input_ids"][-64:] for text in texts]


@cache
def plain(number: int) -> list[int]:
    """The greedy answer of transformers on the device."""
    ids = torch.tensor([prompts()[number]], device=target().device)
    found = target().module.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM
    )
    return found[0, ids.shape[1] :].tolist()


def assert_greedy(pool: str, num_rows: int, **options: object) -> None:
    made = Speculator.from_pretrained(
        "zoo", POOLS[pool], device=DEVICE, dtype="float32", **{"seed": 0, **options}
    )
    found = made.generate(prompts()[:num_rows], max_new_tokens=NUM)
    assert [answer.tokens for answer in found] == [plain(number) for number in range(num_rows)]
    assert any(answer.stats.num_drafted for answer in found) or pool == "default"


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_greedy(policy: str, pool: str, num_rows: int) -> None:
    feedback = "panoramic" if "hedge" in policy else None
    assert_greedy(pool, num_rows, policy=spec(POLICIES, policy), feedback=feedback)


@pytest.mark.parametrize("stop_rule", [name for name in STOP_RULES if name != "head"])
def test_every_stop_rule_is_greedy(stop_rule: str) -> None:
    assert_greedy("models", 4, policy="random", rules=[spec(STOP_RULES, stop_rule)], lengths=[2, 7])


@pytest.mark.parametrize("pool", ["models", "heads"])
def test_trees_are_greedy(pool: str) -> None:
    assert_greedy(pool, 4, policy="random", trees=["3x7"], lengths=[4])


@pytest.mark.parametrize("pool", ["models", "heads"])
def test_a_sampled_row_is_the_same_in_company(pool: str) -> None:
    drafters = [name for name in POOLS[pool] or () if name != "suffix"]  # others' answers matter
    made = Speculator.from_pretrained(
        "zoo", drafters, device=DEVICE, dtype="float32", policy="fixed:0", lengths=[4],
        rules=["fixed"], seed=0,
    )  # fmt: skip
    seeds = [11, 12, 13, 14]
    together = made.generate(prompts()[:4], max_new_tokens=NUM, temperature=1.0, seed=seeds)
    alone = [
        made.generate(prompt, max_new_tokens=NUM, temperature=1.0, seed=seed)
        for prompt, seed in zip(prompts()[:4], seeds, strict=True)
    ]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]


@pytest.mark.skipif(DEVICE != "cuda", reason="CUDA counts its waits")
@pytest.mark.parametrize("num_rows", [1, 8])
def test_the_host_waits_for_the_device_as_often_as_documented(num_rows: int) -> None:
    made = Speculator.from_pretrained(
        "zoo", ["zoo:math"], device=DEVICE, policy="fixed:0", lengths=[4], seed=0
    )
    engine = made.engine()
    for number in range(num_rows):
        engine.admit(made.request(prompts()[number % 4], max_new_tokens=60))
    while len(engine.step()) < num_rows:
        pass
    waits = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        for _ in range(5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                engine.step()
            ours = [
                w for w in caught if "synchroniz" in str(w.message) and "draftwise" in w.filename
            ]
            waits.append([f"{w.filename.rsplit('/', 2)[-2:]}:{w.lineno}" for w in ours])
    finally:
        torch.cuda.set_sync_debug_mode("default")
        engine.close()
    assert 1 <= max(map(len, waits)) <= WAITS, waits
