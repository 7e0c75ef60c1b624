"""One simulated request: it plays plans on a text and answers as the engine would."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from draftwise.protocols import Mixer, StopRule
from draftwise.types import PLAIN, Evidence, Plan, Scores
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.drafts import Drafted, can_mix, draft, draft_mixed
from draftwise_lab.sim.reading import Reading
from draftwise_lab.sim.text import PROMPT_TOKENS, Text

MAX_BACKLOG = 64
"""Verified positions that a drafter is scored on when it catches up: what the engine keeps p of."""


class SimulatedRequest:
    """The engine's side of one request, with costs that are known.

    Differs from the engine: past the first rejection of a draft, alphas (and what stop rules and
    mixers see) are those of the verified text and not of the draft's own continuation, not
    recorded. seconds: what the request took so far, scoring, catching up and looks included.
    """

    def __init__(
        self, text: Text, plans: Sequence[Plan], costs: CostTable, guides: Mapping[str, StopRule]
    ) -> None:
        self._text, self._plans, self._guides = text, list(plans), guides
        longest = max(plan.length for plan in plans)
        self._costs = costs.at(text.batch_size, list(text.tracks), longest)
        self._target_s: list[float] = self._costs.target_s.tolist()
        self._score_share = costs.score_share
        self._retrieval = {
            n: t.retrieval for n, t in text.tracks.items() if t.retrieval is not None
        }
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
        """Drafters that have no model."""
        return self._retrieval

    @property
    def is_done(self) -> bool:
        """Whether the target has ended the text."""
        return self.position >= self._text.length

    def prompt_evidence(self, drafters: Collection[str] | None = None) -> Evidence:
        """Round 0: what the prompt's end tells of these (None = all), and what all costs.

        A look by a drafter with a model has its price; retrieval is free.
        """
        names = self._text.tracks if drafters is None else drafters
        found = {name: self._text.tracks[name].prompt_scores() for name in names}
        scores = {name: s for name, s in found.items() if s is not None}
        for name in scores.keys() - self._retrieval.keys():
            self._ends[name] = 0
            self.seconds += self._reading.glance(name, 0)[0]
        return Evidence(
            PLAIN, 0, 0, scores, emitted_start=PROMPT_TOKENS, costs=self._costs,
            matches=self._matches(), num_left=self._text.limit,
        )  # fmt: skip

    def play(
        self, plan: Plan, *, scores_everyone: bool = False, mixer: Mixer | None = None,
        looks: Collection[str] = (),
    ) -> Evidence:  # fmt: skip
        """One round: draft, verify, commit; what it revealed.

        scores_everyone: score every drafter on the verified text, at the price of its forward.
        mixer: names each writer, where the text knows what a mixer looks at. looks: drafters to
        be scored on the text's end once the round is over, unless it ends the text.
        """
        start, made = self.position, self._draft(plan, mixer)
        if made.num_drafted and made.plan.rule in self._guides:
            self._guides[made.plan.rule].learn(made.num_drafted, made.num_accepted)
        seconds = self._round_s(made, start)
        self.position = min(start + made.num_accepted + 1, self._text.length)
        self.num_rounds += 1
        scores = {} if self.is_done else self._looks(looks)
        scores |= self._scores(made, start, scores_everyone)
        if made.num_steps:
            self._reading.keep(made.caller, start, made.num_fed, made.num_accepted, self.position)
        self.seconds += seconds
        return Evidence(
            made.plan, made.num_drafted, made.num_accepted, scores,
            made.alphas, start + PROMPT_TOKENS, seconds, self._costs,
            self._matches(), confidences=made.confidences,
            num_left=self._text.limit - self.position,
        )  # fmt: skip

    def play_all(self, plans: Sequence[Plan]) -> Evidence:
        """One round in which every plan drafts and is verified in its turn; the best draft is kept.

        The evidence is that of the best draft, with the seconds of all. Differs: where drafts are
        sampled, branches of one tree would keep a little less than the best of independent ones.
        """
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
        return draft(self._text, plan, self.position, self._guides)

    def _round_s(self, made: Drafted, start: int) -> float:
        """Seconds of its draft, the drafter's catching up included, and of its verification."""
        steps, fed = made.num_steps, made.num_fed
        copies = [self._costs.draft_s[name] for name in made.writers if name in self._retrieval]
        seconds = self._target_s[made.num_drafted] + sum(copies)
        if not steps:
            return seconds
        return seconds + self._reading.draft_s(made.caller, start, steps, fed + 1 - steps)

    def _looks(self, names: Collection[str]) -> dict[str, Scores]:
        """Scores of drafters on the text's end; each costs a short forward."""
        found = {}
        for name in names:
            if name not in self._reading:
                continue
            seconds, num, weight = self._reading.glance(name, self.position)
            self.seconds += seconds
            start = max(self._ends[name], self.position - num)
            if start < self.position:
                scores = self._text.tracks[name].scores(start, self.position)
                found[name] = replace(scores, weight=weight)
                self._ends[name] = self.position
        return found

    def _scores(self, made: Drafted, start: int, everyone: bool) -> dict[str, Scores]:
        """The drafter, through the first rejection; retrieval always; the rest if paid."""
        found = {}
        reached = start + min(made.num_fed, made.num_accepted) + 1
        for name, track in self._text.tracks.items():
            if name in self._retrieval:
                end = self.position
            elif everyone:
                end = self.position
                if name != made.caller:  # only what is not played runs a forward of its own
                    self.seconds += self._score_share * self._reading.catch_up(name, self.position)
            elif name == made.caller:
                end = min(reached, self.position)
            else:
                continue
            first = max(self._ends[name], self.position - MAX_BACKLOG)
            if first < end:
                found[name] = track.scores(first, end)
                self._ends[name] = end
        return found

    def _matches(self) -> dict[str, int]:
        place = self.position
        return {name: int(found.matches[place]) for name, found in self._retrieval.items()}
