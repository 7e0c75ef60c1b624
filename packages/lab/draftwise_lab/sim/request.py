"""One simulated request, which plays plans on a text as the engine would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftwise.protocols import Mixer, StopRule
from draftwise.types import NONE, PLAIN, DraftStep, Floats, Plan, RoundFacts, Scores
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.text import PROMPT_TOKENS, Text, Track

MIXED = "mixed"
"""The rule in the recorded plan of a draft that several drafters wrote."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """One draft and its outcome. plan: as recorded. writers: the drafter of each token. alphas:
    [num_drafted]. caller: the LM drafter among the writers, or none. confidences: as in
    ``RoundFacts``."""

    plan: Plan
    writers: tuple[str, ...]
    num_accepted: int
    alphas: Floats
    caller: str = NONE
    confidences: tuple[float, ...] = ()

    @property
    def num_drafted(self) -> int:
        return len(self.writers)

    @property
    def num_steps(self) -> int:
        """Forwards of the caller: one per token that it wrote."""
        return self.writers.count(self.caller)

    @property
    def num_fed(self) -> int:
        """Draft tokens that the caller processed: all before the last one that it wrote."""
        places = [place for place, name in enumerate(self.writers) if name == self.caller]
        return places[-1] if places else 0


def draft(text: Text, plan: Plan, start: int, stop_rules: Mapping[str, StopRule]) -> Drafted:
    """Draft with one drafter from ``start`` until the plan's rule ends the draft."""
    if plan.drafter == NONE:
        return Drafted(plan, (), 0, np.zeros(0))
    track = text.tracks[plan.drafter]
    most = min(plan.length, text.limit - start - 1)
    num = track.num_drafted(start, most, plan.length, stop_rules.get(plan.rule))
    caller = plan.drafter if track.retrieval is None and num else NONE
    alphas = track.drafted_alphas(start, num)
    return Drafted(plan, (plan.drafter,) * num, track.num_accepted(start, num), alphas, caller)


def can_mix(text: Text, mixer: Mixer | None) -> bool:
    """Whether a mixer's drafts can be simulated, that is, its drafter's confidences are known."""
    track = text.tracks.get(mixer.drafter) if mixer is not None else None
    return track is not None and track.retrieval is None and track.max_probs is not None


def draft_mixed(text: Text, mixer: Mixer, start: int) -> Drafted:
    """Draft with a mixer that chooses each token's writer in advance, as in the engine. Differs:
    after a token that will be rejected, matches, confidences and alphas are those of the verified
    text."""
    length = min(mixer.length, text.limit - start - 1)
    retrieving = {name: t.retrieval for name, t in text.tracks.items() if t.retrieval is not None}
    written: list[tuple[str, float, bool, float]] = []
    step = DraftStep(0, length)
    while len(written) < length:
        place = start + len(written)
        matches = {name: int(found.matches[place]) for name, found in retrieving.items()}
        writer = mixer.pick(step, matches)
        if writer is None:
            break
        written.append((writer, *_token(text.tracks[writer], place)))
        step = DraftStep(len(written), length, max_prob=written[-1][1])
    writers, confidences, hits, alphas = zip(*written, strict=True) if written else [()] * 4
    accepted = hits.index(False) if False in hits else len(hits)
    caller = mixer.drafter if mixer.drafter in writers else NONE
    return Drafted(_as_played(writers), writers, accepted, np.array(alphas), caller, confidences)


def _token(track: Track, place: int) -> tuple[float, bool, float]:
    """A drafter's token at a position: its confidence (NaN if copied), whether it is accepted, and
    its alpha."""
    if track.retrieval is not None:
        found = track.retrieval
        return float("nan"), bool(found.hits[place, 0]), float(found.alphas[place, 0])
    assert track.max_probs is not None
    return float(track.max_probs[place]), bool(track.runs[place]), float(track.alphas[place])


def _as_played(writers: Sequence[str]) -> Plan:
    """The plan that the engine records for a mixed draft: main writer and length."""
    found = Counter(writers).most_common()
    if not found:
        return PLAIN
    return Plan(found[0][0], len(writers), "fixed" if len(found) == 1 else MIXED)


PROBE_TOKENS = 32
"""Tokens at the end of a text that the engine processes in prompt scoring or in a probe."""

LEAST_PIECE = 32
"""Most missed tokens that the first draft step feeds; more take a separate forward before it."""

GLANCE_WEIGHT = 0.25
"""Weight that the engine gives to alphas from such a short context."""


