"""The contract of every stop rule in the registry."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Draft, make_stop_rule, verify
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.engine.verify import draw
from draftwise.protocols import StopRule
from draftwise.registry import STOP_RULES
from draftwise.types import DraftStep, SamplingParams
from engine.exact import Model, World, completed, law, model, own_law, texts_of
from engine.pairs import lm, spec
from models import head_home
from sessions import opened

ALL = pytest.mark.parametrize("name", sorted(STOP_RULES))
STEPS = [
    DraftStep(depth, 8, prob * top, top, entropy, top / 2, 0.3)
    for depth, prob, top, entropy in itertools.product(
        (1, 2, 7), (0.1, 1.0), (0.05, 0.3, 0.79, 0.81, 1.0), (0.0, 0.5, 3.0)
    )
]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make(name: str, seed: int = 0) -> StopRule:
    return make_stop_rule(spec(STOP_RULES, name), seed, home=head_home())


def state_of(*facts: float) -> Any:
    """A made-up hidden state [32], derived from numbers known about a token."""
    rng = np.random.default_rng([int(1000 * fact) for fact in facts])
    return rng.normal(size=32).astype(np.float32)


def described(q: Any, token: int, before: DraftStep) -> DraftStep:
    """The draft step that a stop rule sees after this token was kept."""
    low, top = sorted(float(x) for x in q)[-2:]
    entropy = -sum(float(x) * math.log(x) for x in q if x)
    seen = (float(q[token]), top, entropy, top - low, before.entropy)
    states = (state_of(float(q[token]), top, token), before.hidden)
    return DraftStep(before.depth + 1, before.length, *seen, *states)


def round_of(
    world: World, p: Model, q: Model, stop_rule: StopRule, text: tuple[int, ...], length: int,
    is_dropped: bool = False,
) -> tuple[int, ...]:  # fmt: skip
    """The text after one round: a chain as long as the rule allows, verified, then learned from."""
    tokens: list[int] = []
    probs: list[Any] = []
    step = DraftStep(0, length)
    while len(tokens) < length and stop_rule.should_continue(step):
        probs.append(q((*text, *tokens)))
        tokens.append(draw(probs[-1], world.uniform()))
        step = described(probs[-1], tokens[-1], step)
    if is_dropped and 0 < len(tokens) < length:
        tokens, probs = tokens[:-1], probs[:-1]
    draft = Draft.chain(tokens, probs, "q")
    targets = [p((*text, *more)) for more in texts_of(draft)]
    verdict = verify(draft, targets, world.uniforms(len(draft) + 1))
    if tokens:
        stop_rule.learn(len(tokens), verdict.num_accepted)
    return (*text, *verdict.tokens.tolist())


@ALL
def test_without_learning_a_rule_depends_on_the_step_alone(name: str) -> None:
    if name == "tapout-token":  # its bandits draw
        return
    stop_rule = make(name)
    first = [stop_rule.should_continue(step) for step in STEPS]
    assert [stop_rule.should_continue(step) for step in reversed(STEPS)] == first[::-1]
    assert [make(name).should_continue(step) for step in STEPS] == first


@ALL
def test_answers_are_booleans_and_the_same_seed_learns_the_same(name: str) -> None:
    """A rule's answers depend only on its seed, the steps it saw and the outcomes it learned."""

    def life(stop_rule: StopRule) -> list[bool]:
        answers = []
        for num, step in enumerate([s for s in STEPS if s.depth == 1] * 3):
            answers += [stop_rule.should_continue(DraftStep(0, 8)), stop_rule.should_continue(step)]
            stop_rule.learn(2, num % 3)
        return answers

    found = life(make(name))
    assert {type(answer) for answer in found} == {bool}
    assert life(make(name)) == found


@ALL
@pytest.mark.parametrize("num_accepted", [0, 1, 5])
def test_any_ending_can_be_told_at_any_time(name: str, num_accepted: int) -> None:
    """Outcomes may arrive before the first draft, or for more tokens than calls of the rule."""
    stop_rule = make(name)
    stop_rule.learn(5, num_accepted)
    assert isinstance(stop_rule.should_continue(DraftStep(0, 5)), bool)
    stop_rule.learn(5, num_accepted)


@ALL
def test_the_first_token_can_be_asked_for_without_knowing_anything(name: str) -> None:
    assert isinstance(make(name).should_continue(DraftStep(0, 5)), bool)


