"""The policy of draftwise's own engine: the plan with the most expected tokens per second, and
probes, which score idle drafters on the last tokens of the text.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from draftwise.bandits.base import one_hot
from draftwise.checks import flag, share
from draftwise.controller.rates import (
    PRIOR,
    PRIOR_WEIGHT,
    Bins,
    Experience,
    MatchTable,
    Rates,
    Recall,
    depth_of,
)
from draftwise.controller.writer import GoodputMixer, Prices
from draftwise.types import (
    NONE,
    Costs,
    Decision,
    Feedback,
    Floats,
    Ints,
    Plan,
    RoundFacts,
    Scores,
    check_feedback,
)

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
    Learns from facts in text order (``read``), of which the latest costs and matches are the
        context. Observed values are not used.
    State: rates, bins of confidence, match tables, probes, costs, match lengths.
    Cost: O(K + D) per choice with D drafters; O(alphas) per round.
    Errors: ValueError without plans, from ``check_feedback``, and for a prior or discount outside
        (0, 1].

    >>> plans = [Plan("none", 0), Plan("small", 1), Plan("small", 4)]
    >>> policy = Goodput(num_plans=3, plans=plans)
    >>> from draftwise.types import Costs
    >>> costs = Costs(target_s=np.array([1.0]), draft_s={"small": 0.9})
    >>> policy.read(RoundFacts(plans[0], 0, 0, costs=costs))
    >>> policy.choose().plan
    0
    """

    def __init__(
        self, num_plans: int, plans: Sequence[Plan] | None = None, prior: float = PRIOR,
        discount: float = 0.97, mix: bool = True, looks: bool = True, branches: bool = True,
    ) -> None:  # fmt: skip
        share("prior", prior), share("discount", discount), flag("mix", mix), flag("looks", looks)
        self._branches = flag("branches", branches)
        if plans is None:
            raise ValueError("it prices plans: pass plans=...")
        self._num_plans, self._num_chosen = num_plans, 0
        self._costs = PlanCosts(plans)
        self._row = {name: row for row, name in enumerate(self._costs.names)}
        self._rates = Rates(len(self._row), discount, prior)
        self._looks = ProbeScheduler(len(self._row), 1.0 / max(1.0 - discount, 1e-3))
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
        self.mixer = self._mixer(prices, best) if self._mix else None
        return Decision(best, 1.0, self._num_chosen)

    @property
    def advantage(self) -> float:
        """Expected tokens that the best plan adds, over those that its additional seconds would
        bring by plain decoding.
        """
        best, costs = int((prices := self._prices()).argmax()), self._costs
        added = float(costs.seconds[best]) / costs.target_s[0] - 1.0
        gained = float(prices[best] * costs.seconds[best]) - 1.0
        return gained / added if added > 0.0 else math.inf if gained > 0.0 else 1.0

    def drafters_to_probe(self, num_rows: int = 1) -> list[str]:
        """Idle LM drafters to probe on the last tokens now, also after the scores of a prompt.

        Not the best plan's drafter or a sole one: playing is as informative, and may emit tokens.
        num_rows: rows of the batch, which wait for the probe.
        """
        if not self._wants_looks or int(self._has_model.sum()) < 2:
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
        """Check values, which are not used: it learns from facts (``read``)."""
        check_feedback(decision, feedback, self._num_plans)

    def probabilities(self) -> Floats:
        return one_hot(int(self._prices().argmax()), self._num_plans)

    def estimates(self) -> Floats:
        """[K] expected tokens per second relative to the best plan."""
        prices = self._prices()
        return prices / max(float(prices.max()), 1e-12)

    def read(self, evidence: RoundFacts) -> None:
        """Update rates and context; rates without new scores decay to their priors."""
        self._made = None
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
        """[K] expected tokens per second. Cached for a round."""
        if self._made is None:
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


_NO_BINS = Bins()


