"""A causal LM as drafter: its own ragged cache, catching up when it plays again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.dist import draw, is_broken
from draftwise.drafters.lm_tree import Growth
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, score_known
from draftwise.guides.fixed import Fixed
from draftwise.nn.model import CausalModel, Logits
from draftwise.nn.sampling import distributions
from draftwise.types import Dist, Draft, DraftStep, Scores


class LMDrafter:
    """Any causal LM that shares the target's tokenizer.

    Source: Leviathan et al. (2023); several of them are the pool of MetaSD and HedgeSpec. Index:
    none. Memory: one ragged KV cache a batch. Time: one forward a token, the first over whatever it
    missed. probs: q after temperature, top-k and top-p (None when greedy); trees are made of the
    likeliest tokens, which nobody draws (None). Both are lossless: ``docs/verification.md``.
    home: the folder it was loaded from, where a head for it may lie.
    """

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


@dataclass(slots=True)
class _Known:
    """q at text positions ``start``, ``start + 1``, ... that were not yet reported.

    drafted: the chain drafted last, behind ``base`` tokens of text, whose keys are in the cache.
    """

    start: int = 0
    dists: list[Dist] = field(default_factory=list)
    base: int = 0
    drafted: list[int] = field(default_factory=list)

    def agree(self, text: Sequence[int]) -> int:
        """Tokens of the text up to where the last draft left it; q's beyond are forgotten."""
        if not self.drafted:
            return len(text)
        end = self.base
        for ours, theirs in zip(self.drafted, text[self.base :], strict=False):
            if ours != theirs:
                break
            end += 1
        self.drafted = []
        del self.dists[max(0, end + 1 - self.start) :]
        return end


class LMSession:
    """A batch's cache of one drafter, and the q's it computed along the text."""

    def __init__(self, name: str, model: CausalModel, num_rows: int, capacity: int) -> None:
        self._name, self._model = name, model
        self._cache = model.new_cache(num_rows, min(capacity, model.max_positions))
        self._known = [_Known() for _ in range(num_rows)]

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        chains = [_Chain(task) for task in tasks]
        fitting = [c for c in chains if len(c.context.tokens) + c.num_slots <= self._cache.capacity]
        if fitting:
            self._feed(fitting, [len(chain.context.tokens) for chain in fitting])
        active = [chain for chain in fitting if chain.tree is None and chain.begins()]
        while active:
            for chain in active:
                chain.draw()
                self._known[chain.context.row].dists.append(chain.dists[-1])
            active = [chain for chain in active if chain.wants_to_read()]
            if active:
                self._step(active)
            active = [chain for chain in active if self._draws_on(chain)]
        for chain in chains:
            known = self._known[chain.context.row]
            known.base, known.drafted = len(chain.context.tokens), chain.tokens
        trees = self._grow([chain for chain in fitting if chain.tree is not None])
        return [trees.get(c.context.row) or c.draft(self._name) for c in chains]

    def _draws_on(self, chain: _Chain) -> bool:
        """Whether the chain draws again; if not, the q that it did not use is kept for scoring."""
        draws = chain.wants_to_draw()
        if not draws and not is_broken(chain.next):
            self._known[chain.context.row].dists.append(chain.next)
        return draws

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
                chains = [_Chain(DraftTask(context, 0, Fixed())) for context in behind]
                self._feed(chains, [len(c.tokens) - 1 for c in behind])
        return [self._report(context) for context in contexts]

    def match_length(self, context: Context) -> int | None:
        """None: not a retrieval drafter."""
        return None

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' cache and memory."""
        self._cache.keep_rows(rows)
        self._known = [self._known[row] for row in rows]

    def _grow(self, chains: Sequence[_Chain]) -> dict[int, Draft]:
        """A tree for each row, by row; the cache is cut back to the text at once."""
        shapes = {c.context.row: Growth(c.tree, c.length) for c in chains if c.tree is not None}
        if not shapes:
            return {}
        bases = {row: self._cache.lengths[row] for row in shapes}
        for chain in chains:
            shapes[chain.context.row].see(chain.logits[None])
        while rows := [row for row, growth in shapes.items() if growth.goes_on]:
            feeds = [shapes[row].next_feed(bases[row]) for row in rows]
            logits = self._model.extend(
                self._cache, rows, [f.tokens for f in feeds], MAX_TARGETS, [f.tree for f in feeds]
            )
            for index, row in enumerate(rows):
                shapes[row].see(logits.last(index, len(feeds[index].tokens)))
        for row, base in bases.items():
            self._cache.lengths[row] = base
        return {row: growth.draft(self._name) for row, growth in shapes.items()}

    def _report(self, context: Context) -> Scores | None:
        known, self._known[context.row] = self._known[context.row], _Known()
        return score_known(context, known.start, known.dists)

    def _feed(self, chains: Sequence[_Chain], ends: Sequence[int]) -> None:
        """Feed each text from the cache's end up to ``end``: q along the backlog and after it."""
        rows = [chain.context.row for chain in chains]
        starts = [self._cache.lengths[row] for row in rows]
        backlog = [
            chain.context.tokens[start:end]
            for chain, start, end in zip(chains, starts, ends, strict=True)
        ]
        logits = self._model.extend(self._cache, rows, backlog, keep=MAX_TARGETS)
        for index, (chain, start, end) in enumerate(zip(chains, starts, ends, strict=True)):
            num = min(end - start, MAX_TARGETS, logits.counts[index])
            block, text = logits.last(index, num), chain.context.tokens
            first = end - num + 1
            dists = distributions(block, chain.context.sampling, text[:first], text[first:end])
            known = self._known[chain.context.row]
            if known.start + len(known.dists) != first:
                known.start, known.dists = first, []
            known.dists.extend(dists[: len(text) - first])
            chain.see(dists[-1], block[-1], self._hidden(logits, index))

    def _step(self, chains: Sequence[_Chain]) -> None:
        """Feed the token each chain drew last: q of its next."""
        rows = [chain.context.row for chain in chains]
        logits = self._model.extend(self._cache, rows, [[c.tokens[-1]] for c in chains], keep=1)
        for index, chain in enumerate(chains):
            block = logits.last(index, 1)
            text = [*chain.context.tokens, *chain.tokens] if chain.reads_text else []
            dist = distributions(block, chain.context.sampling, text, [])[0]
            chain.see(dist, block[0], self._hidden(logits, index))

    def _hidden(self, logits: Logits, index: int) -> NDArray[np.float32] | None:
        """[D] at the token that was fed last, where some guide reads it."""
        states = logits.hidden.get(self._model.num_layers)
        return None if states is None else states[index][-1].float().cpu().numpy()


