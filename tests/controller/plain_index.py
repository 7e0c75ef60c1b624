"""The reference implementation of the retrieval index, with lists and dicts for flat arrays."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from draftwise.controller import (
    CATCH_UP,
    LONGEST_CONTEXT,
    LONGEST_MATCH,
    MAX_HITS,
    NUM_ORDERS,
    PATIENCE,
    PROMPT_TAIL,
    SLICE,
    Proposals,
    capacity_for,
)

FACTOR, SPREAD = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


@dataclass
class Chains:
    """The newest places after each context, oldest first, by bucket of the context's hash."""

    num_buckets: int
    buckets: list[dict[int, list[int]]] = field(
        default_factory=lambda: [{} for _ in range(NUM_ORDERS)]
    )

    def insert(self, place: int, ending: Sequence[int], seed: int) -> None:
        """Index a place by the contexts that end just before it."""
        for buckets, bucket in zip(self.buckets, self._hashes(ending, seed), strict=False):
            places = buckets.setdefault(bucket, [])
            places.append(place)
            if len(places) > PATIENCE:
                del places[0]

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


@dataclass
class Text:
    """The text of a running request; indexed: the first place that is not in the chains yet."""

    tokens: list[int]
    tenant: int
    chains: Chains
    indexed: int = 0

    def index(self, until: int) -> None:
        for place in range(self.indexed, until):
            self.chains.insert(place, self.tokens[max(0, place - LONGEST_CONTEXT) : place][::-1], 0)
        self.indexed = until


