"""One way to stop drafts on one prompt: what it cost in forwards and seconds, and what it could."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.drafters.lm import LMDrafter
from draftwise.engine.records import Round
from draftwise.nn.model import CausalModel
from draftwise.presets import Preset
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError

MAX_LENGTH = 20
"""SpecDec++, section 5.1: no draft of a head is longer."""


@dataclass(frozen=True)
class Way:
    """One way to stop: after ``length`` tokens, or by a head at a threshold.

    about: what the head's config says of it (num_layers, w_rej, label, ...).
    """

    name: str
    length: int
    rule: str
    about: dict[str, Any]

    @property
    def is_fixed(self) -> bool:
        """Whether every draft has the same length."""
        return self.rule == "fixed"


def fixed_ways(lengths: Sequence[int]) -> list[Way]:
    """The baseline: one way for each length."""
    return [Way(f"K={length}", length, "fixed", {}) for length in lengths]


def head_ways(folders: Sequence[Path], thresholds: Sequence[float], lag: bool) -> list[Way]:
    """Each head at each threshold; ``lag`` judges one token late, as the released code does.

    Raises DraftwiseError for a folder without a head.
    """
    ways = []
    for folder in folders:
        try:
            about = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise DraftwiseError(f"there is no acceptance head in {folder}: {error}") from error
        name = f"{folder.name} " if len(folders) > 1 else ""
        more = ",lag=true" if lag else ""
        ways += [
            Way(f"{name}h={h:g}", MAX_LENGTH, f"head:{folder},h={h:g}{more}", {**about, "h": h})
            for h in thresholds
        ]
    return ways


@dataclass(frozen=True)
class Run:
    """One prompt answered one way: SpecDec++'s N, N_target, N_discarded, N_draft, and seconds.

    num_draft_forwards: forwards of the drafter; a head that stops behind a token has read it, and
    so has one more of them than tokens in its draft. oracle: |S| + 1, the target forwards of
    theorem 4.1. seconds: without the prompt's; of a batch its share.
    """

    way: str
    prompt: int
    num_tokens: int
    num_target: int
    num_drafted: int
    num_discarded: int
    num_draft_forwards: int
    seconds: float
    oracle: float


def oracle_forwards(rounds: Sequence[Round], drafter: str, num_tokens: int) -> float:
    """|S| + 1: the target forwards if it were known in advance where drafts are rejected.

    Source: SpecDec++, theorem 4.1, for greedy decoding: S are the positions of the answer at which
        the drafter, reading the target's own text, disagrees; stopping before each, nothing is
        discarded. Differs: with sampling |S| is the expected number of rejections along the
        sampled text, the sum of 1 - alpha, which the theorem does not cover; the few positions
        that no forward of the drafter reached (the last) count like the others.
    Assumes drafts as long as it takes, a drafter that is asked at every position, and, as the
    theorem does, that nothing but forwards costs.
    """
    alphas: dict[int, float] = {}
    for round_ in rounds:
        if (scores := round_.scores.get(drafter)) is not None:
            alphas.update(enumerate(scores.alphas.tolist(), scores.start))
    first = rounds[0].position
    seen = [1 - alpha for at, alpha in alphas.items() if at >= first]
    return (float(np.mean(seen)) * num_tokens if seen else float(num_tokens)) + 1


class Field:
    """A loaded pair on which every way is run; each way has speculators of its own."""

    def __init__(
        self, target: CausalModel, drafter: LMDrafter, ways: Sequence[Way], **options: Any
    ) -> None:
        self._target, self._drafter, self._options = target, drafter, options
        self._made = {way.name: self._speculator(way) for way in ways}

    def _speculator(self, way: Way) -> Speculator:
        # a wrapper of its own: only the ways that read hidden states pay for them
        own = CausalModel(self._drafter.model.module, self._drafter.model.name)
        drafter = LMDrafter(self._drafter.name, own, self._target, self._drafter.home)
        setting = Preset("fixed:0", "length", "bandit", (way.length,), rules=(way.rule,))
        return Speculator(self._target, None, [drafter], setting)

    def run(self, way: Way, prompts: Sequence[list[int]], first: int, seed: int) -> list[Run]:
        """Answer these prompts, the ``first`` and following ones, together."""
        seeds = [1000 * seed + first + i for i in range(len(prompts))]
        generation = self._made[way.name].start(
            list(prompts), seed=seeds, ignore_eos=True, **self._options
        )
        by_row: list[list[Round]] = [[] for _ in prompts]
        for round_ in generation:
            by_row[round_.request].append(round_)
        return [_summary(way, first + i, own, self._drafter.name) for i, own in enumerate(by_row)]


def _summary(way: Way, prompt: int, rounds: Sequence[Round], drafter: str) -> Run:
    num_tokens = sum(round_.num_emitted for round_ in rounds)
    drafted = sum(round_.num_drafted for round_ in rounds)
    seconds = sum(
        s / r.batch_size for r in rounds for phase, s in r.seconds.items() if phase != "prefill"
    )
    return Run(
        way=way.name,
        prompt=prompt,
        num_tokens=num_tokens,
        num_target=len(rounds),
        num_drafted=drafted,
        num_discarded=drafted - sum(round_.num_accepted for round_ in rounds),
        num_draft_forwards=drafted + _read_in_vain(way, rounds, num_tokens),
        seconds=seconds,
        oracle=oracle_forwards(rounds, drafter, num_tokens),
    )


def _read_in_vain(way: Way, rounds: Sequence[Round], num_tokens: int) -> int:
    """Rounds whose last token was read by a head that then stopped: a forward without a token."""
    if way.is_fixed or "lag=true" in way.rule:
        return 0
    left, found = num_tokens, 0
    for round_ in rounds:
        found += round_.num_drafted < min(way.length, left - 1)
        left -= round_.num_emitted
    return found
