"""The loop: choose, draft, verify, commit, reveal, learn; for B >= 1 requests at once.

``Batch.rounds`` is the whole of it. Every request has its own text, length, plan and policy; rows
that chose the same drafter draft together, and one target forward verifies all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from draftwise.dist import drafted_alphas
from draftwise.engine.drafting import Drafting, Pool
from draftwise.engine.records import Round
from draftwise.engine.request import Request, choose
from draftwise.engine.verify import verify
from draftwise.nn.features import Features
from draftwise.nn.sampling import distributions
from draftwise.nn.trees import draft_branches
from draftwise.types import (
    PLAIN,
    Decision,
    Dist,
    Draft,
    Evidence,
    Plan,
    Scores,
    Verdict,
)

PROMPT_SCORES = 16
"""Prompt tokens on which drafters are scored before the first round."""


class Batch:
    """Requests that run together, one row each; KV storage is allocated once, as asked for."""

    def __init__(self, pool: Pool, requests: Sequence[Request]) -> None:
        self._longest = max(request.num_tokens(pool.plans) for request in requests)
        room = max(self._longest, *(plan.num_slots for plan in pool.plans)) + 1
        capacity = max(len(r.prompt) + r.answer.num_left for r in requests) + room
        self._pool, self._active = pool, list(requests)
        self._cache = pool.target.new_cache(len(requests), capacity)
        self._drafting = Drafting(pool, len(requests), capacity)
        self._hidden: Mapping[int, Sequence[Tensor]] = {}
        if pool.target.taps:
            for request in requests:
                request.context.features = Features()
        self._num_rounds = 0
        self._seconds: dict[str, float] = {}

    @property
    def num_cache_bytes(self) -> int:
        """Bytes of the target's KV storage."""
        return self._cache.num_bytes

    @torch.inference_mode()
    def rounds(self) -> Iterator[Round]:
        """Run to the end; yield each request's record of each round."""
        with self._phase("prefill"):
            self._prefill()
        while self._active:
            self._num_rounds += 1
            with self._phase("choose"):
                decisions = choose([request.policy for request in self._active])
                plans = [
                    request.plays(decision, self._pool.plans)
                    for request, decision in zip(self._active, decisions, strict=True)
                ]
            with self._phase("draft"):
                drafts = self._drafting.propose(self._active, plans)
                played = self._played(plans, drafts)
            with self._phase("verify"):
                targets = self._target(drafts)
                verdicts = self._verify(drafts, targets)
            with self._phase("commit"):
                emitted = self._commit(drafts, verdicts, targets)
            with self._phase("look"):
                looks = self._drafting.looks(self._active)
            with self._phase("reveal"):
                evidence = self._reveal(played, drafts, verdicts, targets, emitted, looks)
            with self._phase("learn"):
                for request, made, facts in zip(self._active, decisions, evidence, strict=True):
                    request.learn(made, facts)
            yield from self._records(decisions, evidence, emitted)
            self._drop_finished()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = self._pool.clock()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + self._pool.clock() - start

    def _prefill(self) -> None:
        """Read all of each prompt but its last token; score drafters on its last positions."""
        requests = [r for r in self._active if len(r.prompt) > 1]
        if not requests:
            return
        rows = [r.context.row for r in requests]
        texts = [r.prompt[:-1] for r in requests]
        logits = self._pool.target.extend(self._cache, rows, texts, keep=PROMPT_SCORES)
        for index, request in enumerate(requests):
            request.see_hidden(0, logits.hidden, index, slice(None))
        if not self._pool.scores_prompt:
            return
        for index, request in enumerate(requests):
            num = min(PROMPT_SCORES, len(request.prompt) - 1)
            first = len(request.prompt) - num
            text = request.prompt
            block = logits.last(index, num)
            targets = distributions(block, request.context.sampling, text[:first], text[first:])
            request.context.remember(first, targets)
        for request, evidence in zip(requests, self._prompt_evidence(requests), strict=True):
            request.learn(Decision(0, 1.0, 0), evidence)

    def _prompt_evidence(self, requests: Sequence[Request]) -> list[Evidence]:
        """Round 0: its plan is none, and what it shows is how drafters fare on the prompt."""
        contexts = [r.context for r in requests]
        # panoramic feedback reads whole prompts anyway, at the latest in its first round
        is_full = requests[0].revealer.panoramic
        look = self._drafting
        scores = look.scores(contexts, everything=True) if is_full else look.glance(contexts)
        costs = self._pool.meter.costs(len(self._active), self._longest + 1)
        return [
            Evidence(
                PLAIN,
                0,
                0,
                scores[i],
                emitted_start=len(r.prompt),
                costs=costs,
                matches=self._drafting.matches(r.context),
            )
            for i, r in enumerate(requests)
        ]

    def _target(self, drafts: Sequence[Draft]) -> list[list[Dist]]:
        """The target's p after the text and after each drafted token: one forward for all rows."""
        rows = [request.context.row for request in self._active]
        tokens = [
            [request.context.tokens[-1], *draft.tokens.tolist()]
            for request, draft in zip(self._active, drafts, strict=True)
        ]
        start = self._pool.clock()
        trees = [
            draft_branches(draft, self._cache.lengths[r])
            for draft, r in zip(drafts, rows, strict=True)
        ]
        logits = self._pool.target.extend(self._cache, rows, tokens, self._longest + 1, trees)
        self._hidden = logits.hidden
        targets = []
        for index, (request, draft) in enumerate(zip(self._active, drafts, strict=True)):
            context, block = request.context, logits.last(index, len(draft) + 1)
            drafted = draft.tokens.tolist()
            targets.append(
                distributions(block, context.sampling, context.tokens, drafted, draft.parents)
            )
        width = max(len(fed) for fed in tokens)
        self._pool.meter.saw_target(len(rows), width, self._pool.clock() - start)
        return targets

    def _played(self, plans: Sequence[Sequence[Plan]], drafts: Sequence[Draft]) -> list[Plan]:
        """What became of each row's first plan."""
        rows = zip(self._active, plans, drafts, strict=True)
        return [request.as_drafted(chosen[0], draft) for request, chosen, draft in rows]

    def _verify(self, drafts: Sequence[Draft], targets: Sequence[list[Dist]]) -> list[Verdict]:
        """What each row keeps; logits that are not finite end it with the token -1."""
        return [
            verify(draft, dists, request.uniforms(len(draft) + 1))
            for request, draft, dists in zip(self._active, drafts, targets, strict=True)
        ]

    def _commit(
        self,
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        targets: Sequence[list[Dist]],
    ) -> list[int]:
        """Append what was kept, cut the caches back; return the tokens emitted a row."""
        emitted = []
        for index, (request, draft, verdict, dists) in enumerate(
            zip(self._active, drafts, verdicts, targets, strict=True)
        ):
            base = len(request.context.tokens) - 1
            num = request.commit(draft, verdict, dists)
            kept = [0, *(verdict.path + 1).tolist()][:num]
            self._cache.keep_path(request.context.row, base, kept)
            request.see_hidden(base, self._hidden, index, kept)
            emitted.append(num)
        contexts = [request.context for request in self._active]
        self._drafting.commit(contexts)
        return emitted

    def _reveal(
        self,
        played: Sequence[Plan],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        targets: Sequence[list[Dist]],
        emitted: Sequence[int],
        looks: Sequence[Mapping[str, Scores]],
    ) -> list[Evidence]:
        """All that the round made known, for each request."""
        revealer = self._active[0].revealer
        everything = revealer.panoramic and self._num_rounds % revealer.every == 0
        scores = self._drafting.scores([r.context for r in self._active], everything)
        costs = self._pool.meter.costs(len(self._active), self._longest + 1)
        seconds = sum(self._seconds.get(phase, 0.0) for phase in ("draft", "verify"))
        return [
            Evidence(
                plan=played[index],
                num_drafted=len(drafts[index]),
                num_accepted=verdict.num_accepted,
                scores={**looks[index], **scores[index]},
                drafted_alphas=drafted_alphas(drafts[index], targets[index], verdict.path),
                emitted_start=len(request.context.tokens) - emitted[index],
                seconds=seconds,
                costs=costs,
                matches=self._drafting.matches(request.context),
                stops=request.stops,
                confidences=drafts[index].confidences,
            )
            for index, (request, verdict) in enumerate(zip(self._active, verdicts, strict=True))
        ]

    def _records(
        self,
        decisions: Sequence[Decision],
        evidence: Sequence[Evidence],
        emitted: Sequence[int],
    ) -> Iterator[Round]:
        """One record a request; the round's seconds are shared by its rows."""
        seconds, self._seconds = self._seconds, {}
        for request, decision, facts, num in zip(
            self._active, decisions, evidence, emitted, strict=True
        ):
            yield request.record(self._num_rounds, decision, facts, num, seconds, len(emitted))

    def _drop_finished(self) -> None:
        """Let finished rows go, so that the others stop paying for them."""
        rest = [request for request in self._active if request.answer.finish_reason is None]
        for request in self._active:
            if request.answer.finish_reason is not None:
                request.finish()
        if rest and len(rest) < len(self._active):
            rows = [request.context.row for request in rest]
            self._cache.keep_rows(rows)
            self._drafting.keep_rows(rows)
            for row, request in enumerate(rest):
                request.context.row = row
        self._active = rest
