"""Runs all drafters: catch-up, drafts, probes and scores. A drafter that raises is disabled."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import methodcaller
from statistics import median
from typing import Any, TypeVar, cast

import numpy as np
from torch import Tensor

from draftwise.controller.costs import CostModel, FixedCostModel, MeasuredCostModel
from draftwise.controller.guard import NO_GUARD, ROUNDS, Guard
from draftwise.drafters.protocol import (
    CatchingUpSession,
    Context,
    Drafter,
    DraftSession,
    DraftTask,
    Mix,
    Retrieving,
)
from draftwise.engine.request import Request, RoundState
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import DeviceRead, fetch
from draftwise.protocols import Mixer
from draftwise.types import LONGEST_PLAN, NONE, PLAIN, Costs, Draft, Scores

T = TypeVar("T")
Row = TypeVar("Row", Request, RoundState)


@dataclass(frozen=True, slots=True)
class Pool:
    """Target, drafters, cost model, clocks, guard and lock, shared by the engines of a speculator.

    clock: wall time in seconds. cost_clock: time in the cost model's seconds. lock: held while the
    target or the drafters, which are not thread-safe, are in use.
    """

    target: CausalModel
    drafters: Sequence[Drafter]
    cost_model: CostModel
    clock: Callable[[], float]
    cost_clock: Callable[[], float]
    guard: Guard
    lock: threading.RLock = field(default_factory=threading.RLock)


def pool_of(
    target: CausalModel,
    drafters: Sequence[Drafter],
    clock: Callable[[], float],
    cost_clock: Callable[[], float],
    deterministic: bool,
) -> Pool:
    """A pool with these clocks or, if ``deterministic``, with a fixed cost model and its clock."""
    prices = {drafter.name: drafter.relative_cost for drafter in drafters}
    if deterministic:
        fixed = FixedCostModel(prices)
        # a limited credit would let one answer influence the next
        return Pool(target, drafters, fixed, fixed.clock, fixed.clock, Guard(NO_GUARD))
    measured, guard = MeasuredCostModel(prices), Guard(ROUNDS)
    return Pool(target, drafters, measured, clock, cost_clock, guard)


FEW = 32  # maximum uncached tokens that a drafter processes as part of drafting


class Drafting:
    """One session per drafter, with all open rows: catch-up, drafts, probes and scores.

    Requests that chose the same drafter are drafted for in one batch. A drafter that raises or
    violates the protocol is disabled, with one warning.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._vocab_size = pool, pool.target.vocab_size
        self._sessions = {drafter.name: drafter.start() for drafter in pool.drafters}
        sessions = self._sessions.items()
        retrieving = {drafter.name for drafter in pool.drafters if drafter.retrieves}
        self._retrieving = {n: cast(Retrieving, s) for n, s in sessions if n in retrieving}
        self._catching_up = {n: s for n, s in sessions if isinstance(s, CatchingUpSession)}
        self._mixing = {drafter.name for drafter in pool.drafters if drafter.can_mix}
        self._prefill_budgets = {drafter.name: PrefillBudget() for drafter in pool.drafters}
        self._shares: dict[str, float] = {}  # by drafter: mean fraction of requests, if any

    @property
    def names(self) -> list[str]:
        return list(self._sessions)

    def catch_up(self, states: Sequence[RoundState], round_s: float) -> None:
        """Feed the chosen drafters their uncached tokens, timed separately from drafting.

        In a batch of several requests, a drafter processes a chunk of about half a round
        (``round_s``); until done, its request decodes plainly (``waits``) and keeps its decision.
        """
        groups: dict[str, list[tuple[RoundState, int]]] = {}
        for state in states:
            if (num := self._num_uncached(name := self._writer(state), state.context)) > FEW:
                groups.setdefault(name, []).append((state, num))
        for name, missing in groups.items():
            prefill_budget, longest = self._prefill_budgets[name], max(num for _, num in missing)
            prefill_budget.rounds.append(round_s)
            budget = prefill_budget.budget(is_idle=False) // (len(groups) * len(missing))
            most = longest if len(states) == 1 else max(LEAST_PIECE, budget)
            read = methodcaller("catch_up", [state.context for state, _ in missing], most)
            seconds = self._gather({name: read})[1].get(name, 0.0)
            num_read = sum(min(num, most) for _, num in missing)
            prefill_budget.record(num_read, seconds)
            self._pool.cost_model.record_catch_up(name, num_read, seconds)
            for state, num in missing:
                state.waits = state.waits or num > most
        for state in states:
            state.request.decider.pending = state.decision if state.waits else None

    def propose(self, states: Sequence[RoundState]) -> None:
        """Draft for each request."""
        groups: dict[str, list[tuple[RoundState, DraftTask]]] = {}
        guarded = [state for state in states if state.request.decider.is_controlled]
        padded = LONGEST_PLAN
        if len(guarded) > 1 and not self._pool.target.packs:  # one long draft pads all rows
            longest = [state.plan.num_tokens for state in guarded]
            padded = int(np.median(longest))
        for state in states:
            most = padded if state.request.decider.is_controlled else LONGEST_PLAN
            if most and not state.waits and (task := self._task(state, most)) is not None:
                writer = state.plan if task.mix is None else task.mix.mixer
                groups.setdefault(writer.drafter, []).append((state, task))
        if groups:
            self._draft(groups)
        for name, members in groups.items():
            share = self._shares.setdefault(name, 1.0)
            self._shares[name] += 0.2 * (len(members) / len(states) - share)
        for state in states:
            state.played = state.as_drafted(PLAIN if state.waits else state.plan)

    def _draft(self, groups: Mapping[str, Sequence[tuple[RoundState, DraftTask]]]) -> None:
        def propose(name: str, session: DraftSession) -> DeviceRead[list[Draft]]:
            tasks = [task for _, task in groups[name]]
            drafts = _list_of((yield from session.propose(tasks)), len(tasks))
            for draft, task in zip(drafts, tasks, strict=True):
                _check_draft(draft, task, self._vocab_size)
            return list(drafts)

        proposed, seconds = self._gather({name: partial(propose, name) for name in groups})
        for name, drafts in proposed.items():
            # in a mixed draft, only this drafter's tokens took draft steps
            steps = max(
                d.sources[: d.num_chain].count(name) if d.confidences else d.depth for d in drafts
            )
            self._pool.cost_model.record_draft_steps(name, len(drafts), steps, seconds[name])
            for (state, _), draft in zip(groups[name], drafts, strict=True):
                state.draft, state.drafter = draft, name

    def shared(self, costs: Costs) -> Costs:
        """Costs per request: draft seconds are divided among the requests that are drafted for."""
        draft_s = {name: s / self._shares.get(name, 1.0) for name, s in costs.draft_s.items()}
        return replace(costs, draft_s=draft_s)

    def _task(self, state: RoundState, most: int) -> DraftTask | None:
        request = state.request
        if (mixer := self._mixer(state)) is not None:
            num_nodes = request.decider.longest if self._pool.target.serves_trees else 0
            mix = Mix(mixer, partial(self.peek, request.context), min(num_nodes, most))
            length = min(mixer.length, request.num_draftable, most)
            return DraftTask(request.context, length, mix=mix)
        return state.task(most) if min(state.plan.length, request.num_draftable) > 0 else None

    def _writer(self, state: RoundState) -> str:
        """The drafter of the plan, or the main one of a mixed draft; NONE = nothing is drafted."""
        if not state.request.num_draftable:
            return NONE
        return (self._mixer(state) or state.plan).drafter

    def _mixer(self, state: RoundState) -> Mixer | None:
        mixer = state.mixer
        can = mixer is not None and mixer.drafter in self._mixing and state.plan.tree is None
        return mixer if can and state.request.num_draftable > 0 else None

    def commit(self, states: Sequence[RoundState]) -> None:
        contexts = [state.context for state in states]
        self.broadcast(
            lambda name, session: session.commit(contexts, [t.judged.get(name) for t in states])
        )

    def probe(self, states: Sequence[RoundState], may_pay: bool) -> bool:
        """Collect new scores and, if ``may_pay``, run probes; return whether any probe ran."""
        wants = [may_pay and not state.request.is_over for state in states]
        probed = [
            state.request.decider.drafters_to_probe(len(states)) if pays else ()
            for state, pays in zip(states, wants, strict=True)
        ]
        groups: dict[bool, list[RoundState]] = {True: [], False: []}
        for state in states:
            request = state.request
            number = request.stats.num_rounds + 1
            groups[request.decider.is_panoramic(number)].append(state)
        asked: dict[str, dict[bool | None, list[RoundState]]] = {}
        for name in self.names:
            asked[name] = {None: [s for s, own in zip(states, probed, strict=True) if name in own]}
            for everything, members in groups.items():
                asked[name][everything] = [s for s in members if s.context.allows(name)]
        for name, state, scores in self._scores(asked):
            state.scores[name] = scores
        return any(probed)

    def score_prompts(
        self,
        names: Mapping[int, Sequence[str]],
        requests: Sequence[Request],
        everything: bool | None = None,
    ) -> dict[int, dict[str, Scores]]:
        """Scores on the last tokens of prompts, by request id and drafter.

        names: drafters by request id. everything: as in ``DraftSession.score``; None = a probe.
        """
        asked: dict[str, dict[bool | None, list[Request]]] = {}
        for request in requests:
            for name in names[request.id]:
                asked.setdefault(name, {everything: []})[everything].append(request)
        found: dict[int, dict[str, Scores]] = {request.id: {} for request in requests}
        for name, request, scores in self._scores(asked):
            found[request.id][name] = scores
        return found

    def _scores(
        self, asked: Mapping[str, Mapping[bool | None, Sequence[Row]]]
    ) -> Iterable[tuple[str, Row, Scores]]:
        """Yield new scores. asked: rows by drafter and ``everything`` (None = a probe)."""

        def ask(name: str, session: DraftSession) -> DeviceRead[list[tuple[Row, Scores | None]]]:
            found: list[tuple[Row, Scores | None]] = []
            for everything, rows in asked[name].items():
                if contexts := [row.context for row in rows]:
                    scores = yield from (
                        session.probe(contexts)
                        if everything is None
                        else session.score(contexts, everything)
                    )
                    checked = map(_checked, _list_of(scores, len(rows)))
                    found += zip(rows, checked, strict=True)
            return found

        answers, _ = self._gather({name: partial(ask, name) for name in asked})
        for name, scored in answers.items():
            yield from ((name, row, scores) for row, scores in scored if scores is not None)

    def broadcast(self, what: Callable[[str, DraftSession], None]) -> None:
        for name, session in list(self._sessions.items()):
            self._try(name, partial(what, name, session))

    def matches(self, context: Context) -> dict[str, int]:
        """The match length of each retrieval drafter at the end of the text, in tokens."""
        return self._look_up(context, lambda session: int(session.match_length(context)))

    def peek(self, context: Context, drafted: Sequence[int]) -> dict[str, tuple[int, int]]:
        """By retrieval drafter: match length after text and draft, and the token that follows."""

        def match(session: Retrieving) -> tuple[int, int]:
            length, token = session.peek(context, drafted)
            is_token = isinstance(token, (int, np.integer)) and 0 <= token < self._vocab_size
            if length and not is_token:
                raise Nonsense(f"{token!r} follows a match, of a vocabulary of {self._vocab_size}")
            return int(length), int(token)

        return self._look_up(context, match)

    def _look_up(self, context: Context, what: Callable[[Retrieving], T]) -> dict[str, T]:
        found: dict[str, T] = {}
        for name, session in list(self._retrieving.items()):
            if context.allows(name):
                try:
                    found[name] = what(session)
                except Exception as error:
                    self.leave_out(name, error)
        return found

    def _num_uncached(self, name: str, context: Context) -> int:
        """Uncached tokens that a drafter must process before it drafts; 0 if it is disabled."""
        if (session := self._catching_up.get(name)) is None:
            return 0
        return self._try(name, lambda: int(session.num_uncached_tokens(context))) or 0

    def _gather(
        self, questions: Mapping[str, Callable[[DraftSession], DeviceRead[T]]]
    ) -> tuple[dict[str, T], dict[str, float]]:
        """Results and seconds by drafter; a drafter that raises has no result.

        Tensors that several drafters read in the same step share one transfer and its time.
        """
        asked = [name for name in questions if name in self._sessions]
        sent: dict[str, Any] = dict.fromkeys(asked)
        asks: dict[str, DeviceRead[T]] = {}
        answers: dict[str, T] = {}
        clock = self._pool.cost_clock
        seconds, now = dict.fromkeys(asked, 0.0), clock()
        while sent:
            wanted: dict[str, Sequence[Tensor]] = {}
            for name, values in sent.items():
                try:
                    if values is None:
                        asks[name] = questions[name](self._sessions[name])
                    wanted[name] = _tensors_of(asks[name].send(values))
                except StopIteration as done:
                    if name in self._sessions:  # another drafter's read may have disabled it
                        answers[name] = done.value
                except Exception as error:
                    self.leave_out(name, error)
                before, now = now, clock()
                seconds[name] += now - before
            arrays = iter(fetch([tensor for tensors in wanted.values() for tensor in tensors]))
            sent = {name: list(islice(arrays, len(own))) for name, own in wanted.items()}
            if wanted:
                before, now = now, clock()
            for name in wanted:
                seconds[name] += (now - before) / len(wanted)
        return answers, seconds

    def _try(self, name: str, what: Callable[[], T]) -> T | None:
        try:
            return what()
        except Exception as error:
            self.leave_out(name, error)
            return None

    def leave_out(self, name: str, error: Exception) -> None:
        for sessions in (self._sessions, self._retrieving, self._catching_up):
            sessions.pop(name, None)
        self._mixing.discard(name)
        why = f"returned nonsense ({error})" if isinstance(error, Nonsense) else f"raised {error!r}"
        warnings.warn(f"drafter {name} {why}: it is left out from now on", stacklevel=3)


