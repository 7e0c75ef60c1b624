"""What a choice costs: ``choose`` and ``learn`` of every policy in the table, at 64 plans.

    python -m benchmarks policy_costs
    python -m benchmarks policy_costs -k thompson --benchmark-json FILE
    python -m benchmarks policy_costs -k joint --benchmark-columns min,median

``none`` and 7 drafters (2 of them retrieval) at 9 lengths. Feedback is of two kinds: bandit (the
played plan is seen, its drafter scored) and all seen (every plan seen, every drafter scored). One
operation is a round: choose, then learn what that round showed. After 300 rounds of warm-up, the
median over 60 stretches of 60 rounds each, so that work done only every so many rounds counts.
The aims: 50 microseconds for the policies that play the best index, 150 for the others. What is
missed is marked and nothing fails: this is a measurement, not a test. ``goodput, memory`` is in the
middle of a request of scope ``auto``. In brackets the quickest stretch: a shared machine has more.
``joint``: one choice for 16 and 64 rows that are six random rounds old, padded or end to end; the
mean of six such batches, and the aim for 64 is 500.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console
from rich.table import Table

from draftwise.policies.goodput.policy import Goodput
from draftwise.protocols import Policy, Remembering
from draftwise.registry import POLICIES, make_policy
from draftwise.types import PLAIN, Costs, Decision, Evidence, Feedback, Plan, Scores

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LM_DRAFTERS = ("lm0", "lm1", "lm2", "lm3", "lm4")
RETRIEVAL = ("lookup", "suffix")
PLANS = [PLAIN, *(Plan(d, k) for d in LM_DRAFTERS + RETRIEVAL for k in LENGTHS)]
NUM_STRETCHES = STRETCH = 60
WARMUP = 300
SEEN = ("bandit", "all seen")
AIM_US = {True: 50.0, False: 150.0}  # index policies, others
MEMORY = "goodput, memory"
AIM_MEMORY_US = 60.0
INDEX = {
    "fixed", "ucb1", "ucbspec", "ucb-tuned", "discounted-ucb", "sliding-ucb", "sequential-halving",
    "petc", "draft-all", "router",
}  # fmt: skip
"""Those that play the largest index, or one plan for ever: no probabilities to compute."""


def evidence_of(plan: Plan, rng: np.random.Generator, everyone: bool) -> Evidence:
    """A round of ``plan``, of which 3 tokens at most were accepted."""
    num_accepted = min(plan.length, int(rng.integers(4)))
    num_scored = num_accepted + 1 if everyone else min(num_accepted + 1, plan.length)
    names = LM_DRAFTERS if everyone else {plan.drafter} & set(LM_DRAFTERS)
    scores = {name: Scores(64, rng.random(num_scored), rng.random(num_scored)) for name in names}
    for name in RETRIEVAL:
        alphas, matches = rng.random(num_accepted + 1), rng.integers(0, 9, num_accepted + 1)
        scores[name] = Scores(64, alphas, alphas, matches)
    return Evidence(
        plan, plan.length, num_accepted, scores, rng.random(plan.length), 64, 0.01,
        Costs(np.linspace(0.01, 0.016, 17), dict.fromkeys(LM_DRAFTERS + RETRIEVAL, 0.0005)),
        {name: int(rng.integers(9)) for name in RETRIEVAL},
    )  # fmt: skip


def feedback_of(seen: str) -> list[list[Feedback]]:
    """Four feedbacks for each plan, made beforehand so that only the policy is timed."""
    rng, everyone = np.random.default_rng(0), seen == "all seen"
    return [
        [
            Feedback(
                rng.random(len(PLANS)),
                np.full(len(PLANS), everyone) | (np.arange(len(PLANS)) == index),
                evidence_of(plan, rng, everyone),
            )
            for _ in range(4)
        ]
        for index, plan in enumerate(PLANS)
    ]


def with_tokens(feedback: Feedback, rng: np.random.Generator) -> Feedback:
    """The same, and what the round emitted."""
    assert feedback.evidence is not None
    tokens = tuple(rng.integers(2048, size=feedback.evidence.num_emitted).tolist())
    return replace(feedback, evidence=replace(feedback.evidence, tokens=tokens))


def spec(name: str) -> str:
    """The name with the options of the table."""
    options = ",".join(f"{key}={value}" for key, value in POLICIES[name][1].items())
    return f"{name}:{options}" if options else name


@pytest.fixture(scope="module")
def medians(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], tuple[float, float]]]:
    """Microseconds by policy and feedback, printed as a table at the end: median and least."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        Console(width=100).print("\n", table_of(found))


