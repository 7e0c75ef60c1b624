"""An EAGLE head as drafter: it reads the target's own hidden states, and drafts from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwise.drafters.chain import Chain, Known, draw_chains
from draftwise.drafters.lm_tree import Feed, Growth
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, score_known
from draftwise.nn.cache import RaggedCache
from draftwise.nn.eagle import EagleHead
from draftwise.nn.eagle_files import load_head
from draftwise.nn.eagle_read import read
from draftwise.nn.features import Features
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import distributions
from draftwise.types import Draft, Scores, TreeShape

CHUNK = 1024
"""Slots of a row that one forward of a head reads, at most: its mask grows with them."""
TOP_K, TOTAL_TOKENS = 10, 60
"""EAGLE-2's tree, for the half of a shape that a spec leaves out."""


def load_eagle(
    name: str,
    target: CausalModel,
    path: str,
    depth: int | None = None,
    top_k: int | None = None,
    total_tokens: int | None = None,
) -> EagleDrafter:
    """An EAGLE-1, EAGLE-2 or EAGLE-3 head from a folder or hub id, in either layout.

    depth: the longest draft. top_k, total_tokens: the shape of its trees; with either, its plans
    draft trees where nobody asks for another shape. Raises DraftwiseError for a head that cannot
    be read or was made for another target, ValueError for a limit below 1.
    """
    if depth is not None and depth < 1:
        raise ValueError(f"depth={depth}: it must be 1 or more")
    tree = None
    if top_k is not None or total_tokens is not None:
        tree = TreeShape(
            TOP_K if top_k is None else top_k,
            TOTAL_TOKENS if total_tokens is None else total_tokens,
        )
    return EagleDrafter(name, load_head(path, target), target, depth, tree)


