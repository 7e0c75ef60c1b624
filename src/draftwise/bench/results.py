"""From runs to results: tokens a second, MAT, ratios with intervals, losslessness, by domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftwise.bench.methods import DEFAULT, LOOKUP, PLAIN, TRANSFORMERS
from draftwise.bench.paired import Timing
from draftwise.bench.runs import Run
from draftwise.presets import PRESETS

FEW_PROMPTS = 10
"""Below that many prompts, a bootstrap's interval is said to be rough."""
Row = dict[str, Any]
"""One method, flat; the keys are documented in docs/bench.md."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Runs as arrays: seconds and tokens are medians of the repeats, by method and item."""

    timing: Timing
    domains: list[str]
    runs: Mapping[str, list[Run]]
    can_compare: bool
    clock: str

    def only(self, domain: str) -> Sheet:
        """The same for one domain."""
        chosen = np.array([found == domain for found in self.domains])
        runs = {name: [r for r in found if r.domain == domain] for name, found in self.runs.items()}
        kept = [found for found in self.domains if found == domain]
        return Sheet(self.timing.only(chosen), kept, runs, self.can_compare, self.clock)


def make_sheet(
    runs: Sequence[Run], methods: Sequence[str], *, can_compare: bool, clock: str = "wall"
) -> Sheet:
    """Arrays of whole turns. can_compare: whether answers must be the same, token for token."""
    items = sorted({run.item for run in runs})
    place = {item: index for index, item in enumerate(items)}
    seconds: dict[tuple[int, int], list[float]] = {}
    tokens: dict[tuple[int, int], list[float]] = {}
    domains = [""] * len(items)
    by_method: dict[str, list[Run]] = {name: [] for name in methods}
    for run in runs:
        key = (methods.index(run.method), place[run.item])
        seconds.setdefault(key, []).append(run.by_clock(clock))
        tokens.setdefault(key, []).append(run.num_tokens)
        domains[place[run.item]] = run.domain
        by_method[run.method].append(run)
    shape = (len(methods), len(items))
    timing = Timing(
        list(methods),
        np.array([np.median(seconds[m, i]) for m, i in np.ndindex(shape)]).reshape(shape),
        np.array([np.median(tokens[m, i]) for m, i in np.ndindex(shape)]).reshape(shape),
        {name: share == 1.0 for name, share in same_tokens(by_method).items()},
    )
    return Sheet(timing, domains, by_method, can_compare, clock)


