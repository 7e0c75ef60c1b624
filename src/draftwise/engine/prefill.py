"""Chunked prefill between rounds, so that running rows need not wait for long prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draftwise.engine.drafting import Drafting
from draftwise.engine.loop import Loop
from draftwise.engine.records import as_logprobs, logprobs
from draftwise.engine.request import Request
from draftwise.nn.cache import RaggedCache
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import warped
from draftwise.nn.transfer import fetch
from draftwise.types import PLAIN, Decision, Evidence, Scores

PROMPT_SCORES = 16  # prompt tokens on which drafters are scored before the first round


class PrefillScheduler:
    """Prefills prompts up to their last token, and scores drafters on their last tokens."""

    def __init__(
        self, target: CausalModel, cache: RaggedCache, drafting: Drafting, loop: Loop
    ) -> None:
        self._target, self._cache, self._drafting, self._loop = target, cache, drafting, loop

    def prefill(self, requests: Sequence[Request], budget: int) -> int:
        """Prefill up to ``budget`` tokens of these prompts, in order; return how many."""
        fed: list[tuple[Request, list[int]]] = []
        for request in requests:
            start = self._cache.lengths[request.context.row]
            end, switch = len(request.prompt) - 1, self._target.switch
            # cross LongRoPE's switch in one chunk: earlier tokens would be recomputed
            most = max(budget, switch + 1) if start < switch < end else budget
            piece = list(request.prompt[start:end][:most])
            if piece:
                fed.append((request, piece))
                budget -= len(piece)
            if budget <= 0:
                break
        if not fed:
            return 0
        keep = max(
            len(piece) if request.wants_prompt_logprobs else min(len(piece), PROMPT_SCORES)
            for request, piece in fed
        )
        rows = [request.context.row for request, _ in fed]
        starts = [self._cache.lengths[row] for row in rows]
        logits = self._target.extend(self._cache, rows, [piece for _, piece in fed], keep)
        self._cache.settle(rows, [self._cache.lengths[row] for row in rows])
        for index, (request, piece) in enumerate(fed):
            features = request.context.features
            if features is not None:
                states = {tap: hidden[index] for tap, hidden in logits.hidden.items()}
                features.put(starts[index], states)
            self._remember(request, logits.last(index, min(keep, len(piece))))
        return sum(len(piece) for _, piece in fed)

    def is_done(self, request: Request) -> bool:
        """Whether only the prompt's last token is left, which the first round feeds."""
        return self._cache.lengths[request.context.row] >= len(request.prompt) - 1

    def score_prompts(
        self, requests: Sequence[Request], num_waiting: int, may_pay: bool = True
    ) -> None:
        """Round 0: score drafters on the prompt, without a draft.

        num_waiting: running rows that wait for it; with any, each request gets one paid probe now
        and others later. may_pay: whether probes may cost forwards.
        """
        asked = [r for r in requests if r.scores_prompt and len(r.prompt) > 1]
        while asked:  # a shared policy learns from one request before it decides on the next
            first = {id(request.policy): request for request in reversed(asked)}
            self._show(list(first.values()), num_waiting, may_pay)
            asked = [request for request in asked if first[id(request.policy)] is not request]

    def _show(self, requests: Sequence[Request], num_waiting: int, may_pay: bool) -> None:
        """Use free and panoramic scores first, then the probes that policies ask for."""
        names, score = self._drafting.sessions.names, self._drafting.score_prompts
        # drafters with panoramic feedback prefill whole prompts in any case
        whole = [r for r in requests if r.reads_everything]
        rest = [r for r in requests if not r.reads_everything]
        probing = [r for r in rest if r.probing is not None]
        plain = [r for r in rest if r.probing is None]
        for everything, group in ((True, whole), (False, probing), (None, plain)):
            found = score({r.id: names for r in group}, group, everything)
            for request in group:
                request.learn(Decision(0, 1.0, 0), self._round_zero(request, found[request.id]))
        if not may_pay:
            return
        most = 1 if num_waiting else None
        num_rows = 1 + num_waiting // max(len(requests), 1)  # for each request of the group
        drafters_to_probe = {r.id: r.drafters_to_probe(num_rows)[:most] for r in requests}
        probed = score(drafters_to_probe, requests)
        for request in requests:
            if scores := probed[request.id]:
                request.learn(Decision(0, 1.0, 0), self._round_zero(request, scores))

    def _round_zero(self, request: Request, scores: Mapping[str, Scores]) -> Evidence:
        return Evidence(
            PLAIN,
            0,
            0,
            scores,
            emitted_start=len(request.prompt),
            costs=self._loop.costs([request]),
            matches=self._drafting.sessions.matches(request.context),
            num_left=request.answer.num_left,
        )

    def _remember(self, request: Request, block: torch.Tensor) -> None:
        """Keep p of the prompt's last tokens, and log-probabilities if requested."""
        context, text = request.context, request.prompt
        end = self._cache.lengths[context.row]
        if request.wants_prompt_logprobs:
            tokens = torch.tensor(text[end - len(block) + 1 : end + 1], device=block.device)
            found = fetch(logprobs(block, tokens, request.num_logprobs or 0))
            request.prompt_logprobs += as_logprobs(*found)
        if request.scores_prompt and end == len(text) - 1:
            num = min(PROMPT_SCORES, len(block))
            first = len(text) - num
            p = warped(block[-num:], [context.span(num, first)])
            is_greedy = context.sampling.temperature == 0
            points = fetch([p.tokens])[0].astype(int).tolist() if is_greedy else list(p.probs)
            context.remember(first, points)