class Reading:
    """The KV caches of a request's LM drafters, as positions of the text.

    A forward over n tokens costs one draft step plus the drafter's reading seconds for n - 1
    tokens. The last token of a text is always processed again, as in the engine. State: by drafter,
    the position up to which its cache covers the text; prompt positions are below 0.
    """

    def __init__(
        self, prompt_length: int, step_s: Mapping[str, float], read_s: Mapping[str, float]
    ) -> None:
        self._step_s, self._read_s = step_s, read_s
        self._ends = dict.fromkeys(step_s, -prompt_length)

    def __contains__(self, name: str) -> bool:
        return name in self._ends

    def draft_s(self, name: str, position: int, own: int, copied: int = 0) -> float:
        """Seconds of a draft after ``position`` tokens. own: draft steps; the first also feeds the
        missed tokens unless they are many. copied: other drafters' tokens, which are also fed."""
        missed = position - self._ends[name] - 1
        seconds = own * self._step_s[name] + (missed + copied) * self._read_s[name]
        if missed > LEAST_PIECE:
            seconds += self._step_s[name] - self._read_s[name]
        return seconds

    def keep(self, name: str, start: int, fed: int, accepted: int, position: int) -> None:
        """Roll back to ``position`` after verification of a draft of which ``fed`` tokens were
        processed."""
        self._ends[name] = min(start + min(fed, accepted), position - 1)

    def catch_up(self, name: str, position: int) -> float:
        """Seconds of processing all missed tokens before scoring; 0 if there are none."""
        missed = position - self._ends[name] - 1
        self._ends[name] = max(self._ends[name], position - 1)
        return self._step_s[name] + (missed - 1) * self._read_s[name] if missed > 0 else 0.0

    def probe(self, name: str, position: int) -> tuple[float, int, float]:
        """Seconds of a probe at the text's end, the number of positions scored, and their weight.

        If more tokens were missed than a probe processes, the cache does not change.

        >>> reading = Reading(100, {"a": 1.0}, {"a": 0.1})
        >>> reading.probe("a", 0), reading.probe("a", 10)
        ((4.1, 32, 0.25), (4.1, 32, 0.25))
        """
        missed = position - self._ends[name] - 1
        if missed > PROBE_TOKENS:
            seconds = self._step_s[name] + (PROBE_TOKENS - 1) * self._read_s[name]
            return seconds, PROBE_TOKENS, GLANCE_WEIGHT
        return self.catch_up(name, position), max(missed, 0), 1.0


MAX_BACKLOG = 64
"""Verified positions whose p the engine keeps: a drafter that catches up is scored on no more."""


