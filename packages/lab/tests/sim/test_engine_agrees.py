"""A trace of the real engine, replayed: the simulator agrees plan by plan.

Greedy decoding and panoramic feedback leave nothing to chance and nothing unknown, so the counts
must be equal, round by round.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from worlds import check_evidence

from draftwise.types import Plan
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.traces import RoundTrace
from engine.pairs import PROMPTS, speculator


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_replayed_trace_does_what_the_engine_did(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "trace.jsonl"
    engine = speculator(
        ["good", "bad", "lookup"], feedback="panoramic", lengths=(1, 2, 5), seed=seed
    )
    engine.generate(PROMPTS, max_new_tokens=60, trace=path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    world = RoundTrace(path)
    texts = world.texts("trace", 0, 60, 5)
    assert [text.length for text in texts] == [60] * len(PROMPTS)
    kinds = set()
    for index, text in enumerate(texts):
        request = SimulatedRequest(text, engine.plans, world.costs, {})
        for record in [r for r in records if r["request"] == index]:
            evidence = request.play(Plan(record["drafter"], record["length"]))
            check_evidence(evidence)
            found = (evidence.num_drafted, evidence.num_accepted, request.position)
            kept = record["num_accepted"], record["position"] + record["num_emitted"]
            assert found == (record["num_drafted"], kept[0], kept[1] - len(PROMPTS[index]))
            kinds.add((record["drafter"], 0 < record["num_accepted"] < record["num_drafted"]))
    assert {name for name, _ in kinds} == {"none", "good", "bad", "lookup"}
    assert any(is_partial for _, is_partial in kinds)
