"""What the engine and a drafter say to each other: contexts, sessions, known distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from draftwise.nn.sampling import Occurrences, SampledSpan
from draftwise.nn.transfer import DeviceRead
from draftwise.protocols import Mixer, StopRule
from draftwise.stop_rules.thresholds import Fixed
from draftwise.types import Draft, Ints, SamplingParams, Scores, TreeShape

if TYPE_CHECKING:
    from torch import Tensor

    from draftwise.nn.hidden_states import HiddenStates

MAX_TARGETS = 64
"""Verified target distributions kept a request: what a backlog is scored against, at most."""


@dataclass(slots=True)
class Context:
    """One request as drafters see it: its text, how it samples, and the target's verified p.

    row: its row in every cache, while it runs. tokens: prompt and emitted tokens. rng: the
    request's draft stream. targets: p at the positions ``targets_start``, ``targets_start + 1``,
    ... of the text, at most ``MAX_TARGETS`` of the latest: tokens where the request is greedy (-1 =
    not finite), else [V] rows on the device. features: the target's hidden states along the text
    but for its last token, where some drafter looks at them. eos: tokens after which nothing is
    drafted. num_prompt: of the text, by default all that there is at first. seen: how often tokens
    occurred, where that is penalised. tenant: whose earlier answers it may draft from, and whose it
    joins. is_private: it joins none. drafters: those that may draft for it, None = all; where there
    is none, no drafter knows its row. fault: what its own ``sampling`` raised, if it did.
    """

    row: int
    tokens: list[int]
    sampling: SamplingParams
    rng: np.random.Generator
    targets: list[int | Tensor] = field(default_factory=list)
    targets_start: int = 0
    features: HiddenStates | None = None
    tenant: str = ""
    is_private: bool = False
    drafters: frozenset[str] | None = None
    eos: frozenset[int] = frozenset()
    num_prompt: int = -1
    seen: Occurrences | None = None
    fault: Exception | None = None

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens) if self.num_prompt < 0 else self.num_prompt

    @property
    def is_drafted(self) -> bool:
        return self.drafters is None or bool(self.drafters)

    def allows(self, name: str) -> bool:
        return self.drafters is None or name in self.drafters

    def span(
        self,
        num_rows: int,
        start: int,
        drafted: Sequence[int] | Tensor = (),
        parents: Ints | None = None,
        skip: int = 0,
    ) -> SampledSpan:
        """Rows of logits after ``start`` tokens of the text; see ``SampledSpan``."""
        if not self.sampling.reads_text:
            return SampledSpan(self.sampling, num_rows, blame=self.blame)
        if self.seen is None and self.sampling.penalises:
            self.seen = Occurrences(self.num_prompt)
        given = (self.sampling, num_rows, self.tokens, start, drafted, parents, self.num_prompt)
        return SampledSpan(*given, self.seen, skip, self.blame)

    def blame(self, error: Exception) -> None:
        """Note what the request's own sampling raised: no drafter is to blame for it."""
        self.fault = self.fault or error

    def num_allowed(self, draft: Sequence[int]) -> int:
        """How many of a draft's tokens stand before one that can have no probability.

        All, unless the request's ``process`` can tell (``num_allowed``: of a text, and how many of
        its last tokens are meant). It is a function of text and draft, so a draft that was looked
        up may be cut there.
        """
        tell = getattr(self.sampling.process, "num_allowed", None)
        return len(draft) if tell is None else int(tell([*self.tokens, *draft], len(draft)))

    def extend(self, tokens: Sequence[int], targets: Sequence[int | Tensor]) -> None:
        """Append emitted tokens with the p that each was verified against."""
        self.tokens.extend(tokens)
        self.remember(len(self.tokens) - len(tokens), targets)

    def remember(self, start: int, targets: Sequence[int | Tensor]) -> None:
        """Keep p at positions ``start``...; what is not contiguous with it is forgotten."""
        if start != self.targets_start + len(self.targets):
            self.targets, self.targets_start = [], start
        self.targets.extend(targets)
        surplus = len(self.targets) - MAX_TARGETS
        if surplus > 0:
            del self.targets[:surplus]
            self.targets_start += surplus


