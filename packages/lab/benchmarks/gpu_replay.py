"""GPU scale, replayed: the controller, fixed rules, those of engines and papers, and an oracle.

    python -m benchmarks gpu_replay --data FOLDER
    python -m benchmarks gpu_replay --data FOLDER --model llama70b_fp8_4xh100 --requests 16 --safety

FOLDER holds ``acceptance_*.npz`` (by kind of text: prompts, greedy answers, and for every position
the tokens that a round of a draft head emits there) and ``step_costs.npz`` (seconds by tokens,
requests and context); neither is in this repository. The data allow an exact replay of any policy;
retrieval is the controller's, on the real tokens. Speeds are relative to plain decoding while the
batch is full; ``counted`` adds the processor time of the controller's calls to each step.

The first round after a prompt accepts nothing in such data, so requests start at their second
token. A head drafts at the end of a step, so its length is chosen one step ahead and is paid for by
all requests. Wrong tokens of the head are replaced by text that follows the same token elsewhere.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from shared.script import run, show

from draftwise.compiled import warm_up
from draftwise.controller import acceptance, choice
from draftwise.controller.controller import Controller, Limits
from draftwise.controller.costs import Step, StepCosts
from draftwise.protocols import Policy
from draftwise.registry import make_policy
from draftwise.types import Decision, Feedback
from draftwise_lab.plotting import dress, panels, require_matplotlib

KINDS = ("cnn", "gsm8k", "instructcoder", "sharegpt")
NUM_REQUESTS = {1: 40, 4: 100, 16: 200, 64: 400, 128: 420}
SCHEDULING_MS, DRAFT_MS = 0.6, 0.15
LONGEST = 16
PIECE = 2048


Played = list[tuple[int, int]]
"""Accepted and verified tokens of each request in a step."""


class Prices:
    """Milliseconds of a step; ``factor`` scales them."""

    def __init__(self, file: Path, model: str) -> None:
        costs = np.load(file)
        tokens, linear, self._batch, self._context, self._attention = (
            costs[f"{model}/{name}"]
            for name in ("tokens", "linear_ms", "batch", "context", "attention_ms")
        )
        self.linear = np.interp(np.arange(4097), tokens, linear)
        self.draft_ms = 0.35 if "llama8b" in model else 0.6
        self.factor = 1.0

    def ms(self, tokens: int, requests: int, context: float, length: int) -> float:
        column = [
            np.interp(context, self._context[~np.isnan(row)], row[~np.isnan(row)])
            for row in self._attention
        ]
        drafting = length * self.draft_ms + DRAFT_MS if length else 0.0
        step = self.linear[min(tokens, 4096)] + np.interp(requests, self._batch, column)
        return self.factor * float(step + SCHEDULING_MS + drafting)

    def verifying_ms(self, requests: int, drafted: int) -> float:
        """Milliseconds that drafted tokens add to a step."""
        wide = self.linear[min(requests + drafted, 4096)]
        return self.factor * float(wide - self.linear[min(requests, 4096)])


@dataclass
class Text:
    """A request: its tokens, and how many head and retrieval predict at each position."""

    kind: str
    prompt: list[int]
    answer: list[int]
    head: list[int]
    lookup: list[tuple[int, int]] = field(default_factory=list)
    places: dict[int, list[int]] = field(default_factory=dict)

    def index(self, shortest: int = 2, longest: int = 5) -> None:
        """Find right and proposed tokens of the longest, latest n-gram match; -1, 0 without one."""
        text, index = self.prompt + self.answer, defaultdict(dict)
        for place, token in enumerate(text[:-1]):
            self.places.setdefault(token, []).append(place)
        for end in range(1, len(text) + 1):
            keys = [tuple(text[end - n : end]) for n in range(shortest, min(longest, end) + 1)]
            if len(self.prompt) < end < len(text):
                source = next((index[len(k)][k] for k in keys[::-1] if k in index[len(k)]), None)
                right = 0
                if source is not None:
                    most = min(LONGEST, len(text) - end, end - source)
                    while right < most and text[source + right] == text[end + right]:
                        right += 1
                self.lookup.append((-1, 0) if source is None else (right, min(16, end - source)))
            for key in keys:
                index[len(key)][key] = end


def indexed(kind: str, prompt: list[int], answer: list[int], head: list[int]) -> Text:
    text = Text(kind, prompt, answer, head)
    text.index()
    return text


def load(folder: Path, pattern: str = "acceptance_*.npz") -> list[Text]:
    texts = []
    for file in sorted(folder.glob(pattern)):
        data = np.load(file)
        for kind in KINDS:
            parts = [
                np.split(data[f"{kind}/{name}"], data[f"{kind}/{name}_ends"][:-1])
                for name in ("prompt", "answer", "eagle")
            ]
            for prompt, answer, head in zip(*parts, strict=True):
                num = min(len(head), len(answer) - 1)
                if num > 4:
                    accepted = (head[:num] - 1).clip(0).tolist()
                    own = prompt.tolist(), answer[: num + 1].tolist()
                    texts.append(indexed(kind, *own, accepted))
    return texts


@dataclass
class Row:
    text: Text
    number: int
    known: int = 2
    draft: Sequence[int] = ()

    @property
    def name(self) -> str:
        return f"request-{self.number}"

    @property
    def left(self) -> int:
        return len(self.text.answer) - self.known

    @property
    def room(self) -> int:
        return max(0, min(LONGEST, self.left - 1))

    @property
    def head(self) -> int:
        return self.text.head[self.known - 1]

    def lookup(self, ahead: int = 0) -> tuple[int, int]:
        """Right and proposed tokens of the match after ``ahead`` more tokens."""
        place = self.known - 1 + ahead
        return self.text.lookup[place] if place < len(self.text.lookup) else (-1, 0)


class Source:
    """Running requests, and waiting ones in random order. closed: the next ``size`` requests start
    when all previous ones have ended."""

    def __init__(self, texts: Sequence[Text], size: int, seed: int, closed: bool = False) -> None:
        self._queue = list(texts)
        random.Random(seed).shuffle(self._queue)
        self.size, self.rows, self._num, self._closed = size, [], 0, closed
        self.fill()

    def fill(self) -> list[Row]:
        self.rows = [row for row in self.rows if row.left > 0]
        new: list[Row] = []
        if self._closed and self.rows:
            return new
        while self._queue and len(self.rows) < self.size:
            new.append(Row(self._queue.pop(), self._num))
            self.rows.append(new[-1])
            self._num += 1
        return new

    @property
    def context(self) -> int:
        return context_of(self.rows)


def context_of(rows: Sequence[Row]) -> int:
    return sum(len(row.text.prompt) + row.known for row in rows)


class Rule:
    """A draft-length rule. Rows reveal how many tokens of each draft would be accepted; subclasses
    use only what they could have observed."""

    length = 0
    """Tokens that the head drafts in every step."""
    draft_s = 0.0
    """Seconds per token of the head's draft."""

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        """Choose and play each row's draft. seconds: of a step, by number of drafted tokens."""
        raise NotImplementedError


