"""What retrieval drafters cost and bring: update and proposal by size, matches on real text.

python -m benchmarks retrieval --part text        # lookup, suffix, datastore on held-out Python
python -m benchmarks retrieval --part datastore   # build, open, search up to --tokens tokens
python -m benchmarks retrieval --part zoo         # tokens a round on the bundled target, by domain

Times are seconds of this process's own CPU time, except building and opening. ``loop_ns`` is what
one step of an empty Python loop with an addition takes on this machine: the yardstick for them.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shared.results import save
from tokenizers import Tokenizer

from draftwise import Speculator, zoo
from draftwise.drafters.continuations import most_frequent_path, tree
from draftwise.drafters.datastore import DatastoreDrafter, Store, replacing, write
from draftwise.drafters.lookup import LookupDrafter
from draftwise.drafters.protocol import Context, Drafter, DraftTask
from draftwise.drafters.suffix import SuffixDrafter
from draftwise.stop_rules.thresholds import Fixed
from draftwise.types import SamplingParams
from draftwise_lab.zoo.domains import sample

LENGTH = 8
PROMPT, OUTPUT = 100, 900
"""Tokens of each held-out text: what is given, and what is "generated"."""


def part_text(args: argparse.Namespace) -> dict[str, Any]:
    """Rounds on held-out source files: the target is the file, a round drafts 8 tokens."""
    files = _python(args.history + (args.texts + 50) * (PROMPT + OUTPUT))
    held_out = [file[: PROMPT + OUTPUT] for file in files if len(file) >= PROMPT + OUTPUT]
    held_out = held_out[: args.texts]
    past = [file for file in files if file[: PROMPT + OUTPUT] not in held_out]
    table = Table("drafter", "history", "update us", "propose us", "sum us/token", "MAT", "peak MB")
    rows = []
    for drafter, size, fill_us in _drafters(past, args.history):
        row = {"drafter": drafter.name, "history": size, "fill_us_per_token": fill_us}
        row |= _play(drafter, held_out)
        row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        rows.append(row)
        table.add_row(
            drafter.name, f"{size:,}", f"{row['update_us']:.1f}", f"{row['propose_us']:.1f}",
            f"{row['update_us'] + row['propose_us']:.1f}", f"{row['mat']:.2f}",
            f"{row['peak_mb']:.0f}",
        )  # fmt: skip
    Console(width=110).print(table)
    return {"text": rows, "texts": len(held_out)}


def _drafters(past: list[list[int]], most: int) -> Iterator[tuple[Drafter, int, float]]:
    """Each drafter, the tokens it has seen before, and what seeing one cost."""
    yield LookupDrafter("lookup"), 0, 0.0
    for size in (0, most // 100, most // 10, most):
        drafter = SuffixDrafter("suffix", max_tokens=most)
        start = time.process_time()
        _fill(drafter, past, size)
        yield drafter, size, 1e6 * (time.process_time() - start) / max(1, size)
    with tempfile.TemporaryDirectory() as folder:
        for size in (most // 100, most // 10, most):
            path, tokens = Path(folder) / f"{size}.store", list(itertools.chain(*past))[:size]
            start = time.process_time()
            with replacing(path) as file:
                write(file, [np.array(tokens)], 2048)
            seconds = time.process_time() - start
            yield DatastoreDrafter("datastore", str(path)), size, 1e6 * seconds / size


def _fill(drafter: SuffixDrafter, past: list[list[int]], size: int) -> None:
    """Requests of a one-token prompt whose outputs are the past texts."""
    for text in past:
        if drafter.num_shared_tokens >= size:
            return
        output = text[1 : size - drafter.num_shared_tokens + 1]
        session, context = drafter.start(), _context(text[:1])
        session.open(context, len(text))
        session.score([context], everything=False)
        context.tokens.extend(output)
        session.commit([context])


def _play(drafter: Drafter, texts: list[list[int]]) -> dict[str, float]:
    """Seconds of updating (commit, free scores) and of proposing, a token that was emitted."""
    update_s = propose_s = 0.0
    num_rounds = num_tokens = 0
    for text in texts:
        session, context = drafter.start(), _context(text[:PROMPT])
        session.open(context, len(text) + LENGTH)
        session.score([context], everything=False)
        while (at := len(context.tokens)) < len(text):
            start = time.process_time()
            (draft,) = session.propose([DraftTask(context, LENGTH, Fixed())])
            propose_s += time.process_time() - start
            drafted, left = draft.tokens.tolist(), text[at:]
            pairs = zip(drafted, left, strict=False)
            num = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)) + 1
            context.extend(left[:num], left[:num])
            start = time.process_time()
            session.commit([context])
            session.score([context], everything=False)
            update_s += time.process_time() - start
            num_rounds, num_tokens = num_rounds + 1, num_tokens + len(left[:num])
    return {
        "update_us": 1e6 * update_s / num_tokens,
        "propose_us": 1e6 * propose_s / num_tokens,
        "mat": num_tokens / num_rounds,
    }


def _loop_ns() -> float:
    """Nanoseconds of one step of a loop that adds integers."""
    total, start = 0, time.process_time()
    for number in range(2_000_000):
        total += number
    return 1e9 * (time.process_time() - start) / 2_000_000


def _context(tokens: list[int]) -> Context:
    return Context(0, list(tokens), SamplingParams(), np.random.default_rng(0))


def _python(num_tokens: int) -> list[list[int]]:
    """Source files of the running Python in a fixed random order, in the zoo's tokens."""
    tokenizer = Tokenizer.from_file(str(zoo.target_path() / "tokenizer.json"))
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    random.Random(0).shuffle(paths)
    texts: list[list[int]] = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        texts.append(tokenizer.encode(text, add_special_tokens=False).ids)
        if sum(map(len, texts)) > num_tokens:
            break
    return [text for text in texts if len(text) > 1]


