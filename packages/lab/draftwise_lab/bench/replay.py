"""Counterfactual replay of recorded traffic: other policies, or one fixed plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.types import DraftwiseError
from draftwise_lab.sim.match import Match, Outcome, make_match, report, run_match
from draftwise_lab.sim.traces import RoundTrace, trace_setting

ADAPTIVE = "goodput"
"""The policy of the default preset."""
WELL_COVERED = 0.9
"""Share of scored tokens from which on a replay is taken at its word."""
EXCLUDED = "prefill (reading the prompts) is in none of the speeds: a trace holds rounds"
"""What every number of a replay leaves out."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A match played on a trace. recorded: for Round records only."""

    match: Match
    outcome: Outcome
    is_measured: bool

    @property
    def recorded(self) -> RoundTrace | None:
        """The environment as records, None for arrays."""
        found = self.match.environment
        return found if isinstance(found, RoundTrace) else None


def play_trace(
    path: Path, policies: Sequence[str], *, costs: str | None = None, reward: str | None = None,
    feedback: str | None = None, lengths: str | None = None, seeds: int = 1,
) -> Replay:  # fmt: skip
    """Play every policy on every request of the trace. Errors: DraftwiseError."""
    if not policies:
        raise DraftwiseError("name a policy to replay with: --policy goodput")
    setting = trace_setting(path, costs)
    found = setting.make(None)
    num_tokens = found.num_tokens if isinstance(found, RoundTrace) else setting.tokens
    match = make_match(
        setting, policies, reward=reward, feedback=feedback, lengths=lengths, tokens=num_tokens
    )
    is_measured = costs is None and path.suffix == ".jsonl"
    return Replay(match, run_match(match, range(seeds)), is_measured)


def replay_report(path: Path, replay: Replay) -> dict[str, Any]:
    """``simulate``'s object, with what was recorded and the replay's coverage."""
    found = report(path.name, replay.match, replay.outcome)
    found |= {"unit": unit(replay), "excludes": ["prefill"]}
    trace = replay.recorded
    if trace is not None:
        played = trace.played()
        found["recorded"] = {
            "mat": played.tokens / played.rounds,
            "rounds": played.rounds,
            "tokens": played.tokens,
            "tok_per_s": played.tokens / played.seconds if played.seconds else None,
        }
        found["coverage"] = trace.coverage()
    return found


def unit(replay: Replay) -> str:
    """The unit of speeds: a cost table's forwards count as its own seconds."""
    return "tok/s" if replay.is_measured else "tokens a unit of the cost table"
