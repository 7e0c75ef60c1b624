"""Small texts and files for simulator tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.types import Costs, Evidence
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.text import Retrieval, Text, Track, runs_of

COSTS = CostTable({1: (1.0, 1.5, 2.0)}, {"a": 0.25, "b": 0.125, "r": 0.0625}, score_share=0.5)
"""Powers of two, so that sums are exact."""


def track(hits: list[int], alpha: float = 0.5) -> Track:
    """A drafter with given accepted positions; each alpha encodes its position."""
    alphas = alpha + np.arange(len(hits)) / 1024.0
    return Track(alphas, alphas / 2, runs_of(np.array(hits, dtype=bool)), prompt=alphas[:2])


def retrieval_track(num: list[int], hits: list[list[int]]) -> Track:
    """A retrieval drafter with ``num`` proposals and ``hits`` by depth at each position."""
    won = np.array(hits, dtype=bool)
    leading = np.logical_and.accumulate(won, axis=1).sum(axis=1)
    counts = np.array(num)
    alphas = won * 0.5 + 0.25
    return Track(
        np.where(counts > 0, alphas[:, 0], 0.0),
        np.where(counts > 0, won[:, 0], 0).astype(float),
        np.minimum(leading, counts),
        retrieval=Retrieval(counts, counts * 2, alphas, won),
    )


def tiny_text(length: int = 8, limit: int = 8) -> Text:
    """Two model drafters and a retrieval one; drafts may extend 4 tokens past the end."""
    size = limit + 5
    a = [1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1][:size]
    b = [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0][:size]
    num = [0, 2, 0, 2] + [0] * (size - 4)
    hits = [[0, 0], [1, 0], [0, 0], [1, 1]] + [[0, 0]] * (size - 4)
    tracks = {"a": track(a), "b": track(b, 0.25), "r": retrieval_track(num, hits)}
    return Text("tiny", limit, length, tracks)


def check_evidence(evidence: Evidence) -> None:
    """Check the invariants of ``RoundFacts`` stated in types.py."""
    assert 0 <= evidence.num_accepted <= evidence.num_drafted <= evidence.plan.length
    assert evidence.drafted_alphas.shape == (evidence.num_drafted,)
    assert evidence.seconds > 0.0
    assert isinstance(evidence.costs, Costs)
    assert len(evidence.costs.target_s) > evidence.num_drafted
    for scores in evidence.scores.values():
        assert len(scores.alphas) == len(scores.ratios) > 0
        for values in (scores.alphas, scores.ratios, evidence.drafted_alphas):
            assert not len(values) or (values.min() >= 0.0 and values.max() <= 1.0)
        assert scores.matches is None or len(scores.matches) == len(scores.alphas)
    assert all(match >= 0 for match in evidence.matches.values())


def write_npz(path: Path, num: int = 4, positions: int = 60, depth: int = 4) -> Path:
    """A replay file in the recorded layout: two models, two retrieval drafters."""
    rng = np.random.default_rng(0)
    shape = (num, positions, 2)
    gam = rng.random(shape).astype(np.float32)
    np.savez(
        path,
        fam=np.array(["code", "copy"] * (num // 2)),
        temp=np.array([0.7, 0.0] * (num // 2)),
        drafters=np.array(["small", "big", "pld3", "sam"]),
        gam=gam,
        r=np.clip(gam + 0.1, 0, 1),
        conf=gam,
        conf2=gam / 2,
        ent=1 - gam,
        pgam=gam[:, :16],
        avail=rng.integers(0, depth + 1, (num, 2, positions)).astype(np.int16),
        mlen=rng.integers(1, 9, (num, 2, positions)).astype(np.int16),
        propP=rng.random((num, 2, positions, depth)).astype(np.float32),
        match=rng.integers(0, 2, (num, 2, positions, depth)).astype(np.int8),
    )
    return path


def round_record(request: int, position: int, **fields: Any) -> dict[str, Any]:
    """A line of a trace, as the engine writes it."""
    return {
        "request": request,
        "round": 1,
        "drafter": "small",
        "length": 2,
        "position": position,
        "batch_size": 1,
        "num_drafted": 2,
        "num_accepted": 1,
        "num_emitted": 2,
        "seconds": {"draft": 0.5, "verify": 1.0},
        "scores": {},
        "matches": {},
    } | fields


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
