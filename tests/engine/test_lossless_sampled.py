"""Losslessness, level 3: sampled text, end to end, has the target's distribution.

Method: thousands of short answers to two prompts run as rows of a few batches (each row has its own
random streams); counts of whole answers are compared with the exact probabilities by a chi-square
test. Those come from plain forwards of the target and the library's logits processors, so that
sampling options are checked, too. Answers rarer than five expected ones are pooled.

False alarms: seeds are fixed, so a passing run stays passing. A sound change that merely draws
random numbers differently fails a case with probability 1e-5 (``LEVEL``).

Planted bugs must be rejected at the same level.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftwise.drafters import drawing as chain_module
from draftwise.engine import loop as verification_module
from draftwise.nn import verify as verify_module
from draftwise.registry import STOP_RULES
from draftwise.speculator import Speculator
from draftwise.types import Draft, SamplingParams, TreeShape
from engine.pairs import spec, speculator, target
from engine.scripted import Alternating

VOCAB = 6
LENGTH = 4
PROMPTS = ([3, 1, 4, 1, 5, 2, 3, 1], [2])
NUM_ROWS = 500
NUM_BATCHES = 3
LEVEL = 1e-5

SAMPLING = {
    "plain": SamplingParams(temperature=1.0),
    "cool, top-k": SamplingParams(temperature=0.7, top_k=4),
    "top-p": SamplingParams(temperature=1.0, top_p=0.85),
    "narrow top-p": SamplingParams(temperature=1.0, top_p=0.6),
    "penalised": SamplingParams(temperature=1.0, repetition_penalty=1.6),
    "all": SamplingParams(temperature=0.7, top_k=5, top_p=0.9, repetition_penalty=1.3),
    "of a form": SamplingParams(temperature=1.0, process=Alternating()),
}
ONE, TWO = {"policy": "fixed:1", "lengths": (3,)}, {"policy": "fixed:1", "lengths": (2,)}
DRAWN = {"policy": "random", "lengths": (3,), "with_none": False}
OTHERS = {"policy": "exp3spec", "feedback": "panoramic", "lengths": (1, 3)}
BOTH = (None, TreeShape(3, 6))
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"names": ["good"], **ONE},
    "poor drafter": {"names": ["bad"], **TWO},
    "stop rule": {"names": ["good"], **ONE, "rules": ("max-confidence:0.4",)},
    "every rule": {
        "names": ["good"], **DRAWN, "rules": tuple(spec(STOP_RULES, name) for name in STOP_RULES),
    },
    "trained head": {"names": ["good"], **DRAWN, "rules": ("head:h=0.5", "head:h=0.5,lag=true")},
    "tree": {"names": ["good"], **ONE, "trees": (TreeShape(2, 5),)},
    "chains and trees": {
        "names": ["good", "bad", "lookup"], "policy": "exp3spec", "lengths": (2,), "trees": BOTH,
    },
    "drafts from other answers": {"names": ["bad", "suffix"], **DRAWN},
    "trees from other answers": {
        "names": ["suffix", "bad"], **DRAWN, "trees": (TreeShape(3, 6),),
    },
    "longer vocabulary": {"names": ["longer"], **ONE},
    "shorter vocabulary": {"names": ["shorter"], **ONE},
    "vocabularies among others": {"names": ["longer", "shorter", "bad"], **OTHERS, "trees": BOTH},
    "eagle": {"names": ["eagle"], **ONE},
    "rounded eagle": {"names": ["rounded"], **ONE},
    "rounded eagle's tree": {"names": ["rounded"], **ONE, "trees": (TreeShape(2, 5),)},
    "eagle's tree": {"names": ["eagle"], **ONE, "trees": (TreeShape(2, 5),)},
    "eagle among others": {"names": ["eagle", "bad", "lookup"], **OTHERS, "trees": BOTH},
    "bandit": {"names": ["good", "bad", "lookup"], "policy": "exp3spec", "lengths": (1, 3)},
    "full information": {
        "names": ["good", "bad", "lookup"], "policy": "hedge", "feedback": "panoramic",
        "lengths": (3,),
    },
}  # fmt: skip


def build(setting: str) -> Speculator:
    options = dict(SETTINGS[setting])
    return speculator(options.pop("names"), vocab_size=VOCAB, **options)


def each_row(process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a callback for one row as a batched processor."""
    return lambda texts, rows: torch.stack(
        [process(text.tolist(), row) for text, row in zip(texts, rows, strict=True)]
    )


def processors(sampling: SamplingParams) -> LogitsProcessorList:
    """The library's processors, in the library's order."""
    chain: list[Any] = []
    if sampling.process is not None:
        chain.append(each_row(sampling.process))
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList(chain)