class Fixed(Rule):
    """Up to ``match`` retrieved tokens if there is a match, else ``length`` of the head. how: "or"
    for either, "then" for retrieval after the head's tokens."""

    def __init__(self, length: int, match: int = 0, how: str = "or") -> None:
        self.length, self._match, self._how = length, match, how

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        return [self.one(row) for row in rows]

    def one(self, row: Row) -> tuple[int, int]:
        room = row.left - 1
        num = min(self.length, room)
        kept = min(row.head, num)
        if self._how == "then":
            right, most = row.lookup(num)
            more = min(self._match, most, max(0, room - num)) if right >= 0 else 0
            return kept + (min(max(right, 0), more) if kept == num else 0), num + more
        right, most = row.lookup()
        found = min(self._match, most, room) if right >= 0 else 0
        return (min(right, found), found) if found else (kept, num)


class Oracle(Rule):
    """Knows which tokens are right, and has the better drafter propose exactly those."""

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        best = [(min(12, row.head), max(0, row.lookup()[0]), row.left - 1) for row in rows]
        self.length = max((h for h, m, _ in best if h > m), default=0)
        return [(min(max(h, m), left),) * 2 for h, m, left in best]


class Pooled(Rule):
    """Rules that learn one survival function for all requests, by position in the head's draft."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._seen = np.tile([3.5, 5.0], (LONGEST, 1))

    @property
    def survival(self) -> np.ndarray:
        return np.cumprod(self._seen[:, 0] / self._seen[:, 1])

    def _play(self, rows: list[Row], nums: Sequence[int]) -> Played:
        played = []
        for row, num in zip(rows, nums, strict=True):
            num = min(num, row.left - 1)
            kept = min(row.head, num)
            for j in range(min(num, kept + 1)):
                self._seen[j] = 0.9995 * self._seen[j] + (j < kept, 1.0)
            played.append((kept, num))
        return played


class AdaptiveVerification(Pooled):
    """vLLM's adaptive verification: K tokens are always drafted, and a shared budget is verified.

    Source: docs/features/speculative_decoding/adaptive_verification.md. Differs: survival is pooled
    instead of estimated from draft margins, which these data lack.
    """

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        gains = np.repeat(self.survival[: self.length], len(rows))
        totals = len(rows) + np.append(0.0, np.cumsum(gains))
        num = int((totals / [seconds(num) for num in range(len(totals))]).argmax())
        nums = [num // len(rows) + (i < num % len(rows)) for i in range(len(rows))]
        return self._play(rows, nums)


class Ladder(Pooled):
    """SGLang's ladder: the head's length by mean accepted length, in tiers by batch size.

    Source: SGLang's adaptive speculative decoding, default tiers. One step up if on average less
    than half a token is rejected, one step down if the lower length would suffice.
    """

    TIERS = ((64, (0,)), (32, (0, 1)), (8, (0, 1, 3)), (1, (1, 3, 5, 7)))

    def __init__(self) -> None:
        super().__init__(3)
        self._mean = 2.0

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        played = self._play(rows, [self.length] * len(rows))
        if self.length:
            self._mean = 0.8 * self._mean + 0.2 * float(np.mean([kept for kept, _ in played]))
        tiers = next(tiers for least, tiers in self.TIERS if len(rows) >= least)
        at = max((i for i, length in enumerate(tiers) if length <= self.length), default=0)
        if tiers[at] == self.length and self._mean > self.length - 0.5:
            at = min(at + 1, len(tiers) - 1)
        elif at and self._mean < tiers[at - 1] - 0.5:
            at -= 1
        self.length = tiers[at]
        return played


class ThroughputAware(Pooled):
    """SGLang's throughput-aware rule: the length with the most tokens per second, at least 1.

    Source: SGLang's throughput-aware adaptive policy with a start-up profile.
    """

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        played = self._play(rows, [self.length] * len(rows))
        totals = 1 + np.cumsum(self.survival)
        extra = [self.draft_s * k for k in range(1, 9)]
        rates = [
            totals[k - 1] / (seconds(k * len(rows)) + extra[k - 1] - extra[self.length - 1])
            for k in range(1, 9)
        ]
        self.length = 1 + int(np.argmax(rates))
        return played


class Marginal(Pooled):
    """SMART's rule: a token is verified while its gain per cost exceeds the current speed.

    Source: SMART (arXiv 2604.09731), for chains: tokens in order of survival, up to the first that
    fails.
    """

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        nums, total, num = [0] * len(rows), float(len(rows)), 0
        for j in range(self.length):
            for i in range(len(rows)):
                gain = self.survival[j]
                if gain * seconds(num) < total * (seconds(num + 1) - seconds(num)):
                    return self._play(rows, nums)
                nums[i], num, total = j + 1, num + 1, total + gain
        return self._play(rows, nums)


class Papers(Rule):
    """A paper's policy over drafters and lengths, one policy object per request. The reward is
    accepted tokens over the longest length. A plan is chosen at the end of a step, when the head
    drafts; for all requests the head drafts as many tokens as the longest chosen plan has."""

    PLANS = ((1, 0), (3, 0), (5, 0), (0, 8), (0, 0))

    def __init__(self, name: str, everything_seen: bool) -> None:
        self._name, self._everything = name, everything_seen
        self._policies: dict[str, tuple[Policy, Decision]] = {}

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> Played:
        played, policies, length = [], {}, 0
        for row in rows:
            policy, decision = self._policies.get(row.name) or self._new(len(self._policies))
            kept = [Fixed(*plan).one(row) for plan in self.PLANS]
            head, _ = self.PLANS[decision.plan]
            accepted, num = kept[decision.plan]
            played.append(
                (min(accepted, self.length), self.length) if head > self.length else (accepted, num)
            )
            seen = np.full(len(self.PLANS), self._everything)
            seen[decision.plan] = True
            policy.learn(decision, Feedback(np.array([k / 8 for k, _ in kept]), seen))
            policies[row.name] = policy, policy.choose()
            length = max(length, self.PLANS[policies[row.name][1].plan][0])
        self._policies, self.length = policies, length
        return played

    def _new(self, seed: int) -> tuple[Policy, Decision]:
        policy = make_policy(self._name, len(self.PLANS), np.random.SeedSequence(seed))
        return policy, policy.choose()


def play(
    texts: Sequence[Text], size: int, prices: Prices, rule: Rule, seed: int, closed: bool = False
) -> float:
    """Tokens per second of a rule while the batch is full; closed: over all steps."""
    source, ms, emitted = Source(texts, size, seed, closed), 0.0, 0
    rule.draft_s = prices.draft_ms / 1e3
    while source.rows:
        num, context, length = len(source.rows), source.context / len(source.rows), rule.length
        plain_ms = prices.ms(num, num, context, length)

        def seconds(drafted: int, plain_ms: float = plain_ms, num: int = num) -> float:
            return (plain_ms + prices.verifying_ms(num, drafted)) / 1e3

        played = rule.decide(source.rows, seconds)
        if isinstance(rule, Oracle):
            length = rule.length
        verified = sum(drafted for _, drafted in played)
        tokens = [min(row.left, a + 1) for row, (a, _) in zip(source.rows, played, strict=True)]
        if num == size or closed:
            ms += prices.ms(num + verified, num, context, length)
            emitted += sum(tokens)
        for row, count in zip(source.rows, tokens, strict=True):
            row.known += count
        source.fill()
    return 1e3 * emitted / ms


def astray(row: Row, truth: list[int], good: int, length: int, rng: random.Random) -> list[int]:
    """The head's tokens from its first wrong one on: text that follows the same token elsewhere."""
    if good >= len(truth):
        return []
    text, end = row.text.prompt + row.text.answer, len(row.text.prompt) + row.known
    before = truth[good - 1] if good else text[end - 1]
    places = [
        place
        for place in row.text.places.get(before, ())[:64]
        if place + length < end and text[place + 1] != truth[good]
    ]
    if not places:
        return [(token + 1) % 128_000 for token in truth[good:]]
    place = rng.choice(places)
    return text[place + 1 : place + 1 + len(truth) - good]