Peek = Callable[[Sequence[int]], Mapping[str, tuple[int, int]]]
"""Drafted tokens -> by retrieval drafter, the match after them in tokens and what follows it."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A draft that other drafters write, too: what chooses them, and what they would write.

    most: tokens of the draft, alternatives of its chain's tokens included; as many as its chain has
    where the target serves no trees.
    """

    mixer: Mixer
    peek: Peek
    most: int = 0


@dataclass(frozen=True, slots=True)
class DraftTask:
    """What one request wants of a drafter in one round.

    length: the depth of the draft, at most; 1 or more. guide: is asked before each token of a
    chain. tree: how wide; None = a chain. mix: of drafters that ``can_mix``, instead of the guide.
    """

    context: Context
    length: int
    guide: StopRule
    tree: TreeShape | None = None
    mix: Mix | None = None


def mixed_task(context: Context, length: int, mix: Mix) -> DraftTask:
    """A chain that several drafters write; where it ends is the mixer's business alone."""
    return DraftTask(context, length, Fixed(), mix=mix)


class DraftSession(Protocol):
    """The state of one drafter for the rows of an engine: caches, indices, unscored positions."""

    def open(self, context: Context, expected: int) -> None:
        """Start a request in its row, with its prompt so far; ``expected``: its maximum length."""

    def close(self, row: int) -> None:
        """Free a row."""

    def crop(self, context: Context, length: int) -> None:
        """Reuse an open row for another request, from the first ``length`` tokens of its text."""

    def copy(self, source: int, row: int, length: int) -> None:
        """Start an open row from the first ``length`` tokens of another row."""

    def propose(self, tasks: Sequence[DraftTask]) -> DeviceRead[list[Draft]]:
        """A draft for each task; may be empty. Every token that was drawn must be in the draft."""

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        """The drafts of the last ``propose`` were verified: roll back rejected tokens.

        judged: scores of these drafts from verification, to be returned by ``score``.
        """

    def score(
        self, contexts: Sequence[Context], everything: bool
    ) -> DeviceRead[list[Scores | None]]:
        """Scores along the verified text that were not returned before; None where nothing is new.

        With ``everything``, also those that need a forward of their own (panoramic feedback).
        """

    def probe(self, contexts: Sequence[Context]) -> DeviceRead[list[Scores | None]]:
        """Cheap scores on the last tokens of texts, at positions not scored before.

        A probe may ignore distant context, so its q may differ from that of a draft.
        """


@runtime_checkable
class CatchingUpSession(Protocol):
    """A session that has to read a text before it can draft after it."""

    def num_uncached_tokens(self, context: Context) -> int:
        """Tokens of the text, but for its last, that were not read yet."""

    def catch_up(self, contexts: Sequence[Context], most: int) -> DeviceRead[None]:
        """Let the drafter catch up on the next tokens of each text, up to a limit."""


class Retrieving(DraftSession, Protocol):
    """The session of a drafter that ``retrieves``: it can say at any time what it would write."""

    def match_length(self, context: Context) -> int:
        """Tokens of the longest match at the end of the text, 0 = none."""

    def peek(self, context: Context, drafted: Sequence[int]) -> tuple[int, int]:
        """The match at the end of text and draft, and the token that follows it; (0, -1) = none."""


class Drafter(Protocol):
    """A drafter, loaded once, with a session for each engine."""

    name: str
    can_branch: bool
    """Whether it drafts trees, or chains only."""
    can_mix: bool
    """Whether others may write at its chains (``Mix``)."""
    retrieves: bool
    """Whether it copies what it finds; its sessions are ``Retrieving``."""
    relative_cost: float
    """A first guess of one draft step's seconds over the target's, until it is measured."""
    token_bytes: int
    """Bytes that it keeps for each token of a text, keys and values above all."""

    def start(self) -> DraftSession:
        """An empty session."""


@runtime_checkable
class Shaping(Protocol):
    """A drafter that limits its plans."""

    max_length: int | None
    """Tokens that it drafts at most; None = as many as a plan says."""
    tree: TreeShape | None
    """The shape of its plans where the setting names none."""


@runtime_checkable
class ShowingHidden(Protocol):
    """A drafter with hidden states that rules may judge."""

    home: Path | None
    """The folder that it was loaded from, where a trained head for it may lie."""
    hidden_size: int

    def show_hidden(self) -> None:
        """Let guides see hidden states from now on; it costs a copy of them each step."""
