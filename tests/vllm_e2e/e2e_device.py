"""Mixed drafts on model runner V2 with asynchronous scheduling, vLLM's default on CUDA.

Answers are those of runner V1 without speculation, token by token. Triton's interpreter runs the
kernels, so fewer requests are asked than in ``e2e_identity``.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise import zoo
from draftwise.integrations.vllm.refusals import LENGTHS
from vllm_e2e.e2e_law import FALSE_ALARM, PROMPTS, p_value
from vllm_e2e.jobs import IN_PROCESS, eagle_head, in_turns, job_of, mixed_requests, run

NUM, ALL = 24, 64
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
    (answers,) = run(tmp_path_factory.mktemp("plain"), "plain", job_of({}, None, 16), **IN_PROCESS)[
        "answers"
    ]
    return answers


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return eagle_head(tmp_path_factory.mktemp("head"))


def asked(with_head: bool, num: int = NUM) -> list[int]:
    """Requests that a server takes: with a model drafter, vLLM refuses a logit bias."""
    return [i for i, r in enumerate(mixed_requests(num)) if not (with_head and "logit_bias" in r)]


def job_for(name: str, head: dict[str, Any], num: int = NUM) -> dict[str, Any]:
    kind = name.split(",")[0]
    config = PLAIN | CONFIGS.get(name, {}) | ({} if kind == "retrieval" else head)
    options: dict[str, Any] = {"history_tokens": 2048}  # the interpreter takes 10 ms for 1,024
    options |= {"drafters": ["model"]} if kind == "model" else {}
    if "divided" in name:
        speculative = config["speculative_config"] | {"enable_adaptive_verification": True}
        config |= {"speculative_config": speculative}
    job = job_of(config, options, 16) | {"v2": True}
    requests = mixed_requests(num)
    job["tasks"][0]["requests"] = [requests[i] for i in asked(kind != "retrieval", num)]
    return job


def of_tenants(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r | ({"cache_salt": "abc"[i % 3]} if i % 4 else {}) for i, r in enumerate(requests)]


@pytest.mark.parametrize("name", CONFIGS)
def test_identical(name: str, head: dict[str, Any], expected: list, tmp_path: Path) -> None:
    job = job_for(name, head)
    if "tenants" in name:
        job["tasks"][0]["requests"] = of_tenants(job["tasks"][0]["requests"])
    done = run(tmp_path, "ours", job, **IN_PROCESS)
    assert done["answers"][0] == [expected[i] for i in asked(not name.startswith("retrieval"))]
    counts = done["counts"]
    kinds = {drafter for drafter, num in counts["accepted"].items() if num}
    assert kinds == {"retrieval", "model"} if "both" in name else {name.split(",")[0]}
    assert (counts["rows_left"], counts["has_failed"]) == (0, False)
    assert (done["preempted"] > 0) == ("preemption" in name)


WISHES = [{"speculation": 0}, {"drafters": ["retrieval"], "max_draft": 2}, {"private": 1}, {}, {}]


@pytest.mark.parametrize("name", ["both", "both, divided on the device"])
def test_everything_at_once(
    name: str, head: dict[str, Any], expected: list, tmp_path: Path
) -> None:
    """Requests of all kinds and options share few blocks of memory, while some clients leave."""
    crowded = CONFIGS["both, preemption"] | {
        "max_num_batched_tokens": 64, "enable_prefix_caching": True,
    }  # fmt: skip
    job, places = job_for(name, head, ALL), asked(True, ALL)
    job["engine"] |= crowded
    (task,) = job["tasks"]
    task["requests"] = [
        request | {"extra_args": WISHES[i % 5] | {"label": str(i % 5)}}
        for i, request in enumerate(of_tenants(task["requests"]))
    ]
    task["leave"] = {str(i): 1 + i % 7 for i in range(0, len(places), 6)}
    done = run(tmp_path, "ours", job, **IN_PROCESS)
    (answers,), counts = done["answers"], done["counts"]
    for i, (place, answer) in enumerate(zip(places, answers, strict=True)):
        leaves = task["leave"].get(str(i), len(expected[place]))
        assert answer == expected[place][: len(answer)], place
        assert len(answer) >= min(leaves, len(expected[place])), place
    assert all(counts["accepted"].values())
    assert (counts["rows_left"], counts["has_failed"]) == (0, False)
    assert done["preempted"] > 3


def test_both_drafters_take_fewer_steps_than_either(head: dict[str, Any], tmp_path: Path) -> None:
    """On the bundled prompts of all kinds, with drafted tokens that cost nothing."""
    prompts = [prompt for kind in zoo.prompts().values() for prompt in kind[:2]]
    rounds = {}
    for kind in ("both", "model", "retrieval"):
        job = job_for(kind, head)
        job["tasks"][0] |= {
            "requests": [{"prompt": p, "temperature": 0.0, "max_tokens": 32} for p in prompts],
            "at_once": 8,
        }
        done = run(tmp_path, kind, job, **IN_PROCESS)
        rounds[kind] = done["counts"]["rounds"]
    print(rounds)
    assert rounds["both"] < min(rounds["model"], rounds["retrieval"])


def test_requests_choose_for_themselves(
    head: dict[str, Any], expected: list, tmp_path: Path
) -> None:
    """Some requests have no drafts, some only short retrieval: the texts stay the same."""
    job = job_for("both", head)
    requests = job["tasks"][0]["requests"]
    for i, request in enumerate(requests):
        requests[i] = request | {"extra_args": WISHES[i % 3] | {"label": str(i % 3)}}
    done = run(tmp_path, "wishes", job, **IN_PROCESS)
    assert done["answers"][0] == [expected[i] for i in asked(True)]
    assert all(done["counts"]["accepted"].values())
    assert not done["counts"]["has_failed"]


@pytest.mark.parametrize("name", ["both", "both, divided on the device"])
def test_law_of_the_first_tokens(name: str, head: dict[str, Any], tmp_path: Path) -> None:
    """Two samples at temperature 0.7: the first three tokens after each prompt.

    Without a history, which Triton's interpreter searches slowly.
    """
    num = int(os.environ.get("DRAFTWISE_E2E_ANSWERS", "600"))
    sampled = {"temperature": 0.7, "max_tokens": 4, "ignore_eos": True, "detokenize": False}
    kinds = [{"prompt": prompt, "top_p": top_p} | sampled for prompt, top_p in PROMPTS.items()]
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


@pytest.mark.parametrize("case", ["nothing to draft", "a head that is never right"])
def test_never_slower_than_plain(case: str, head: dict[str, Any], tmp_path: Path) -> None:
    """CPU seconds of the same requests, in turns with a server without draftwise.

    draftwise's kernels are left out: Triton's interpreter takes milliseconds for what takes a GPU
    microseconds. The temperature makes texts in which nothing occurs twice. A head reads every
    token even if it never drafts, so a server with an idle head is what draftwise is compared with.
    The bar allows for two points of noise: 87% of a plain step are kernels in the interpreter.
    """
    is_head = case != "nothing to draft"
    sampled = {"temperature": 0.0 if is_head else 2.0, "max_tokens": 64, "ignore_eos": True}
    prompts = [kind[0] for kind in zoo.prompts().values()][:4]
    task = {"requests": [{"prompt": p} | sampled for p in prompts], "at_once": 4}
    ours = job_for("model" if is_head else "retrieval", never_right(head, tmp_path))
    ours["draftwise"]["history_tokens"] = 0
    plain = job_of(PLAIN | (idle(head) if is_head else {}), None) | {"v2": True}
    for job in (plain, ours):
        job |= {"turns": True, "tasks": [task] * 9}
    plain_s, ours_s = (np.array(s) for s in in_turns(tmp_path, plain, ours, **IN_PROCESS))
    ratios = plain_s / ours_s
    print(case, ratios.round(3))
    assert np.median(ratios[1:]) > 0.97


def idle(head: dict[str, Any]) -> dict[str, Any]:
    """vLLM's own draft lengths by number of requests: 0 tokens for any."""
    return {"speculative_config": head["speculative_config"] | {LENGTHS: [[1, 64, 0]]}}


def never_right(head: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The head with weights that make it draft what the target never says."""
    source = Path(head["speculative_config"]["model"])
    folder = folder / "never_right"
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    weights = load_file(source / "model.safetensors")
    rng = torch.Generator().manual_seed(0)
    weights = {
        name: 0.02 * torch.randn(found.shape, generator=rng) if found.is_floating_point() else found
        for name, found in weights.items()
    }
    save_file(weights, folder / "model.safetensors")
    return {"speculative_config": head["speculative_config"] | {"model": str(folder)}}
