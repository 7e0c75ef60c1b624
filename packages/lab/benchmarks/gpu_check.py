"""vLLM on this GPU: step times next to the composed ones; plain, best fixed rule, draftwise.

    python -m benchmarks gpu_check --out gpu_check.json   # an H100, ten minutes
    python -m benchmarks gpu_check --target MODEL --drafter HEAD --method eagle3 --lengths 3 5
    python -m benchmarks gpu_check --cpu                  # the same on vLLM's CPU build
    python -m benchmarks gpu_check --dry                  # the same on a simulated engine
    python -m benchmarks gpu_check --target FOLDER/target --drafter FOLDER/head --composed
                                                          # models from `benchmarks padded`

Run it in vLLM's environment, with draftwise installed there. Each method runs an engine with vLLM's
default flags, one engine after the other (the GPU's memory holds one), on the same blocks of
bundled prompts, with ``--requests`` concurrent requests. With ``--rounds 1`` a block's answers have
equal length and no request replaces one that ends; with more, a block has that many times as many
answers, of 0.5 to 1.5 times ``--tokens``, and the next request starts when one ends. Ratios are of
the blocks' seconds, including prefill, with a bootstrap over blocks. A step's seconds are the
median over steps in which all requests decode. In vLLM a model drafter always drafts its maximum
length, so with a fixed length of K a step has K + 1 tokens per request.

Composed seconds are those of ``gpu_replay``: kernel times measured by AIConfigurator (Apache-2.0,
vLLM 0.24 tables), summed for Llama-3.1-8B in bfloat16 on one H100 (``results/gpu_composed.json``,
written by ``--compose FOLDER``). ``--composed`` compares them with another target of that shape. If
a method's engine fails, the result omits the method, with a message.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from shared.child import Child
from shared.compare import span
from shared.gpu_engine import run_block
from shared.results import load, save
from shared.script import options as parse
from shared.script import show

from draftwise import zoo

TARGET = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
COMPOSED = "llama8b_bf16_1xh100"
BATCHES, CONTEXTS = (1, 4, 16, 64, 128), (256, 1024, 4096)
LENGTHS = tuple(range(9))
CHILD = Path(__file__).with_name("shared") / "gpu_engine.py"


def vllm_engine(options: Mapping[str, Any]) -> Child:
    """Start a vLLM engine in a child process, which frees the GPU when it ends."""
    made = Child([sys.executable, str(CHILD)], "vLLM's engine ended: its messages above say why")
    made(options)
    return made


class MadeUp:
    """A simulated engine for tests of this script: a step takes 8 ms, 20 us per token and 0.5 ms
    per drafted token; three of four drafted tokens are accepted."""

    def __init__(self, engine: Mapping[str, Any]) -> None:
        self._length = engine.get("speculative_config", {}).get("num_speculative_tokens", 0)
        self._now, self._running, self._num = 0.0, dict[str, SimpleNamespace](), 0

    def __call__(self, task: Mapping[str, Any]) -> dict[str, Any]:
        given = task["prompts"], task["max_tokens"], task["at_once"]
        return run_block(self, *given, lambda: self._now)

    def close(self) -> None:
        """Do nothing."""

    def add_request(self, request_id: str, prompt: str, params: int) -> None:
        """Add a request as vLLM's ``LLMEngine`` does; the first step prefills the prompt."""
        output = SimpleNamespace(token_ids=[])
        self._running[request_id] = SimpleNamespace(
            request_id=request_id, outputs=[output], prompt_token_ids=prompt.split(), left=params
        )

    def has_unfinished_requests(self) -> bool:
        return bool(self._running)

    def step(self) -> list[SimpleNamespace]:
        self._num += 1
        tokens = len(self._running) * (1 + self._length)
        self._now += 0.008 + 2e-5 * tokens + 5e-4 * self._length
        done = list(self._running.values())
        for number, one in enumerate(done):
            is_first = not one.outputs[0].token_ids
            right = 0 if is_first else min(self._length, 3 * ((self._num + number) % 4 > 0))
            num = min(1 + right, one.left)
            one.outputs[0].token_ids += list(range(one.left, one.left - num, -1))
            one.left -= num
            one.finished = not one.left
            if one.finished:
                del self._running[one.request_id]
        return done