class _Chain:
    """The draft of one row while it grows."""

    def __init__(self, task: DraftTask) -> None:
        self.context, self.length, self.tree = task.context, task.length, task.tree
        self._guide = task.guide
        self.reads_text = task.context.sampling.reads_text
        self.tokens: list[int] = []
        self.dists: list[Dist] = []
        self.next: Dist = -1
        self.logits = torch.empty(0)
        self._hidden: NDArray[np.float32] | None = None
        self._step = DraftStep(0, task.length)

    @property
    def num_slots(self) -> int:
        """Tokens that the draft may put into the cache."""
        return self.length if self.tree is None else self.tree.top_k * (self.length - 1)

    def see(self, dist: Dist, logits: Tensor, hidden: NDArray[np.float32] | None) -> None:
        """q of the coming token, the [V] logits it came from, and the state at the last token."""
        self.next, self.logits, self._hidden = dist, logits, hidden
        if hidden is not None and self.tokens:
            self._step = replace(self._step, hidden=hidden)

    def begins(self) -> bool:
        """Whether to draw a first token: the guide agrees, and q is finite."""
        allowed = self.length > 0 and not is_broken(self.next)
        return allowed and self._guide.goes_on(self._step)

    def wants_to_read(self) -> bool:
        """Whether to read the token just drawn: below the length, and the guide agrees.

        Reading is a forward, so guides are asked before it, except those that judge what it shows.
        """
        if len(self.tokens) >= self.length:
            return False
        return self._waits() or self._guide.goes_on(self._step)

    def wants_to_draw(self) -> bool:
        """Whether to draw from the q that reading gave; a guide that waited for it is asked now."""
        if is_broken(self.next):
            return False
        return not self._waits() or self._guide.goes_on(self._step)

    def _waits(self) -> bool:
        """Where hidden states are shown, a guide that says nothing else (a watched one) waits."""
        return self._hidden is not None and getattr(self._guide, "waits_for_hidden", True)

    def draw(self) -> None:
        """Draw from q and keep the token, whatever it is."""
        q = self.next
        token = draw(q, self.context.rng.random()) if not isinstance(q, int) else q
        self.tokens.append(token)
        self.dists.append(q)
        if self._guide.needs_probs:
            before = self._step.entropy
            step = _describe(self.logits, q, token, len(self.tokens), self.length)
            self._step = replace(step, entropy_before=before, hidden_before=self._hidden)
        else:
            self._step = DraftStep(len(self.tokens), self.length, hidden_before=self._hidden)

    def draft(self, source: str) -> Draft:
        """The chain as a draft; greedy tokens are point masses."""
        probs = [None if isinstance(q, int) else q for q in self.dists]
        return Draft.chain(self.tokens, probs, source)


def _describe(logits: Tensor, q: Dist, token: int, depth: int, length: int) -> DraftStep:
    """What a guide sees of the token just kept; greedy drafts are judged at temperature 1."""
    probs = logits.float().softmax(-1) if isinstance(q, int) else torch.from_numpy(q)
    top = probs.topk(2).values.tolist()
    entropy = float(torch.special.entr(probs).sum())
    return DraftStep(depth, length, float(probs[token]), top[0], entropy, top[0] - top[1])