class Informed(Controller):
    """A controller with additional information, to measure its share of the gap to the oracle.

    "prices": true seconds. "no stairs": true seconds without their stairs. "model", "retrieval":
    which of that drafter's tokens are right. "length": how many of the model's tokens will be right
    in the next step; only with "model".
    """

    def __init__(self, limits: Limits, prices: Prices, knows: Sequence[str]) -> None:
        super().__init__(limits)
        self.knows, self.rows = frozenset(knows), []
        if self.knows & {"prices", "no stairs"}:
            self.costs = TrueCosts(prices, "no stairs" in self.knows)

    def choose(
        self, names: Sequence[str], rooms: Sequence[int],
        offers: Sequence[Sequence[int]] | None = None, is_searched: bool = False,
    ) -> list[list[int]]:  # fmt: skip
        """Choose this step's drafts with the additional information, and learn as without it."""
        chains = super().choose(names, rooms, offers, is_searched)
        known, num = self._known, len(names)
        if not (self.knows & {"model", "retrieval"}) or not self.costs.is_known:
            return chains
        slots, believed = np.array([self._slots[name] for name in names]), known.survival.copy()
        for slot, row in zip(slots, self.rows, strict=True):
            self._tell(slot, np.array(row.text.answer[row.known :]))
        known.facts[slots, acceptance.PLAYED_MODEL : acceptance.LAST] = 0
        context = int(known.facts[slots, acceptance.LENGTH].sum())
        seconds = self.costs.seconds(num, context, 0, self._most_tokens(num))
        rate = self._rate(num, seconds.item(0))
        choice.choose(slots, known, seconds, rate, self._drafts, self._bounds)
        known.survival[:] = believed
        return self._read(num)

    def _tell(self, slot: int, truth: np.ndarray) -> None:
        """Set which of a request's drafted tokens are right."""
        facts = self._known.facts[slot]
        num_offered = facts[acceptance.OFFERED]
        for which, num, begin, name in (
            (acceptance.MODEL, num_offered, 0, "model"),
            (acceptance.OWN, facts[acceptance.FOUND], 0, "retrieval"),
            (acceptance.AFTER, facts[acceptance.AFTER_FOUND], num_offered, "retrieval"),
        ):
            if name in self.knows:
                right = self._known.tokens[slot, which, :num] == truth[begin : begin + num]
                self._known.survival[slot, which, :num] = np.cumprod(right)

    def foresee(self) -> None:
        """Set the best length for the next step, whose outcome is known."""
        if "length" in self.knows and self.costs.is_known:
            heads, (fixed_s, each_s) = [], self.costs.draft_price
            for row in self.rows:
                after = row.known + _num_right(row) + 1
                heads.append(row.text.head[after - 1] if after <= len(row.text.head) else 0)
            lengths = np.arange(LONGEST + 1)
            gains = (1 - self._price) * np.minimum(np.array(heads)[:, None], lengths).sum(0)
            plain_s = self.costs.seconds(len(self.rows), context_of(self.rows), 0, 0).item()
            rate = self._rate(len(self.rows), plain_s)
            prices = rate * (fixed_s + each_s * lengths) * (lengths > 0)
            self.num_to_draft = int((gains - prices).argmax())


