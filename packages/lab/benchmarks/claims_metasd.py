"""MetaSD's tables and theorems in the simulator, next to the printed numbers.

Each drafter alone has the speedup printed in the paper's tables; the benchmark checks the gain from
choosing among drafters. A round's overhead is 1.327 forwards for SpS and 1.2 for EAGLE, as in the
presets ``metasd-multilingual`` and ``metasd-eagle``, at all temperatures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from shared.claims import Row, played, regret_of, report

from draftwise.registry import make_reward
from draftwise.types import Floats, Outcome, Plan
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments import TruncatedGeometric
from draftwise_lab.sim.match import (
    Match,
    Reference,
    best_plans,
    fixed_path,
    half_width,
    look_back,
    make_match,
    policy_seed,
    run_match,
    stop_rules_of,
)
from draftwise_lab.sim.match import play as play_all
from draftwise_lab.sim.presets import (
    METASD_EAGLE_OVERHEAD,
    METASD_LENGTH,
    PAPERS,
    Setting,
    from_speedups,
    mean_tokens,
    metasd_table,
    metasd_world,
    multilingual_overhead,
)
from draftwise_lab.sim.presets import setting as sim_setting
from draftwise_lab.sim.regret import best_plan_curve
from draftwise_lab.sim.request import SimulatedRequest

SPS, EAGLE = multilingual_overhead(), METASD_EAGLE_OVERHEAD
UCB = "ucb1:beta=0.01/divergence"
TASKS = ("Code", "Trans", "Sum", "QA", "Math")
ALPHAS = {"a": 0.8, "b": 0.6, "c": 0.5, "d": 0.4}
COSTS = CostTable({1: (1.0,)}, other_s=0.05)
WORLDS: dict[str, tuple[float, int]] = {
    "3": (SPS, 200), "4": (EAGLE, 200), "8": (EAGLE, 200), "10": (SPS, 500), "11 SpS": (SPS, 200),
    "11 EAGLE": (EAGLE, 200), "12": (SPS, 200), "14": (SPS, 200), "15": (SPS, 200),
    "16": (EAGLE, 200),
}  # fmt: skip
"""By table: a round's overhead in forwards, and tokens per answer."""
UCB_SPEEDUPS = {
    name: {task: row[-1] for task, row in found.items()}
    for name, found in PAPERS["metasd"]["tables"].items()
}


def of_table(name: str, labels: Sequence[str], seeds: int) -> dict[tuple[str, str], Row]:
    overhead, tokens = WORLDS[name]
    world = metasd_world(name, overhead)
    return played(world, labels, seeds, lengths=[METASD_LENGTH], tokens=tokens)


def printed_tables(seeds: int) -> list[Row]:
    """MetaSD-UCB's speedup here and in the paper, and its share of the best drafter's gain."""
    rows = []
    for name in WORLDS:
        found = of_table(name, [UCB], seeds)
        for task, alone in metasd_table(name).items():
            ucb, row = UCB_SPEEDUPS[name][task], found[task, UCB]
            rows.append({
                "table": name, "task": task, "here": row["speedup"], "ci95": row["speedup_ci95"],
                "paper": ucb, "ratio": row["speedup"] / ucb, "best drafter": max(alone),
                "mean drafter": float(np.mean(alone)),
            })  # fmt: skip
    return rows


def bandits(seeds: int) -> list[Row]:
    """Tables 3 and 4: other policies; table 7: BE in place of BD. Geometric means over tasks."""
    rows = []
    for name, printed in PAPERS["metasd"]["policies"].items():
        found = of_table(name, list(printed), seeds)
        for label, paper in printed.items():
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
    """Table 6: the accuracy at which a router with uniform errors is as fast as MetaSD-UCB."""
    printed = {"3": ("SpS", 1.772, 1.456), "4": ("EAGLE", 2.759, 2.245)}
    rows = []
    for name, (kind, inside, perturbed) in printed.items():
        found = of_table(name, [UCB], seeds)
        ucb = float(np.mean([found[task, UCB]["speedup"] for task in TASKS]))
        alone = metasd_table(name).values()
        right = float(np.mean([max(a) for a in alone]))
        wrong = float(np.mean([(sum(a) - max(a)) / (len(a) - 1) for a in alone]))
        rows += [
            {"drafters": kind, "router": label, "speedup": speed,
             "right in": (speed - wrong) / (right - wrong)}
            for label, speed in (("always right", right), ("MetaSD-UCB, here", ucb),
                                 ("BERT, in domain (paper)", inside),
                                 ("BERT, perturbed (paper)", perturbed))
        ]  # fmt: skip
    return rows


