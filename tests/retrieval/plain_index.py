"""The reference implementation of the retrieval index, with lists and dicts for flat arrays."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from draftwise.retrieval.index import PROMPT_TAIL, SLICE, capacity_for
from draftwise.retrieval.kernels import (
    CATCH_UP,
    LONGEST_CONTEXT,
    LONGEST_MATCH,
    NUM_ORDERS,
    PATIENCE,
    MatchRule,
    Proposals,
)

FACTOR, SPREAD = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


@dataclass
class Chains:
    """The places after each context, oldest first, by bucket of the context's hash."""

    num_buckets: int
    buckets: list[dict[int, list[int]]] = field(
        default_factory=lambda: [{} for _ in range(NUM_ORDERS)]
    )

    def insert(self, place: int, ending: Sequence[int], seed: int) -> None:
        """Index a place by the contexts that end just before it."""
        for buckets, bucket in zip(self.buckets, self._hashes(ending, seed), strict=False):
            buckets.setdefault(bucket, []).append(place)

    def walk(self, ending: Sequence[int], seed: int) -> Iterator[tuple[int, list[int]]]:
        """Orders, longest first, each with the places in its context's bucket, newest first."""
        hashes = list(self._hashes(ending, seed))
        for level in reversed(range(len(hashes))):
            yield 1 << level, self.buckets[level].get(hashes[level], [])[::-1]

    def double(self) -> None:
        """Double the buckets; both halves of a bucket keep all its places."""
        self.num_buckets *= 2
        self.buckets = [
            {2 * b + half: list(old[b]) for b in old for half in (0, 1)} for old in self.buckets
        ]

    def _hashes(self, ending: Sequence[int], seed: int) -> Iterator[int]:
        """Buckets of the contexts of 1, 2, 4, 8 tokens; ending: latest token first."""
        key, order = seed, 1
        for num, token in enumerate(ending[:LONGEST_CONTEXT], start=1):
            key = (key * FACTOR + token) % 2**64
            if num == order:
                yield (key * SPREAD) % 2**64 * self.num_buckets >> 64
                order *= 2


@dataclass(eq=False)
class Text:
    """The text of a running request; indexed: the first place that is not in the chains yet."""

    tokens: list[int]
    tenant: int
    chains: Chains
    num_shared: int | None  # tokens that no part of the history has to bring; None: all
    num_prompt: int
    indexed: int = 0
    region: range = range(0)  # the latest one of its answer in the history
    place: int = 0  # the next one there

    def index(self, until: int) -> None:
        for place in range(self.indexed, until):
            self.chains.insert(place, self.tokens[max(0, place - LONGEST_CONTEXT) : place][::-1], 0)
        self.indexed = until

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        while len(self.tokens) > 2 * self.chains.num_buckets:
            self.chains.double()


