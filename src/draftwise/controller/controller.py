"""The controller of the vLLM plug-in and of replay: chooses a draft for every running request.

``choose`` has four steps: acceptance, expected tokens, seconds, choice. The guard keeps drafting
from being slower than plain decoding, the look-ahead decides the model drafter's length one step
early, and retrieval searches the texts. The controller depends on no torch, engine or clock: an
engine reports the facts of its steps and receives drafts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np

import draftwise.controller.acceptance as acceptance
from draftwise.compiled import warm_up
from draftwise.controller.acceptance import (
    AFTER_FOUND,
    FOUND,
    LAST,
    LENGTH,
    OFFERED,
    PLAYED_MATCH,
    PLAYED_MODEL,
    new_slots,
    new_tables,
)  # fmt: skip
from draftwise.controller.batches import Batches
from draftwise.controller.choice import PRICES, best_length, choose, mean_surplus
from draftwise.controller.costs import Step, StepCosts, like
from draftwise.controller.guard import IDLE_STEPS, WITH_MODEL, Guard, Next, Tuning
from draftwise.controller.mixing import Hazards, hazards_of
from draftwise.retrieval.index import Numbers, RetrievalIndex, Tokens
from draftwise.retrieval.kernels import Proposals
from draftwise.types import Floats, Ints

_NOTHING = np.zeros(0, np.int64)
_NO_TOKENS = np.zeros(0, np.int32)
_UNSEARCHED = Proposals(
    np.zeros((0, 1), np.int32), _NO_TOKENS, _NO_TOKENS, _NO_TOKENS, _NO_TOKENS,
    np.zeros(0, np.bool_),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an engine.

    max_draft: maximum tokens of a request's draft. max_step_tokens: maximum tokens of a step.
    model: whether the engine has a model drafter, which drafts for all requests or none.
    retrieval: whether texts are searched. longest_model: maximum tokens that the model drafter
    writes; None: max_draft.
    """

    max_draft: int = 16
    max_step_tokens: int = 8192
    model: bool = False
    retrieval: bool = True
    longest_model: int | None = None


class Index(Protocol):
    """Where the controller gets retrieved drafts from: see ``RetrievalIndex``."""

    def open(self, slot: int, tokens: Tokens, *, tenant: int = 0, shares: bool = True) -> None: ...

    def close(self, slot: int) -> None: ...

    def extend(self, slots: Numbers, tokens: Tokens, counts: Numbers) -> None: ...

    def propose(self, slots: Numbers, limits: Numbers) -> Proposals: ...

    def propose_after(
        self, slots: Numbers, drafts: acceptance.Int32, num_drafted: Numbers, limits: Numbers
    ) -> Proposals: ...

    def work(self, max_tokens: int) -> bool: ...


