"""A pretrained target in every precision, plain and with drafts, next to llama.cpp on its file.

Every method answers every prompt, interleaved in random order, timed in CPU time; ratios are of
tokens per second, to llama.cpp's plain decoding and to plain decoding in the same precision.
``--llama`` names the Python of an environment with xllamacpp, a prebuilt llama.cpp: it decodes the
same token ids, plainly and with its prompt lookup (``ngram_simple``). Answers of different
precisions differ; drafts never change the answers of their precision.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path
from typing import Any

from shared.child import Child
from shared.compare import Method, as_asked, measure, method, report, span
from shared.script import run

from draftwise import Speculator
from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.pool import resolve_target

DTYPES = ("float32", "bfloat16")
LLAMA = "llama.cpp, plain"


def own_methods(args: argparse.Namespace) -> dict[str, Method]:
    """Plain decoding and draftwise in each precision; each precision is loaded once."""
    path, drafters = resolve_target(args.target)
    wanted = {"max_new_tokens": args.tokens, "temperature": args.temperature, "seed": 0}
    load, found = {"tokenizer": load_tokenizer(path), "seed": 0, "num_prefixes": 0}, {}
    for dtype in args.dtypes:
        module = load_model(path, dtype=dtype, device="cpu").module
        for preset, own in (("plain", []), ("draftwise", drafters)):
            spec = Speculator.from_pretrained(module, own, preset=preset, **load)
            found[f"{dtype}, {preset}"] = method(spec, **wanted)
    return found


def llama_method(args: argparse.Namespace, kind: str, spent: list[float]) -> Method:
    """llama.cpp in a separate environment; its tokens are only counted. spent: its CPU seconds."""
    script = Path(__file__).parent / "shared" / "llama_engine.py"
    child = Child(
        [args.llama, str(script), args.gguf, str(args.threads), kind],
        "llama.cpp ended: try the interpreter of --llama by hand", stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def answer(prompt: list[int]) -> list[int]:
        found = child({"prompt": prompt, "num": args.tokens, "temperature": args.temperature})
        spent[0] += found["cpu_s"]
        return [0] * found["num"]

    return answer


def compare(args: argparse.Namespace) -> dict[str, Any]:
    spent, methods = [0.0], own_methods(args)
    for kind, name in (("plain", LLAMA), ("lookup", "llama.cpp, its lookup")):
        methods[name] = llama_method(args, kind, spent)
    tokenizer = load_tokenizer(resolve_target(args.target)[0])
    texts = [item.text for item in load_suite(args.suite, args.prompts).items]
    prompts = [list(encode(one, tokenizer).tokens) for one in as_asked(texts, tokenizer)]

    def clock() -> float:
        return time.process_time() + spent[0]

    timing = measure(methods, prompts, LLAMA, args.repeats, clock)
    rows = report(timing, LLAMA)
    for name, row in rows.items():
        plain = f"{name.rpartition(', ')[0]}, plain"
        row["to_its_plain"] = span(*timing.of(name), *timing.of(plain))
    return {"suite": args.suite, "num_prompts": len(prompts), "methods": rows}


if __name__ == "__main__":
    run(
        __doc__, compare, target="smollm2", suite={"required": True}, prompts=2, tokens=128,
        temperature=0.0, repeats=1, threads=1,
        dtypes={"nargs": "+", "choices": DTYPES, "default": list(DTYPES)},
        llama={"required": True, "help": "interpreter of an environment with xllamacpp"},
        gguf={"required": True, "help": "the model's file"},
    )  # fmt: skip