def engines(args: argparse.Namespace) -> dict[str, tuple[dict[str, Any], int | None]]:
    """By method: vLLM's options, and the tokens that every request drafts in every step; None where
    that number varies (retrieval, draftwise)."""
    base: dict[str, Any] = {"model": args.target, **json.loads(args.engine)}
    drafter: dict[str, Any] = {"method": args.method}
    if args.drafter:
        drafter["model"] = args.drafter
    elif args.method == "ngram":
        drafter |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    found: dict[str, tuple[dict[str, Any], int | None]] = {"none": (base, 0)}
    for length in args.lengths:
        config = drafter | {"num_speculative_tokens": length}
        known = length if args.drafter else None
        found[f"{args.method} {length}"] = base | {"speculative_config": config}, known
    longest = {"num_speculative_tokens": max(args.lengths)}
    adaptive = drafter | longest | {"enable_adaptive_verification": True}
    if args.adaptive and args.drafter:
        found["adaptive verification"] = base | {"speculative_config": adaptive}, None
    if args.idle and args.drafter:
        never = {"num_speculative_tokens_per_batch_size": [[1, 1024, 0]]}
        found["idle head"] = base | {"speculative_config": drafter | longest | never}, 0
    if args.head:  # draftwise without retrieval
        alone = {"draftwise": {"state": None, "drafters": ["model"]}}
        path = f"draftwise.integrations.vllm.{args.scheduler}"
        options = {"scheduler_cls": path, "additional_config": alone}
        options["speculative_config"] = drafter | longest
        found["draftwise, head only"] = base | options, None
    mine = {"scheduler_cls": f"draftwise.integrations.vllm.{args.scheduler}"}
    mine["additional_config"] = {"draftwise": {"state": None}}
    if args.drafter:
        mine["speculative_config"] = drafter | longest
    found["draftwise"] = base | mine, None
    if args.adaptive and args.drafter:  # the device divides a budget among the requests
        found["draftwise, divided"] = base | mine | {"speculative_config": adaptive}, None
    return found


Cell = tuple[int, int]
"""Number of concurrent requests, and rounds."""


def tasks(args: argparse.Namespace) -> dict[Cell, list[dict[str, Any]]]:
    """Blocks of bundled texts to continue, with mixed kinds: code, queries, arithmetic, prose."""
    kinds = zip(*zoo.prompts().values(), strict=False)
    prompts = [f"Continue this text:\n\n{text}" for texts in kinds for text in texts]
    if args.copies:
        ask = "Repeat this text word for word, then once more:\n\n"
        prompts = [p for one in prompts for p in (one, ask + one.partition("\n\n")[2])]
    found = {}
    for size, rounds in product(args.requests, args.rounds):
        num = size * rounds
        own = [prompts[i % len(prompts)] for i in range(num * args.blocks)]
        lengths = [args.tokens] * num
        if rounds > 1:
            lengths = [round(args.tokens * (0.5 + i % 7 / 6)) for i in range(num)]
        found[size, rounds] = [
            {"prompts": own[i : i + num], "max_tokens": lengths, "at_once": size}
            for i in range(0, len(own), num)
        ]
    return found


def of_engine(
    engine: Any, asked: Mapping[Cell, Sequence[Mapping[str, Any]]]
) -> dict[Cell, list[dict[str, Any]]]:
    found = {}
    for cell, own in asked.items():
        engine({**own[0], "max_tokens": [16] * len(own[0]["prompts"])})  # warm-up
        found[cell] = [engine(task) for task in own]
    engine.close()
    return found