@cache
@torch.inference_mode()
def own_law(prompt: tuple[int, ...], sampling: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of each answer of ``LENGTH`` tokens, from plain forwards over all prefixes."""
    law = {(): 1.0}
    for _ in range(LENGTH):
        texts = torch.tensor([[*prompt, *answer] for answer in law])
        logits = target(vocab_size=VOCAB).module(input_ids=texts, use_cache=False).logits[:, -1]
        probs = processors(sampling)(texts, logits).double().softmax(-1).tolist()
        law = {
            (*answer, token): weight * share
            for (answer, weight), row in zip(law.items(), probs, strict=True)
            for token, share in enumerate(row)
            if share > 0
        }
    return law


def answers(
    made: Speculator, sampling: SamplingParams, **asked: Any
) -> list[Counter[tuple[int, ...]]]:
    """Counts of answers to each prompt; rows of both prompts share every batch."""
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in PROMPTS]
    prompts = list(itertools.islice(itertools.cycle(PROMPTS), NUM_ROWS))
    for seed in range(NUM_BATCHES):
        results = made.generate(
            prompts, max_new_tokens=LENGTH, sampling=[sampling] * NUM_ROWS, seed=seed, **asked
        )
        for index, result in enumerate(results):
            counts[index % len(PROMPTS)][tuple(result.tokens)] += 1
    return counts


def p_value(counts: Counter[tuple[int, ...]], law: Mapping[tuple[int, ...], Any]) -> float:
    """Chi-square of the counts against the probabilities; 0 if an impossible answer occurred."""
    if counts.keys() - law.keys():
        return 0.0
    num = counts.total()
    cells = [(counts[answer], num * share) for answer, share in law.items()]
    common = [cell for cell in cells if cell[1] >= 5]
    rare = [cell for cell in cells if cell[1] < 5]
    if rare:
        common.append((sum(seen for seen, _ in rare), sum(expected for _, expected in rare)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in common)
    if len(common) < 2:  # one cell alone says nothing
        return 1.0
    half = torch.tensor([(len(common) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def smallest_p_value(made: Speculator, sampling: SamplingParams, **asked: Any) -> float:
    """Over prompts and over the answers' first 1, 2, .. tokens, Bonferroni-corrected."""
    values = [
        p_value(beginnings(counts, num), beginnings(own_law(tuple(prompt), sampling), num))
        for prompt, counts in zip(PROMPTS, answers(made, sampling, **asked), strict=True)
        for num in range(1, LENGTH + 1)
    ]
    return min(values) * len(values)


def beginnings(weights: Mapping[tuple[int, ...], Any], num: int) -> Counter[tuple[int, ...]]:
    """Counts or probabilities of the first ``num`` tokens."""
    found: Counter[tuple[int, ...]] = Counter()
    for answer, weight in weights.items():
        found[answer[:num]] += weight
    return found


CELLS = {
    "fixed": ("plain", "top-p", "penalised", "all", "of a form"),
    "poor drafter": ("cool, top-k",),
    "stop rule": ("plain",),
    "every rule": ("plain", "cool, top-k"),
    "trained head": ("plain", "cool, top-k"),
    "tree": ("plain", "of a form"),
    "eagle's tree": ("of a form", "plain", "cool, top-k"),
    "chains and trees": ("of a form", "all"),
    "drafts from other answers": ("of a form", "plain", "all"),
    "trees from other answers": ("of a form",),
    "bandit": ("plain", "all"),
    "full information": ("top-p",),
    "longer vocabulary": ("plain",),
    "shorter vocabulary": ("plain",),
    "vocabularies among others": ("all",),
    "eagle": ("plain", "all"),
    "eagle among others": ("all",),
}
"""By setting, the ways to sample."""


@pytest.mark.parametrize(
    ("setting", "sampling"), [(name, way) for name, ways in CELLS.items() for way in ways]
)
def test_answers_have_the_law_of_the_target(setting: str, sampling: str) -> None:
    """1,500 answers; a sound engine fails with probability 1e-5 at another seed."""
    assert smallest_p_value(build(setting), SAMPLING[sampling]) > LEVEL


@pytest.mark.parametrize("sampling", ["plain", "all"])
def test_predicted_answers_have_the_law_of_the_target(sampling: str) -> None:
    made = speculator(["lookup"], vocab_size=VOCAB, policy="fixed:1", lengths=(3,))
    prediction = [4, 1, 5, 2, 3, 0, 2, 2, 4, 1]
    assert smallest_p_value(made, SAMPLING[sampling], prediction=prediction) > LEVEL


def cut(law: Mapping[tuple[int, ...], Any], end: int) -> Counter[tuple[int, ...]]:
    """The law of answers that end with their first ``end``."""
    found: Counter[tuple[int, ...]] = Counter()
    for answer, weight in law.items():
        num = answer.index(end) + 1 if end in answer else len(answer)
        found[answer[:num]] += weight
    return found


@pytest.mark.parametrize("setting", ["fixed", "chains and trees", "drafts from other answers"])
@pytest.mark.parametrize("kind", ["stop_token_ids", "eos_token_ids"])
def test_answers_that_end_with_a_token_have_the_law_of_the_target(setting: str, kind: str) -> None:
    end, sampling = 2, SAMPLING["plain"]
    counts = answers(build(setting), sampling, **{kind: [end]})
    laws = [cut(own_law(tuple(prompt), sampling), end) for prompt in PROMPTS]
    values = [p_value(*pair) for pair in zip(counts, laws, strict=True)]
    assert min(values) * len(values) > LEVEL


@pytest.mark.parametrize("setting", ["eagle", "eagle's tree"])
def test_four_rows_of_two_temperatures(setting: str) -> None:
    """150 batches of four, a size that people run, where few rows draft and end together."""
    made, kinds = build(setting), (SamplingParams(1.0), SamplingParams(0.7))
    rows = [(prompt, kind) for prompt in PROMPTS for kind in kinds]
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in rows]
    for seed in range(150):
        results = made.generate(
            [prompt for prompt, _ in rows],
            max_new_tokens=LENGTH,
            sampling=[kind for _, kind in rows],
            seed=seed,
        )
        for said, result in zip(counts, results, strict=True):
            said[tuple(result.tokens)] += 1
    values = [
        p_value(beginnings(said, num), beginnings(own_law(tuple(prompt), kind), num))
        for said, (prompt, kind) in zip(counts, rows, strict=True)
        for num in range(1, LENGTH + 1)
    ]
    assert min(values) * len(values) > LEVEL