class TrueCosts(StepCosts):
    """True seconds of steps; stairs may be levelled."""

    def __init__(self, prices: Prices, is_level: bool) -> None:
        super().__init__()
        self._prices, self._level = prices, prices.linear
        if is_level:
            ends = 2 ** np.arange(13)
            self._level = np.interp(np.arange(4097), ends, prices.linear[ends])

    def seconds(
        self, num_requests: int, num_context: int, num_drafted: int, num_tokens: int
    ) -> np.ndarray:
        plain = self._prices.ms(num_requests, num_requests, num_context / num_requests, num_drafted)
        some = self._level[num_requests : num_requests + num_tokens + 1]
        return (plain + some - some[0]) / 1e3

    @property
    def draft_price(self) -> tuple[float, float]:
        return DRAFT_MS / 1e3, self._prices.draft_ms / 1e3


INGREDIENTS = {
    "price": ("prices",), "price without stairs": ("no stairs",), "model's tokens": ("model",),
    "retrieval's tokens": ("retrieval",), "drafter and length": ("model", "retrieval"),
    "and the next length": ("model", "retrieval", "length"),
    "all": ("prices", "model", "retrieval", "length"),
}  # fmt: skip


@dataclass
class Run:
    """A run of the controller. steps: by full step, seconds, the controller's seconds, tokens,
    plain seconds. promises: after each step, the tokens promised and kept so far, and the number of
    ended requests."""

    controller: Controller
    steps: list[tuple[float, float, int, float]] = field(default_factory=list)
    promises: list[tuple[float, float, int]] = field(default_factory=list)

    def speed(self, counted: bool = False, first_s: float = np.inf) -> float:
        """Speed relative to plain decoding over the first ``first_s`` seconds."""
        columns = np.array(self.steps)
        columns = columns[np.cumsum(columns[:, 0]) - columns[:, 0] < first_s]
        seconds = columns[:, 0] + (columns[:, 1] if counted else 0.0)
        return float(columns[:, 3].sum() / seconds.sum())

    def worst(self, num: int = 2000) -> float:
        """The lowest speed over any ``num`` steps, including the controller's time."""
        columns = np.array(self.steps)
        seconds = np.append(0.0, np.cumsum(columns[:, 0] + columns[:, 1]))
        plain = np.append(0.0, np.cumsum(columns[:, 3]))
        num = min(num, len(columns))
        return float(((plain[num:] - plain[:-num]) / (seconds[num:] - seconds[:-num])).min())

    @property
    def all_promised(self) -> float:
        return self.controller.promised / self.controller.kept

    def promised(self, num: int = 200) -> tuple[float, float]:
        """The lowest and highest ratio of promised to kept tokens while ``num`` requests end."""
        promised, kept, ended = np.array([(0.0, 0.0, 0), *self.promises]).T
        num = min(num, int(ended[-1]))
        starts = np.flatnonzero(ended <= ended[-1] - num)
        ends = np.searchsorted(ended, ended[starts] + num)
        ratios = (promised[ends] - promised[starts]) / (kept[ends] - kept[starts])
        return float(ratios.min()), float(ratios.max())


