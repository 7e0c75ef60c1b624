"""A causal LM as drafter: its own ragged cache, catching up when it plays again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwise.dist import draw, is_broken
from draftwise.drafters.protocol import MAX_TARGETS, Context, score_known
from draftwise.guides.fixed import Fixed
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import distributions
from draftwise.protocols import Guide
from draftwise.types import Dist, Draft, DraftStep, Scores


class LMDrafter:
    """Any causal LM that shares the target's tokenizer.

    Source: Leviathan et al. (2023); several of them are the pool of MetaSD and HedgeSpec. Index:
    none. Memory: one ragged KV cache a batch. Time: one forward a token, the first over whatever it
    missed. probs: q after temperature, top-k and top-p (None when greedy).
    """

    def __init__(self, name: str, model: CausalModel, target: CausalModel) -> None:
        self.name, self.model = name, model
        self.relative_cost = model.num_parameters / max(1, target.num_parameters)

    def start(self, num_rows: int, capacity: int) -> LMSession:
        """An empty cache and nothing scored."""
        return LMSession(self.name, self.model, num_rows, capacity)


@dataclass(slots=True)
class _Known:
    """q at text positions ``start``, ``start + 1``, ... that were not yet reported."""

    start: int = 0
    dists: list[Dist] = field(default_factory=list)


class LMSession:
    """A batch's cache of one drafter, and the q's it computed along the text."""

    def __init__(self, name: str, model: CausalModel, num_rows: int, capacity: int) -> None:
        self._name, self._model = name, model
        self._cache = model.new_cache(num_rows, min(capacity, model.max_positions))
        self._known = [_Known() for _ in range(num_rows)]

    def propose(
        self, contexts: Sequence[Context], lengths: Sequence[int], guides: Sequence[Guide]
    ) -> list[Draft]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        chains = [_Chain(c, n, g) for c, n, g in zip(contexts, lengths, guides, strict=True)]
        active = [c for c in chains if len(c.context.tokens) + c.length <= self._cache.capacity]
        if active:
            self._feed(active, [len(chain.context.tokens) for chain in active])
        while active := [chain for chain in active if chain.goes_on()]:
            for chain in active:
                chain.draw()
                self._known[chain.context.row].dists.append(chain.dists[-1])
            active = [chain for chain in active if len(chain.tokens) < chain.length]
            if active:
                self._step(active)
        return [chain.draft(self._name) for chain in chains]

    def commit(self, contexts: Sequence[Context]) -> None:
        """Cut the cache and the known q's back to where draft and text agree."""
        for context in contexts:
            row, text = context.row, len(context.tokens)
            # the last token of the text was the target's: it is always fed again
            self._cache.lengths[row] = min(self._cache.lengths[row], text - 1)

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """Backlog and drafted positions; with ``everything``, feed what is missing first."""
        if everything:
            behind = [c for c in contexts if self._cache.lengths[c.row] < len(c.tokens) - 1]
            behind = [c for c in behind if len(c.tokens) <= self._cache.capacity]
            if behind:
                chains = [_Chain(context, 0, Fixed()) for context in behind]
                self._feed(chains, [len(c.tokens) - 1 for c in behind])
        return [self._report(context) for context in contexts]

    def match_length(self, context: Context) -> int | None:
        """None: not a retrieval drafter."""
        return None

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' cache and memory."""
        self._cache.keep_rows(rows)
        self._known = [self._known[row] for row in rows]

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
            chain.see(dists[-1], block[-1])

    def _step(self, chains: Sequence[_Chain]) -> None:
        """Feed the token each chain drew last: q of its next."""
        rows = [chain.context.row for chain in chains]
        logits = self._model.extend(self._cache, rows, [[c.tokens[-1]] for c in chains], keep=1)
        for index, chain in enumerate(chains):
            block = logits.last(index, 1)
            text = [*chain.context.tokens, *chain.tokens] if chain.is_penalised else []
            chain.see(distributions(block, chain.context.sampling, text, [])[0], block[0])


class _Chain:
    """The draft of one row while it grows."""

    def __init__(self, context: Context, length: int, guide: Guide) -> None:
        self.context, self.length, self._guide = context, length, guide
        self.is_penalised = context.sampling.repetition_penalty != 1.0
        self.tokens: list[int] = []
        self.dists: list[Dist] = []
        self._next: Dist = -1
        self._next_logits: Tensor | None = None
        self._step = DraftStep(0, length)

    def see(self, dist: Dist, logits: Tensor) -> None:
        """q of the coming token, and the [V] logits it came from."""
        self._next, self._next_logits = dist, logits

    def goes_on(self) -> bool:
        """Whether to draw one more: below the length, the guide agrees, and q is finite."""
        if len(self.tokens) >= self.length or is_broken(self._next):
            return False
        return self._guide.goes_on(self._step)

    def draw(self) -> None:
        """Draw from q and keep the token, whatever it is."""
        q = self._next
        token = draw(q, self.context.rng.random()) if not isinstance(q, int) else q
        self.tokens.append(token)
        self.dists.append(q)
        if self._guide.needs_probs and self._next_logits is not None:
            self._step = _describe(self._next_logits, q, token, len(self.tokens), self.length)
        else:
            self._step = DraftStep(len(self.tokens), self.length)

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
