"""Evidence on rules that did not play: those that would have stopped the draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract.test_guides import described
from draftwise import Draft, Plan, make_guide, make_reward, verify
from draftwise.drafters import Context, DraftTask
from draftwise.engine import RuleComparison, draw
from draftwise.registry import make_feedback
from draftwise.stop_rules import Fixed
from draftwise.types import Decision, DraftStep, Evidence, SamplingParams, TreeShape
from engine.exact import Law, World, law, model, texts_of
from engine.pairs import POOLS, PROMPTS, drafters, plain_greedy, speculator
from sessions import opened

RULES = ("svip:0.9", "max-confidence:0.5", "logit-margin", "svip-difference", "adaedl:0.6")
PLANS = [
    Plan("none", 0), Plan("a", 8), Plan("a", 8, "svip"), Plan("a", 2, "svip"),
    Plan("a", 8, "adaedl"), Plan("b", 8, "svip"), Plan("a", 8, "fixed", TreeShape(2, 8)),
]  # fmt: skip


def shown(options: str, reward: str, evidence: Evidence) -> dict[int, float]:
    """The values that a policy sees, by plan."""
    revealer = make_feedback(f"prefix{options}", plans=PLANS, reward=make_reward(reward))
    ((_, feedback),) = revealer.reveal(Decision(1, 1.0, 1), evidence)
    return {int(i): float(feedback.values[i]) for i in np.flatnonzero(feedback.seen)}


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        # of 8 drafted; svip would have stopped after 5, and with length 2 after 2; L = 8
        (8, {0: 0.0, 1: 8 / 8, 2: 5 / 8, 3: 2 / 8}),
        (3, {0: 0.0, 1: 3 / 8, 2: 3 / 8, 3: 2 / 8}),
        (0, {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}),
    ],
)
def test_simple_reward_by_hand(accepted: int, expected: dict[int, float]) -> None:
    evidence = Evidence(PLANS[1], 8, accepted, stops={"svip": 5})
    assert shown(":rules=true", "simple", evidence) == expected
    own = {index: expected[index] for index in (0, 1)}
    assert shown("", "simple", evidence) == own, "only on demand"


def test_blend_counts_what_each_would_have_drafted() -> None:
    """3 accepted of 8; svip would have drafted 5: 0.5 * 3/8 + 0.5 * 3/5, and 2 of length 2."""
    found = shown(":rules=true", "blend", Evidence(PLANS[1], 8, 3, stops={"svip": 5}))
    assert found == pytest.approx(
        {0: 0.0, 1: 3 / 16 + 3 / 16, 2: 3 / 16 + 3 / 10, 3: 2 / 16 + 1 / 2}
    )


def test_a_tree_tells_nothing_about_chains() -> None:
    assert shown(":rules=true", "simple", Evidence(PLANS[6], 6, 3)) == {0: 0.0, 1: 3 / 8}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_the_outcome_read_off_has_exactly_the_law_of_playing(rule: str, seed: int) -> None:
    """(drafted, accepted) of a rule, from rounds in which the whole length was drafted."""
    p, q, length = model(f"p{seed}"), model(f"q{seed}", parts=6), 3

    def outcome(world: World, watching: bool) -> tuple[int, int]:
        stops: dict[str, int] = {}
        own = make_guide(rule)
        guide = RuleComparison(Fixed(), {rule: own}, stops) if watching else own
        tokens: list[int] = []
        probs: list[Any] = []
        step = DraftStep(0, length)
        while len(tokens) < length and guide.should_continue(step):
            probs.append(q(tuple(tokens)))
            tokens.append(draw(probs[-1], world.uniform()))
            step = described(probs[-1], tokens[-1], step)
        draft = Draft.chain(tokens, probs, "q")
        targets = [p(text) for text in texts_of(draft)]
        accepted = verify(draft, targets, world.uniforms(len(draft) + 1)).num_accepted
        drafted = stops.get(rule, len(tokens))
        return drafted, min(accepted, drafted)

    def lawful(watching: bool) -> Law:
        return law(lambda world: outcome(world, watching))

    assert lawful(watching=True) == lawful(watching=False)


@pytest.mark.parametrize("name", ["good", "lookup"])
@pytest.mark.parametrize("rule", RULES)
def test_a_watched_draft_is_the_one_the_rule_would_have_made(name: str, rule: str) -> None:
    """A rule must stop at the same token when it watches as when it decides."""
    num_stops = 0
    for seed in range(12):

        def propose(guide: Any, seed: int = seed) -> Draft:
            sampling, rng = SamplingParams(1.0), np.random.default_rng(seed)
            context = Context(0, PROMPTS[seed % 4] + [seed], sampling, rng)
            with torch.inference_mode():
                (drafter,) = drafters([name])
                (draft,) = opened(drafter, [context]).propose([DraftTask(context, 8, guide)])
            return draft

        stops: dict[str, int] = {}
        watched = propose(RuleComparison(Fixed(), {rule: make_guide(rule)}, stops))
        played = propose(make_guide(rule))
        assert len(played) == stops.get(rule, len(watched))
        assert watched.tokens.tolist()[: len(played)] == played.tokens.tolist()
        num_stops += rule in stops
    assert num_stops >= (name == "good") or rule == "svip-difference"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_in_the_engine_every_rule_is_compared_and_no_token_changes(temperature: float) -> None:
    rules = ("fixed", *RULES, "tapout-token")
    made = speculator(
        POOLS["good+lookup"], "ucb1", feedback="prefix:rules=true", rules=rules, lengths=(6,),
        with_none=False,
    )  # fmt: skip
    generation = made.start(PROMPTS[:3], max_new_tokens=24, temperature=temperature, seed=3)
    seen: list[Evidence] = []
    for request in generation._requests:
        reveal = request.feedback.reveal

        def noted(decision: Any, evidence: Evidence, reveal: Any = reveal) -> Any:
            seen.append(evidence)
            return reveal(decision, evidence)

        request.feedback.reveal = noted  # type: ignore[method-assign]
    list(generation)
    if not temperature:
        found = [result.tokens for result in generation.results()]
        assert found == [plain_greedy(prompt, 24) for prompt in PROMPTS[:3]]
    stops = [(e.plan, e.num_drafted, rule, n) for e in seen for rule, n in e.stops.items()]
    assert {rule for _, _, rule, _ in stops} >= set(RULES) - {"svip-difference"}
    assert all(0 < n <= drafted and rule != plan.rule for plan, drafted, rule, n in stops)
    assert "tapout-token" not in {rule for _, _, rule, _ in stops}, "it may not be asked"


@pytest.mark.parametrize(
    ("feedback", "num"),
    [("bandit", 0), ("prefix", 0), ("free", 0), ("prefix:rules=true", 1), ("free:rules=true", 1)],
)
def test_rules_are_compared_on_demand_only(feedback: str, num: int) -> None:
    made = speculator(["good"], feedback=feedback, rules=("fixed", "svip"), lengths=(6,))
    (request,) = made.start(PROMPTS[0], max_new_tokens=20)._requests
    task = request.task(Plan("good", 6), 6)
    assert isinstance(task.guide, RuleComparison) == (num > 0)
