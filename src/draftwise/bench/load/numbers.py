"""From shots to what is reported: latencies in percentiles, tokens a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwise.bench.load.client import Shot
from draftwise.bench.load.drive import Volley

PERCENTILES = (50, 90, 95, 99)
_ENOUGH, _FULL = 30, 10
"""Requests below which a load is said to be too short: of any, and for each of those at once."""
LATENCIES = {
    "ttft_s": "first token",
    "itl_s": "between parts",
    "tpot_s": "a token",
    "e2e_s": "whole answer",
}
"""Keys of latencies and what they are called."""


def summary(volley: Volley) -> dict[str, Any]:
    """One row of results; latencies are of requests that went well, streams alone have most."""
    good = [shot for shot in volley.shots if not shot.error]
    num_tokens = sum(shot.num_tokens for shot in good)
    is_stream = any(shot.chunks_s for shot in good)
    row: dict[str, Any] = {
        "load": str(volley.load),
        "concurrency": volley.load.concurrency,
        "rate": volley.load.rate,
        "num_requests": len(volley.shots),
        "num_errors": len(volley.shots) - len(good),
        "errors": sorted({shot.error[:200] for shot in volley.shots if shot.error})[:5],
        "seconds": volley.took_s,
        "num_prompt_tokens": sum(shot.num_prompt_tokens for shot in good),
        "num_tokens": num_tokens,
        "tok_per_s": num_tokens / volley.took_s if volley.took_s > 0 else 0.0,
        "requests_per_s": len(good) / volley.took_s if volley.took_s > 0 else 0.0,
        "e2e_s": distribution([shot.took_s for shot in good]),
        "mean_acceptance_length": _acceptance(good),
    }
    if is_stream:
        row["ttft_s"] = distribution([shot.first_s for shot in good])
        row["itl_s"] = distribution([gap for shot in good for gap in shot.between_s])
        per_token = [shot.per_token_s for shot in good]
        row["tpot_s"] = distribution([s for s in per_token if s is not None])
    return row


def cautions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which rows have too few requests to be compared; the same on the terminal and in the report.

    >>> cautions([{"load": "8 at once", "num_requests": 40, "concurrency": 8}])
    ['8 at once: 40 is too small a number of requests to compare: give --requests 80 or more.']
    """
    return [
        f"{row['load']}: {row['num_requests']} is too small a number of requests to compare: give "
        f"--requests {needed} or more."
        for row in rows
        if row["num_requests"] < (needed := max(_ENOUGH, _FULL * (row["concurrency"] or 1)))
    ]


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles; None of nothing.

    >>> distribution([1.0, 3.0])["mean"]
    2.0
    """
    if not values:
        return None
    found = np.percentile(values, PERCENTILES)
    points = {f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)}
    return {"mean": float(np.mean(values)), **points}


def _acceptance(good: Sequence[Shot]) -> float | None:
    """Over all drafts of servers that say so in vLLM's form."""
    told = [shot.speculation for shot in good if shot.speculation]
    steps = sum(int(one.get("num_spec_steps", 0)) for one in told)
    kept = sum(int(one.get("num_accepted_draft_tokens", 0)) for one in told)
    return 1 + kept / steps if steps else None
