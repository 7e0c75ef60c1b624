"""What a drafter that computes is made of: what it reads, and the logits that this gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftwise.drafters.chain import Chain, described
from draftwise.drafters.lm_tree import Feed
from draftwise.drafters.protocol import Context
from draftwise.nn.sampling import Dists, Span, warped

GLANCE = 32
"""Tokens at the end of a prompt from which a first impression is made."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of one text and the draft behind it, up to ``end`` tokens of both.

    num: the last so many positions up to ``end`` whose logits are wanted, at least 1. ahead: tokens
    that will be drawn behind them. most: of what was not read yet, only the last tokens.
    """

    context: Context
    end: int
    num: int = 1
    drafted: Sequence[int] = ()
    ahead: int = 0
    most: int | None = None


class Reader(Protocol):
    """What one kind of network reads, and what gives its logits; it knows no policy and no draws.

    Position t of a text is that of its t-th token, counted from 0; q of position t is known when
    what stands before it was read.
    """

    @property
    def glance(self) -> int | None:
        """Tokens from which a first impression is made; None = all of a text."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether what was read of a text need not be read again."""
        ...

    @property
    def shows_hidden(self) -> bool:
        """Whether states are shown beside logits."""
        ...

    def open(self, row: int, expected: int) -> None:
        """A text begins, of at most so many tokens."""
        ...

    def close(self, row: int) -> None:
        """Free what the row has."""
        ...

    def crop(self, row: int, length: int) -> None:
        """Another text goes on behind the first ``length`` tokens."""
        ...

    def copy(self, source: int, row: int, length: int) -> None:
        """An open row begins like another one."""
        ...

    def follow(self, context: Context) -> int:
        """The text may have grown: tokens that a draft may put into the cache; -1 = no draft."""
        ...

    def base(self, context: Context) -> int:
        """Slots of the cache that hold what was read of the row."""
        ...

    def first(self, context: Context) -> int:
        """The first position whose q is that of a draft."""
        ...

    def num_unread(self, context: Context, end: int) -> int:
        """Positions up to ``end`` whose q reading on would give."""
        ...

    def read(self, readings: Sequence[Reading]) -> tuple[Tensor, Tensor | None]:
        """Read on: [sum of num, V] logits, and where states are shown, [R, D] the last of each."""
        ...

    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Read a token [R] behind what was read of each row: [R, V] logits, [R, D] states."""
        ...

    def read_level(self, rows: Sequence[int], feeds: Sequence[Feed]) -> list[Tensor]:
        """Read a level of each row's tree: [n, V] each."""
        ...

    def settle(self, context: Context, base: int, agreed: int) -> None:
        """Text and draft agree on ``agreed`` tokens; it began behind ``base`` (0 = none)."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """q of the token that each of n chains draws next, its logits [n, V], states [n, D]."""

    q: Dists
    logits: Tensor
    hidden: Tensor | None

    def described(self, tokens: Tensor) -> Tensor:
        """[N, 4] what rules look at of the tokens drawn."""
        return described(self.q, self.logits, tokens)

    def take(self, rows: Sequence[int]) -> Heard:
        """Some of them."""
        if list(rows) == list(range(len(self.q))):
            return self
        index = torch.tensor(rows, dtype=torch.long, device=self.logits.device)
        hidden = None if self.hidden is None else self.hidden[index]
        return Heard(self.q.take(rows), self.logits[index], hidden)


def listen(
    reader: Reader, chains: Sequence[Chain], nums: Sequence[int]
) -> tuple[Heard, list[Reading], Dists]:
    """Read each text and what is drafted of it; q's of the last ``nums`` positions, and the last.

    Copied tokens that are read by the way leave their q's to the chains (``asides``).
    """
    readings = []
    for chain, num in zip(chains, nums, strict=True):
        end = len(chain.context.tokens) + len(chain.tokens)
        ahead = chain.length - len(chain.tokens)
        readings.append(Reading(chain.context, end, num, chain.tokens, ahead))
    logits, hidden = reader.read(readings)
    q = warped(logits, [text_span(reading) for reading in readings])
    last, end = [], 0
    for chain, num in zip(chains, nums, strict=True):
        end += num
        last.append(end - 1)
        for back in range(min(len(chain.tokens), num - 1), 0, -1):
            chain.set_aside(len(chain.tokens) - back - 1, q, end - 1 - back)
    every = len(last) == len(q)
    heard = Heard(q if every else q.take(last), logits if every else logits[last], hidden)
    return heard, readings, q


def text_span(reading: Reading) -> Span:
    """The rows of what was read of a text and its draft."""
    first = reading.end + 1 - reading.num
    start = min(first, len(reading.context.tokens))
    return reading.context.span(reading.num, start, reading.drafted, skip=first - start)


def drawn_span(context: Context, drafted: Sequence[int | Tensor], device: torch.device) -> Span:
    """The row of the token behind a draft, of which the host may not know all."""
    if not context.sampling.reads_text:
        return context.span(1, len(context.tokens))
    if context.sampling.process is not None:
        known = [token for token in drafted if isinstance(token, int)]
        return context.span(1, len(context.tokens), known, skip=len(known))
    said = torch.stack([torch.as_tensor(token, device=device) for token in drafted])
    return context.span(1, len(context.tokens), said, skip=len(drafted))
