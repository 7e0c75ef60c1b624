"""What became known of each drafter, by position of the text, for values that look ahead."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from draftwise.types import Evidence, Floats


class Ledger:
    """The alphas and ratios of every drafter, from the oldest position that is still asked for.

    State: by drafter, (alpha, ratio) by position; ``ends``, the position behind the last scored.

    >>> from draftwise.types import PLAIN, Scores
    >>> ledger = Ledger(["a"])
    >>> ledger.note(Evidence(PLAIN, 0, 0, {"a": Scores(7, np.array([0.5, 0.25]), np.ones(2))}))
    >>> ledger.run("a", 8, 4)[0].tolist(), ledger.ends
    ([0.25], {'a': 9})
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.ends = dict.fromkeys(names, 0)
        self._pairs: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in self.ends}
        self._low = 0

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def note(self, evidence: Evidence) -> None:
        """Write the new alphas down by position."""
        for name in self._pairs.keys() & evidence.scores.keys():
            scores, known = evidence.scores[name], self._pairs[name]
            pairs = zip(scores.alphas.tolist(), scores.ratios.tolist(), strict=True)
            for position, pair in enumerate(pairs, scores.start):
                if position >= self._low:
                    known[position] = pair
            self.ends[name] = max(self.ends[name], scores.start + len(scores.alphas))

    def run(self, name: str, start: int, num: int) -> tuple[Floats, Floats]:
        """alphas and ratios of the positions from ``start`` on that are known without a gap."""
        found, pairs = [], self._pairs[name]
        for position in range(start, start + num):
            if position not in pairs:
                break
            found.append(pairs[position])
        columns = np.array(found, dtype=np.float64).reshape(len(found), 2)
        return columns[:, 0], columns[:, 1]

    def forget(self, low: int) -> None:
        """Positions before ``low`` are asked for no more."""
        for known in self._pairs.values():
            for position in range(self._low, low):
                known.pop(position, None)
        self._low = max(self._low, low)
