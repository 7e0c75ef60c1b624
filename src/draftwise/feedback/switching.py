"""What it costs to change the drafter: a term that any reward can carry."""

from __future__ import annotations

from draftwise.checks import LARGE, number
from draftwise.types import NONE, Evidence


class SwitchingCost:
    """Charge a drafter for the tokens it missed since it last played.

    Source: MetaSD, appendix H.1: lambda (l(t) - l(tau_i(t))) 1[a_{t-1} != a_t], with l(t) the
        tokens processed by round t and tau_i(t) the last round in which drafter i played.
    Update: charge = per_token * missed, to be taken off the value; then the round is noted.
    Differs: (1) lambda is in units of value, not of rounds; (2) before its first round a drafter
        missed what was emitted so far, not the prompt; (3) retrieval keeps no cache and ``none``
        drafts nothing: both are free.
    State: the text position that each drafter has reached, and that of the first round.
    Cost: O(1). Errors: ValueError if ``per_token`` is below 0.

    >>> from draftwise.types import Plan
    >>> cost = SwitchingCost(per_token=0.01)
    >>> rounds = [("a", 100), ("a", 103), ("b", 106), ("a", 109)]
    >>> [cost.charge(Evidence(Plan(d, 2), 2, 2, emitted_start=at)) for d, at in rounds]
    [0.0, 0.0, 0.06, 0.03]
    """

    def __init__(self, per_token: float) -> None:
        self._per_token = number("switching", per_token, 0, LARGE)
        self._reached: dict[str, int] = {}
        self._first: int | None = None

    def charge(self, evidence: Evidence) -> float:
        """The cost of this round's switch, in units of value; 0 if there was none."""
        drafter, start = evidence.plan.drafter, evidence.emitted_start
        self._first = start if self._first is None else self._first
        scores = evidence.scores.get(drafter)
        is_free = drafter == NONE or (scores is not None and scores.matches is not None)
        missed = start - self._reached.get(drafter, self._first)  # 0 if it played last
        self._reached[drafter] = start + evidence.num_emitted
        return 0.0 if is_free else self._per_token * missed
