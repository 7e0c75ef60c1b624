"""The papers' experiments: tables, environments built from the tables, and settings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise import checks
from draftwise.types import DraftwiseError
from draftwise_lab.sim import environments as e
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import Environment, IndependentAlphas

PAPERS = tomllib.loads(Path(__file__).with_name("papers.toml").read_text("utf-8"))
"""Numbers from the papers' tables."""
Table = Mapping[str, Sequence[float]]

DOMAINS = ("Python", "Math", "Biology", "Chemistry", "MedQA", "CNN_DM", "SQL")
"""Columns of HedgeSpec's tables."""
HEDGESPEC_DRAFTERS = ("python", "math", "biology", "chemistry", "medqa", "cnn_dm", "sql")
"""Rows of HedgeSpec's tables: one specialist per domain."""
HEDGESPEC_LLAMA: Table = PAPERS["hedgespec"]["llama"]
HEDGESPEC_QWEN8B: Table = PAPERS["hedgespec"]["qwen8b"]
HEDGESPEC_QWEN32B: Table = PAPERS["hedgespec"]["qwen32b"]
HEDGESPEC_LENGTH = 8
"""Draft length (chunk depth) in HedgeSpec's figures: at most 9 tokens per round."""
METASD_MULTILINGUAL: Table = PAPERS["metasd"]["multilingual"]
METASD_JAPANESE_BE = (0.232, 0.099, 0.081, 0.074, 0.106)
"""MetaSD, table 2: mean accepted tokens / 5 on Japanese queries, drafters in table 9's order."""
METASD_LENGTH = 5
"""MetaSD's N_max."""
METASD_EAGLE_OVERHEAD = 1.0 + METASD_LENGTH / 25.0
"""A round's seconds over a plain forward's; a draft step is 1/25 forward (HedgeSpec 4.3.1)."""


def metasd_table(name: str) -> Table:
    """Speedup of each single drafter, by task."""
    return {task: row[:-1] for task, row in PAPERS["metasd"]["tables"][name].items()}


def mean_tokens(alpha: float, length: int) -> float:
    """Expected emitted tokens of a draft of ``length`` with one acceptance probability.

    Source: the mean of BanditSpec's eq. (4), ``(1 - p^(L+1)) / (1 - p)``.

    >>> mean_tokens(0.5, 2), mean_tokens(1.0, 8)
    (1.75, 9.0)
    """
    return sum(alpha**j for j in range(length + 1))


def alpha_of(tokens: float, length: int) -> float:
    """The alpha at which ``mean_tokens`` is ``tokens``; clipped to [0, 1] outside 1 .. L + 1.

    >>> round(alpha_of(1.75, 2), 9)
    0.5
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if mean_tokens(middle, length) < tokens else (low, middle)
    return (low + high) / 2.0


def multilingual_overhead() -> float:
    """Seconds of a round over a plain forward's, in MetaSD's multilingual experiment.

    On Japanese queries ``speedup = (1 + 5 BE) / overhead`` for each drafter (tables 2 and 9); the
    result is the mean overhead of the five.

    >>> round(multilingual_overhead(), 3)
    1.327
    """
    pairs = zip(METASD_JAPANESE_BE, METASD_MULTILINGUAL["Ja"], strict=True)
    ratios = [(1.0 + METASD_LENGTH * efficiency) / speedup for efficiency, speedup in pairs]
    return sum(ratios) / len(ratios)


Maker = Callable[[int | None], Environment]
"""Makes an environment for a number of drafters; None = the paper's number."""


