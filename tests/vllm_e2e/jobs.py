"""Jobs for engines in child processes, and their requests."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from draftwise import zoo

ENGINE = Path(__file__).with_name("engine.py")
TURN = "the engine is ready for its next task\n"
DRAFT_MODEL = {
    "speculative_config": {
        "method": "draft_model",
        "model": str(zoo.drafter_paths()["generalist"]),
        "num_speculative_tokens": 4,
    }
}
SPECIAL: list[dict[str, Any]] = [
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.8, "frequency_penalty": 0.3},
    {"logit_bias": {"300": 4.0, "17": -8.0}},
    {"min_tokens": 12},
    {"regex": "[0-9]{2,9}( [a-z]+)+"},
    {"stop": ["\n"]},
    {"ignore_eos": True},
]


def mixed_requests(num: int = 64) -> list[dict[str, Any]]:
    """Prompts of all kinds in the zoo, some repeated, a third with special sampling options."""
    rng = random.Random(5)
    prompts = [prompt for kind in zoo.prompts().values() for prompt in kind]
    requests = []
    for i in range(num):
        rules = SPECIAL[(i // 3) % len(SPECIAL)] if i % 3 == 0 else {}
        budget = {"temperature": 0.0, "max_tokens": rng.randrange(8, 40)}
        requests.append({"prompt": rng.choice(prompts)} | budget | rules)
    return requests


def ended(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with these arguments and wait for it."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=5400,
    )


def run(folder: Path, name: str, job: dict[str, Any], **environment: str) -> dict[str, Any]:
    """Run a job in a separate process."""
    job = {"out": str(folder / f"{name}.out.json")} | job
    (folder / f"{name}.json").write_text(json.dumps(job))
    done = ended(str(ENGINE), str(folder / f"{name}.json"), **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(Path(job["out"]).read_text())
    return found


def in_turns(folder: Path, *jobs: dict[str, Any], **environment: str) -> list[list[float]]:
    """The seconds of each job's tasks, which run in turns: the first of all, then the second."""
    with ExitStack() as stack:
        engines = []
        for i, job in enumerate(jobs):
            file, job["out"] = folder / f"{i}.json", str(folder / f"{i}.out.json")
            file.write_text(json.dumps(job))
            log = stack.enter_context((folder / f"{i}.log").open("w"))
            engine = subprocess.Popen(
                [sys.executable, str(ENGINE), str(file)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | environment,
            )  # fmt: skip
            engines.append(stack.enter_context(engine))
            stack.callback(engine.kill)
        is_ready = [TURN in engine.stdout for engine in engines]
        for _ in jobs[0]["tasks"]:
            for i, engine in enumerate(engines):
                assert is_ready[i], (folder / f"{i}.log").read_text()[-3000:]
                engine.stdin.write("\n")
                engine.stdin.flush()
                is_ready[i] = TURN in engine.stdout or not engine.wait(600)
    return [json.loads(Path(job["out"]).read_text())["seconds"] for job in jobs]


def job_of(
    config: dict[str, Any], draftwise: dict[str, Any] | None, *at_once: int
) -> dict[str, Any]:
    engine = {"model": str(zoo.target_path()), "max_num_seqs": 16} | config
    tasks = [{"requests": mixed_requests(), "at_once": num, "free": True} for num in at_once]
    return {"engine": engine, "draftwise": draftwise, "tasks": tasks}


IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def eagle_head(folder: Path) -> dict[str, Any]:
    """Engine options with the zoo's EAGLE-3 head, written to ``folder`` in the form vLLM reads."""
    source = zoo.eagle_paths()["eagle-generalist"]
    config = json.loads((source / "config.json").read_text("utf-8"))
    outputs = config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
    config |= {"dtype": "float32", "eagle_aux_hidden_state_layer_ids": [n + 1 for n in outputs]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    shutil.copy(source / "model.safetensors", folder)
    head = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 4}
    return {"speculative_config": head}
