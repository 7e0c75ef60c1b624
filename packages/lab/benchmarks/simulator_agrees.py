"""Does the simulator play the default as the engine does? The same answers, rounds and seconds.

    python -m benchmarks simulator_agrees --prompts 2 --out agrees.json

Greedy answers of the zoo are recorded (``record.py``); then the engine answers
the same prompts on a clock that moves by what forwards are said to cost, and the simulator plays
the recorded arrays at the same costs. Greedy decoding leaves nothing to chance, so that what
differs is the simulator's: a draft's tail behind its first rejection, and costs that the engine
has to measure first. Reading prompts with the target is left out of both.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fixed_costs import priced
from record import PROMPT, arrays, record
from rich.console import Console
from rich.progress import track
from shared.results import save
from transformers.utils import logging

from draftwise import Speculator, zoo
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.recorded import Recorded
from draftwise_lab.sim.play import Contestant, Reference, fold, play

TARGET_MS, DRAFTER_MS = (7.5, 0.2), (0.42, 0.02)
RETRIEVAL = "lookup"


def table(longest: int) -> CostTable:
    """The given costs as the simulator takes them."""
    target = [1e-3 * (TARGET_MS[0] + TARGET_MS[1] * n) for n in range(1, longest + 2)]
    step_s = 1e-3 * sum(DRAFTER_MS)
    read = 1e-3 * DRAFTER_MS[1] / step_s
    return CostTable({1: target}, {RETRIEVAL: 0.0}, other_s=step_s, read_share=read)


def in_the_engine(
    setting: str, prompts: list[str], tokens: int, knows_costs: bool
) -> tuple[list[dict[str, float]], Any]:
    """Rounds and seconds of each prompt's answer, and the plans.

    knows_costs: the policy is told the given costs, and not what the engine measures of them.
    """
    spec, clock = priced(setting, TARGET_MS, DRAFTER_MS)
    if knows_costs:
        meter, names = spec._pool.meter, [drafter.name for drafter in spec.drafters]
        told: Any = lambda rows, num, is_packed=False: table(num).at(1, names, num)  # noqa: E731
        meter.costs = told  # type: ignore[method-assign]
    found = []
    for prompt in track(prompts, f"engine, {setting}", console=Console(stderr=True)):
        before = clock[0]
        result = spec.generate(prompt, max_new_tokens=tokens, ignore_eos=True)
        num = len(spec.tokenizer(prompt)["input_ids"]) - 1
        reading = 1e-3 * (TARGET_MS[0] + TARGET_MS[1] * num)
        stats = result.stats
        found.append({
            "rounds": stats.num_rounds, "drafted": stats.num_drafted,
            "seconds": clock[0] - before - reading,
        })  # fmt: skip
    return found, spec.plans


def in_the_simulator(
    setting: str, plans: Any, world: Recorded, domains: list[str], tokens: int
) -> list[dict[str, float]]:
    """The same of the recorded arrays."""
    policy, feedback = setting.split("/")[1], "free"
    contestant = Contestant("goodput", policy, "length", feedback, tuple(plans))
    found = []
    for domain in dict.fromkeys(domains):
        for text in world.texts(f"{domain}@0", 0, tokens, 16):
            rows = play(
                text, contestant, world.costs, Reference([tokens], 0), np.random.SeedSequence(0), {
                    "seed": 0, "domain": domain,
                },
            )  # fmt: skip
            run = fold(rows)
            found.append({"rounds": run.rounds, "drafted": run.drafted, "seconds": run.seconds})
    return found


def compared(engine: list[dict[str, float]], simulator: list[dict[str, float]]) -> dict[str, Any]:
    """The simulator's sums over the engine's, and how far single answers are off."""
    result: dict[str, Any] = {}
    for key in ("rounds", "drafted", "seconds"):
        pairs = [(a[key], b[key]) for a, b in zip(engine, simulator, strict=True)]
        result[key] = sum(b for _, b in pairs) / sum(a for a, _ in pairs)
        off = [abs(math.log(b / a)) for a, b in pairs if a and b]
        result[f"{key}, median answer off by"] = float(np.median(off))
        result[f"{key}, worst answer off by"] = float(max(off))
    return result


def main() -> None:
    """Record, play twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=2, help="held-out prompts a domain")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--setting", action="append", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    spec = Speculator.from_pretrained("zoo")
    recorded, prompts, domains = [], [], []
    for domain, held_out in zoo.prompts().items():
        for prompt in held_out[options.skip : options.skip + options.prompts]:
            one = record(spec, prompt, options.tokens, 0.0, 0)
            if one is not None:
                recorded.append(one)
                prompts.append(prompt)
                domains.append(domain)
    settings = options.setting or ["draftwise/goodput", "draftwise/goodput:mix=false,looks=false"]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.npz"
        np.savez(path, **arrays(recorded, domains, 0.0))
        world = Recorded(path, table(16))
        for setting in settings:
            for knows in (False, True):
                engine, plans = in_the_engine(setting, prompts, options.tokens, knows)
                simulator = in_the_simulator(setting, plans, world, domains, options.tokens)
                label = f"{setting}, costs {'known' if knows else 'measured'}"
                found[label] = compared(engine, simulator) | {"answers": len(prompts)}
    save(options.out, found)
    assert PROMPT == 16


if __name__ == "__main__":
    main()
