"""Replay and advice on a recorded trace whose best answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import run_command
from draftwise_lab.bench.advice import Source, advise, vllm

TOKENS = 24
COSTS = {"target_s": [1.0, 1.0], "draft_s": {"good": 0.1, "bad": 0.1, "copy": 0.0}}


def write_trace(path: Path, hits: dict[str, str], domain: str | None = None) -> Path:
    """Two requests, one token a round; hits: by drafter, 1 where it agrees with the target.

    Verification takes 1 s, 1.5 s for three tokens; a draft step of any drafter takes 0.1 s.
    """
    lines = []
    for request in range(2):
        for number in range(TOKENS):
            num_drafted = 2 * (number % 2)
            scores = {
                name: {"start": 5 + number, "alphas": [int(h[number])], "ratios": [int(h[number])]}
                | ({"matches": [3]} if name == "copy" else {})
                for name, h in hits.items()
            }
            lines.append(
                {"request": request, "round": number + 1, "position": 5 + number,
                 "drafter": "good" if num_drafted else "none", "num_drafted": num_drafted,
                 "num_emitted": 1, "batch_size": 1, "scores": scores, "matches": {},
                 "seconds": {"verify": 1.0 + 0.25 * num_drafted, "draft": 0.1 * num_drafted}}
            )  # fmt: skip
            if domain is not None:
                lines[-1]["domain"] = f"{domain}{request}"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """good is right three times of four, bad never."""
    return write_trace(tmp_path / "t.jsonl", {"bad": "0" * TOKENS, "good": "1110" * (TOKENS // 4)})


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    return path


def test_the_best_frozen_setting_is_known(trace: Path, costs: Path) -> None:
    """Length 3 accepts three: with the bonus token 4 tokens in 1.3 s; plain takes 4 s."""
    found = advise(trace, costs=str(costs), weights=["good=org/good"])
    assert (found["best"]["drafter"], found["best"]["length"]) == ("good", 3)
    assert found["best"]["speedup"]["median"] == pytest.approx(4 / 1.3)
    assert found["best"]["tok_per_s"] == pytest.approx(4 / 1.3)
    assert found["plain"]["tok_per_s"] == pytest.approx(1.0)
    assert found["adaptive"]["speedup"]["median"] > 1.5
    assert found["coverage"] == {"bad": 1.0, "good": 1.0}
    engines = found["engines"]
    assert engines["vllm"]["setting"] == {
        "method": "draft_model", "model": "org/good", "num_speculative_tokens": 3,
    }  # fmt: skip
    assistant = engines["transformers"]["setting"]["assistant_generation_config"]
    assert assistant["num_assistant_tokens"] == 3
    assert engines["llama.cpp"]["setting"]["--spec-draft-n-max"] == 3
    assert engines["sglang"]["paste"] is None  # SGLang runs no draft model with a chosen length


def test_measured_seconds_are_used_where_nobody_gives_others(trace: Path) -> None:
    """Three tokens took 1.5 s in the trace: at most 4 tokens in 1.8 s."""
    found = advise(trace)
    assert found["unit"] == "tok/s"
    assert found["best"]["drafter"] == "good"
    assert found["plain"]["tok_per_s"] == pytest.approx(1.0)
    assert 1.5 < found["best"]["speedup"]["median"] < 4 / 1.3


def test_a_retrieval_drafter_becomes_the_engines_own(tmp_path: Path, costs: Path) -> None:
    path = write_trace(tmp_path / "copy.jsonl", {"copy": "1" * TOKENS})
    found = advise(path, costs=str(costs))
    assert found["best"]["drafter"] == "copy"
    ours, theirs = (found["engines"][name]["setting"] for name in ("vllm", "transformers"))
    assert ours["method"] == "ngram"
    assert ours["prompt_lookup_max"] == theirs["max_matching_ngram_size"]
    assert theirs["prompt_lookup_num_tokens"] == found["best"]["length"]
    suffix = vllm(Source("suffix", "suffix"), 4)
    assert suffix == {"method": "suffix", "num_speculative_tokens": 4}


def test_replay_says_what_others_would_have_done(trace: Path, costs: Path) -> None:
    ran = run_command(
        "replay", trace, "--costs", costs, "--policy", "ucbspec@3", "--policy", "fixed:1@3",
        "--seeds", 1, "--json",
    )  # fmt: skip
    found = json.loads(ran.out)
    assert found["average"]["fixed:1@3"]["mat"] == pytest.approx(4.0)
    assert found["average"]["fixed:1@3"]["tok_per_s"] == pytest.approx(4 / 1.3)
    assert 1.0 <= found["average"]["ucbspec@3"]["mat"] < 4.0
    assert found["recorded"]["mat"] == 1.0
    assert found["recorded"]["tokens"] == 2 * TOKENS
    assert found["recorded"]["tok_per_s"] == pytest.approx(1 / 1.35)


def test_the_table_names_policies_and_hindsight(trace: Path) -> None:
    ran = run_command("replay", trace, "--seeds", 1)
    for word in ("as recorded", "goodput", "plain", "best fixed plan"):
        assert word in ran.out
    assert ran.err == ""


def test_domains_of_a_trace_are_kept_apart(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "d.jsonl", {"good": "1" * TOKENS}, domain="d")
    found = json.loads(run_command("replay", path, "--seeds", 1, "--json").out)
    assert found["domains"] == ["d0", "d1"]


def test_what_was_hardly_scored_is_said(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", {"good": "1" * TOKENS})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[3:]:
        line["scores"] = {}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = run_command("advise", path)
    assert "good 6%" in ran.err
    assert "--feedback panoramic" in ran.err
