"""Learning stop rules in the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import COSTS, tiny_text

from draftwise.bandits.stop_rules import AdaEdl
from draftwise.registry import make_stop_rule
from draftwise.types import DraftwiseError, Plan
from draftwise_lab.sim.match import stop_rules_of
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.text import Text, Track, runs_of
from models import head_home

NUM = 16


def text_of(entropies: list[float]) -> Text:
    """A drafter that is always right, with these entropies and then 0."""
    sure = np.ones(NUM)
    given = np.array([*entropies, *[0.0] * (NUM - len(entropies))])
    track = Track(sure, sure, runs_of(sure > 0), max_probs=sure, entropies=given, margins=sure)
    return Text("t", 8, 8, {"a": track, "r": tiny_text().tracks["r"]})


def test_a_played_rule_is_taught() -> None:
    """All of four tokens are accepted: lambda falls by (1 - 0.9) * 0.01."""
    rule, plan = AdaEdl(), Plan("a", 4, "adaedl")
    SimulatedRequest(text_of([]), [plan], COSTS, {"adaedl": rule}).play(plan)
    assert rule.threshold == pytest.approx(0.7 - 0.1 * 0.01, abs=1e-12)


def test_entropies_come_with_the_one_before() -> None:
    """Roots 0, 0.1, 0.5: the jump is after the third token; the first token has no predecessor."""
    plan = Plan("a", 4, "svip-difference")
    for entropies, expected in (([0.0, 0.01, 0.25], 3), ([4.0, 4.0, 4.0, 4.0], 4)):
        stop_rules = {plan.rule: make_stop_rule(plan.rule)}
        request = SimulatedRequest(text_of(entropies), [plan], COSTS, stop_rules)
        assert request.play(plan).num_drafted == expected


def test_a_rule_that_reads_hidden_states_is_refused() -> None:
    with pytest.raises(DraftwiseError, match=r"'head:.*' reads hidden states"):
        stop_rules_of([Plan("a", 4, f"head:{head_home() / 'head'}")])
