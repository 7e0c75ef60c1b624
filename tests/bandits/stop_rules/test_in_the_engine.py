"""Stop rules in the engine: one per request, fed with that request's drafts only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftwise.engine.engine import Generation
from draftwise.engine.options import RequestParams
from draftwise.engine.outputs import Ending
from draftwise.engine.request import RoundState
from draftwise.registry import STOP_RULES, preset
from draftwise.speculator import Speculator
from draftwise.types import Plan, SamplingParams
from engine.pairs import POOLS, PROMPTS, plain_greedy, spec, speculator

SAMPLED = SamplingParams(temperature=0.9, top_k=20)
LEARNING = ("adaedl:epsilon=0.5", "tapout-token:bandit=thompson-bernoulli", "tapout-token")


def start(made: Speculator, rows: list[int], params: SamplingParams) -> Generation:
    """Start requests in one batch, each with the random streams of its number."""
    streams = np.random.SeedSequence(5).spawn(len(PROMPTS))
    requests = [
        made._learning.request(
            PROMPTS[row], RequestParams(sampling=params), Ending(30), streams[row]
        )
        for i, row in enumerate(rows)
    ]
    return Generation(made.engine(num_prefixes=0), requests, None)


def run(made: Speculator, rows: list[int], params: SamplingParams) -> list[Any]:
    """Each row's tokens, their sources and the draft lengths."""
    generation = start(made, rows, params)
    rounds = list(generation)
    return [
        (result.tokens, result.sources, [r.num_drafted for r in rounds if r.request == i])
        for i, result in enumerate(generation.results())
    ]


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rule", LEARNING)
def test_a_row_is_the_same_alone_and_in_any_company(rule: str, params: SamplingParams) -> None:
    made = speculator(POOLS["all"], "ucb1", rules=(rule,), lengths=(6,), with_none=False)
    alone = [run(made, [row], params)[0] for row in range(4)]
    assert run(made, [0, 1, 2, 3], params) == alone
    assert run(made, [2, 0], params) == [alone[2], alone[0]]
    assert len({num for _, _, lengths in alone for num in lengths}) > 2, "nothing was stopped"


class Spy:
    """A stop rule that always continues and records the outcomes it learns."""

    needs_probs = never_stops = waits_for_hidden = False
    needs_hidden = 0

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def should_continue(self, step: Any) -> bool:
        return True

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        self.told.append((num_drafted, num_accepted))


@pytest.mark.parametrize("pool", ["bad", "good", "all"])
def test_the_stop_rule_of_the_played_plan_hears_how_its_draft_ended(pool: str) -> None:
    made = speculator(POOLS[pool], "random", rules=("fixed", "svip"), lengths=(1, 4))
    generation = start(made, [0, 2], SAMPLED)
    expected: dict[Any, list[tuple[int, int]]] = {}
    for request in generation._requests:
        request.decider.stop_rules = {key: Spy() for key in request.decider.stop_rules}
    for round_ in generation:
        if round_.num_drafted:
            key = (round_.request, round_.plan.drafter, round_.plan.rule)
            expected.setdefault(key, []).append((round_.num_drafted, round_.num_accepted))
    found = {
        (index, *key): stop_rule.told  # type: ignore[attr-defined]
        for index, request in enumerate(generation._requests)
        for key, stop_rule in request.decider.stop_rules.items()
        if stop_rule.told  # type: ignore[attr-defined]
    }
    assert found == expected
    assert len(found) >= 4


def test_requests_share_no_stop_rule_and_drafters_share_none() -> None:
    made = speculator(POOLS["all"], rules=("adaedl",), lengths=(1, 4))
    requests = start(made, [0, 1], SAMPLED)._requests
    stop_rules = [
        stop_rule for request in requests for stop_rule in request.decider.stop_rules.values()
    ]
    assert len(stop_rules) == 6 == len({id(stop_rule) for stop_rule in stop_rules})
    plain = requests[0].decider.plain
    first, longer = (
        RoundState(requests[0], plain, Plan("good", num, "adaedl")).task(num) for num in (1, 4)
    )
    assert first.stop_rule is longer.stop_rule, "what a rule learned holds for every length"


@pytest.mark.parametrize("names", [["good"], ["bad", "lookup"]])
def test_preset_tapout(names: list[str]) -> None:
    """Plans differ in their rule only; with several drafters, there is a plan for each pair."""
    setting = preset("tapout")
    plans = setting.plans(names)
    assert len(plans) == 5 * len(names)
    assert {(plan.drafter, plan.length) for plan in plans} == {(name, 128) for name in names}
    made = speculator(
        names, setting.policy, reward=setting.reward, feedback=setting.feedback,
        lengths=setting.lengths, rules=setting.rules, with_none=setting.with_none,
    )  # fmt: skip
    for prompt in (PROMPTS[0], PROMPTS[2]):
        assert made.generate(prompt, max_new_tokens=40).tokens == plain_greedy(prompt, 40)


@pytest.mark.parametrize("name", sorted(set(STOP_RULES) - {"fixed"}))
def test_every_rule_ends_drafts_early(name: str) -> None:
    """A rule that never stopped a draft would pass every test of losslessness."""
    made = speculator(["good"], "fixed:0", rules=(spec(STOP_RULES, name),), lengths=(8,),
                      with_none=False)  # fmt: skip
    rounds = [r for r in made.start(PROMPTS[2] * 2, max_new_tokens=60, temperature=1.0)]
    lengths = [r.num_drafted for r in rounds[:-4]]
    assert min(lengths) < 8
    assert min(lengths) >= 1
