"""draftwise's policy for SGLang next to SGLang's two rules: recorded EAGLE answers at H100 costs.

DATA is a folder with ``step_costs.npz`` and ``acceptance_llama8b.npz`` (described in
docs/lab/reproduction/sglang.md). B requests are served in a closed loop; a step drafts the same
number of tokens for all of them. Every rule drives SGLang's real ``AdaptiveController`` (``make
sglang-wheel``), and learns from a step only after it has chosen the next one, as with SGLang's
overlap scheduler. A change of length costs ``--switch-ms``, and each rule's own time is added to
its steps. Speed is relative to plain decoding of the same requests.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_replay
from gpu_replay import Prices, Source, Text
from shared.script import run, show
from shared.sglang_wheel import FOLDER, unpacked

from draftwise.compiled import warm_up
from draftwise.integrations.sglang import CONFIG, SglangSettings, StepsPolicy, read_settings

NUM_REQUESTS = {1: 60, 4: 120, 16: 240, 64: 420, 128: 420}


def step_ms(prices: Prices, batch: int, context: float, steps: int) -> float:
    """Milliseconds of a step by requests, and context and drafted tokens per request."""
    return prices.ms(batch * (steps + 1), batch, context, steps)


class Fixed:
    def __init__(self, steps: int) -> None:
        self.candidate_steps = [steps]

    def set_cuda_graph_bs(self, sizes: Any) -> None:
        pass

    def cuda_graph_bs_for_step(self, step: int) -> None:
        return None

    def get_steps_for_batch(self, batch_size: int) -> int:
        return self.candidate_steps[0]

    def on_verify_complete(self, counts: list[int], batch_size: int) -> None:
        return None


class ThroughputAware(Fixed):
    """SGLang's throughput-aware rule with its defaults, since 0.5.23's wheel lacks it.

    Source: ``throughput_aware_controller.py`` (``ThroughputAwarePolicy``) and
    ``throughput_aware_spec_params.py`` of pull request 28045 of sgl-project/sglang (Apache-2.0):
    expected tokens by the mean acceptance at each position over 20 batches, divided by milliseconds
    profiled at start with 128 tokens of context; every 5 batches; 10% better to switch; never off.
    """

    def __init__(self, prices: Prices) -> None:
        self.candidate_steps = [1, 3, 5, 7]
        self.steps, self.since = 5, 0
        self.windows = [deque[float](maxlen=20) for _ in range(7)]
        self.prices = prices

    def get_steps_for_batch(self, batch_size: int) -> int:
        if self.since >= 5:
            if all(len(window) == 20 for window in self.windows[: self.steps]):
                self._score(batch_size)
            self.since = 0
        return self.steps

    def on_verify_complete(self, counts: list[int], batch_size: int) -> None:
        for position in range(self.steps):
            share = sum(count > position for count in counts) / len(counts)
            self.windows[position].append(share)
        self.since += 1

    def _score(self, batch_size: int) -> None:
        rates: list[float] = []
        for window in self.windows:
            if window:
                rates.append(sum(window) / len(window))
            elif len(rates) == 1:
                rates.append(rates[0])
            else:
                decay = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)) if rates[0] > 0 else 0.0
                rates.append(min(rates[-1], rates[-1] * decay))
        scores = {
            steps: (1 + sum(rates[:steps])) / step_ms(self.prices, batch_size, 128.0, steps)
            for steps in self.candidate_steps
        }
        best = max(scores, key=lambda steps: scores[steps])
        if scores[best] > 1.1 * scores[self.steps]:
            for position in range(best, 7):
                self.windows[position].clear()
            self.steps = best


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Worker:
    """The worker interface that SGLang's controller uses."""

    def __init__(self, steps: int) -> None:
        self.speculative_num_steps, self.switches = steps, 0

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: Any
    ) -> Any:
        return SimpleNamespace(speculative_num_steps=speculative_num_steps)

    def apply_runtime_state(self, state: Any) -> None:
        self.switches += self.speculative_num_steps != state.speculative_num_steps
        self.speculative_num_steps = state.speculative_num_steps


