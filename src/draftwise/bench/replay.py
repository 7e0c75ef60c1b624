"""What other policies, or one frozen plan, would have made of recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.bench.paired import ratio
from draftwise.sim.environments.rounds import RoundTrace
from draftwise.sim.report import report
from draftwise.sim.run import Match, Outcome, run_match
from draftwise.sim.setup import make_match
from draftwise.sim.traces import trace_setting
from draftwise.types import NONE, DraftwiseError, Floats

ADAPTIVE = "goodput"
"""The policy of the default preset."""
WELL_COVERED = 0.9
"""Share of scored tokens from which on a replay is taken at its word."""
EXCLUDED = "prefill (reading the prompts) is in none of the speeds: a trace holds rounds"
"""What every number of a replay leaves out."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A match played on a trace. recorded: of Round records only."""

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
    """Every policy on every request of the trace, whole; raises DraftwiseError."""
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
    """``simulate``'s object, with what was recorded and how much of the replay is known."""
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
    """What speeds are in: a cost table's forwards count as its own seconds."""
    return "tok/s" if replay.is_measured else "tokens a unit of the cost table"


@dataclass(frozen=True, slots=True)
class Columns:
    """Of every text of a replay: its tokens [P], and seconds of plain decoding, of every plan
    [K, P] and of the adaptive policy; all seeds together."""

    tokens: Floats
    plain_s: Floats
    plans_s: Floats
    adaptive_s: Floats


def columns(replay: Replay) -> Columns:
    """Sums over the seeds by text, in the order of the trace."""
    totals = {
        (domain, text, seed): found
        for domain, by_text in replay.outcome.hindsight.items()
        for (seed, text), found in by_text.items()
    }
    runs = {
        (run.domain, run.text, run.seed): run.seconds
        for run in replay.outcome.runs
        if run.policy == ADAPTIVE
    }
    texts = list(dict.fromkeys(key[:2] for key in totals))
    keys = [[key for key in totals if key[:2] == text] for text in texts]
    return Columns(
        np.array([sum(float(totals[key].tokens) for key in found) for found in keys]),
        np.array([sum(totals[key].plain_s for key in found) for found in keys]),
        np.array([np.sum([totals[key].seconds for key in found], axis=0) for found in keys]).T,
        np.array([sum(runs[key] for key in found) for found in keys]),
    )


def advise(path: Path, *, costs: str | None = None, seeds: int = 5) -> dict[str, Any]:
    """The best plan to freeze, beside plain decoding and the adaptive default; as JSON.

    Raises DraftwiseError for what is no trace.
    """
    replay = play_trace(path, [ADAPTIVE], costs=costs, seeds=seeds)
    found, plans = columns(replay), replay.match.plans
    total_s = found.plans_s.sum(axis=1)
    best: dict[str, int] = {}
    for index in np.argsort(total_s, kind="stable").tolist():
        best.setdefault(plans[index].drafter, index)
    rows = [
        {
            "drafter": drafter,
            "length": plans[index].length,
            **_speed(found, found.plans_s[index]),
        }
        for drafter, index in best.items()
    ]
    first = rows[0]
    chosen_s = found.plans_s[best[first["drafter"]]]
    over = ratio(found.tokens, found.adaptive_s, found.tokens, chosen_s)
    trace = replay.recorded
    is_retrieval = trace is not None and trace.is_retrieval(first["drafter"])
    return {
        "trace": str(path),
        "unit": unit(replay),
        "excludes": ["prefill"],
        "num_requests": len(found.tokens),
        "best": first,
        "plain": _speed(found, found.plain_s),
        "adaptive": {
            "policy": ADAPTIVE,
            **_speed(found, found.adaptive_s),
            "over_best": over.as_json(),
        },
        "by_drafter": rows,
        "coverage": None if trace is None else trace.coverage(),
        "vllm": vllm(first["drafter"], first["length"], is_retrieval=is_retrieval),
        "transformers": transformers(first["drafter"], first["length"], is_retrieval=is_retrieval),
    }


def _speed(found: Columns, seconds: Floats) -> dict[str, Any]:
    compared = ratio(found.tokens, seconds, found.tokens, found.plain_s)
    rate = float(found.tokens.sum() / seconds.sum())
    return {"tok_per_s": rate, "speedup": compared.as_json()}


LOOKUP_NGRAMS = (1, 8)
"""Shortest and longest n-gram of ``lookup`` as it comes: what a trace of it has measured, and not
what vLLM (5) and transformers (2) do unless they are told."""


def vllm(drafter: str, length: int, *, is_retrieval: bool) -> dict[str, Any] | None:
    """``speculative_config`` of vLLM; None = do not speculate.

    >>> vllm("small", 3, is_retrieval=False)
    {'method': 'draft_model', 'model': 'small', 'num_speculative_tokens': 3}
    """
    if drafter == NONE:
        return None
    if not is_retrieval:
        return {"method": "draft_model", "model": drafter, "num_speculative_tokens": length}
    if drafter.startswith("suffix"):
        return {"method": "suffix", "num_speculative_tokens": length}
    shortest, longest = LOOKUP_NGRAMS
    return {
        "method": "ngram",
        "num_speculative_tokens": length,
        "prompt_lookup_min": shortest,
        "prompt_lookup_max": longest,
    }


def transformers(drafter: str, length: int, *, is_retrieval: bool) -> dict[str, Any] | None:
    """Options of ``model.generate`` (those of an assistant go into its generation config).

    >>> transformers("lookup", 8, is_retrieval=True)
    {'prompt_lookup_num_tokens': 8, 'max_matching_ngram_size': 8}
    """
    if drafter == NONE:
        return None
    if is_retrieval:
        return {"prompt_lookup_num_tokens": length, "max_matching_ngram_size": LOOKUP_NGRAMS[1]}
    return {
        "assistant_model": drafter,
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