class Nonsense(ValueError):
    """A result that violates the protocol of ``DraftSession``."""


def _tensors_of(yielded: Any) -> Sequence[Tensor]:
    if not isinstance(yielded, (list, tuple)) or not all(isinstance(t, Tensor) for t in yielded):
        raise Nonsense("it yielded something other than a list of tensors")
    return yielded


def _list_of(found: Any, num: int) -> Sequence[Any]:
    if not isinstance(found, (list, tuple)) or len(found) != num:
        got = f"{len(found)}" if isinstance(found, (list, tuple)) else type(found).__name__
        raise Nonsense(f"{got} in answer to {num} texts: a list of as many is wanted")
    return found


def _checked(scores: Any) -> Scores | None:
    if scores is None:
        return None
    if not isinstance(scores, Scores):
        raise Nonsense(f"{type(scores).__name__} is no Scores")
    is_place = isinstance(scores.start, (int, np.integer)) and scores.start >= 0
    if not is_place or not 0 < scores.weight <= 1:
        raise Nonsense(f"scores start at {scores.start!r} with the weight {scores.weight!r}")
    columns = (scores.alphas, scores.ratios)
    if not all(_is_row(column, "f") for column in columns):
        raise Nonsense("alphas and ratios are not rows of floats")
    if len({len(row) for row in (*columns, scores.matches) if row is not None}) > 1:
        raise Nonsense("alphas, ratios and matches are not of one length")
    if all(0.0 <= value <= 1.0 for column in columns for value in column.tolist()):
        return scores
    if not all(np.isfinite(column).all() for column in columns):
        return None  # the cause may be a non-finite p
    return replace(scores, alphas=columns[0].clip(0, 1), ratios=columns[1].clip(0, 1))


