"""Prefill: which prompts are read in a step, what is cached of them, and prompt scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from draftwise.drafters.protocol import Context
from draftwise.engine.drafting import LARGEST_PIECE, Drafting
from draftwise.engine.loop import Loop, as_logprobs, logprobs
from draftwise.engine.request import Request
from draftwise.nn.cache import RaggedCache
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import fetch, warped
from draftwise.types import Scores

MIN_PREFIX_TOKENS = 32  # shortest common prefix that is reused, in tokens
PROMPT_SCORES = 16  # prompt tokens on which drafters are scored before the first round


class PrefixMatch(NamedTuple):
    """The context of a row that shares a prefix with a prompt; length: of the prefix, in tokens."""

    context: Context
    length: int


class PrefixCache:
    """An LRU cache of the rows of finished requests. num_rows: its capacity; 0 = no prefix cache.
    needs_states: whether drafters need the target's hidden states, which undrafted rows lack.
    """

    def __init__(self, num_rows: int, needs_states: bool) -> None:
        self.num_rows, self._needs_states = num_rows, needs_states
        self._kept: dict[int, Context] = {}

    def keep(self, context: Context) -> list[int]:
        """Keep the row of a finished request; return the evicted rows, possibly the same one."""
        self._kept[context.row] = context
        return [self.drop() for _ in range(len(self._kept) - self.num_rows)]

    def drop(self) -> int:
        """Evict the least recently used row and return it; raises StopIteration if empty."""
        row = next(iter(self._kept))
        del self._kept[row]
        return row

    def take(self, row: int) -> bool:
        return self._kept.pop(row, None) is not None

    @property
    def lengths(self) -> list[int]:
        return [len(context.tokens) for context in self._kept.values()]

    def find(self, prompt: Context, running: Iterable[Context]) -> PrefixMatch | None:
        """The cached or running row with the longest prefix; None below MIN_PREFIX_TOKENS."""
        if self.num_rows == 0:
            return None
        wanted = np.asarray(prompt.tokens)
        # cached rows come first: unlike running rows, they are reused without a copy
        found = [
            PrefixMatch(context, common_prefix_length(wanted, context.tokens))
            for context in (*reversed(self._kept.values()), *running)
            if context.tenant == prompt.tenant  # timing would reveal other tenants' prompts
            and not context.is_private
            and (context.is_drafted or not (prompt.is_drafted and self._needs_states))
        ]
        best = max(found, key=lambda match: match.length, default=None)
        return best if best is not None and best.length >= MIN_PREFIX_TOKENS else None


def common_prefix_length(wanted: np.ndarray, text: Sequence[int]) -> int:
    """Length of the common prefix, in tokens.

    >>> common_prefix_length(np.array([1, 2, 3]), [1, 2, 4, 5])
    2
    """
    num = min(len(wanted), len(text))
    differs = np.flatnonzero(wanted[:num] != np.asarray(text[:num]))
    return int(differs[0]) if len(differs) else num


class PrefillScheduler:
    """Prefills prompts in turns, except their last token, and scores drafters on the last ones.

    State: whether the last chunk had no part of a prompt longer than a chunk.
    """

    def __init__(
        self, target: CausalModel, cache: RaggedCache, drafting: Drafting, loop: Loop
    ) -> None:
        self._target, self._cache, self._drafting, self._loop = target, cache, drafting, loop
        self._has_waited = False

    def prefill(self, requests: Sequence[Request], budget: int, is_idle: bool) -> int:
        """Prefill about ``budget`` tokens of these prompts; return the number of tokens.

        requests: by priority, then arrival. is_idle: no request is running.
        """
        nums = self._turns(requests, budget, is_idle)
        fed: list[tuple[Request, list[int]]] = []
        for request in (one for one in requests if one.id in nums):
            start = self._cache.lengths[request.context.row]
            fed.append((request, list(request.prompt[start : start + nums[request.id]])))
        if not fed:
            return 0
        keep = max(
            len(piece) if request.logprobs.wants_prompt else min(len(piece), PROMPT_SCORES)
            for request, piece in fed
        )
        rows = [request.context.row for request, _ in fed]
        starts = [self._cache.lengths[row] for row in rows]
        logits = self._target.extend(self._cache, rows, [piece for _, piece in fed], keep)
        self._cache.settle(rows, [self._cache.lengths[row] for row in rows])
        for index, (request, piece) in enumerate(fed):
            if (features := request.context.features) is not None:
                states = {tap: hidden[index] for tap, hidden in logits.hidden.items()}
                features.put(starts[index], states)
            self._remember(request, logits.last(index, min(keep, len(piece))))
        return sum(len(piece) for _, piece in fed)

    def _turns(self, requests: Sequence[Request], budget: int, is_idle: bool) -> dict[int, int]:
        """How many tokens each prompt of the highest priority gets: short ones first.

        Prompts that end within the budget start at once, together: while nothing runs, no part of a
        longer prompt delays them, in one chunk of two. Otherwise the oldest prompt gets at least
        half of the budget, so that short ones, however many follow each other, do not starve it.
        """
        left = {request.id: self._num_left(request) for request in requests}
        waiting = [request for request in requests if left[request.id]]
        waiting = [request for request in waiting if request.priority == waiting[0].priority]
        shortest = sorted(waiting, key=lambda request: left[request.id])
        nums: dict[int, int] = {}
        room = LARGEST_PIECE if is_idle else budget // 2
        for request in shortest:
            if (num := left[request.id]) <= min(room, budget):
                nums[request.id] = num
                room -= num
        if nums and is_idle and not self._has_waited:
            self._has_waited = True
            return nums
        self._has_waited = False
        budget -= sum(nums.values())
        longer = [request for request in shortest if request.id not in nums]
        for request in longer[:1]:
            oldest = next(one for one in waiting if one.id not in nums)
            if request is not oldest:
                nums[request.id] = min(left[request.id], budget // 2)
                budget -= nums[request.id]
            nums[oldest.id] = min(left[oldest.id], budget)
        return nums

    def _num_left(self, request: Request) -> int:
        """Tokens of a prompt that are not prefilled yet, except for its last."""
        return max(0, len(request.prompt) - 1 - self._cache.lengths[request.context.row])

    def is_done(self, request: Request) -> bool:
        """Whether only the prompt's last token remains, which the first round feeds."""
        return self._num_left(request) == 0

    def score_prompts(
        self, requests: Sequence[Request], num_waiting: int, may_pay: bool = True
    ) -> None:
        """Score drafters on prompts before the first round, without a draft.

        num_waiting: running requests that wait meanwhile; if any, a prompt gets at most one probe.
        """
        requests = [r for r in requests if r.decider.scores_prompt and len(r.prompt) > 1]
        names, score = self._drafting.names, self._drafting.score_prompts
        groups: dict[bool | None, list[Request]] = {True: [], False: [], None: []}
        for request in requests:
            # panoramic feedback scores whole prompts in any case
            free = False if request.decider.is_controlled else None
            groups[True if request.decider.reads_everything else free].append(request)
        for everything, group in groups.items():
            found = score({r.id: names for r in group}, group, everything)
            for request in group:
                self._learn(request, found[request.id])
        if not may_pay:
            return
        most = 1 if num_waiting else None
        num_rows = 1 + num_waiting // max(len(requests), 1)  # that each probe delays
        drafters_to_probe = {r.id: r.decider.drafters_to_probe(num_rows)[:most] for r in requests}
        probed = score(drafters_to_probe, requests)
        for request in requests:
            if scores := probed[request.id]:
                self._learn(request, scores)

    def _learn(self, request: Request, scores: Mapping[str, Scores]) -> None:
        """Train the policy on scores on the prompt, as on a round without a draft."""
        if request.context.is_drafted:
            request.decider.scored(
                scores, len(request.context.tokens), self._loop.costs([request]),
                self._drafting.matches(request.context), request.answer.num_left,
            )  # fmt: skip

    def _remember(self, request: Request, block: torch.Tensor) -> None:
        context, text = request.context, request.prompt
        end = self._cache.lengths[context.row]
        if request.logprobs.wants_prompt:
            tokens = torch.tensor(text[end - len(block) + 1 : end + 1], device=block.device)
            found = fetch(logprobs(block, tokens, request.logprobs.num_top or 0))
            request.logprobs.prompt += as_logprobs(*found)
        if request.decider.scores_prompt and end == len(text) - 1:
            num = min(PROMPT_SCORES, len(block))
            first = len(text) - num
            p = warped(block[-num:], [context.span(num, first)])
            is_greedy = context.sampling.temperature == 0
            points = fetch([p.tokens])[0].astype(int).tolist() if is_greedy else list(p.probs)
            context.remember(first, points)
