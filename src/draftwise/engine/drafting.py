"""The drafters' sessions: all asked together, and none that raises is asked again."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from draftwise.controller.guard import Guard
from draftwise.drafters.protocol import (
    CatchingUpSession,
    Context,
    Drafter,
    DraftSession,
    DraftTask,
    Mix,
    Retrieving,
    mixed_task,
)
from draftwise.engine.costs import (
    LEAST_PIECE,
    CostModel,
    FixedCostModel,
    MeasuredCostModel,
    PrefillBudget,
)
from draftwise.engine.request import EMPTY, Request, RoundState
from draftwise.nn.model import CausalModel
from draftwise.nn.transfer import DeviceRead, fetch
from draftwise.protocols import Mixer
from draftwise.types import LONGEST_PLAN, NONE, PLAIN, Costs, Draft, Floats, Plan, Scores

T = TypeVar("T")

SHARE_STEP = 0.2
"""By which the share of rows that a drafter drafts for follows the latest round."""
CREDIT, SHARE = 12.0, 0.005
"""Of the guard: rounds here take long, and answers are few, compared with a server on a GPU."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What an engine drafts with, and what its costs are.

    clock: seconds as they pass. cost_clock: seconds by which costs are measured. guard: the account
    of what drafting has earned, compared with plain decoding. lock: held while anything here is
    used, since neither models nor drafters can be shared by two threads at once.
    """

    target: CausalModel
    drafters: Sequence[Drafter]
    cost_model: CostModel
    clock: Callable[[], float] = time.perf_counter
    cost_clock: Callable[[], float] = time.perf_counter
    guard: Guard = field(default_factory=partial(Guard, CREDIT, SHARE), compare=False)
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False)


def pool_of(
    target: CausalModel,
    drafters: Sequence[Drafter],
    clock: Callable[[], float],
    cost_clock: Callable[[], float],
    deterministic: bool,
) -> Pool:
    """What an engine drafts with, on the clocks that are given or on one of prices."""
    prices = {drafter.name: drafter.relative_cost for drafter in drafters}
    if not deterministic:
        return Pool(target, drafters, MeasuredCostModel(prices), clock, cost_clock)
    cost_model = FixedCostModel(prices)
    # an account would carry what happened in one answer to the next
    return Pool(target, drafters, cost_model, cost_model.clock, cost_model.clock, Guard(math.inf))


class Sessions:
    """One session a drafter, each with the rows that are open.

    A drafter that raises or returns nonsense is left out from then on, with one warning: its rows
    go on without it.
    """

    def __init__(self, pool: Pool) -> None:
        self._clock, self._vocab_size = pool.cost_clock, pool.target.vocab_size
        self._hosts = {drafter.name for drafter in pool.drafters if drafter.can_mix}
        self._sessions: dict[str, DraftSession] = {
            drafter.name: drafter.start() for drafter in pool.drafters
        }
        self._retrieving = {
            drafter.name: cast(Retrieving, self._sessions[drafter.name])
            for drafter in pool.drafters
            if drafter.retrieves
        }
        self._catching_up = {
            name: session
            for name, session in self._sessions.items()
            if isinstance(session, CatchingUpSession)
        }

    @property
    def names(self) -> list[str]:
        """Drafters that work."""
        return list(self._sessions)

    def num_uncached_tokens(self, name: str, context: Context) -> int:
        """Tokens of the text that a drafter must read before it drafts; 0 if it was left out."""
        if (session := self._catching_up.get(name)) is None:
            return 0
        try:
            return int(session.num_uncached_tokens(context))
        except Exception as error:
            self.leave_out(name, error)
            return 0

    def catch_up(
        self, name: str, contexts: Sequence[Context], most: int
    ) -> tuple[dict[str, None], dict[str, float]]:
        """Let a drafter catch up on the next tokens of each text, up to a limit; as ``gather``."""
        if (session := self._catching_up.get(name)) is None:
            return {}, {name: 0.0}
        return self.gather(
            {name: lambda _: session.catch_up(contexts, most)}, lambda _, answer: answer
        )

    def mixes(self, name: str) -> bool:
        """Whether others may write at this drafter's chains."""
        return name in self._hosts

    def open(self, context: Context, expected: int) -> None:
        """A request begins in its row."""
        self.broadcast(lambda name, session: session.open(context, expected))

    def close(self, row: int) -> None:
        """Free what all drafters keep of a row."""
        self.broadcast(lambda name, session: session.close(row))

    def crop(self, context: Context, length: int) -> None:
        """Another request goes on in an open row."""
        self.broadcast(lambda name, session: session.crop(context, length))

    def copy(self, source: int, row: int, length: int) -> None:
        """Let an open row begin like another one."""
        self.broadcast(lambda name, session: session.copy(source, row, length))

    def broadcast(self, what: Callable[[str, DraftSession], None]) -> None:
        """Call something of every session."""
        for name, session in list(self._sessions.items()):
            try:
                what(name, session)
            except Exception as error:
                self.leave_out(name, error)

    def gather(
        self,
        questions: Mapping[str, Callable[[DraftSession], DeviceRead[T]]],
        check: Callable[[str, Any], T],
    ) -> tuple[dict[str, T], dict[str, float]]:
        """Answers by drafter, and the seconds that each took; one that raises gives none.

        check: given a drafter and its answer, returns what is used of it, or raises where it is
        nonsense. What the questions look at in the same turn travels in one transfer, whose seconds
        they share.
        """
        asked = [name for name in questions if name in self._sessions]
        sent: dict[str, Sequence[Floats] | None] = dict.fromkeys(asked)
        asks: dict[str, DeviceRead[T]] = {}
        answers: dict[str, T] = {}
        seconds, now = dict.fromkeys(asked, 0.0), self._clock()
        while sent:
            wanted: dict[str, Sequence[Tensor]] = {}
            for name, values in sent.items():
                try:
                    if values is None:
                        asks[name] = questions[name](self._sessions[name])
                        wanted[name] = tensors_of(next(asks[name]))
                    else:
                        wanted[name] = tensors_of(asks[name].send(values))
                except StopIteration as done:
                    try:
                        answers[name] = check(name, done.value)
                    except Exception as error:
                        self.leave_out(name, error)
                except Exception as error:
                    self.leave_out(name, error)
                before, now = now, self._clock()
                seconds[name] += now - before
            arrays = iter(fetch([tensor for tensors in wanted.values() for tensor in tensors]))
            sent = {name: list(islice(arrays, len(own))) for name, own in wanted.items()}
            if wanted:
                before, now = now, self._clock()
            for name in wanted:
                seconds[name] += (now - before) / len(wanted)
        return answers, seconds

    def matches(self, context: Context) -> dict[str, int]:
        """The match length of each retrieval drafter at the end of the text."""
        return self._look_up(context, lambda session: int(session.match_length(context)))

    def peek(self, context: Context, drafted: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Each retrieval drafter's match after the draft, and what follows it."""
        size = self._vocab_size
        return self._look_up(
            context, lambda session: checked_match(session.peek(context, drafted), size)
        )

    def _look_up(self, context: Context, what: Callable[[Retrieving], T]) -> dict[str, T]:
        """What each allowed retrieval drafter says; one that raises says nothing."""
        found: dict[str, T] = {}
        for name, session in list(self._retrieving.items()):
            if not context.allows(name):
                continue
            try:
                found[name] = what(session)
            except Exception as error:
                self.leave_out(name, error)
        return found

    def leave_out(self, name: str, error: Exception) -> None:
        """Ask this drafter for nothing more, in any row, with a warning that says why."""
        self._sessions.pop(name, None)
        self._retrieving.pop(name, None)
        self._catching_up.pop(name, None)
        self._hosts.discard(name)
        why = f"returned nonsense ({error})" if isinstance(error, Nonsense) else f"raised {error!r}"
        warnings.warn(f"drafter {name} {why}: it is left out from now on", stacklevel=3)


FEW = 32
"""Tokens that a drafter may have missed and read with its draft."""


class CatchUpScheduler:
    """Reads texts on for drafters that are to draft, apart from drafting: timed and priced so.

    A drafter that was not played for long, or never on a long prompt, has much to read at once.
    While other rows write it reads as much as lasts half as long as a round, and the row waits with
    its draft: it goes on plainly, and plays what it chose when the drafter is there.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self._pool, self._sessions = pool, sessions
        self._prefill_budgets = {drafter.name: PrefillBudget() for drafter in pool.drafters}

    def read(
        self, groups: Mapping[str, Sequence[RoundState]], is_alone: bool, round_s: float
    ) -> None:
        """Read on, and mark the turns whose drafters are not there yet (``waits``).

        groups: by drafter, the turns that it is to draft for. is_alone: no other row writes.
        round_s: how long a round takes.
        """
        num_uncached_tokens = self._sessions.num_uncached_tokens
        far = {
            name: [(t, n) for t in states if (n := num_uncached_tokens(name, t.context)) > FEW]
            for name, states in groups.items()
        }
        num_behind = sum(map(bool, far.values()))
        for name, missing in far.items():
            if not missing:
                continue
            prefill_budget, longest = self._prefill_budgets[name], max(num for _, num in missing)
            prefill_budget.rounds.append(round_s)
            budget = prefill_budget.budget(is_idle=False) // (num_behind * len(missing))
            most = longest if is_alone else max(LEAST_PIECE, budget)
            contexts = [state.context for state, _ in missing]
            _, seconds = self._sessions.catch_up(name, contexts, most)
            num_read = sum(min(num, most) for _, num in missing)
            prefill_budget.record(num_read, seconds[name])
            self._pool.cost_model.record_catch_up(name, num_read, seconds[name])
            for state, num in missing:
                state.waits = state.waits or num > most


First = Callable[[Sequence[Context], DraftSession], DeviceRead[list[Scores | None]]]
"""How a session is asked about texts."""


class Drafting:
    """Which rows each drafter drafts for: rows that chose the same one draft together."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.sessions = pool, Sessions(pool)
        self._catch_up_scheduler = CatchUpScheduler(pool, self.sessions)
        self._shares: dict[str, float] = {}  # of the rows, by drafter, where it drafts for any

    def catch_up(self, states: Sequence[RoundState], round_s: float) -> None:
        """Let the drafters that were chosen read what they missed; the turns of some may wait.

        round_s: how long a round takes, which is how long rows may be kept waiting by this.
        """
        groups: dict[str, list[RoundState]] = {}
        for state in states:
            for drafter in self._wanted(state):
                groups.setdefault(drafter, []).append(state)
        self._catch_up_scheduler.read(groups, len(states) == 1, round_s)
        for state in states:
            state.request.pending = state.decision if state.waits else None

    def propose(self, states: Sequence[RoundState]) -> None:
        """A draft for each turn, empty for the plan ``none``; each group's steps are timed.

        Of several drafters the drafts stand side by side.
        """
        groups: dict[str, list[tuple[RoundState, DraftTask]]] = {}
        guarded = [state for state in states if state.request.is_guarded]
        padded = LONGEST_PLAN if self._pool.target.packs else _padded_length(guarded)
        for state in states:
            most = padded if state.request.is_guarded else LONGEST_PLAN
            for drafter, task in () if state.waits else self._tasks(state, most):
                groups.setdefault(drafter, []).append((state, task))
        if groups:
            self._draft(groups)
        for name, members in groups.items():
            share = self._shares.setdefault(name, 1.0)
            self._shares[name] += SHARE_STEP * (len(members) / len(states) - share)
        for state in states:
            state.draft = side_by_side([draft for _, draft in state.parts])
            plan = PLAIN if state.waits else state.plans[0]
            state.played = state.request.as_drafted(plan, state.draft)

    def _draft(self, groups: Mapping[str, Sequence[tuple[RoundState, DraftTask]]]) -> None:
        """The drafts of all groups, which look at the device together."""
        asks: dict[str, Callable[[DraftSession], DeviceRead[list[Draft]]]] = {
            name: partial(_propose, [task for _, task in members])
            for name, members in groups.items()
        }

        def check(name: str, drafts: Any) -> list[Draft]:
            tasks, size = [task for _, task in groups[name]], self._pool.target.vocab_size
            return checked_drafts(drafts, tasks, size)

        proposed, seconds = self.sessions.gather(asks, check)
        for name, drafts in proposed.items():
            # of a mixed draft only what the drafter itself wrote took its time
            steps = max(
                d.sources[: d.num_chain].count(name) if d.confidences else d.depth for d in drafts
            )
            self._pool.cost_model.record_draft_steps(name, len(drafts), steps, seconds[name])
            for (state, _), draft in zip(groups[name], drafts, strict=True):
                state.parts.append((name, draft))

    def shared(self, costs: Costs) -> Costs:
        """The costs of a row: drafters' seconds are split among the rows that they draft for."""
        draft_s = {name: s / self._shares.get(name, 1.0) for name, s in costs.draft_s.items()}
        return replace(costs, draft_s=draft_s)

    def _tasks(self, state: RoundState, most: int) -> Iterable[tuple[str, DraftTask]]:
        """What a turn's plans ask of which drafter, of ``most`` tokens or fewer."""
        request = state.request
        for plan in state.plans if most else ():
            mixer = self._mixer(request, plan)
            if mixer is not None:
                num_nodes = request.longest if self._pool.target.serves_trees else 0
                mix = Mix(mixer, partial(self.sessions.peek, request.context), min(num_nodes, most))
                length = min(mixer.length, request.num_draftable, most)
                yield mixer.drafter, mixed_task(request.context, length, mix)
            elif min(plan.length, request.num_draftable) > 0:
                yield plan.drafter, request.task(plan, most)

    def _wanted(self, state: RoundState) -> set[str]:
        """Drafters that the turn's plans ask for a draft."""
        if not state.request.num_draftable:
            return set()
        mixers = {plan: self._mixer(state.request, plan) for plan in state.plans}
        found = {plan.drafter if mixer is None else mixer.drafter for plan, mixer in mixers.items()}
        return found - {NONE}

    def _mixer(self, request: Request, plan: Plan) -> Mixer | None:
        """What chooses each token's writer, if the policy mixes and the drafter allows it."""
        mixer = request.mixer
        can = mixer is not None and self.sessions.mixes(mixer.drafter)
        return mixer if can and plan.tree is None and request.num_draftable > 0 else None

    def commit(self, states: Sequence[RoundState]) -> None:
        """The texts were verified and extended: every session drops what was rejected."""
        contexts = [state.context for state in states]
        self.sessions.broadcast(
            lambda name, session: session.commit(contexts, [t.judged.get(name) for t in states])
        )

    def probe(self, states: Sequence[RoundState], may_pay: bool) -> bool:
        """What is new about each drafter; and looks at those that policies are curious about.

        Rows that are panoramic have forwards made for it. All that is looked at on the device
        travels together. may_pay: whether policies may have looks now that cost forwards. Returns
        whether any had.
        """
        drafters_to_probe = {
            id(state): set(state.request.drafters_to_probe(len(states)) if may_pay else ())
            for state in states
        }
        everything = [state for state in states if state.request.is_panoramic]
        whole = {id(state) for state in everything}
        rest = [state for state in states if id(state) not in whole]

        def gather(
            name: str, session: DraftSession
        ) -> DeviceRead[list[tuple[RoundState, Scores | None]]]:
            found: list[tuple[RoundState, Scores | None]] = []
            wanted = [state for state in states if name in drafters_to_probe[id(state)]]
            if wanted:
                looks = yield from session.probe([state.context for state in wanted])
                found += zip(wanted, checked_scores(looks, len(wanted)), strict=True)
            for group in (everything, rest):
                if group := [state for state in group if state.context.allows(name)]:
                    contexts = [state.context for state in group]
                    scores = yield from session.score(contexts, id(group[0]) in whole)
                    found += zip(group, checked_scores(scores, len(group)), strict=True)
            return found

        asks = {name: partial(gather, name) for name in self.sessions.names}
        found, _ = self.sessions.gather(asks, lambda _, answer: answer)
        for name, scored in found.items():
            for state, scores in scored:
                if scores is not None:
                    state.scores[name] = scores
        return any(drafters_to_probe.values())

    def score_prompts(
        self, how: First, names: Mapping[int, Sequence[str]], requests: Sequence[Request]
    ) -> dict[int, dict[str, Scores]]:
        """By request, a first impression of drafters from the prompt's last tokens, for little.

        names: by request, those that are asked. Rows that ask the same drafter are read together.
        """
        asked: dict[str, list[Request]] = {}
        for request in requests:
            for name in names[request.id]:
                asked.setdefault(name, []).append(request)
        found, _ = self.sessions.gather(
            {name: partial(how, [r.context for r in rows]) for name, rows in asked.items()},
            lambda name, told: checked_scores(told, len(asked[name])),
        )
        scores: dict[int, dict[str, Scores]] = {request.id: {} for request in requests}
        for name, told in found.items():
            for request, own in zip(asked[name], told, strict=True):
                if own is not None:
                    scores[request.id][name] = own
        return scores


def _padded_length(states: Sequence[RoundState]) -> int:
    """The longest draft of a batch whose rows are padded to the widest: half of them want it.

    A row's own length is right where all rows pay for it; a lone long draft would widen them all.
    """
    if len(states) < 2:
        return LONGEST_PLAN
    return int(np.median([max(plan.num_tokens for plan in state.plans) for state in states]))


def _propose(tasks: Sequence[DraftTask], session: DraftSession) -> DeviceRead[list[Draft]]:
    return session.propose(tasks)


def everything(
    contexts: Sequence[Context], session: DraftSession
) -> DeviceRead[list[Scores | None]]:
    """All that there is to know, whatever it costs."""
    return session.score(contexts, everything=True)


def free(contexts: Sequence[Context], session: DraftSession) -> DeviceRead[list[Scores | None]]:
    """Only what costs no forward: of those that retrieve."""
    return session.score(contexts, everything=False)


def probe(contexts: Sequence[Context], session: DraftSession) -> DeviceRead[list[Scores | None]]:
    """A look at the last tokens."""
    return session.probe(contexts)


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


class Nonsense(ValueError):
    """A drafter's answer of a form that drafters are not to give."""


def checked_drafts(found: Any, tasks: Sequence[DraftTask], vocab_size: int) -> list[Draft]:
    """A draft for each task. Raises ``Nonsense`` for anything else; nothing is read on a device."""
    for draft, task in zip(_list_of(found, len(tasks)), tasks, strict=True):
        _check_draft(draft, task, vocab_size)
    return list(found)


def checked_scores(found: Any, num: int) -> list[Scores | None]:
    """Scores, or None, of ``num`` texts. Raises ``Nonsense`` for anything else.

    Scores that are not finite count as None: p may be to blame for them.
    """
    return [_checked(scores) for scores in _list_of(found, num)]


def checked_match(found: Any, vocab_size: int) -> tuple[int, int]:
    """A match and the token that follows it; (0, -1) = none. Raises ``Nonsense``."""
    length, token = found
    if length and not (isinstance(token, (int, np.integer)) and 0 <= token < vocab_size):
        raise Nonsense(f"{token!r} follows a match, of a vocabulary of {vocab_size}")
    return int(length), int(token)


def tensors_of(yielded: Any) -> Sequence[Tensor]:
    """What a session wants to see. Raises ``Nonsense`` for what is not on a device."""
    if not isinstance(yielded, (list, tuple)) or not all(isinstance(t, Tensor) for t in yielded):
        raise Nonsense("it asked to see what is no list of tensors")
    return yielded


def _list_of(found: Any, num: int) -> Sequence[Any]:
    if not isinstance(found, (list, tuple)) or len(found) != num:
        told = f"{len(found)}" if isinstance(found, (list, tuple)) else type(found).__name__
        raise Nonsense(f"{told} in answer to {num} texts: a list of as many is wanted")
    return found


def _checked(scores: Any) -> Scores | None:
    if scores is None:
        return None
    if not isinstance(scores, Scores):
        raise Nonsense(f"{type(scores).__name__} is no Scores")
    if (
        not isinstance(scores.start, (int, np.integer))
        or scores.start < 0
        or not 0 < scores.weight <= 1
    ):
        raise Nonsense(f"scores start at {scores.start!r} with the weight {scores.weight!r}")
    columns = (scores.alphas, scores.ratios)
    if not all(_is_row(column, "f") for column in columns):
        raise Nonsense("alphas and ratios are not rows of floats")
    if len({len(row) for row in (*columns, scores.matches) if row is not None}) > 1:
        raise Nonsense("alphas, ratios and matches are not of one length")
    if all(0.0 <= value <= 1.0 for column in columns for value in column.tolist()):
        return scores
    if not all(np.isfinite(column).all() for column in columns):
        return None
    return replace(scores, alphas=columns[0].clip(0, 1), ratios=columns[1].clip(0, 1))


def _check_draft(draft: Any, task: DraftTask, vocab_size: int) -> None:
    if not isinstance(draft, Draft):
        raise Nonsense(f"{type(draft).__name__} is no Draft")
    tokens, num = draft.tokens, np.size(draft.tokens)
    if not (_is_row(tokens, "iu") or (_is_row(tokens, "f") and not num)):
        raise Nonsense("drafted tokens are not a row of whole numbers")
    ids = tokens.tolist()
    if num and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise Nonsense(f"tokens {min(ids)} to {max(ids)} were drafted, of {vocab_size}")
    most = task.length if task.tree is None else task.tree.total_tokens
    if task.mix is not None:
        most = max(most, task.mix.most)
    if num > most:
        raise Nonsense(f"{num} tokens were drafted, where {most} were wanted at most")
    if len(draft.sources) != num or len(draft.confidences) not in (0, num):
        raise Nonsense(f"sources or confidences are not as many as {num} tokens")
    _check_parents(draft, num, task.length)
    if draft.probs is not None and len(draft.probs) != num:
        raise Nonsense(f"{len(draft.probs)} distributions of {num} tokens")
    is_greedy = task.context.sampling.temperature == 0
    offpath_probs = [q for node, q in draft.offpath_probs if -1 <= node < num]
    wide = [
        *(draft.probs if draft.probs is not None else ()),
        *(() if is_greedy else offpath_probs),
    ]
    if len(offpath_probs) < len(draft.offpath_probs) or not all(
        q is None or _is_q(q, vocab_size) for q in wide
    ):
        raise Nonsense(f"a distribution is no row of {vocab_size} probabilities")


def _check_parents(draft: Draft, num: int, length: int) -> None:
    if (parents := draft.parents) is None:
        return
    if not _is_row(parents, "i") or len(parents) != num:
        raise Nonsense(f"parents are not a row of {num} whole numbers")
    if not ((parents >= -1) & (parents < np.arange(num))).all():
        raise Nonsense("a drafted token's parent does not come before it")
    if draft.depth > length:
        raise Nonsense(f"a draft is {draft.depth} tokens deep, of {length}")


def _is_q(q: Any, vocab_size: int) -> bool:
    if isinstance(q, Tensor):
        return q.is_floating_point() and q.shape == (vocab_size,)
    return _is_row(q, "f") and len(q) == vocab_size


def _is_row(found: Any, kinds: str) -> bool:
    """Whether it is an array of one dimension, of one of these kinds of numbers."""
    return isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in kinds
