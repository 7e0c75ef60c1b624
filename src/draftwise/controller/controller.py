"""One controller for every engine: what to draft for all running requests.

A reader sees four steps in ``choose``: acceptance, expected tokens, seconds, choice. Around them
stand the guard (never slower than plain decoding), the look-ahead (the model drafter's length is
decided one step early) and retrieval. No torch, no engine and no clock in here: an engine reports
the facts of its steps and takes drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.acceptance import (
    Acceptance,
    bucket_of,
    learn,
    match_survival,
    model_survival,
)
from draftwise.controller.choice import choose, surplus_by_length
from draftwise.controller.costs import Step, StepCosts
from draftwise.controller.guard import Guard
from draftwise.controller.lookahead import LookAhead
from draftwise.controller.retrieval import make_index

RATE_DISCOUNT = 0.98
"""Of the engine's rate in tokens a second, for each step."""
JOINT_DISCOUNT = 0.9995
"""Of what two branches add to the better one, for each depth that both reach."""
PROBE_EVERY = 32
"""Steps between two in which the model writes longer drafts than seem best."""
PROBE_LONGER = 2
"""Tokens by which they are longer."""
SLICE = 4096
"""Tokens that one call of ``work`` indexes."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine allows.

    max_draft: tokens of a request's draft, in each branch. max_step_tokens: tokens of a step.
    model: whether the engine has a model drafter, which drafts for all requests or for none.
    branches: whether the target verifies trees. retrieval: whether texts are searched.
    """

    max_draft: int = 16
    max_step_tokens: int = 8192
    model: bool = False
    branches: bool = False
    retrieval: bool = True


