"""Fixed lengths and acceptance heads in the plane of verification and discard rates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from draftwise.bench.results import ratio
from draftwise.drafters.lm import LMDrafter
from draftwise.engine.outputs import Round
from draftwise.nn.model import CausalModel
from draftwise.registry import Preset
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, Floats
from draftwise_lab.plotting import panels

MAX_LENGTH = 20
"""Maximum draft length of a head: SpecDec++, section 5.1."""


@dataclass(frozen=True)
class Way:
    """One stop rule: a fixed ``length``, or a head at a threshold. about: the head's config
    (num_layers, w_rej, label, ...)."""

    name: str
    length: int
    rule: str
    about: dict[str, Any]

    @property
    def is_fixed(self) -> bool:
        return self.rule == "fixed"


def fixed_ways(lengths: Sequence[int]) -> list[Way]:
    return [Way(f"K={length}", length, "fixed", {}) for length in lengths]


def head_ways(folders: Sequence[Path], thresholds: Sequence[float], lag: bool) -> list[Way]:
    """Each head at each threshold; ``lag`` stops one token late, as the released code does. Errors:
    DraftwiseError for a folder without a head."""
    ways = []
    for folder in folders:
        try:
            about = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise DraftwiseError(f"there is no acceptance head in {folder}: {error}") from error
        name = f"{folder.name} " if len(folders) > 1 else ""
        more = ",lag=true" if lag else ""
        ways += [
            Way(f"{name}h={h:g}", MAX_LENGTH, f"head:{folder},h={h:g}{more}", {**about, "h": h})
            for h in thresholds
        ]
    return ways


@dataclass(frozen=True)
class Run:
    """One prompt under one stop rule: SpecDec++'s N, N_target, N_discarded, N_draft, and seconds.

    num_draft_forwards: forwards of the drafter; a head that stops after a token has processed that
    token, and so has one forward more than the draft has tokens. oracle: |S| + 1, the target
    forwards of theorem 4.1. seconds: without prefill; a batch's seconds are divided equally.
    """

    way: str
    prompt: int
    num_tokens: int
    num_target: int
    num_drafted: int
    num_discarded: int
    num_draft_forwards: int
    seconds: float
    oracle: float


def play(
    field: Field,
    ways: Sequence[Way],
    prompts: Sequence[list[int]],
    repeats: int,
    size: int,
    tick: Callable[[int], object] = lambda done: None,
) -> dict[str, list[Run]]:
    """Run every stop rule on every prompt, ``size`` prompts at a time, and rotate the order each
    turn. tick: called with the number of finished turns out of ``num_turns``. One warm-up answer
    per rule is not counted."""
    found: dict[str, list[Run]] = {way.name: [] for way in ways}
    for way in ways:
        field.run(way, prompts[:1], 0, 0)
    turns = [(r, start) for r in range(repeats) for start in range(0, len(prompts), size)]
    for turn, (repeat, start) in enumerate(turns):
        shift = turn % len(ways)
        for place, way in enumerate([*ways[shift:], *ways[:shift]], 1):
            found[way.name] += field.run(way, prompts[start : start + size], start, repeat)
            tick(turn * len(ways) + place)
    return found


def num_turns(ways: Sequence[Way], prompts: Sequence[Any], repeats: int, size: int) -> int:
    """The number of times that ``play`` calls ``tick``."""
    return len(ways) * repeats * -(-len(prompts) // size)


def oracle_forwards(rounds: Sequence[Round], drafter: str, num_tokens: int) -> float:
    """|S| + 1: target forwards if the positions of rejections were known in advance.

    Source: SpecDec++, theorem 4.1, for greedy decoding: S is the set of answer positions at which
    the drafter, reading the target's text, disagrees; drafts that stop before each discard nothing.
    Differs: with sampling |S| is the expected number of rejections along the sampled text, the sum
    of 1 - alpha, which the theorem does not cover; the few (last) positions without a forward of
    the drafter count as the mean. Assumes unlimited drafts, a drafter that predicts every position,
    and, like the theorem, no costs except forwards.
    """
    alphas: dict[int, float] = {}
    for round_ in rounds:
        if (scores := round_.scores.get(drafter)) is not None:
            alphas.update(enumerate(scores.alphas.tolist(), scores.start))
    seen = [1 - alpha for at, alpha in alphas.items() if at >= rounds[0].position]
    return (float(np.mean(seen)) * num_tokens if seen else float(num_tokens)) + 1


class Field:
    """A loaded pair of models on which every stop rule runs, each with separate speculators."""

    def __init__(
        self, target: CausalModel, drafter: LMDrafter, ways: Sequence[Way], **options: Any
    ) -> None:
        self._target, self._drafter, self._options = target, drafter, options
        self._made = {way.name: self._speculator(way) for way in ways}

    def _speculator(self, way: Way) -> Speculator:
        # a wrapper per rule, so that only rules that read hidden states pay for them
        own = CausalModel(self._drafter.model.module, self._drafter.model.name)
        drafter = LMDrafter(self._drafter.name, own, self._target, self._drafter.home)
        setting = Preset("fixed:0", "length", "bandit", (way.length,), rules=(way.rule,))
        return Speculator(self._target, None, [drafter], setting)

    def run(self, way: Way, prompts: Sequence[list[int]], first: int, seed: int) -> list[Run]:
        """Answer prompts ``first``, ``first + 1``, .. as one batch."""
        seeds = [1000 * seed + first + i for i in range(len(prompts))]
        generation = self._made[way.name].start(
            list(prompts), seed=seeds, ignore_eos=True, **self._options
        )
        by_row: list[list[Round]] = [[] for _ in prompts]
        for round_ in generation:
            by_row[round_.request].append(round_)
        return [_summary(way, first + i, own, self._drafter.name) for i, own in enumerate(by_row)]


def _summary(way: Way, prompt: int, rounds: Sequence[Round], drafter: str) -> Run:
    num_tokens = sum(round_.num_emitted for round_ in rounds)
    drafted = sum(round_.num_drafted for round_ in rounds)
    seconds = sum(
        s / r.batch_size for r in rounds for phase, s in r.seconds.items() if phase != "prefill"
    )
    discarded = drafted - sum(round_.num_accepted for round_ in rounds)
    forwards = drafted + _read_in_vain(way, rounds, num_tokens)
    oracle = oracle_forwards(rounds, drafter, num_tokens)
    counts = num_tokens, len(rounds), drafted, discarded, forwards
    return Run(way.name, prompt, *counts, seconds, oracle)


def _read_in_vain(way: Way, rounds: Sequence[Round], num_tokens: int) -> int:
    """Rounds whose head stopped after a forward over the last token, which drafted no token."""
    if way.is_fixed or "lag=true" in way.rule:
        return 0
    left, found = num_tokens, 0
    for round_ in rounds:
        found += round_.num_drafted < min(way.length, left - 1)
        left -= round_.num_emitted
    return found


@dataclass(frozen=True)
class Point:
    """One stop rule over all prompts: its point in figure 3, the oracle's, and its speed."""

    way: Way
    discard_rate: float
    verification_rate: float
    oracle_rate: float
    mean_length: float
    tok_per_s: float


