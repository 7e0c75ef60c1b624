"""The outcome of a match as one JSON object."""

from __future__ import annotations

from typing import Any

from draftwise_lab.sim.run import Match, Outcome
from draftwise_lab.sim.summary import averages, results


def report(
    preset: str, match: Match, outcome: Outcome, *, num_drafters: int | None = None
) -> dict[str, Any]:
    """``{"preset", "results": [..], "average": {policy: {..}}, ..}``; see docs/lab/simulator.md."""
    rows = results(match, outcome)
    return {
        "preset": preset,
        "tokens": match.tokens,
        "num_drafters": num_drafters,
        "domains": list(match.environment.domains),
        "policies": {
            c.label: {
                "policy": c.policy,
                "reward": c.reward,
                "feedback": c.feedback,
                "num_plans": len(c.plans),
            }
            for c in match.contestants
        },
        "results": rows,
        "average": averages(rows),
    }
