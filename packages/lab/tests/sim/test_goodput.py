"""The default policy in the simulator."""

from __future__ import annotations

from draftwise_lab.sim.match import make_match, run_match
from draftwise_lab.sim.presets import setting


def test_a_round_told_token_by_token_teaches_as_much() -> None:
    """In HedgeSpec's token-level game only a round's first token brings the evidence."""
    played = setting("geometric")
    labels = [f"goodput@0-8/length/panoramic{option}" for option in ("", ":per_token=true")]
    runs = run_match(make_match(played, labels), range(1), 1).runs
    seconds = [sum(run.seconds for run in runs if run.policy == one) for one in labels]
    assert seconds[0] == seconds[1] > 0
