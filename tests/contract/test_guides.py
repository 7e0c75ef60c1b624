"""The contract of every guide in the table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Draft, make_guide, verify
from draftwise.dist import draw
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.protocols import Guide
from draftwise.registry import GUIDES
from draftwise.types import DraftStep, DraftwiseError, SamplingParams
from engine.exact import World, completed, law, model, own_law, texts_of
from engine.pairs import lm, spec

ALL = pytest.mark.parametrize("name", sorted(GUIDES))
STEPS = [
    DraftStep(depth, 8, prob * top, top, entropy, top / 2)
    for depth, prob, top, entropy in itertools.product(
        (1, 2, 7), (0.1, 1.0), (0.05, 0.3, 0.79, 0.81, 1.0), (0.0, 0.5, 3.0)
    )
]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make(name: str) -> Guide:
    return make_guide(spec(GUIDES, name))


def described(q: Any, token: int, depth: int, length: int) -> DraftStep:
    """What a guide sees after this token was kept."""
    low, top = sorted(float(x) for x in q)[-2:]
    entropy = -sum(float(x) * math.log(x) for x in q if x)
    return DraftStep(depth, length, float(q[token]), top, entropy, top - low)


@ALL
def test_answers_are_booleans_and_depend_on_nothing_but_the_step(name: str) -> None:
    guide = make(name)
    first = [guide.goes_on(step) for step in STEPS]
    assert {type(answer) for answer in first} == {bool}
    assert [guide.goes_on(step) for step in reversed(STEPS)] == first[::-1]
    assert [make(name).goes_on(step) for step in STEPS] == first


@ALL
def test_the_first_token_can_be_asked_for_without_knowing_anything(name: str) -> None:
    assert isinstance(make(name).goes_on(DraftStep(0, 5)), bool)


@ALL
def test_a_guide_that_needs_no_probabilities_looks_at_none(name: str) -> None:
    guide = make(name)
    if not guide.needs_probs:
        for step in STEPS:
            assert guide.goes_on(step) == guide.goes_on(DraftStep(step.depth, step.length))


@ALL
@pytest.mark.parametrize("seed", range(4))
def test_the_output_has_exactly_the_law_of_the_target(name: str, seed: int) -> None:
    """Level 2 of the losslessness tests, with this guide ending drafts of three."""
    p, q, guide = model(f"p{seed}"), model(f"q{seed}", parts=3), make(name)

    def play(world: World) -> tuple[int, ...]:
        tokens: list[int] = []
        probs: list[Any] = []
        step = DraftStep(0, 3)
        while len(tokens) < 3 and guide.goes_on(step):
            probs.append(q(tuple(tokens)))
            tokens.append(draw(probs[-1], world.uniform()))
            step = described(probs[-1], tokens[-1], len(tokens), 3)
        draft = Draft.chain(tokens, probs, "q")
        targets = [p(text) for text in texts_of(draft)]
        verdict = verify(draft, targets, world.uniforms(len(draft) + 1))
        return tuple(verdict.tokens.tolist())

    assert completed(law(play), p, 4) == own_law(p, 4)
    assert sum(own_law(p, 4).values()) == Fraction(1)


@ALL
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_asks_before_each_token_and_drops_none(name: str, temperature: float) -> None:
    """The draft is as long as the guide said yes, and its last token was seen by the guide."""
    guide, steps = make(name), []

    class Listener:
        needs_probs = True

        def goes_on(self, step: DraftStep) -> bool:
            steps.append((step, guide.goes_on(step)))
            return steps[-1][1]

        def learn(self, num_drafted: int, num_accepted: int) -> None:
            raise AssertionError("drafters tell no guide anything: the engine does")

    sampling = SamplingParams(temperature)
    for seed in range(5):
        steps.clear()
        context = Context(0, [seed, 5, 9], sampling, np.random.default_rng(seed))
        (draft,) = lm("good").start(1, 40).propose([DraftTask(context, 6, Listener())])
        assert [step.depth for step, _ in steps] == list(range(len(steps)))
        assert len(draft) == sum(answer for _, answer in steps)
        for node, (step, _) in enumerate(steps[1:]):
            q = draft.q(node)
            if temperature and not isinstance(q, int):
                assert step.prob == pytest.approx(float(q[draft.tokens[node]]), abs=1e-6)
                assert step.max_prob == pytest.approx(float(q.max()), abs=1e-6)


@ALL
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(DraftwiseError, match="no option 'nonsense'"):
        make_guide(f"{name}:nonsense=1")
