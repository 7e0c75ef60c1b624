"""What each row plays in a round: its policy's choice, or that of rows which agree."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.engine.request import Request
from draftwise.engine.turn import Turn


def choose(requests: Sequence[Request]) -> list[Turn]:
    """A decision for each row: each policy's own, unless they know how to agree (``goodput``).

    Policies of one kind over the same plans choose together; others each for itself. What could not
    be played when it was chosen still stands.
    """
    decisions = {id(r): r.pending for r in requests if r.pending is not None}
    groups: dict[tuple[type, int], list[Request]] = {}
    for request in requests:
        if request.pending is None:
            groups.setdefault((type(request.policy), id(request.plans)), []).append(request)
    for members in groups.values():
        policies = [request.policy for request in members]
        together = members[0].together
        made = together.choose_together(policies) if together else [p.choose() for p in policies]
        decisions.update({id(r): d for r, d in zip(members, made, strict=True)})
    return [Turn(r, decisions[id(r)], r.plays(decisions[id(r)])) for r in requests]