def measure(
    make: Callable[[Mapping[str, Any]], Any], args: argparse.Namespace
) -> dict[str, dict[Cell, list[dict[str, Any]]]]:
    found: dict[str, dict[Cell, list[dict[str, Any]]]] = {}
    asked = tasks(args)
    for name, (options, _) in engines(args).items():
        print(f"{name}: starting vLLM", file=sys.stderr)
        try:
            found[name] = of_engine(make(options), asked)
            if args.out:  # an interruption loses nothing
                partial = {n: {str(cell): v for cell, v in f.items()} for n, f in found.items()}
                Path(f"{args.out}.partial").write_text(json.dumps(partial))
        except (SystemExit, BrokenPipeError) as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
        gc.collect()
    if "none" not in found:
        sys.exit("without plain decoding there is nothing to compare with")
    return found


def step_rows(
    measured: Mapping[str, Mapping[Cell, Sequence[Mapping[str, Any]]]],
    drafted: Mapping[str, int | None],
    composed: Composed | None,
) -> Iterator[dict[str, Any]]:
    """Median milliseconds of a full step by method and requests, next to the composed ones."""
    for name, by_cell in measured.items():
        for (size, rounds), done in by_cell.items():
            steps = np.array([step for block in done for step in block["steps"]])
            if not len(steps):
                continue
            length, context = drafted[name], float(steps[:, 2].mean())
            row = {
                "method": name, "requests": size, "rounds": rounds,
                "tokens_each": None if length is None else length + 1,
                "num_steps": len(steps), "context": round(context),
                "step_ms": round(1e3 * float(np.median(steps[:, 0])), 3),
                "emitted_each": round(float(steps[:, 1].mean()) / size, 3),
            }  # fmt: skip
            if composed is not None and length is not None:
                wanted_ms = composed.ms(size, length, context)
                row["composed_ms"] = wanted_ms and round(wanted_ms, 3)
                row["measured_over_composed"] = wanted_ms and round(row["step_ms"] / wanted_ms, 3)
            yield row


def speed_rows(
    measured: Mapping[str, Mapping[Cell, Sequence[Mapping[str, Any]]]],
) -> Iterator[dict[str, Any]]:
    """Each method relative to plain decoding, and draftwise to the best fixed rule in hindsight."""

    def columns(name: str, cell: Cell) -> list[list[float]]:
        return [[block[key] for block in measured[name][cell]] for key in ("tokens", "seconds")]

    def over(name: str, other: str, cell: Cell) -> list[float] | float:
        """The ratio, with an interval if there are several blocks."""
        found = span(*columns(name, cell), *columns(other, cell))
        return found if len(measured[name][cell]) > 1 else found[0]

    for cell in measured["none"]:
        rates = {}
        for name in measured:
            tokens, seconds = columns(name, cell)
            rates[name] = sum(tokens) / sum(seconds)
            mine, plain = (
                [answer for block in measured[which][cell] for answer in block["answers"]]
                for which in (name, "none")
            )
            same = [one == other for one, other in zip(mine, plain, strict=True)]
            row = {
                "method": name, "requests": cell[0], "rounds": cell[1],
                "tok_per_s": round(rates[name], 1), "x_plain": over(name, "none", cell),
                "same_answers": round(float(np.mean(same)), 3),
            }  # fmt: skip
            if name.startswith("draftwise"):
                others = (n for n in rates if not n.startswith("draftwise"))
                best = max(others, key=rates.__getitem__)
                row |= {"best_other": best, "x_best": over(name, best, cell)}
            yield row


class Composed:
    """Milliseconds of a step by requests, drafted tokens and context, interpolated."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._batches, self._contexts = table["batches"], table["contexts"]
        self._ms = np.array(table["ms"])  # [batches, lengths, contexts]

    def ms(self, requests: int, length: int, context: float) -> float | None:
        """Milliseconds, or None outside the table."""
        is_inside = self._batches[0] <= requests <= self._batches[-1]
        if not is_inside or context > max(self._contexts) or length >= self._ms.shape[1]:
            return None
        by_batch = [np.interp(context, self._contexts, row[length]) for row in self._ms]
        return float(np.interp(requests, self._batches, by_batch))


def compose(folder: Path) -> dict[str, Any]:
    """Make the table of ``Composed`` from ``gpu_replay``'s data."""
    from gpu_replay import Prices

    prices = Prices(folder / "step_costs.npz", COMPOSED)
    ms = [
        [[prices.ms(size * (1 + k), size, context, k) for context in CONTEXTS] for k in LENGTHS]
        for size in BATCHES
    ]
    return {
        "command": "python -m benchmarks gpu_check --compose FOLDER",
        "model": COMPOSED, "batches": BATCHES, "contexts": CONTEXTS, "ms": np.round(ms, 3).tolist(),
        "source": "composed from AIConfigurator's kernel times (Apache-2.0), vLLM 0.24 tables",
    }  # fmt: skip


