"""One vLLM engine in a process of its own: ``python engine.py JOB.json`` writes ``OUT.json``.

A job holds engine arguments, options of draftwise (None = plain vLLM) and tasks, each a list of
requests that run at once; the answers' tokens come back, and what the adapter counted.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

SCHEDULER = "draftwise.integrations.vllm.Scheduler"


def main(path: Path) -> None:
    from vllm import LLM

    job = json.loads(path.read_text())
    options: dict[str, Any] = {"enforce_eager": True, "dtype": "float32", "seed": 0}
    options |= job["engine"]
    if job["draftwise"] is not None:
        options["scheduler_cls"] = SCHEDULER
        options["additional_config"] = {"draftwise": {"state": None} | job["draftwise"]}
    llm = LLM(**options)
    done = []
    for task in job["tasks"]:
        start = time.process_time()
        done.append(run(llm, task))
        print(f"{time.process_time() - start:.1f} s of CPU", task.get("policy"), file=sys.stderr)
    Path(job["out"]).write_text(json.dumps({"answers": done, "counts": counts(llm)}))


def run(llm: Any, task: dict[str, Any]) -> list[list[int]]:
    """The answers' tokens of one task's requests, ``at_once`` at a time."""
    if task.get("policy"):
        force(llm, task["policy"])
    requests = [sampling(request) for request in task["requests"]]
    answers: list[list[int]] = []
    for start in range(0, len(requests), task["at_once"]):
        part = requests[start : start + task["at_once"]]
        outputs = llm.generate([prompt for prompt, _ in part], [params for _, params in part])
        answers += [list(one.token_ids) for output in outputs for one in output.outputs]
    return answers


def sampling(request: dict[str, Any]) -> tuple[str, Any]:
    """The prompt and vLLM's sampling parameters."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = dict(request)
    prompt = given.pop("prompt")
    if "regex" in given:
        given["structured_outputs"] = StructuredOutputsParams(regex=given.pop("regex"))
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return prompt, SamplingParams(**given)


def scheduler_of(llm: Any) -> Any:
    """The scheduler, where the engine runs in this process; else None."""
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    return None if core is None else core.scheduler


def force(llm: Any, policy: str) -> None:
    """Requests from now on are played by this policy: one engine tries every arm in turn."""
    controller = scheduler_of(llm).draftwise.controller
    controller._options = replace(controller._options, policy=policy)
    controller._heritage = None


def counts(llm: Any) -> dict[str, Any]:
    """Rounds and accepted tokens by plan, and preemptions, where the scheduler can be seen."""
    scheduler = scheduler_of(llm)
    if scheduler is None or not hasattr(scheduler, "draftwise"):
        return {}
    controller = scheduler.draftwise.controller
    counts = controller.counts
    return {
        "rounds": {str(plan): counted.rounds for plan, counted in counts.items()},
        "drafted": {str(plan): counted.drafted for plan, counted in counts.items()},
        "accepted": {str(plan): counted.accepted for plan, counted in counts.items()},
        "rows_left": len(controller.rows),
        "plans": [str(plan) for plan in controller.plans],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
