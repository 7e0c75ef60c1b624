"""Causal LMs as drafters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftwise.drafters.drawing import DraftInput, DraftModelRunner, TreeLevel
from draftwise.drafters.protocol import Context, ModelDrafter
from draftwise.drafters.session import NeuralSession
from draftwise.nn.model import CausalModel, Logits
from draftwise.nn.sampling import Shared


class LMDrafter(ModelDrafter):
    """Any causal LM that shares the target's tokenizer.

    Source: Leviathan et al. (2023). Time: one forward per token; the first one also catches up.
    probs: q after temperature, top-k and top-p (None when greedy); trees consist of the likeliest
    tokens, which are not drawn (None). Both are lossless: ``docs/verification.md``. home: the
    folder it was loaded from, which may contain a stop rule's head. num_shared: number of token
    ids, from 0 on, that mean the same in both models; None = as many as both have logits for.
    """

    def __init__(
        self,
        name: str,
        model: CausalModel,
        target: CausalModel,
        home: Path | None = None,
        num_shared: int | None = None,
    ) -> None:
        own, size = model.vocab_size, target.vocab_size
        self._shared = Shared(num_shared or min(own, size), own, size)
        self.name, self.model, self.can_branch = name, model, model.serves_trees
        self.home, self.hidden_size = home, model.hidden_size
        self.relative_cost = model.num_parameters / max(1, target.num_parameters)
        self.token_bytes = model.token_bytes

    def show_hidden(self) -> None:
        """Make hidden states available to stop rules, at the cost of copying them at each step."""
        self.model.tap([-1])

    def start(self) -> NeuralSession:
        return NeuralSession(self.name, LMRunner(self.model, self._shared))


class LMRunner(DraftModelRunner):
    """Runs a causal LM on its KV cache."""

    resumes = True

    def __init__(self, model: CausalModel, shared: Shared) -> None:
        super().__init__(model.new_cache(capacity=model.max_positions))
        self._model, self._shared = model, shared

    @property
    def shows_hidden(self) -> bool:
        return self._model.num_layers in self._model.taps

    def follow(self, context: Context) -> int:
        return self._cache.capacity - len(context.tokens)

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, Tensor | None]:
        """Feed uncached tokens; those after skipped tokens are dropped from the cache again."""
        rows = [reading.context.row for reading in readings]
        fed = [self._unread(reading) for reading in readings]
        lengths, partial = self._cache.lengths, {}
        for row, reading, tokens in zip(rows, readings, fed, strict=True):
            if reading.most is not None:  # where the cache is full, a probe overwrites its end
                num_unread = self.num_unread(reading.context, reading.end)
                lengths[row] = min(lengths[row], self._cache.capacity - len(tokens))
                if num_unread > len(tokens):
                    partial[row] = lengths[row]
        logits = self._model.extend(self._cache, rows, fed, keep=max(r.num for r in readings))
        for row, length in partial.items():
            lengths[row] = length
        found = [logits.last(index, reading.num) for index, reading in enumerate(readings)]
        flat = torch.cat(found) if len(found) > 1 else found[0]
        return self._shared.spread(flat), self._hidden(logits)

    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = self._model.extend(self._cache, rows, list(tokens[:, None]), keep=1)
        return self._shared.spread(logits.flat), self._hidden(logits)

    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        # a wide level may contain ids outside the shared vocabulary
        fed = [feed.tokens.clamp(max=self._shared.own - 1) for feed in feeds]
        trees = [feed.tree for feed in feeds]
        logits = self._model.extend(self._cache, rows, fed, max(map(len, fed)), trees)
        return [self._shared.spread(logits.last(i, len(tokens))) for i, tokens in enumerate(fed)]

    def rollback(self, context: Context, base: int, agreed: int) -> None:
        # the text's last token is always fed again: its logits start the next draft
        agreed = min(self._cache.lengths[context.row], agreed, len(context.tokens) - 1)
        self._cache.settle([context.row], [agreed])

    def _unread(self, reading: DraftInput) -> Sequence[int]:
        text, start = reading.context.tokens, self._cache.lengths[reading.context.row]
        if reading.most is not None:
            start = max(start, reading.end - reading.most)
        after = reading.drafted[max(0, start - len(text)) :]
        return self._shared.readable([*text[start : reading.end], *after])

    def _hidden(self, logits: Logits) -> Tensor | None:
        """[R, D] after the last token of each row, if a stop rule reads it."""
        states = logits.hidden.get(self._model.num_layers)
        return None if states is None else torch.stack([own[-1] for own in states])
