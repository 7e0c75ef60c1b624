"""Sampled output inside a real vLLM has the distribution of vLLM without speculation."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest

from draftwise import zoo
from vllm_e2e.jobs import DRAFT_MODEL, IN_PROCESS, run

NUM = int(os.environ.get("DRAFTWISE_E2E_ANSWERS", "4000"))
FALSE_ALARM = 1e-3
"""The false alarm rate of each comparison; there are nine, so a sound run fails once in 112."""

ARMS: dict[str, dict[str, Any]] = {
    "retrieval": {"drafters": ["retrieval"]},
    "model": {"drafters": ["model"]},
    "both": {},
}
"""The drafters that requests may use; drafted tokens are treated as free, so all are used."""


PROMPTS = {
    "a b a c a d a": 1.0,
    "and the and the and ": 0.95,
    "### python\ndef pop(self, key": 0.95,
}
"""Prompts with top-p and diverse continuations: two for retrieval, one for the draft model."""


def requests(**wishes: Any) -> list[dict[str, Any]]:
    sampled = {"temperature": 0.7, "max_tokens": 6, "ignore_eos": True, "detokenize": False}
    sampled |= {"extra_args": wishes}
    kinds = [{"prompt": prompt, "top_p": top_p} | sampled for prompt, top_p in PROMPTS.items()]
    return [kinds[i % len(kinds)] for i in range(NUM)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers of plain vLLM, and of every arm in one engine; and the adapter's counts."""
    folder = tmp_path_factory.mktemp("law")
    engine = {"model": str(zoo.target_path()), "max_num_seqs": 256}
    tasks = [{"requests": requests(), "at_once": NUM}]
    plain = run(
        folder, "plain", {"engine": engine, "draftwise": None, "tasks": tasks}, **IN_PROCESS
    )
    arms = [
        {"requests": requests(**wishes), "at_once": NUM, "free": True} for wishes in ARMS.values()
    ]
    job = {"engine": engine | DRAFT_MODEL, "draftwise": {}, "tasks": arms}
    ours = run(folder, "ours", job, **IN_PROCESS)
    return {"plain": plain["answers"][0], "counts": ours["counts"]} | dict(
        zip(ARMS, ours["answers"], strict=True)
    )


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_law_of_the_first_tokens(arm: str, place: int, answers: dict[str, Any]) -> None:
    """Two samples of 4,000, the tokens up to ``place``: a chi-square test of homogeneity."""
    plain, ours = ([tuple(a[: place + 1]) for a in answers[key]] for key in ("plain", arm))
    num = len(PROMPTS)
    found = [p_value(Counter(plain[kind::num]), Counter(ours[kind::num])) for kind in range(num)]
    print(arm, place, [round(p, 4) for p in found])
    assert min(found) > FALSE_ALARM / num


def test_every_arm_was_kept_now_and_then_and_not_always(answers: dict[str, Any]) -> None:
    counts = answers["counts"]
    for drafter in ("retrieval", "model"):
        drafted, accepted = counts["drafted"][drafter], counts["accepted"][drafter]
        assert NUM / 20 < accepted < 0.9 * drafted, (drafter, drafted, accepted)


def test_answers_are_spread(answers: dict[str, Any]) -> None:
    """Each prompt has at least six outcomes of three tokens that are not rare."""
    for kind in range(len(PROMPTS)):
        seen = Counter(tuple(answer[:3]) for answer in answers["plain"][kind :: len(PROMPTS)])
        assert sum(num >= NUM / 400 for num in seen.values()) >= 6


def p_value(plain: Counter, ours: Counter) -> float:
    """The homogeneity p-value of two samples; outcomes with fewer than ten in total are pooled."""
    common = [key for key in plain | ours if plain[key] + ours[key] >= 10]
    table = np.array([[sample[key] for key in common] for sample in (plain, ours)], dtype=float)
    rest = [[sum(sample.values()) - table[i].sum()] for i, sample in enumerate((plain, ours))]
    table = np.hstack([table, rest])
    table = table[:, table.sum(axis=0) > 0]
    totals = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    statistic = float(((table - totals) ** 2 / totals).sum())
    return tail_of_chi_square(statistic, table.shape[1] - 1)


def tail_of_chi_square(statistic: float, freedom: int) -> float:
    """P(chi-square >= statistic), by torch's incomplete gamma function."""
    import torch

    if freedom == 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def test_the_test_finds_a_wrong_law() -> None:
    rng = np.random.default_rng(1)
    fair, off = (
        [tuple(rng.choice(4, 1, p=p)) for _ in range(2000)]
        for p in ([0.4, 0.3, 0.2, 0.1], [0.46, 0.27, 0.18, 0.09])
    )
    assert p_value(Counter(fair), Counter(off)) < FALSE_ALARM
    assert p_value(Counter(fair[:1000]), Counter(fair[1000:])) > FALSE_ALARM
