"""Greedy output inside a real vLLM is that of vLLM without speculation, token by token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftwise import zoo
from vllm_e2e.jobs import DRAFT_MODEL, IN_PROCESS, job_of, mixed_requests, run

CONFIGS: dict[str, dict[str, Any]] = {
    "retrieval": {},
    "draft model": DRAFT_MODEL,
    "chunked prefill": {"max_num_batched_tokens": 64, "enable_prefix_caching": True},
    "preemption": {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 320},
    "preemption, draft model": DRAFT_MODEL
    | {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 320},
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What vLLM answers without speculation."""
    job = job_of({}, None, 16)
    (answers,) = run(tmp_path_factory.mktemp("plain"), "plain", job, **IN_PROCESS)["answers"]
    return answers


@pytest.mark.parametrize("name", CONFIGS)
def test_identical_at_1_4_and_16_at_once(name: str, expected: list, tmp_path: Path) -> None:
    levels = (1, 4, 16) if name in {"retrieval", "draft model"} else (16,)
    job = job_of(CONFIGS[name], {}, *levels)
    asked = [i for i, r in enumerate(mixed_requests()) if can_ask(name, r)]
    for task in job["tasks"]:
        task["requests"] = [task["requests"][i] for i in asked]
    done = run(tmp_path, "ours", job, **IN_PROCESS)
    for answers in done["answers"]:
        assert answers == [expected[i] for i in asked]
    drafted = {plan for plan, num in done["counts"]["accepted"].items() if num}
    kinds = {plan.rpartition("x")[0] for plan in drafted}
    assert {"lookup", "suffix"} <= kinds, "every kind of drafter was kept at least once"
    assert ("draft_model" in kinds) == ("draft model" in name)
    assert done["counts"]["rows_left"] == 0


def can_ask(name: str, request: dict[str, Any]) -> bool:
    """Beside a drafter of its own, vLLM refuses requests with a logit bias."""
    return "draft model" not in name or "logit_bias" not in request


def test_identical_with_two_ranks(expected: list, tmp_path: Path) -> None:
    config = DRAFT_MODEL | {"tensor_parallel_size": 2}
    job = job_of(config, {}, 16)
    asked = [i for i, r in enumerate(mixed_requests()[:16]) if can_ask("draft model", r)]
    job["tasks"][0]["requests"] = [job["tasks"][0]["requests"][i] for i in asked]
    done = run(tmp_path, "ranks", job, VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert done["answers"][0] == [expected[i] for i in asked]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "ngram"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        ({"additional_config": {"draftwise": {"polcy": "x"}}}, "no option 'polcy'"),
    ],
)
def test_refused_at_start_with_the_reason(config: dict, reason: str, tmp_path: Path) -> None:
    program = f"""
from vllm import LLM
LLM(model={str(zoo.target_path())!r}, enforce_eager=True, scheduler_cls=
    "draftwise.integrations.vllm.Scheduler", **{config!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | IN_PROCESS,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode != 0
    assert reason in done.stderr