def point(way: Way, runs: Sequence[Run]) -> Point:
    """N_discarded / N and N_target / N (SpecDec++, section 5.1), where N counts all tokens."""
    names = ("num_tokens", "num_target", "num_drafted", "num_discarded", "oracle", "seconds")
    total, rounds, drafted, discarded, oracle, seconds = (
        sum(getattr(run, name) for run in runs) for name in names
    )
    rates = discarded / total, rounds / total, oracle / total
    return Point(way, *rates, drafted / rounds, total / seconds)


def dominates(one: Point, other: Point) -> bool:
    ours = (one.discard_rate, one.verification_rate)
    theirs = (other.discard_rate, other.verification_rate)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other point dominates, by ascending verification rate."""
    best = [p for p in points if not any(dominates(other, p) for other in points)]
    return sorted(best, key=lambda p: p.verification_rate)


def discard_at(points: Sequence[Point], verification_rate: float) -> float | None:
    """The frontier's interpolated discard rate at a verification rate; None outside."""
    rates = [p.verification_rate for p in points]
    if not rates or not rates[0] <= verification_rate <= rates[-1]:
        return None
    return float(np.interp(verification_rate, rates, [p.discard_rate for p in points]))


@dataclass(frozen=True)
class Regression:
    """Seconds as a sum over forwards: the cost of each kind, and the share of variance explained.
    verified_s: additional seconds for each drafted token that the target verifies; 0 in the paper's
    equation."""

    draft_s: float
    target_s: float
    verified_s: float
    r2: float


def regress(runs: Sequence[Run], with_verified: bool = False) -> Regression:
    """Least squares of seconds on draft and target forwards, without an intercept.

    Source: SpecDec++, section 5.2 and equation 3.1. ``with_verified`` adds a cost per verified
    token: on a CPU a target forward over more tokens takes longer, which equation 3.1 neglects.
    """
    rows = [[run.num_draft_forwards, run.num_target, run.num_drafted] for run in runs]
    table = np.array(rows, float)[:, : 2 + with_verified]
    seconds = np.array([run.seconds for run in runs])
    found, *_ = np.linalg.lstsq(table, seconds, rcond=None)
    missed = seconds - table @ found
    spread = ((seconds - seconds.mean()) ** 2).sum()
    r2 = 1 - float((missed**2).sum() / spread) if spread else 1.0
    draft_s, target_s, verified_s = [*found.tolist(), 0.0][:3]
    return Regression(draft_s, target_s, verified_s, r2)