def refuse_without(is_cpu: bool) -> None:
    import torch

    if find_spec("vllm") is None:
        said = "pip install vllm, then draftwise with pip install --no-deps; --dry runs without it"
        sys.exit(f"gpu_check needs vLLM in this environment: {said}")
    if not is_cpu and not torch.cuda.is_available():
        said = "torch finds none here; --cpu measures vLLM's CPU build"
        sys.exit(f"gpu_check needs a CUDA GPU, and {said}")


def parsed() -> argparse.Namespace:
    """The parsed options, with the defaults of --cpu and --dry."""
    args = parse(
        __doc__, target=None, lengths=[3, 5], requests={"type": int, "nargs": "+"},
        drafter={"help": "head or draft model; none for --method ngram, suffix"},
        method={"help": "vLLM's name: eagle3, eagle, draft_model, ngram, suffix"},
        blocks={"type": int, "default": 4, "help": "of prompts, for each --requests"}, rounds=[1],
        tokens={"type": int},
        scheduler={"help": "Scheduler or SynchronousScheduler (docs/vllm.md)"},
        engine={"default": "{}", "help": "more options of vLLM's LLM, as JSON"},
        cpu={"action": "store_true", "help": "vLLM's CPU build, the bundled target"},
        dry={"action": "store_true", "help": "a made-up engine: no vLLM, no GPU"},
        adaptive={"action": "store_true", "help": "also adaptive verification, alone and ours"},
        head={"action": "store_true", "help": "also draftwise without retrieval"},
        idle={"action": "store_true", "help": "also a head that never drafts"},
        copies={"action": "store_true", "help": "also prompts whose answers copy them"},
        composed={"action": "store_true", "help": "compare step times with the composed ones"},
        compose={"type": Path, "metavar": "FOLDER", "help": "only compose step costs"},
    )  # fmt: skip
    if args.cpu:
        small = {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024}
        usual = str(zoo.target_path()), None, "ngram", [1, 4], 32, "Scheduler"
        args.engine = json.dumps(small | {"max_num_seqs": 16} | json.loads(args.engine))
    else:
        usual = TARGET, HEAD, "eagle3", [1, 4, 16, 64], 128, "Scheduler"
    names = ("target", "drafter", "method", "requests", "tokens", "scheduler")
    is_own = args.method in {"ngram", "suffix"} or (args.target and not args.drafter)
    for name, value in zip(names, usual, strict=True):
        if getattr(args, name) is None and not (name == "drafter" and is_own):
            setattr(args, name, value)
    if args.drafter is None and args.method not in {"ngram", "suffix"}:
        sys.exit(f"--method {args.method} needs --drafter")
    return args


def main() -> None:
    args = parsed()
    if args.compose:
        save(args.out, compose(args.compose))
        return
    if not args.dry:
        refuse_without(args.cpu)
    measured = measure(MadeUp if args.dry else vllm_engine, args)
    args.composed |= args.target == TARGET and not args.cpu
    composed = Composed(load("gpu_composed")) if args.composed else None
    drafted = {name: length for name, (_, length) in engines(args).items()}
    steps = list(step_rows(measured, drafted, composed))
    speeds = list(speed_rows(measured))
    show(steps, "steps in which all requests decode")
    show(speeds, "speed, prefill included, relative to vLLM without drafts")
    about: dict[str, Any] = {"target": Path(args.target).name, "engine": json.loads(args.engine)}
    if not args.dry and not args.cpu:
        import torch

        about["gpu"] = torch.cuda.get_device_name()
    save(args.out, {**about, "is_made_up": args.dry, "steps": steps, "speeds": speeds})


if __name__ == "__main__":
    main()
