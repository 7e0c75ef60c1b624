"""Greedy output inside a real vLLM is that of vLLM without speculation, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwise import zoo
from vllm_e2e.jobs import DRAFT_MODEL, IN_PROCESS, ended, job_of, mixed_requests, run

CONFIGS: dict[str, dict[str, Any]] = {
    "retrieval": {},
    "draft model": DRAFT_MODEL,
    "tenants": {"enable_prefix_caching": True},
    "chunked prefill": {"max_num_batched_tokens": 64, "enable_prefix_caching": True},
    "preemption": {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 320},
    "preemption, draft model": DRAFT_MODEL
    | {"num_gpu_blocks_override": 14, "block_size": 32, "max_model_len": 320},
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """vLLM's answers without speculation."""
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
        if name == "tenants":
            task["requests"] = [
                r | {"cache_salt": "abc"[i % 3]} if i % 4 else r
                for i, r in enumerate(task["requests"])
            ]
    done = run(tmp_path, "ours", job, **IN_PROCESS)
    for answers in done["answers"]:
        assert answers == [expected[i] for i in asked]
    kinds = {drafter for drafter, num in done["counts"]["accepted"].items() if num}
    assert "retrieval" in kinds, "every kind of drafter was kept at least once"
    assert ("model" in kinds) == ("draft model" in name)
    assert done["counts"]["rows_left"] == 0


def can_ask(name: str, request: dict[str, Any]) -> bool:
    """Whether a pool can serve a request: with a draft model, vLLM refuses a logit bias."""
    return "draft model" not in name or "logit_bias" not in request


def test_log_probabilities_are_those_of_plain_decoding(tmp_path: Path) -> None:
    """The log-probabilities agree, of each token and of the two likeliest at its position."""
    requests = [
        r for r in mixed_requests(24) if r.keys() <= {"prompt", "temperature", "max_tokens"}
    ]
    requests = [r | {"logprobs": 2} for r in requests]
    found = []
    for name, draftwise in (("plain", None), ("ours", {})):
        job = job_of({}, draftwise, 16)
        job["tasks"][0] |= {"requests": requests, "logprobs": True}
        done = run(tmp_path, name, job, **IN_PROCESS)
        found.append(done["answers"][0])
    assert sum(done["counts"]["accepted"].values()) > 50
    for plain, ours in zip(*found, strict=True):
        assert len(plain) == len(ours)
        for expected, place in zip(plain, ours, strict=True):
            assert place == pytest.approx(expected, abs=2e-4)


def test_requests_choose_for_themselves(expected: list, tmp_path: Path) -> None:
    """Some requests have no drafts, some only short retrieval: the texts stay the same."""
    job = job_of(DRAFT_MODEL, {}, 16)
    asked = [i for i, r in enumerate(mixed_requests()) if can_ask("draft model", r)]
    wishes = [{"speculation": 0}, {"drafters": ["retrieval"], "max_draft": 2}, {"private": 1}]
    job["tasks"][0]["requests"] = [
        job["tasks"][0]["requests"][i] | {"extra_args": wishes[i % 3] | {"label": str(i % 3)}}
        for i in asked
    ]
    done = run(tmp_path, "wishes", job, **IN_PROCESS)
    assert done["answers"][0] == [expected[i] for i in asked]
    assert all(done["counts"]["accepted"].values())


def test_identical_with_two_ranks(expected: list, tmp_path: Path) -> None:
    config = DRAFT_MODEL | {"tensor_parallel_size": 2}
    job = job_of(config, {}, 16)
    asked = [i for i, r in enumerate(mixed_requests()[:16]) if can_ask("draft model", r)]
    job["tasks"][0]["requests"] = [job["tasks"][0]["requests"][i] for i in asked]
    done = run(tmp_path, "ranks", job, VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert done["answers"][0] == [expected[i] for i in asked]


def test_no_draft_holds_the_text_of_another_tenant(tmp_path: Path) -> None:
    """Both tenants' prompts lead to the first one's answer and contain its first token."""
    prompt, told = mixed_requests()[0]["prompt"], 16
    program = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from engine import SCHEDULER, make_drafts_free, scheduler_of
from vllm import LLM, SamplingParams
llm = LLM({str(zoo.target_path())!r}, enforce_eager=True, dtype="float32", seed=0,
          scheduler_cls=SCHEDULER, additional_config={{"draftwise": {{"state": None}}}})
scheduler = scheduler_of(llm)
make_drafts_free(scheduler)
update, drafts = scheduler.update_draft_token_ids, {{}}

def watched(offered):
    update(offered)
    for id_, tokens in zip(offered.req_ids, offered.draft_token_ids):
        if id_ in scheduler.requests:
            drafts.setdefault(scheduler.requests[id_].cache_salt, []).append(list(tokens))

def answer(salt, tokens, **given):
    asked = {{"prompt_token_ids": tokens, "cache_salt": salt}}
    (done,) = llm.generate(asked, SamplingParams(**given, ignore_eos=True))
    return list(done.outputs[0].token_ids)

scheduler.update_draft_token_ids = watched
prompt = llm.get_tokenizer().encode({prompt!r})
secret = answer("a", prompt, temperature=2.0, max_tokens=64)
drafts.clear()
for salt in "ba":
    answer(salt, prompt + secret[:{told}], temperature=0.0, max_tokens=8,
           allowed_token_ids=[secret[{told}]])
with open({str(tmp_path / "out.json")!r}, "w") as file:
    json.dump([prompt, secret, drafts], file)
"""
    done = ended("-c", program, **IN_PROCESS)
    assert done.returncode == 0, done.stderr[-3000:]
    prompt, secret, drafts = json.loads((tmp_path / "out.json").read_text())
    hidden = grams(secret[told:]) - grams(prompt + secret[: told + 1])
    assert hidden & grams(*drafts["a"])
    assert drafts["b"]
    assert not hidden & grams(*drafts["b"])


def grams(*texts: list[int]) -> set[tuple[int, ...]]:
    """All trigrams of the texts."""
    return {tuple(text[i : i + 3]) for text in texts for i in range(len(text) - 2)}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "ngram"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        (
            {"additional_config": {"draftwise": {"polcy": "x"}}},
            "unknown option of additional_config['draftwise'] 'polcy'",
        ),
        ({"additional_config": {"draftwise": {"drafters": ["lokup"]}}}, "retrieval, model"),
        ({"additional_config": {"draftwise": {"drafters": ["model"]}}}, "no model drafter"),
        ({"logits_processors": ["a.module:Processor"]}, "--logits-processors is set"),
        ({"spec_method": "ngram", "spec_tokens": 3}, "'ngram' cannot share"),
    ],
)
def test_refused_at_start_with_the_reason(config: dict, reason: str, tmp_path: Path) -> None:
    program = f"""
from vllm import LLM
LLM(model={str(zoo.target_path())!r}, enforce_eager=True, scheduler_cls=
    "draftwise.integrations.vllm.Scheduler", **{config!r})
"""
    done = ended("-c", program, **IN_PROCESS)
    assert done.returncode != 0
    assert reason in done.stderr