def gain(runs: Mapping[str, Sequence[Run]], ours: str, base: str) -> tuple[float, float, float]:
    """Speed of ``ours`` relative to ``base`` on the same prompts, with a 95% bootstrap interval."""
    found = ratio(*_by_prompt(runs[ours]), *_by_prompt(runs[base]))
    return found.value, found.low, found.high


def _by_prompt(runs: Sequence[Run]) -> tuple[Floats, Floats]:
    """[prompts] tokens and seconds, summed over repeats."""
    tokens, seconds = np.zeros((2, 1 + max(run.prompt for run in runs)))
    for run in runs:
        tokens[run.prompt] += run.num_tokens
        seconds[run.prompt] += run.seconds
    return tokens, seconds


def panel(points: Sequence[Point], runs: Mapping[str, Sequence[Run]] | None) -> dict[str, Any]:
    """All results on one set of prompts. runs: the runs to time, or None for counts only."""
    heads = frontier([p for p in points if not p.way.is_fixed])
    fixed = [p for p in points if p.way.is_fixed]
    found: dict[str, Any] = {
        "points": [as_json(p) for p in points],
        "frontier": [p.way.name for p in heads],
        "dominated": {p.way.name: [q.way.name for q in heads if dominates(q, p)] for p in fixed},
        "discards_of_heads_at_its_verification_rate": {
            p.way.name: discard_at(heads, p.verification_rate) for p in fixed
        },
    }
    if runs is not None:
        every = [run for own in runs.values() for run in own]
        found["regression"] = asdict(regress(every))
        fit = regress(every, with_verified=True)
        found["regression_with_verified"] = asdict(fit)
        # theorem 4.1: no discards, |S| + 1 target forwards, all other tokens drafted
        drafted_s = fit.draft_s + fit.verified_s
        found["oracle_tok_per_s"] = {
            p.way.name: 1 / (drafted_s * max(0.0, 1 - p.oracle_rate) + fit.target_s * p.oracle_rate)
            for p in points
        }
        base = max(fixed, key=lambda p: p.tok_per_s).way.name
        found["best_fixed"] = base
        found["over_best_fixed"] = {
            p.way.name: [round(x, 3) for x in gain(runs, p.way.name, base)] for p in points
        }
    return found


def panel_table(name: str, found: Mapping[str, Any]) -> Table:
    over = found.get("over_best_fixed", {})
    heads = ["stops", "discarded", "verified", "oracle", "length", "heads discard"]
    table = Table(*heads, *(["tok/s", f"x {found['best_fixed']}"] if over else []), title=name)
    better = found["discards_of_heads_at_its_verification_rate"]
    for row in found["points"]:
        less = better.get(row["way"])
        rates = [row["discard_rate"], row["verification_rate"], row["oracle_verification_rate"]]
        cells = [row["way"], *(f"{rate:.3f}" for rate in rates), f"{row['mean_length']:.2f}"]
        cells.append("" if less is None else f"{less:.3f}")
        if over:
            times = "{:.3f} ({:.3f} to {:.3f})".format(*over[row["way"]])
            cells += [f"{row['tok_per_s']:.1f}", times]
        table.add_row(*cells)
    return table


def as_json(p: Point) -> dict[str, Any]:
    return {
        "way": p.way.name,
        **p.way.about,
        "length": p.way.length,
        "rule": p.way.rule,
        "discard_rate": round(p.discard_rate, 4),
        "verification_rate": round(p.verification_rate, 4),
        "oracle_verification_rate": round(p.oracle_rate, 4),
        "mean_length": round(p.mean_length, 3),
        "tok_per_s": round(p.tok_per_s, 2),
    }


def draw(panels_of: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw SpecDec++'s figure 3 as PNG: a panel with the frontiers for each set of prompts."""
    figure, grid = panels(len(panels_of), len(panels_of), 4.6, 4.2)
    for axes, (name, points) in zip(grid, panels_of.items(), strict=True):
        fixed = sorted((p for p in points if p.way.is_fixed), key=lambda p: p.way.length)
        heads = [p for p in points if not p.way.is_fixed]
        axes.plot(*_xy(fixed), "o-", color="#444444", markersize=4, label="fixed length")
        for p in fixed:
            at = (p.discard_rate, p.verification_rate)
            axes.annotate(p.way.name, at, xytext=(4, 3), textcoords="offset points", fontsize=7)
        axes.scatter(*_xy(heads), s=12, color="#0072b2", alpha=0.35)
        axes.plot(*_xy(frontier(heads)), color="#0072b2", label="heads, Pareto frontier")
        oracle = sum(p.oracle_rate for p in points) / len(points)
        axes.scatter([0], [oracle], marker="*", s=90, color="#d55e00", label="oracle (theorem 4.1)")
        axes.set(title=name, xlabel="discarded / tokens", ylabel="target forwards / tokens")
    grid[0].legend(frameon=False)
    figure.savefig(path)


def _xy(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [p.discard_rate for p in points], [p.verification_rate for p in points]