@ALL
def test_a_stop_rule_that_needs_no_probabilities_looks_at_none(name: str) -> None:
    stop_rule = make(name)
    if not stop_rule.needs_probs:
        for step in STEPS:
            assert stop_rule.should_continue(step) == stop_rule.should_continue(
                DraftStep(step.depth, step.length)
            )


@ALL
@pytest.mark.parametrize("seed", range(4))
def test_the_output_has_exactly_the_law_of_the_target(name: str, seed: int) -> None:
    """Level 2 of the losslessness tests, with this rule ending drafts of up to three tokens."""
    p, q = model(f"p{seed}"), model(f"q{seed}", parts=3)

    def play(world: World) -> tuple[int, ...]:
        return round_of(world, p, q, make(name, seed), (), 3)

    assert completed(law(play), p, 4) == own_law(p, 4)
    assert sum(own_law(p, 4).values()) == Fraction(1)


@ALL
@pytest.mark.parametrize("seed", range(2))
def test_what_a_stop_rule_learned_does_not_change_the_law(name: str, seed: int) -> None:
    """Over three rounds later drafts end where earlier outcomes taught the rule to end them."""
    p, q = model(f"p{seed}", parts=2), model(f"q{seed}", parts=2)

    def play(world: World) -> tuple[int, ...]:
        stop_rule, text = make(name), ()
        for _ in range(3):
            text = round_of(world, p, q, stop_rule, text, 2) if len(text) < 4 else text
        return text[:4]

    assert completed(law(play), p, 4) == own_law(p, 4)


@pytest.mark.parametrize("name", sorted(set(STOP_RULES) - {"fixed"}))
def test_teeth_a_token_dropped_for_its_own_probability(name: str) -> None:
    """Planted bug: the rule judges the drawn token itself, and dropping that token is biased."""

    def is_exact(seed: int, is_dropped: bool) -> bool:
        p, q = model(f"p{seed}"), model(f"q{seed}", parts=6)

        def play(world: World) -> tuple[int, ...]:
            return round_of(world, p, q, OfItsOwn(make(name, seed)), (), 3, is_dropped)

        return completed(law(play), p, 3) == own_law(p, 3)

    assert all(is_exact(seed, is_dropped=False) for seed in range(3))
    assert not all(is_exact(seed, is_dropped=True) for seed in range(3))


class OfItsOwn:
    """A stop rule that is shown the drawn token's own probability and surprise instead of q's."""

    needs_probs = True
    never_stops = waits_for_hidden = False
    needs_hidden = 0

    def __init__(self, stop_rule: StopRule) -> None:
        self._stop_rule, self._before = stop_rule, float("nan")

    def should_continue(self, step: DraftStep) -> bool:
        own = -math.log(step.prob)  # nan at depth 0
        before, self._before = self._before, own
        seen = (step.prob, step.prob, own, step.prob, before, step.hidden)
        return self._stop_rule.should_continue(DraftStep(step.depth, step.length, *seen))

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        self._stop_rule.learn(num_drafted, num_accepted)


@ALL
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_asks_before_each_token_and_drops_none(name: str, temperature: float) -> None:
    """The draft has one token per yes, and the rule saw the last token."""
    stop_rule, steps = make(name), []

    class Listener:
        needs_probs = True
        never_stops = waits_for_hidden = False
        needs_hidden = 0

        def should_continue(self, step: DraftStep) -> bool:
            steps.append((step, stop_rule.should_continue(step)))
            return steps[-1][1]

        def learn(self, num_drafted: int, num_accepted: int) -> None:
            raise AssertionError("drafters tell no stop rule anything: the engine does")

    sampling = SamplingParams(temperature)
    for seed in range(5):
        steps.clear()
        context = Context(0, [seed, 5, 9], sampling, np.random.default_rng(seed))
        (draft,) = opened(lm("good"), [context]).propose([DraftTask(context, 6, Listener())])
        assert [step.depth for step, _ in steps] == list(range(len(steps)))
        assert len(draft) == sum(answer for _, answer in steps)
        for node, (step, _) in enumerate(steps[1:]):
            q = draft.q(node)
            if temperature and not isinstance(q, int):
                assert step.prob == pytest.approx(float(q[draft.tokens[node]]), abs=1e-6)
                assert step.max_prob == pytest.approx(float(q.max()), abs=1e-6)