def _check_draft(draft: Any, task: DraftTask, vocab_size: int) -> None:
    if not isinstance(draft, Draft):
        raise Nonsense(f"{type(draft).__name__} is no Draft")
    tokens, num = draft.tokens, np.size(draft.tokens)
    if not _is_row(tokens, "iuf" if not num else "iu"):
        raise Nonsense("drafted tokens are not a row of whole numbers")
    ids = tokens.tolist()
    if num and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise Nonsense(f"tokens {min(ids)} to {max(ids)} were drafted, of {vocab_size}")
    most = task.length if task.tree is None else task.tree.total_tokens
    most = most if task.mix is None else max(most, task.mix.most)
    if num > most:
        raise Nonsense(f"{num} tokens were drafted, where {most} were wanted at most")
    if len(draft.sources) != num or len(draft.confidences) not in (0, num):
        raise Nonsense(f"sources or confidences are not as many as {num} tokens")
    if draft.parents is not None:
        _check_tree(draft, draft.parents, task.length)
    probs = () if draft.probs is None else draft.probs
    if draft.probs is not None and len(probs) != num:
        raise Nonsense(f"{len(probs)} distributions of {num} tokens")
    # ``offpath_probs`` of greedy drafters are tokens, not distributions
    is_greedy = task.context.sampling.temperature == 0
    wide = [*probs, *(() if is_greedy else (q for _, q in draft.offpath_probs))]
    has_nodes = all(-1 <= node < num for node, _ in draft.offpath_probs)
    if not has_nodes or not all(q is None or _is_q(q, vocab_size) for q in wide):
        raise Nonsense(f"a distribution is no row of {vocab_size} probabilities")


