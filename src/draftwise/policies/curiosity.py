"""Looks at drafters that are not played: when one is due, and at whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftwise.policies.state import dump, load

FIRST_LOOK = 16
"""Tokens of an answer after which every LM drafter that is not known on it is looked at once; and
the weight of alphas from which on a drafter counts as known."""

LOOK_SHARE = 0.03
"""Of all seconds, the share spent on looking."""

LOOK_STEPS = 3.0
"""What a look costs, in draft steps of the same drafter."""

_FIELDS = ("_purse_s", "_num_emitted", "_has_looked")


class Curiosity:
    """Whom to score on the last tokens of the text, though it did not draft them.

    Source: this project's own. A drafter that is played little is known from the prompt, if at all,
        and what is right about a prompt may be wrong about its answer.
    Update: every round puts 3% of its seconds into a purse, out of which looks are paid.
    State: the purse in seconds; tokens of answers so far; whether the first look was had.
    """

    def __init__(self) -> None:
        self._purse_s, self._num_emitted, self._has_looked = 0.0, 0, False

    def saw_round(self, num_emitted: int, seconds: float) -> None:
        """A round emitted so many tokens in so many seconds."""
        self._num_emitted += num_emitted
        self._purse_s += LOOK_SHARE * seconds

    def names(
        self,
        weights: Mapping[str, float],
        draft_s: Mapping[str, float],
        could_win: Callable[[str], bool],
    ) -> list[str]:
        """Who is to be looked at now: once all who are not known, then the least known in turn.

        weights: of the alphas behind each drafter's rate. draft_s: seconds of their steps.
        could_win: whether one would be played if it were right about nearly everything.
        """
        if self._num_emitted < FIRST_LOOK or not weights:
            return []
        unknown = [name for name, weight in weights.items() if weight < FIRST_LOOK]
        if not self._has_looked:
            self._has_looked = True
            return [name for name in unknown if could_win(name)]
        least = min(unknown, key=weights.__getitem__, default="")
        price_s = LOOK_STEPS * draft_s.get(least, 0.0)
        if not least or self._purse_s < price_s:
            return []
        self._purse_s -= price_s
        return [least] if could_win(least) else []

    def state(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        return dump(self, _FIELDS)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a saved memory; ValueError if it does not fit."""
        load(self, _FIELDS, state)
