"""Long prompts on a pretrained target: an agent's conversations, and documents of many pages.

    python -m benchmarks contexts agent chats.jsonl --target smollm2
    python -m benchmarks contexts long question.jsonl chats.jsonl --target smollm2

``agent``: jsonl of ``messages``; some of the assistant's turns are answered anew, each from the
messages before it, in order and by one session, which keeps its history and the conversation's
keys. ``long``: several Spec-Bench ``rag`` passages and a question on one of them; what an agent was
shown of a file, and a change to make.

Plain decoding and draftwise take turns; both keep prefixes. Clock: CPU time of the process,
reading the prompt included, and without it. Intervals: over conversations or prompts.
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
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save

from draftwise import Speculator
from draftwise.bench.paired import Timing
from draftwise.chat import encode
from draftwise.lines import numbered_lines

Asked = list[dict[str, str]]
Task = tuple[str, list[Asked]]
"""Name, and what is asked one after another in one session."""
CHANGE = "Here is a part of a file.\n\n{}\n\nWrite it again with a comment above every function."


def conversations(file: Path, every: int) -> Iterator[Task]:
    """Of each chat the messages before every so many-th of the assistant's turns."""
    for _, line in numbered_lines(file):
        chat = json.loads(line)
        heard = chat["messages"]
        turns = [i for i, message in enumerate(heard) if message["role"] == "assistant"]
        yield chat["id"], [heard[:i] for i in turns[::every]]


def documents(questions: Path, chats: Path, passages: int, num: int) -> Iterator[Task]:
    """``num`` questions behind that many passages, and the longest message of ``num`` chats."""
    rows = [json.loads(line) for _, line in numbered_lines(questions)]
    texts = [row["turns"][0].rpartition("\n") for row in rows if row["category"] == "rag"]
    for i in range(num):
        pages = texts[i * passages : (i + 1) * passages]
        text = "\n\n".join(page for page, _, _ in pages) + "\n" + pages[i % passages][2]
        yield f"rag {i}", [[{"role": "user", "content": text}]]
    shown = [
        max((m["content"] for m in json.loads(line)["messages"][2:]), key=len)
        for _, line in numbered_lines(chats)
    ]
    files = [text for text in shown if text.startswith("[File:")]
    for i, text in enumerate(files[:num]):
        yield f"edit {i}", [[{"role": "user", "content": CHANGE.format(text)}]]


def fitting(tasks: Sequence[Task], made: Speculator, least: int, most: int) -> list[Task]:
    """Only what is asked with that many tokens of prompt, and tasks that have any left."""
    found = []
    for name, asked in tasks:
        sizes = [len(encode(messages, made.tokenizer).tokens) for messages in asked]
        kept = [m for m, size in zip(asked, sizes, strict=True) if least <= size <= most]
        found += [(name, kept)] if kept else []
    return found


def answer(made: Speculator, asked: list[Asked], args: argparse.Namespace) -> tuple[Any, Any]:
    """The tokens of all answers of a session, and their number and seconds of processor time.

    [2, 2]: of all rounds, the reading of the prompt included, and of all but the first round.
    """
    tokens, spent = [], np.zeros((2, 2))
    for messages in asked:
        options = {"max_new_tokens": args.tokens, "temperature": args.temperature, "seed": 0}
        start, read, said = time.process_time(), 0.0, []
        for round_ in made.start(messages, **options):
            read = read or time.process_time()
            said.append(round_.tokens)
        end, num = time.process_time(), sum(map(len, said))
        tokens.append(list(itertools.chain(*said)))
        spent += [[num, end - start], [num - len(said[0]), end - read]]
    return tokens, spent


def show(names: Sequence[str], spent: Any) -> dict[str, Any]:
    """Print the comparison, and return it as data. spent: [side, task, 2, 2], as of ``answer``."""
    table = Table("", "tokens/s", "x plain", "95%", "without reading", "95%")
    rows: dict[str, Any] = {}
    for name in names:
        cells, found = list[str](), dict[str, Any]()
        for part, key in ((0, "to_plain"), (1, "without_reading")):
            counts = spent[:, :, part]
            timing = Timing(list(names), counts[:, :, 1], counts[:, :, 0], {})
            ratio = timing.compare(name, "plain")
            cells += [f"{ratio.value:.2f}", f"{ratio.low:.2f}-{ratio.high:.2f}"]
            found[key] = [ratio.value, ratio.low, ratio.high]
            found.setdefault("tok_per_cpu_s", timing.tok_per_s(name))
        table.add_row(name, f"{found['tok_per_cpu_s']:.1f}", *cells)
        rows[name] = found
    Console().print(table)
    return rows


def main() -> None:
    """Read the options, let the two take turns, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=("agent", "long"))
    parser.add_argument("files", type=Path, nargs="+", help="chats; questions and chats")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--drafter", action="append", help="default: the target's own")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=4, help="agent: of so many turns one")
    parser.add_argument("--passages", type=int, default=5, help="long: of a rag prompt")
    parser.add_argument("--num", type=int, default=5, help="long: prompts of either kind")
    parser.add_argument("--prompt", type=int, nargs=2, default=(2000, 6000), metavar="TOKENS")
    parser.add_argument("--out")
    args = parser.parse_args()
    if len(args.files) != 1 + (args.part == "long"):
        parser.error("agent reads one file of chats; long one of questions and one of chats")
    torch.set_num_threads(1)
    found = list(
        conversations(args.files[0], args.every)
        if args.part == "agent"
        else documents(args.files[0], args.files[1], args.passages, args.num)
    )
    load = {"dtype": args.dtype, "seed": 0}
    ours = Speculator.from_pretrained(args.target, args.drafter, **load)
    sides = {
        "plain": Speculator.from_pretrained(args.target, [], preset="plain", **load),
        "draftwise": ours,
    }
    tasks = fitting(found, ours, *args.prompt)
    spent, same, total = np.zeros((len(sides), len(tasks), 2, 2)), 0, 0
    for i, (_, asked) in enumerate(track(tasks, console=Console(stderr=True))):
        said = {}
        for side in (0, 1) if i % 2 else (1, 0):
            name = list(sides)[side]
            said[name], spent[side, i] = answer(sides[name], asked, args)
        same += sum(a == b for a, b in zip(*said.values(), strict=True))
        total += len(asked)
    rows = {"equal_texts": same, "num_texts": total, **show(list(sides), spent)}
    sizes = [len(encode(m, ours.tokenizer).tokens) for _, asked in tasks for m in asked]
    about = {"prompt_tokens": [min(sizes), max(sizes)], "num_tasks": len(tasks)}
    save(args.out, {"part": args.part, **about, **rows})


if __name__ == "__main__":
    main()
