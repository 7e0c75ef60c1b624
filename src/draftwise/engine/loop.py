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
from draftwise.engine.request import EMPTY, Request, Turn
from draftwise.engine.verification import drafted_alphas, judge_all, show, siblings_of
from draftwise.nn.cache import RaggedCache
from draftwise.nn.trees import draft_branches
from draftwise.types import Costs, Draft, Evidence, Verdict

PAUSE = 8.0
"""Plain rounds; one that takes longer was interrupted, and is charged as one that took so long."""
LOOK_SHARE = 0.01
"""Of the time, that forwards of drafters which do not draft may take, to see how they fare."""


class Loop:
    """Rounds over rows whose prompts were read; the target's cache and the drafters are shared."""

    def __init__(self, pool: Pool, cache: RaggedCache, drafting: Drafting) -> None:
        self._pool, self._cache, self._drafting = pool, cache, drafting
        self.seconds: dict[str, float] = {}
        self._verify_s = self._plain_s = self._look_s = 0.0

    def round(self, requests: Sequence[Request]) -> list[Round]:
        """One round; each request's record of it."""
        start = self._pool.cost_clock()
        with self.phase("choose"):
            turns = choose(requests, self._pool.guard.allows_drafts)
        with self.phase("read"):
            self._drafting.catch_up(turns, self._verify_s)
        with self.phase("draft"):
            self._drafting.propose(turns)
        with self.phase("verify"):
            self._verify(turns)
        with self.phase("commit"):
            for turn in turns:
                self._commit(turn)
            self._drafting.commit(turns)
        with self.phase("look"):
            look = self._pool.cost_clock()
            if self._drafting.look(turns, self._look_s > 0.0):
                self._look_s -= self._pool.cost_clock() - look
        with self.phase("reveal"):
            evidence = self._reveal(turns)
        with self.phase("learn"):
            for turn, facts in zip(turns, evidence, strict=True):
                if not turn.waits:  # what was chosen is still to come
                    turn.request.learn(turn.decision, facts)
        self._account(turns, self._pool.cost_clock() - start)
        return self._records(turns, evidence)

    def _account(self, turns: Sequence[Turn], seconds: float) -> None:
        """What the round has earned, compared with plain decoding."""
        has_drafted = any(len(turn.draft) or turn.waits for turn in turns)
        plain_s = self._plain_s if has_drafted else seconds
        seconds = min(seconds, PAUSE * plain_s)
        self._pool.guard.observe(sum(t.num_emitted for t in turns) / len(turns), seconds, plain_s)
        self._look_s += LOOK_SHARE * seconds

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
            self._pool.meter.costs(len(requests), longest + 1, context, self._pool.target.packs)
        )

    def _verify(self, turns: Sequence[Turn]) -> None:
        """One forward of the target, and one look at what each row keeps."""
        start = self._pool.cost_clock()
        for turn in turns:
            turn.uniforms = turn.request.uniforms(len(turn.draft) + 1)
        num_fed, widest = self._read(turns), max(len(turn.fed) for turn in turns)
        judge_all(turns)
        tokens = num_fed if self._pool.target.packs else widest * len(turns)
        self._verify_s = self._pool.cost_clock() - start
        context = sum(len(turn.context.tokens) for turn in turns)
        self._plain_s = self._pool.meter.saw_target(len(turns), tokens, context, self._verify_s)
        broken = [turn for turn in turns if is_broken(int(turn.verdict.tokens[-1]))]
        if broken := [turn for turn in broken if len(turn.draft)]:
            self._verify_plainly(broken)

    def _read(self, turns: Sequence[Turn]) -> int:
        """The target's logits after the text and after each drafted token; how many it was fed."""
        fed = [turn.fed for turn in turns]
        trees = [draft_branches(turn.draft, self._cache.lengths[turn.row]) for turn in turns]
        rows, widest = [turn.row for turn in turns], max(map(len, fed))
        logits = self._pool.target.extend(self._cache, rows, fed, widest, trees)
        for index, turn in enumerate(turns):
            turn.logits = logits.last(index, len(fed[index]))
            turn.hidden = {tap: states[index] for tap, states in logits.hidden.items()}
        return logits.num_fed

    def _verify_plainly(self, turns: Sequence[Turn]) -> None:
        """Do rows again whose drafts hold a token that the target cannot read.

        Its keys and values are not finite, and what a mask hides is multiplied by 0, not left out.
        So p is asked for again with nothing drafted, and the same uniforms judge the drafts' first
        tokens alone: an accepted one is all that the round emits.
        """
        alone = [replace(turn, draft=EMPTY) for turn in turns]
        self._cache.settle([t.row for t in turns], [len(t.context.tokens) - 1 for t in turns])
        self._read(alone)
        firsts = []
        for turn, plain in zip(turns, alone, strict=True):
            self._leave_out_broken(turn)
            draft, logits = turn.draft, plain.logits
            nodes = np.array(draft.children(-1))
            probs = [None if isinstance(q := draft.q(node), int) else q for node in nodes]
            children = Draft(draft.tokens[nodes], probs, parents=np.full(len(nodes), -1))
            assert logits is not None
            uniforms = turn.uniforms[[*nodes, -1]]
            same = logits.expand(len(nodes) + 1, -1)  # what follows an accepted one is not read
            firsts.append(replace(plain, draft=children, uniforms=uniforms, logits=same))
        judge_all(firsts)
        for turn, first in zip(turns, firsts, strict=True):
            path = np.array(turn.draft.children(-1))[first.verdict.path]
            turn.verdict = Verdict(first.verdict.tokens[:1], path)
            turn.targets, turn.logprobs = first.targets[:1], first.logprobs[:1]
            turn.hidden, turn.parts = first.hidden, []  # nothing is learnt of such a draft

    def _leave_out_broken(self, turn: Turn) -> None:
        """Drop a draft whose q is not finite, and its drafter; the target's own p decides then."""
        for name, draft in turn.parts:
            drawn = [q for q in draft.probs if q is not None] if draft.probs is not None else []
            if not all(bool(torch.as_tensor(q).isfinite().all()) for q in drawn):
                self._drafting.sessions.leave_out(name, Nonsense("a q is not finite"))
                turn.draft = EMPTY

    def _commit(self, turn: Turn) -> None:
        """Append what was kept, and cut the cache back."""
        request, context = turn.request, turn.context
        base = len(context.tokens) - 1
        turn.num_emitted = request.commit(turn.draft, turn.verdict, turn.targets)
        self._cache.keep_path(turn.row, base, turn.kept)
        if context.features is not None:
            states = {tap: hidden[turn.kept] for tap, hidden in turn.hidden.items()}
            context.features.put(base, states)
        request.logprobs += [turn.logprobs[place] for place in turn.kept if turn.logprobs]
        request.check_callbacks()
        show(turn)

    def _reveal(self, turns: Sequence[Turn]) -> list[Evidence]:
        """All that the round made known, for each request."""
        costs = self.costs([turn.request for turn in turns])
        seconds = sum(self.seconds.get(phase, 0.0) for phase in ("draft", "verify"))
        return [self._evidence(turn, costs, seconds) for turn in turns]

    def _evidence(self, turn: Turn, costs: Costs, seconds: float) -> Evidence:
        return Evidence(
            plan=turn.played,
            num_drafted=len(turn.draft),
            num_accepted=turn.verdict.num_accepted,
            scores=turn.scores,
            drafted_alphas=drafted_alphas(turn.draft, turn.alphas, turn.verdict.path),
            emitted_start=len(turn.context.tokens) - turn.num_emitted,
            seconds=seconds,
            costs=costs,
            matches=self._drafting.sessions.matches(turn.context),
            stops=turn.request.stops,
            confidences=turn.draft.confidences[: turn.draft.num_chain],
            siblings=siblings_of(turn.draft, turn.verdict.path),
            tokens=turn.context.tokens[len(turn.context.tokens) - turn.num_emitted :],
            num_left=turn.request.answer.num_left,
        )

    def _records(self, turns: Sequence[Turn], evidence: Sequence[Evidence]) -> list[Round]:
        """One record a request; the round's seconds are shared by its rows."""
        seconds, self.seconds = self.seconds, {}
        return [
            turn.request.record(turn.decision, facts, turn.num_emitted, seconds, len(turns))
            for turn, facts in zip(turns, evidence, strict=True)
        ]


def choose(requests: Sequence[Request], may_draft: bool = True) -> list[Turn]:
    """A decision for each row, by its policy; what could not be played yet still stands.

    may_draft: whether rows may draft that do so only where it is not slower than plain decoding.
    """
    turns = []
    for request in requests:
        request.is_resting = not may_draft and request.is_guarded
        if request.is_resting:
            decision = request.plain
        else:
            decision = request.choose() if request.pending is None else request.pending
        turns.append(Turn(request, decision, request.plays(decision)))
    return turns
