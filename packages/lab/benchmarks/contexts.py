"""Long prompts on a pretrained target: agent conversations, and documents of many pages.

``agent``: jsonl of ``messages``; some of the assistant's turns are regenerated, each from the
messages before it, in order and in one session, which keeps its history and the conversation's KV
cache. ``long``: several Spec-Bench ``rag`` passages with a question about one of them, or a file
from an agent's context with a requested change. Plain decoding and draftwise are interleaved; both
use a prefix cache. Clock: CPU time of the process, with and without prefill. Intervals: over
conversations or prompts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shared.compare import span
from shared.script import run, show, track

from draftwise import Speculator
from draftwise.chat import encode
from draftwise.files import numbered_lines

Asked = list[dict[str, str]]
Task = list[Asked]
"""Prompts answered one after another in one session."""
CHANGE = "Here is a part of a file.\n\n{}\n\nWrite it again with a comment above every function."


def conversations(file: str, every: int) -> Iterator[Task]:
    """The messages before every n-th assistant turn, by conversation."""
    for _, line in numbered_lines(Path(file)):
        messages = json.loads(line)["messages"]
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        yield [messages[:i] for i in turns[::every]]


def documents(files: Sequence[str], passages: int, num: int) -> Iterator[Task]:
    """``num`` questions, each after ``passages`` passages, and the longest messages of ``num``
    chats."""
    questions, chats = files[:2]
    rows = [json.loads(line) for _, line in numbered_lines(Path(questions))]
    texts = [row["turns"][0].rpartition("\n") for row in rows if row["category"] == "rag"]
    for i in range(num):
        pages = texts[i * passages : (i + 1) * passages]
        text = "\n\n".join(page for page, _, _ in pages) + "\n" + pages[i % passages][2]
        yield [[{"role": "user", "content": text}]]
    shown = [
        max((m["content"] for m in json.loads(line)["messages"][2:]), key=len)
        for _, line in numbered_lines(Path(chats))
    ]
    for text in [text for text in shown if text.startswith("[File:")][:num]:
        yield [[{"role": "user", "content": CHANGE.format(text)}]]


def answer(made: Speculator, asked: Task, args: argparse.Namespace) -> tuple[Any, Any]:
    """The tokens of a session's answers, and their number and seconds of processor time: [2, 2],
    for all rounds, including prefill, and for all rounds except each answer's first."""
    tokens, spent = [], np.zeros((2, 2))
    for messages in asked:
        options = {"max_new_tokens": args.tokens, "temperature": args.temperature, "seed": 0}
        start, first_s, said = time.process_time(), 0.0, []
        for round_ in made.start(messages, **options):
            first_s = first_s or time.process_time()
            said.append(round_.tokens)
        end, num = time.process_time(), sum(map(len, said))
        tokens.append(list(itertools.chain(*said)))
        spent += [[num, end - start], [num - len(said[0]), end - first_s]]
    return tokens, spent


def compare(found: Iterator[Task], args: argparse.Namespace) -> dict[str, Any]:
    """Compare plain decoding and draftwise on the tasks whose prompts have ``--prompt`` tokens."""
    load: dict[str, Any] = {"dtype": args.dtype, "seed": 0}
    made = {
        "plain": Speculator.from_pretrained(args.target, [], preset="plain", **load),
        "draftwise": Speculator.from_pretrained(args.target, args.drafter, **load),
    }
    tokenizer, (least, most) = made["plain"].tokenizer, args.prompt
    sized = [[(m, len(encode(m, tokenizer).tokens)) for m in task] for task in found]
    fitting = [[pair for pair in task if least <= pair[1] <= most] for task in sized]
    tasks = [task for task in fitting if task]
    spent, same = np.zeros((2, len(tasks), 2, 2)), 0
    for i, task in enumerate(track(tasks)):
        said: dict[int, Any] = {}
        for side in (0, 1) if i % 2 else (1, 0):
            one = list(made.values())[side]
            said[side], spent[side, i] = answer(one, [m for m, _ in task], args)
        same += sum(a == b for a, b in zip(said[0], said[1], strict=True))
    rows = {
        name: {
            "tok_per_cpu_s": float(spent[side, :, 0, 0].sum() / spent[side, :, 0, 1].sum()),
            "to_plain": _over(spent[:, :, 0], side),
            "without_reading": _over(spent[:, :, 1], side),
        }
        for side, name in enumerate(made)
    }
    show(rows)
    sizes = [size for task in tasks for _, size in task]
    return {
        "part": args.part, "prompt_tokens": [min(sizes), max(sizes)], "num_tasks": len(tasks),
        "equal_texts": same, "num_texts": len(sizes), **rows,
    }  # fmt: skip


def _over(spent: Any, side: int) -> Sequence[float]:
    return span(*spent[side].T, *spent[0].T)


PARTS = {
    "agent": lambda args: compare(conversations(args.files[0], args.every), args),
    "long": lambda args: compare(documents(args.files, args.passages, args.num), args),
}

if __name__ == "__main__":
    run(
        __doc__, PARTS, target="smollm2", dtype="float32", tokens=96, temperature=0.0,
        files={"flags": "files", "nargs": "+", "help": "chats; questions and chats"},
        drafter={"action": "append", "help": "default: the target's own"},
        every={"type": int, "default": 4, "help": "agent: answer every n-th turn"},
        passages={"type": int, "default": 5, "help": "long: of a rag prompt"},
        num={"type": int, "default": 5, "help": "long: prompts of either kind"},
        prompt={"type": int, "nargs": 2, "default": (2000, 6000), "metavar": "TOKENS"},
    )  # fmt: skip
