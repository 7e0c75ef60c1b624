"""HedgeSpec's tables and figure 5a in the simulator, next to the printed numbers.

Drafters have the MATs of tables 1 and 6 (``hedgespec-llama``, ``hedgespec-qwen8b``); each answer
has 500 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from shared.claims import Row, played, report

from draftwise_lab.sim.match import averages
from draftwise_lab.sim.presets import DOMAINS, HEDGESPEC_LLAMA, HEDGESPEC_QWEN8B, PAPERS, setting

FULL, SKIPS = "panoramic:per_token=true", "panoramic:per_token=true,every=12,warmup=6,hybrid=6"
HEDGE = f"normalhedge/expected-length/{FULL}"
VARIANTS = {
    "HedgeSpec": HEDGE,
    "acceptance loss": f"normalhedge/acceptance/{FULL}",
    "Hedge": f"hedge/expected-length/{FULL}",
    "AdaNormalHedge": f"adanormalhedge/expected-length/{FULL}",
}
PRINTED = PAPERS["hedgespec"]["variants"]
LLAMA, QWEN = "hedgespec-llama", "hedgespec-qwen8b"


def games(preset: str, labels: Sequence[str], seeds: int, tokens: int = 500) -> dict[str, Row]:
    """Averages over domains by label, with MATs in ``by domain``."""
    world = setting(preset).make(None)
    found = played(world, labels, seeds, lengths=[8], tokens=tokens)
    return {
        label: row | {"by domain": [found[domain, label]["mat"] for domain in world.domains]}
        for label, row in averages(list(found.values())).items()
    }


def variants(seeds: int) -> list[Row]:
    """Tables 9 and 10: loss and update rule."""
    rows = []
    for preset, printed in PRINTED.items():
        found = games(preset, list(VARIANTS.values()), seeds)
        for name, label in VARIANTS.items():
            row = found[label]
            rows.append({
                "world": preset, "variant": name, "here": row["mat"], "ci95": row["ci95"],
                "paper": float(np.mean(printed[name])),
                "by domain": " ".join(f"{x:.2f}" for x in row["by domain"]),
            })  # fmt: skip
    return rows


def joint(seeds: int) -> list[Row]:
    """Table 8: one drafter trained on all domains against HedgeSpec, printed and simulated."""
    found = games(LLAMA, [HEDGE], seeds)[HEDGE]["by domain"]
    columns = DOMAINS, PAPERS["hedgespec"]["joint"], PRINTED[LLAMA]["HedgeSpec"], found
    names = ("domain", "joint (paper)", "HedgeSpec (paper)", "HedgeSpec, here")
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def router(seeds: int) -> list[Row]:
    """Table 4: a router that misroutes 90% of Math and 98% of MedQA at random."""
    printed = {
        (LLAMA, "Math"): (0.90, 5.28, 6.94), (LLAMA, "MedQA"): (0.98, 3.03, 5.56),
        (QWEN, "Math"): (0.90, 4.95, 7.12), (QWEN, "MedQA"): (0.98, 2.49, 6.04),
    }  # fmt: skip
    tables = {LLAMA: HEDGESPEC_LLAMA, QWEN: HEDGESPEC_QWEN8B}
    rows = []
    here = {preset: games(preset, [HEDGE], seeds)[HEDGE]["by domain"] for preset in tables}
    for (preset, domain), (wrong, theirs, hedge) in printed.items():
        column = DOMAINS.index(domain)
        mats = [mat[column] for name, mat in tables[preset].items() if name != "eagle"]
        others = (sum(mats) - max(mats)) / (len(mats) - 1)
        rows.append({
            "world": preset, "domain": domain, "misrouted": wrong,
            "router, here": 1.0 / ((1 - wrong) / max(mats) + wrong / others),
            "router (paper)": theirs, "HedgeSpec, here": here[preset][column],
            "HedgeSpec (paper)": hedge,
        })  # fmt: skip
    return rows


def regret(seeds: int) -> list[Row]:
    """Figure 5a and the long-reasoning remark: rounds lost to the best drafter by answer length."""
    labels = ["ucbspec", "exp3spec", HEDGE]
    rows = []
    for tokens in (125, 250, 500, 1000, 2000, 4000):
        found = games(LLAMA, labels, max(2, seeds * 500 // max(tokens, 500)), tokens)
        row: Row = {"tokens": tokens, "best drafter": found["best fixed plan"]["mat"]}
        for label in labels:
            name = label.partition("/")[0]
            row[f"{name} regret"], row[f"{name} MAT"] = found[label]["regret"], found[label]["mat"]
        rows.append(row)
    return rows


def delays(seeds: int) -> list[Row]:
    """Joulani's Algorithm 1 (copies, Theorem 4) and Algorithm 2 (the queue, Corollary 5)."""
    labels = {
        "queue (Algorithm 2)": HEDGE,
        "copies (Algorithm 1)": f"copies:normalhedge/expected-length/{FULL}",
        "queue, one vector a round": "normalhedge/expected-length/panoramic",
        "copies, one vector a round": "copies:normalhedge/expected-length/panoramic",
        "chunk-level, no delay": "normalhedge/expected-length/panoramic:delay=0",
    }
    return compared(labels, seeds, "reduction", "regret", "regret")


def tricks(seeds: int) -> list[Row]:
    """Appendix B.5: the hybrid loss, skipped scoring, and both; MAT and tokens per second."""
    labels = {
        "neither": HEDGE,
        "hybrid loss": f"normalhedge/expected-length/{FULL},hybrid=6",
        "skipped scoring": f"normalhedge/expected-length/{FULL},every=12,warmup=6",
        "both (the preset)": f"normalhedge/expected-length/{SKIPS}",
        "both, and updates skipped": f"batched:normalhedge/expected-length/{SKIPS}",
    }
    return compared(labels, seeds, "trick", "times plain", "speedup")


def compared(labels: Mapping[str, str], seeds: int, what: str, more: str, key: str) -> list[Row]:
    """MAT of each label by name, and ``key`` in the column ``more``."""
    found = games(LLAMA, list(labels.values()), seeds)
    rows = ((name, found[label]) for name, label in labels.items())
    return [{what: n, "MAT": row["mat"], "ci95": row["ci95"], more: row[key]} for n, row in rows]


if __name__ == "__main__":
    parts = (variants, joint, router, regret, delays, tricks)
    report(__doc__, {part.__name__: part for part in parts})
