"""Baselines of the papers that the simulator runs: all drafters at once, and a prompt router."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.bandits.base import IndexPolicy
from draftwise.bandits.simple import FixedPlan
from draftwise.checks import whole
from draftwise.files import TRACE_BYTES, local_path, numbered_lines, strict_json
from draftwise.types import Floats, Ints, Plan


class DraftAll(IndexPolicy):
    """Play all plans at once: a baseline for the cost of drafting and verifying everything.

    Source: MetaSD, section 4.2 (DraftALL, table 5): all drafters draft in each round, the best
    candidate is kept, and verification grows linearly with their number. Differs: a decision names
    one plan, so the simulator, which alone plays it, drafts every plan: the emitted tokens are
    those of the best draft, the seconds those of all drafts.
    """

    def best(self) -> int:
        return 0  # represents all plans


def read_examples(
    path: Path | str, num_plans: int, plans: Sequence[Plan] | None
) -> tuple[list[str], list[int]]:
    """Read training texts and their plan indices from a file with one JSON object per line.

    A line has ``text`` (or ``prompt``) and either ``plan``, an index, or ``drafter``, a name that
    selects the first of ``plans`` with that drafter. Empty lines are skipped. Errors: ValueError
    for an unreadable file, a file without examples, or an invalid line, with its number.
    """
    try:
        lines = numbered_lines(local_path(path), TRACE_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"examples {path}: {why}") from error
    found = []
    for number, line in lines:
        try:
            found.append(read_example(line, num_plans, plans))
        except ValueError as error:
            raise ValueError(f"examples {path}, line {number}: {error}") from error
    if not found:
        raise ValueError(f"examples {path}: it holds no example")
    return [text for text, _ in found], [plan for _, plan in found]


def read_example(line: str, num_plans: int, plans: Sequence[Plan] | None) -> tuple[str, int]:
    fields = strict_json(line)
    if not isinstance(fields, dict) or len(fields) != 2:
        raise ValueError('it must be an object of "text" or "prompt" and "plan" or "drafter" alone')
    text = fields[_one_of(fields, "text", "prompt")]
    if not isinstance(text, str):
        raise ValueError(f"its text is {text!r}, which is not a string")
    if _one_of(fields, "plan", "drafter") == "plan":
        plan = fields["plan"]
        if type(plan) is not int or not 0 <= plan < num_plans:
            last = num_plans - 1
            raise ValueError(f"plan {plan!r} is not one of the {num_plans} plans 0..{last}")
        return text, plan
    if plans is None:
        raise ValueError('drafters have no names here: write "plan", a number')
    drafter, names = fields["drafter"], [plan.drafter for plan in plans]
    if drafter not in names:
        known = ", ".join(dict.fromkeys(names))
        raise ValueError(f"unknown drafter {drafter!r}; the drafters are: {known}")
    return text, names.index(drafter)


def _one_of(fields: Mapping[str, Any], first: str, second: str) -> str:
    if (first in fields) == (second in fields):
        raise ValueError(f'it must have "{first}" or "{second}"; it has {", ".join(fields)}')
    return first if first in fields else second


_MOST_CELLS = 16_384  # maximum cells of a plan's table, 128 KB: a request may set their number


def trigram_cells(text: str, num_cells: int) -> Ints:
    """The hash cells of the trigrams of a text's UTF-8 bytes."""
    raw = text.encode("utf-8", "replace")
    grams = [zlib.crc32(raw[i : i + 3]) % num_cells for i in range(max(len(raw) - 2, 0))]
    return np.array(grams, dtype=np.int64)


def naive_bayes_scores(counts: Floats, cells: Ints) -> Floats:
    """[K] log-likelihood of a text's cells under each plan's counts [K, C]; add-one smoothing."""
    totals = counts.sum(axis=1) + counts.shape[1]
    scores: Floats = np.log(counts[:, cells] + 1.0).sum(axis=1) - len(cells) * np.log(totals)
    return scores


class Router(FixedPlan):
    """Always play the plan that a prompt classifier picked: the offline baseline.

    Source: the static routers of MetaSD (section 4.3, BERT) and HedgeSpec (section 4.5).
    Update: none within a request. ``fit`` counts byte trigrams of labelled prompts (when
        constructed, if ``examples`` names a JSONL file: ``read_examples``); ``route`` picks by
        naive Bayes among the plans with examples, for the request's prompt when constructed.
        Without any examples, ``plan`` is played.
    Differs: the papers fine-tune BERT; this classifier needs only numpy.
    State: the plan; trigram counts float64[K, num_cells], num_cells 1 to 16,384; rounds chosen.
    Cost: O(1) a round; ``route`` O(K T) for T bytes. Errors: as ``FixedPlan``, as
        ``read_examples``, and ValueError if texts and plans differ in number.
    """

    def __init__(
        self, num_plans: int, plan: int = 0, num_cells: int = 1024,
        examples: Path | str | None = None, plans: Sequence[Plan] | None = None,
        prompt: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_plans, plan)
        self._num_cells = whole("num_cells", num_cells, 1, _MOST_CELLS)
        self._counts: Floats = np.zeros((num_plans, self._num_cells))
        if examples is not None:
            self.fit(*read_examples(examples, num_plans, plans))
        if prompt is not None:
            self.route(prompt())

    def fit(self, texts: Sequence[str], plans: Sequence[int]) -> None:
        """Fit the classifier to prompts and the best plan of each, replacing any earlier fit."""
        counts = np.zeros_like(self._counts)
        for text, plan in zip(texts, plans, strict=True):
            np.add.at(counts[plan], trigram_cells(text, self._num_cells), 1.0)
        self._counts = counts

    def route(self, prompt: str) -> int:
        """Classify a prompt; set and return its plan. Without a fit, the plan stays unchanged."""
        is_known = self._counts.any(axis=1)
        if is_known.any():
            scores = naive_bayes_scores(self._counts, trigram_cells(prompt, self._num_cells))
            # To a plan without examples all text is equally likely: odd text would select it.
            self._plan = int(np.where(is_known, scores, -np.inf).argmax())
        return self._plan
