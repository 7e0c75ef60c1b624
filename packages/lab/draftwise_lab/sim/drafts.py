"""Drafts of a simulated round: by one drafter, or mixed, and what verification makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from draftwise.protocols import Mixer, StopRule
from draftwise.types import NONE, PLAIN, DraftStep, Floats, Plan
from draftwise_lab.sim.text import Text, Track

MIXED = "mixed"
"""The rule in the plan of a draft that several drafters wrote."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """One draft and its fate.

    plan: as it was played. writers: of each token. alphas: [num_drafted]. caller: the LM
    drafter among the writers, or none. confidences: as in ``Evidence``.
    """

    plan: Plan
    writers: tuple[str, ...]
    num_accepted: int
    alphas: Floats
    caller: str = NONE
    confidences: tuple[float, ...] = ()

    @property
    def num_drafted(self) -> int:
        """Tokens of the draft."""
        return len(self.writers)

    @property
    def num_steps(self) -> int:
        """Forwards of the caller: one for each token that it wrote."""
        return self.writers.count(self.caller)

    @property
    def num_fed(self) -> int:
        """Tokens of the draft that the caller read: all before the last that it wrote."""
        places = [place for place, name in enumerate(self.writers) if name == self.caller]
        return places[-1] if places else 0


def draft(text: Text, plan: Plan, start: int, guides: Mapping[str, StopRule]) -> Drafted:
    """A draft of one drafter from ``start`` on, as far as its rule goes on."""
    if plan.drafter == NONE:
        return Drafted(plan, (), 0, np.zeros(0))
    track = text.tracks[plan.drafter]
    most = min(plan.length, text.limit - start - 1)
    num = track.num_drafted(start, most, plan.length, guides.get(plan.rule))
    caller = plan.drafter if track.retrieval is None and num else NONE
    alphas = track.drafted_alphas(start, num)
    return Drafted(plan, (plan.drafter,) * num, track.num_accepted(start, num), alphas, caller)


def can_mix(text: Text, mixer: Mixer | None) -> bool:
    """Whether a mixer's drafts can be played: its drafter's confidences are known."""
    track = text.tracks.get(mixer.drafter) if mixer is not None else None
    return track is not None and track.retrieval is None and track.max_probs is not None


def draft_mixed(text: Text, mixer: Mixer, start: int) -> Drafted:
    """A draft whose mixer names each token's writer before it, as in the engine.

    Differs from it: behind a token that will be rejected, matches, confidences and alphas are those
    of the verified text.
    """
    length = min(mixer.length, text.limit - start - 1)
    retrieving = {name: t.retrieval for name, t in text.tracks.items() if t.retrieval is not None}
    writers: list[str] = []
    alphas: list[float] = []
    confidences: list[float] = []
    hits: list[bool] = []
    step = DraftStep(0, length)
    while len(writers) < length:
        place = start + len(writers)
        matches = {name: int(found.matches[place]) for name, found in retrieving.items()}
        writer = mixer.pick(step, matches)
        if writer is None:
            break
        confidence, hit, alpha = _token(text.tracks[writer], place)
        writers.append(writer)
        alphas.append(alpha)
        confidences.append(confidence)
        hits.append(hit)
        step = DraftStep(len(writers), length, max_prob=confidence)
    accepted = hits.index(False) if False in hits else len(hits)
    caller = mixer.drafter if mixer.drafter in writers else NONE
    plan, found = _as_played(writers), tuple(confidences)
    return Drafted(plan, tuple(writers), accepted, np.array(alphas), caller, found)


def _token(track: Track, place: int) -> tuple[float, bool, float]:
    """A drafter's token at a position: its confidence (NaN if copied), whether it is accepted, and
    its alpha."""
    if track.retrieval is not None:
        found = track.retrieval
        return float("nan"), bool(found.hits[place, 0]), float(found.alphas[place, 0])
    assert track.max_probs is not None
    return float(track.max_probs[place]), bool(track.runs[place]), float(track.alphas[place])


def _as_played(writers: list[str]) -> Plan:
    """The plan of a mixed draft, as the engine records it: the main writer, and how far."""
    found = Counter(writers).most_common()
    if not found:
        return PLAIN
    return Plan(found[0][0], len(writers), "fixed" if len(found) == 1 else MIXED)