class PlanCosts:
    """Seconds per round of each plan, ``T(n + 1) + k c``, from the latest costs.

    A tree's draft step processes as many tokens as the tree is wide. A forward longer than any
    measured one costs as much as the longest: an overestimate would end drafting, and so all
    learning. Before any measurement a target forward takes 1 s and a draft step 0.05 s. Unless
    catching up was measured, a drafter's forward is assumed to scale with its tokens as the
    target's does. target_s: by tokens. draft_s, read_s: [D] seconds of a draft step, and of
    catching up by one token. seconds: [K]. names: [D]. places: the plans of each drafter. drafters,
    lengths, sizes, depths: [K] each plan's index in names, its length k, its verified tokens n, and
    the maximum number of accepted ones. trees: index, drafter and shape of trees.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.names = sorted({plan.drafter for plan in plans})
        self.drafters: Ints = np.array([self.names.index(plan.drafter) for plan in plans])
        self.lengths: Ints = np.array([plan.length for plan in plans])
        self.sizes: Ints = np.array([plan.num_tokens for plan in plans])
        self.trees = [(k, plan.drafter, plan.tree) for k, plan in enumerate(plans) if plan.tree]
        self.depths: Ints = self.lengths.copy()
        self._wider: Ints = np.zeros(len(plans), np.int64)  # additional tokens per draft step
        for k, _, shape in self.trees:
            self.depths[k] = depth_of(shape, plans[k].length)
            self._wider[k] = shape.top_k - 1
        self.longest = max(int(self.lengths.max()), 1)
        self.places = [np.flatnonzero(self.drafters == row) for row in range(len(self.names))]
        self._own_lengths = [self.lengths[own] for own in self.places]
        self._taken: Costs | None = None
        self.target_s: list[float] = [1.0]
        self.take(Costs(np.zeros(0), {}))

    def take(self, costs: Costs) -> None:
        """Replace the costs; those of target forwards stay if the new costs have none."""
        if self._taken is not None and _are_equal(self._taken, costs):
            return
        self._taken = costs
        if len(costs.target_s):
            self.target_s = np.maximum(costs.target_s, 1e-12).tolist()  # of a coarse clock
        first, last = self.target_s[0], self.target_s[-1]
        growth = (last / first - 1.0) / max(len(self.target_s) - 1, 1)
        draft_s = [
            0.0 if name == NONE else costs.draft_s.get(name, 0.05 * first) for name in self.names
        ]
        steps = zip(self.names, draft_s, strict=True)
        read_s = [costs.read_s.get(name, growth * step_s) for name, step_s in steps]
        self.draft_s, self.read_s = np.array(draft_s), np.array(read_s)
        forward_s = np.array(self.target_s)[np.minimum(self.sizes, len(self.target_s) - 1)]
        step_s = self.draft_s[self.drafters] + self._wider * self.read_s[self.drafters]
        self.seconds: Floats = forward_s + self.lengths * step_s

    def expected_tokens(self, rates: Floats, bins: Mapping[str, Bins]) -> Floats:
        """[K] ``expected_tokens`` from acceptance [D]; in trees, ``bins`` add that of siblings."""
        own = rates.take(self.drafters)
        for k, name, shape in self.trees:
            own[k] = bins.get(name, _NO_BINS).of_tree(shape, int(self.lengths[k]), float(own[k]))
        return expected_tokens(own, self.depths)

    def retrieved(
        self, tokens: Floats, row: int, ladder: Sequence[float], match: int,
        bins: Mapping[str, Bins],
    ) -> None:  # fmt: skip
        """Write ``retrieved_tokens`` of one drafter's plans into tokens [K]."""
        found = np.array(retrieved_tokens(ladder, match, self.longest))
        tokens[self.places[row]] = found[self._own_lengths[row]]
        for k, name, shape in self.trees:
            if name == self.names[row]:
                own, length = bins.get(name, _NO_BINS), int(self.lengths[k])
                rungs = [own.of_tree(shape, length, alpha) for alpha in ladder]
                tokens[k] = retrieved_tokens(rungs, match, self.longest)[self.depths[k]]


def _are_equal(costs: Costs, others: Costs) -> bool:
    return costs is others or (
        costs.draft_s == others.draft_s
        and costs.read_s == others.read_s
        and len(costs.target_s) == len(others.target_s)
        and bool((costs.target_s == others.target_s).all())
    )