def drive(
    texts: Sequence[Text], size: int, prices: Prices, seed: int, double_after: int = 0,
    knows: Sequence[str] = (), closed: bool = False, late: float = 0.0,
) -> Run:  # fmt: skip
    """Run the controller as an engine does; closed: record all steps, and announce answer lengths.
    late: standard deviation, in plain steps, of the time at which a step is reported; a step that
    is reported late appears long, and the next one short."""
    limits = Limits(model=True)
    run = Run(Informed(limits, prices, knows) if knows else Controller(limits))
    controller, rng = run.controller, random.Random(seed + 1)
    source = Source(texts, size, seed, closed)

    def begin(row: Row) -> None:
        text = row.text.prompt + row.text.answer[: row.known]
        controller.begin(row.name, text, num_left=row.left if closed else None)

    for row in source.rows:
        begin(row)
    own_s = late_s = 0.0
    while source.rows:
        rows, context, length = source.rows, source.context, controller.num_to_draft
        num, names = len(rows), [row.name for row in rows]
        if double_after and len(run.steps) == double_after:
            prices.factor = 2.0
        tokens = num + sum(len(row.draft) for row in rows)
        seconds = prices.ms(tokens, num, context / num, length) / 1e3
        plain = prices.ms(num, num, context / num, 0) / 1e3
        emitted = [_emit(row) for row in rows]
        before_s, late_s = late_s, rng.gauss(0.0, late * plain) if late else 0.0
        reported_s = max(seconds + late_s - before_s, 1e-4)
        begin_s = time.thread_time()
        step = Step(num, tokens, reported_s, length, context, own_seconds=own_s)
        controller.observe(step, names, emitted)
        own_s = time.thread_time() - begin_s
        num_ended = 0
        for row in rows:
            if row.left <= 0:
                controller.end(row.name)
                num_ended += 1
        total = run.promises[-1][2] if run.promises else 0
        run.promises.append((controller.promised, controller.kept, total + num_ended))
        for row in source.fill():
            begin(row)
        if source.rows:
            own_s += _choose(controller, source.rows, length, rng)
        controller.work()
        if num == size or closed:
            count = sum(map(len, emitted))
            run.steps.append((seconds, own_s, count, plain * count / num))
    prices.factor = 1.0
    return run