def same_tokens(runs: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """By method, the share of answers that are plain decoding's of the same turn."""
    plain = {(run.repeat, run.item): run.tokens for run in runs[PLAIN]}
    return {
        name: sum(run.tokens == plain[run.repeat, run.item] for run in found) / max(1, len(found))
        for name, found in runs.items()
    }


def results(sheet: Sheet) -> dict[str, Any]:
    """``methods`` and ``comparisons``, and both for every domain."""
    domains = list(dict.fromkeys(sheet.domains))
    parts = {domain: sheet.only(domain) for domain in domains}
    return {
        "methods": rows(sheet),
        "domains": {domain: rows(part) for domain, part in parts.items()},
        "comparisons": comparisons(sheet, parts),
        "domain_comparisons": {domain: comparisons(part, {}) for domain, part in parts.items()},
    }


def rows(sheet: Sheet) -> dict[str, Row]:
    """A row for every method, over all items of the sheet."""
    same = same_tokens(sheet.runs)
    return {name: _row(sheet, name, same[name]) for name in sheet.timing.names}


def _row(sheet: Sheet, name: str, same: float) -> Row:
    runs = sheet.runs[name]
    tokens = sum(run.num_tokens for run in runs)
    num_rounds = sum(sum(run.num_rounds) for run in runs)
    row = {
        "tok_per_s": sheet.timing.tok_per_s(name),
        "mat": tokens / num_rounds if num_rounds else 0.0,
        "speedup": sheet.timing.compare(name, PLAIN).as_json(),
        "lossless": same == 1.0 if sheet.can_compare else None,
        "same_tokens": same,
        "num_answers": len(runs),
        "verification_rate": num_rounds / tokens if tokens else 0.0,
        "s_per_round": sum(run.by_clock(sheet.clock) for run in runs) / max(1, num_rounds),
    }
    return row | _of_the_engine(runs, tokens, sheet.clock)


def _of_the_engine(runs: Sequence[Run], tokens: int, clock: str) -> Row:
    """What only draftwise's own loop tells; None for peers."""
    drafted = [run.num_drafted for run in runs if run.num_drafted is not None]
    accepted = [run.num_accepted for run in runs if run.num_accepted is not None]
    if not drafted:
        return {"draft_acceptance_rate": None, "discard_rate": None, "phases": {}, "pulls": {}}
    phases: Counter[str] = Counter()
    pulls: Counter[str] = Counter()
    for run in runs:
        scale = run.scale(clock)
        phases.update({phase: seconds * scale for phase, seconds in run.phases.items()})
        pulls.update(run.pulls)
    return {
        "draft_acceptance_rate": sum(accepted) / sum(drafted) if sum(drafted) else 0.0,
        "discard_rate": (sum(drafted) - sum(accepted)) / max(1, tokens),
        "phases": {phase: seconds / max(1, tokens) for phase, seconds in phases.items()},
        "pulls": dict(pulls),
    }


def comparisons(sheet: Sheet, parts: Mapping[str, Sheet]) -> dict[str, Row]:
    """How many times faster the default is than others, chosen by this very run.

    That flatters the others: the one that was lucky here is compared with. parts: by
    domain, for the best fixed plan of each; empty = leave that out.
    """
    timing = sheet.timing
    if DEFAULT not in timing.names:
        return {}
    presets = [n for n in timing.names if n.partition("@")[0] in PRESETS.keys() - {PLAIN, DEFAULT}]
    peers = [n for n in timing.names if n.startswith(f"{TRANSFORMERS}:")]
    groups = {
        "plain decoding": [PLAIN],
        "model.generate": [TRANSFORMERS],
        "best peer": peers,
        "best assisted generation": [n for n in peers if f":{LOOKUP}" not in n],
        "best preset": presets,
        "best fixed plan": [n for n in timing.names if n.startswith("fixed:")],
    }
    found: dict[str, Row] = {}
    for label, names in groups.items():
        names = [name for name in names if name in timing.names]
        if names:
            best = max(names, key=timing.tok_per_s)
            found[label] = {"methods": [best], **timing.compare(DEFAULT, best).as_json()}
    if parts and (fixed := groups["best fixed plan"]):
        found["best fixed plan of each domain"] = _hindsight(sheet, parts, fixed)
    return found


def _hindsight(sheet: Sheet, parts: Mapping[str, Sheet], fixed: Sequence[str]) -> Row:
    """The default against a method that cannot be run: each domain's own best fixed plan."""
    best = {domain: max(fixed, key=part.timing.tok_per_s) for domain, part in parts.items()}
    rows_of = [sheet.timing.names.index(best[domain]) for domain in sheet.domains]
    places = np.arange(len(sheet.domains))
    mine = sheet.timing.names.index(DEFAULT)
    both = Timing(
        [DEFAULT, "hindsight"],
        np.stack([sheet.timing.seconds[mine], sheet.timing.seconds[rows_of, places]]),
        np.stack([sheet.timing.num_tokens[mine], sheet.timing.num_tokens[rows_of, places]]),
        {},
    )
    return {"methods": best, **both.compare(DEFAULT, "hindsight").as_json()}


def interval(ratio: Mapping[str, Any]) -> str:
    """A 95% interval in two numbers; empty where there is none, as of plain decoding to itself.

    >>> interval({"ci95": [0.5, 1.25]}), interval({"ci95": None}), interval({"ci95": [1.0, 1.0]})
    ('0.50-1.25', '', '')
    """
    low, high = ratio["ci95"] or (0.0, 0.0)
    return f"{low:.2f}-{high:.2f}" if low < high else ""


def cautions(found: Mapping[str, Any]) -> list[str]:
    """What a reader of ``results.json`` must know; the same on the terminal and in the report."""
    num, said = found["settings"]["num_items_measured"], []
    if not found["is_complete"]:
        said.append("It ended before everything was measured: the same command goes on.")
    if num == 1:
        said.append("With 1 prompt there is no interval: another prompt may say otherwise.")
    elif num < FEW_PROMPTS:
        said.append(
            f"With {num} prompts the intervals are rough: a bootstrap cannot see prompts that "
            "were not asked."
        )
    return said


def extent(settings: Mapping[str, Any]) -> str:
    """How much was measured, in words.

    >>> extent({"num_items_measured": 2, "tokens": 64, "repeats": 1})
    '2 prompts, at most 64 tokens, measured once'
    """
    num, repeats = settings["num_items_measured"], settings["repeats"]
    often = "once" if repeats == 1 else f"{repeats} times"
    prompts = "1 prompt" if num == 1 else f"{num} prompts"
    return f"{prompts}, at most {settings['tokens']} tokens, measured {often}"
