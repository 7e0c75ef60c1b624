"""Goodput: the drafter and length with the most expected tokens per second, none included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from draftwise.policies.acceptance import (
    LONGEST_MATCH,
    PRIOR_WEIGHT,
    Rates,
    add_matches,
    match_alphas,
    new_table,
)
from draftwise.policies.curiosity import Curiosity
from draftwise.policies.door import check_feedback, check_share
from draftwise.policies.mixing import RATE_SHARE, Mixer, Prices, add_to_bins, new_bins
from draftwise.policies.pricing import seconds_per_plan, tokens_per_plan
from draftwise.policies.probability import one_hot
from draftwise.policies.state import dump, load
from draftwise.policies.together import best_together
from draftwise.types import NONE, Costs, Decision, Evidence, Feedback, Floats, Ints, Plan, Scores

NEARLY_ALWAYS = 0.9
"""The acceptance that a drafter is granted when it is asked whether a look at it could pay."""

DEFAULT_DRAFT_SHARE = 0.05
"""A draft step's seconds, as a share of a target forward, where nobody measured it."""

_TINY = 1e-12  # seconds; a clock too coarse to see a step must not divide by zero
_FIELDS = (
    "_rates", "_bins", "_tables", "_matches", "_target_s", "_draft_s", "_value_sums",
    "_value_counts", "_is_blind", "_num_chosen", "_curiosity",
)  # fmt: skip