def expected_tokens(rates: Floats, lengths: Ints) -> Floats:
    """Expected tokens of a round, ``1 + a + .. + a^k = (1 - a^(k + 1)) / (1 - a)``.

    Source: Leviathan et al. 2023, equation 1. rates, lengths: broadcastable shapes.

    >>> expected_tokens(np.array([0.5, 0.5]), np.array([1, 2])).tolist()
    [1.5, 1.75]
    """
    alphas: Floats = np.minimum(rates, 1.0 - 1e-9)  # where the sum is k + 1 to seven digits
    return (1.0 - alphas ** (lengths + 1)) / (1.0 - alphas)


def retrieved_tokens(ladder: Sequence[float], match: int, longest: int) -> list[float]:
    """[longest + 1] expected tokens of a retrieval round, by draft length; 0 without a match.

    ladder: acceptance after a match of 1, 2, .. tokens; each accepted token extends the match.

    >>> retrieved_tokens([0.5, 0.5, 0.5], 1, 2)
    [1.0, 1.5, 1.75]
    """
    if match <= 0:
        return [0.0] * (longest + 1)
    first = min(match - 1, len(ladder) - longest)
    reached = accumulate(ladder[first : first + longest], operator.mul)
    return list(accumulate(reached, initial=1.0))


PROBE_TOKENS_PAID = 32  # maximum number of tokens that a probe processes
ACCEPTANCES = (0.15, 0.3, 0.45, 0.6, 0.7, 0.78, 0.85, 0.91, 0.96)  # grid on which gains are summed
_NUM_MEANS, _LEAST_WEIGHT, _NUM_WEIGHTS = 51, 0.25, 19  # weights double every other column


@functools.cache
def _beliefs() -> Floats:
    """[mean x weight, acceptance] mass of Beta beliefs, by the nearest of ``ACCEPTANCES``."""
    found = 1.0 / (1.0 + np.exp(-np.linspace(-12.0, 12.0, 1201)))
    points = np.array(ACCEPTANCES)
    nearest = np.searchsorted((points[1:] + points[:-1]) / 2, found)
    table = np.zeros((_NUM_MEANS, _NUM_WEIGHTS, len(points)))
    for row, mean in enumerate(np.linspace(0.0, 1.0, _NUM_MEANS).clip(0.01, 0.99)):
        for column in range(_NUM_WEIGHTS):
            weight = _LEAST_WEIGHT * 2.0 ** (column / 2)
            logs = weight * (mean * np.log(found) + (1.0 - mean) * np.log1p(-found))
            mass = np.exp(logs - logs.max())
            table[row, column] = np.bincount(nearest, mass / mass.sum(), minlength=len(points))
    return table.reshape(-1, len(points))


def _place(means: Any, weights: Any) -> Any:
    columns = np.minimum(2.0 * np.log2(weights / _LEAST_WEIGHT) + 0.5, _NUM_WEIGHTS - 1)
    rows = means * (_NUM_MEANS - 1) + 0.5
    return np.int64(rows) * _NUM_WEIGHTS + np.int64(columns)


@functools.cache
def _unknown() -> Floats:
    row: Floats = _beliefs()[_place(PRIOR, PRIOR_WEIGHT)]
    return row


