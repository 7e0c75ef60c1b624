"""Traces and cost tables from elsewhere: parsed strictly, and none of their code runs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import round_record, write_jsonl, write_npz

from draftwise.types import DraftwiseError
from draftwise_lab.sim.costs import REGIMES, load_costs
from draftwise_lab.sim.traces import ARRAYS, Recorded, RoundTrace
from safety.test_hostile import STATES, Payload


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A folder that hostile code would create."""
    return tmp_path / "ran"


@pytest.mark.parametrize("text", STATES.values(), ids=STATES)
def test_cost_tables_are_read_strictly(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(DraftwiseError, match="no cost table"):
        load_costs(str(tmp_path / "costs.json"))


WRONG: dict[str, dict[str, Any]] = {
    "endless text": {"num_emitted": 10**15},
    "before its beginning": {"position": -1},
    "broken seconds": {"seconds": {"verify": float("nan")}},
    "seconds that are text": {"seconds": {"verify": "1"}},
    "scores that are a list": {"scores": [1]},
    "alpha above one": {"scores": {"small": {"start": 0, "alphas": [2], "ratios": [1]}}},
    "a start far away": {"scores": {"small": {"start": 10**18, "alphas": [], "ratios": []}}},
    "no rows": {"batch_size": 0},
    "true": {"num_drafted": True},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_traces_are_read_strictly(fields: dict[str, Any], tmp_path: Path) -> None:
    scores = {"small": {"start": 0, "alphas": [0.5], "ratios": [0.5]}}
    good = round_record(0, 0, scores=scores)
    RoundTrace(write_jsonl(tmp_path / "good.jsonl", [good]))
    wrong = write_jsonl(tmp_path / "wrong.jsonl", [good, good | fields])
    with pytest.raises(DraftwiseError, match=r"line 2: this is no round of a trace"):
        RoundTrace(wrong)


def test_arrays_are_no_pickles_and_no_bombs(mark: Path, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "replay.npz")
    good = dict(np.load(path))
    np.savez(path, **(good | {"fam": np.array([Payload(mark)], dtype=object)}))
    with pytest.raises(DraftwiseError, match="no replay file"):
        Recorded(path, REGIMES["gpu"])
    assert not mark.exists()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in ARRAYS:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)}
            )
            bomb.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(DraftwiseError, match="no replay file"):
        Recorded(path, REGIMES["gpu"])
    path.write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(DraftwiseError, match="no replay file"):
        Recorded(path, REGIMES["gpu"])
