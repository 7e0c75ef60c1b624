"""A causal LM as drafter: its own ragged cache, catching up when it plays again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftwise.drafters.chain import Chain, Known, draw_chains
from draftwise.drafters.lm_tree import Growth
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, score_known
from draftwise.guides.fixed import Fixed
from draftwise.nn.model import CausalModel, Logits
from draftwise.nn.sampling import distributions
from draftwise.types import Draft, Scores

GLANCE = 32
"""Tokens at the end of a prompt from which a first impression is made."""


class LMDrafter:
    """Any causal LM that shares the target's tokenizer.

    Source: Leviathan et al. (2023); several of them are the pool of MetaSD and HedgeSpec. Index:
    none. Memory: one ragged KV cache a batch. Time: one forward a token, the first over whatever it
    missed. probs: q after temperature, top-k and top-p (None when greedy); trees are made of the
    likeliest tokens, which nobody draws (None). Both are lossless: ``docs/verification.md``.
    home: the folder it was loaded from, where a head for it may lie.
    """

    retrieves, can_mix = False, True

    def __init__(
        self, name: str, model: CausalModel, target: CausalModel, home: Path | None = None
    ) -> None:
        self.name, self.model, self.can_branch = name, model, model.serves_trees
        self.home, self.hidden_size = home, model.hidden_size
        self.relative_cost = model.num_parameters / max(1, target.num_parameters)

    def show_hidden(self) -> None:
        """Let guides see hidden states from now on; it costs a copy of them each step."""
        self.model.tap([-1])

    def start(self, num_rows: int, capacity: int) -> LMSession:
        """An empty cache and nothing scored."""
        return LMSession(self.name, self.model, num_rows, capacity)


class LMSession:
    """A batch's cache of one drafter, and the q's it computed along the text."""

    def __init__(self, name: str, model: CausalModel, num_rows: int, capacity: int) -> None:
        self._name, self._model = name, model
        self._cache = model.new_cache(num_rows, min(capacity, model.max_positions))
        self._known = [Known() for _ in range(num_rows)]

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        chains = [Chain(task) for task in tasks]
        for chain in chains:
            chain.copy()
        capacity = self._cache.capacity
        fitting = [c for c in chains if len(c.context.tokens) + c.num_slots <= capacity]
        fitting = [chain for chain in fitting if not chain.is_over]
        if fitting:
            self._feed(fitting)
        draw_chains([c for c in fitting if c.tree is None], self._known, self._feed)
        for chain in chains:
            known = self._known[chain.context.row]
            known.base, known.drafted = len(chain.context.tokens), chain.tokens
        trees = self._grow([chain for chain in fitting if chain.tree is not None])
        return [trees.get(c.context.row) or c.draft(self._name) for c in chains]

    def commit(self, contexts: Sequence[Context]) -> None:
        """Cut the cache and the known q's back to where draft and text agree."""
        for context in contexts:
            row, known = context.row, self._known[context.row]
            # the last token of the text was the target's: it is always fed again
            agreed = min(known.agree(context.tokens), len(context.tokens) - 1)
            self._cache.lengths[row] = min(self._cache.lengths[row], agreed)

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """Backlog and drafted positions; with ``everything``, feed what is missing first."""
        if everything:
            behind = [c for c in contexts if self._cache.lengths[c.row] < len(c.tokens) - 1]
            behind = [c for c in behind if len(c.tokens) <= self._cache.capacity]
            if behind:
                chains = [Chain(DraftTask(context, 0, Fixed())) for context in behind]
                self._feed(chains, [len(c.tokens) - 1 for c in behind])
        return [self._report(context) for context in contexts]

    def glance(self, contexts: Sequence[Context]) -> list[Scores | None]:
        """The end of each prompt read by itself; what was left out is read when it drafts."""
        most = min(GLANCE, self._cache.capacity)
        behind = [c for c in contexts if self._cache.lengths[c.row] < len(c.tokens) - 1]
        lengths = [self._cache.lengths[context.row] for context in behind]
        if behind:
            chains = [Chain(DraftTask(context, 0, Fixed())) for context in behind]
            self._feed(chains, [len(c.tokens) - 1 for c in behind], most)
        for context, length in zip(behind, lengths, strict=True):
            if length + most < len(context.tokens) - 1:
                self._cache.lengths[context.row] = length
        return [self._report(context) for context in contexts]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' cache and memory."""
        self._cache.keep_rows(rows)
        self._known = [self._known[row] for row in rows]

    def _grow(self, chains: Sequence[Chain]) -> dict[int, Draft]:
        """A tree for each row, by row; the cache is cut back to the text at once."""
        shapes = {c.context.row: Growth(c.tree, c.length) for c in chains if c.tree is not None}
        if not shapes:
            return {}
        bases = {row: self._cache.lengths[row] for row in shapes}
        for chain in chains:
            shapes[chain.context.row].see(chain.logits[None])
        while rows := [row for row, growth in shapes.items() if growth.goes_on]:
            feeds = [shapes[row].next_feed(bases[row]) for row in rows]
            widest = max(len(feed.tokens) for feed in feeds)
            logits = self._model.extend(
                self._cache, rows, [f.tokens for f in feeds], widest, [f.tree for f in feeds]
            )
            for index, row in enumerate(rows):
                shapes[row].see(logits.last(index, len(feeds[index].tokens)))
        for row, base in bases.items():
            self._cache.lengths[row] = base
        return {row: growth.draft(self._name) for row, growth in shapes.items()}

    def _report(self, context: Context) -> Scores | None:
        known = self._known[context.row]
        self._known[context.row] = Known(known.end)  # what was told is not told again
        return score_known(context, known.start, known.dists)

    def _feed(
        self, chains: Sequence[Chain], ends: Sequence[int] = (), most: int | None = None
    ) -> None:
        """Feed text and draft from the cache's end on: q along what is fed and after it.

        ends: where to stop in each text, if not at the end of the draft. most: feed no more than so
        many tokens of each, as if nothing lay between.
        """
        texts = [chain.text for chain in chains]
        ends = ends or [len(text) for text in texts]
        rows = [chain.context.row for chain in chains]
        starts = [self._cache.lengths[row] for row in rows]
        if most is not None:
            starts = [max(start, end - most) for start, end in zip(starts, ends, strict=True)]
        backlog = [text[start:end] for text, start, end in zip(texts, starts, ends, strict=True)]
        nums = [
            min(len(fed), MAX_TARGETS, end + 1 - self._first_wanted(chain.context, end))
            for chain, fed, end in zip(chains, backlog, ends, strict=True)
        ]
        logits = self._model.extend(self._cache, rows, backlog, keep=max(nums))
        for index, (chain, text, end, num) in enumerate(
            zip(chains, texts, ends, nums, strict=True)
        ):
            block, first = logits.last(index, num), end - num + 1
            dists = distributions(block, chain.context.sampling, text[:first], text[first:end])
            self._known[chain.context.row].add(first, dists[: len(text) - first])
            chain.see(dists[-1], block[-1], self._hidden(logits, index))

    def _first_wanted(self, context: Context, end: int) -> int:
        """The first position whose q can still be compared with a p, or ``end`` to draft there."""
        if not context.targets:
            return end
        return min(end, max(self._known[context.row].end, context.targets_start))

    def _hidden(self, logits: Logits, index: int) -> NDArray[np.float32] | None:
        """[D] at the token that was fed last, where some guide reads it."""
        states = logits.hidden.get(self._model.num_layers)
        return None if states is None else states[index][-1].float().cpu().numpy()
