"""The papers' worlds: environments made of their tables, one function for each experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from draftwise.types import DraftwiseError
from draftwise_lab.sim import tables
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.environments.adversarial import Cycles
from draftwise_lab.sim.environments.confidence import Confident
from draftwise_lab.sim.environments.drifting import Drifting
from draftwise_lab.sim.environments.geometric import TruncatedGeometric
from draftwise_lab.sim.environments.iid import IndependentAlphas
from draftwise_lab.sim.environments.load import Load
from draftwise_lab.sim.environments.piecewise import Piecewise

Maker = Callable[[int | None], Environment]
"""An environment for a number of drafters; None = as many as the paper has."""


def pool_of(column: Mapping[str, float], best: str, num: int, length: int) -> dict[str, float]:
    """alphas of ``num`` drafters: a domain's specialist, and others about as good as the rest.

    The specialist stands in the middle; the others go round the rest of the column, each time a
    little (3% of a token) worse, so that no two are alike.
    """
    rest = [tokens for name, tokens in column.items() if name != best]
    others = [
        max(1.05, rest[i % len(rest)] * (1.0 - 0.03 * (i // len(rest)))) for i in range(num - 1)
    ]
    others.insert(num // 2, column[best])
    return {f"drafter{i + 1}": tables.alpha_of(t, length) for i, t in enumerate(others)}


def hedgespec(
    table: Mapping[str, Sequence[float]], model: str, eagle_mat: float, eagle_tok_per_s: float
) -> Maker:
    """Tables 1, 6, 7; the seconds are those of table 3's plain and Eagle rows."""

    def make(num_drafters: int | None) -> Environment:
        length, names = tables.HEDGESPEC_LENGTH, tables.HEDGESPEC_DRAFTERS
        plain_s = 1.0 / tables.PLAIN_TOK_PER_S[model]
        draft_s = (eagle_mat / eagle_tok_per_s - plain_s) / length
        costs = CostTable({1: (plain_s,)}, other_s=draft_s)
        columns = tables.by_domain(table, names, tables.DOMAINS, float)
        if num_drafters is None:
            means = {
                domain: {name: tables.alpha_of(mat, length) for name, mat in column.items()}
                for domain, column in columns.items()
            }
        else:
            means = {
                domain: pool_of(columns[domain], name, num_drafters, length)
                for domain, name in zip(tables.DOMAINS, names, strict=True)
            }
        return TruncatedGeometric(means, costs)

    return make


def _metasd(
    table: Mapping[str, Sequence[float]], drafters: Sequence[str], overhead: float
) -> dict[str, dict[str, float]]:
    """alpha by domain and drafter from speedups: ``MAT = speedup * overhead``."""
    length = tables.METASD_LENGTH
    return {
        domain: {
            name: tables.alpha_of(max(1.0, speedup * overhead), length)
            for name, speedup in zip(drafters, speedups, strict=True)
        }
        for domain, speedups in table.items()
    }


def fixed_pool(make: Callable[[], Environment]) -> Maker:
    """An environment whose number of drafters is the paper's."""

    def checked(num_drafters: int | None) -> Environment:
        environment = make()
        if num_drafters not in {None, len(environment.drafters)}:
            raise DraftwiseError(
                "only the hedgespec presets take another number of drafters; leave --drafters out"
            )
        return environment

    return checked


def _metasd_costs(overhead: float) -> CostTable:
    return CostTable({1: (1.0,)}, other_s=(overhead - 1.0) / tables.METASD_LENGTH)


def multilingual() -> Environment:
    overhead = tables.multilingual_overhead()
    names = [f"{language.lower()}-drafter" for language in tables.LANGUAGES]
    means = _metasd(tables.METASD_MULTILINGUAL, names, overhead)
    return IndependentAlphas(means, _metasd_costs(overhead))


def black_box() -> Environment:
    overhead = tables.multilingual_overhead()
    names = [f"drafter{i}" for i in range(1, 6)]
    means = _metasd(tables.METASD_BLACK_BOX, names, overhead)
    return IndependentAlphas(means, _metasd_costs(overhead))


def metasd_eagle() -> Environment:
    overhead = 1.0 + tables.METASD_LENGTH / 25.0  # HedgeSpec 4.3.1: 1/25 of a target forward
    names = [f"eagle{i}" for i in range(1, 6)]
    return IndependentAlphas(_metasd(tables.METASD_EAGLE, names, overhead), _metasd_costs(overhead))


def two_languages() -> Environment:
    overhead = tables.multilingual_overhead()
    names = [f"{language.lower()}-drafter" for language in tables.LANGUAGES]
    means = _metasd(tables.METASD_MULTILINGUAL, names, overhead)
    return Piecewise({"Fr then Zh": ("Fr", "Zh")}, means, _metasd_costs(overhead))


def load() -> Environment:
    """Rows are free until the machine's arithmetic is busy, at about 64 tokens a forward."""
    sizes, busy = (1, 8, 16, 32, 50), 64.0
    target_s = {
        size: [float(np.hypot(1.0, size * tokens / busy)) for tokens in range(1, 6)]
        for size in sizes
    }
    return Load(sizes, (0.3, 0.9), CostTable(target_s, other_s=0.05))


def geometric() -> Environment:
    alphas = {"a": 0.8, "b": 0.6, "c": 0.5, "d": 0.4}
    return TruncatedGeometric({"tgd": alphas}, CostTable({1: (1.0,)}, other_s=0.05))


def _unequal_costs(slope: float) -> CostTable:
    return CostTable({1: (1.0, 1.0 + slope)}, {"large": 0.15, "lookup": 0.002}, other_s=0.04)


def drifting() -> Environment:
    means = {"drift": {"small": 0.5, "other": 0.5, "large": 0.75}}
    return Drifting(means, _unequal_costs(0.06))


def adversarial() -> Environment:
    block = 50
    patterns = {
        "alternating": {"a": [1.0] * block + [0.0] * block, "b": [0.0] * block + [1.0] * block},
        "first good, then bad": {"a": [1.0] * block + [0.2] * 10 * block, "b": [0.6]},
    }
    return Cycles(patterns, CostTable({1: (1.0,)}, other_s=0.05))


def censoring() -> Environment:
    patterns = {"example 7": {"two-token": [1.0, 0.0], "steady": [0.6]}}
    return Cycles(patterns, CostTable({1: (1.0,)}, other_s=0.05))


def stop_rules() -> Environment:
    means = {"coding": 0.75, "math": 0.65, "writing": 0.45}
    return Confident(means, CostTable({1: (1.0, 1.01)}, other_s=0.12))
