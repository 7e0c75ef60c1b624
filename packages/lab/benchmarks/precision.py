"""A pretrained target in every precision, with and without --compile, plain and with drafts.

Every method answers every prompt, interleaved in random order, by CPU time. Compilation is not
counted: each method answers the first prompt once before. Ratios are of tokens per second: with
drafts relative to plain in the same precision, and relative to the first precision's plain or, with
``--llama``, to llama.cpp's.

``--llama`` names the Python of an environment with xllamacpp, a prebuilt llama.cpp: it decodes the
same token ids, plainly and with its prompt lookup (``ngram_simple``). Answers of different
precisions differ; drafts never change those of their own precision.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import time
from pathlib import Path
from typing import Any

from shared.child import Child
from shared.compare import Method, measure, report, span
from shared.script import run

from draftwise import Speculator
from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.pool import resolve_target

DTYPES = ("float32", "bfloat16", "int8", "int4")


class Clock:
    """Processor seconds of this process and llama.cpp's, without compilation."""

    def __init__(self) -> None:
        self.made: list[Speculator] = []
        self.others = 0.0

    def __call__(self) -> float:
        compiling = sum(made.compiling()[1] for made in self.made)
        return time.process_time() - compiling + self.others


def own_methods(args: argparse.Namespace, clock: Clock) -> dict[str, Method]:
    """Plain and draftwise for each precision, compiled and not; a precision is loaded once."""
    path, drafters = resolve_target(args.target)
    tokenizer, found = load_tokenizer(path), {}
    wanted = {"max_new_tokens": args.tokens, "temperature": args.temperature, "seed": 0}
    for dtype in args.dtypes:
        module = load_model(path, dtype=dtype, device="cpu").module
        for compiled, preset in itertools.product(
            {"no": [False], "yes": [True], "both": [False, True]}[args.compile],
            ("plain", "draftwise"),
        ):
            spec = Speculator.from_pretrained(
                module, drafters if preset == "draftwise" else [], preset=preset,
                tokenizer=tokenizer, compile=compiled, seed=0, num_prefixes=0,
            )  # fmt: skip
            clock.made.append(spec)
            name = f"{dtype}{', compiled' if compiled else ''}, {preset}"
            found[name] = lambda prompt, spec=spec: spec.generate(prompt, **wanted).tokens
    return found


def llama_method(args: argparse.Namespace, kind: str, clock: Clock) -> Method:
    """llama.cpp in an environment of its own; tokens are only counted."""
    script = Path(__file__).parent / "shared" / "llama_engine.py"
    child = Child(
        [args.llama, str(script), args.gguf, str(args.threads), kind],
        "llama.cpp ended: try the interpreter of --llama by hand", stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def answer(prompt: list[int]) -> list[int]:
        found = child({"prompt": prompt, "num": args.tokens, "temperature": args.temperature})
        clock.others += found["cpu_s"]
        return [0] * found["num"]

    return answer


def compare(args: argparse.Namespace) -> dict[str, Any]:
    if bool(args.llama) != bool(args.gguf):
        raise SystemExit("--llama and --gguf go together")
    clock = Clock()
    methods = own_methods(args, clock)
    for kind, name in (("plain", "plain"), ("lookup", "its lookup")) if args.llama else ():
        methods[f"llama.cpp, {name}"] = llama_method(args, kind, clock)
    tokenizer = load_tokenizer(resolve_target(args.target)[0])
    texts = [item.turns[0] for item in load_suite(args.suite, args.prompts).items]
    chats = bool(getattr(tokenizer, "chat_template", None))
    asked = [[{"role": "user", "content": text}] if chats else text for text in texts]
    prompts = [list(encode(one, tokenizer).tokens) for one in asked]
    base = "llama.cpp, plain" if args.llama else next(iter(methods))
    timing = measure(methods, prompts, base, args.repeats, clock)
    rows = report(timing, base)
    for name, row in rows.items():  # with drafts, relative to plain in the same precision
        plain = f"{name.rpartition(', ')[0]}, plain"
        row["to_its_plain"] = span(*timing.of(name), *timing.of(plain))
    return {"suite": args.suite, "num_prompts": len(prompts), "methods": rows}


if __name__ == "__main__":
    run(
        __doc__, compare, target="smollm2", suite={"required": True}, prompts=2, tokens=128,
        temperature=0.0, repeats=1, threads=1,
        dtypes={"nargs": "+", "choices": DTYPES, "default": list(DTYPES)},
        compile={"choices": ("no", "yes", "both"), "default": "both"},
        llama={"help": "interpreter of an environment with xllamacpp"},
        gguf={"help": "the model's file, for --llama"},
    )  # fmt: skip