class PlainHistory:
    """The behaviour of ``History``."""

    def __init__(self, max_tokens: int) -> None:
        self.size = 1 << (max(2, max_tokens) - 1).bit_length() if max_tokens else 0
        self.tokens: list[int] = []  # -1 before each region, and where it is not yet written
        self.owners: list[int] = []
        self.chains = Chains(max(2, self.size))
        self.waiting: deque[tuple[Text, list[int], int, int]] = deque()
        self.num_added = 0

    def add(self, text: Text, tokens: list[int], num_context: int, room: int) -> None:
        if len(tokens) > self.size // 2:
            cut = len(tokens) - self.size // 2
            tokens, num_context, text.region = tokens[cut:], max(0, num_context - cut), range(0)
        self.waiting.append((text, tokens, num_context, room))
        while sum(len(tokens) for _, tokens, *_ in list(self.waiting)[1:]) >= self.size:
            self.waiting.popleft()[0].region = range(0)
            self.num_added = 0

    def work(self, left: int) -> bool:
        while left > 0 and self.waiting:
            text, tokens, num_context, room = self.waiting[0]
            if self.num_added == 0:
                self.num_added = self._begin(text, len(tokens), num_context, room)
            end = min(len(tokens), self.num_added + left)
            for at in range(self.num_added, end):
                self.tokens[text.place] = tokens[at]
                if at >= num_context:
                    ending = self.tokens[text.region.start : text.place][::-1]
                    self.chains.insert(text.place, ending, text.tenant + 1)
                text.place += 1
            left -= end - self.num_added
            self.num_added = end
            if end == len(tokens):
                self.waiting.popleft()
                self.num_added = 0
        return bool(self.waiting)

    def _begin(self, text: Text, num: int, num_context: int, room: int) -> int:
        """Find a region for tokens; return how many of them it has."""
        start, end, newest = text.region.start, text.region.stop, len(self.tokens) - 1
        is_kept = end > 0 and newest - start < self.size // 2
        if is_kept and end == len(self.tokens):
            self._reserve(text, start, max(0, text.place + num - num_context - end))
        elif not is_kept or text.place + num - num_context > end:
            num_context, text.place = 0, len(self.tokens) + 1
            self._reserve(text, text.place, 1 + max(num, min(room, self.size // 2)))
        return num_context

    def _reserve(self, text: Text, start: int, num: int) -> None:
        self.tokens += [-1] * num
        self.owners += [text.tenant] * num
        text.region = range(start, len(self.tokens))

    def before(self, place: int, tenant: int) -> list[int]:
        """The tokens before a place of a tenant that is still kept."""
        oldest = max(0, len(self.tokens) - self.size)
        if place <= oldest or self.owners[place] != tenant:
            return []
        return self.tokens[max(oldest, place - LONGEST_MATCH) : place]

    def row(self, place: int, depth: int) -> list[int]:
        row = self.tokens[place : place + depth]
        return row[: row.index(-1)] if -1 in row else row


class PlainIndex:
    """The behaviour of ``RetrievalIndex``, without its checks of arguments."""

    def __init__(self, max_draft: int, history_tokens: int, rule: MatchRule) -> None:
        self.max_draft, self.history, self._rule = max_draft, PlainHistory(history_tokens), rule
        self._texts: dict[int, Text] = {}

    def open(
        self, slot: int, tokens: Sequence[int], *, tenant: int = 0, shares: bool = True,
        num_prompt: int | None = None,
    ) -> None:  # fmt: skip
        num = len(tokens) if num_prompt is None else num_prompt
        shared = num if shares and self.history.size else None
        text = Text(list(tokens), tenant, Chains(capacity_for(len(tokens)) // 2), shared, num)
        self._texts[slot] = text
        text.index(min(SLICE, len(tokens)))

    def share(self, slot: int, room: int = 0) -> None:
        text = self._texts[slot]
        first = text.num_shared
        if first is not None and len(text.tokens) > first:
            num_context = min(first, PROMPT_TAIL)
            self.history.add(text, text.tokens[first - num_context :], num_context, room)
            text.num_shared = len(text.tokens)

    def close(self, slot: int) -> None:
        self.share(slot)
        del self._texts[slot]

    def work(self, max_tokens: int) -> bool:
        left = max_tokens
        for _, text in sorted(self._texts.items()):
            before = text.indexed
            text.index(min(len(text.tokens), before + left))
            left -= text.indexed - before
            if text.indexed < len(text.tokens):
                return True
        return self.history.work(left)

    def text(self, slot: int) -> Any:
        return np.array(self._texts[slot].tokens, np.int32)

    def extend(self, slots: Sequence[int], tokens: Sequence[int], counts: Sequence[int]) -> None:
        at = 0
        for slot, num in zip(slots, counts, strict=True):
            text = self._texts[slot]
            text.append(tokens[at : at + num])
            at += num
            if len(text.tokens) - text.indexed <= CATCH_UP:
                text.index(len(text.tokens))

    def read(self, slot: int, tokens: Sequence[int], num_scored: int) -> list[tuple[int, int]]:
        text, facts = self._texts[slot], []
        for i, token in enumerate(tokens):
            match, rows = self._rows(text, [], 1)[:2]
            facts.append((vote(rows, 1)[0][0] if rows else -1, match))
            text.append([token])
            text.index(len(text.tokens))
            assert i < len(tokens)
        return facts[len(tokens) - num_scored :]

    def find(self, slot: int, draft: Sequence[int], depth: int) -> tuple[int, list[list[int]]]:
        return self._rows(self._texts[slot], list(draft), depth)[:2]

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> Proposals:
        return self._propose(slots, [[]] * len(slots), limits)

    def propose_after(
        self, slots: Sequence[int], drafts: Any, num_drafted: Sequence[int], limits: Sequence[int]
    ) -> Proposals:
        kept = [row[:num].tolist() or None for row, num in zip(drafts, num_drafted, strict=True)]
        return self._propose(slots, kept, limits)

    def _propose(
        self, slots: Sequence[int], drafts: Sequence[list[int] | None], limits: Sequence[int]
    ) -> Proposals:
        num = len(slots)
        num_tokens, match, hits, agree = np.zeros((4, num), np.int32)
        tokens, shared = np.zeros((num, self.max_draft), np.int32), np.zeros(num, np.bool_)
        for row, (slot, draft, limit) in enumerate(zip(slots, drafts, limits, strict=True)):
            if draft is not None:
                found = self._rows(self._texts[slot], draft, self.max_draft)
                match[row], rows, shared[row] = found
                proposal, agree[row] = vote(rows, self.max_draft)
                hits[row], num_tokens[row] = len(rows), min(len(proposal), max(0, limit))
                tokens[row, : len(proposal)] = proposal
        return Proposals(tokens, num_tokens, match, hits, agree, shared)

    def _rows(self, text: Text, draft: list[int], depth: int) -> tuple[int, list[list[int]], bool]:
        """The longest match, its continuations (the newest first), whether they are shared."""
        ending = (text.tokens[-LONGEST_MATCH:] + draft)[: -LONGEST_MATCH - 1 : -1]

        def own(place: int) -> list[int]:
            return text.tokens[max(0, place - LONGEST_MATCH) : place]

        def shared(place: int) -> list[int]:
            return self.history.before(place, text.tenant)

        match, places = longest(ending, text.chains.walk(ending, 0), own, 0, self._rule)
        walk = self.history.chains.walk(ending, text.tenant + 1)
        longer, elsewhere = longest(ending, walk, shared, match, self._rule)
        whole = text.tokens + draft
        if longer < len(ending):  # an end of the prompt that another prompt had, too
            longer = min(longer, 1 + max(0, len(whole) - text.num_prompt))
        if longer > match:
            return longer, [self.history.row(place, depth) for place in elsewhere], True
        return match, [run_on(whole, place, depth) for place in places], False


def run_on(text: list[int], place: int, depth: int) -> list[int]:
    """The continuation in a text, which repeats at its end."""
    row = text[place : place + depth]
    return (row * depth)[:depth]


def longest(
    ending: Sequence[int],
    chains: Iterable[tuple[int, list[int]]],
    before: Callable[[int], list[int]],
    above: int,
    rule: MatchRule,
) -> tuple[int, list[int]]:
    """The longest match of more than ``above`` tokens, and its places, newest first.

    ending: latest token first. chains: candidates by order. before: the tokens before a place.
    """
    top = 1 << (min(rule.decisive, LONGEST_CONTEXT).bit_length() - 1)
    for order, bucket in chains:
        if order > top:
            continue
        if above >= (LONGEST_MATCH if order == top else 2 * order - 1):
            break  # the previous order would have found a longer match
        places = bucket[: max(PATIENCE, 4 * rule.num_places)]
        lengths = ((in_common(before(place), ending), place) for place in places)
        hits = list(islice(((n, p) for n, p in lengths if n >= order), rule.num_places))
        best = max((min(n, rule.decisive) for n, _ in hits), default=0)
        voting = [(n, p) for n, p in hits if min(n, rule.decisive) == best][: rule.num_votes]
        if voting and (match := voting[0][0]) > above and match >= rule.least:
            return match, [place for _, place in voting]
    return 0, []


def in_common(before: list[int], ending: Sequence[int]) -> int:
    """The number of last tokens of ``before`` that agree with an ending (latest token first)."""
    num = 0
    for token, other in zip(reversed(before), ending, strict=False):
        if token != other:
            break
        num += 1
    return num


def vote(rows: list[list[int]], limit: int) -> tuple[list[int], int]:
    """The path with most votes (ties: newest place), and the votes for its first token."""
    path: list[int] = []
    agree = 0
    while len(path) < limit:
        counts = Counter(row[len(path)] for row in rows if len(row) > len(path))
        if not counts:
            break
        chosen, votes = counts.most_common(1)[0]
        agree = agree or votes
        rows = [row for row in rows if len(row) > len(path) and row[len(path)] == chosen]
        path.append(chosen)
    return path, agree
