"""The guard: an account of the seconds that drafting has earned compared with plain decoding.

A conservative bandit (Wu et al. 2016, "Conservative Bandits"), with measured seconds in place of
estimated rewards: a step that emitted ``n`` tokens for ``b`` requests in ``s`` seconds has earned
``n / b * plain - s``, where ``plain`` are the seconds of the same step without drafts. Drafting is
allowed while the account is not empty.

Bound: the account starts at, and never exceeds, CREDIT plain steps, and receives SHARE of the time;
a step can overdraw it by what that one step lost. So over any period drafting loses at most SHARE
of the period, CREDIT plain steps, and one step (as far as ``plain`` is right).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

CREDIT = 4.0
"""Plain steps that may be lost at the start, and at most after a good time."""
SHARE = 0.002
"""Of the time, that drafting which does not pay may cost."""
PROBE_SHARE = 0.0015
"""Of the time, that drafts of a drafter which does not pay at present may cost."""
RECENT = 0.995
"""Discount of a step in the recent speed."""


class Guard:
    """One account for all requests; shared, since what one request lost another may have earned.

    credit, share: in place of CREDIT and SHARE. State: ``balance`` in seconds; ``plain_s`` and
    ``spent_s`` since the start and recently.
    """

    def __init__(self, credit: float = CREDIT, share: float = SHARE) -> None:
        self._credit, self._share = credit, share
        self.balance = 0.0
        self.plain_s = self.spent_s = 0.0
        self.recent_plain_s = self.recent_spent_s = 0.0
        self._probe_s = 0.0
        self._is_open = False

    def observe(self, tokens_per_request: float, seconds: float, plain_s: float) -> None:
        """A step of so many emitted tokens a request; plain_s: what a plain step takes."""
        if not self._is_open:
            self.balance, self._is_open = self.balance + self._credit * plain_s, True
        worth = tokens_per_request * plain_s
        earned = self.balance + worth - seconds + self._share * plain_s
        self.balance = min(self._credit * plain_s, earned)
        self.plain_s += worth
        self.spent_s += seconds
        self.recent_plain_s = RECENT * self.recent_plain_s + worth
        self.recent_spent_s = RECENT * self.recent_spent_s + seconds

    def charge(self, seconds: float) -> None:
        """Seconds outside of steps that plain decoding would not have taken."""
        self.balance -= seconds
        self.spent_s += seconds
        self.recent_spent_s += seconds

    def state(self) -> dict[str, float]:
        """What drafting has earned so far; the account itself opens again with every run."""
        return {"plain_s": self.plain_s, "spent_s": self.spent_s}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up what ``state`` gave. Errors: ValueError where it is damaged."""
        plain_s, spent_s = float(state["plain_s"]), float(state["spent_s"])
        if not (0 <= plain_s < math.inf and 0 <= spent_s < math.inf):
            raise ValueError("the guard's seconds must be finite and not negative")
        self.plain_s, self.spent_s = plain_s, spent_s

    @property
    def allows_drafts(self) -> bool:
        """Whether drafting may go on; nothing is known against it before the first step."""
        return not self._is_open or self.balance > 0.0

    def may_probe(self, seconds: float, price_s: float) -> bool:
        """Whether a probe of price_s is due, after a step in which nothing was drafted."""
        self._probe_s += PROBE_SHARE * seconds
        if self._probe_s < price_s:
            return False
        self._probe_s = 0.0
        return True

    @property
    def speed(self) -> float:
        """Tokens a second relative to plain decoding, since the start; 1 before the first step."""
        return self.plain_s / self.spent_s if self.spent_s else 1.0

    @property
    def recent_speed(self) -> float:
        """The same, of the last few hundred steps."""
        return self.recent_plain_s / self.recent_spent_s if self.recent_spent_s else 1.0
