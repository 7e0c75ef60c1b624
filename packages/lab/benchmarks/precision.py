"""A pretrained target in every precision, with and without --compile, plain and with drafts.

    python -m benchmarks precision --target smollm2 --suite spec-bench:question.jsonl --prompts 2
    python -m venv llama && llama/bin/pip install --only-binary :all: --no-deps xllamacpp
    python -m benchmarks precision --suite FILE --llama llama/bin/python --gguf FILE.gguf

Every method answers every prompt in turn, in random order; times are of the processor, so that
other work on the machine counts less. Compiling is not counted: each method answers the first
prompt once before. Ratios are of tokens a second: with drafts to plain of the same precision, and
to the first precision's plain or, with ``--llama``, to llama.cpp's. ``--llama`` names the
interpreter of an environment of its own with xllamacpp, a prebuilt llama.cpp: the same token ids
there, plain and with its prompt lookup (``ngram_simple``).
Answers of different precisions differ; with drafts they are those of their precision without.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save

from draftwise import Speculator
from draftwise.bench.paired import Timing, turns
from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.pool import resolve_target

DTYPES = ("float32", "bfloat16", "int8", "int4")
Answer = Callable[[list[int]], tuple[list[int], float]]
"""Prompt to the tokens of the answer and the seconds of processor time that it took."""


def answering(spec: Speculator, num: int, temperature: float) -> Answer:
    """draftwise, whatever it was set to."""

    def answer(prompt: list[int]) -> tuple[list[int], float]:
        start, before = time.process_time(), spec.compiling()[1]
        found = spec.generate(prompt, max_new_tokens=num, temperature=temperature, seed=0)
        spent = time.process_time() - start - (spec.compiling()[1] - before)
        return list(found.tokens), spent

    return answer


def own_methods(args: argparse.Namespace) -> dict[str, Answer]:
    """Plain and draftwise for each precision, compiled and not; a precision is loaded once."""
    path, drafters = resolve_target(args.target)
    tokenizer, found = load_tokenizer(path), {}
    for dtype in args.dtypes:
        module = load_model(path, dtype=dtype, device="cpu").module
        for compiled, preset in itertools.product(args.compile, ("plain", "draftwise")):
            spec = Speculator.from_pretrained(
                module,
                drafters if preset == "draftwise" else [],
                preset=preset,
                tokenizer=tokenizer,
                compile=compiled,
                seed=0,
                num_prefixes=0,
            )
            name = f"{dtype}{', compiled' if compiled else ''}, {preset}"
            found[name] = answering(spec, args.tokens, args.temperature)
    return found


class Llama:
    """llama.cpp in an environment of its own; prompts and answers go through pipes."""

    def __init__(self, python: str, gguf: str, threads: int, lookup: bool) -> None:
        script = Path(__file__).with_name("precision_llama.py")
        command = [python, str(script), gguf, str(threads), "lookup" if lookup else "plain"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def answering(self, num: int, temperature: float) -> Answer:
        """Its answers."""

        def answer(prompt: list[int]) -> tuple[list[int], float]:
            out, back = self._process.stdin, self._process.stdout
            assert out is not None
            assert back is not None
            ask = {"prompt": prompt, "num": num, "temperature": temperature}
            out.write(json.dumps(ask) + "\n")
            out.flush()
            line = back.readline()
            if not line:
                raise SystemExit("llama.cpp ended: try the interpreter of --llama by hand")
            said = json.loads(line)
            return [0] * said["num"], said["cpu_s"]

        return answer


def measure(methods: dict[str, Answer], prompts: list[list[int]], repeats: int) -> Timing:
    """Every method on every prompt, in turns of random order: medians of tokens and seconds."""
    names = list(methods)
    seconds, counts = np.zeros((2, repeats, len(names), len(prompts)))
    for method in methods.values():
        method(prompts[0])
    schedule = list(turns(names, len(prompts), repeats))
    for repeat, prompt, order in track(schedule, console=Console(stderr=True)):
        for name in order:
            gc.collect()
            tokens, spent = methods[name](prompts[prompt])
            place = repeat, names.index(name), prompt
            counts[place], seconds[place] = len(tokens), spent
    return Timing(names, np.median(seconds, axis=0), np.median(counts, axis=0), {})


def report(timing: Timing, base: str) -> dict[str, Any]:
    """Print the table, and return it as data."""
    table = Table("method", "tokens/s", "x its plain", "95%", f"x {base}", "95%")
    rows = {}
    for name in timing.names:
        plain = f"{name.rpartition(', ')[0]}, plain"
        own = timing.compare(name, plain if plain in timing.names else base)
        all_ = timing.compare(name, base)
        speed = timing.tok_per_s(name)
        cells = [
            text for r in (own, all_) for text in (f"{r.value:.2f}", f"{r.low:.2f} to {r.high:.2f}")
        ]
        table.add_row(name, f"{speed:.1f}", *cells)
        rows[name] = {
            "tok_per_cpu_s": round(speed, 2),
            "to_its_plain": [round(v, 3) for v in (own.value, own.low, own.high)],
            "to_base": [round(v, 3) for v in (all_.value, all_.low, all_.high)],
        }
    Console().print(table)
    return rows


def main() -> None:
    """Read the options, measure, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--suite", required=True, help="as for draftwise bench")
    parser.add_argument("--prompts", type=int, default=2, help="of each domain")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--compile", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--llama", help="interpreter of an environment with xllamacpp")
    parser.add_argument("--gguf", help="the model's file, for --llama")
    parser.add_argument("--out")
    args = parser.parse_args()
    if bool(args.llama) != bool(args.gguf):
        parser.error("--llama and --gguf go together")
    args.compile = {"no": [False], "yes": [True], "both": [False, True]}[args.compile]
    torch.set_num_threads(args.threads)
    methods = own_methods(args)
    for lookup in (False, True) if args.llama else ():
        made = Llama(args.llama, args.gguf, args.threads, lookup)
        name = f"llama.cpp, {'its lookup' if lookup else 'plain'}"
        methods[name] = made.answering(args.tokens, args.temperature)
    tokenizer = load_tokenizer(resolve_target(args.target)[0])
    items = load_suite(args.suite, args.prompts).items
    chats = bool(getattr(tokenizer, "chat_template", None))
    texts = [item.turns[0] for item in items]
    prompts = [
        list(encode([{"role": "user", "content": text}] if chats else text, tokenizer).tokens)
        for text in texts
    ]
    timing = measure(methods, prompts, args.repeats)
    rows = report(timing, "llama.cpp, plain" if args.llama else next(iter(methods)))
    save(args.out, {"suite": args.suite, "num_prompts": len(prompts), "methods": rows})


if __name__ == "__main__":
    main()
