"""A vLLM engine that answers blocks of prompts over pipes: the child process of ``vllm_speed.py``.

Engine, scheduler and model share one process and one thread, so a step's cost is the process's CPU
seconds, which other programs do not affect.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpu_engine import with_template

SCHEDULER = "draftwise.integrations.vllm.Scheduler"
WRAPPED = ("schedule", "get_grammar_bitmask", "update_from_output", "update_draft_token_ids")
"""Methods of vLLM's scheduler that draftwise's scheduler overrides."""

MAPS = Path("/proc/self/maps")
HUGE_PAGE, MADV_COLLAPSE = 1 << 21, 25


class Constant:
    """vLLM's ``dynamic_sd_lookup`` with the same length in every step."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __getitem__(self, num_requests: int) -> int:
        return self._length


def main() -> None:
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints to stdout, which carries the answers
    from vllm import LLM

    job = json.loads(sys.stdin.readline())
    options = {"enforce_eager": True, "seed": 0, "enable_prefix_caching": False} | job["engine"]
    if job.get("draftwise") is not None:
        options |= {"scheduler_cls": SCHEDULER}
        options |= {"additional_config": {"draftwise": {"state": None} | job["draftwise"]}}
    llm = LLM(**options)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    spent = watch(scheduler) if hasattr(scheduler, "draftwise") else [0.0, 0.0]
    print(json.dumps({"ready": True}), file=pipe)
    for line in sys.stdin:
        num = use_huge_pages()  # repeated, because memory may have been short before
        done = answer(llm, scheduler, json.loads(line), spent)
        print(json.dumps(done | {"huge_pages": num}), file=pipe)


def use_huge_pages() -> int:
    """Move this process's memory to huge pages; return their number (0 without Linux 6.1). In pages
    of 4 KB, two processes with the same engine differ by up to 20% throughout."""
    libc, num = ctypes.CDLL(None), 0
    libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in MAPS.read_text().splitlines() if MAPS.exists() else ():
        addresses, mode, _, _, inode = line.split()[:5]
        if inode != "0" or not mode.startswith("rw"):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        for at in range(-(-begin // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
            num += libc.madvise(at, HUGE_PAGE, MADV_COLLAPSE) == 0
    return num


def watch(scheduler: Any) -> list[float]:
    """Price steps by CPU seconds and time the adapter; return [adapter's seconds, whole steps']."""
    adapter, spent = scheduler.draftwise, [0.0, 0.0]
    adapter.clock.now = time.process_time

    def timed(method: Any) -> Any:
        def call(*args: Any) -> Any:
            start = time.process_time()
            try:
                return method(*args)
            finally:
                spent[0] += time.process_time() - start

        return call

    for name in ("came_back", "learn", "draft", "work"):
        setattr(adapter, name, timed(getattr(adapter, name)))
    return spent


def answer(llm: Any, scheduler: Any, task: dict[str, Any], spent: list[float]) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

    scheduler.max_num_active_reqs = task.get("at_once", scheduler.max_num_running_reqs)
    is_off = task.get("off") and hasattr(scheduler, "draftwise")
    for name in WRAPPED if is_off else ():  # vLLM's methods, with a proposer that proposes nothing
        setattr(scheduler, name, getattr(VllmScheduler, name).__get__(scheduler))
    if task.get("length"):
        scheduler.dynamic_sd_lookup = Constant(task["length"])
    params = SamplingParams(
        temperature=task.get("temperature", 0.0), max_tokens=task["max_tokens"],
        ignore_eos=task.get("ignore_eos", False),
    )  # fmt: skip
    prompts = task["prompts"]
    if task.get("chat"):
        tokenizer = llm.get_tokenizer()
        prompts = [with_template(tokenizer, prompt) for prompt in prompts]
    own, cpu, wall = spent[0], time.process_time(), time.perf_counter()
    step, steps = llm.llm_engine.step, itertools.count()

    def counted() -> Any:
        next(steps)
        return step()

    llm.llm_engine.step = counted
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm.llm_engine.step = step
    for name in WRAPPED if is_off else ():
        delattr(scheduler, name)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    return {
        "tokens_of": texts,
        "tokens": sum(map(len, texts)),
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "own_s": spent[0] - own,
        "steps": next(steps),
    }


if __name__ == "__main__":
    main()