class Controller:
    """Learns from every step what to draft for every running request.

    Call order for each step: ``observe`` its facts, ``end`` and ``begin`` requests, ``choose`` the
    next drafts, and ``work`` while the engine computes. ``num_to_draft`` is the number of tokens
    that the model drafter should write for each request during the coming step.

    A model drafter writes at the end of a step, for all requests, before the step's tokens are
    known. The look-ahead therefore keeps the mean worth of model drafts of 0, 1, .. tokens over
    recent requests and steps, in expected tokens per request: after every choice, requests
    contribute the worth that each length would have had for them, at several prices of a verified
    token. Length and width of the next step are weighed together by these.

    index: replaces the retrieval index. ``price``: expected tokens that a verified token must
    bring, at the latest choice. ``terms``: what the choice weighed against expected tokens: seconds
    by number of drafted tokens (until the next choice), and tokens per second; None: nothing may be
    drafted.

    State: drafts and proposals by slot; acceptance tables, cost model, guard, account of closed
    batches, look-ahead (means by price and length, with the number of steps) and the longest draft
    while wider steps are unmeasured, which all requests share.
    """

    def __init__(
        self, limits: Limits, *, history_tokens: int = 1 << 18, index: Index | None = None
    ) -> None:
        warm_up()
        self.limits = limits
        length = limits.max_draft
        self.costs = StepCosts()
        self.guard = Guard(WITH_MODEL if limits.model else Tuning())
        self.batches = Batches(4.0 if limits.model else 0.0)
        self.num_to_draft = 0
        self.price = 0.0
        self.terms: tuple[Floats, float] | None = None
        self.promised = self.kept = 0.0
        self._tables = new_tables(length)
        self._is_reported = index is not None
        self._has_index = limits.retrieval or self._is_reported
        self._index = RetrievalIndex(length, history_tokens) if index is None else index
        self._worth = np.zeros((len(PRICES), length + 2))
        self._is_plain = False
        self._worth_s = self._spent_s = 0.0
        self._price = 0.0
        self._last_s = 0.0
        self._trial = limits.max_draft
        self._num_choices = 0
        self._is_weighed = self._is_probe = False
        self._to_learn = _NOTHING
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._num_slots = 0
        self._known = new_slots(0, length)
        self._allowed = np.ones((0, 2), np.int64)  # the model drafter, and retrieval
        self._restricted: set[int] = set()
        self._grow(16)

    def _grow(self, num: int) -> None:
        length = self.limits.max_draft
        self._free += range(num - 1, self._num_slots - 1, -1)
        self._known = new_slots(num, length, self._known)
        self._allowed = np.vstack([self._allowed, np.ones((num - self._num_slots, 2), np.int64)])
        self._rows, self._nums, self._left = np.zeros((3, num), np.int64)
        self._offered = np.zeros((num, length), np.int32)
        self._drafts = np.zeros(num * length, np.int32)
        self._bounds = np.zeros(num + 1, np.int64)
        self.batches.grow(num)
        self._num_slots = num

    def begin(
        self, name: str, tokens: Sequence[int], *, tenant: int = 0, shares: bool = True,
        model: bool = True, retrieval: bool = True, num_left: int | None = None,
    ) -> None:  # fmt: skip
        """Add a request after its prefill, with its text so far.

        tenant: texts of other tenants are never proposed. shares: whether the request's answer may
        be proposed to other requests of its tenant. model, retrieval: whether it may use these
        drafters. num_left: maximum tokens that it may still emit; None: no limit.
        """
        if name in self._slots:
            self.end(name)
        if not self._free:
            self._grow(2 * self._num_slots)
        slot = self._free[-1]
        if self._has_index:
            self._index.open(slot, tokens, tenant=tenant, shares=shares)
        running = self._running()
        lengths = self._known.facts[running, LENGTH]
        self.batches.begin(slot, len(tokens), num_left, running, lengths)
        self._free.pop()
        self._slots[name] = slot
        self._allowed[slot] = model, retrieval
        if not (model and retrieval):
            self._restricted.add(slot)
        self._known.facts[slot] = 0
        self._known.factors[slot] = 0.0
        self._known.worth[slot] = 1.0
        self._known.facts[slot, LENGTH] = len(tokens)

    def end(self, name: str) -> None:
        """Remove a request that finished or was cancelled; unknown names are ignored."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            if self._has_index:
                self._index.close(slot)
            self._restricted.discard(slot)
            self._free.append(slot)
            self.guard.correct(self.batches.end(len(self._slots)))

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def _running(self) -> Ints:
        return np.fromiter(self._slots.values(), np.int64, len(self._slots))

    def observe(
        self, step: Step, names: Sequence[str], emitted: Sequence[Sequence[int]],
        num_verified: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Learn from a step: its facts, and the tokens that it emitted for each request.

        num_verified: drafted tokens that were verified, if the engine truncated drafts.
        """
        self._learn_lengths()
        num = len(names)
        slots = np.fromiter(map(self._slots.__getitem__, names), np.int64, num)
        counts = np.fromiter(map(len, emitted), np.int64, num)
        tokens = np.fromiter(chain.from_iterable(emitted), np.int32)
        advance = None
        if num > 1 and len(tokens) > num and self.batches.may_be_closed:
            advance = self.batches.advance(slots, self._known.facts[slots, LENGTH], counts)
        verified = _NOTHING if num_verified is None else np.fromiter(num_verified, np.int64, num)
        context = acceptance.learn(slots, tokens, counts, verified, self._known, self._tables)
        if step.num_context is not None:
            context = step.num_context
        self._account(step, context, len(tokens), advance)
        self.kept += len(tokens)
        if self.limits.retrieval:
            self._index.extend(slots, tokens, counts)

    def _account(self, step: Step, context: int, num_emitted: int, advance: float | None) -> None:
        plain = self.costs.observe(step, context)
        if self.costs.largest <= step.num_requests:
            self._trial = 1
        if not self.costs.is_known or step.num_requests == 0:
            return
        # a longer pause of the host, such as a garbage collection, is not a cost of drafting
        own_s = min(step.own_seconds, plain)
        seconds = counted_s = self.costs.counted_s + own_s
        proven_s = self.costs.proven_s
        if step.num_tokens - step.num_prefill <= step.num_requests and not step.num_drafted:
            plain = proven_s = seconds  # overhead in a plain step is not a loss by drafting
        else:  # prefill takes the same time without drafts
            read_s = self.costs.prefill_seconds(step.num_requests, step.num_prefill)
            seconds = max(seconds - read_s, 0.0)
        batch_s = worth_s = num_emitted / step.num_requests * plain
        self.guard.observe(
            num_emitted / step.num_requests, seconds, plain, proven_s=proven_s,
            confirmed=self.costs.confirmed,
        )  # fmt: skip
        if advance is not None:  # the slowest request saves whole steps, the others their share
            request_s = self._request_seconds(step.num_requests, context, plain)
            batch_s = advance * (plain - step.num_requests * request_s) + num_emitted * request_s
        self.batches.observe(worth_s, batch_s, seconds, plain)
        if self.batches.is_bounded:
            worth_s = batch_s
        self._worth_s = 0.995 * self._worth_s + worth_s
        self._spent_s = 0.995 * self._spent_s + counted_s
        self._last_s = seconds

    def _request_seconds(self, num: int, context: int, plain: float) -> float:
        """Seconds that each of num > 1 requests adds to a plain step."""
        alone = self.costs.seconds(1, context // num, 0, 0).item()
        return float(plain - alone) / (num - 1)

    def recall(
        self, names: Sequence[str], rooms: Sequence[int],
        offers: Sequence[Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """Take up what drafters proposed for a step that ends; arguments as of ``choose``.

        For engines in which ``choose`` has already decided on later steps: call it, ``plays`` and
        ``observe``.
        """
        self._learn_lengths()
        if names:
            self._survivals(self.slots(names), np.fromiter(rooms, np.int64, len(names)), offers)

    def plays(
        self, names: Sequence[str], num_model: Sequence[int] | Ints,
        num_match: Sequence[int] | Ints,
    ) -> None:  # fmt: skip
        """Record what a step verified, before ``observe``, if others than ``choose`` decided it.

        names: as of ``recall``. num_model: tokens of the model in each draft. num_match: tokens of
        retrieval, after the model's if there are any.
        """
        slots, facts = self.slots(names), self._known.facts
        offered = facts[slots, OFFERED]
        facts[slots, PLAYED_MODEL] = by_model = np.minimum(num_model, offered)
        found = np.where(by_model > 0, facts[slots, AFTER_FOUND], facts[slots, FOUND])
        facts[slots, PLAYED_MATCH] = np.minimum(num_match, found)

    def slots(self, names: Sequence[str]) -> Ints:
        """The slots of requests, as the index knows them."""
        return np.fromiter(map(self._slots.__getitem__, names), np.int64, len(names))

    @property
    def hazards(self) -> Hazards:
        """What all requests have taught about drafts, for a device that chooses among them."""
        return hazards_of(self._tables)

    def factors(self, names: Sequence[str]) -> Floats:
        """[requests, 2] factors of the model's and of retrieval's hazards, by request."""
        return acceptance.factors_of(self.slots(names), self._known)

    def choose(
        self, names: Sequence[str], rooms: Sequence[int],
        offers: Sequence[Sequence[int]] | None = None, is_searched: bool = False,
    ) -> list[list[int]]:  # fmt: skip
        """Choose the next step's drafts, one per request; empty where plain decoding is best.

        rooms: maximum tokens of each draft. offers: tokens that the model drafter wrote.
        is_searched: whether the index has proposals, although no search may be due.
        """
        num, self.terms = len(names), None
        if num == 0:
            return []
        kind = self.next_step(num, is_searched or any(offers or ()))
        if kind is Next.REST:
            self.rest(num)
            return [[] for _ in names]
        self._learn_lengths()
        self._num_choices += 1
        slots = np.fromiter(map(self._slots.__getitem__, names), np.int64, num)
        # 1. acceptance: the survival probability of each further token
        width, context = self._survivals(slots, np.fromiter(rooms, np.int64, num), offers)
        self._weigh(slots, context)
        most, margin = self._most_tokens(num), self._margin(num)
        # 2. and 3. expected tokens, and seconds by the number of tokens
        seconds = self.costs.seconds(num, context, 0, most)
        plain_s = seconds.item(0)
        self._is_plain = False
        # the model's tokens are already paid for: verify them even if the account is empty
        if kind is Next.PLAIN and not (width and most > 0):
            self.promised += num
            self.guard.num_idle += 1
            self._decide_length(num, seconds, margin)
            return [[] for _ in names]
        if margin == math.inf:  # probed tokens teach by the first of them
            most = min(most, num)
            seconds = seconds[: most + 1]
        if (left_s := self.batches.step_credit_s) < math.inf:
            num_in = int(np.searchsorted(seconds, plain_s + left_s, "right"))
            most = max(num_in - 1, 0)
            seconds = seconds[: most + 1]
        # 4. choice: one price of a token for all requests
        rate = self._rate(num, plain_s) * (1.0 if width else margin)
        self.terms = seconds, rate
        drafted, expected, price = choose(
            slots, self._known, seconds, rate, self._drafts, self._bounds
        )
        self.promised += num + expected
        # the draft of a probe does not predict the next steps
        guard = self.guard
        guard.num_idle = 0 if drafted and not self._is_probe else guard.num_idle + 1
        self._price += (1 - 0.8) * (price - self._price)
        # just below a stair a token costs what it displaces, elsewhere its marginal seconds
        step = min(2 * num, most - drafted)
        if step > 0:
            ahead = seconds.item(drafted + step) - seconds.item(drafted)
            price = min(price, max(0.0, rate * ahead / step))
        if self._restricted:
            slots = slots[self._allowed[slots, 0] > 0]
        self.price = price
        self._to_learn = slots
        self._decide_length(num, seconds, margin)
        if not drafted:
            return [[] for _ in names]
        drafts = self._read(num)
        if self._trial < self.limits.max_draft:
            self._trial = max(self._trial + 1, 2 * max(map(len, drafts)))
        return drafts

    def _weigh(self, slots: Ints, context: int) -> None:
        """Set the worth of each request's tokens, which in a closed batch depends on its end."""
        worth, num = self._known.worth, len(slots)
        if num > 1 and self.batches.is_bounded and self.costs.is_known:
            plain = self.costs.seconds(num, context, 0, 0).item()
            share = num * self._request_seconds(num, context, plain) / max(plain, 1e-9)
            lengths = self._known.facts[slots, LENGTH]
            worth[slots] = self.batches.worths(slots, lengths, min(max(share, 0.0), 1.0))
        elif self._is_weighed:
            worth[:] = 1.0
        self._is_weighed = num > 1 and self.batches.is_bounded

    def rests(self, num: int) -> bool:
        """Whether the next step of ``num`` requests drafts nothing, whatever their texts are.

        If True, the engine skips ``choose`` and need not collect its arguments. Always False with
        a model drafter, whose length ``choose`` decides.
        """
        if self.limits.model or self.next_step(num, False) is not Next.REST:
            return False
        self.rest(num)
        return True

    def next_step(self, num: int, has_drafts: bool) -> Next:
        """What the next step of ``num`` requests does; has_drafts: there are some already.

        ``rests`` and ``choose`` follow it.
        """
        is_due = has_drafts or self._is_search_due(self._num_choices + 1)
        if self.limits.model:  # ``choose`` decides the length of its next drafts
            is_due = is_due or self.guard.num_idle < IDLE_STEPS
        else:
            is_due = is_due and self.limits.retrieval
        if not is_due:
            return Next.REST
        may_draft = self._most_tokens(num) > 0 and self._margin(num) < math.inf
        return Next.DRAFT if may_draft and not self._is_plain else Next.PLAIN

    def wants_drafts(self, num: int) -> bool:
        """Whether ``choose`` will look at drafts of ``num`` requests that are written next."""
        return self.next_step(num, self.num_to_draft > 0) is not Next.REST

    def rest(self, num: int) -> None:
        """In place of ``choose`` where ``num`` requests have no drafts to choose from."""
        self._num_choices += 1
        self.guard.num_idle += 1
        self.promised += num
        self._known.facts[:, :LAST] = 0
        if self.limits.model:
            self._probe()

    @property
    def allows_drafts(self) -> bool:
        """Whether the guard and the account of closed batches allow drafts."""
        return self.guard.allows_drafts and self.batches.step_credit_s > 0

    def _margin(self, num: int) -> float:
        """Minimum gain of drafts, relative to their price; infinite: no drafts."""
        return self.guard.margin(num) if self.batches.step_credit_s else math.inf

    def _rate(self, num: int, plain_s: float) -> float:
        """Tokens per second of num requests whose plain step takes plain_s.

        The recent speed relative to plain decoding, times the speed of plain decoding at this
        number of requests, which is lower for few requests.
        """
        return self._worth_s / self._spent_s * num / plain_s if self._spent_s else 0.0

    def _survivals(
        self, slots: Ints, rooms: Ints, offers: Sequence[Sequence[int]] | None
    ) -> tuple[int, int]:
        """Compute the survival of the model's draft, of retrieval, and of retrieval after it.

        Returns the length of the model's longest draft, and the tokens of all texts.
        """
        known, tables, num = self._known, self._tables, len(slots)
        if self._trial < self.limits.max_draft:
            rooms = np.minimum(rooms, self._trial)
        written, lengths = _NO_TOKENS, _NOTHING
        if offers is not None:
            if self._restricted:
                allowed = self._allowed[slots, 0].tolist()
                offers = [o if ok else () for o, ok in zip(offers, allowed, strict=True)]
            lengths = np.fromiter(map(len, offers), np.int64, num)
            written = np.fromiter(chain.from_iterable(offers), np.int32)
        found = _UNSEARCHED
        if self.limits.retrieval and (
            len(written) or self._is_reported or self._is_search_due(self._num_choices)
        ):
            searched = rooms * self._allowed[slots, 1] if self._restricted else rooms
            found = self._index.propose(slots, searched)
        # a draft is searched for a continuation if its survival exceeds a share of the mean price
        floor = 0.7 * self._price if self._num_choices % 64 else 0.0
        width, rows, context = acceptance.take(
            slots, rooms, written, lengths, found.tokens, found.num_tokens, found.match,
            found.hits, found.agree, known, tables, self.limits.model, floor, self._rows,
            self._offered, self._nums, self._left,
        )  # fmt: skip
        if rows:
            after = self._rows[:rows]
            if self._restricted:
                self._left[:rows] *= self._allowed[after, 1]
            found = self._index.propose_after(
                after, self._offered[:rows, :width], self._nums[:rows], self._left[:rows]
            )
            acceptance.find_after(after, found.tokens, found.num_tokens, found.match, known, tables)
        return width, context

    def _is_search_due(self, number: int) -> bool:
        return self.guard.is_search_due(number, self.allows_drafts)

    def _most_tokens(self, num: int) -> int:
        """Maximum drafted tokens of a step, by the engine's limit and the measured range."""
        if not self.costs.is_known:
            return 0
        largest = self.costs.largest
        # stop at powers of two, where stairs are common, so that both of their sides are measured
        priced = min(largest + max(8, largest // 4), 1 << largest.bit_length()) - num
        # few requests have 2 tokens each in their second drafts; many would cross a stair
        priced = max(num * (2 if self._trial > 1 and num <= 32 else 1), priced)
        return max(0, min(self.limits.max_step_tokens - num, priced, self.limits.max_draft * num))

    def _decide_length(self, num: int, seconds: Floats, margin: float) -> None:
        """Set ``num_to_draft``. seconds: of the next step, by number of drafted tokens."""
        if not self.limits.model:
            self._is_plain = self.guard.num_idle == 0 and self.guard.is_plain_due()
            return
        if not self.costs.is_known:
            self.num_to_draft = 0
            return
        length, longest = 0, self._longest()
        if margin < math.inf:
            rate = self._rate(num, seconds.item(0))
            prices = (margin * price for price in self.costs.draft_price)
            length = best_length(self._worth, longest, num, rate, seconds, *prices)
        if not length:
            self._probe()
            return
        self._is_probe = False
        self._is_plain = self.guard.is_plain_due()
        if self._is_plain:
            length = 0
        elif self.guard.num_drafts % 64 == 0:  # what do longer drafts cost and bring?
            length = min(length + 2, longest)
        self.num_to_draft = length

    def _probe(self) -> None:
        price_s = self.costs.draft_seconds(1)
        self._is_probe = self.costs.is_known and self.guard.may_probe(self._last_s, price_s)
        self.num_to_draft = int(self._is_probe)

    def _longest(self) -> int:
        """The longest draft of the model to consider: twice the longest one measured so far."""
        most = self.limits.longest_model or self.limits.max_draft
        return min(max(1, 2 * self.costs.longest), most, self.limits.max_draft)

    def _learn_lengths(self) -> None:
        """Learn what each length of the model's draft was worth at the latest choice."""
        if len(slots := self._to_learn) and self.limits.model:
            mean_surplus(
                slots, self._known, self._tables.after, 0.998, self._worth, self._longest()
            )
        self._to_learn = _NOTHING

    def _read(self, num: int) -> list[list[int]]:
        bounds = self._bounds[: num + 1].tolist()
        flat = self._drafts[: bounds[-1]].tolist()
        return [flat[begin:end] for begin, end in pairwise(bounds)]

    def work(self) -> bool:
        """Index texts and update the look-ahead while the engine computes.

        Returns whether tokens are left to index.
        """
        self._learn_lengths()
        return self.limits.retrieval and self._index.work(4096)

    def state(self) -> dict[str, Any]:
        """The state for a later run on the same machine, model and settings, as plain JSON."""
        return {
            "max_draft": self.limits.max_draft,
            "costs": self.costs.state(),
            "acceptance": {name: table.tolist() for name, table in self._tables._asdict().items()},
            "look_ahead": self._worth.tolist(),
            "guard": self.guard.state(),
            "speed": [self._worth_s, self._spent_s],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``. Errors: ValueError, and nothing changes."""
        if state.get("max_draft") != self.limits.max_draft:
            raise ValueError(
                f"the state is of drafts of up to {state.get('max_draft')!r} tokens,"
                f" not {self.limits.max_draft}"
            )
        costs, guard = StepCosts(), Guard(self.guard.tuning)
        try:
            learnt = state["acceptance"]
            tables = acceptance.Tables(
                **{name: like(own, learnt[name]) for name, own in self._tables._asdict().items()}
            )
            means = like(self._worth, state["look_ahead"])
            rates = like(np.zeros(2), state["speed"])
            costs.load_state(state["costs"])
            guard.load_state(state["guard"])
            if min(tables.model.min(), tables.matches.min(), tables.after.min(), rates.min()) < 0:
                raise ValueError("a count is negative")
            if min(tables.model[..., 1].min(), tables.matches[..., 1].min()) <= 0:
                raise ValueError("a table has no observations")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"the state is damaged ({type(error).__name__}: {error})") from error
        self._tables, self.costs, self.guard = tables, costs, guard
        self._worth, (self._worth_s, self._spent_s) = means, rates.tolist()
