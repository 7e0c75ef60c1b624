"""All drafters of one batch: who drafts for which rows, and what became known of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from draftwise.drafters.protocol import (
    Context,
    Drafter,
    DraftSession,
    DraftTask,
    Mix,
    Retrieving,
    mixed_task,
)
from draftwise.engine.costs import CostMeter
from draftwise.engine.request import Request
from draftwise.nn.model import CausalModel
from draftwise.protocols import Mixer
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
        self._hosts = {drafter.name for drafter in pool.drafters if drafter.can_mix}
        self._sessions: dict[str, DraftSession] = {
            drafter.name: drafter.start(num_rows, capacity) for drafter in pool.drafters
        }
        self._retrieving = {
            drafter.name: cast(Retrieving, self._sessions[drafter.name])
            for drafter in pool.drafters
            if drafter.retrieves
        }

    def propose(self, requests: Sequence[Request], plans: Sequence[Sequence[Plan]]) -> list[Draft]:
        """One draft a request, empty for the plan ``none``; each group's steps are timed.

        plans: what each request plays; of several drafters the drafts stand side by side.
        """
        drafts: list[list[Draft]] = [[] for _ in requests]
        groups: dict[str, list[tuple[int, DraftTask]]] = {}
        for index, (request, played) in enumerate(zip(requests, plans, strict=True)):
            for plan in played:
                mixer = self._mixer(request, plan)
                if mixer is not None:
                    mix = Mix(mixer, partial(self._peek, request.context))
                    length = min(mixer.length, request.num_draftable)
                    task = mixed_task(request.context, length, mix)
                    groups.setdefault(mixer.drafter, []).append((index, task))
                elif min(plan.length, request.num_draftable) > 0:
                    groups.setdefault(plan.drafter, []).append((index, request.task(plan)))
        for drafter, members in groups.items():
            start = self._clock()
            proposed = self._sessions[drafter].propose([task for _, task in members])
            # of a mixed draft only what the drafter itself wrote took its time
            steps = max(
                draft.sources.count(drafter) if draft.confidences else draft.depth
                for draft in proposed
            )
            self._meter.saw_draft(drafter, len(members), steps, self._clock() - start)
            for (index, _), draft in zip(members, proposed, strict=True):
                drafts[index].append(draft)
        return [side_by_side(found) for found in drafts]

    def _mixer(self, request: Request, plan: Plan) -> Mixer | None:
        """Who says who writes this draft, if the policy mixes and the drafter lets others in."""
        mixer = request.mixer
        can = mixer is not None and mixer.drafter in self._hosts and request.num_draftable > 0
        return mixer if can and plan.tree is None else None

    def _peek(self, context: Context, drafted: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Each retrieval drafter's match behind the draft, and what follows it."""
        return {name: s.peek(context, drafted) for name, s in self._retrieving.items()}

    def commit(self, contexts: Sequence[Context]) -> None:
        """The texts were verified and extended: every session drops what was rejected."""
        for session in self._sessions.values():
            session.commit(contexts)

    def scores(self, contexts: Sequence[Context], everything: bool) -> list[dict[str, Scores]]:
        """What is new about each drafter, for each context; ``everything`` costs forwards."""
        return self._by_context(contexts, lambda session: session.score(contexts, everything))

    def glance(self, contexts: Sequence[Context]) -> list[dict[str, Scores]]:
        """A first impression of each drafter from the prompts' last tokens, for little."""
        return self._by_context(contexts, lambda session: session.glance(contexts))

    def looks(self, requests: Sequence[Request]) -> list[dict[str, Scores]]:
        """At the drafters that the requests' policies are curious about."""
        found: list[dict[str, Scores]] = [{} for _ in requests]
        wanted: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            for name in request.curious():
                wanted.setdefault(name, []).append(index)
        for name, rows in wanted.items():
            contexts = [requests[index].context for index in rows]
            for index, scores in zip(rows, self._sessions[name].glance(contexts), strict=True):
                if scores is not None:
                    found[index][name] = scores
        return found

    def matches(self, context: Context) -> dict[str, int]:
        """The match length of each retrieval drafter at the end of the text."""
        return {name: s.match_length(context) for name, s in self._retrieving.items()}

    def _by_context(
        self,
        contexts: Sequence[Context],
        look: Callable[[DraftSession], Sequence[Scores | None]],
    ) -> list[dict[str, Scores]]:
        """What each session said of each context, turned around."""
        found: list[dict[str, Scores]] = [{} for _ in contexts]
        for name, session in self._sessions.items():
            for index, scores in enumerate(look(session)):
                if scores is not None:
                    found[index][name] = scores
        return found

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the rows of requests that have ended."""
        for session in self._sessions.values():
            session.keep_rows(rows)


def side_by_side(drafts: Sequence[Draft]) -> Draft:
    """Several drafts of one text as branches of one tree, tried in this order.

    Each branch keeps its own q, and is judged against what the branches before it left of p: so
    drafts that were drawn at random may stand here too, though the longest must not be picked.
    """
    if len(drafts) < 2:
        return drafts[0] if drafts else _EMPTY
    starts = np.cumsum([0, *map(len, drafts)])
    parents = [
        -1 if draft.parent(node) < 0 else int(start) + draft.parent(node)
        for start, draft in zip(starts, drafts, strict=False)
        for node in range(len(draft))
    ]
    return Draft(
        np.concatenate([draft.tokens for draft in drafts]),
        [
            None if draft.probs is None else draft.probs[n]
            for draft in drafts
            for n in range(len(draft))
        ],
        [source for draft in drafts for source in draft.sources],
        np.array(parents, dtype=np.int64),
    )