class Controller:
    """Learns from every step what to draft for every running request.

    Each step, in this order: ``observe`` what it did, ``end`` and ``begin`` for requests that went
    and came, ``choose`` the next drafts; ``work`` while the engine computes. ``num_to_draft`` is
    the number of tokens that the model drafter is to write for each request during the coming step.

    State: by slot, what was offered, proposed and is being verified; the tables of acceptance, the
    cost model, the guard's account and the look-ahead, which all requests share.
    """

    def __init__(self, limits: Limits, *, history_tokens: int = 1 << 18) -> None:
        self.limits = limits
        length = limits.max_draft
        self.costs = StepCosts()
        self.acceptance = Acceptance(length)
        self.guard = Guard()
        self.num_to_draft = 0
        self.branches: list[list[int]] = []
        self.promised = self.kept = 0.0
        self._index = make_index(length, history_tokens)
        self._look_ahead = LookAhead(length)
        self._joint = np.array([6.0, 10.0])
        self._rate = np.zeros(2)
        self._num_choices = 0
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._num_slots = 0
        self._lengths = np.zeros(0, np.int64)
        self._grow(16)

    def _grow(self, num: int) -> None:
        length, old = self.limits.max_draft, self._num_slots
        self._free += range(num - 1, old - 1, -1)

        def grown(name: str, shape: tuple[int, ...], kind: Any) -> None:
            array = np.zeros((num, *shape), kind)
            if old:
                array[:old] = getattr(self, name)
            setattr(self, name, array)

        for name in ("_offers", "_proposals", "_after"):
            grown(name, (length,), np.int32)
        for name in ("_played", "_proposed", "_after_proposed"):
            grown(name, (3,), np.int64)
        for name in ("_num_offered", "_lengths", "_groups"):
            grown(name, (), np.int64)
        grown("_allowed", (2,), np.bool_)
        grown("_survival", (3, length), np.float64)
        self.acceptance.resize(num)
        self._num_slots = num

    def begin(
        self,
        name: str,
        tokens: Sequence[int],
        *,
        tenant: int = 0,
        shares: bool = True,
        model: bool = True,
        retrieval: bool = True,
    ) -> None:
        """A request whose prompt was read, with its text so far, begins to decode.

        tenant: its text is never proposed to requests of another one. shares: whether its answer
        enters the history. model, retrieval: drafters that it may use.
        """
        if name in self._slots:
            self.end(name)
        if not self._free:
            self._grow(2 * self._num_slots)
        slot = self._free.pop()
        if self.limits.retrieval:
            self._index.open(slot, tokens, tenant=tenant, shares=shares)
        self._slots[name] = slot
        self._allowed[slot] = model, retrieval
        self._lengths[slot] = len(tokens)
        self.acceptance.forget(slot)
        self._groups[slot] = 0
        for array in (self._played, self._proposed, self._after_proposed, self._num_offered):
            array[slot] = 0

    def end(self, name: str) -> None:
        """A request is gone: finished, cancelled, or never known."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            if self.limits.retrieval:
                self._index.close(slot)
            self._lengths[slot] = 0
            self._free.append(slot)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def observe(
        self,
        step: Step,
        names: Sequence[str],
        emitted: Sequence[Sequence[int]],
        num_verified: Sequence[int] | None = None,
    ) -> None:
        """What a step took, and what it emitted for each request.

        num_verified: drafted tokens that were verified, where the engine shortened drafts (from
        their end; a draft with a branch is verified whole or, at 0, not at all).
        """
        slots = np.fromiter((self._slots[name] for name in names), np.int64, len(names))
        counts = np.fromiter(map(len, emitted), np.int64, len(names))
        tokens = np.fromiter(chain.from_iterable(emitted), np.int32, int(counts.sum()))
        context = step.num_context
        if context is None:
            context = int(self._lengths[slots].sum())
        self._account(step, context, int(counts.sum()))
        if num_verified is not None:
            self._shorten(slots, np.fromiter(num_verified, np.int64, len(names)))
        accepted = np.zeros((len(slots), 2), np.int64)
        tables = self.acceptance
        learn(
            slots, tokens, counts, self._played, self._offers, self._num_offered, self._proposals,
            self._proposed, self._after, self._after_proposed, tables.model, tables.last,
            tables.model_factors, tables.matches, tables.match_factors, accepted,
        )  # fmt: skip
        self._learn_pairs(slots, accepted)
        self.kept += counts.sum()
        if self.limits.retrieval:
            self._index.extend(slots, tokens, counts)
        self._lengths[slots] += counts
        self._played[slots] = 0
        self._num_offered[slots] = 0
        self._proposed[slots] = 0
        self._after_proposed[slots] = 0

    def _account(self, step: Step, context: int, num_emitted: int) -> None:
        """Prices, the guard's account and the rate."""
        self.costs.observe(step, context)
        if not self.costs.is_known or step.num_requests == 0:
            return
        seconds = step.seconds + step.own_seconds
        plain = float(self.costs.seconds(step.num_requests, context, 0, 0)[0])
        drafted = step.num_tokens - step.num_prefill > step.num_requests or step.num_drafted
        if not drafted:
            plain = step.seconds
        else:  # prompts would have been read without drafts, too
            read_s = self.costs.prefill_seconds(step.num_requests, step.num_prefill)
            seconds = max(seconds - read_s, 0.0)
        self.guard.observe(num_emitted / step.num_requests, seconds, plain)
        self._rate *= RATE_DISCOUNT
        self._rate += num_emitted, step.seconds + step.own_seconds
        self._last_s = seconds

    def _shorten(self, slots: Ints, verified: Ints) -> None:
        """Drafts that were not verified whole."""
        played = self._played[slots]
        pairs = played[:, 2] > 0
        played[pairs & (verified == 0)] = 0
        left = np.where(pairs, played[:, 0], np.minimum(verified, played[:, 0]))
        played[:, 1] = np.where(pairs, played[:, 1], np.clip(verified - left, 0, played[:, 1]))
        played[:, 0] = left
        self._played[slots] = played

    def _learn_pairs(self, slots: Ints, accepted: Ints) -> None:
        """What two branches brought compared with the better one; what follows whole drafts."""
        played = self._played[slots]
        for i in np.flatnonzero(played[:, 2]):
            slot = slots[i]
            depth = min(played[i, 0], played[i, 1])
            model, match = self._survival[slot, 0, :depth], self._survival[slot, 1, :depth]
            high, low = np.maximum(model, match), np.minimum(model, match)
            kept = np.arange(depth) < accepted[i].max()
            for seen, best, other in zip(kept, high, low, strict=True):
                self._joint *= JOINT_DISCOUNT
                self._joint += seen - best, other * (1 - best)
        offered = self._num_offered[slots]
        whole = (offered > 0) & (played[:, 0] == offered) & (accepted[:, 0] == offered)
        if whole.any():
            rows = slots[whole]
            self._look_ahead.learn_after(
                self._groups[rows], self._survival[rows, 2], int(offered[whole].max())
            )

    def plays(self, names: Sequence[str], lengths: Sequence[int]) -> None:
        """Model drafts that the step to be observed verified, for engines whose steps overlap.

        There ``choose`` has decided on later steps by then, and the host does not know the drafted
        tokens: ``observe`` is told 0 for each accepted one, and 1 for the token that follows them.
        """
        slots = np.fromiter((self._slots[name] for name in names), np.int64, len(names))
        self._offers[slots] = 0
        self._num_offered[slots] = self._played[slots, 0] = np.fromiter(
            lengths, np.int64, len(names)
        )
        self._played[slots, 1:] = 0
        self._proposed[slots] = self._after_proposed[slots] = 0

    def choose(
        self,
        names: Sequence[str],
        rooms: Sequence[int],
        offers: Sequence[Sequence[int]] | None = None,
    ) -> list[list[int]]:
        """The chains of the coming step, one for each request; empty where plain decoding is best.

        Second branches stand in ``branches``, in the same order, where ``Limits.branches`` is set.

        rooms: tokens that a draft may have. offers: what the model drafter wrote, of one length.
        """
        self.branches = []
        if not names:
            return []
        num, length = len(names), self.limits.max_draft
        slots = np.fromiter((self._slots[name] for name in names), np.int64, num)
        room = np.minimum(np.fromiter(rooms, np.int64, num), length)
        width = min(max(map(len, offers), default=0), length) if offers is not None else 0
        self._take_offers(slots, offers, width)
        # 1. acceptance: how likely each further token is
        model, full, match, after = self._survivals(slots, room, width)
        # 2. and 3. expected tokens, and seconds by the number of tokens
        context = int(self._lengths[slots].sum())
        most = self._most_tokens(num)
        seconds = self.costs.seconds(num, context, 0, most) if self.costs.is_known else None
        parts = np.zeros((num, 3), np.int64)
        drafted, price = 0, 1.0
        rate = self._rate[0] / self._rate[1] if self._rate[1] else 0.0
        joint = float(np.clip(self._joint[0] / self._joint[1], 0.0, 1.0))
        # 4. choice: one price of a token for all requests
        # what the model wrote is paid for: an empty account does not waste it
        if seconds is not None and most > 0 and (width or self.guard.allows_drafts):
            drafted, expected, price = choose(
                model, match, after, np.minimum(self._num_offered[slots], room), room, joint,
                self.limits.branches, seconds, rate, parts,
            )  # fmt: skip
            self.promised += num + expected
        else:
            self.promised += num
        self._played[slots] = parts
        if self.limits.model and seconds is not None:
            self._decide_length(
                slots, full, match, after, room, width, joint, seconds, drafted, rate, price
            )
        return self._drafts(slots, parts)

    def _take_offers(self, slots: Ints, offers: Sequence[Sequence[int]] | None, width: int) -> None:
        if not width or offers is None:
            return
        lengths = np.fromiter((min(len(offer), width) for offer in offers), np.int64, len(slots))
        lengths *= self._allowed[slots, 0]
        self._num_offered[slots] = lengths
        if lengths.min() == width:
            self._offers[slots, :width] = [offer[:width] for offer in offers]
        else:
            for slot, offer in zip(slots, offers, strict=True):
                self._offers[slot, : min(len(offer), width)] = offer[:width]

    def _survivals(
        self, slots: Ints, room: Ints, width: int
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """[rows, length] of the model's draft, of one as long as may be, of retrieval, and after."""
        num, length, tables = len(slots), self.limits.max_draft, self.acceptance
        full, match, after = np.zeros((3, num, length))
        if self.limits.model:
            model_survival(
                slots, tables.model, tables.last, tables.model_factors, np.full(num, length), full
            )
            full *= self._allowed[slots, 0, None]
        if self.limits.retrieval:
            room = room * self._allowed[slots, 1]
            found = self._index.propose(slots, room)
            self._keep(slots, found, self._proposals, self._proposed, None)
            match_survival(
                slots, tables.matches, self._proposed[slots, 2], self._proposed[slots, 1],
                self._proposed[slots, 0], tables.match_factors, match,
            )  # fmt: skip
            if width:
                offered = self._num_offered[slots]
                found = self._index.propose_after(
                    slots, self._offers[slots, :width], offered, np.maximum(room - offered, 0)
                )
                self._keep(slots, found, self._after, self._after_proposed, 1 + min(width, 3))
                match_survival(
                    slots, tables.matches, self._after_proposed[slots, 2],
                    self._after_proposed[slots, 1], self._after_proposed[slots, 0],
                    tables.match_factors, after,
                )  # fmt: skip
        model = np.where(np.arange(length) < self._num_offered[slots][:, None], full, 0.0)
        self._survival[slots, 0], self._survival[slots, 1] = model, match
        self._survival[slots, 2] = after
        return model, full, match, after

    def _keep(self, slots: Ints, found: Any, tokens: Any, facts: Ints, kind: int | None) -> None:
        tokens[slots] = found.tokens
        facts[slots, 0] = found.num_tokens
        facts[slots, 1] = found.match
        facts[slots, 2] = kind if kind is not None else found.agree >= found.hits

    def _most_tokens(self, num: int) -> int:
        """Drafted tokens of a step: within the engine's limit, and not far beyond what was priced."""
        length = self.limits.max_draft * (2 if self.limits.branches else 1)
        largest = self.costs.largest
        priced = max(num, largest + max(8, largest // 4) - num)
        return max(0, min(self.limits.max_step_tokens - num, int(priced), length * num))

    def _decide_length(
        self, slots: Ints, full: Floats, match: Floats, after: Floats, room: Ints, width: int,
        joint: float, seconds: Floats, drafted: int, rate: float, price: float,
    ) -> None:  # fmt: skip
        """What the model drafter is to write during the coming step."""
        num, length = match.shape
        groups = np.array([bucket_of(int(m)) for m in self._proposed[slots, 1]], np.int64)
        self._groups[slots] = groups
        step = min(2 * num, len(seconds) - 1 - drafted)
        # before a stair a token costs what it displaces, elsewhere what it takes
        if step > 0:
            price = min(price, max(0.0, rate * (seconds[drafted + step] - seconds[drafted]) / step))
        every = self._look_ahead.after[:, groups].transpose(1, 0, 2).copy()
        worth = np.empty((num, length + 1))
        surplus_by_length(full, match, every, room, joint, self.limits.branches, price, worth)
        self._look_ahead.learn(worth)
        longest = max(1, 2 * self.costs.longest)
        lengths = range(min(longest, length) + 1)
        spent = np.array([self.costs.draft_seconds(k) for k in lengths])
        gains = num * self._look_ahead.worth[: len(lengths)] - rate * spent
        best = int(gains.argmax()) if self.guard.allows_drafts else 0
        if best == 0 and self.guard.may_probe(self._last_s, spent[1]):
            best = 1
        self._num_choices += 1
        if best and self._num_choices % PROBE_EVERY == 0:
            best = min(best + PROBE_LONGER, len(lengths) - 1)
        self.num_to_draft = best

    def _drafts(self, slots: Ints, parts: Ints) -> list[list[int]]:
        drafts = []
        for slot, (num_model, num_match, branches) in zip(
            slots.tolist(), parts.tolist(), strict=True
        ):
            tokens = self._offers[slot, :num_model].tolist()
            branch: list[int] = []
            if num_match:
                source = self._proposals if branches or not num_model else self._after
                more = source[slot, :num_match].tolist()
                if branches:
                    branch = more
                else:
                    tokens += more
            drafts.append(tokens)
            if self.limits.branches:
                self.branches.append(branch)
        return drafts

    def work(self) -> bool:
        """What the next step does not need; call it while the engine computes. True: more is left."""
        return self.limits.retrieval and self._index.work(SLICE)

    def state(self) -> Mapping[str, Any]:
        """What the next run on the same machine, model and settings may begin with; plain JSON."""
        return {
            "costs": self.costs.state(),
            "model": self.acceptance.model.tolist(),
            "matches": self.acceptance.matches.tolist(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state`` gave.

        Errors: ValueError, KeyError or TypeError where it does not fit; nothing is changed then.
        """
        tables = {}
        for name in ("model", "matches"):
            ours, table = getattr(self.acceptance, name), np.array(state[name], float)
            if table.shape != ours.shape or not np.isfinite(table).all():
                raise ValueError(f"the table {name!r} is damaged")
            if (table < 0).any() or (table[..., 1] <= 0).any():
                raise ValueError(f"the table {name!r} has counts below zero")
            tables[name] = table
        self.costs.load_state(state["costs"])
        for name, table in tables.items():
            getattr(self.acceptance, name)[...] = table
