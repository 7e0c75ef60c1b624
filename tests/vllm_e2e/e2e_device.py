"""Mixed drafts on model runner V2 with asynchronous scheduling, vLLM's default on CUDA.

Answers are those of runner V1 without speculation, token by token. Triton's interpreter runs the
kernels, so fewer requests are asked than in ``e2e_identity``.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vllm_e2e.e2e_law import FALSE_ALARM, PROMPTS, p_value
from vllm_e2e.jobs import IN_PROCESS, eagle_head, job_of, mixed_requests, run

NUM = 24
PLAIN = {"max_model_len": 512, "max_num_batched_tokens": 512, "enable_prefix_caching": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "retrieval": {},
    "model": {},
    "both": {},
    "both, divided on the device": {},
    "both, tenants": {"enable_prefix_caching": True},
    "both, chunked prefill": {"max_num_batched_tokens": 64, "enable_prefix_caching": True},
    "both, preemption": {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 320},
    "retrieval, preemption": {
        "num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 320,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """vLLM's answers without speculation."""
    job = job_of({}, None, 16)
    job["tasks"][0]["requests"] = mixed_requests(NUM)
    (answers,) = run(tmp_path_factory.mktemp("plain"), "plain", job, **IN_PROCESS)["answers"]
    return answers


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return eagle_head(tmp_path_factory.mktemp("head"))


def asked(with_head: bool) -> list[int]:
    """Requests that a server takes: with a model drafter, vLLM refuses a logit bias."""
    return [i for i, r in enumerate(mixed_requests(NUM)) if not (with_head and "logit_bias" in r)]


def job_for(name: str, head: dict[str, Any]) -> dict[str, Any]:
    kind = name.split(",")[0]
    config = PLAIN | CONFIGS.get(name, {}) | ({} if kind == "retrieval" else head)
    options: dict[str, Any] = {"history_tokens": 2048}  # the interpreter takes 10 ms for 1,024
    options |= {"drafters": ["model"]} if kind == "model" else {}
    if "divided" in name:
        speculative = config["speculative_config"] | {"enable_adaptive_verification": True}
        config |= {"speculative_config": speculative}
    job = job_of(config, options, 16) | {"v2": True}
    requests = mixed_requests(NUM)
    job["tasks"][0]["requests"] = [requests[i] for i in asked(kind != "retrieval")]
    return job


@pytest.mark.parametrize("name", CONFIGS)
def test_identical(name: str, head: dict[str, Any], expected: list, tmp_path: Path) -> None:
    job = job_for(name, head)
    if "tenants" in name:
        requests = job["tasks"][0]["requests"]
        for i, request in enumerate(requests):
            requests[i] = request | ({"cache_salt": "abc"[i % 3]} if i % 4 else {})
    done = run(tmp_path, "ours", job, **IN_PROCESS)
    assert done["answers"][0] == [expected[i] for i in asked(not name.startswith("retrieval"))]
    counts = done["counts"]
    kinds = {drafter for drafter, num in counts["accepted"].items() if num}
    assert kinds == {"retrieval", "model"} if "both" in name else {name.split(",")[0]}
    assert (counts["rows_left"], counts["has_failed"]) == (0, False)


def test_requests_choose_for_themselves(
    head: dict[str, Any], expected: list, tmp_path: Path
) -> None:
    """Some requests have no drafts, some only short retrieval: the texts stay the same."""
    job = job_for("both", head)
    wishes = [{"speculation": 0}, {"drafters": ["retrieval"], "max_draft": 2}, {"private": 1}]
    requests = job["tasks"][0]["requests"]
    for i, request in enumerate(requests):
        requests[i] = request | {"extra_args": wishes[i % 3] | {"label": str(i % 3)}}
    done = run(tmp_path, "wishes", job, **IN_PROCESS)
    assert done["answers"][0] == [expected[i] for i in asked(True)]
    assert all(done["counts"]["accepted"].values())
    assert not done["counts"]["has_failed"]


@pytest.mark.parametrize("name", ["both", "both, divided on the device"])
def test_law_of_the_first_tokens(name: str, head: dict[str, Any], tmp_path: Path) -> None:
    """Two samples at temperature 0.7: the first three tokens after each prompt.

    Without top-p, whose kernel Triton's interpreter cannot run, and without a history, which it
    searches slowly.
    """
    num = int(os.environ.get("DRAFTWISE_E2E_ANSWERS", "600"))
    sampled = {"temperature": 0.7, "max_tokens": 4, "ignore_eos": True, "detokenize": False}
    kinds = [{"prompt": prompt} | sampled for prompt in PROMPTS]
    task = {"requests": [kinds[i % 3] for i in range(num)], "at_once": num, "free": True}
    plain, ours = job_of({}, None), job_for(name, head)
    ours["draftwise"]["history_tokens"] = 0
    found = []
    for job, label in ((plain, "plain"), (ours, "ours")):
        job["engine"]["max_num_seqs"], job["tasks"] = 64, [task]
        done = run(tmp_path, label, job, **IN_PROCESS)
        found.append([tuple(answer[:3]) for answer in done["answers"][0]])
    accepted = done["counts"]["accepted"]
    assert min(accepted.values()) > 20, accepted
    for kind in range(3):
        one, other = (Counter(answers[kind::3]) for answers in found)
        assert p_value(one, other) > FALSE_ALARM / 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("kernels", "both"), ("kernels", "retrieval"), ("report", "both"), ("rooms", "both"),
        ("controller", "retrieval"), ("permission", "both"), ("text", "retrieval"),
        ("garbage", "both"),
    ],
)  # fmt: skip
def test_an_error_leaves_vllm_s_own_drafts(
    fault: str, kind: str, head: dict[str, Any], expected: list, tmp_path: Path
) -> None:
    job = job_for(kind, head) | {"fault": fault}
    done = run(tmp_path, "faulty", job, **IN_PROCESS)
    assert done["answers"][0] == [expected[i] for i in asked(kind == "both")]
    assert done["counts"]["has_failed"] or fault == "garbage"
