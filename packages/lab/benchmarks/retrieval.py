"""What a datastore of a retrieval drafter costs by size: to build, to open, to search.

Times are CPU seconds of this process, except for building and opening.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise.retrieval.corpus import Store, replacing, write
from draftwise.retrieval.index import most_frequent_path

LENGTH = 8


def datastore(args: argparse.Namespace) -> dict[str, Any]:
    """Build, open and search stores of synthetic tokens, each ten times as large as the
    previous."""
    sizes = [size for size in (10**5, 10**6, 10**7) if size < args.tokens] + [args.tokens]
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "store"
        for size in sizes:
            tokens, start = _synthetic(size, args.vocab_size), time.perf_counter()
            with replacing(path) as file:
                write(file, [tokens], args.vocab_size)
            built = time.perf_counter()
            store = Store(path)
            open_ms = 1e3 * (time.perf_counter() - built)
            row = {"tokens": size, "build_s": built - start, "file_mb": path.stat().st_size / 1e6}
            rows.append(row | {"open_ms": open_ms, **_search(store, tokens, args.queries)})
            path.unlink()
    show(rows)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"vocab_size": args.vocab_size, "peak_mb": peak_mb, "datastore": rows}


def _synthetic(size: int, vocab_size: int) -> np.ndarray:
    """Zipf-distributed tokens; every second run of 5 to 40 tokens copies an earlier one, so that
    contexts of every length repeat, as in text."""
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, vocab_size + 1)
    cumulative = np.cumsum(weights / weights.sum())
    tokens = np.minimum(np.searchsorted(cumulative, rng.random(size)), vocab_size - 1)
    tokens, at = tokens.astype(np.int32), 100
    while at < size - 100:
        length = int(rng.integers(5, 41))
        source = int(rng.integers(0, at - length))
        tokens[at : at + length] = tokens[source : source + length]
        at += length + int(rng.integers(5, 41))
    return tokens


def _search(store: Store, tokens: np.ndarray, num: int) -> dict[str, float]:
    """Microseconds per search for endings of the corpus whose 1st to 32nd last token is changed."""
    rng, matches = np.random.default_rng(1), []
    seconds: dict[str, list[float]] = {"search": [], "chain": []}
    for end in rng.integers(40, len(tokens), num).tolist():
        ending = tokens[end - 32 : end].tolist()
        ending[-int(rng.integers(2, 33))] = int(tokens[int(rng.integers(0, len(tokens)))])
        start = time.process_time()
        length, first, last = store.find(ending)
        seconds["search"].append(searched := time.process_time() - start)
        matches.append(length)
        start = time.process_time()
        most_frequent_path(store.continuations(first, last, 64, LENGTH), LENGTH)
        seconds["chain"].append(searched + time.process_time() - start)
    found = {f"{name}_us": 1e6 * float(np.mean(times)) for name, times in seconds.items()}
    chain_p99_us = 1e6 * float(np.quantile(seconds["chain"], 0.99))
    return found | {"chain_p99_us": chain_p99_us, "match": float(np.mean(matches))}


if __name__ == "__main__":
    run(
        __doc__, datastore, vocab_size=32_000, queries=2000,
        tokens={"type": int, "default": 50_000_000, "help": "of the largest datastore"},
        folder={"help": "where the datastores are written for the while"},
    )  # fmt: skip