def serve(
    texts: list[Text], batch: int, prices: Prices, policy: Any, controller: Any,
    clock: Clock, switch_ms: float, seed: int,
) -> dict[str, float]:  # fmt: skip
    """Tokens per second while ``batch`` requests run; ``own_ms``: the rule's time per step."""
    candidates, source = policy.candidate_steps, Source(texts, batch, seed)
    worker = Worker(candidates[len(candidates) // 2])
    controller = controller(worker, policy)
    controller.init_states(None)
    spent_ms = tokens = own_s = 0.0
    rounds = 0
    told: tuple[list[int], int, float] | None = None
    while rows := source.rows:
        context, begun = source.context, time.process_time()
        if isinstance(policy, StepsPolicy):
            policy.expect([row.number for row in rows], context)
        switches = worker.switches
        controller.activate_step_by_batch(len(rows))
        if told is not None:
            clock.now_s = told[2]
            controller.on_verify_complete(told[0], told[1])
        took_s = time.process_time() - begun
        steps = worker.speculative_num_steps
        ms = step_ms(prices, len(rows), context / len(rows), steps) + 1e3 * took_s
        ms += switch_ms * (worker.switches - switches)
        counts = [min(row.head, steps) for row in rows]
        told = counts, len(rows), clock.now_s + ms / 1e3
        emitted = [min(row.left, count + 1) for row, count in zip(rows, counts, strict=True)]
        if len(rows) == batch:
            spent_ms += ms
            tokens += sum(emitted)
            own_s += took_s
            rounds += 1
        for row, num in zip(rows, emitted, strict=True):
            row.known += num
        source.fill()
    return {"speed": 1e3 * tokens / spent_ms, "own_ms": 1e3 * own_s / rounds,
            "switches": worker.switches / rounds}  # fmt: skip


def compare(
    texts: list[Text], batch: int, prices: Prices, load: Any, settings: SglangSettings,
    switch_ms: float, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Speeds relative to plain decoding of the same requests."""
    controller = load("speculative.adaptive_runtime_state").AdaptiveController
    params = load("speculative.adaptive_spec_params").AdaptiveSpeculativeParams

    def run(make: Callable[[Clock], Any]) -> dict[str, float]:
        clock = Clock()
        return serve(texts, batch, prices, make(clock), controller, clock, switch_ms, seed)

    plain = run(lambda _: Fixed(0))["speed"]
    fixed = {k: run(lambda _, k=k: Fixed(k))["speed"] / plain for k in (1, 2, 3, 4, 5, 7)}
    ladder = run(lambda _: params(initial_steps=3))["speed"] / plain
    aware = run(lambda _: ThroughputAware(prices))["speed"] / plain
    clock = Clock()
    policy = StepsPolicy(settings, clock=clock)
    own = serve(texts, batch, prices, policy, controller, clock, switch_ms, seed)
    speed, best = own["speed"] / plain, max(fixed, key=fixed.__getitem__)
    return {
        "batch": batch, "requests": len(texts), "plain_tokens_a_second": round(plain, 1),
        "ladder": ladder, "throughput_aware": aware, "best_fixed": fixed[best],
        "best_fixed_steps": best, "draftwise": speed, "own_ms": own["own_ms"],
        "switches": own["switches"], "to_better_rule": speed / max(ladder, aware),
        "rounds": dict(sorted(policy.counts.items())), "its_own_estimate": policy.guard.speed,
    }  # fmt: skip


def replay(args: argparse.Namespace) -> dict[str, Any]:
    texts = gpu_replay.load(args.data, "acceptance_llama8b.npz")
    settings = read_settings(args.config)
    if settings is None:
        raise SystemExit(f'{args.config} has no "draftwise" entry')
    warm_up()
    rows = []
    with unpacked(args.sglang) as load:
        for model in args.model:
            prices = Prices(args.data / "step_costs.npz", model)
            for batch in args.batch:
                num = args.requests or NUM_REQUESTS.get(batch, 420)
                some = random.Random(100 + args.seed).sample(texts, min(num, len(texts)))
                row = compare(some, batch, prices, load, settings, args.switch_ms, args.seed)
                rows.append({"model": model, **row})
    show(rows)
    return {"rows": rows}


if __name__ == "__main__":
    run(
        __doc__, replay, data={"flags": "data", "type": Path}, model=["llama8b_bf16_1xh100"],
        batch=sorted(NUM_REQUESTS), config=str(CONFIG), switch_ms=0.1, seed=0,
        requests={"type": int, "default": 0, "help": "0: by batch size"},
        sglang={"type": Path, "default": FOLDER},
    )  # fmt: skip