class PlainIndex:
    """The behaviour of ``RetrievalIndex``, without its checks of arguments."""

    def __init__(self, max_draft: int, history_tokens: int) -> None:
        self.max_draft = max_draft
        self._ring_size = 1 << (max(2, history_tokens) - 1).bit_length() if history_tokens else 0
        self._texts: dict[int, Text] = {}
        self._shares: dict[int, int] = {}  # by slot: length of prompt
        self._history: list[int] = []  # at least the latest tokens; -1 before each text
        self._owners: list[int] = []
        self._num_dropped = 0  # tokens dropped from the front of the list
        self._chains = Chains(max(2, self._ring_size))
        self._waiting: deque[tuple[int, list[int]]] = deque()
        self._num_remembered = 0

    def open(
        self, slot: int, tokens: Sequence[int], *, tenant: int = 0, shares: bool = True
    ) -> None:
        text = Text(list(tokens), tenant, Chains(capacity_for(len(tokens)) // 2))
        self._texts[slot] = text
        if shares and self._ring_size:
            self._shares[slot] = len(tokens)
        text.index(min(SLICE, len(tokens)))

    def close(self, slot: int) -> None:
        text = self._texts.pop(slot)
        num_prompt = self._shares.pop(slot, len(text.tokens))
        if len(text.tokens) > num_prompt:
            answer = text.tokens[max(0, num_prompt - PROMPT_TAIL) :]
            self._waiting.append((text.tenant, answer[-(self._ring_size // 2) :]))
            while sum(len(tokens) for _, tokens in list(self._waiting)[1:]) >= self._ring_size:
                self._waiting.popleft()
                self._num_remembered = 0

    def work(self, max_tokens: int) -> bool:
        left = max_tokens
        for _, text in sorted(self._texts.items()):
            before = text.indexed
            text.index(min(len(text.tokens), before + left))
            left -= text.indexed - before
            if text.indexed < len(text.tokens):
                return True
        while left > 0 and self._waiting:
            tenant, tokens = self._waiting[0]
            end = min(len(tokens), self._num_remembered + left)
            self._remember(tenant, tokens, self._num_remembered, end)
            left -= end - self._num_remembered
            self._num_remembered = end
            if end == len(tokens):
                self._waiting.popleft()
                self._num_remembered = 0
        return bool(self._waiting)

    def _remember(self, tenant: int, tokens: list[int], start: int, end: int) -> None:
        for at in range(start, end):
            if at == 0:
                self._history.append(-1)
                self._owners.append(tenant)
            self._history.append(tokens[at])
            self._owners.append(tenant)
            place = self._num_dropped + len(self._history) - 1
            self._chains.insert(place, tokens[max(0, at - LONGEST_CONTEXT) : at][::-1], tenant + 1)
        if len(self._history) > 2 * self._ring_size:
            self._num_dropped += len(self._history) - self._ring_size
            del self._history[: -self._ring_size], self._owners[: -self._ring_size]

    def text(self, slot: int) -> Any:
        return np.array(self._texts[slot].tokens, np.int32)

    def extend(self, slots: Sequence[int], tokens: Sequence[int], counts: Sequence[int]) -> None:
        at = 0
        for slot, num in zip(slots, counts, strict=True):
            text = self._texts[slot]
            text.tokens += tokens[at : at + num]
            at += num
            while len(text.tokens) > 2 * text.chains.num_buckets:
                text.chains.double()
            if len(text.tokens) - text.indexed <= CATCH_UP:
                text.index(len(text.tokens))

    def propose(self, slots: Sequence[int], limits: Sequence[int]) -> Proposals:
        return self._propose(slots, [[]] * len(slots), limits)

    def propose_after(
        self, slots: Sequence[int], drafts: Any, num_drafted: Sequence[int], limits: Sequence[int]
    ) -> Proposals:
        kept = [row[:num].tolist() or None for row, num in zip(drafts, num_drafted, strict=True)]
        return self._propose(slots, kept, limits)

    def _propose(
        self,
        slots: Sequence[int],
        drafts: Sequence[list[int] | None],
        limits: Sequence[int],
    ) -> Proposals:
        texts = [self._texts[slot] for slot in slots]
        num = len(texts)
        num_tokens, match, hits, agree = np.zeros((4, num), np.int32)
        tokens, shared = np.zeros((num, self.max_draft), np.int32), np.zeros(num, np.bool_)
        for row, (text, draft, limit) in enumerate(zip(texts, drafts, limits, strict=True)):
            if draft is None:
                continue
            match[row], places, shared[row] = self._match(text, draft)
            read = self._read_shared if shared[row] else partial(read_own, text.tokens + draft)
            proposal, agree[row] = vote(places, read, self.max_draft)
            hits[row], num_tokens[row] = len(places), min(len(proposal), max(0, limit))
            tokens[row, : len(proposal)] = proposal
        return Proposals(tokens, num_tokens, match, hits, agree, shared)

    def _match(self, text: Text, draft: list[int]) -> tuple[int, list[int], bool]:
        """The longest match, its places (newest first), and whether they are in the history."""
        ending = (text.tokens[-LONGEST_MATCH:] + draft)[: -LONGEST_MATCH - 1 : -1]

        def own(place: int) -> list[int]:
            return text.tokens[max(0, place - LONGEST_MATCH) : place]

        def shared(place: int) -> list[int]:
            at = place - self._num_dropped
            oldest = max(0, len(self._history) - self._ring_size)  # the oldest place that is kept
            if at <= oldest or self._owners[at] != text.tenant:
                return []
            return self._history[max(oldest, at - LONGEST_MATCH) : at]

        match, places = longest(ending, text.chains.walk(ending, 0), own, above=0)
        walk = self._chains.walk(ending, text.tenant + 1)
        longer, elsewhere = longest(ending, walk, shared, above=match)
        return (longer, elsewhere, True) if elsewhere else (match, places, False)

    def _read_shared(self, place: int, _: list[int]) -> int:
        """The token at a place of the history; -1 where its text ends."""
        at = place - self._num_dropped
        return self._history[at] if at < len(self._history) else -1


def read_own(text: list[int], place: int, proposal: list[int]) -> int:
    """The token at a place of a text that continues with its proposal."""
    return text[place] if place < len(text) else proposal[place - len(text)]


def longest(
    ending: Sequence[int],
    chains: Iterable[tuple[int, list[int]]],
    before: Callable[[int], list[int]],
    above: int,
) -> tuple[int, list[int]]:
    """The longest match of more than ``above`` tokens, and its places, newest first.

    ending: latest token first. chains: candidates by order. before: the tokens before a place.
    """
    for order, places in chains:
        if above >= (LONGEST_MATCH if order == LONGEST_CONTEXT else 2 * order - 1):
            break  # the previous order would have found a longer match
        lengths = ((in_common(before(place), ending), place) for place in places)
        hits = list(islice(((n, place) for n, place in lengths if n >= order), MAX_HITS))
        match = max((n for n, _ in hits), default=0)
        if match > above:
            return match, [place for n, place in hits if n == match]
    return 0, []


def in_common(before: list[int], ending: Sequence[int]) -> int:
    """The number of last tokens of ``before`` that agree with an ending (latest token first)."""
    num = 0
    for token, other in zip(reversed(before), ending, strict=False):
        if token != other:
            break
        num += 1
    return num


def vote(
    places: list[int], read: Callable[[int, list[int]], int], limit: int
) -> tuple[list[int], int]:
    """The continuation with most votes (ties: newest place), and the votes for its first token."""
    proposal: list[int] = []
    agree = 0
    while len(proposal) < limit:
        nexts = [(place, read(place + len(proposal), proposal)) for place in places]
        counts = Counter(token for _, token in nexts if token >= 0)
        if not counts:
            break
        chosen, votes = counts.most_common(1)[0]
        agree = agree or votes
        proposal.append(chosen)
        places = [place for place, token in nexts if token == chosen]
    return proposal, agree