def table_of(found: dict[tuple[str, str], tuple[float, float]]) -> Table:
    """A row a policy, the slowest last."""
    table = Table("policy", *(f"{seen}, us" for seen in SEEN), "aim, us", "")
    names = {name for name, _ in found}
    unknown = (np.nan, np.nan)
    for name in sorted(names, key=lambda name: max(found.get((name, s), unknown) for s in SEEN)):
        aim = AIM_MEMORY_US if name == MEMORY else AIM_US[name in INDEX]
        mine = [found.get((name, seen), unknown) for seen in SEEN]
        verdict = "" if max(mine)[0] <= aim else "missed"
        cells = [f"{median:.0f} ({least:.0f})" for median, least in mine]
        table.add_row(name if name == MEMORY else spec(name), *cells, f"{aim:.0f}", verdict)
    return table


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("name", [*sorted(POLICIES), MEMORY])
def test_a_round(
    benchmark: BenchmarkFixture,
    medians: dict[tuple[str, str], tuple[float, float]],
    name: str,
    seen: str,
) -> None:
    """Choose and learn; a name that pytest collects, and nothing to fail."""
    own = "goodput" if name == MEMORY else spec(name)
    policy: Policy = make_policy(own, len(PLANS), seed=0, plans=PLANS)
    told, turn = feedback_of(seen), itertools.cycle(range(4))
    if name == MEMORY:
        assert isinstance(policy, Remembering)
        rng = np.random.default_rng(0)
        policy.recall(policy.new_memory(), rng.integers(2048, size=200).tolist())
        told = [[with_tokens(feedback, rng) for feedback in row] for row in told]

    def play() -> None:
        decision = policy.choose()
        policy.learn(decision, told[decision.plan][next(turn)])

    for _ in range(WARMUP):
        play()
    benchmark.pedantic(play, rounds=NUM_STRETCHES, iterations=STRETCH)
    if benchmark.stats is not None:  # None under --benchmark-disable
        found = benchmark.stats.stats
        medians[name, seen] = found.median * 1e6, found.min * 1e6


def batch_of(num: int, packed: bool, seed: int) -> list[Goodput]:
    """Rows of one batch, each with drafters as good as chance has it."""
    rng, rows = np.random.default_rng(seed), []
    batch_s = np.linspace(0.01, 0.05, num * 17) if packed else None
    target_s = np.linspace(0.01, 0.016, 17) * (1.0 + 0.02 * num)
    costs = Costs(target_s, dict.fromkeys(LM_DRAFTERS + RETRIEVAL, 0.0005), batch_s)
    nothing = np.zeros(len(PLANS)), np.zeros(len(PLANS), dtype=bool)
    for _ in range(num):
        rows.append(row := Goodput(len(PLANS), PLANS))
        share = rng.random()
        for _ in range(6):
            told = evidence_of(PLANS[rng.integers(len(PLANS))], rng, bool(rng.random() < 0.5))
            scores = {n: replace(s, alphas=s.alphas * share) for n, s in told.scores.items()}
            row.learn(
                Decision(0, 1.0, 0), Feedback(*nothing, replace(told, scores=scores, costs=costs))
            )
    return rows


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "end to end"])
@pytest.mark.parametrize("num", [16, 64])
def test_a_joint_choice(benchmark: BenchmarkFixture, num: int, packed: bool) -> None:
    """The plans of one round of a batch; nothing to fail, as above."""
    turn = itertools.cycle([batch_of(num, packed, seed) for seed in range(6)])
    benchmark.pedantic(
        lambda: Goodput.choose_together(next(turn)),
        rounds=NUM_STRETCHES,
        iterations=6,
        warmup_rounds=1,
    )
