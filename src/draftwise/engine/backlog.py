"""What drafters missed of a text is read before they draft, and in pieces while others write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftwise.engine.pace import LEAST_PIECE, Pace
from draftwise.engine.sessions import Pool, Sessions
from draftwise.engine.turn import Turn

FEW = 32
"""Tokens that a drafter may have missed and read with its draft."""


class Backlog:
    """Reads texts on for drafters that are to draft, apart from drafting: timed and priced so.

    A drafter that was not played for long, or never on a long prompt, has much to read at once.
    While other rows write it reads as much as lasts half as long as a round, and the row waits with
    its draft: it goes on plainly, and plays what it chose when the drafter is there.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self._pool, self._sessions = pool, sessions
        self._paces = {drafter.name: Pace() for drafter in pool.drafters}

    def read(self, groups: Mapping[str, Sequence[Turn]], is_alone: bool, round_s: float) -> None:
        """Read on, and mark the turns whose drafters are not there yet (``waits``).

        groups: by drafter, the turns that it is to draft for. is_alone: no other row writes.
        round_s: how long a round takes.
        """
        behind = self._sessions.behind
        far = {
            name: [(t, n) for t in turns if (n := behind(name, t.context)) > FEW]
            for name, turns in groups.items()
        }
        num_behind = sum(map(bool, far.values()))
        for name, missing in far.items():
            if not missing:
                continue
            pace, longest = self._paces[name], max(num for _, num in missing)
            pace.rounds.append(round_s)
            budget = pace.budget(is_idle=False) // (num_behind * len(missing))
            most = longest if is_alone else max(LEAST_PIECE, budget)
            contexts = [turn.context for turn, _ in missing]
            _, seconds = self._sessions.read_on(name, contexts, most)
            num_read = sum(min(num, most) for _, num in missing)
            pace.saw(num_read, seconds[name])
            self._pool.meter.saw_read(name, num_read, seconds[name])
            for turn, num in missing:
                turn.waits = turn.waits or num > most
