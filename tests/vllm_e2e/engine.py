"""One vLLM engine in a process of its own: ``python engine.py JOB.json`` writes ``OUT.json``.

A job holds engine arguments, options of draftwise (None = plain vLLM), ``v2`` (whether runner V2
with asynchronous scheduling runs), ``fault`` (what of draftwise fails) and tasks, each a list of
concurrent requests; the output holds the answers' tokens, each task's seconds, the adapter's counts
and the number of preemptions. ``turns``: each task waits for a line of input, and prints one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from interpreter import use_adaptive_verification, use_runner_v2

SCHEDULER = "draftwise.integrations.vllm.Scheduler"


def main(path: Path) -> None:
    job = json.loads(path.read_text())
    if job.get("v2"):
        use_runner_v2()
    speculative = job["engine"].get("speculative_config", {})
    if speculative.get("enable_adaptive_verification"):
        use_adaptive_verification()
    from vllm import LLM

    options: dict[str, Any] = {"enforce_eager": True, "dtype": "float32", "seed": 0}
    options |= job["engine"]
    if job["draftwise"] is not None:
        options["scheduler_cls"] = SCHEDULER
        options["additional_config"] = {"draftwise": {"state": None} | job["draftwise"]}
    if job.get("fault"):
        FAULTS[job["fault"]]()
    clock = Clock() if job.get("turns") else time.process_time
    llm = LLM(**options)
    if job.get("turns") and hasattr(scheduler_of(llm), "draftwise"):
        scheduler_of(llm).draftwise.clock.now = clock
    preempted = counted(scheduler_of(llm), "_preempt_request")
    done, seconds = [], []
    for task in job["tasks"]:
        if job.get("turns"):
            print("the engine is ready for its next task", flush=True)
            sys.stdin.readline()
        start = clock()
        done.append(run(llm, task))
        seconds.append(clock() - start)
        print(f"{seconds[-1]:.1f} s of CPU", task.get("free"), file=sys.stderr)
    found = {"answers": done, "seconds": seconds, "counts": counts(llm), "preempted": preempted[0]}
    Path(job["out"]).write_text(json.dumps(found))


class Clock:
    """CPU seconds of this process without those of draftwise's kernels, which a GPU runs in
    microseconds, and Triton's interpreter in milliseconds."""

    def __init__(self) -> None:
        from draftwise.integrations.vllm.kernels import Drafting

        self._kernels_s, draft = 0.0, Drafting.__call__

        def timed(*args: Any, **kwargs: Any) -> None:
            start = time.process_time()
            draft(*args, **kwargs)
            self._kernels_s += time.process_time() - start

        Drafting.__call__ = timed

    def __call__(self) -> float:
        return time.process_time() - self._kernels_s


def counted(owner: Any, name: str) -> list[int]:
    """The number of calls of a method from here on."""
    method, num = getattr(owner, name, None), [0]

    def counting(*args: Any, **kwargs: Any) -> Any:
        num[0] += 1
        return method(*args, **kwargs)

    if method is not None:
        setattr(owner, name, counting)
    return num


def run(llm: Any, task: dict[str, Any]) -> list[Any]:
    """The answers' tokens of one task's requests, ``at_once`` at a time.

    ``logprobs``: also return the log-probabilities of each token and the likeliest ones. ``free``:
    drafted tokens seem to cost nothing, so that everything is drafted. ``leave``: by request, the
    number of tokens after which its client leaves; all are asked at once then.
    """
    if task.get("free") and scheduler_of(llm) is not None:
        make_drafts_free(scheduler_of(llm))
    requests = [sampling(request) for request in task["requests"]]
    if "leave" in task:
        return left(llm.llm_engine, requests, task["leave"])
    answers: list[Any] = []
    for start in range(0, len(requests), task["at_once"]):
        part = requests[start : start + task["at_once"]]
        outputs = llm.generate([prompt for prompt, _ in part], [params for _, params in part])
        for one in (one for output in outputs for one in output.outputs):
            answers.append(list(one.token_ids))
            if task.get("logprobs"):
                answers[-1] = [
                    {str(token): found.logprob for token, found in place.items()}
                    for place in one.logprobs
                ]
    return answers