def lengths(seeds: int) -> list[Row]:
    """Figure 2: accepted tokens and speed by N_max on Code, for the best drafter and MetaSD-UCB."""
    drafters = [f"drafter{i}" for i in range(1, 6)]
    world = from_speedups({"Code": metasd_table("3")["Code"]}, SPS, drafters)
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
    """Theorem 3: where h_n(a) >= g_n(a)^2 / (4 n a), and up to which alpha Var[BE] rises; exact
    sums."""
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
    """Theorems 6 to 8: regret in rounds by policy and length, with fixed and random lengths."""
    rows = []
    labels = [f"ucb1:beta={beta}/divergence" for beta in (0.5, 0.6, 1.0, 2.0)]
    labels += ["petc:c=8/divergence", "sequential-halving/divergence"]
    for tokens, eos in ((500, 0.0), (2000, 0.0), (8000, 0.0), (8000, 1 / 500), (8000, 1 / 2000)):
        world = TruncatedGeometric({"tgd": ALPHAS}, COSTS, eos)
        found = played(world, labels, max(seeds // 2, 4), lengths=[4], tokens=tokens)
        text = f"{tokens} tokens" if not eos else f"end drawn, {1 / eos:.0f} on average"
        row: Row = {"answer": text}
        for label in labels:
            row |= regret_of(found["tgd", label], label.partition("/")[0])
        rows.append(row)
    return rows


def switches(
    world: TruncatedGeometric, labels: Sequence[str], seeds: int, tokens: int
) -> dict[str, tuple[Floats, Floats]]:
    """Rounds lost to the best plan and number of drafter switches, by policy and seed."""
    match = make_match(Setting("claim", lambda _: world, (4,), tuple(labels), tokens), list(labels))
    found: dict[str, list[tuple[float, float]]] = {label: [] for label in labels}
    for seed in range(seeds):
        best = best_plans(match, look_back(match, seed))
        for domain, text in match.texts(seed):
            for one in match.contestants:
                ends, _ = fixed_path(text, best[domain, one.label][0], {})
                reference = Reference(ends, 0)
                stream = policy_seed(seed, text.name, one.label)
                rows = list(play_all(text, one, world.costs, reference, stream, {}))
                changed = np.diff([row["plan_index"] for row in rows]) != 0
                found[one.label].append((rows[-1]["regret"], changed.sum()))
    return {label: tuple(np.array(pairs, float).T) for label, pairs in found.items()}


def switching(seeds: int) -> list[Row]:
    """Equation 49: rounds lost to the best plan, plus one round for each switch of drafter."""
    world = TruncatedGeometric({"tgd": ALPHAS}, COSTS)
    labels = [f"{name}/divergence" for name in ("petc:c=8", "sequential-halving", "ucb1:beta=0.5")]
    rows = []
    for tokens in (500, 2000, 8000):
        found = switches(world, labels, max(seeds // 2, 4), tokens)
        row: Row = {"tokens": tokens}
        for label, (regret, num) in found.items():
            name = label.partition("/")[0]
            row |= {name: float(np.mean(regret + num)), f"{name} ci": half_width(regret + num)}
            row[f"{name} switches"] = float(np.mean(num))
        rows.append(row)
    return rows


def lemma_9(seeds: int) -> list[Row]:
    """The paper's instance, computed exactly: drafters with alpha 0.1, 0.5 and 0.8, N_max 2."""
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


def rewards(seeds: int) -> list[Row]:
    """Theorem 1, table 2, figure 3: is block divergence (BD) a better signal than BE?

    On ``metasd-multilingual``: mean and variance of the best drafter's reward, the signal ``R =
    gap^2 / max(variances)`` of every suboptimal drafter (eq. 6), and the share of rounds up to the
    10th and the 60th in which UCB1 plays the best drafter.
    """
    kinds, rows = {"BE": "length", "BD": "divergence"}, []
    labels = {name: f"ucb1:beta=0.01/{spec}" for name, spec in kinds.items()}
    setting = sim_setting("metasd-multilingual")
    match = make_match(setting, list(labels.values()), with_trails=True)
    outcome = run_match(match, range(seeds))
    for domain in match.environment.domains:
        rounds = [_rounds_alone(match, domain, plan, range(seeds)) for plan in match.plans]
        for name, spec in kinds.items():
            reward = make_reward(spec)
            values = [np.array([reward(one) for one in own]) for own in rounds]
            means, spreads = [v.mean() for v in values], [v.var() for v in values]
            best = int(np.argmax(means))
            signals = [
                (means[best] - mean) ** 2 / max(spread, spreads[best])
                for index, (mean, spread) in enumerate(zip(means, spreads, strict=True))
                if index != best
            ]
            runs = [r for r in outcome.runs if (r.domain, r.policy) == (domain, labels[name])]
            share = best_plan_curve(runs).means
            rows.append({
                "domain": domain, "reward": name, "mean": float(means[best]),
                "variance": float(spreads[best]), "R": " ".join(f"{r:.2f}" for r in signals),
                **{f"best in {n}": float(share[min(n, len(share)) - 1]) for n in (10, 60)},
            })  # fmt: skip
    return rows


def _rounds_alone(match: Match, domain: str, plan: Plan, seeds: Sequence[int]) -> list[Outcome]:
    """The inputs of the reward in every round of a drafter that plays alone."""
    found = []
    for seed in seeds:
        [text] = match.environment.texts(domain, seed, match.tokens, match.longest)
        costs, stop_rules = match.environment.costs, stop_rules_of(match.plans)
        request = SimulatedRequest(text, match.plans, costs, stop_rules)
        while text.limit - request.position > plan.length:
            e = request.play(plan)
            a = e.drafted_alphas
            found.append(Outcome(plan, plan.length, a, a, a, e.num_drafted, e.num_accepted))
    return found


if __name__ == "__main__":
    report(__doc__, {
        "tables": printed_tables, "bandits": bandits, "router": router, "figure-2": lengths,
        "theorem-1": rewards, "theorem-3": region, "theorems-6-7-8": theorems, "eq-49": switching,
        "lemma-9": lemma_9,
    })  # fmt: skip
