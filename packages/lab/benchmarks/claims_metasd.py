"""MetaSD's tables and theorems in the simulator, beside what the paper prints.

    python -m benchmarks claims_metasd --seeds 40 --out benchmarks/results/claims_metasd.json
    python -m benchmarks claims_metasd --part tables --seeds 40

Drafters have the speedups that the paper's tables print for them alone; what is checked is what
choosing among them brings. A round's overhead is 1.327 forwards for SpS and 1.2 for EAGLE, as in
the presets ``metasd-multilingual`` and ``metasd-eagle``; at other temperatures the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from shared.claims import (
    Row,
    from_speedups,
    half_interval,
    options,
    played,
    report,
    switches,
)

from draftwise_lab.sim import tables
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.geometric import TruncatedGeometric
from draftwise_lab.sim.tables import METASD_EAGLE, METASD_LENGTH, mean_tokens, multilingual_overhead

SPS, EAGLE = multilingual_overhead(), 1.0 + METASD_LENGTH / 25.0
UCB, BE = "ucb1:beta=0.01/divergence", "ucb1:beta=0.01/length"
TASKS = ("Code", "Trans", "Sum", "QA", "Math")
Speedups = Mapping[str, tuple[tuple[float, ...], float]]
"""By task: each drafter alone, and MetaSD-UCB."""

BLACK_BOX: Speedups = {  # table 3
    task: (tables.METASD_BLACK_BOX[task], ucb)
    for task, ucb in zip(TASKS, (2.300, 1.587, 1.971, 1.711, 2.280), strict=True)
}
WHITE_BOX: Speedups = {  # table 4
    task: (tuple(METASD_EAGLE[task]), ucb)
    for task, ucb in zip(TASKS, (3.724, 2.318, 3.057, 2.641, 3.520), strict=True)
}
PERTURBED_EAGLE: Speedups = {  # table 8
    "Code": ((3.748, 1.335, 1.697, 2.030, 2.451), 3.563),
    "Trans": ((1.757, 2.553, 2.161, 2.035, 1.677), 2.375),
    "Sum": ((1.671, 1.529, 3.084, 1.939, 1.639), 2.742),
    "QA": ((1.837, 1.616, 2.094, 2.932, 1.722), 2.516),
    "Math": ((2.511, 1.664, 2.207, 2.913, 3.844), 3.366),
}
PERTURBED: Speedups = {  # table 12
    "Code": ((2.368, 1.158, 1.521, 1.763, 1.633), 2.139),
    "Trans": ((0.997, 1.986, 0.973, 1.036, 0.935), 1.422),
    "Sum": ((1.458, 1.016, 1.895, 1.458, 1.318), 1.779),
    "QA": ((1.297, 1.158, 1.285, 1.907, 1.237), 1.610),
    "Math": ((1.482, 1.184, 1.357, 1.470, 2.346), 2.149),
}
LONG: Speedups = {"De, 500 tokens": ((1.238, 1.316, 2.044, 0.970, 1.187), 2.031)}  # table 10
OUTSIDE: Speedups = {  # table 11, SpS
    "RAG": ((1.720, 1.373, 1.752, 1.944, 1.552), 1.799),
    "Finance": ((1.416, 1.284, 1.414, 1.550, 1.397), 1.436),
}
OUTSIDE_EAGLE: Speedups = {  # table 11, EAGLE
    "RAG": ((1.844, 1.568, 2.566, 2.535, 1.793), 2.238),
    "Finance": ((2.432, 2.175, 2.494, 2.826, 2.175), 2.517),
}
WARM: Speedups = {  # table 14, T = 0.7
    "Code": ((2.250, 1.215, 1.379, 1.532, 1.513), 1.896),
    "Trans": ((1.086, 1.886, 1.096, 1.130, 1.078), 1.431),
    "Sum": ((1.461, 1.165, 1.874, 1.463, 1.353), 1.744),
    "QA": ((1.316, 1.193, 1.324, 1.776, 1.272), 1.534),
    "Math": ((1.450, 1.258, 1.355, 1.616, 2.379), 2.046),
}
HOT: Speedups = {  # table 15, T = 1
    "Code": ((1.781, 0.963, 1.168, 1.260, 1.178), 1.596),
    "Trans": ((0.856, 1.695, 0.897, 0.880, 0.838), 1.197),
    "Sum": ((1.201, 0.918, 1.629, 1.223, 1.092), 1.439),
    "QA": ((1.073, 0.961, 1.132, 1.510, 1.031), 1.322),
    "Math": ((1.220, 1.026, 1.200, 1.360, 1.968), 1.673),
}
HOT_EAGLE: Speedups = {  # table 16, T = 1
    "Code": ((3.019, 0.872, 1.012, 1.348, 1.809), 2.765),
    "Trans": ((1.030, 1.817, 1.373, 1.278, 0.997), 1.668),
    "Sum": ((0.998, 0.834, 2.289, 1.267, 0.864), 1.935),
    "QA": ((1.179, 0.922, 1.269, 2.181, 1.011), 1.756),
    "Math": ((1.739, 0.966, 1.462, 2.141, 3.099), 2.539),
}
WORLDS: dict[str, tuple[Speedups, float, int]] = {
    "3": (BLACK_BOX, SPS, 200), "4": (WHITE_BOX, EAGLE, 200), "8": (PERTURBED_EAGLE, EAGLE, 200),
    "10": (LONG, SPS, 500), "11 SpS": (OUTSIDE, SPS, 200), "11 EAGLE": (OUTSIDE_EAGLE, EAGLE, 200),
    "12": (PERTURBED, SPS, 200), "14": (WARM, SPS, 200), "15": (HOT, SPS, 200),
    "16": (HOT_EAGLE, EAGLE, 200),
}  # fmt: skip
"""By table: speedups, a round's overhead, tokens of an answer."""


