"""The default policy in the simulator: mixed drafts, catching up and probes, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from worlds import check_evidence, tiny_text

from draftwise.types import DraftStep, Plan
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.request import GLANCE_WEIGHT, PROBE_TOKENS, Reading, SimulatedRequest
from draftwise_lab.sim.text import Text

NOTHING, A, B = Plan("none", 0), Plan("a", 4), Plan("b", 2)
COSTS = CostTable({1: [1.0, 1.5, 2.0]}, {"a": 0.25, "b": 0.5, "r": 0.125}, read_share=0.5)


class Script:
    """A mixer that returns scripted choices and records its inputs."""

    def __init__(self, drafter: str, writers: list[str | None], length: int = 4) -> None:
        self.drafter, self.length = drafter, length
        self._writers = [*writers, None]
        self.seen: list[tuple[int, float, Mapping[str, int]]] = []

    def pick(self, step: DraftStep, matches: Mapping[str, int]) -> str | None:
        self.seen.append((step.depth, step.max_prob, dict(matches)))
        return self._writers[step.depth]


def confident(text: Text) -> Text:
    """``a`` has max-probabilities of 0.5, 0.51, 0.52, .. along the text."""
    track = text.tracks["a"]
    sure = 0.5 + 0.01 * np.arange(len(track.alphas))
    return replace(text, tracks={**text.tracks, "a": replace(track, max_probs=sure)})


def test_a_mixed_draft_by_hand() -> None:
    """``r`` has a match from position 1 on; ``a`` is right at 0 and 1 and wrong at 2."""
    text = confident(tiny_text())
    request = SimulatedRequest(text, [NOTHING, A, Plan("r", 4)], COSTS, {})
    mixer = Script("a", ["a", "r", "a", None])
    evidence = request.play(A, mixer=mixer)
    check_evidence(evidence)
    found = text.tracks["r"].retrieval
    assert found is not None
    assert [depth for depth, _, _ in mixer.seen] == [0, 1, 2, 3]
    assert [m["r"] for _, _, m in mixer.seen] == found.matches[:4].tolist()
    assert mixer.seen[1][1] == 0.5
    assert np.isnan(mixer.seen[2][1])
    assert str(evidence.plan) == "ax3/mixed"
    hits = [True, bool(found.hits[1, 0]), False]
    assert evidence.num_accepted == hits.index(False)
    assert evidence.drafted_alphas.tolist() == [0.5, found.alphas[1, 0], 0.5 + 2 / 1024]
    assert np.isnan(evidence.confidences[1])
    # two steps of a, the second also reads r's token; a's prompt of 16; a token of r; 4 verified
    assert evidence.seconds == 2 * 0.25 + 16 * 0.125 - 0.125 + 0.125 + 0.125 + 2.5


def test_a_mixer_may_end_a_draft_before_it_begins() -> None:
    request = SimulatedRequest(confident(tiny_text()), [NOTHING, A], COSTS, {})
    evidence = request.play(A, mixer=Script("a", []))
    assert (str(evidence.plan), evidence.num_drafted, evidence.seconds) == ("none", 0, 1.0)
    assert "a" not in evidence.scores


def test_where_confidence_is_unknown_plans_are_played_as_they_are() -> None:
    request = SimulatedRequest(tiny_text(), [NOTHING, A], COSTS, {})
    evidence = request.play(A, mixer=Script("a", ["a"]))
    assert (evidence.plan, evidence.num_drafted) == (A, 4)


def test_catching_up_costs_what_was_missed() -> None:
    """b has read nothing and catches up on prompt and text in its first step."""
    request = SimulatedRequest(tiny_text(), [NOTHING, A, B], COSTS, {})
    first = request.play(A)  # 4 steps, 15 prompt tokens read beforehand, 5 verified
    assert first.seconds == 4 * 0.25 + 15 * 0.125 + 3.0
    assert request.position == 3
    second = request.play(B)  # its first step reads 16 + 3 tokens, one at the step's price
    assert second.seconds == 2 * 0.5 + 18 * 0.25 + 2.0


def test_a_look_is_paid_and_scores_the_texts_end() -> None:
    request = SimulatedRequest(tiny_text(), [NOTHING, A, B], COSTS, {})
    evidence = request.play(A, looks=["b"])
    assert evidence.scores["b"].start + len(evidence.scores["b"].alphas) == 16 + request.position
    assert evidence.scores["b"].weight == 1.0
    assert request.seconds == evidence.seconds + 0.5 + 17 * 0.25
    again = SimulatedRequest(replace(tiny_text(), prompt_length=500), [NOTHING, A, B], COSTS, {})
    hasty = again.play(A, looks=["b"]).scores["b"]
    assert (len(hasty.alphas), hasty.weight) == (2 + 3, GLANCE_WEIGHT)  # of prompt and text


@pytest.mark.parametrize("prompt", [10, PROBE_TOKENS, 100])
def test_first_impressions_and_the_first_draft(prompt: int) -> None:
    """A probe reads all of a short prompt; the first draft reads a long one from the start."""
    reading = Reading(prompt, {"a": 1.0}, {"a": 0.1})
    seconds, num, _ = reading.probe("a", 0)
    assert num == min(PROBE_TOKENS, prompt - 1)
    assert seconds == pytest.approx(1.0 + 0.1 * (num - 1))
    rest = 0 if prompt - 1 <= PROBE_TOKENS else prompt - 1
    alone = 1.0 + 0.1 * (rest - 1) if rest else 0.0  # the cost of a separate prefill
    assert reading.draft_s("a", 0, 3) == pytest.approx(3.0 + alone)
    reading.keep("a", 0, 2, 3, 4)  # all three accepted: the last one was never an input
    assert reading.draft_s("a", 4, 1) == pytest.approx(1.0 + 0.1)