def left(engine: Any, requests: list[Any], leave: dict[str, int]) -> list[list[int]]:
    """The tokens of requests some of which are aborted while drafts of theirs are under way."""
    answers: list[list[int]] = [[] for _ in requests]
    for i, (prompt, params) in enumerate(requests):
        engine.add_request(str(i), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            id_, tokens = output.request_id, list(output.outputs[0].token_ids)
            answers[int(id_)] = tokens
            if len(tokens) >= leave.get(id_, len(tokens) + 1) and not output.finished:
                engine.abort_request([id_])
    return answers


def sampling(request: dict[str, Any]) -> tuple[Any, Any]:
    """The prompt and vLLM's sampling parameters."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = dict(request)
    prompt = given.pop("prompt")
    if "cache_salt" in given:
        prompt = {"prompt": prompt, "cache_salt": given.pop("cache_salt")}
    if "regex" in given:
        given["structured_outputs"] = StructuredOutputsParams(regex=given.pop("regex"))
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return prompt, SamplingParams(**given)


def fail(owner: Any, name: str, calls: int = 6) -> None:
    """Let a method raise from a call on."""
    method, left = getattr(owner, name), [calls]

    def failing(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError(f"planted in {name}")
        return method(*args, **kwargs)

    setattr(owner, name, failing)


def garble() -> None:
    """Let the kernels write numbers without meaning, among tokens that exist."""
    import torch

    from draftwise.integrations.vllm.kernels import Drafting

    draft = Drafting.__call__

    def garbled(self: Any, *args: Any, **kwargs: Any) -> None:
        draft(self, *args, **kwargs)
        self.drafts.random_(0, 256)
        self.facts.copy_(torch.randint(-(2**31), 2**31 - 1, self.facts.shape))

    Drafting.__call__ = garbled


def faults() -> dict[str, Any]:
    """Faults to plant, by name."""

    def of_adapter(name: str) -> Any:
        from draftwise.integrations.vllm.ahead import AsyncAdapter

        return fail(AsyncAdapter, name)

    def of_controller() -> None:
        from draftwise.controller.controller import Controller

        fail(Controller, "observe")

    def of_mixer(name: str) -> None:
        from draftwise.integrations.vllm import kernels, mixer

        fail(kernels.Drafting if name == "__call__" else mixer.Report, name)

    return {
        "kernels": lambda: of_mixer("__call__"), "report": lambda: of_mixer("__init__"),
        "rooms": lambda: of_adapter("_room"), "controller": of_controller, "garbage": garble,
        "permission": lambda: of_adapter("_permission"), "text": lambda: of_adapter("_text"),
    }  # fmt: skip


FAULTS = faults()


def scheduler_of(llm: Any) -> Any:
    """The scheduler if the engine runs in this process, else None."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    return None if core is None else core.scheduler


class Ticks:
    """A clock on which every step takes the same time."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1e-3
        return self._now


def make_drafts_free(scheduler: Any) -> None:
    """Replace the clock by one on which drafts cost nothing."""
    if hasattr(scheduler, "draftwise") and not isinstance(scheduler.draftwise.clock.now, Ticks):
        scheduler.draftwise.clock.now = Ticks()


def counts(llm: Any) -> dict[str, Any]:
    """Drafted and accepted tokens by drafter, and remaining rows, of a scheduler in-process."""
    scheduler = scheduler_of(llm)
    if scheduler is None or not hasattr(scheduler, "draftwise"):
        return {}
    adapter = scheduler.draftwise
    counts = adapter.counts
    return {
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "rows_left": adapter.num_running,
        "has_failed": adapter.has_failed,
        "own_ms": 1e3 * counts.own_s / max(counts.steps, 1),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
