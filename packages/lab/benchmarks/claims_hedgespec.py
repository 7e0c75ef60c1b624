"""HedgeSpec's tables and figure 5a in the simulator, next to the printed numbers.

Drafters have the MATs of tables 1 and 6 (``hedgespec-llama``, ``hedgespec-qwen8b``); answers have
500 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from shared.claims import Row, played, report

from draftwise_lab.sim import DOMAINS, HEDGESPEC_LLAMA, HEDGESPEC_QWEN8B, averages, setting

FULL, SKIPS = "panoramic:per_token=true", "panoramic:per_token=true,every=12,warmup=6,hybrid=6"
HEDGE = f"normalhedge/expected-length/{FULL}"
VARIANTS = {
    "HedgeSpec": HEDGE,
    "acceptance loss": f"normalhedge/acceptance/{FULL}",
    "Hedge": f"hedge/expected-length/{FULL}",
    "AdaNormalHedge": f"adanormalhedge/expected-length/{FULL}",
}
PRINTED = {  # tables 9 and 10
    "hedgespec-llama": {
        "HedgeSpec": (7.69, 7.69, 7.18, 7.10, 6.47, 5.88, 8.06),
        "acceptance loss": (7.62, 7.47, 7.02, 6.94, 6.44, 5.88, 8.08),
        "Hedge": (6.90, 6.67, 6.53, 6.19, 5.38, 4.68, 7.05),
        "AdaNormalHedge": (7.36, 7.30, 7.05, 6.66, 5.85, 5.40, 7.71),
    },
    "hedgespec-qwen8b": {
        "HedgeSpec": (6.32, 7.27, 5.66, 6.61, 6.08, 5.10, 7.52),
        "acceptance loss": (6.23, 7.00, 5.58, 6.58, 6.05, 5.00, 7.30),
        "Hedge": (5.85, 6.64, 5.13, 5.88, 5.47, 4.46, 7.01),
        "AdaNormalHedge": (6.26, 7.12, 5.57, 6.39, 5.94, 4.99, 7.40),
    },
}  # fmt: skip
JOINT = (7.03, 7.76, 6.63, 7.16, 6.22, 5.35, 7.39)  # table 8
LLAMA = "hedgespec-llama"


def games(preset: str, labels: Sequence[str], seeds: int, tokens: int = 500) -> dict[str, Row]:
    """Averages over domains by label, with ``by domain``."""
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
    """Table 8: one drafter trained on all domains, and HedgeSpec; printed and simulated."""
    found = games(LLAMA, [HEDGE], seeds)[HEDGE]["by domain"]
    paper = PRINTED[LLAMA]["HedgeSpec"]
    return [
        {"domain": domain, "joint (paper)": j, "HedgeSpec (paper)": p, "HedgeSpec, here": h}
        for domain, j, p, h in zip(DOMAINS, JOINT, paper, found, strict=True)
    ]


def router(seeds: int) -> list[Row]:
    """Table 4: a router that misroutes 90% of Math and 98% of MedQA at random."""
    printed = {
        (LLAMA, "Math"): (0.90, 5.28, 6.94), (LLAMA, "MedQA"): (0.98, 3.03, 5.56),
        ("hedgespec-qwen8b", "Math"): (0.90, 4.95, 7.12),
        ("hedgespec-qwen8b", "MedQA"): (0.98, 2.49, 6.04),
    }  # fmt: skip
    tables = {LLAMA: HEDGESPEC_LLAMA, "hedgespec-qwen8b": HEDGESPEC_QWEN8B}
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
    found = games(LLAMA, list(labels.values()), seeds)
    return [
        {"reduction": name, "MAT": found[label]["mat"], "ci95": found[label]["ci95"],
         "regret": found[label]["regret"]}
        for name, label in labels.items()
    ]  # fmt: skip


def tricks(seeds: int) -> list[Row]:
    """Appendix B.5: the hybrid loss, skipped scoring, and both; MAT and tokens per second."""
    labels = {
        "neither": HEDGE,
        "hybrid loss": f"normalhedge/expected-length/{FULL},hybrid=6",
        "skipped scoring": f"normalhedge/expected-length/{FULL},every=12,warmup=6",
        "both (the preset)": f"normalhedge/expected-length/{SKIPS}",
        "both, and updates skipped": f"batched:normalhedge/expected-length/{SKIPS}",
    }
    found = games(LLAMA, list(labels.values()), seeds)
    return [
        {"trick": name, "MAT": found[label]["mat"], "ci95": found[label]["ci95"],
         "times plain": found[label]["speedup"]}
        for name, label in labels.items()
    ]  # fmt: skip


if __name__ == "__main__":
    parts = (variants, joint, router, regret, delays, tricks)
    report(__doc__, {part.__name__: part for part in parts})