class Goodput:
    """Play the plan that promises the most tokens per second, from what is free to know.

    Source: this project's own (DESIGN section 7); no paper has it. The expected tokens of a draft
        under a constant acceptance probability are Leviathan et al. (2023).
    Update: per LM drafter a discounted rate of its alphas, over some 33 tokens and over some five,
        weighted by how well each has predicted. One that was not scored fades towards the prior, so
        that none is given up for good; where all fail the prior falls (``policies.acceptance``).
        Per retrieval drafter a rate in each of six buckets of match length. V = (1 + sum_{j<=k}
        S(j)) / (T(k + 1) + k c), S(j) = a^j, or for retrieval the product of the rates of match
        lengths m, m + 1, ..; plan = argmax V. No exploring by playing: the prior is mildly
        optimistic, and for 3% of the seconds drafters that are not played are looked at
        (``policies.curiosity``). For a request that runs alone ``mixer`` then says, token by token,
        who writes the next one, the best LM drafter or a match, and where the draft ends
        (``policies.mixing``); rows of a batch choose together (``policies.together``).
    Differs: a plan's stop rule is priced as ``fixed``, and a tree as a chain that costs all of its
        tokens, so it is chosen where nothing else is. The simulator plays plans unmixed.
    Feedback: evidence, in text order: every kind carries it, ``free`` at once and always. The
        latest costs and matches are the context. Where no costs are known a target forward counts
        1 s and a draft step 0.05 s; a length dearer than any measured costs what the longest
        measured does. Without plans or evidence it ranks plans by the discounted mean of their
        seen values with the same prior.
    State: the rates (in alphas); by LM drafter nine bins of confidence; tables [6] by retrieval
        drafter; latest costs in seconds, match lengths in tokens; discounted sums and counts of
        values float64[K].
    Cost: O(K + D L) a choice, D drafters, L the longest length; O(alphas) a round.
    Errors: ValueError from the door, and for a prior or discount outside (0, 1].

    >>> plans = [Plan("none", 0), Plan("small", 1), Plan("small", 4)]
    >>> policy = Goodput(num_plans=3, plans=plans)
    >>> costs = Costs(target_s=np.array([1.0]), draft_s={"small": 0.9})
    >>> policy.learn(Decision(0, 1.0, 0), Feedback(np.zeros(3), np.zeros(3, dtype=bool),
    ...     Evidence(plans[0], 0, 0, costs=costs)))
    >>> policy.choose().plan
    0
    """

    prices_plans: ClassVar[bool] = True

    def __init__(
        self, num_plans: int, plans: Sequence[Plan] | None = None, prior: float = 0.55,
        discount: float = 0.97, mix: bool = True, looks: bool = True,
    ) -> None:  # fmt: skip
        self._prior, self._discount = check_share("prior", prior), check_share("discount", discount)
        self._num_plans, self._num_chosen = num_plans, 0
        self._has_plans, self._is_blind = plans is not None, plans is None
        known = list(plans) if plans is not None else [Plan(NONE, 0)] * num_plans
        self._names = sorted({plan.drafter for plan in known})
        self._drafters: Ints = np.array([self._names.index(plan.drafter) for plan in known])
        self._lengths: Ints = np.array([plan.length for plan in known])
        self._sizes: Ints = np.array([plan.num_tokens for plan in known])
        self._rates = Rates(self._prior, self._discount)
        self._tables: dict[str, list[list[float]]] = {}
        self._matches: dict[str, int] = {}
        self._bins: dict[str, list[list[float]]] = {}
        self._looks, self._curiosity, self._is_alone = looks, Curiosity(), True
        self._mix = mix
        self.mixer: Mixer | None = None
        self._target_s: list[float] = [1.0]
        self._draft_s: dict[str, float] = {}
        self._value_sums: Floats = np.zeros(num_plans)
        self._value_counts: Floats = np.zeros(num_plans)
        self._longest = max(int(self._lengths.max()), 1)
        self._made: Floats | None = None
        self._seconds = self._price_rounds()
        self._find_lms()

    def choose(self) -> Decision:
        """The best price (ties go to the first plan)."""
        self._num_chosen += 1
        prices = self._prices()
        best, self._is_alone = int(prices.argmax()), True
        self.mixer = None if self._is_blind or not self._mix else self._mixer(prices, best)
        return Decision(best, 1.0, self._num_chosen)

    @staticmethod
    def choose_together(policies: Sequence[Goodput]) -> list[Decision]:
        """The plans of one round, one policy a row, that are best for the batch as a whole."""
        first = policies[0]
        if len(policies) == 1 or any(policy._is_blind for policy in policies):
            return [policy.choose() for policy in policies]
        forward_s = np.array(first._target_s)
        drafting = first._seconds - forward_s[np.minimum(first._sizes, len(forward_s) - 1)]
        tokens = np.array([policy._tokens() for policy in policies])
        plans = best_together(tokens, first._sizes, first._drafters, drafting, forward_s)
        for policy in policies:
            policy._num_chosen += 1
            # a draft that goes on, or a look, makes all rows wait
            policy.mixer, policy._is_alone = None, False
        return [
            Decision(int(plan), 1.0, policy._num_chosen)
            for plan, policy in zip(plans, policies, strict=True)
        ]

    def curious(self) -> list[str]:
        """LM drafters to be scored on the last tokens now, though they were not played."""
        if not self._looks or self._is_blind or not self._is_alone:
            return []
        lms = [name for name in self._draft_s if name in self._names and name not in self._tables]
        known = {name: self._rates.weight(name) for name in lms}
        return self._curiosity.names(known, self._draft_s, self._could_win)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        """Read the evidence; without evidence or plans, discount and add the seen values."""
        values, seen = check_feedback(decision, feedback, self._num_plans)
        self._made = None
        self._is_blind = feedback.evidence is None or not self._has_plans
        if feedback.evidence is not None and self._has_plans:
            self._read(feedback.evidence)
        else:
            self._value_sums[seen] = self._discount * self._value_sums[seen] + values[seen]
            self._value_counts[seen] = self._discount * self._value_counts[seen] + 1.0

    def probabilities(self) -> Floats:
        """[K] one-hot on the best price."""
        return one_hot(int(self._prices().argmax()), self._num_plans)

    def estimates(self) -> Floats:
        """[K] tokens per second over those of the best plan; blind, the discounted means."""
        prices = self._prices()
        return prices.copy() if self._is_blind else prices / max(float(prices.max()), _TINY)

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, _FIELDS, state)
        self._made = None
        self._seconds = self._price_rounds()
        self._find_lms()

    def _read(self, evidence: Evidence) -> None:
        """Update the rates, let those that were not scored fade, take over the context."""
        self._rates.fade(evidence.num_emitted, evidence.scores.keys())
        for name, scores in evidence.scores.items():
            # of a prompt there is nothing better than a first impression
            self._score(name, scores, scores.weight if evidence.seconds else 1.0)
        if evidence.confidences and self.mixer is not None:
            judged = evidence.num_accepted + 1  # up to the first rejection
            alphas = evidence.drafted_alphas[:judged].tolist()
            bins = self._bins.setdefault(self.mixer.drafter, new_bins())
            add_to_bins(bins, evidence.confidences[: len(alphas)], alphas)
        if evidence.seconds:  # a round, and not the prompt
            self._curiosity.saw_round(evidence.num_emitted, evidence.seconds)
        self._matches = dict(evidence.matches)
        if any(name not in self._tables for name in evidence.matches):
            self._tables |= {n: self._tables.get(n, new_table()) for n in evidence.matches}
            self._find_lms()
        if evidence.costs is not None:
            self._take_costs(evidence.costs)

    def _mixer(self, prices: Floats, best: int) -> Mixer | None:
        """For the coming draft; None where there is no LM drafter, or a tree is best."""
        if self._sizes[best] != self._lengths[best] or not self._has_lms:
            return None
        name = self._names[self._drafters[int((prices * self._is_lm).argmax())]]
        own_s = {name: self._draft_s.get(name, DEFAULT_DRAFT_SHARE * self._target_s[0])}
        return Mixer(
            name,
            self._longest,
            self._rates.of(name),
            self._bins.setdefault(name, new_bins()),
            Prices(RATE_SHARE * float(prices[best]), self._target_s, self._draft_s | own_s),
            {
                other: match_alphas(table, 1, LONGEST_MATCH + self._longest).tolist()
                for other, table in self._tables.items()
            },
        )

    def _find_lms(self) -> None:
        """[K] 1 for a plan of a drafter that does not retrieve, as far as is known; else 0."""
        drafts = self._lengths > 0
        self._is_lm = drafts & ~np.isin(self._names, list(self._tables))[self._drafters]
        self._has_lms = bool(self._is_lm.any())

    def _could_win(self, name: str) -> bool:
        """Whether a drafter would have the best plan if its tokens were nearly always right."""
        own = self._drafters == self._names.index(name)
        alphas = np.full((len(self._names), self._longest), NEARLY_ALWAYS)
        tokens = tokens_per_plan(alphas, self._drafters, self._lengths)
        rivals = self._prices()[~own]
        return bool((tokens[own] / self._seconds[own]).max() > rivals.max(initial=0.0))

    def _score(self, name: str, scores: Scores, weight: float) -> None:
        if scores.matches is not None:
            if name not in self._tables:
                self._tables[name] = new_table()
                self._find_lms()
            add_matches(self._tables[name], scores)
        else:
            self._rates.add(name, scores.alphas.tolist(), weight)

    def _take_costs(self, costs: Costs) -> None:
        """Latest costs; where nothing is measured yet the former stay in place."""
        if len(costs.target_s):
            self._target_s = np.maximum(costs.target_s, _TINY).tolist()
        self._draft_s = dict(costs.draft_s)
        self._seconds = self._price_rounds()

    def _price_rounds(self) -> Floats:
        """[K] seconds of a round of each plan."""
        default_s = DEFAULT_DRAFT_SHARE * self._target_s[0]
        draft_s = np.array([self._draft_s.get(name, default_s) for name in self._names])
        return seconds_per_plan(self._target_s, draft_s, self._drafters, self._lengths, self._sizes)

    def _prices(self) -> Floats:
        """[K] expected tokens per second; blind, the discounted means. Made once a round."""
        if self._made is None and self._is_blind:
            weight = self._value_counts + PRIOR_WEIGHT
            self._made = (self._value_sums + PRIOR_WEIGHT * self._prior) / weight
        elif self._made is None:
            self._made = self._tokens() / self._seconds
        return self._made

    def _tokens(self) -> Floats:
        """[K] expected emitted tokens; 0 for a plan that has nothing to propose."""
        rates = [self._rates.of(name) for name in self._names]
        alphas = np.array(rates)[:, np.newaxis].repeat(self._longest, axis=1)
        can_play = np.ones(len(rates))
        for row, name in enumerate(self._names):
            if name in self._tables:
                match = self._matches.get(name, 0)
                alphas[row] = match_alphas(self._tables[name], match, self._longest)
                can_play[row] = match > 0
        tokens = tokens_per_plan(alphas, self._drafters, self._lengths)
        available: Floats = tokens * can_play[self._drafters]
        return available
