"""Decisions and their feedback as plain JSON, for the policies that keep some in a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from draftwise.checks import whole
from draftwise.policies.parts.checks import check_feedback
from draftwise.types import Costs, Decision, Evidence, Feedback, Plan, Scores

Told = tuple[Decision, Feedback]


def freeze(decision: Decision, feedback: Feedback) -> Told:
    """The pair with arrays of its own, so that the caller may reuse his.

    >>> values = np.zeros(1)
    >>> _, kept = freeze(Decision(0, 1.0, 1), Feedback(values, np.ones(1, dtype=bool)))
    >>> values[0] = 1.0
    >>> float(kept.values[0])
    0.0
    """
    values, seen = np.array(feedback.values, dtype=np.float64), np.array(feedback.seen)
    return decision, Feedback(values, seen, feedback.evidence, feedback.more)


def told_to_json(told: Told) -> dict[str, Any]:
    """The pair as plain JSON; values that were not seen are written as 0."""
    decision, feedback = told
    evidence = feedback.evidence
    return {
        "decision": [decision.plan, decision.prob, decision.round],
        "values": np.where(feedback.seen, feedback.values, 0.0).tolist(),
        "seen": feedback.seen.tolist(),
        "evidence": None if evidence is None else evidence_to_json(evidence),
        "more": feedback.more,
    }


def told_list(plain: Any, num_plans: int) -> list[Told]:
    """What ``told_to_json`` wrote, one after another; ValueError if it is damaged."""
    try:
        found = [told_from_json(told) for told in plain]
        for decision, feedback in found:
            check_feedback(decision, feedback, num_plans)
            whole("round", decision.round), whole("more", feedback.more, 0)
    except (TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ValueError("feedback that was waiting is damaged") from error
    return found


def told_from_json(plain: Mapping[str, Any]) -> Told:
    """What ``told_to_json`` wrote."""
    evidence = None if plain["evidence"] is None else evidence_from_json(plain["evidence"])
    values, seen = np.array(plain["values"]), np.array(plain["seen"], dtype=np.bool_)
    return Decision(*plain["decision"]), Feedback(values, seen, evidence, plain.get("more", 0))


def evidence_to_json(evidence: Evidence) -> dict[str, Any]:
    """Evidence as plain JSON."""
    plan, costs = evidence.plan, evidence.costs
    return {
        "plan": [plan.drafter, plan.length, plan.rule],
        "counts": [evidence.num_drafted, evidence.num_accepted, evidence.emitted_start],
        "scores": {name: _scores_to_json(scores) for name, scores in evidence.scores.items()},
        "drafted_alphas": evidence.drafted_alphas.tolist(),
        "seconds": evidence.seconds,
        "costs": None if costs is None else [costs.target_s.tolist(), dict(costs.draft_s)],
        "matches": dict(evidence.matches),
    }


def evidence_from_json(plain: Mapping[str, Any]) -> Evidence:
    """What ``evidence_to_json`` wrote.

    >>> told = Evidence(Plan("a", 2), 2, 1, costs=Costs(np.ones(1), {"a": 0.5}))
    >>> again = evidence_from_json(evidence_to_json(told))
    >>> again.plan == told.plan, again.num_accepted, again.costs.draft_s
    (True, 1, {'a': 0.5})
    """
    num_drafted, num_accepted, start = plain["counts"]
    costs = plain["costs"]
    return Evidence(
        Plan(*plain["plan"]),
        num_drafted,
        num_accepted,
        {name: _scores_from_json(scores) for name, scores in plain["scores"].items()},
        np.array(plain["drafted_alphas"], dtype=np.float64),
        start,
        plain["seconds"],
        None if costs is None else Costs(np.array(costs[0], dtype=np.float64), costs[1]),
        plain["matches"],
    )


def _scores_to_json(scores: Scores) -> list[Any]:
    matches = None if scores.matches is None else scores.matches.tolist()
    return [scores.start, scores.alphas.tolist(), scores.ratios.tolist(), matches]


def _scores_from_json(plain: list[Any]) -> Scores:
    start, alphas, ratios, matches = plain
    found = None if matches is None else np.array(matches, dtype=np.int64)
    return Scores(start, np.array(alphas, np.float64), np.array(ratios, np.float64), found)
