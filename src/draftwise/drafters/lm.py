"""Causal LMs as drafters, optionally with a window over long texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from draftwise.checks import whole
from draftwise.drafters.protocol import Context, ModelDrafter
from draftwise.drafters.runner import DraftInput, DraftModelRunner, TreeLevel
from draftwise.drafters.session import NeuralSession
from draftwise.nn.model import CausalModel, Logits
from draftwise.nn.sampling import Shared
from draftwise.types import DraftwiseError

SINK = 4  # StreamingLLM's default
ROOM = 128  # slots for a draft after the window; longer drafts are shortened
_LONGEST = 1 << 24


@dataclass(frozen=True, slots=True)
class Window:
    """A drafter's view of a long text: its first ``sink`` and its last ``window`` tokens.

    Source: StreamingLLM (Xiao et al. 2024), section 3.2, as the second cache strategy of MetaSD
    (appendix F.11, table 13). The drafter reads ``text[:sink] + text[sink + skipped:]`` at
    positions 0, 1, 2, ...; ``skipped`` is the smallest multiple of half a window that makes it fit.
    When it changes, the window is recomputed. Differs: StreamingLLM drops one token per step and
    rotates the cached keys; our cache holds rotated keys, which cannot be moved. Cost: at most two
    tokens computed per token of text; ``sink + window + ROOM`` slots per row. Raises BadValue for a
    negative sink or a window below 2.

    >>> window = Window(sink=1, window=4)
    >>> [window.skipped(num) for num in (5, 6, 7, 8)]
    [0, 2, 2, 4]
    """

    sink: int
    window: int

    def __post_init__(self) -> None:
        whole("sink", self.sink, 0, _LONGEST), whole("window", self.window, 2, _LONGEST)

    @property
    def num_slots(self) -> int:
        return self.sink + self.window + ROOM

    def skipped(self, num_tokens: int) -> int:
        surplus = max(0, num_tokens - self.sink - self.window)
        block = self.window // 2
        return -(-surplus // block) * block


class LMDrafter(ModelDrafter):
    """Any causal LM that shares the target's tokenizer.

    Source: Leviathan et al. (2023). Time: one forward per token; the first one also catches up.
    probs: q after temperature, top-k and top-p (None when greedy); trees consist of the likeliest
    tokens, which are not drawn (None). Both are lossless: ``docs/verification.md``. home: the
    folder it was loaded from, which may contain a stop rule's head. window: its view of a long
    text; None = all of it. num_shared: number of token ids, from 0 on, that mean the same in both
    models; None = as many as both have logits for. Raises DraftwiseError for a window that exceeds
    the model's positions.
    """

    def __init__(
        self,
        name: str,
        model: CausalModel,
        target: CausalModel,
        home: Path | None = None,
        window: Window | None = None,
        num_shared: int | None = None,
    ) -> None:
        own, size = model.vocab_size, target.vocab_size
        self._shared = Shared(num_shared or min(own, size), own, size)
        self.name, self.model, self.can_branch = name, model, model.serves_trees
        self.home, self.hidden_size, self.window = home, model.hidden_size, window
        if window is not None and window.sink + window.window >= model.max_positions:
            raise DraftwiseError(
                f"drafter {name}: a sink of {window.sink} and a window of {window.window} tokens, "
                f"and a draft, do not fit into its {model.max_positions} positions"
            )
        self.relative_cost = model.num_parameters / max(1, target.num_parameters)
        self.token_bytes = model.token_bytes

    def show_hidden(self) -> None:
        """Make hidden states available to stop rules, at the cost of copying them at each step."""
        self.model.tap([-1])

    def start(self) -> NeuralSession:
        return NeuralSession(self.name, LMRunner(self.model, self._shared, self.window))


class LMRunner(DraftModelRunner):
    """Runs a causal LM on its KV cache; with a window, slots are positions minus skipped tokens."""

    resumes = True

    def __init__(self, model: CausalModel, shared: Shared, window: Window | None) -> None:
        self._model, self._shared, self._window = model, shared, window
        slots = model.max_positions if window is None else window.num_slots
        super().__init__(model.new_cache(capacity=min(model.max_positions, slots)))
        self._skipped: dict[int, int] = {}

    @property
    def shows_hidden(self) -> bool:
        return self._model.num_layers in self._model.taps

    def open(self, row: int) -> None:
        super().open(row)
        self._skipped[row] = 0

    def close(self, row: int) -> None:
        super().close(row)
        del self._skipped[row]

    def crop(self, row: int, length: int) -> None:
        """Keep the first tokens, unless the window has skipped some."""
        self._cache.crop(row, 0 if self._skipped[row] else length)
        self._skipped[row] = 0

    def copy(self, source: int, row: int, length: int) -> None:
        length = 0 if self._skipped[source] else min(length, self._cache.lengths[source])
        length = self._cache.reachable(source, length)
        self._cache.copy(source, row, length)

    def follow(self, context: Context) -> int:
        """Drop the window if it has moved, and keep the sink."""
        row, lengths = context.row, self._cache.lengths
        skipped = 0 if self._window is None else self._window.skipped(len(context.tokens))
        if self._window is not None and skipped != self._skipped[row]:
            self._skipped[row] = skipped
            lengths[row] = min(lengths[row], self._window.sink)
        return self._cache.capacity - (len(context.tokens) - skipped)

    def first(self, context: Context) -> int:
        """The first position after the skipped tokens."""
        skipped = self._skipped[context.row]
        return self._window.sink + skipped + 1 if self._window is not None and skipped else 0

    def num_unread(self, context: Context, end: int) -> int:
        return end - self._skipped[context.row] - self._cache.lengths[context.row]

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
        agreed = min(agreed, len(context.tokens) - 1) - self._skipped[context.row]
        agreed = min(self._cache.lengths[context.row], agreed)
        self._cache.settle([context.row], [agreed])

    def _unread(self, reading: DraftInput) -> Sequence[int]:
        row, text = reading.context.row, reading.context.tokens
        start, skipped = self._cache.lengths[row], self._skipped[row]
        sink: Sequence[int] = ()
        if reading.most is not None:
            start = max(start, reading.end - skipped - reading.most)
        if self._window is not None and skipped:
            sink = text[start : self._window.sink]
            start = max(start, self._window.sink) + skipped
        after = reading.drafted[max(0, start - len(text)) :]
        return self._shared.readable([*sink, *text[start : reading.end], *after])

    def _hidden(self, logits: Logits) -> Tensor | None:
        """[R, D] after the last token of each row, if a stop rule reads it."""
        states = logits.hidden.get(self._model.num_layers)
        return None if states is None else torch.stack([own[-1] for own in states])
