"""All drafters of one batch: who drafts for which rows, and what became known of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwise.drafters.protocol import Context, Drafter, DraftSession
from draftwise.engine.costs import CostMeter
from draftwise.engine.request import Request
from draftwise.nn.model import CausalModel
from draftwise.types import NONE, Draft, Plan, Scores

_EMPTY = Draft.chain([], None, NONE)


@dataclass(frozen=True, slots=True)
class Pool:
    """What a batch may draft with, and what its costs are.

    scores_prompt: whether every drafter is scored on the prompt's last tokens at prefill.
    """

    target: CausalModel
    drafters: Sequence[Drafter]
    plans: Sequence[Plan]
    meter: CostMeter
    scores_prompt: bool
    clock: Callable[[], float] = time.perf_counter


class Drafting:
    """One session a drafter; rows that chose the same drafter draft together."""

    def __init__(self, pool: Pool, num_rows: int, capacity: int) -> None:
        self._meter, self._clock = pool.meter, pool.clock
        self._sessions: dict[str, DraftSession] = {
            drafter.name: drafter.start(num_rows, capacity) for drafter in pool.drafters
        }

    def propose(self, requests: Sequence[Request], plans: Sequence[Plan]) -> list[Draft]:
        """One draft a request, empty for the plan ``none``; each group's steps are timed."""
        drafts = [_EMPTY] * len(plans)
        groups: dict[str, list[int]] = {}
        for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            if min(plan.length, request.num_draftable) > 0:
                groups.setdefault(plan.drafter, []).append(index)
        for drafter, indices in groups.items():
            start = self._clock()
            tasks = [requests[i].task(plans[i]) for i in indices]
            proposed = self._sessions[drafter].propose(tasks)
            steps = max(draft.depth for draft in proposed)
            self._meter.saw_draft(drafter, len(indices), steps, self._clock() - start)
            for index, draft in zip(indices, proposed, strict=True):
                drafts[index] = draft
        return drafts

    def commit(self, contexts: Sequence[Context]) -> None:
        """The texts were verified and extended: every session drops what was rejected."""
        for session in self._sessions.values():
            session.commit(contexts)

    def scores(self, contexts: Sequence[Context], everything: bool) -> list[dict[str, Scores]]:
        """What is new about each drafter, for each context; ``everything`` costs forwards."""
        found: list[dict[str, Scores]] = [{} for _ in contexts]
        for name, session in self._sessions.items():
            for index, scores in enumerate(session.score(contexts, everything)):
                if scores is not None:
                    found[index][name] = scores
        return found

    def matches(self, context: Context) -> dict[str, int]:
        """The match length of each retrieval drafter at the end of the text."""
        lengths = {name: s.match_length(context) for name, s in self._sessions.items()}
        return {name: length for name, length in lengths.items() if length is not None}

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the rows of requests that have ended."""
        for session in self._sessions.values():
            session.keep_rows(rows)
