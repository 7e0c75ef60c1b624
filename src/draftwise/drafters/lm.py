"""A causal LM as drafter: its own ragged cache, catching up when it plays again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftwise.drafters.chain import Chain, Known, draw_chains
from draftwise.drafters.lm_tree import Growth
from draftwise.drafters.lm_window import Window
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, score_known
from draftwise.guides.fixed import Fixed
from draftwise.nn.model import CausalModel, Logits
from draftwise.nn.sampling import distributions
from draftwise.types import Draft, DraftwiseError, Scores

GLANCE = 32
"""Tokens at the end of a prompt from which a first impression is made."""

GLANCE_WEIGHT = 0.25
"""Of alphas from so short a text: a drafter may live by what lies farther back."""


class LMDrafter:
    """Any causal LM that shares the target's tokenizer.

    Source: Leviathan et al. (2023); several of them are the pool of MetaSD and HedgeSpec. Index:
    none. Memory: one ragged KV cache a batch. Time: one forward a token, the first over whatever it
    missed. probs: q after temperature, top-k and top-p (None when greedy); trees are made of the
    likeliest tokens, which nobody draws (None). Both are lossless: ``docs/verification.md``.
    home: the folder it was loaded from, where a head for it may lie. window: what it reads of a
    long text; None = everything. Raises DraftwiseError for a window that its positions cannot hold.
    """

    retrieves, can_mix = False, True

    def __init__(
        self,
        name: str,
        model: CausalModel,
        target: CausalModel,
        home: Path | None = None,
        window: Window | None = None,
    ) -> None:
        self.name, self.model, self.can_branch = name, model, model.serves_trees
        self.home, self.hidden_size, self.window = home, model.hidden_size, window
        if window is not None and window.sink + window.window >= model.max_positions:
            raise DraftwiseError(
                f"drafter {name}: a sink of {window.sink} and a window of {window.window} tokens, "
                f"and a draft, do not fit into its {model.max_positions} positions"
            )
        self.relative_cost = model.num_parameters / max(1, target.num_parameters)

    def show_hidden(self) -> None:
        """Let guides see hidden states from now on; it costs a copy of them each step."""
        self.model.tap([-1])

    def start(self, num_rows: int, capacity: int) -> LMSession:
        """An empty cache and nothing scored."""
        return LMSession(self.name, self.model, num_rows, capacity, self.window)


class LMSession:
    """A batch's cache of one drafter, and the q's it computed along the text.

    With a window, the cache holds what is read of the text: behind the sink, the slot of a token is
    its position less those skipped. q's are noted by their positions in the text.
    """

    def __init__(
        self,
        name: str,
        model: CausalModel,
        num_rows: int,
        capacity: int,
        window: Window | None = None,
    ) -> None:
        self._name, self._model, self._window = name, model, window
        wanted = capacity if window is None else min(capacity, window.num_slots)
        self._cache = model.new_cache(num_rows, min(wanted, model.max_positions))
        self._known = [Known() for _ in range(num_rows)]
        self._skipped = [0] * num_rows

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        chains = [Chain(task) for task in tasks]
        self._slide([chain.context for chain in chains])
        for chain in chains:
            if self._window is not None:
                chain.shorten(self._cache.capacity - self._num_read(chain.context))
            chain.copy()
        capacity = self._cache.capacity
        fitting = [c for c in chains if self._num_read(c.context) + c.num_slots <= capacity]
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
            agreed -= self._skipped[row]
            self._cache.lengths[row] = min(self._cache.lengths[row], agreed)

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """Backlog and drafted positions; with ``everything``, feed what is missing first."""
        if everything:
            self._slide(contexts)
            behind = [c for c in contexts if self._cache.lengths[c.row] < self._num_read(c) - 1]
            behind = [c for c in behind if self._num_read(c) <= self._cache.capacity]
            if behind:
                chains = [Chain(DraftTask(context, 0, Fixed())) for context in behind]
                self._feed(chains, [len(c.tokens) - 1 for c in behind])
        return [self._report(context) for context in contexts]

    def glance(self, contexts: Sequence[Context]) -> list[Scores | None]:
        """The end of each prompt read by itself; what was left out is read when it drafts."""
        self._slide(contexts)
        capacity, lengths = self._cache.capacity, list(self._cache.lengths)
        most = min(GLANCE, capacity)
        missed = {c.row: self._num_read(c) - 1 - lengths[c.row] for c in contexts}
        behind = [
            c
            for c in contexts
            if missed[c.row] > 0 and lengths[c.row] + min(most, missed[c.row]) <= capacity
        ]
        if behind:
            chains = [Chain(DraftTask(context, 0, Fixed())) for context in behind]
            self._feed(chains, [len(c.tokens) - 1 for c in behind], most)
        found = []
        for context in contexts:
            scores = self._report(context)
            if missed[context.row] > most:
                self._cache.lengths[context.row] = lengths[context.row]
                scores = scores and replace(scores, weight=GLANCE_WEIGHT)
            found.append(scores)
        return found

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' cache and memory."""
        self._cache.keep_rows(rows)
        self._known = [self._known[row] for row in rows]
        self._skipped = [self._skipped[row] for row in rows]

    def _slide(self, contexts: Sequence[Context]) -> None:
        """Where a window moved on, forget it, and keep the sink."""
        if self._window is None:
            return
        for context in contexts:
            row, skipped = context.row, self._window.skipped(len(context.tokens))
            if skipped != self._skipped[row]:
                self._skipped[row] = skipped
                self._cache.lengths[row] = min(self._cache.lengths[row], self._window.sink)

    def _num_read(self, context: Context) -> int:
        """Tokens of the text that the drafter reads, and slots that they need."""
        return len(context.tokens) - self._skipped[context.row]

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
        backlog, nums = [], []
        for chain, text, end in zip(chains, texts, ends, strict=True):
            backlog.append(self._unread(chain.context.row, text, end, most))
            first = self._first_wanted(chain.context, end)
            nums.append(min(len(backlog[-1]), MAX_TARGETS, end + 1 - first))
        logits = self._model.extend(self._cache, rows, backlog, keep=max(nums))
        for index, (chain, text, end, num) in enumerate(
            zip(chains, texts, ends, nums, strict=True)
        ):
            block, first = logits.last(index, num), end - num + 1
            dists = distributions(block, chain.context.sampling, text[:first], text[first:end])
            self._known[chain.context.row].add(first, dists[: len(text) - first])
            chain.see(dists[-1], block[-1], self._hidden(logits, index))

    def _unread(self, row: int, text: Sequence[int], end: int, most: int | None) -> Sequence[int]:
        """What is read up to ``end`` and is not in the cache; of that the last ``most``."""
        start, skipped = self._cache.lengths[row], self._skipped[row]
        if most is not None:
            start = max(start, end - skipped - most)
        read = text if self._window is None else self._window.read(text, skipped)
        return read[start : end - skipped]

    def _first_wanted(self, context: Context, end: int) -> int:
        """The first position whose q can still be compared with a p, or ``end`` to draft there."""
        if not context.targets:
            return end
        first, skipped = max(self._known[context.row].end, context.targets_start), 0
        if self._window is not None and (skipped := self._skipped[context.row]):
            first = max(first, self._window.sink + skipped + 1)  # q's from behind the gap on
        return min(end, first)

    def _hidden(self, logits: Logits, index: int) -> NDArray[np.float32] | None:
        """[D] at the token that was fed last, where some guide reads it."""
        states = logits.hidden.get(self._model.num_layers)
        return None if states is None else states[index][-1].float().cpu().numpy()
