"""Router: a classifier of the prompt picks the plan, once, before the request starts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from draftwise.checks import whole
from draftwise.policies.baselines.fixed import Fixed
from draftwise.policies.baselines.router_examples import read_examples
from draftwise.policies.parts.state import Fields, in_range
from draftwise.types import Floats, Ints, Plan

_MOST_CELLS = 16_384
"""Cells of a plan's table at most, 128 KB: a request may set their number."""


def trigram_cells(text: str, num_cells: int) -> Ints:
    """The cells of a text's character trigrams under a fixed hash.

    >>> len(trigram_cells("abcd", num_cells=16))
    2
    """
    raw = text.encode("utf-8", "replace")
    grams = [zlib.crc32(raw[i : i + 3]) % num_cells for i in range(max(len(raw) - 2, 0))]
    return np.array(grams, dtype=np.int64)


def naive_bayes_scores(counts: Floats, cells: Ints) -> Floats:
    """[K] log-likelihood of a text's cells under each plan's trigram counts [K, C], smoothed by 1.

    >>> naive_bayes_scores(np.array([[3.0, 0.0], [0.0, 3.0]]), np.array([1])).argmax()
    np.int64(1)
    """
    totals = counts.sum(axis=1) + counts.shape[1]
    scores: Floats = np.log(counts[:, cells] + 1.0).sum(axis=1) - len(cells) * np.log(totals)
    return scores


class Router(Fixed):
    """Play for ever the plan that a prompt classifier picked: the offline baseline.

    Source: the static routers of MetaSD (section 4.3, BERT) and HedgeSpec (section 4.5).
    Update: none within a request. ``fit`` counts character trigrams of labelled prompts (at once,
        if ``examples`` names a jsonl file: ``read_examples``), ``route`` picks by naive Bayes among
        the plans that have any; without them, ``plan`` is the pick.
    Differs: the papers fine-tune BERT; this needs numpy alone.
    Feedback: ignored (but checked).
    State: the plan; trigram counts float64[K, cells]; rounds chosen.
    Cost: O(1) a round; ``route`` O(K T) for T characters.
    Errors: ValueError if plan is not in 0 .. K-1, or texts and plans differ in number; for a line
        of the examples that does not parse, with its number.

    >>> router = Router(num_plans=2)
    >>> router.fit(["SELECT name FROM users", "def add(a, b): return a + b"], [0, 1])
    >>> router.route("SELECT id FROM orders"), router.choose().plan
    (0, 0)
    """

    KEPT: ClassVar[Fields] = {"plan": "_plan", "counts": "_counts", "round": "_round"}

    def __init__(
        self, num_plans: int, plan: int = 0, num_cells: int = 1024, examples: str | None = None,
        plans: Sequence[Plan] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_plans, plan)
        self._num_cells = whole("num_cells", num_cells, 1, _MOST_CELLS)
        self._counts: Floats = np.zeros((num_plans, self._num_cells))
        if examples is not None:
            self.fit(*read_examples(examples, num_plans, plans))

    def check_memory(self) -> None:
        """Counts of trigrams are not negative."""
        super().check_memory()
        in_range("counts", self._counts, 0)

    def fit(self, texts: Sequence[str], plans: Sequence[int]) -> None:
        """Learn from prompts which plan was best for each; forgets what it knew."""
        counts = np.zeros_like(self._counts)
        for text, plan in zip(texts, plans, strict=True):
            np.add.at(counts[plan], trigram_cells(text, self._num_cells), 1.0)
        self._counts = counts

    def route(self, prompt: str) -> int:
        """Pick the plan of this prompt's request, and return it; the present one if not fitted."""
        is_known = self._counts.any(axis=1)
        if is_known.any():
            scores = naive_bayes_scores(self._counts, trigram_cells(prompt, self._num_cells))
            # Under a plan without examples all text is alike, which makes odd text likely.
            self._plan = int(np.where(is_known, scores, -np.inf).argmax())
        return self._plan