def printed_tables(seeds: int) -> list[Row]:
    """MetaSD-UCB beside the paper's, and the share of the best drafter's gain that it keeps."""
    rows = []
    for name, (speedups, overhead, tokens) in WORLDS.items():
        world = from_speedups({t: s for t, (s, _) in speedups.items()}, overhead, "drafter")
        found = played(world, [UCB], seeds, lengths=[METASD_LENGTH], tokens=tokens)
        for task, (alone, ucb) in speedups.items():
            row = found[task, UCB]
            rows.append({
                "table": name, "task": task, "here": row["speedup"], "ci95": row["speedup_ci95"],
                "paper": ucb, "ratio": row["speedup"] / ucb, "best drafter": max(alone),
                "mean drafter": float(np.mean(alone)),
            })  # fmt: skip
    return rows


def bandits(seeds: int) -> list[Row]:
    """Tables 3 and 4: the other policies; table 7: BE for BD. Geometric mean over tasks."""
    printed = {
        "3": {"random": (1.640, 1.150, 1.429, 1.294, 1.471),
              "exp3": (1.919, 1.217, 1.606, 1.437, 1.690),
              "sequential-halving": (2.148, 1.422, 1.812, 1.599, 2.144),
              UCB: (2.300, 1.587, 1.971, 1.711, 2.280), BE: (2.052, 1.465, 1.770, 1.591, 1.992)},
        "4": {"random": (2.310, 2.036, 2.261, 2.006, 2.449),
              "exp3": (2.858, 2.171, 2.261, 2.128, 2.811),
              "sequential-halving": (3.650, 2.225, 2.801, 2.466, 3.339),
              UCB: (3.724, 2.318, 3.057, 2.641, 3.520), BE: (3.590, 2.228, 3.038, 2.629, 3.461)},
    }  # fmt: skip
    rows = []
    for name, by_policy in printed.items():
        speedups, overhead, tokens = WORLDS[name]
        world = from_speedups({t: s for t, (s, _) in speedups.items()}, overhead, "drafter")
        found = played(world, list(by_policy), seeds, lengths=[METASD_LENGTH], tokens=tokens)
        for label, paper in by_policy.items():
            here = [found[task, label]["speedup"] for task in TASKS]
            rows.append({
                "table": name, "policy": label, "here": _mean(here), "paper": _mean(paper),
                "ci95": float(np.mean([found[t, label]["speedup_ci95"] for t in TASKS])) / 5**0.5,
                "by task": " ".join(f"{x:.2f}" for x in here),
            })  # fmt: skip
    return rows


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def router(seeds: int) -> list[Row]:
    """Table 6: how often a router must be right to be as fast as MetaSD-UCB; wrong is any other."""
    printed = {"3": ("SpS", 1.772, 1.456), "4": ("EAGLE", 2.759, 2.245)}
    rows = []
    for name, (kind, inside, perturbed) in printed.items():
        speedups, overhead, tokens = WORLDS[name]
        world = from_speedups({t: s for t, (s, _) in speedups.items()}, overhead, "drafter")
        found = played(world, [UCB], seeds, lengths=[METASD_LENGTH], tokens=tokens)
        ucb = float(np.mean([found[task, UCB]["speedup"] for task in TASKS]))
        right = float(np.mean([max(alone) for alone, _ in speedups.values()]))
        wrong = float(np.mean([(sum(a) - max(a)) / (len(a) - 1) for a, _ in speedups.values()]))
        rows += [
            {"drafters": kind, "router": label, "speedup": speed,
             "right in": (speed - wrong) / (right - wrong)}
            for label, speed in (("always right", right), ("MetaSD-UCB, here", ucb),
                                 ("BERT, in domain (paper)", inside),
                                 ("BERT, perturbed (paper)", perturbed))
        ]  # fmt: skip
    return rows


