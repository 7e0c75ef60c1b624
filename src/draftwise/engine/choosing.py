"""What each row plays in a round: its policy's choice, or that of rows which agree."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from draftwise.engine.request import Request
from draftwise.engine.turn import Turn
from draftwise.types import Decision


def choose(requests: Sequence[Request]) -> list[Turn]:
    """A decision for each row: each policy's own, unless they know how to agree (``goodput``).

    Policies of one kind over the same plans choose together; others each for itself. What could not
    be played when it was chosen still stands.
    """
    decisions = {r.id: r.pending for r in requests if r.pending is not None}
    groups: dict[tuple[type, int], list[Request]] = {}
    for request in requests:
        if request.pending is None:
            groups.setdefault((type(request.policy), id(request.plans)), []).append(request)
    for members in groups.values():
        decisions.update(_chosen(members))
    return [Turn(r, decisions[r.id], r.plays(decisions[r.id])) for r in requests]


def _chosen(members: Sequence[Request]) -> dict[int, Decision]:
    """Decisions by request; each policy's own where they cannot agree."""
    together = members[0].together
    able = [request for request in members if together is not None and not request.is_idle]
    made: dict[int, Decision] = {}
    if together is not None and able:
        try:
            found = together.choose_together([request.policy for request in able])
            made = {r.id: r.checked(d) for r, d in zip(able, found, strict=True)}
        except Exception as error:
            made = {request.id: request.choose() for request in able}
            if not any(request.is_idle for request in able):  # no single one is to blame
                for request in able:
                    request.together = None
                warnings.warn(f"{able[0].policy!r} cannot choose together: {error!r}", stacklevel=2)
    return made | {request.id: request.choose() for request in members if request.id not in made}
