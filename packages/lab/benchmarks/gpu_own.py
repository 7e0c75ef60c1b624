"""Our own engine on this GPU: plain, draftwise, and transformers' generate, plain and assisted.

    python -m benchmarks gpu_own --out gpu_own.json                    # three minutes of a GPU
    python -m benchmarks gpu_own --device cpu --targets FOLDER --dtypes float32 --requests 1 2 \\
        --tokens 8 --seconds 20                                        # the same, to try it

Every target in every precision, with 1, 4 and 16 requests that arrive together and are as long as
--tokens, greedy. The methods are interleaved in random order, block by block, on turns of everyday
chats that no method has answered before; the first block is not counted. Seconds are wall time,
prefill included, until the device is done; ratios to plain decoding have a bootstrap interval over
blocks. transformers assists single requests only, and there by prompt lookup; it suppresses end
tokens, which our engine ignores. ``waits`` counts how often a round of draftwise waits for the
device, as torch's debug mode reports (CUDA only).

Cells are visited in turn until --seconds are over, and --out is written after each.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import Any

import torch
from shared.compare import as_asked, span
from shared.results import save
from shared.script import run, show

from draftwise import Speculator
from draftwise.chat import encode
from draftwise_lab.train.turns import made_turns

Texts = list[list[int]]  # tokens of the answers
LOOKUP = 10  # drafted tokens of prompt lookup, as in the documentation of transformers


def measure(args: argparse.Namespace) -> dict[str, Any]:
    deadline = time.monotonic() + args.seconds
    rows: list[dict[str, Any]] = []
    about = {"device": _device_name(args.device), "tokens": args.tokens}
    for dtype, target in product(args.dtypes, args.targets):
        made = Speculator.from_pretrained(target, dtype=dtype, device=args.device, scope="auto")
        turns = made_turns(args.seed)
        for num in args.requests:
            if time.monotonic() > deadline:
                break
            rows += cell(made, turns, num, args, deadline, {"target": target, "dtype": dtype})
            if args.out:
                save(args.out, {**about, "rows": rows})
        del made
        if args.device == "cuda":
            torch.cuda.empty_cache()
    show(rows, "tokens per second, and relative to plain decoding in our engine")
    return {**about, "rows": rows}


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def cell(
    made: Speculator, turns: Iterator[str], num: int, args: argparse.Namespace, deadline: float,
    about: dict[str, Any],
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of one target, precision and number of requests."""
    methods = methods_of(made, num, args.tokens)
    spent: dict[str, list[float]] = {name: [] for name in methods}
    texts: dict[str, list[Texts]] = {name: [] for name in methods}
    rng = random.Random(args.seed)
    for block in range(args.blocks + 1):
        if block > 1 and time.monotonic() > deadline:
            break
        prompts = as_asked(list(islice(turns, num)), made.tokenizer)
        for name in rng.sample(list(methods), len(methods)):
            start = _now(made)
            found = methods[name](prompts)
            if block:
                spent[name].append(_now(made) - start)
                texts[name].append(found)
    counts = {name: [sum(map(len, found)) for found in texts[name]] for name in methods}
    waits = round_waits(made, as_asked(list(islice(turns, num)), made.tokenizer), args.tokens)
    return [
        {
            **about, "requests": num, "method": name,
            "tok_per_s": round(sum(counts[name]) / sum(spent[name]), 1),
            "over plain": span(counts[name], spent[name], counts["plain"], spent["plain"]),
            "equal texts": _share(texts[name], texts["plain"]),
            **({"waits": waits} if name == "draftwise" else {}),
        }
        for name in methods
    ]  # fmt: skip


def _now(made: Speculator) -> float:
    if made.target.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def methods_of(
    made: Speculator, num: int, tokens: int
) -> dict[str, Callable[[Sequence[Any]], Texts]]:
    """By name, what maps prompts to the tokens of their answers."""

    def ours(preset: str) -> Callable[[Sequence[Any]], Texts]:
        def answer(prompts: Sequence[Any]) -> Texts:
            found = made.generate(
                list(prompts), max_new_tokens=tokens, temperature=0, ignore_eos=True, preset=preset
            )
            return [list(one.tokens) for one in found]

        return answer

    found = {name: ours(name) for name in ("plain", "draftwise")}
    found["transformers"] = theirs(made, tokens)
    if num == 1:
        found["transformers:lookup"] = theirs(made, tokens, prompt_lookup_num_tokens=LOOKUP)
    return found


def theirs(made: Speculator, tokens: int, **options: Any) -> Callable[[Sequence[Any]], Texts]:
    """transformers' ``generate`` on a batch that is padded on the left."""

    def answer(prompts: Sequence[Any]) -> Texts:
        asked = [list(encode(prompt, made.tokenizer).tokens) for prompt in prompts]
        width, device = max(map(len, asked)), made.target.device
        ids = torch.tensor([[0] * (width - len(own)) + own for own in asked], device=device)
        mask = torch.tensor([[0] * (width - len(o)) + [1] * len(o) for o in asked], device=device)
        with torch.inference_mode():
            output = made.target.module.generate(
                ids, attention_mask=mask, do_sample=False, min_new_tokens=tokens,
                max_new_tokens=tokens, pad_token_id=0, **options,
            )  # fmt: skip
        return [row.tolist() for row in output[:, width:]]

    return answer


def round_waits(made: Speculator, prompts: Sequence[Any], tokens: int) -> float | None:
    """How often a round waits for the device, by torch's debug mode; None without CUDA."""
    if made.target.device.type != "cuda":
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = made.generate(
                list(prompts), max_new_tokens=tokens, temperature=0, ignore_eos=True
            )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    num = sum("synchroniz" in str(one.message) for one in caught)
    return round(num / max(1, *(one.stats.num_rounds for one in found)), 2)


def _share(ours: Sequence[Texts], plain: Sequence[Texts]) -> float:
    """The share of answers that equal those of plain decoding; rounding may change some."""
    pairs = [pair for both in zip(ours, plain, strict=True) for pair in zip(*both, strict=True)]
    return round(sum(own == other for own, other in pairs) / max(1, len(pairs)), 3)


def main() -> None:
    run(
        __doc__, measure, targets=["smollm2", "gemma3"], dtypes=["bfloat16", "float32"],
        requests=[1, 4, 16], tokens=96, blocks={"type": int, "default": 4, "help": "of prompts"},
        seconds={"type": float, "default": 170.0, "help": "after which no further cell begins"},
        seed=1, device="cuda",
    )  # fmt: skip


if __name__ == "__main__":
    main()