def _check_tree(draft: Draft, parents: Any, length: int) -> None:
    num = len(draft)
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
    """Whether a value is a one-dimensional array whose ``dtype.kind`` is one of ``kinds``."""
    return isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in kinds


LEAST_PIECE, LARGEST_PIECE = 16, 2048  # minimum and maximum prefill chunk, in tokens
FIRST_PIECE = 256  # of a prompt, before the speed of prefill is known
SHARE = 0.5  # maximum duration of a chunk, as a fraction of a round
IDLE_S = 0.5
"""Maximum duration of a long prompt's chunk while no request runs: a request that arrives meanwhile
waits as long. Each chunk costs about one round more, which is to be small beside it."""


class PrefillBudget:
    """Chooses the size of the prefill chunk that runs between two rounds.

    A chunk may take half as long as a round, estimated from earlier chunks, so that even with a
    prompt chunk and a drafter chunk in one step no request waits for more than about two rounds.
    State: recent seconds per round and per prefilled token; medians, so that pauses do not count.
    """

    def __init__(self) -> None:
        self.rounds, self.tokens = deque[float](maxlen=9), deque[float](maxlen=9)

    def budget(self, is_idle: bool) -> int:
        """The chunk size for one step, in tokens; is_idle: no request is running."""
        if not self.tokens:
            return FIRST_PIECE if is_idle else LEAST_PIECE
        if not is_idle and not self.rounds:
            return LEAST_PIECE
        seconds = IDLE_S if is_idle else SHARE * median(self.rounds)
        most = seconds / max(median(self.tokens), 1e-9)
        return int(min(LARGEST_PIECE, max(LEAST_PIECE, most)))

    def record(self, num_tokens: int, seconds: float) -> None:
        if num_tokens >= LEAST_PIECE // 2:  # smaller chunks predict larger ones poorly
            self.tokens.append(seconds / num_tokens)