class EagleDrafter:
    """An EAGLE head: one layer over the target's hidden states, which costs less than any model.

    Source: EAGLE (Li et al. 2024) for chains; EAGLE-2 (Li et al. 2024), section 4, for trees, by
    ``Growth``; EAGLE-3 (Li et al. 2025). Differs: chains are sampled, and q is what they were
    sampled from, after temperature, top-k and top-p, where the authors draft greedily. Index:
    none. Memory: the keys and values of one layer; of the target's hidden states, which all heads
    share, D floats a token and tapped layer. Time: one layer and one ``lm_head`` a token, the first
    over whatever it missed: positions are always read with the target's own hidden states, never
    again with those that a draft made up (``docs/kv_cache.md``). probs: as ``LMDrafter``.

    max_length, tree: limits and shape for its plans; None = the plan's own.
    """

    can_branch = True
    retrieves = can_mix = False

    def __init__(
        self,
        name: str,
        head: EagleHead,
        target: CausalModel,
        max_length: int | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        self.name, self.head, self.max_length, self.tree = name, head, max_length, tree
        self.relative_cost = head.num_parameters / max(1, target.num_parameters)
        target.tap(head.config.taps)

    def start(self, num_rows: int, capacity: int) -> EagleSession:
        """An empty cache and nothing scored."""
        return EagleSession(self.name, self.head, num_rows, capacity)


class EagleSession:
    """A batch's cache of one head, and the q's it computed along the text.

    A text of n tokens has n - 1 slots: slot s reads token s + 1 beside the target's states after
    token s, and gives q of position s + 2. The cache holds slots read with the target's states
    only; those of a draft are cut off when it is made.
    """

    def __init__(self, name: str, head: EagleHead, num_rows: int, capacity: int) -> None:
        self._name, self._head = name, head
        self._cache = RaggedCache(num_rows, capacity)
        self._known = [Known() for _ in range(num_rows)]

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        chains = [Chain(task) for task in tasks]
        # a text of one token has no hidden state yet: the target reads it in this very round
        fitting = [c for c in chains if len(c.context.tokens) > 1 and self._has_room(c)]
        states = self._follow(fitting)
        trees = self._grow([c for c in fitting if c.tree is not None], states)

        def step(active: Sequence[Chain]) -> None:
            rows = [chain.context.row for chain in active]
            tokens = [chain.tokens[-1:] for chain in active]
            found = read(self._head, self._cache, rows, tokens, [states[row] for row in rows])
            states.update(zip(rows, found, strict=True))
            self._show(active, found)

        draw_chains([c for c in fitting if c.tree is None], self._known, step)
        for chain in chains:
            row, length = chain.context.row, len(chain.context.tokens)
            self._known[row].base, self._known[row].drafted = length, chain.tokens
            self._cache.lengths[row] = min(self._cache.lengths[row], length - 1)
        return [trees.get(c.context.row) or c.draft(self._name) for c in chains]

    def commit(self, contexts: Sequence[Context]) -> None:
        """Forget the q's behind the first rejection; the cache holds no drafted slot anyway."""
        for context in contexts:
            self._known[context.row].agree(context.tokens)

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """Backlog and drafted positions; with ``everything``, read what is missing first."""
        if everything:
            behind = [c for c in contexts if self._cache.lengths[c.row] < len(c.tokens) - 2]
            behind = [c for c in behind if len(c.tokens) <= self._cache.capacity]
            if behind:
                self._catch_up(behind, [len(c.tokens) - 2 for c in behind])
        return [self._report(context) for context in contexts]

    def glance(self, contexts: Sequence[Context]) -> list[Scores | None]:
        """All of the prompt: its states are there, and one layer reads it."""
        return self.score(contexts, everything=True)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' cache and memory."""
        self._cache.keep_rows(rows)
        self._known = [self._known[row] for row in rows]

    def _has_room(self, chain: Chain) -> bool:
        return len(chain.context.tokens) - 1 + chain.num_slots <= self._cache.capacity

    def _follow(self, chains: Sequence[Chain]) -> dict[int, Tensor]:
        """Read each text to its end: by row the state [1, h] there; the chains see q after it."""
        if not chains:
            return {}
        contexts = [chain.context for chain in chains]
        for context in contexts:  # the last slot is read again where nothing came after it
            lengths = self._cache.lengths
            lengths[context.row] = min(lengths[context.row], len(context.tokens) - 2)
        found = self._catch_up(contexts, [len(c.tokens) - 1 for c in contexts], chains)
        return {context.row: state for context, state in zip(contexts, found, strict=True)}

    def _catch_up(
        self, contexts: Sequence[Context], ends: Sequence[int], chains: Sequence[Chain] = ()
    ) -> list[Tensor]:
        """Read slots up to ``ends`` with the target's states, and keep the q's not told yet.

        chains: [R], who sees the last of these q's. Returns the states [1, h] of the last slots.
        """
        while long := [
            (context, self._cache.lengths[context.row] + CHUNK)
            for context, end in zip(contexts, ends, strict=True)
            if end - self._cache.lengths[context.row] > CHUNK
        ]:
            self._read_text([context for context, _ in long], [end for _, end in long])
        states = self._read_text(contexts, ends)
        nums = [
            min(len(state), max(1, end + 2 - self._first_unknown(context)), MAX_TARGETS)
            for context, end, state in zip(contexts, ends, states, strict=True)
        ]
        logits = self._head.logits(
            torch.cat([state[-num:] for state, num in zip(states, nums, strict=True)])
        )
        for index, (context, end) in enumerate(zip(contexts, ends, strict=True)):
            block, text = logits[sum(nums[:index]) :][: nums[index]], context.tokens
            first = end + 2 - nums[index]
            dists = distributions(block, context.sampling, text[:first], text[first : end + 1])
            self._known[context.row].add(first, dists[: len(text) - first])
            if chains:
                chains[index].see(dists[-1], block[-1], None)
        return [state[-1:] for state in states]

    def _first_unknown(self, context: Context) -> int:
        """The first position whose q could still be compared with a p that is kept."""
        return max(self._known[context.row].end, context.targets_start)

    def _read_text(self, contexts: Sequence[Context], ends: Sequence[int]) -> list[Tensor]:
        """Read text from the cache's end up to slot ``end``, with the target's states beside it."""
        starts = [self._cache.lengths[context.row] for context in contexts]
        spans = list(zip(contexts, starts, ends, strict=True))
        seen = [
            _features(context).get(self._head.config.taps, start, end)
            for context, start, end in spans
        ]
        hidden = torch.split(self._head.fuse(torch.cat(seen)), [len(states) for states in seen])
        tokens = [context.tokens[start + 1 : end + 1] for context, start, end in spans]
        return read(self._head, self._cache, [c.row for c in contexts], tokens, hidden)

    def _show(self, chains: Sequence[Chain], states: Sequence[Tensor]) -> None:
        """q after the token that each chain drew last."""
        logits = self._head.logits(torch.cat(list(states)))
        for chain, row in zip(chains, logits, strict=True):
            text = [*chain.context.tokens, *chain.tokens] if chain.reads_text else []
            chain.see(distributions(row[None], chain.context.sampling, text, [])[0], row, None)

    def _grow(self, chains: Sequence[Chain], roots: dict[int, Tensor]) -> dict[int, Draft]:
        """A tree for each row, by row."""
        shapes = {c.context.row: Growth(c.tree, c.length) for c in chains if c.tree is not None}
        states = {row: roots[row] for row in shapes}  # of the text, then of all nodes read so far
        bases = {row: self._cache.lengths[row] for row in shapes}
        for chain in chains:
            shapes[chain.context.row].see(chain.logits[None])
        while rows := [row for row, growth in shapes.items() if growth.goes_on]:
            feeds = [shapes[row].next_feed(bases[row]) for row in rows]
            hidden = [_above(feed, states[row]) for row, feed in zip(rows, feeds, strict=True)]
            found = read(
                self._head,
                self._cache,
                rows,
                [feed.tokens for feed in feeds],
                hidden,
                [feed.tree for feed in feeds],
            )
            logits = torch.split(self._head.logits(torch.cat(found)), [len(s) for s in found])
            for row, state, block in zip(rows, found, logits, strict=True):
                states[row] = torch.cat((states[row], state))
                shapes[row].see(block)
        return {row: growth.draft(self._name) for row, growth in shapes.items()}

    def _report(self, context: Context) -> Scores | None:
        known = self._known[context.row]
        self._known[context.row] = Known(start=known.end)
        return score_known(context, known.start, known.dists)


def _features(context: Context) -> Features:
    if context.features is None:
        raise RuntimeError("the target's hidden states are not there: tap it before prefill")
    return context.features


def _above(feed: Feed, states: Tensor) -> Tensor:
    """[n, h] what each token of a feed continues: the text's state or that of a node."""
    places = torch.tensor(feed.parents, device=states.device) + 1
    found: Tensor = states[places]
    return found