# Planted bugs.

Plant = Callable[[pytest.MonkeyPatch], None]


def no_residual(patch: pytest.MonkeyPatch) -> None:
    """After a rejection the bonus token is drawn from p itself."""
    patch.setattr(verify_module, "_left", lambda rest, *more: rest)


def draw_and_discard(patch: pytest.MonkeyPatch) -> None:
    """A drawn token of low probability is dropped from the end of the draft."""
    sound = chain_module.Chain.draft

    def draft(self: Any, source: str) -> Draft:
        while self.tokens and self.nodes[-1].q[self.tokens[-1]] < 0.3:
            self.tokens.pop()
            self.nodes.pop()
        made = sound(self, source)
        return replace(
            made, offpath_probs=[(at, q) for at, q in made.offpath_probs if at < len(self.tokens)]
        )

    patch.setattr(chain_module.Chain, "draft", draft)


def another_q_reported(patch: pytest.MonkeyPatch) -> None:
    """q is reported mixed with a uniform distribution, though tokens are drawn from q itself."""
    sound = chain_module.Chain.keep

    def keep(self: Any, token: int, q: Any, facts: Any) -> None:
        sound(self, token, None if q is None else 0.5 * q + 0.5 / VOCAB, facts)

    patch.setattr(chain_module.Chain, "keep", keep)


def longest_of_several(patch: pytest.MonkeyPatch) -> None:
    """Drafts are verified three times with fresh randomness, and the most accepted tokens win."""
    rng, sound = np.random.default_rng(0), verify_module.rejection_sample

    def rejection_sample(forest: Any, p: Any, q: Any, uniforms: Any, bonus: Any) -> Any:
        fresh = [rng.random((2, len(each))) for each in (uniforms, bonus)]
        tried = [(uniforms, bonus), *zip(*fresh, strict=True)]
        runs = [sound(forest, p, q, *each) for each in tried]
        last, said, following = (torch.stack(each) for each in zip(*runs, strict=True))
        best, rows = last.argmax(0), torch.arange(last.shape[1])
        owners = torch.from_numpy(forest.rows)
        places = torch.arange(following.shape[1])
        return last[best, rows], said[best, rows], following[best[owners], places]

    patch.setattr(verification_module, "rejection_sample", rejection_sample)


@pytest.mark.parametrize(
    ("plant", "setting", "sampling"),
    [
        (no_residual, "poor drafter", "plain"),
        (draw_and_discard, "fixed", "plain"),
        (draw_and_discard, "every rule", "plain"),
        (another_q_reported, "poor drafter", "narrow top-p"),
        (longest_of_several, "poor drafter", "plain"),
    ],
)
def test_teeth(plant: Plant, setting: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of answers in the tests above is enough to detect these bugs."""
    plant(monkeypatch)
    assert smallest_p_value(build(setting), SAMPLING[sampling]) < LEVEL