def lengths(seeds: int) -> list[Row]:
    """Figure 2: accepted tokens and speed by N_max, on Code; the best drafter and MetaSD-UCB."""
    world = from_speedups({"Code": BLACK_BOX["Code"][0]}, SPS, "drafter")
    rows = []
    for length in (1, 2, 3, 5, 7, 10, 15):
        found = played(world, [UCB], seeds, lengths=[length], tokens=200)
        row, best = found["Code", UCB], found["Code", "best fixed plan"]
        rows.append({
            "N_max": length, "accepted, UCB": row["mat"] - 1.0, "speedup, UCB": row["speedup"],
            "ci95": row["speedup_ci95"], "accepted, best": best["mat"] - 1.0,
            "speedup, best": best["speedup"],
        })  # fmt: skip
    return rows


def region(seeds: int) -> list[Row]:
    """Theorem 3: where h_n(a) >= g_n(a)^2 / (4 n a), and up to where Var[BE] rises; exact sums."""
    del seeds
    rows = []
    for n in (2, 3, 5, 8):
        grid = np.linspace(0.001, 0.999, 999)
        s = np.arange(1, n + 1)[:, np.newaxis]
        g = (s * grid ** (s - 1)).sum(axis=0)
        h = (s * (grid ** (s - 1) - grid ** (2 * n - s))).sum(axis=0)
        inside = grid[h >= g * g / (4 * n * grid)]
        mean = np.array([mean_tokens(a, n) - 1 for a in grid])
        second = sum((2 * j - 1) * grid**j for j in range(1, n + 1))
        top = float(grid[np.argmax(second - mean**2)])
        rows.append({
            "n": n, "from": float(inside.min()), "to": float(inside.max()),
            "paper": "0.06 to 0.8" if n == 5 else "", "Var[BE] rises to": top,
            "paper ": "0.815" if n == 5 else "",
        })  # fmt: skip
    return rows


def theorems(seeds: int) -> list[Row]:
    """Theorems 6 to 8: regret in rounds by policy and length, fixed and drawn at random."""
    alphas = {"a": 0.8, "b": 0.6, "c": 0.5, "d": 0.4}
    costs = CostTable({1: (1.0,)}, other_s=0.05)
    rows = []
    labels = [f"ucb1:beta={beta}/divergence" for beta in (0.5, 0.6, 1.0, 2.0)]
    labels += ["petc:c=8/divergence", "sequential-halving/divergence"]
    for tokens, eos in ((500, 0.0), (2000, 0.0), (8000, 0.0), (8000, 1 / 500), (8000, 1 / 2000)):
        world = TruncatedGeometric({"tgd": alphas}, costs, eos)
        found = played(world, labels, max(seeds // 2, 4), lengths=[4], tokens=tokens)
        text = f"{tokens} tokens" if not eos else f"end drawn, {1 / eos:.0f} on average"
        row: Row = {"answer": text}
        for label in labels:
            row[label.partition("/")[0]] = found["tgd", label]["regret"]
            row[label.partition("/")[0] + " ci"] = found["tgd", label]["regret_ci95"]
        rows.append(row)
    return rows


def switching(seeds: int) -> list[Row]:
    """Equation 49: rounds above the best plan, and each switch of drafter paid with one more."""
    alphas = {"a": 0.8, "b": 0.6, "c": 0.5, "d": 0.4}
    world = TruncatedGeometric({"tgd": alphas}, CostTable({1: (1.0,)}, other_s=0.05))
    labels = [f"{name}/divergence" for name in ("petc:c=8", "sequential-halving", "ucb1:beta=0.5")]
    rows = []
    for tokens in (500, 2000, 8000):
        found = switches(world, labels, max(seeds // 2, 4), length=4, tokens=tokens)
        row: Row = {"tokens": tokens}
        for label, (regret, num) in found.items():
            name = label.partition("/")[0]
            row |= {name: float(np.mean(regret + num)), f"{name} ci": half_interval(regret + num)}
            row[f"{name} switches"] = float(np.mean(num))
        rows.append(row)
    return rows


def lemma_9(seeds: int) -> list[Row]:
    """The paper's own instance: drafters of alpha .1, .5, .8 and N_max 2, exactly."""
    del seeds
    plays = {"pi 1": (0.1, 0.8), "pi 2": (0.5, 0.5)}
    return [
        {
            "policy": name, "first two rounds": str(alphas),
            "BD regret": sum(0.8 - a for a in alphas), "paper": 0.7 if name == "pi 1" else 0.6,
            "accepted": sum(a + a * a for a in alphas), "paper ": 1.55 if name == "pi 1" else 1.50,
        }
        for name, alphas in plays.items()
    ]  # fmt: skip


PARTS = {
    "tables": printed_tables, "bandits": bandits, "router": router, "figure-2": lengths,
    "theorem-3": region, "theorems-6-7-8": theorems, "eq-49": switching,
    "lemma-9": lemma_9,
}  # fmt: skip

if __name__ == "__main__":
    assert math.isclose(EAGLE, 1.2)
    report(PARTS, options(__doc__, list(PARTS)))
