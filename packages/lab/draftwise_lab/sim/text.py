"""One text with every drafter's acceptance along it, drawn before any policy plays.

All randomness is drawn here by position, from the environment's random stream, so all policies see
the same text, the same end and the same coins. This is exact: a drafted token at a position is
verified at most once, because the round continues past the position or ends there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from draftwise.protocols import StopRule
from draftwise.types import Bools, DraftStep, Floats, Ints, Scores

PROMPT_TOKENS = 16
"""Prompt tokens before position 0 of the text; drafters may be scored on all of them."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A retrieval drafter's proposals at each position of the text. num: [P] tokens proposed, 0 =
    no match. matches: [P] length of the suffix match. alphas: [P, J] the target's probability of
    the token proposed at depth j. hits: [P, J] whether that token equals the text's token."""

    num: Ints
    matches: Ints
    alphas: Floats
    hits: Bools


@dataclass(frozen=True, slots=True)
class Track:
    """One drafter along one text of P positions.

    alphas, ratios: [P] as in ``Scores``. runs: [P] accepted tokens of an unlimited draft that
    starts at the position. prompt: [at most 16] alphas on the last prompt tokens. max_probs,
    entropies, margins: [P] statistics of q at each position, NaN where unknown, which stop rules
    read. retrieval: None for a model drafter. prompt_matches: a retrieval drafter's match lengths
    for ``prompt``.
    """

    alphas: Floats
    ratios: Floats
    runs: Ints
    prompt: Floats = field(default_factory=lambda: np.zeros(0))
    max_probs: Floats | None = None
    entropies: Floats | None = None
    margins: Floats | None = None
    retrieval: Retrieval | None = None
    prompt_matches: Ints | None = None

    def num_drafted(self, start: int, most: int, length: int, stop_rule: StopRule | None) -> int:
        """Number of tokens drafted from ``start``: at most ``most``, limited by the proposal and by
        the rule (None = the whole length)."""
        if self.retrieval is not None:
            most = min(most, int(self.retrieval.num[start]))
        if stop_rule is None:
            return most
        num = 0
        while num < most and stop_rule.should_continue(self._step(start, num, length)):
            num += 1
        return num

    def num_accepted(self, start: int, num_drafted: int) -> int:
        """Number of drafted tokens that verification accepts."""
        return min(int(self.runs[start]), num_drafted)

    def drafted_alphas(self, start: int, num_drafted: int) -> Floats:
        """[num_drafted] alpha at every drafted position, including the rejected tail."""
        if self.retrieval is not None:
            return self.retrieval.alphas[start, :num_drafted]
        return self.alphas[start : start + num_drafted]

    def scores(self, start: int, end: int) -> Scores:
        """Scores at positions ``start`` to ``end`` - 1; prompt positions are below 0."""
        place, first = start + PROMPT_TOKENS, max(start, 0)
        alphas, ratios = self.alphas[first:end], self.ratios[first:end]
        if start < 0:
            prompt = self.prompt[start:]
            alphas, ratios = np.concatenate([prompt, alphas]), np.concatenate([prompt, ratios])
        matches = None if self.retrieval is None else self.retrieval.matches[first:end]
        return Scores(place, alphas, ratios, matches)

    def prompt_scores(self) -> Scores | None:
        """Scores on the last prompt tokens; None if not recorded."""
        first = PROMPT_TOKENS - len(self.prompt)
        made = Scores(first, self.prompt, self.prompt, self.prompt_matches)
        return made if len(self.prompt) else None

    def _step(self, start: int, num: int, length: int) -> DraftStep:
        if num == 0:
            return DraftStep(0, length)
        if self.retrieval is not None:
            return DraftStep(num, length, 1.0, 1.0, 0.0, 1.0)
        last = start + num - 1
        top, entropy, margin = (
            _at(values, last) for values in (self.max_probs, self.entropies, self.margins)
        )
        before = _at(self.entropies if num > 1 else None, last - 1)
        return DraftStep(num, length, top, top, entropy, margin, before)


@dataclass(frozen=True, slots=True)
class Text:
    """One text, drawn in full before any policy plays.

    limit: tokens that the engine may emit; length: tokens until the end that the target chooses
    (EOS included), at most ``limit``. batch_size: rows that run together, on which costs depend.
    tracks: by drafter, each at least ``limit`` + longest draft positions long. prompt_length:
    tokens before position 0, which a drafter prefills before its first draft.
    """

    name: str
    limit: int
    length: int
    tracks: Mapping[str, Track]
    batch_size: int = 1
    prompt_length: int = PROMPT_TOKENS


def _at(values: Floats | None, position: int) -> float:
    return float("nan") if values is None else float(values[position])


def runs_of(hits: Bools) -> Ints:
    """[P] length of the run of consecutive hits that starts at each position.

    >>> runs_of(np.array([True, True, False, True])).tolist()
    [2, 1, 0, 1]
    """
    places = np.arange(len(hits))
    misses = np.where(hits, len(hits), places)
    runs: Ints = np.minimum.accumulate(misses[::-1])[::-1] - places
    return runs


def bernoulli_track(alphas: Floats, rng: np.random.Generator, prompt: Floats) -> Track:
    """A drafter defined by acceptance probabilities alone: its ratios are its alphas. Such a
    drafter exists: q = alpha p on the tokens that the target emits, and the rest of its mass where
    p is 0. Then alpha is both the overlap and ``q/p`` of every realised token."""
    return Track(alphas, alphas, runs_of(rng.random(len(alphas)) < alphas), prompt)