class SimulatedRequest:
    """The engine's side of one request, with known costs.

    Differs from the engine: after a draft's first rejection, alphas (and the inputs of stop rules
    and mixers) are those of the verified text, because the draft's own continuation is not
    recorded. seconds: of the request so far, including scoring, catching up and probes.
    """

    def __init__(
        self,
        text: Text,
        plans: Sequence[Plan],
        costs: CostTable,
        stop_rules: Mapping[str, StopRule],
    ) -> None:
        self._text, self._plans, self._stop_rules = text, list(plans), stop_rules
        longest = max(plan.length for plan in plans)
        self._costs = costs.at(text.batch_size, list(text.tracks), longest)
        self._target_s: list[float] = self._costs.target_s.tolist()
        self._score_share = costs.score_share
        self._retrieval = {n: t.retrieval for n, t in text.tracks.items() if t.retrieval}
        self._ends = {
            name: 0 if name in self._retrieval else -len(track.prompt)
            for name, track in text.tracks.items()
        }
        steps = {n: s for n, s in self._costs.draft_s.items() if n not in self._retrieval}
        reads = {name: costs.read_share * step_s for name, step_s in steps.items()}
        self._reading = Reading(text.prompt_length, steps, reads)
        self.position, self.seconds, self.num_rounds = 0, 0.0, 0

    @property
    def retrieving(self) -> Collection[str]:
        return self._retrieval

    @property
    def is_done(self) -> bool:
        return self.position >= self._text.length

    def prompt_evidence(self, drafters: Collection[str] | None = None) -> RoundFacts:
        """Round 0: scores of these drafters (None = all) on the end of the prompt, and all costs.
        Probing a model costs seconds; retrieval is free."""
        names = self._text.tracks if drafters is None else drafters
        found = {name: self._text.tracks[name].prompt_scores() for name in names}
        scores = {name: s for name, s in found.items() if s is not None}
        for name in scores.keys() - self._retrieval.keys():
            self._ends[name] = 0
            self.seconds += self._reading.probe(name, 0)[0]
        return RoundFacts(
            PLAIN, 0, 0, scores, emitted_start=PROMPT_TOKENS, costs=self._costs,
            matches=self._matches(), num_left=self._text.limit,
        )  # fmt: skip

    def play(
        self, plan: Plan, *, scores_everyone: bool = False, mixer: Mixer | None = None,
        looks: Collection[str] = (),
    ) -> RoundFacts:  # fmt: skip
        """Play one round (draft, verify, commit) and return its evidence.

        scores_everyone: score every drafter on the verified text, at the cost of its forward.
        mixer: chooses each token's writer, if the text has the confidences. looks: drafters to
        probe on the text's end after the round, unless the text is complete.
        """
        start, made = self.position, self._draft(plan, mixer)
        if made.num_drafted and made.plan.rule in self._stop_rules:
            self._stop_rules[made.plan.rule].learn(made.num_drafted, made.num_accepted)
        seconds = self._round_s(made, start)
        self.position = min(start + made.num_accepted + 1, self._text.length)
        self.num_rounds += 1
        scores = {} if self.is_done else self._looks(looks)
        scores |= self._scores(made, start, scores_everyone)
        if made.num_steps:
            self._reading.keep(made.caller, start, made.num_fed, made.num_accepted, self.position)
        self.seconds += seconds
        return RoundFacts(
            made.plan, made.num_drafted, made.num_accepted, scores,
            made.alphas, start + PROMPT_TOKENS, seconds, self._costs,
            self._matches(), confidences=made.confidences,
            num_left=self._text.limit - self.position,
        )  # fmt: skip

    def play_all(self, plans: Sequence[Plan]) -> RoundFacts:
        """Play one round in which every plan drafts and is verified in turn; keep the best draft.
        Returns its evidence with the seconds of all drafts. Differs: for sampled drafts, branches
        of one tree would accept slightly fewer tokens than the best of independent drafts."""
        drafts = [self._draft(plan) for plan in plans]
        best = max(range(len(plans)), key=lambda index: drafts[index].num_accepted)
        others_s = sum(
            self._round_s(made, self.position) for index, made in enumerate(drafts) if index != best
        )
        evidence = self.play(plans[best])
        self.seconds += others_s
        return replace(evidence, seconds=evidence.seconds + others_s)

    def _draft(self, plan: Plan, mixer: Mixer | None = None) -> Drafted:
        if mixer is not None and plan.tree is None and can_mix(self._text, mixer):
            return draft_mixed(self._text, mixer, self.position)
        return draft(self._text, plan, self.position, self._stop_rules)

    def _round_s(self, made: Drafted, start: int) -> float:
        """Seconds of a round: its draft, including catching up, and its verification."""
        steps, fed = made.num_steps, made.num_fed
        copies = [self._costs.draft_s[name] for name in made.writers if name in self._retrieval]
        seconds = self._target_s[made.num_drafted] + sum(copies)
        if not steps:
            return seconds
        return seconds + self._reading.draft_s(made.caller, start, steps, fed + 1 - steps)

    def _looks(self, names: Collection[str]) -> dict[str, Scores]:
        """Scores of the probed drafters on the text's end; each probe costs a short forward."""
        found = {}
        for name in names:
            if name not in self._reading:
                continue
            seconds, num, weight = self._reading.probe(name, self.position)
            self.seconds += seconds
            start = max(self._ends[name], self.position - num)
            if start < self.position:
                scores = self._text.tracks[name].scores(start, self.position)
                found[name] = replace(scores, weight=weight)
                self._ends[name] = self.position
        return found

    def _scores(self, made: Drafted, start: int, everyone: bool) -> dict[str, Scores]:
        """Scores of the drafter up to the first rejection, of retrieval, and of all others if
        ``everyone``."""
        found = {}
        reached = start + min(made.num_fed, made.num_accepted) + 1
        for name, track in self._text.tracks.items():
            end = self.position
            if everyone and name not in self._retrieval:
                if name != made.caller:  # only drafters that did not draft need a scoring forward
                    self.seconds += self._score_share * self._reading.catch_up(name, end)
            elif name == made.caller:
                end = min(reached, end)
            elif name not in self._retrieval:
                continue
            first = max(self._ends[name], self.position - MAX_BACKLOG)
            if first < end:
                found[name] = track.scores(first, end)
                self._ends[name] = end
        return found

    def _matches(self) -> dict[str, int]:
        place = self.position
        return {name: int(found.matches[place]) for name, found in self._retrieval.items()}
