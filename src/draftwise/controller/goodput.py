"""The policy of draftwise's own engine: the plan with the most expected tokens per second."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from draftwise.bandits.base import check_feedback, one_hot
from draftwise.checks import flag, share
from draftwise.controller.experience import Experience, Recall
from draftwise.controller.plans import PlanCosts
from draftwise.controller.probes import ProbeScheduler
from draftwise.controller.rates import PRIOR, Bins, MatchTable, Rates, SeenValues
from draftwise.controller.writer import GoodputMixer, Prices
from draftwise.types import NONE, Decision, Feedback, Floats, Plan, RoundFacts, Scores

ANSWER_TOKENS = 256.0  # prior length of an answer, in tokens


class Goodput:
    """Play the plan with the most expected tokens per second, estimated from free evidence.

    Source: this project; expected tokens at a constant acceptance are Leviathan et al.'s (2023).
    Update: plan = argmax V, V = (1 + sum_{j<=k} S(j)) / (T(k + 1) + k c), with S(j) = a^j for the
        acceptance a of an LM drafter (``Rates``), whose prior is 0.55 or the prediction from
        earlier requests (``Experience``), or for retrieval the product of the rates of match
        lengths m, m + 1, .. (``MatchTable``); 1 / V grows by the seconds per token of catching up.
        To explore, idle drafters are probed instead of played (``ProbeScheduler``).
        ``GoodputMixer`` then decides before each token whether the best LM drafter or a match
        writes it, and where the draft ends. In a batch each row assumes that all make the same
        choice: the price of a token is that of one more token in every row, divided by the number
        of rows. A tree costs all of its tokens; its acceptance at each depth is learnt: of the
        likeliest token, or else of one of its siblings.
    Differs: a plan is priced as if its stop rule were ``fixed``.
    Feedback: evidence in text order, which every kind carries (``free`` always at once). The latest
        costs and matches are the context. Without plans, or before any evidence, plans are ranked
        by the discounted mean of their observed values with the same prior.
    State: rates, bins of confidence, match tables, probes, costs, match lengths, observed values.
    Cost: O(K + D) per choice with D drafters; O(alphas) per round.
    Errors: ValueError from ``check_feedback``, and for a prior or discount outside (0, 1].

    >>> plans = [Plan("none", 0), Plan("small", 1), Plan("small", 4)]
    >>> policy = Goodput(num_plans=3, plans=plans)
    >>> from draftwise.types import Costs
    >>> costs = Costs(target_s=np.array([1.0]), draft_s={"small": 0.9})
    >>> policy.learn(Decision(0, 1.0, 0), Feedback(np.zeros(3), np.zeros(3, dtype=bool),
    ...     RoundFacts(plans[0], 0, 0, costs=costs)))
    >>> policy.choose().plan
    0
    """

    def __init__(
        self, num_plans: int, plans: Sequence[Plan] | None = None, prior: float = PRIOR,
        discount: float = 0.97, mix: bool = True, looks: bool = True, branches: bool = True,
    ) -> None:  # fmt: skip
        share("prior", prior), share("discount", discount), flag("mix", mix), flag("looks", looks)
        self._branches = flag("branches", branches)
        self._num_plans, self._num_chosen = num_plans, 0
        self._has_plans, self._is_blind = plans is not None, None if plans is not None else True
        self._costs = PlanCosts(plans if plans is not None else [Plan(NONE, 0)] * num_plans)
        self._row = {name: row for row, name in enumerate(self._costs.names)}
        self._rates = Rates(len(self._row), discount, prior)
        self._looks = ProbeScheduler(len(self._row), 1.0 / max(1.0 - discount, 1e-3))
        self._seen = SeenValues(num_plans, prior, discount)
        self._tables: dict[str, MatchTable] = {}
        self._bins: dict[str, Bins] = {}
        self._matches: dict[str, int] = {}
        self._mix, self._wants_looks, self._left = mix, looks, ANSWER_TOKENS
        self._recall: Recall | None = None
        self.mixer: GoodputMixer | None = None
        self._believed, self._ladders = self._rates.of(), dict[str, list[float]]()
        self._made: Floats | None = None
        self._reading_s: Floats = np.zeros(len(self._row))
        self._tell_apart()

    def new_memory(self) -> Experience:
        """Empty statistics, to be shared by requests with the same plans."""
        return Experience(self._costs.names)

    def recall(
        self, memory: Experience, prompt: Sequence[int], label: str = "", private: bool = False
    ) -> None:
        """Begin a request, from which ``memory`` learns unless it is ``private``.

        prompt: its token ids. label: kind of the request, such as a task or a template.
        """
        self._recall = recall = Recall(memory, prompt, label, private)
        self._rates.expect(*recall.expected)
        self._looks.expect()
        self._bins = recall.bins
        self._left = recall.experience.answer_tokens
        self._tables = {name: MatchTable([*table.rates]) for name, table in recall.tables.items()}
        self._tell_apart()

    def choose(self) -> Decision:
        self._num_chosen += 1
        best = int((prices := self._prices()).argmax())
        self.mixer = None if self._is_blind or not self._mix else self._mixer(prices, best)
        return Decision(best, 1.0, self._num_chosen)

    @property
    def advantage(self) -> float:
        """Expected tokens that the best plan adds, over those that its additional seconds would
        bring by plain decoding; 1 without evidence.
        """
        if self._is_blind:
            return 1.0
        best, costs = int((prices := self._prices()).argmax()), self._costs
        added = float(costs.seconds[best]) / costs.target_s[0] - 1.0
        gained = float(prices[best] * costs.seconds[best]) - 1.0
        return gained / added if added > 0.0 else math.inf if gained > 0.0 else 1.0

    def drafters_to_probe(self, num_rows: int = 1) -> list[str]:
        """Idle LM drafters to probe on the last tokens now, also after the scores of a prompt.

        Not the best plan's drafter or a sole one: playing is as informative, and may emit tokens.
        num_rows: rows of the batch, which wait for the probe.
        """
        if not self._wants_looks or self._is_blind or int(self._has_model.sum()) < 2:
            return []
        prices, left = self._prices(), self._left
        best = int(prices.argmax())
        costs, weights = self._costs, self._rates.weights() * self._has_model
        weights[costs.drafters[best]] = 0.0
        due = self._looks.due(
            float(prices[best]), self._believed, weights, costs, left, num_rows, self._reading_s
        )
        return [costs.names[row] for row in due]

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        values, seen = check_feedback(decision, feedback, self._num_plans)
        self._made = None
        if isinstance(feedback.evidence, RoundFacts) and self._has_plans:
            self._is_blind = False  # permanently: evidence comes only once per round
            self._read(feedback.evidence)
        else:
            self._is_blind = self._is_blind is not False
            self._seen.add(values, seen)

    def probabilities(self) -> Floats:
        return one_hot(int(self._prices().argmax()), self._num_plans)

    def estimates(self) -> Floats:
        """[K] expected tokens per second relative to the best plan, or means of observed values."""
        prices = self._prices()
        return prices.copy() if self._is_blind else prices / max(float(prices.max()), 1e-12)

    def _read(self, evidence: RoundFacts) -> None:
        """Update rates and context; rates without new scores decay to their priors."""
        num_emitted = evidence.num_emitted if evidence.seconds > 0.0 else 0  # 0 for prompt scores
        num_new = max(num_emitted, len(evidence.tokens))  # including rounds without drafting
        scored = {name: self._row[name] for name in evidence.scores if name in self._row}
        if evidence.seconds > 0.0 and self._has_lms:
            self._rates.fade(num_new, scored.values())
        for name, row in scored.items():
            self._score(name, row, evidence.scores[name])
        self._looks.reached(evidence.emitted_start + num_emitted, num_new)
        if evidence.confidences and self.mixer is not None:
            self._judge(evidence, self.mixer)
        plan = evidence.plan
        if plan.tree is not None and evidence.num_drafted:
            judged = plan.tree, plan.length, evidence.num_accepted, evidence.num_first
            self._bins.setdefault(plan.drafter, Bins()).add_tree(*judged)
        self._matches = dict(evidence.matches)
        for name in evidence.matches.keys() - self._tables.keys():
            self._add_table(name)
        if evidence.costs is not None:
            self._costs.take(evidence.costs)
        recall = self._recall
        if recall is not None and recall.saw_tokens(evidence.tokens):
            self._rates.expect(*recall.expected)
        left = ANSWER_TOKENS if recall is None else recall.experience.answer_tokens
        self._left = left if evidence.num_left is None else min(evidence.num_left, left)

    def _judge(self, evidence: RoundFacts, mixer: GoodputMixer) -> None:
        """Update the acceptance of the mixed draft's tokens, of siblings and of branches."""
        departed = evidence.departed
        num_judged = 1 + (evidence.num_accepted if departed < 0 else departed)
        alphas = evidence.drafted_alphas[:num_judged].tolist()
        own = self._bins.setdefault(mixer.drafter, Bins())
        own.add(evidence.confidences[: len(alphas)], alphas)
        own.add_siblings(evidence.siblings)
        for depth, row in mixer.matched.items():
            if depth < num_judged:
                own.added.count(row, depth in mixer.departures and depth != departed)
        name, row = mixer.departures.get(departed, ("", 0))
        if (scores := evidence.scores.get(name)) is not None:
            place = evidence.emitted_start + departed - scores.start
            if 0 <= place < len(scores.ratios):  # whether retrieval proposed the emitted token
                own.branches.count(row, float(scores.ratios[place]))

    def _score(self, name: str, row: int, scores: Scores) -> None:
        alphas, recall = scores.alphas.tolist(), self._recall
        if scores.matches is None:
            self._rates.add(row, alphas, scores.weight)
            self._looks.scored(row, scores.start + len(alphas), scores.weight < 1.0)
            if recall is not None:
                recall.add(row, alphas, scores.weight)
            return
        if name not in self._tables:
            self._add_table(name)
        matches = scores.matches.tolist()
        self._tables[name].add(alphas, matches)
        if recall is not None:
            recall.add_matches(name, alphas, matches)

    def _mixer(self, prices: Floats, best: int) -> GoodputMixer | None:
        """The mixer of the next draft; None without an LM drafter, or if a tree is the best plan.

        Also None while the best LM drafter is behind and promises less than plain decoding.
        """
        costs = self._costs
        if costs.sizes[best] != costs.lengths[best] or not self._has_lms:
            return None
        plan = int((prices * self._is_lm).argmax())
        row = int(costs.drafters[plan])
        if prices[plan] * costs.target_s[0] < 1.0 and self._looks.is_behind(row):
            return None
        name, writers = costs.names[row], (costs.names[row], *self._tables)
        draft_s = {n: float(costs.draft_s[self._row[n]]) for n in writers if n in self._row}
        # at the whole rate of the best plan no draft would gain
        own = Prices(0.9 * float(prices[best]), costs.target_s, draft_s)
        bins, alpha = self._bins.setdefault(name, Bins()), float(self._believed[row])
        return GoodputMixer(name, costs.longest, alpha, bins, own, self._ladders, self._branches)

    def _add_table(self, name: str) -> None:
        self._tables[name] = MatchTable()
        self._tell_apart()

    def _tell_apart(self) -> None:
        """Set the flags of LM drafters [D], which have no match table, and of their plans [K]."""
        names = self._costs.names
        self._has_model = np.array([name != NONE and name not in self._tables for name in names])
        self._is_lm = self._has_model[self._costs.drafters]
        self._has_lms = bool(self._is_lm.any())

    def _prices(self) -> Floats:
        """[K] expected tokens per second; without evidence, means of values. Cached for a round."""
        if self._made is None and self._is_blind:
            self._made = self._seen.means()
        elif self._made is None:
            prices = self._tokens() / (costs := self._costs).seconds
            self._reading_s = self._looks.catching_up(costs.read_s, self._left)
            reading_s = (self._reading_s * self._has_model).take(costs.drafters)
            self._made = prices / (1.0 + prices * reading_s)
        return self._made

    def _tokens(self) -> Floats:
        """[K] expected tokens; 0 for a plan without a proposal."""
        costs, reach = self._costs, 17 + self._costs.longest  # longer matches are of one bucket
        self._believed = self._rates.of()
        self._ladders = {name: table.ladder(reach) for name, table in self._tables.items()}
        tokens = costs.expected_tokens(self._believed, self._bins)
        for name, ladder in self._ladders.items():
            if name in self._row:
                match = self._matches.get(name, 0)
                costs.retrieved(tokens, self._row[name], ladder, match, self._bins)
        return tokens
