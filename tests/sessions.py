"""Drafter sessions with open rows, driven like the engine's but with results read at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftwise.drafters.protocol import Context, DraftTask
from draftwise.engine.verify import overlap, ratio
from draftwise.nn.sampling import answered
from draftwise.types import Draft, Scores


class Driven:
    """A session whose device reads are resolved at once.

    ``commit`` computes from the p kept in the contexts what verification would have reported
    about the last drafts.
    """

    def __init__(self, name: str, session: Any) -> None:
        self._name, self._session = name, session
        self._drafts: dict[int, tuple[int, Draft]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        drafts = [_with_arrays(draft) for draft in answered(self._session.propose(tasks))]
        for task, draft in zip(tasks, drafts, strict=True):
            self._drafts[id(task.context)] = (len(task.context.tokens), draft)
        return drafts

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        return answered(self._session.score(contexts, everything))

    def probe(self, contexts: Sequence[Context]) -> list[Scores | None]:
        return answered(self._session.probe(contexts))

    def commit(self, contexts: Sequence[Context]) -> None:
        self._session.commit(contexts, [self._judged(context) for context in contexts])

    def _judged(self, context: Context) -> Scores | None:
        base, draft = self._drafts.pop(id(context), (0, Draft.chain([], None, "")))
        found, offpath_probs = [], dict(draft.offpath_probs)
        for depth in range(len(draft) + 1 if draft.parents is None else 0):
            index = base + depth - context.targets_start
            if base + depth >= len(context.tokens) or index >= len(context.targets):
                break
            if depth and draft.tokens[depth - 1] != context.tokens[base + depth - 1]:
                break
            if depth < len(draft) and draft.sources[depth] == self._name:
                q = _on_host(draft.q(depth))
            elif depth - 1 in offpath_probs:
                q = _on_host(offpath_probs[depth - 1])
            else:
                break
            p, token = _on_host(context.targets[index]), context.tokens[base + depth]
            found.append((min(1.0, overlap(p, q)), ratio(p, q, token)))
        return Scores(base, *np.array(found).T) if found else None


def _with_arrays(draft: Draft) -> Draft:
    probs = draft.probs and [None if q is None else np.asarray(q) for q in draft.probs]
    return replace(draft, probs=probs)


def _on_host(dist: Any) -> Any:
    """Return a token as an int and a distribution as an array."""
    if isinstance(dist, int):
        return dist
    found = np.asarray(dist)
    return found if found.ndim else int(found)


def opened(drafter: Any, contexts: Sequence[Context], expected: int = 200) -> Driven:
    """A session with one open request per context."""
    session = drafter.start()
    for context in contexts:
        session.open(context, expected)
    return Driven(drafter.name, session)