def part_datastore(args: argparse.Namespace) -> dict[str, Any]:
    """Build, open and search stores of synthetic tokens, each ten times the one before."""
    sizes = [size for size in (10**5, 10**6, 10**7) if size < args.tokens] + [args.tokens]
    columns = ("tokens", "build s", "file MB", "open ms", "search us", "next us", "chain us")
    table = Table(*columns, "tree us", "p99 chain us", "match")
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for size in sizes:
            tokens, path = _synthetic(size, args.vocab_size), Path(folder) / "store"
            start = time.perf_counter()
            with replacing(path) as file:
                write(file, [tokens], args.vocab_size)
            build_s = time.perf_counter() - start
            start = time.perf_counter()
            store = Store(path)
            row = {"tokens": size, "build_s": build_s, "file_mb": path.stat().st_size / 1e6}
            row |= {"open_ms": 1e3 * (time.perf_counter() - start)}
            row |= _search(store, tokens, args.queries)
            rows.append(row)
            table.add_row(
                f"{size:,}", f"{build_s:.1f}", f"{row['file_mb']:.0f}", f"{row['open_ms']:.1f}",
                *(f"{row[key]:.0f}" for key in ("search_us", "next_us", "chain_us", "tree_us")),
                f"{row['chain_p99_us']:.0f}", f"{row['match']:.1f}",
            )  # fmt: skip
            path.unlink()
    Console(width=110).print(table)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"datastore": rows, "vocab_size": args.vocab_size, "peak_mb": peak_mb}


def _synthetic(size: int, vocab_size: int) -> np.ndarray:
    """Zipf-distributed tokens in which every other stretch of 5 to 40 is a copy of an earlier one.

    So contexts of every length repeat, as they do in text.
    """
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, vocab_size + 1)
    cumulative = np.cumsum(weights / weights.sum())
    tokens = np.minimum(np.searchsorted(cumulative, rng.random(size)), vocab_size - 1)
    tokens = tokens.astype(np.int32)
    at = 100
    while at < size - 100:
        length = int(rng.integers(5, 41))
        source = int(rng.integers(0, at - length))
        tokens[at : at + length] = tokens[source : source + length]
        at += length + int(rng.integers(5, 41))
    return tokens