def pool_of(column: Mapping[str, float], best: str, num: int, length: int) -> dict[str, float]:
    """alphas of ``num`` drafters: a domain's specialist, in the middle, and others close to the
    rest of the column. The others cycle through the rest of the column, and each pass emits 3%
    fewer tokens, so that no two are equal."""
    rest = [tokens for name, tokens in column.items() if name != best]
    passes = (divmod(i, len(rest)) for i in range(num - 1))
    others = [max(1.05, rest[place] * (1.0 - 0.03 * times)) for times, place in passes]
    others.insert(num // 2, column[best])
    return {f"drafter{i + 1}": alpha_of(t, length) for i, t in enumerate(others)}


def hedgespec(
    table: Mapping[str, Sequence[float]], plain_tok_per_s: float, mat: float, tok_per_s: float
) -> Maker:
    """HedgeSpec's tables 1, 6, 7; seconds from table 3: plain speed, and Eagle's MAT and speed."""

    def make(num_drafters: int | None) -> Environment:
        length, names = HEDGESPEC_LENGTH, HEDGESPEC_DRAFTERS
        plain_s, means = 1.0 / plain_tok_per_s, {}
        costs = CostTable({1: (plain_s,)}, other_s=(mat / tok_per_s - plain_s) / length)
        for place, (domain, best) in enumerate(zip(DOMAINS, names, strict=True)):
            column = {name: table[name][place] for name in names}
            if num_drafters is None:
                means[domain] = {name: alpha_of(t, length) for name, t in column.items()}
            else:
                means[domain] = pool_of(column, best, num_drafters, length)
        return e.TruncatedGeometric(means, costs)

    return make


def from_speedups(
    table: Mapping[str, Sequence[float]], overhead: float, drafters: Sequence[str]
) -> IndependentAlphas:
    """Drafters with the speedups of a MetaSD table: MAT = speedup x overhead, alphas i.i.d.
    overhead: seconds of a round relative to a plain forward."""
    means = {
        domain: {
            name: alpha_of(max(1.0, speedup * overhead), METASD_LENGTH)
            for name, speedup in zip(drafters, speedups, strict=True)
        }
        for domain, speedups in table.items()
    }
    return IndependentAlphas(means, CostTable({1: (1.0,)}, other_s=(overhead - 1) / METASD_LENGTH))


def metasd_world(name: str, overhead: float, kind: str = "drafter") -> IndependentAlphas:
    """Five drafters, each of which alone reaches its speedup in a MetaSD table."""
    return from_speedups(metasd_table(name), overhead, [f"{kind}{i}" for i in range(1, 6)])


def multilingual() -> IndependentAlphas:
    names = [f"{language.lower()}-drafter" for language in METASD_MULTILINGUAL]
    return from_speedups(METASD_MULTILINGUAL, multilingual_overhead(), names)


def two_languages() -> Environment:
    world = multilingual()
    return e.Piecewise({"Fr then Zh": ("Fr", "Zh")}, world.means, world.costs)


def busy_server() -> e.Load:
    """A server whose forwards are compute-bound beyond about 64 tokens, summed over rows."""
    sizes, busy = (1, 8, 16, 32, 50), 64.0
    target_s = {
        size: [float(np.hypot(1.0, size * tokens / busy)) for tokens in range(1, 6)]
        for size in sizes
    }
    return e.Load(sizes, (0.3, 0.9), CostTable(target_s, other_s=0.05))


_EVEN = CostTable({1: (1.0,)}, other_s=0.05)
_UNEVEN = CostTable({1: (1.0, 1.06)}, {"large": 0.15, "lookup": 0.002}, other_s=0.04)
_BLOCK = 50
_MISLEADING = {
    "alternating": {"a": [1.0] * _BLOCK + [0.0] * _BLOCK, "b": [0.0] * _BLOCK + [1.0] * _BLOCK},
    "first good, then bad": {"a": [1.0] * _BLOCK + [0.2] * 10 * _BLOCK, "b": [0.6]},
}
_STOPPING = e.Confident(
    {"coding": 0.75, "math": 0.65, "writing": 0.45}, CostTable({1: (1.0, 1.01)}, other_s=0.12)
)
_BANDITS = ("ucbspec", "exp3spec", "ucb1:beta=0.01")
_EVERYBODY = (*_BANDITS, "normalhedge", "goodput@0-8")
_METASD = ("ucb1:beta=0.01", "exp3", "sequential-halving", "draft-all", "goodput@0-8")
_CHANGING = ("ucb1:beta=0.1", "discounted-ucb", "sliding-ucb", "normalhedge", "goodput@0-8")
_TAPOUT = ("ucb1:beta=1/blend", "ucb-tuned/blend", "ucb1:beta=1/simple")


@dataclass(frozen=True)
class Setting:
    """An experiment: an environment, its plans, and the default policies. lengths: draft lengths in
    tokens, 0 = the plan none. panel: labels of the default contestants. tokens: per text. rules:
    stop rules, each of which makes separate plans."""

    source: str
    make: Maker
    lengths: tuple[int, ...]
    panel: tuple[str, ...] = _EVERYBODY
    tokens: int = 500
    rules: tuple[str, ...] = ("fixed",)


def _of(source: str, world: Callable[[], Environment], *rest: Any, **more: Any) -> Setting:
    """A setting that accepts only the paper's number of drafters."""

    def make(num_drafters: int | None) -> Environment:
        environment = world()
        if num_drafters not in {None, len(environment.drafters)}:
            raise DraftwiseError(
                "only the hedgespec presets take another number of drafters; leave --drafters out"
            )
        return environment

    return Setting(source, make, *rest, **more)


SETTINGS: dict[str, Setting] = {
    "hedgespec-llama": Setting(
        "HedgeSpec, table 1", hedgespec(HEDGESPEC_LLAMA, 18.13, 5.69, 74.34), (8,)
    ),
    "hedgespec-qwen8b": Setting(
        "HedgeSpec, table 6", hedgespec(HEDGESPEC_QWEN8B, 14.57, 4.23, 47.53), (8,)
    ),
    "hedgespec-qwen32b": Setting(
        "HedgeSpec, table 7", hedgespec(HEDGESPEC_QWEN32B, 8.21, 2.88, 20.76), (8,)
    ),
    "metasd-multilingual": _of("MetaSD, tables 2 and 9", multilingual, (5,), _METASD, 200),
    "metasd-black-box": _of(
        "MetaSD, table 3", lambda: metasd_world("3", multilingual_overhead()), (5,), _METASD, 200
    ),
    "metasd-eagle": _of(
        "MetaSD, table 4", lambda: metasd_world("4", METASD_EAGLE_OVERHEAD, "eagle"),
        *((5,), _METASD, 200),
    ),
    "banditspec-load": _of(
        "BanditSpec, section 6.2", busy_server, (0, 1, 2, 3, 4),
        ("ucbspec/throughput", "ucb1:beta=0.1/throughput", "goodput"), 200,
    ),
    "nonstationary": _of("MetaSD, table 19", two_languages, (5,), _CHANGING, 400),
    "geometric": _of(
        "BanditSpec, eq. (4)",
        lambda: e.TruncatedGeometric({"tgd": {"a": 0.8, "b": 0.6, "c": 0.5, "d": 0.4}}, _EVEN),
        *((4,), ("ucbspec", "exp3spec"), 5000),
    ),
    "drifting": _of(
        "wandering alphas, drafters of unequal cost",
        lambda: e.Drifting({"drift": {"small": 0.5, "other": 0.5, "large": 0.75}}, _UNEVEN),
        (4,),
    ),
    "adversarial": _of(
        "BanditSpec, assumption 5.1", lambda: e.Cycles(_MISLEADING, _EVEN), (4,), tokens=2000
    ),
    "censoring": _of(
        "HedgeSpec, example 7",
        lambda: e.Cycles({"example 7": {"two-token": [1.0, 0.0], "steady": [0.6]}}, _EVEN),
        (8,),
        tuple(f"normalhedge/expected-length/panoramic:{o}" for o in ("delay=0", "per_token=true")),
    ),
    "stop-rules": _of(
        "TapOut, table 1", lambda: _STOPPING, (16,), _TAPOUT,
        rules=("fixed", "max-confidence:0.8", "max-confidence:0.5"),
    ),
    "stop-rules-many": _of(
        "TapOut, appendix A.2", lambda: _STOPPING, (16,), _TAPOUT,
        rules=("fixed", *(f"max-confidence:0.{tenth}" for tenth in range(2, 10))),
    ),
}  # fmt: skip
"""Presets of ``draftwise simulate --preset NAME``."""


def setting(name: str) -> Setting:
    """The experiment with this name; DraftwiseError lists the valid names."""
    checks.known("preset", name, SETTINGS)
    return SETTINGS[name]
