"""What the engine and a drafter say to each other: contexts, sessions, known distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from draftwise.dist import overlap, ratio
from draftwise.guides.fixed import Fixed
from draftwise.protocols import Guide, Mixer
from draftwise.types import Dist, Draft, SamplingParams, Scores, TreeShape

if TYPE_CHECKING:
    from draftwise.nn.features import Features

MAX_TARGETS = 64
"""Verified target distributions kept a request: what a backlog is scored against, at most."""


@dataclass(slots=True)
class Context:
    """One request as drafters see it: its text, how it samples, and the target's verified p.

    row: its row in every cache of the batch. tokens: prompt and emitted tokens. rng: the request's
    draft stream. targets: p at the positions ``targets_start``, ``targets_start + 1``, ... of the
    text, at most ``MAX_TARGETS`` of the latest. features: the target's hidden states along the text
    but for its last token, where some drafter looks at them.
    """

    row: int
    tokens: list[int]
    sampling: SamplingParams
    rng: np.random.Generator
    targets: list[Dist] = field(default_factory=list)
    targets_start: int = 0
    features: Features | None = None

    def extend(self, tokens: Sequence[int], targets: Sequence[Dist]) -> None:
        """Append emitted tokens with the p that each was verified against."""
        self.tokens.extend(tokens)
        self.remember(len(self.tokens) - len(tokens), targets)

    def remember(self, start: int, targets: Sequence[Dist]) -> None:
        """Keep p at positions ``start``...; what is not contiguous with it is forgotten."""
        if start != self.targets_start + len(self.targets):
            self.targets, self.targets_start = [], start
        self.targets.extend(targets)
        surplus = len(self.targets) - MAX_TARGETS
        if surplus > 0:
            del self.targets[:surplus]
            self.targets_start += surplus

    def target(self, position: int) -> Dist | None:
        """p at a position of the text, or None where it is not known (any more)."""
        index = position - self.targets_start
        return self.targets[index] if 0 <= index < len(self.targets) else None


Peek = Callable[[Sequence[int]], Mapping[str, tuple[int, int]]]
"""Drafted tokens -> by retrieval drafter, the match behind them in tokens and what follows it."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A draft that others write at, too: who says so, and how to see what they would write."""

    mixer: Mixer
    peek: Peek


@dataclass(frozen=True, slots=True)
class DraftTask:
    """What one request wants of a drafter in one round.

    length: the depth of the draft, at most; 1 or more. guide: is asked before each token of a
    chain. tree: how wide; None = a chain. mix: of drafters that ``can_mix``, instead of the guide.
    """

    context: Context
    length: int
    guide: Guide
    tree: TreeShape | None = None
    mix: Mix | None = None


def mixed_task(context: Context, length: int, mix: Mix) -> DraftTask:
    """A chain that several drafters write; where it ends is the mixer's business alone."""
    return DraftTask(context, length, Fixed(), mix=mix)


class DraftSession(Protocol):
    """One drafter's memory of one batch: caches, indices, what it has not been scored on yet."""

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """A draft for each task; an empty one is legal. A token drawn is always in the draft."""
        ...

    def commit(self, contexts: Sequence[Context]) -> None:
        """The contexts (those of the last ``propose``) were verified: drop what was rejected."""
        ...

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """What is known of this drafter along the verified text and was not reported before.

        With ``everything``, also what costs a forward of its own (panoramic feedback); else only
        what is free. None where nothing is new.
        """
        ...

    def glance(self, contexts: Sequence[Context]) -> list[Scores | None]:
        """A look at the last tokens of texts: scores of what was not told yet, for little.

        It may leave out what lies far before them, so these q's need not be those of a draft.
        """
        ...

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, in this order; the contexts are renumbered alike."""
        ...


class Retrieving(DraftSession, Protocol):
    """The session of a drafter that ``retrieves``: it can say at any time what it would write."""

    def match_length(self, context: Context) -> int:
        """Tokens of the longest match at the end of the text, 0 = none."""
        ...

    def peek(self, context: Context, drafted: Sequence[int]) -> tuple[int, int]:
        """The match at the end of text and draft, and the token that follows it; (0, -1) = none."""
        ...


class Drafter(Protocol):
    """Something that can draft: loaded once, with a session for each batch."""

    name: str
    can_branch: bool
    """Whether it drafts trees, or chains only."""
    can_mix: bool
    """Whether others may write at its chains (``Mix``)."""
    retrieves: bool
    """Whether it copies what it finds; its sessions are ``Retrieving``."""
    relative_cost: float
    """A first guess of one draft step's seconds over the target's, until it is measured."""

    def start(self, num_rows: int, capacity: int) -> DraftSession:
        """Memory for a batch of ``num_rows`` rows of at most ``capacity`` tokens."""
        ...


def score_known(
    context: Context, start: int, known: Sequence[Dist], matches: Sequence[int] | None = None
) -> Scores | None:
    """Compare a drafter's distributions q at positions ``start``... with the verified p there.

    Only positions that are in the text and whose p is still kept count. Returns None if none is.
    """
    alphas: list[float] = []
    ratios: list[float] = []
    kept: list[int] = []
    first = start
    for offset, q in enumerate(known):
        p = context.target(start + offset)
        if p is None or start + offset >= len(context.tokens):
            if alphas:
                break
            first = start + offset + 1
            continue
        alphas.append(min(1.0, overlap(p, q)))
        ratios.append(ratio(p, q, context.tokens[start + offset]))
        kept.append(offset)
    if not alphas:
        return None
    lengths = None if matches is None else np.array([matches[i] for i in kept], dtype=np.int64)
    return Scores(first, np.array(alphas), np.array(ratios), lengths)
