"""Timing of methods on the same prompts, interleaved in random order; prompts of the zoo."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from shared.script import show, track

from draftwise import Speculator, zoo
from draftwise.bench.results import Timing, ratio, turns

Method = Callable[[Any], Sequence[int]]
"""Maps a prompt to the tokens of its answer."""


def zoo_texts(num: int) -> list[str]:
    return [text for found in zoo.prompts().values() for text in found[:num]]


def as_asked(texts: Sequence[str], tokenizer: Any) -> list[Any]:
    """Format texts as user turns, or for a base model as texts to continue."""
    has_template = getattr(tokenizer, "chat_template", None)
    return [[{"role": "user", "content": text}] if has_template else text for text in texts]


def method(made: Speculator, counts: Counter[str] | None = None, **options: Any) -> Method:
    """draftwise with these options of ``generate``. counts: accumulates emitted tokens, drafted
    tokens and rounds."""

    def answer(prompt: Any) -> Sequence[int]:
        found = made.generate(prompt, **options)
        if counts is not None:
            names = ("num_emitted", "num_drafted", "num_rounds")
            counts.update({name: getattr(found.stats, name) for name in names})
        return found.tokens

    return answer


def interleaved_ms(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Processor time of each repeat of each way, interleaved; the first repeat is not counted."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            spent[name].append(1e3 * (time.process_time() - start))
    return {name: own[1:] for name, own in spent.items()}


def measure(
    methods: Mapping[str, Method],
    prompts: Sequence[Any],
    base: str,
    repeats: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> Timing:
    """Run every method on every prompt, after one uncounted answer; medians over the repeats.
    clock: by default processor time, on which other programs have less effect."""
    names = list(methods)
    seconds, counts = np.zeros((2, repeats, len(names), len(prompts)))
    same = dict.fromkeys(names, True)
    for answer in methods.values():
        answer(prompts[0])
    for repeat, prompt, order in track(turns(names, len(prompts), repeats)):
        found = {}
        for name in order:
            gc.collect()
            start, place = clock(), (repeat, names.index(name), prompt)
            found[name] = list(methods[name](prompts[prompt]))
            seconds[place], counts[place] = clock() - start, len(found[name])
        same = {name: same[name] and found[name] == found[base] for name in names}
    return Timing(names, np.median(seconds, axis=0), np.median(counts, axis=0), same)


def report(timing: Timing, *bases: str, title: str | None = None) -> dict[str, dict[str, Any]]:
    """Print and return tokens per second, ratios to each base with 95% intervals, and whether the
    texts are equal."""
    rows = {
        name: {
            "tok_per_s": round(timing.tok_per_s(name), 2),
            **{f"over {base}": span(*timing.of(name), *timing.of(base)) for base in bases},
            "identical": timing.identical[name],
        }
        for name in timing.names
    }
    show(rows, title)
    return rows


def span(tokens: Any, seconds: Any, base_tokens: Any, base_seconds: Any) -> list[float]:
    """Tokens per second relative to the base, paired by prompt: [value, low, high] of the 95%
    interval."""
    columns = tokens, seconds, base_tokens, base_seconds
    found = ratio(*(np.asarray(each, float) for each in columns))
    return [round(value, 3) for value in (found.value, found.low, found.high)]