def _search(store: Store, tokens: np.ndarray, num: int) -> dict[str, float]:
    """Microseconds at endings of the corpus whose 1st to 32nd token from the end is changed."""
    rng = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {"search": [], "next": [], "chain": [], "tree": []}
    matches = []
    for end in rng.integers(40, len(tokens), num).tolist():
        ending = tokens[end - 32 : end].tolist()
        ending[-int(rng.integers(2, 33))] = int(tokens[int(rng.integers(0, len(tokens)))])
        start = time.process_time()
        length, first, last = store.find(ending)
        searched = time.process_time() - start
        seconds["search"].append(searched)
        matches.append(length)
        # each use finds its pages cold: nothing of another use's is read again but the suffixes
        for name, depth in (("next", 1), ("chain", LENGTH), ("tree", LENGTH)):
            start = time.process_time()
            rows = store.continuations(first, last, 64, depth)
            if name == "tree":
                tree(rows, 16, length=LENGTH)
            else:
                most_frequent_path(rows, depth)
            seconds[name].append(searched + time.process_time() - start)
    found = {f"{name}_us": 1e6 * float(np.mean(times)) for name, times in seconds.items()}
    chain_p99_us = 1e6 * float(np.quantile(seconds["chain"], 0.99))
    return found | {"chain_p99_us": chain_p99_us, "match": float(np.mean(matches))}


def part_zoo(args: argparse.Namespace) -> dict[str, Any]:
    """MAT of greedy answers of the bundled target, 8 tokens drafted in every round.

    suffix: prompts one after another, with what was said before (``twice``: the same prompts once
    more), or without; datastore: 300 training documents of the domain, none of the prompts'.
    """
    names = ("lookup", "suffix:max_tokens=0", "suffix", "suffix, twice", "datastore")
    table = Table("domain", *names)
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for domain, prompts in zoo.prompts().items():
            specs = {name: name for name in names[:3]}
            specs["datastore"] = f"datastore:{_domain_store(domain, Path(folder) / domain)}"
            rows[domain] = {}
            for name, spec in specs.items():
                made = Speculator.from_pretrained(
                    "zoo", [spec], preset="metasd", policy="fixed:0", lengths=[LENGTH]
                )
                rows[domain][name] = _mat(made, prompts[: args.texts])
                if name == "suffix":
                    rows[domain]["suffix, twice"] = _mat(made, prompts[: args.texts])
            table.add_row(domain, *(f"{rows[domain][name]:.2f}" for name in names))
    Console(width=110).print(table)
    return {"zoo": rows, "prompts": args.texts}


def _domain_store(domain: str, path: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(zoo.target_path() / "tokenizer.json"))
    rng = random.Random(0)
    texts = [(found.prompt + found.answer) for found in (sample(domain, rng) for _ in range(300))]
    tokens = [np.array(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]
    with replacing(path) as file:
        write(file, tokens, 2048)
    return path


def _mat(made: Speculator, prompts: list[str]) -> float:
    """Tokens over rounds, all prompts together."""
    stats = [made.generate(prompt, max_new_tokens=120).stats for prompt in prompts]
    return sum(s.num_emitted for s in stats) / sum(s.num_rounds for s in stats)


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=["text", "datastore", "zoo"], required=True)
    parser.add_argument("--history", type=int, default=1_000_000, help="tokens seen before")
    parser.add_argument("--texts", type=int, default=20, help="held-out files, or prompts a domain")
    parser.add_argument("--tokens", type=int, default=50_000_000, help="of the largest datastore")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--folder", help="where the datastores are written for the while")
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = {"text": part_text, "datastore": part_datastore, "zoo": part_zoo}
    save(args.out, {"loop_ns": round(_loop_ns(), 1)} | parts[args.part](args))


if __name__ == "__main__":
    main()
