"""One simulated request: it plays plans on a text and answers as the engine would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftwise.protocols import Guide
from draftwise.sim.costs import CostTable
from draftwise.sim.text import PROMPT_TOKENS, Text
from draftwise.types import NONE, PLAIN, Evidence, Plan, Scores

MAX_BACKLOG = 64
"""Verified positions that a drafter is scored on when it catches up: what the engine keeps p of."""


class SimulatedRequest:
    """The engine's side of one request, with costs that are known.

    Differs from the engine: past the first rejection of a draft, alphas (and what stop rules see)
    are those of the verified text and not of the draft's own continuation, which nobody recorded.
    seconds: what the request took so far, scoring included.
    """

    def __init__(
        self, text: Text, plans: Sequence[Plan], costs: CostTable, guides: Mapping[str, Guide]
    ) -> None:
        self._text, self._plans, self._guides = text, list(plans), guides
        longest = max(plan.length for plan in plans)
        self._costs = costs.at(text.batch_size, list(text.tracks), longest)
        self._target_s: list[float] = self._costs.target_s.tolist()
        self._score_share = costs.score_share
        self._ends = dict.fromkeys(text.tracks, 0)
        self._retrieval = [n for n, track in text.tracks.items() if track.retrieval is not None]
        self.position, self.seconds, self.num_rounds = 0, 0.0, 0

    @property
    def is_done(self) -> bool:
        """Whether the target has ended the text."""
        return self.position >= self._text.length

    def prompt_evidence(self) -> Evidence:
        """Round 0: how drafters fare on the prompt's last tokens, and what everything costs.

        Each drafter that is scored pays one draft step.
        """
        found = {name: track.prompt_scores() for name, track in self._text.tracks.items()}
        scores = {name: s for name, s in found.items() if s is not None}
        self.seconds += sum(self._costs.draft_s[name] for name in scores)
        return Evidence(
            PLAIN, 0, 0, scores, emitted_start=PROMPT_TOKENS, costs=self._costs,
            matches=self._matches(),
        )  # fmt: skip

    def play(self, plan: Plan, *, scores_everyone: bool = False) -> Evidence:
        """One round: draft, verify, commit; what it revealed.

        scores_everyone: score every drafter on the verified text, at the price of its forward.
        """
        start = self.position
        num_drafted, num_accepted = self._fate(plan, start)
        alphas = _NO_ALPHAS
        if num_drafted:
            alphas = self._text.tracks[plan.drafter].drafted_alphas(start, num_drafted)
            if plan.rule in self._guides:
                self._guides[plan.rule].learn(num_drafted, num_accepted)
        seconds = self._round_s(plan, num_drafted)
        self.position = min(start + num_accepted + 1, self._text.length)
        self.num_rounds += 1
        reached = min(start + min(num_drafted, num_accepted + 1), self.position)
        scores = self._scores(plan.drafter if num_drafted else NONE, reached, scores_everyone)
        self.seconds += seconds
        return Evidence(
            plan, num_drafted, num_accepted, scores,
            alphas, start + PROMPT_TOKENS, seconds, self._costs,
            self._matches(),
        )  # fmt: skip

    def play_all(self, plans: Sequence[Plan]) -> Evidence:
        """One round in which every plan drafts and is verified in its turn; the best draft is kept.

        The evidence is that of the best draft, with the seconds of all. Differs: where drafts are
        sampled, branches of one tree would keep a little less than the best of independent ones.
        """
        start, others_s = self.position, 0.0
        best, most = plans[0], -1
        for plan in plans:
            num_drafted, num_accepted = self._fate(plan, start)
            others_s += self._round_s(plan, num_drafted)
            if num_accepted > most:
                best, most = plan, num_accepted
        others_s -= self._round_s(best, self._fate(best, start)[0])
        evidence = self.play(best)
        self.seconds += others_s
        return replace(evidence, seconds=evidence.seconds + others_s)

    def _fate(self, plan: Plan, start: int) -> tuple[int, int]:
        """Tokens that a plan drafts and keeps from ``start`` on."""
        if plan.drafter == NONE:
            return 0, 0
        track = self._text.tracks[plan.drafter]
        most = min(plan.length, self._text.limit - start - 1)
        num_drafted = track.num_drafted(start, most, plan.length, self._guides.get(plan.rule))
        return num_drafted, track.num_accepted(start, num_drafted)

    def _round_s(self, plan: Plan, num_drafted: int) -> float:
        """Seconds of its draft and its verification."""
        step_s = self._costs.draft_s.get(plan.drafter, 0.0)
        return num_drafted * step_s + self._target_s[num_drafted]

    def _scores(self, played: str, reached: int, everyone: bool) -> dict[str, Scores]:
        """The played drafter through its first rejection, retrieval always, the rest if paid."""
        found = {}
        for name, track in self._text.tracks.items():
            if track.retrieval is not None:
                end = self.position
            elif everyone:
                end = self.position
                # only what is not played runs a forward of its own
                self.seconds += (name != played) * self._score_share * self._costs.draft_s[name]
            elif name == played:
                end = reached
            else:
                continue
            start = max(self._ends[name], self.position - MAX_BACKLOG)
            found[name] = track.scores(start, end)  # never empty: the round emitted a token
            self._ends[name] = end
        return found

    def _matches(self) -> dict[str, int]:
        lengths = {}
        for name in self._retrieval:
            retrieval = self._text.tracks[name].retrieval
            assert retrieval is not None
            lengths[name] = int(retrieval.matches[self.position])
        return lengths


_NO_ALPHAS = Evidence(PLAIN, 0, 0).drafted_alphas
