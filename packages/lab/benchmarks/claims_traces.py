"""MetaSD's figures 6 and 7 on recorded traces: is block divergence stationary along an answer?

    python -m benchmarks claims_traces --trace replay.npz

Block divergence of drafts of 5 tokens, by tenth of the answer, greedy (figure 6) and sampled
(figure 7): mean and standard deviation over traces and drafters, and by how much the mean of an
answer's last third differs from its first, over answers. Intervals are 95%, over answers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from shared.results import save

LENGTH, PARTS = 5, 10


def main() -> None:
    """Read, average, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with np.load(options.trace) as trace:
        alphas, temperatures = np.clip(trace["gam"].astype(float), 0.0, 1.0), trace["temp"]
    positions = alphas.shape[1] // LENGTH * LENGTH
    blocks = alphas[:, :positions].reshape(len(alphas), -1, LENGTH, alphas.shape[2]).mean(axis=2)
    found = {}
    for temperature in np.unique(temperatures):
        mine = blocks[temperatures == temperature]  # [n, blocks, drafters]
        tenths = np.array_split(mine, PARTS, axis=1)
        third = mine.shape[1] // 3
        drift = mine[:, -third:].mean(axis=(1, 2)) - mine[:, :third].mean(axis=(1, 2))
        half = 1.96 * drift.std(ddof=1) / np.sqrt(len(drift))
        found[f"T = {temperature:g}"] = {
            "answers": len(mine), "mean": [round(float(t.mean()), 3) for t in tenths],
            "sd": [round(float(t.std()), 3) for t in tenths],
            "last third over first": [round(float(drift.mean()), 3), round(float(half), 3)],
            "an answer's own drift, sd": round(float(drift.std(ddof=1)), 3),
        }  # fmt: skip
    save(options.out, found)


if __name__ == "__main__":
    main()