def _choose(controller: Controller, rows: list[Row], length: int, rng: random.Random) -> float:
    """Let the controller choose the next drafts; return its seconds."""
    offers = []
    for row in rows:
        truth = row.text.answer[row.known : row.known + length]
        good = min(row.head, length)
        offers.append(truth[:good] + astray(row, truth, good, length, rng))
    names, rooms = [row.name for row in rows], [row.room for row in rows]
    if isinstance(controller, Informed):
        controller.rows = rows
    begin_s = time.thread_time()
    chains = controller.choose(names, rooms, offers if length else None)
    own_s = time.thread_time() - begin_s
    for row, chain in zip(rows, chains, strict=True):
        row.draft = chain
    if isinstance(controller, Informed):
        controller.foresee()
    return own_s


def _num_right(row: Row) -> int:
    pairs = zip(row.draft, row.text.answer[row.known :], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(row.draft))


def _emit(row: Row) -> list[int]:
    truth, kept = row.text.answer[row.known :], _num_right(row)
    row.known += min(kept + 1, len(truth))
    return truth[: kept + 1]


SIMPLE = {
    **{f"e{k}": (k,) for k in (1, 2, 3, 5, 7)}, "l8": (0, 8),
    "l4|e2": (2, 4), "l8|e3": (3, 8), "l16|e5": (5, 16),
}  # fmt: skip
CHAINS = {f"e{k}>l{m}": (k, m, "then") for k in (2, 3) for m in (4, 8)}
SHIPPED: dict[str, Callable[[], Rule]] = {
    "vllm": lambda: AdaptiveVerification(5), "ladder": Ladder,
    "throughput": lambda: ThroughputAware(1), "smart": lambda: Marginal(5),
}  # fmt: skip

PAPERS = ("ucb1", "ucbspec", "exp3spec", "ucb-tuned", "normalhedge")
"""Policies of MetaSD, BanditSpec (two), TapOut, HedgeSpec."""


def cell(texts: list[Text], size: int, prices: Prices, seeds: Sequence[int]) -> dict[str, Any]:
    """One batch size: every rule and the controller, relative to plain decoding."""
    plain = play(texts, size, prices, Fixed(0), 0)

    def relative(rule: Rule) -> float:
        return play(texts, size, prices, rule, 0) / plain

    simple, chains = (
        {name: relative(Fixed(*options)) for name, options in rules.items()}
        for rules in (SIMPLE, CHAINS)
    )
    papers = {name: relative(Papers(name, name == "normalhedge")) for name in PAPERS}
    best, oracle = max(simple, key=simple.__getitem__), relative(Oracle())
    found: dict[str, Any] = {
        "requests": size, "best": best, "best_speed": simple[best],
        "best_chain": max(chains.values()), "oracle": oracle,
        **{name: relative(make()) for name, make in SHIPPED.items()},
        "best_paper": max(papers.values()),
    }  # fmt: skip
    runs = [drive(texts, size, prices, seed) for seed in seeds]
    speed = float(np.mean([run.speed() for run in runs]))
    found |= {
        "chain": speed,
        "chain_counted": float(np.mean([run.speed(counted=True) for run in runs])),
        "chain_of_best": speed / simple[best],
        "chain_gap": (speed - simple[best]) / (oracle - simple[best]),
        "chain_cold": float(np.mean([run.speed(first_s=2.0) for run in runs])),
        "chain_promised": float(np.mean([run.all_promised for run in runs])),
        "chain_promised_least": min(run.promised()[0] for run in runs),
        "chain_promised_most": max(run.promised()[1] for run in runs),
    }
    return found | {"rules": {**simple, **chains, **papers}}


def gap(texts: list[Text], size: int, prices: Prices, seeds: Sequence[int]) -> dict[str, Any]:
    """Speed of the chain with additional information relative to the chain without."""

    def speed(knows: Sequence[str]) -> float:
        runs = [drive(texts, size, prices, seed, knows=knows) for seed in seeds]
        return float(np.mean([run.speed() for run in runs]))

    base = speed(())
    return {"requests": size, **{k: speed(v) / base for k, v in INGREDIENTS.items()}}


def strange(texts: list[Text], size: int, seed: int = 0) -> Iterator[tuple[str, list[Text]]]:
    """Yield, by name, texts on which drafting may lose to plain decoding."""
    rng = random.Random(seed)
    for kind in KINDS:
        yield kind, [text for text in texts if text.kind == kind][: max(size + 8, 12)]
    some = random.Random(7).sample(texts, min(len(texts), max(2 * size, 12)))

    def noise(text: Text, head: list[int]) -> Text:
        prompt, answer = ([rng.randrange(10**6) for _ in p] for p in (text.prompt, text.answer))
        return indexed(text.kind, prompt, answer, head)

    yield "head never right", [replace(text, head=[0] * len(text.head)) for text in some]
    yield "no matches", [noise(text, text.head) for text in some]
    nothing, left = [], 2500 * size  # tokens: enough for more than 2,000 steps
    while left > 0:
        text = texts[len(nothing) % len(texts)]
        nothing.append(noise(text, [0] * len(text.head)))
        left -= len(text.answer)
    yield "nothing to draft", nothing
    yield from ((name, some) for name in ("prices double", "all kinds", "all kinds, late"))
    yield "nothing to draft, late", nothing


