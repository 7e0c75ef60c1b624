"""Lines and rising steps through what was measured: the arithmetic of the meter."""

from __future__ import annotations

import numpy as np

from draftwise.types import Floats


def above_zero(features: Floats) -> Floats:
    """[5] least-squares weights with ``features @ weights = 1``; a negative one is left out."""
    used = [0, 1, 2, 3, 4]
    while True:
        found, *_ = np.linalg.lstsq(features[:, used], np.ones(len(features)), rcond=None)
        if (found >= -1e-12).all() or len(used) <= 1:
            break
        used = [column for column, weight in zip(used, found, strict=True) if weight >= -1e-12]
    weights = np.zeros(5)
    weights[used] = found.clip(0)
    return weights


def rising(line: Floats, cells: Floats) -> tuple[Floats, Floats]:
    """Of one class of requests: drafted tokens, ascending, and how far seconds lie off the line.

    cells: [4, n] rows, drafted tokens, seconds over those of the line, steps that they rest on.
    No cell stands below one with fewer drafted tokens: such neighbours share their mean (pool
    adjacent violators, Ayer et al. 1955), or a cell that happened to look cheap would be chosen
    for that, and drafts that bring next to nothing be verified for free.

    >>> line, rows = np.array([1.0, 0, 0.1, 0, 0]), np.ones(3)
    >>> cells = np.stack([rows, np.array([0.0, 1, 2]), np.array([1.0, 0.8, 1.0]), rows])
    >>> (rising(line, cells)[1] * [1.0, 1.1, 1.2]).round(2).tolist()
    [0.94, 0.94, 1.2]
    """
    rows, extra, ratios, counts = cells[:, np.argsort(cells[1], kind="stable")]
    believed = line[0] + line[1] * np.average(rows, weights=counts) + line[2] * extra
    pools: list[tuple[float, float, int]] = []  # seconds, steps, cells
    for seconds, count in zip(believed * ratios, counts, strict=True):
        pool = float(seconds), float(count), 1
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            steps = before[1] + pool[1]
            mean = (before[0] * before[1] + pool[0] * pool[1]) / steps
            pool = mean, steps, before[2] + pool[2]
        pools.append(pool)
    means = np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])
    return extra, means / np.maximum(believed, 1e-12)
