"""The guard: an account of the seconds that drafting has saved compared with plain decoding.

A conservative bandit (Wu et al. 2016, "Conservative Bandits") with measured seconds in place of
estimated rewards: a step that emits ``n`` tokens for ``b`` requests in ``s`` seconds earns
``n / b * plain - s``, where ``plain`` is the time of the same step without drafts. Drafting is
allowed while the account is positive.

Probing drafters that do not draft has an account of its own, so that useless drafters never shut
out useful ones: it receives a small share of the time, and what drafts earn above the credit repays
its debts. Nothing is probed while it is in debt. Probes of running requests never take more than
the share: what is saved pays for scoring drafters on new prompts, whose first drafts it improves.

Bound: the account starts at a credit of a few plain steps, never exceeds it, and receives a small
share of the time. One step can overdraw it by what that loses. Over any period drafting therefore
loses at most both shares of the period, the credit, one step, one probe, and what drafts may
overdraw that promise a multiple of their price (``margin``): the credit / requests, or
``Tuning.overdraft``, if ``plain`` is accurate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

MARGIN = 2.0  # minimum gain of drafts, relative to their price, while the account is empty
SURE = 1.3  # of drafts that may use ``Tuning.overdraft``
RECENT = 0.995  # discount of the recent speed, for each step
IDLE_STEPS = 64
"""Steps without a draft after which only every 2nd step searches for one; after twice as many, only
every 3rd, and so on."""
IDLE_MOST = 8  # maximum steps between two searches


@dataclass(frozen=True, slots=True)
class Tuning:
    """What differs by engine: with longer steps and fewer answers, learning costs more of them."""

    credit: float = 4.0  # initial and largest balance, in plain steps; infinite: no guard
    share: float = 0.001  # share of the time that the account receives
    probe_share: float = 0.0015  # share of the time for probes of drafters that do not pay
    first_plain: int = 16
    """Steps with drafts before the first plain step on purpose, which separates the cost of drafts
    from that of the step. The next ones follow after 4, 16, .. times as many."""
    overdraft: float = 0.0
    """Plain steps, times the square root of the batch size, by which drafts that promise SURE times
    their price may overdraw the account: one that only its share refills would stay shut for
    thousands of steps."""


ROUNDS = Tuning(credit=8.0, share=0.003, probe_share=0.007, overdraft=8.0)  # of our own engine
NO_GUARD = Tuning(credit=math.inf, probe_share=0.01)
WITH_MODEL = Tuning(first_plain=4)  # of vLLM with a model drafter, which drafts in every step


class Next(Enum):
    """What a step does, whatever its texts are."""

    DRAFT = "drafts are searched or written, and the best ones are verified"
    PLAIN = "only drafts that are already paid for are verified: to measure, or for lack of credit"
    REST = "nothing is searched: nothing was worth drafting lately, or may be drafted"


class Guard:
    """One account for all requests: the gains of one request cover the losses of another.

    State: ``balance`` in seconds; ``plain_s`` (seconds that plain decoding would have taken) and
    ``spent_s``, since the start and recently;
    ``num_idle``, steps since the latest draft; ``num_drafts``, steps in which drafts seemed to pay;
    ``probe_s``, seconds that probes may take, negative if they took more; when plain steps are due.
    """

    def __init__(self, tuning: Tuning = Tuning()) -> None:
        self.tuning = tuning
        self.balance = self.probe_s = self._probe_share_s = 0.0
        self.num_idle = self.num_steps = self.num_drafts = 0
        self._next_plain, self._plain_budget_s = tuning.first_plain, 0.0
        self._last_s = self._last_plain_s = 0.0
        self.plain_s = self.spent_s = 0.0
        self.recent_plain_s = self.recent_spent_s = 0.0
        self._largest = self._doubted_s = 0.0
        self._is_open = self._is_shut = False

    def observe(
        self, tokens_per_request: float, seconds: float, plain_s: float, num_shares: float = 1.0,
        proven_s: float = math.inf, confirmed: float | None = None,
    ) -> None:  # fmt: skip
        """Record a step; plain_s: seconds of the same step without drafts.

        num_shares: number of accounts that share the credit equally. proven_s: the part of plain_s
        that plain steps have shown; tokens earn the rest only when a plain step confirms it.
        confirmed: after a plain step, the share of the doubted seconds that it has confirmed.
        """
        if confirmed is not None:
            self._settle(confirmed)
        self._largest = credit = self.tuning.credit / num_shares * plain_s
        self._last_s, self._last_plain_s = seconds, plain_s
        if not self._is_open:
            self.balance, self._is_open = self.balance + credit, True
        doubted = tokens_per_request * max(plain_s - proven_s, 0.0)
        self._doubted_s += doubted
        worth = tokens_per_request * plain_s - doubted
        if self._is_shut:  # drafts were probes
            self.probe_s -= max(seconds - worth, 0.0)
        earned = self.balance + worth - seconds + self.tuning.share * plain_s
        self.balance = min(credit, earned)
        if earned > credit and self.probe_s < 0.0:
            self.probe_s = min(0.0, self.probe_s + earned - credit)
        self.plain_s += worth
        self.spent_s += seconds
        self.recent_plain_s = RECENT * self.recent_plain_s + worth
        self.recent_spent_s = RECENT * self.recent_spent_s + seconds

    def _settle(self, confirmed: float) -> None:
        seconds, self._doubted_s = confirmed * self._doubted_s, 0.0
        self.balance = max(self.balance, min(self._largest, self.balance + seconds))
        self.plain_s += seconds
        self.recent_plain_s += seconds

    @property
    def is_in_doubt(self) -> bool:
        """Whether a plain step is due: only doubted seconds could make the balance positive."""
        return self._is_open and self.balance <= 0.0 < self.balance + self._doubted_s

    def charge(self, seconds: float) -> None:
        """Charge seconds that probes took, or scoring drafters on prompts."""
        self.probe_s -= seconds
        self.spent_s += seconds
        self.recent_spent_s += seconds

    def charge_probe(self, seconds: float) -> None:
        """Charge seconds that probes of running requests took."""
        self._probe_share_s -= seconds
        self.charge(seconds)

    def pass_time(self, seconds: float) -> None:
        """Record seconds that plain decoding takes, too, such as prefill: only for the speeds."""
        self.plain_s += seconds
        self.spent_s += seconds
        self.recent_plain_s += seconds
        self.recent_spent_s += seconds

    def correct(self, seconds: float) -> None:
        """Correct the speeds: earlier steps saved fewer plain seconds than recorded."""
        self.plain_s = max(0.0, self.plain_s - seconds)
        self.recent_plain_s = max(0.0, self.recent_plain_s - seconds)

    def state(self) -> dict[str, float]:
        """The speed so far as plain JSON; the balance restarts with every run."""
        return {"plain_s": self.plain_s, "spent_s": self.spent_s}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``. Errors: ValueError if it is damaged."""
        plain_s, spent_s = float(state["plain_s"]), float(state["spent_s"])
        if not (0 <= plain_s < math.inf and 0 <= spent_s < math.inf):
            raise ValueError("the guard's seconds must be finite and not negative")
        self.plain_s, self.spent_s = plain_s, spent_s

    @property
    def allows_drafts(self) -> bool:
        """Whether drafting is allowed; always before the first step."""
        return not self._is_open or self.balance > 0.0

    def margin(self, num_requests: int) -> float:
        """Minimum gain of drafts, relative to their price; infinite: no drafts.

        An empty account may be overdrawn by its largest balance over num_requests, by drafts that
        promise MARGIN times their price. Otherwise a bad start would end drafting for hundreds of
        steps when few requests provide little evidence. See also ``Tuning.overdraft``.
        """
        margin = math.inf
        if self.allows_drafts:
            margin = 1.0
        elif self.balance > -self._overdraft(num_requests):
            margin = SURE
        elif self.balance > -self._largest / num_requests and not self.is_in_doubt:
            margin = MARGIN
        self._is_shut = margin == math.inf
        return margin

    def _overdraft(self, num_requests: int) -> float:
        return self.tuning.overdraft * math.sqrt(num_requests) * self._last_plain_s

    @property
    def is_in_debt(self) -> bool:
        """Whether probes, and scoring drafters on prompts, have to wait."""
        return self.probe_s < 0.0

    @property
    def has_probe_share(self) -> bool:
        """Whether running requests may be probed."""
        return self.probe_s > 0.0 and self._probe_share_s > 0.0

    def may_probe(self, seconds: float, price_s: float) -> bool:
        """Whether a probe of price_s is due, after a step in which nothing was drafted."""
        self.earn_probes(seconds)
        if self.probe_s < price_s:
            return False
        self.probe_s = 0.0
        return True

    def earn_probes(self, seconds: float) -> None:
        """Let probes take their share of the seconds."""
        self.probe_s += self.tuning.probe_share * seconds
        self._probe_share_s += self.tuning.probe_share * seconds

    def next_step(self, num_requests: int, is_unmeasured: bool) -> Next:
        """What the next step of an engine does that writes its drafts token by token.

        is_unmeasured: the cost of plain decoding is unknown at this size.
        """
        self.num_steps += 1
        if math.isinf(self.tuning.credit):
            return Next.DRAFT
        if is_unmeasured or self.is_in_doubt or (self.num_idle == 0 and self.is_plain_due()):
            return Next.PLAIN
        has_drafted = self.allows_drafts or self.num_idle < IDLE_MOST
        may_draft = has_drafted and self.margin(num_requests) < math.inf
        return Next.DRAFT if self.is_search_due(self.num_steps, may_draft) else Next.REST

    def is_plain_due(self) -> bool:
        """Whether a plain step on purpose is due, which measures the baseline of drafting.

        While drafts pay, such steps may forgo 0.15% of the time: a gain of at least 2.5% each.
        """
        self.num_drafts += 1
        self._plain_budget_s += 0.0015 * self._last_s
        if self.num_drafts == self._next_plain:
            self._next_plain *= 4
        elif self._plain_budget_s <= max(self.recent_speed - 1.0, 0.025) * self._last_plain_s:
            return False
        self._plain_budget_s = 0.0
        return True

    def is_search_due(self, number: int, may_draft: bool) -> bool:
        """Whether the step of this number searches for drafts: less often after many without one.

        Where none may be drafted, rare searches still teach what drafts would be worth.
        """
        every = 1 + self.num_idle // IDLE_STEPS if may_draft else IDLE_MOST
        return number % min(every, IDLE_MOST) == 0

    @property
    def speed(self) -> float:
        """Tokens per second relative to plain decoding since the start; 1 before the first step."""
        return self.plain_s / self.spent_s if self.spent_s else 1.0

    @property
    def recent_speed(self) -> float:
        """The relative speed over the last few hundred steps."""
        return self.recent_plain_s / self.recent_spent_s if self.recent_spent_s else 1.0
