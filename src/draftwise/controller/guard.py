"""The guard: an account of the seconds that drafting has saved compared with plain decoding.

A conservative bandit (Wu et al. 2016, "Conservative Bandits") with measured seconds in place of
estimated rewards: a step that emits ``n`` tokens for ``b`` requests in ``s`` seconds earns
``n / b * plain - s``, where ``plain`` is the time of the same step without drafts. Drafting is
allowed while the account is positive.

Bound: the account starts at CREDIT plain steps, never exceeds them, and receives SHARE of the time.
One step can overdraw it by the step's loss. Over any period drafting therefore loses at most SHARE
of the period, CREDIT plain steps, CREDIT / requests more by drafts that promise a multiple of their
price (``margin``), and the loss of one step, if ``plain`` is accurate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

CREDIT = 4.0  # initial and largest balance, in plain steps
SHARE = 0.001  # share of the time that the account receives
PROBE_SHARE = 0.0015  # share of the time for probes of a model drafter that does not pay at present
MARGIN = 2.0  # minimum gain of drafts, relative to their price, while the account is empty
RECENT = 0.995  # discount of the recent speed, for each step


class Guard:
    """One account for all requests: the gains of one request cover the losses of another.

    credit, share: replace CREDIT and SHARE. State: ``balance`` in seconds; ``plain_s`` (seconds
    that plain decoding would have taken) and ``spent_s``, since the start and recently.
    """

    def __init__(self, credit: float = CREDIT, share: float = SHARE) -> None:
        self._credit, self._share = credit, share
        self.balance = 0.0
        self.plain_s = self.spent_s = 0.0
        self.recent_plain_s = self.recent_spent_s = 0.0
        self._probe_s = self._largest = self._doubted_s = 0.0
        self._is_open = self._is_shut = False

    def observe(
        self, tokens_per_request: float, seconds: float, plain_s: float, num_shares: float = 1.0,
        proven_s: float = math.inf,
    ) -> None:  # fmt: skip
        """Record a step; plain_s: seconds of the same step without drafts.

        num_shares: number of accounts that share the credit equally. proven_s: the part of plain_s
        that plain steps have shown; tokens earn the rest only when ``settle`` confirms it.
        """
        self._largest = credit = self._credit / num_shares * plain_s
        if not self._is_open:
            self.balance, self._is_open = self.balance + credit, True
        doubted = tokens_per_request * max(plain_s - proven_s, 0.0)
        self._doubted_s += doubted
        worth = tokens_per_request * plain_s - doubted
        if self._is_shut:  # drafts were probes
            self._probe_s -= max(seconds - worth, 0.0)
        earned = self.balance + worth - seconds + self._share * plain_s
        self.balance = min(credit, earned)
        self.plain_s += worth
        self.spent_s += seconds
        self.recent_plain_s = RECENT * self.recent_plain_s + worth
        self.recent_spent_s = RECENT * self.recent_spent_s + seconds

    def settle(self, confirmed: float) -> None:
        """Book the doubted seconds after a plain step; confirmed: share that it has confirmed."""
        seconds, self._doubted_s = confirmed * self._doubted_s, 0.0
        self.balance = max(self.balance, min(self._largest, self.balance + seconds))
        self.plain_s += seconds
        self.recent_plain_s += seconds

    @property
    def is_in_doubt(self) -> bool:
        """Whether a plain step is due: only doubted seconds could make the balance positive."""
        return self._is_open and self.balance <= 0.0 < self.balance + self._doubted_s

    def charge(self, seconds: float) -> None:
        """Charge seconds spent outside of steps that plain decoding does not need."""
        self.balance -= seconds
        self.spent_s += seconds
        self.recent_spent_s += seconds

    def correct(self, seconds: float) -> None:
        """Correct the speeds: earlier steps saved fewer plain seconds than recorded."""
        self.plain_s = max(0.0, self.plain_s - seconds)
        self.recent_plain_s = max(0.0, self.recent_plain_s - seconds)

    def grant(self, seconds: float) -> None:
        self.balance += seconds

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
        steps when few requests provide little evidence.
        """
        may_overdraw = self.balance > -self._largest / num_requests and not self.is_in_doubt
        self._is_shut = not (self.allows_drafts or may_overdraw)
        if self._is_shut:
            return math.inf
        return 1.0 if self.allows_drafts else MARGIN

    def may_probe(self, seconds: float, price_s: float) -> bool:
        """Whether a probe of price_s is due, after a step in which nothing was drafted."""
        self._probe_s += PROBE_SHARE * seconds
        if self._probe_s < price_s:
            return False
        self._probe_s = 0.0
        return True

    @property
    def speed(self) -> float:
        """Tokens per second relative to plain decoding since the start; 1 before the first step."""
        return self.plain_s / self.spent_s if self.spent_s else 1.0

    @property
    def recent_speed(self) -> float:
        """The relative speed over the last few hundred steps."""
        return self.recent_plain_s / self.recent_spent_s if self.recent_spent_s else 1.0
