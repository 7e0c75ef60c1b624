"""Microseconds of the kernels that draft on the device; the tests compare what they draft.

    python -m benchmarks gpu_kernels --out gpu_kernels.json    # a GPU, three minutes
    python -m benchmarks gpu_kernels --dry                     # Triton's interpreter, seconds

Needs triton and draftwise, and nothing of vLLM. Texts are random over a few tokens, so that every
end occurs before; a row takes as long as its text. ``graph_us`` replays the launches in a CUDA
graph: the device's own time. ``launch_us`` includes what the host takes to launch them. Each row is
printed, and written to ``--out``, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from shared.script import options, show

from draftwise.controller.acceptance import new_tables
from draftwise.controller.mixing import hazards_of

K, HEAD, REPEATS = 16, 3, 50


def interpreted() -> None:
    """Use Triton's interpreter, for a machine without a GPU."""
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(compiler=None, driver=driver)


class Case:
    """``rows`` random texts of ``length`` tokens, and a history of ``history`` tokens."""

    def __init__(self, rows: int, length: int, history: int, device: torch.device) -> None:
        from draftwise.integrations.vllm.kernels import ROW, Drafting

        rng = np.random.default_rng(rows + length)
        self.texts = rng.integers(0, 50, (rows, length)).astype(np.int32)
        self.heads = rng.integers(0, 50, (rows, HEAD)).astype(np.int64)
        self.drafting = Drafting(rows, length, K, device, history)
        if history:
            answers = rng.integers(0, 50, (4, history // 5)).astype(np.int32)
            for answer in answers:
                self.drafting.remember(torch.from_numpy(answer).to(device), 0)
        tables = new_tables(K)
        hazards = hazards_of(tables)
        flat = np.concatenate([array.ravel() for array in hazards])
        given = np.zeros((rows, ROW), np.int32)
        given[:, :3], given[:, 4:6] = (1, 1, K), np.ones(2, np.float32).view(np.int32)
        one = torch.ones(rows, dtype=torch.int32, device=device)
        self.arguments: Any = (
            torch.from_numpy(self.texts).to(device), one * length,
            torch.arange(rows, device=device), one, 0 * one,
            torch.from_numpy(self.heads).to(device), HEAD, torch.from_numpy(flat).to(device),
            torch.from_numpy(given).to(device), 0.1, length,
        )  # fmt: skip

    def __call__(self) -> None:
        self.drafting(*self.arguments)


def microseconds(case: Case, is_gpu: bool) -> dict[str, float]:
    """The device's own time in a CUDA graph, and the time with launches."""
    if not is_gpu:
        begin = time.perf_counter()
        case()
        return {"interpreted_us": 1e6 * (time.perf_counter() - begin)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case()
    found = {}
    for name, run in (("graph_us", graph.replay), ("launch_us", case)):
        run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize()
        found[name] = round(1e6 * (time.perf_counter() - begin) / REPEATS, 1)
    return found


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    is_gpu = not args.dry
    device = torch.device("cuda" if is_gpu else "cpu")
    rows: list[dict[str, Any]] = []
    for history in args.history:
        for length in args.lengths:
            for num in args.requests:
                case = Case(num, length, history, device)
                row = {"requests": num, "length": length, "history": history}
                row |= microseconds(case, is_gpu)
                rows.append(row)
                print(json.dumps(row), flush=True)
                if args.out:
                    about = {"gpu": torch.cuda.get_device_name() if is_gpu else None}
                    Path(args.out).write_text(json.dumps(about | {"rows": rows}, indent=1))
    return rows


def main() -> None:
    args = options(
        __doc__, requests=[1, 16, 64, 256], lengths=[256, 2000, 8000, 32_000],
        history=[0, 1 << 18], dry={"action": "store_true", "help": "Triton's interpreter"},
    )  # fmt: skip
    if args.dry:
        interpreted()
        args.requests, args.lengths, args.history = [1, 3], [64, 1500], [0, 2048]
    show(measure(args), "kernels")


if __name__ == "__main__":
    main()
