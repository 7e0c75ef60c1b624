"""All drafters of an engine: which rows each drafts for, and what became known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from draftwise.drafters.protocol import (
    Context,
    DraftSession,
    DraftTask,
    Mix,
    mixed_task,
)
from draftwise.engine.backlog import Backlog
from draftwise.engine.draft_checks import checked_drafts, checked_scores
from draftwise.engine.request import Request
from draftwise.engine.sessions import Pool, Sessions
from draftwise.engine.turn import EMPTY, Turn
from draftwise.nn.transfer import Ask
from draftwise.protocols import Mixer
from draftwise.types import NONE, PLAIN, Draft, Plan, Scores

First = Callable[[Sequence[Context], DraftSession], Ask[list[Scores | None]]]
"""How a session is asked about texts."""


class Drafting:
    """Which rows each drafter drafts for: rows that chose the same one draft together."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.sessions = pool, Sessions(pool)
        self._backlog = Backlog(pool, self.sessions)

    def catch_up(self, turns: Sequence[Turn], round_s: float) -> None:
        """Let the drafters that were chosen read what they missed; the turns of some may wait.

        round_s: how long a round takes, which is how long rows may be kept waiting by this.
        """
        groups: dict[str, list[Turn]] = {}
        for turn in turns:
            for drafter in self._wanted(turn):
                groups.setdefault(drafter, []).append(turn)
        self._backlog.read(groups, len(turns) == 1, round_s)
        for turn in turns:
            turn.request.pending = turn.decision if turn.waits else None

    def propose(self, turns: Sequence[Turn]) -> None:
        """A draft for each turn, empty for the plan ``none``; each group's steps are timed.

        Of several drafters the drafts stand side by side.
        """
        groups: dict[str, list[tuple[Turn, DraftTask]]] = {}
        for turn in turns:
            for drafter, task in () if turn.waits else self._tasks(turn):
                groups.setdefault(drafter, []).append((turn, task))
        if groups:
            self._draft(groups)
        for turn in turns:
            turn.draft = side_by_side([draft for _, draft in turn.parts])
            plan = PLAIN if turn.waits else turn.plans[0]
            turn.played = turn.request.as_drafted(plan, turn.draft)

    def _draft(self, groups: Mapping[str, Sequence[tuple[Turn, DraftTask]]]) -> None:
        """The drafts of all groups, which look at the device together."""
        asks: dict[str, Callable[[DraftSession], Ask[list[Draft]]]] = {
            name: partial(_propose, [task for _, task in members])
            for name, members in groups.items()
        }

        def check(name: str, drafts: Any) -> list[Draft]:
            tasks, size = [task for _, task in groups[name]], self._pool.target.vocab_size
            return checked_drafts(drafts, tasks, size)

        proposed, seconds = self.sessions.ask(asks, check)
        for name, drafts in proposed.items():
            # of a mixed draft only what the drafter itself wrote took its time
            steps = max(d.sources.count(name) if d.confidences else d.depth for d in drafts)
            self._pool.meter.saw_draft(name, len(drafts), steps, seconds[name])
            for (turn, _), draft in zip(groups[name], drafts, strict=True):
                turn.parts.append((name, draft))

    def _tasks(self, turn: Turn) -> Iterable[tuple[str, DraftTask]]:
        """What a turn's plans ask of which drafter."""
        request = turn.request
        for plan in turn.plans:
            mixer = self._mixer(request, plan)
            if mixer is not None:
                mix = Mix(mixer, partial(self.sessions.peek, request.context))
                length = min(mixer.length, request.num_draftable)
                yield mixer.drafter, mixed_task(request.context, length, mix)
            elif min(plan.length, request.num_draftable) > 0:
                yield plan.drafter, request.task(plan)

    def _wanted(self, turn: Turn) -> set[str]:
        """Drafters that the turn's plans ask for a draft."""
        if not turn.request.num_draftable:
            return set()
        mixers = {plan: self._mixer(turn.request, plan) for plan in turn.plans}
        found = {plan.drafter if mixer is None else mixer.drafter for plan, mixer in mixers.items()}
        return found - {NONE}

    def _mixer(self, request: Request, plan: Plan) -> Mixer | None:
        """What chooses each token's writer, if the policy mixes and the drafter allows it."""
        mixer = request.mixer
        can = mixer is not None and self.sessions.mixes(mixer.drafter)
        return mixer if can and plan.tree is None and request.num_draftable > 0 else None

    def commit(self, turns: Sequence[Turn]) -> None:
        """The texts were verified and extended: every session drops what was rejected."""
        contexts = [turn.context for turn in turns]
        self.sessions.tell(
            lambda name, session: session.commit(contexts, [t.judged.get(name) for t in turns])
        )

    def look(self, turns: Sequence[Turn]) -> None:
        """What is new about each drafter; and looks at those that policies are curious about.

        Rows that are panoramic have forwards made for it. All that is looked at on the device
        travels together.
        """
        curious = {id(turn): set(turn.request.curious(len(turns))) for turn in turns}
        everything = [turn for turn in turns if turn.request.is_panoramic]
        whole = {id(turn) for turn in everything}
        rest = [turn for turn in turns if id(turn) not in whole]

        def ask(name: str, session: DraftSession) -> Ask[list[tuple[Turn, Scores | None]]]:
            found: list[tuple[Turn, Scores | None]] = []
            wanted = [turn for turn in turns if name in curious[id(turn)]]
            if wanted:
                looks = yield from session.glance([turn.context for turn in wanted])
                found += zip(wanted, checked_scores(looks, len(wanted)), strict=True)
            for group in (everything, rest):
                if group:
                    contexts = [turn.context for turn in group]
                    scores = yield from session.score(contexts, group is everything)
                    found += zip(group, checked_scores(scores, len(group)), strict=True)
            return found

        asks = {name: partial(ask, name) for name in self.sessions.names}
        found, _ = self.sessions.ask(asks, lambda _, answer: answer)
        for name, scored in found.items():
            for turn, scores in scored:
                if scores is not None:
                    turn.scores[name] = scores

    def first_scores(
        self, how: First, names: Mapping[int, Sequence[str]], requests: Sequence[Request]
    ) -> dict[int, dict[str, Scores]]:
        """By request, a first impression of drafters from the prompt's last tokens, for little.

        names: by request, those that are asked. Rows that ask the same drafter are read together.
        """
        asked: dict[str, list[Request]] = {}
        for request in requests:
            for name in names[request.id]:
                asked.setdefault(name, []).append(request)
        found, _ = self.sessions.ask(
            {name: partial(how, [r.context for r in rows]) for name, rows in asked.items()},
            lambda name, told: checked_scores(told, len(asked[name])),
        )
        scores: dict[int, dict[str, Scores]] = {request.id: {} for request in requests}
        for name, told in found.items():
            for request, own in zip(asked[name], told, strict=True):
                if own is not None:
                    scores[request.id][name] = own
        return scores


def _propose(tasks: Sequence[DraftTask], session: DraftSession) -> Ask[list[Draft]]:
    return session.propose(tasks)


def everything(contexts: Sequence[Context], session: DraftSession) -> Ask[list[Scores | None]]:
    """All that there is to know, whatever it costs."""
    return session.score(contexts, everything=True)


def free(contexts: Sequence[Context], session: DraftSession) -> Ask[list[Scores | None]]:
    """Only what costs no forward: of those that retrieve."""
    return session.score(contexts, everything=False)


def glance(contexts: Sequence[Context], session: DraftSession) -> Ask[list[Scores | None]]:
    """A look at the last tokens."""
    return session.glance(contexts)


def side_by_side(drafts: Sequence[Draft]) -> Draft:
    """Several drafts of one text as branches of one tree, tried in this order.

    Each branch keeps its own q, and is judged against what the branches before it left of p: so
    drafts that were drawn at random may stand here too, though the longest must not be picked.
    """
    if len(drafts) < 2:
        return drafts[0] if drafts else EMPTY
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
