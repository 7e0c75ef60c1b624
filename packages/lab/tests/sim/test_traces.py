"""Recorded traces: arrays and Round records, replayed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worlds import check_evidence, round_record, write_jsonl, write_npz

from draftwise.types import DraftwiseError, Plan
from draftwise_lab.sim.costs import REGIMES, CostTable, load_costs
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.traces import ARRAYS, Recorded, RoundTrace, measured_costs, trace_setting


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "replay.npz")


def test_families_are_domains_and_traces_are_texts(npz: Path) -> None:
    world = Recorded(npz, REGIMES["gpu"])
    assert world.domains == ["code@0.7", "copy@0"]
    assert world.drafters == ["small", "big", "pld3", "sam"]
    assert world.num_tokens == 55
    assert [text.name for text in world.texts("copy@0", 0, 40, 4)] == ["trace 1", "trace 3"]


def test_a_model_is_accepted_by_the_ratio_of_the_realised_token(npz: Path) -> None:
    """Over many seeds the share of accepted positions is r, and ratios of 0 and 1 are certain."""
    arrays = dict(np.load(npz))
    arrays["r"][0, :3, 0] = [0.0, 1.0, 0.25]
    np.savez(npz, **arrays)
    world = Recorded(npz, REGIMES["gpu"])
    hits = np.array([world.texts("code@0.7", s, 40, 4)[0].tracks["small"].runs for s in range(600)])
    assert not (hits[:, 0] > 0).any()
    assert (hits[:, 1] > 0).all()
    assert abs((hits[:, 2] > 0).mean() - 0.25) < 5 * np.sqrt(0.1875 / 600)


def test_retrieval_is_accepted_if_it_is_the_text(npz: Path) -> None:
    arrays = dict(np.load(npz))
    arrays["avail"][0, 0, :2], arrays["match"][0, 0, 0] = [3, 0], [1, 1, 0, 1]
    np.savez(npz, **arrays)
    text = Recorded(npz, REGIMES["gpu"]).texts("code@0.7", 0, 40, 4)[0]
    request = SimulatedRequest(text, [Plan("pld3", 4)], REGIMES["gpu"], {})
    evidence = request.play(Plan("pld3", 4))
    check_evidence(evidence)
    assert (evidence.num_drafted, evidence.num_accepted) == (3, 2)
    assert evidence.drafted_alphas == pytest.approx(arrays["propP"][0, 0, 0, :3])
    assert text.tracks["pld3"].alphas[1] == 0.0
    assert evidence.seconds == pytest.approx(1.0 + 3 * 0.002)


def test_a_trace_that_is_too_short_or_no_trace_is_refused(npz: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match="ask for fewer tokens"):
        Recorded(npz, REGIMES["gpu"]).texts("code@0.7", 0, 58, 4)
    with pytest.raises(DraftwiseError, match="there is no trace"):
        Recorded(tmp_path / "none.npz", REGIMES["gpu"])
    np.savez(tmp_path / "part.npz", **{name: np.zeros(1) for name in ARRAYS[:3]})
    with pytest.raises(DraftwiseError, match="lacks the array 'gam'"):
        Recorded(tmp_path / "part.npz", REGIMES["gpu"])
    with pytest.raises(DraftwiseError, match=r"ends in .jsonl \(rounds\) or .npz"):
        trace_setting(tmp_path / "trace.txt", None)


def records() -> list[dict[str, object]]:
    """Request 0: 3 + 1 tokens from position 10; ``small`` has no score for the last but one."""
    small = {"start": 9, "alphas": [0.3, 0.5, 0.75], "ratios": [0.3, 1.0, 0.0]}
    last = {"start": 13, "alphas": [1.0], "ratios": [1.0]}
    lookup = {"start": 10, "alphas": [0.5, 0.5, 0.0, 0.25], "ratios": [1, 1, 0, 1]}
    lookup |= {"matches": [2, 3, 0, 1]}
    return [
        round_record(0, 10, num_emitted=3, scores={"small": small}),
        round_record(0, 13, num_emitted=1, num_drafted=0, drafter="none",
                     seconds={"verify": 0.75}, scores={"small": last, "lookup": lookup}),
        round_record(1, 4, num_emitted=2),
    ]  # fmt: skip


def test_round_records_become_texts(tmp_path: Path) -> None:
    world = RoundTrace(write_jsonl(tmp_path / "t.jsonl", records()))
    assert (world.drafters, world.num_tokens) == (["small", "lookup"], 4)
    (first,) = world.texts("trace", 0, 300, 4)  # the second request has no scores
    assert first.length == 4
    assert world.played()["rounds"] == 3
    small, lookup = first.tracks["small"], first.tracks["lookup"]
    assert small.alphas[:4].tolist() == [0.5, 0.75, 0.75, 1.0]  # a gap takes the latest value
    assert (small.runs[:2] > 0).tolist() == [True, False]
    assert small.retrieval is None
    assert lookup.retrieval is not None
    assert lookup.retrieval.num[:4].tolist() == [16, 16, 0, 16]
    assert lookup.runs[:4].tolist() == [2, 1, 0, 9 - 3]  # beyond the end the last value is repeated


def test_the_costs_of_a_trace_are_its_own(tmp_path: Path) -> None:
    costs = measured_costs(records())
    assert costs.at(1, ["small", "other"], 2).target_s.tolist() == [0.75, 0.875, 1.0]
    assert costs.at(1, ["small", "other"], 2).draft_s == {"small": 0.25, "other": 0.25}
    with pytest.raises(DraftwiseError, match="give --costs"):
        measured_costs([round_record(0, 0, seconds={})])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "is empty"),
        ("not json\n", "line 1: this is no round of a trace"),
        ('{"request": 0}\n', "line 1: this is no round of a trace"),
    ],
)
def test_a_broken_trace_says_where(tmp_path: Path, lines: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines)
    with pytest.raises(DraftwiseError, match=message):
        RoundTrace(path)


def test_a_trace_without_scores_or_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match="no scores"):
        RoundTrace(write_jsonl(tmp_path / "t.jsonl", [round_record(0, 0)]))
    with pytest.raises(DraftwiseError, match="there is no trace"):
        RoundTrace(tmp_path / "none.jsonl")


def test_traces_are_settings(npz: Path, tmp_path: Path) -> None:
    arrays = trace_setting(npz, "loaded")
    assert arrays.make(None).costs == REGIMES["loaded"]
    assert arrays.tokens == 55
    assert trace_setting(npz, None).make(None).costs == REGIMES["gpu"]
    rounds = trace_setting(write_jsonl(tmp_path / "t.jsonl", records()), None)
    assert rounds.make(None).domains == ["trace"]
    with pytest.raises(DraftwiseError, match="a trace has its own"):
        rounds.make(4)


def test_regimes_are_those_of_the_study() -> None:
    """Target 1 / 1 + 0.06 k / 1 + 0.35 k; drafters 0.04 / 0.12 / 0.04, big 0.15 / 0.2 / 0.15."""
    names = ["all", "big", "sam"]
    for regime, slope, small, big in (
        ("gpu", 0.0, 0.04, 0.15),
        ("cpu", 0.06, 0.12, 0.2),
        ("loaded", 0.35, 0.04, 0.15),
    ):
        costs = load_costs(regime).at(1, names, 16)
        assert costs.target_s == pytest.approx(1.0 + slope * np.arange(17))
        assert costs.draft_s == {"all": small, "big": big, "sam": 0.002}


def test_costs_by_batch_size_are_interpolated() -> None:
    table = CostTable({1: (1.0,), 9: (2.0, 4.0)})
    assert table.at(5, [], 2).target_s.tolist() == [1.5, 2.5, 3.5]


def test_costs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"target_s": [1, 2], "draft_s": {"small": 0.5}, "other_s": 0.25}')
    costs = load_costs(str(path)).at(1, ["small", "big"], 2)
    assert costs.target_s.tolist() == [1.0, 2.0, 3.0]
    assert costs.draft_s == {"small": 0.5, "big": 0.25}
    path.write_text('{"target_s": {"1": [1], "3": [2]}}')
    assert load_costs(str(path)).at(2, [], 0).target_s.tolist() == [1.5]
