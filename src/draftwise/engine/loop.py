"""The loop: choose, read, draft, verify, commit, look, reveal, learn; for all rows that run.

``Loop.round`` is the whole of it. Every request has its own text, length, plan and policy; rows
that chose the same drafter draft together, and one target forward verifies all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from draftwise.dist import is_broken
from draftwise.engine.draft_checks import Nonsense
from draftwise.engine.drafting import Drafting, Pool
from draftwise.engine.records import Round
from draftwise.engine.request import EMPTY, Request, RoundState
from draftwise.engine.verification import drafted_alphas, score_drafts, siblings_of, verify_batch
from draftwise.nn.cache import RaggedCache
from draftwise.nn.trees import draft_branches
from draftwise.types import Costs, Draft, Evidence, Verdict

PAUSE = 8.0
"""Plain rounds; one that takes longer was interrupted, and is charged as one that took so long."""
SURE = 1.3
"""Times plain decoding, from which on a draft is played though drafting has lost of late."""
REQUEST_CREDIT = 1.0
"""Plain rounds that drafting may lose on a new request, split among the rows of the batch."""
PROBE_SHARE = 0.01
"""Of the time, that forwards of drafters which do not draft may take, to see how they fare."""


class Loop:
    """Rounds over rows whose prompts were read; the target's cache and the drafters are shared."""

    def __init__(self, pool: Pool, cache: RaggedCache, drafting: Drafting) -> None:
        self._pool, self._cache, self._drafting = pool, cache, drafting
        self.seconds: dict[str, float] = {}
        self._verify_s = self._plain_s = self._probe_s = 0.0

    def round(self, requests: Sequence[Request]) -> list[Round]:
        """One round; each request's record of it."""
        start = self._pool.cost_clock()
        with self.phase("choose"):
            states = choose(requests, self._pool.guard.allows_drafts)
        drafted = [state for state in states if state.context.is_drafted]
        with self.phase("read"):
            self._drafting.catch_up(drafted, self._verify_s)
        with self.phase("draft"):
            self._drafting.propose(drafted)
        with self.phase("verify"):
            self._verify(states)
        with self.phase("commit"):
            for state in states:
                self._commit(state)
            if drafted:
                self._drafting.commit(drafted)
        with self.phase("look"):
            start_probe = self._pool.cost_clock()
            if drafted and self._drafting.probe(drafted, self._probe_s > 0.0):
                self._probe_s -= self._pool.cost_clock() - start_probe
        with self.phase("reveal"):
            evidence = self._collect_evidence(states)
        with self.phase("learn"):
            for state, facts in zip(states, evidence, strict=True):
                if not state.waits:  # what was chosen is still to come
                    state.request.learn(state.decision, facts)
        charged = self._account(states, self._pool.cost_clock() - start)
        return self._records(states, evidence, charged)

    def _account(self, states: Sequence[RoundState], seconds: float) -> tuple[float, float]:
        """What the round has earned: seconds of a plain one, and its own."""
        has_drafted = any(len(state.draft) or state.waits for state in states)
        plain_s = self._plain_s if has_drafted else seconds
        seconds = min(seconds, PAUSE * plain_s)
        self._pool.guard.observe(sum(t.num_emitted for t in states) / len(states), seconds, plain_s)
        self._probe_s += PROBE_SHARE * seconds
        return plain_s, seconds

    def begin(self, num: int, num_running: int, seconds: float) -> None:
        """So many requests begin, and first impressions of their prompts took ``seconds``.

        They are charged to the account, and every request brings a little credit for its own text.
        """
        guard, plain_s = self._pool.guard, self._plain_s
        guard.charge(min(seconds, num * plain_s))  # beyond that the machine, or Python, paused
        guard.grant(REQUEST_CREDIT * plain_s * num / max(num_running, 1))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside under a name."""
        start = self._pool.clock()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._pool.clock() - start

    def costs(self, requests: Sequence[Request]) -> Costs:
        """What everything costs with so many rows."""
        longest = max(request.longest for request in requests)
        context = sum(len(request.context.tokens) for request in requests)
        return self._drafting.shared(
            self._pool.cost_model.costs(
                len(requests), longest + 1, context, self._pool.target.packs
            )
        )

    def _verify(self, states: Sequence[RoundState]) -> None:
        """One forward of the target, and one look at what each row keeps."""
        start = self._pool.cost_clock()
        for state in states:
            state.uniforms = state.request.uniforms(len(state.draft) + 1)
        num_fed, widest = self._target_forward(states), max(len(state.fed) for state in states)
        verify_batch(states)
        tokens = num_fed if self._pool.target.packs else widest * len(states)
        self._verify_s = self._pool.cost_clock() - start
        context = sum(len(state.context.tokens) for state in states)
        self._plain_s = self._pool.cost_model.record_target_step(
            len(states), tokens, context, self._verify_s
        )
        broken = [state for state in states if is_broken(int(state.verdict.tokens[-1]))]
        if broken := [state for state in broken if len(state.draft)]:
            self._verify_plainly(broken)

    def _target_forward(self, states: Sequence[RoundState]) -> int:
        """The target's logits after the text and after each drafted token; how many it was fed."""
        fed = [state.fed for state in states]
        trees = [draft_branches(state.draft, self._cache.lengths[state.row]) for state in states]
        rows, widest = [state.row for state in states], max(map(len, fed))
        logits = self._pool.target.extend(self._cache, rows, fed, widest, trees)
        for index, state in enumerate(states):
            state.logits = logits.last(index, len(fed[index]))
            state.hidden = {tap: hidden[index] for tap, hidden in logits.hidden.items()}
        return logits.num_fed

    def _verify_plainly(self, states: Sequence[RoundState]) -> None:
        """Do rows again whose drafts hold a token that the target cannot read.

        Its keys and values are not finite, and what a mask hides is multiplied by 0, not left out.
        So p is asked for again with nothing drafted, and the same uniforms judge the drafts' first
        tokens alone: an accepted one is all that the round emits.
        """
        alone = [replace(state, draft=EMPTY) for state in states]
        self._cache.settle([t.row for t in states], [len(t.context.tokens) - 1 for t in states])
        self._target_forward(alone)
        firsts = []
        for state, plain in zip(states, alone, strict=True):
            self._leave_out_broken(state)
            draft, logits = state.draft, plain.logits
            nodes = np.array(draft.children(-1))
            probs = [None if isinstance(q := draft.q(node), int) else q for node in nodes]
            children = Draft(draft.tokens[nodes], probs, parents=np.full(len(nodes), -1))
            assert logits is not None
            uniforms = state.uniforms[[*nodes, -1]]
            same = logits.expand(len(nodes) + 1, -1)  # what follows an accepted one is not read
            firsts.append(replace(plain, draft=children, uniforms=uniforms, logits=same))
        verify_batch(firsts)
        for state, first in zip(states, firsts, strict=True):
            path = np.array(state.draft.children(-1))[first.verdict.path]
            state.verdict = Verdict(first.verdict.tokens[:1], path)
            state.targets, state.logprobs = first.targets[:1], first.logprobs[:1]
            state.hidden, state.parts = first.hidden, []  # nothing is learnt of such a draft

    def _leave_out_broken(self, state: RoundState) -> None:
        """Drop a draft whose q is not finite, and its drafter; the target's own p decides then."""
        for name, draft in state.parts:
            drawn = [q for q in draft.probs if q is not None] if draft.probs is not None else []
            if not all(bool(torch.as_tensor(q).isfinite().all()) for q in drawn):
                self._drafting.sessions.leave_out(name, Nonsense("a q is not finite"))
                state.draft = EMPTY

    def _commit(self, state: RoundState) -> None:
        """Append what was kept, and cut the cache back."""
        request, context = state.request, state.context
        base = len(context.tokens) - 1
        state.num_emitted = request.commit(state.draft, state.verdict, state.targets)
        self._cache.keep_path(state.row, base, state.kept)
        if context.features is not None:
            kept = {tap: hidden[state.kept] for tap, hidden in state.hidden.items()}
            context.features.put(base, kept)
        request.logprobs += [state.logprobs[place] for place in state.kept if state.logprobs]
        request.check_callbacks()
        score_drafts(state)

    def _collect_evidence(self, states: Sequence[RoundState]) -> list[Evidence]:
        """All that the round made known, for each request."""
        drafted = [state.request for state in states if state.context.is_drafted]
        costs = self.costs([state.request for state in states]) if drafted else None
        seconds = sum(self.seconds.get(phase, 0.0) for phase in ("draft", "verify"))
        return [self._evidence(state, costs, seconds) for state in states]

    def _evidence(self, state: RoundState, costs: Costs | None, seconds: float) -> Evidence:
        return Evidence(
            plan=state.played,
            num_drafted=len(state.draft),
            num_accepted=state.verdict.num_accepted,
            scores=state.scores,
            drafted_alphas=drafted_alphas(state.draft, state.alphas, state.verdict.path),
            emitted_start=len(state.context.tokens) - state.num_emitted,
            seconds=seconds,
            costs=costs,
            matches=self._drafting.sessions.matches(state.context),
            stops=state.request.stops,
            confidences=state.draft.confidences[: state.draft.num_chain],
            siblings=siblings_of(state.draft, state.verdict.path),
            tokens=state.context.tokens[len(state.context.tokens) - state.num_emitted :],
            num_left=state.request.answer.num_left,
        )

    def _records(
        self,
        states: Sequence[RoundState],
        evidence: Sequence[Evidence],
        charged: tuple[float, float],
    ) -> list[Round]:
        """One record a request; the round's seconds are shared by its rows."""
        seconds, self.seconds = self.seconds, {}
        return [
            state.request.record(
                state.decision, facts, state.num_emitted, seconds, len(states), charged
            )
            for state, facts in zip(states, evidence, strict=True)
        ]


def choose(requests: Sequence[Request], may_draft: bool = True) -> list[RoundState]:
    """A decision for each row, by its policy; what could not be played yet still stands.

    may_draft: whether rows may draft that do so only where it is not slower than plain decoding;
    otherwise those do that expect much of it.
    """
    states = []
    for request in requests:
        decision = request.choose() if request.pending is None else request.pending
        request.is_resting = not may_draft and request.is_guarded and request.advantage < SURE
        if request.is_resting:
            decision = request.plain
        states.append(RoundState(request, decision, request.plays(decision)))
    return states