class ProbeScheduler:
    """Decides which idle drafters to probe on the last tokens of the text.

    Source: this project; the value of information (Howard 1966) and ski rental: a probe is bought
        once not buying it has cost as much as its price.
    Update: a drafter with belief Beta(n a, n (1 - a)) would save g = E[(1/V - 1/V')+] seconds per
        token, where V is the best plan's rate and V' the drafter's best rate at an acceptance drawn
        from the posterior mean after a probe of q alphas: a Beta of the same mean and of variance a
        (1 - a) / (n + 1) * q / (q + n). 1/V' includes catching up, over the tokens that the drafter
        may be played for. A probe is due when g * tokens left, plus the seconds missed so far,
        exceed its seconds, which count once per row that waits; tokens left are those of the
        answer, at most the memory of the rates. With shared statistics a drafter counts as unknown
        with probability 2%, which adds to the seconds missed. Each row adds its share of the
        seconds missed.
    State: per drafter, the positions up to which it was scored and has processed the text; the end
        of the text; tokens since the last decision; seconds missed [D].
    Cost: O(D) per round, O(K) every 16 rounds.
    """

    def __init__(self, num_drafters: int, memory: float) -> None:
        self._memory = memory
        self._scored_until: Floats = np.zeros(num_drafters)
        self._read_until: Floats = np.zeros(num_drafters)
        self._end = self._num_new = 0
        self.missed_s: Floats = np.zeros(num_drafters)
        self._doubt, self._most = 0.0, num_drafters
        self._ideal: Floats | None = None
        self._age = 0

    def expect(self) -> None:
        """Begin with what earlier requests predict, which may have changed since."""
        self._doubt, self._most = 0.02, 3  # probes before the first round

    def scored(self, drafter: int, end: int, is_partial: bool) -> None:
        """Record a score up to ``end``; is_partial: the drafter skipped part of the text."""
        self._scored_until[drafter], self.missed_s[drafter] = end, 0.0
        if not is_partial:
            self._read_until[drafter] = end

    def reached(self, end: int, num_emitted: int) -> None:
        self._num_new += num_emitted
        self._end = end

    def is_behind(self, drafter: int) -> bool:
        """Whether a drafter has missed more of the text than a probe processes."""
        return bool(self._end - self._read_until[drafter] > PROBE_TOKENS_PAID)

    def catching_up(self, read_s: Floats, left: float) -> Floats:
        """[D] seconds of catching up, per token that a drafter may be played for."""
        missed: Floats = np.maximum(self._end - self._read_until, 0.0)
        return missed * read_s / max(1.0, min(left, self._memory))

    def due(
        self, best: float, rates: Floats, weights: Floats, costs: PlanCosts, left: float, rows: int,
        catching_up: Floats | None = None,
    ) -> list[int]:  # fmt: skip
        """Drafters to probe now: the best few before any score, later only the best one.

        best: the best plan's rate. rates, weights: [D] beliefs; weight 0: nothing to probe. left:
        tokens of the answer. rows: rows that wait. catching_up: [D], if already computed.
        """
        if catching_up is None:
            catching_up = self.catching_up(costs.read_s, left)
        unread = self._end - self._read_until
        num = np.minimum(PROBE_TOKENS_PAID, self._end - self._scored_until)
        read = np.minimum(PROBE_TOKENS_PAID, unread)
        num = np.where(unread > PROBE_TOKENS_PAID, 0.25, 1.0) * num + 1e-3
        narrow = np.maximum((weights + 1.0) * (num + weights) / num - 1.0, _LEAST_WEIGHT)
        place = _place(rates, narrow)
        spared = np.maximum((1.0 / best - catching_up)[:, np.newaxis] - self._ideal_s(costs), 0.0)
        gains = (_beliefs().take(place, axis=0) * spared).sum(axis=1)
        hopes = spared @ _unknown()
        self.missed_s += (gains + self._doubt * hopes) * self._num_new / rows
        self._num_new = 0
        value = gains * min(left, self._memory) + self.missed_s
        value -= rows * (costs.draft_s + costs.read_s * read)
        value[(weights <= 0.0) | (num < 1.0)] = 0.0
        if self._scored_until.any():
            best_one = int(value.argmax())
            return [best_one] if value[best_one] > 0.0 else []
        best_ones = np.argsort(-value)[: self._most]
        return [int(drafter) for drafter in best_ones if value[drafter] > 0.0]

    def _ideal_s(self, costs: PlanCosts) -> Floats:
        """[D, A] seconds per token of each drafter's best plan, by acceptance."""
        if self._ideal is None or self._age >= 16:  # costs change slowly
            rates = np.repeat(np.array(ACCEPTANCES)[:, np.newaxis], len(costs.names), axis=1)
            tokens = np.stack([costs.expected_tokens(row, {}) for row in rates])
            self._ideal = np.full((len(costs.names), len(ACCEPTANCES)), np.inf)
            np.minimum.at(self._ideal, costs.drafters, (costs.seconds / tokens).T)
            self._age = 0
        self._age += 1
        return self._ideal