LATE = 0.08
"""``late`` of ``drive`` for late steps, as on an H200."""


def safety(texts: list[Text], size: int, prices: Prices) -> list[dict[str, Any]]:
    """The controller on such texts: its worst 2,000 steps, including its own time."""
    rows = []
    for name, some in strange(texts, size):
        if len(some) < size:
            continue
        double_after, late = 40 * (name == "prices double"), LATE * ("late" in name)
        run = drive(some, size, prices, 0, double_after=double_after, late=late)
        rows.append({
            "requests": size, "text": name, "steps": len(run.steps), "speed": run.speed(),
            "worst": run.worst(), "cold": run.speed(first_s=2.0),
        })  # fmt: skip
    return rows


def closed_batches(texts: list[Text], size: int, prices: Prices, num_tokens: int) -> dict[str, Any]:
    """Batches whose requests start together, emit equally many tokens and are not replaced."""
    long = [text for text in texts if len(text.answer) >= num_tokens + 2]
    some = random.Random(3).sample(long, min(max(8 * size, 40), len(long)) // size * size)
    some = [replace(text, answer=text.answer[: num_tokens + 2]) for text in some]
    plain = play(some, size, prices, Fixed(0), 0, closed=True)
    rules = {
        name: play(some, size, prices, Fixed(*options), 0, closed=True) / plain
        for name, options in SIMPLE.items()
    }
    columns = np.array(drive(some, size, prices, 0, closed=True).steps)
    first = int(np.searchsorted(np.cumsum(columns[:, 2]), size * num_tokens)) + 1

    def speed(part: np.ndarray) -> float:
        return float(part[:, 2].sum() / part[:, 0].sum() / plain)

    best = max(rules, key=rules.__getitem__)
    return {
        "requests": size, "batches": len(some) // size, "best": best, "best_speed": rules[best],
        "first_batch": speed(columns[:first]), "others": speed(columns[first:]), "rules": rules,
    }  # fmt: skip


def arrivals(file: Path, num: int) -> list[float]:
    """Seconds from a trace's first request to each of the first ``num`` requests."""
    times = []
    with file.open() as lines:
        for line in itertools.islice(csv.DictReader(lines), num):
            times.append(datetime.fromisoformat(line["TIMESTAMP"][:26]).timestamp())
    return [at - times[0] for at in times]


Reading = list[tuple[Row, int, float]]
"""Requests in prefill: their tokens prefilled so far, and their arrival in seconds."""


def _read(reading: Reading) -> tuple[int, Reading, Reading]:
    """One chunk of prefill: its tokens, the requests whose prefill is complete, and the others."""
    prefill, ready, still = 0, [], []
    for row, done, at in reading:
        part = min(len(row.text.prompt) - done, PIECE - prefill)
        prefill += part
        is_read = done + part == len(row.text.prompt)
        (ready if is_read else still).append((row, done + part, at))
    return prefill, ready, still


def served(
    texts: Sequence[Text], times: Sequence[float], prices: Prices, speedup: float, drafts: bool
) -> dict[str, Any]:
    """Serve requests that arrive by a trace; prefill is chunked and shares steps with decoding."""
    controller, rng, drawn = Controller(Limits(model=True)), random.Random(0), random.Random(1)
    waiting = [(at / speedup, drawn.choice(texts)) for at in times][::-1]
    reading: Reading = []
    rows: list[Row] = []
    now_s = busy_s = 0.0
    num_begun, waits, paces, began = 0, [], [], {}
    while waiting or reading or rows:
        if not (reading or rows):
            now_s = max(now_s, waiting[-1][0])
        while waiting and waiting[-1][0] <= now_s and len(reading) + len(rows) < 256:
            at, text = waiting.pop()
            reading.append((Row(text, num_begun), 0, at))
            num_begun += 1
        prefill, ready, reading = _read(reading)
        num, length = len(rows), controller.num_to_draft if drafts and rows else 0
        tokens, context = num + prefill + sum(len(row.draft) for row in rows), context_of(rows)
        seconds = prices.ms(tokens, max(num, 1), context / max(num, 1), length) / 1e3
        emitted = [_emit(row) for row in rows]
        names = [row.name for row in rows]
        begin_s = time.thread_time()
        if drafts:
            step = Step(num, tokens, seconds, length, context, prefill)
            controller.observe(step, names, emitted)
        own_s = time.thread_time() - begin_s
        for row in rows:
            if row.left <= 0:
                controller.end(row.name)
                paces.append((now_s + seconds - began[row.name]) / (len(row.text.answer) - 2))
        rows = [row for row in rows if row.left > 0]
        for row, _, at in ready:
            waits.append(now_s + seconds - at)
            began[row.name] = now_s + seconds
            rows.append(row)
            if drafts:
                controller.begin(row.name, row.text.prompt + row.text.answer[: row.known])
        if drafts and rows:
            own_s += _choose(controller, rows, length, rng)
            controller.work()
        now_s, busy_s = now_s + seconds + own_s, busy_s + seconds + own_s
    return {
        "drafts": drafts, "busy_s": busy_s, "mean_ms_a_token": 1e3 * float(np.mean(paces)),
        "p90_ms_a_token": 1e3 * float(np.quantile(paces, 0.9)),
        "mean_first_token_ms": 1e3 * float(np.mean(waits)),
    }  # fmt: skip


LINES = {
    "oracle": ("oracle, one drafter", "k:"),
    "chain": ("draftwise", "C1-"),
    "best_speed": ("best fixed rule, in hindsight", "C2--"),
    "best_paper": ("best policy of the papers", "C3-."),
    "vllm": ("vLLM, adaptive verification", "C7-"),
    "throughput": ("SGLang, throughput-aware", "C7--"),
    "ladder": ("SGLang, ladder", "C7:"),
    "smart": ("SMART", "C7-."),
}


def figure(cells: list[dict[str, Any]], path: str) -> None:
    picture, (axes,) = panels(1, 1, 7.5, 4)
    sizes = [row["requests"] for row in cells]
    for name, (label, style) in LINES.items():
        axes.plot(sizes, [row[name] for row in cells], style, label=label, marker=".")
    axes.axhline(1.0, color="k", linewidth=0.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    dress(axes, xlabel="concurrent requests", ylabel="speed relative to plain decoding")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    picture.savefig(path)


def main() -> None:
    run(
        __doc__, replay, model="llama8b_bf16_1xh100", requests=list(NUM_REQUESTS), seeds=[0, 1, 2],
        data={"type": Path, "required": True, "help": "folder of the data"},
        texts={"type": int, "help": "answers of each run; default: 40 to 420"},
        safety={"action": "store_true", "help": "also texts where drafting may lose"},
        closed={"type": int, "metavar": "N", "help": "only closed batches, N tokens a request"},
        gap={"action": "store_true", "help": "also what each missing fact is worth"},
        arrivals={"type": Path, "help": "trace of requests: served as they arrive"},
        speedup={"type": float, "default": 4.0, "help": "of the trace's clock"},
        figure={"help": "picture of speeds over batch sizes"},
    )  # fmt: skip


def replay(args: argparse.Namespace) -> dict[str, Any]:
    if args.figure:
        require_matplotlib()
    warm_up()
    texts, prices = load(args.data), Prices(args.data / "step_costs.npz", args.model)
    if args.closed:
        rows = [closed_batches(texts, size, prices, args.closed) for size in args.requests]
        show([{k: v for k, v in row.items() if k != "rules"} for row in rows], args.model)
        return {"model": args.model, "closed": rows}
    return {"model": args.model} | open_traffic(args, texts, prices)


def open_traffic(args: argparse.Namespace, texts: list[Text], prices: Prices) -> dict[str, Any]:
    """Every batch size, with requests that are replaced when they end."""
    cells, safe, gaps = [], [], []
    for size in args.requests:
        num = min(args.texts or NUM_REQUESTS.get(size, 3 * size), len(texts))
        some = random.Random(100).sample(texts, num)
        cells.append(cell(some, size, prices, args.seeds))
        if args.gap:
            gaps.append(gap(some, size, prices, args.seeds))
        if args.safety:
            safe += safety(texts, size, prices)
    names = [name for name in cells[0] if name != "rules"]
    for part in (names[:10], [names[0], *names[10:]]):
        show([{name: row[name] for name in part} for row in cells], args.model)
    times = arrivals(args.arrivals, 300) if args.arrivals else []
    ways = (False, True) if times else ()
    at_times = [served(texts, times, prices, args.speedup, drafts) for drafts in ways]
    for rows, title in (
        (gaps, "speed with one thing known, relative to the chain"),
        (safe, "where drafting may lose"),
        (at_times, f"requests as they arrive, {args.speedup:g} times as fast"),
    ):
        if rows:
            show(rows, title)
    if args.figure:
        figure(cells, args.figure)
    return {"cells": cells, "gaps": gaps, "safety": safe, "arrivals": at_times}


if __name__ == "__main__":
    main()
