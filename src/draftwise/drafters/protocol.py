"""The interface between the engine and drafters: contexts, tasks, sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from draftwise.bandits.stop_rules.thresholds import Fixed
from draftwise.nn.sampling import Occurrences, SampledSpan
from draftwise.nn.transfer import DeviceRead
from draftwise.protocols import Mixer, StopRule
from draftwise.types import Draft, Ints, SamplingParams, Scores, TreeShape

if TYPE_CHECKING:
    from torch import Tensor

    from draftwise.nn.hidden_states import HiddenStates

MAX_TARGETS = 64  # target distributions of verified tokens that are kept per request, for scores


@dataclass(slots=True)
class Context:
    """A request as drafters see it: text, sampling parameters, and the target's verified p.

    row: its index in every cache. tokens: prompt and emitted tokens. rng: the draft stream.
    targets: p at positions ``targets_start``, ``targets_start + 1``, ... of the text, the latest
    ``MAX_TARGETS``: tokens for greedy requests (-1 = not finite), else [V] on the device. features:
    the target's hidden states of the text without its last token, if a drafter needs them. eos:
    tokens that end a draft. num_prompt: tokens of the prompt; default: all initial ones. seen:
    token counts for penalties. tenant: owner of the answers that the request may draft from; owns
    its answer, too, unless ``is_private``. drafters: allowed ones, None = all; if empty, no drafter
    opens a row. prediction: a text that the answer probably resembles. fault: an exception from the
    request's ``sampling``.
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
    prediction: Sequence[int] = ()

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
        """The span of ``num_rows`` logits after ``start`` tokens of the text."""
        if not self.sampling.reads_text:
            return SampledSpan(self.sampling, num_rows, blame=self.blame)
        if self.seen is None and self.sampling.penalises:
            self.seen = Occurrences(self.num_prompt)
        given = (self.sampling, num_rows, self.tokens, start, drafted, parents, self.num_prompt)
        return SampledSpan(*given, self.seen, skip, self.blame)

    def blame(self, error: Exception) -> None:
        """Record an exception from the request's sampling; the drafter is not to blame."""
        self.fault = self.fault or error

    def num_allowed(self, draft: Sequence[int]) -> int:
        """Number of a draft's tokens before the first of probability 0.

        All tokens, unless the request's ``process`` has a method ``num_allowed(text, num)``.
        Retrieved drafts may be truncated there, since the result depends only on text and draft.
        """
        num_allowed = getattr(self.sampling.process, "num_allowed", None)
        if num_allowed is None:
            return len(draft)
        return int(num_allowed([*self.tokens, *draft], len(draft)))

    def extend(self, tokens: Sequence[int], targets: Sequence[int | Tensor]) -> None:
        """Append emitted tokens and their target distributions."""
        self.remember(len(self.tokens), targets)
        self.tokens.extend(tokens)

    def remember(self, start: int, targets: Sequence[int | Tensor]) -> None:
        """Store p from position ``start`` on; earlier ones are dropped if there is a gap."""
        if start != self.targets_start + len(self.targets):
            self.targets, self.targets_start = [], start
        self.targets.extend(targets)
        surplus = max(0, len(self.targets) - MAX_TARGETS)
        del self.targets[:surplus]
        self.targets_start += surplus


@dataclass(frozen=True, slots=True)
class Mix:
    """How a draft mixes in retrieved tokens. peek: drafted tokens -> by retrieval drafter, length
    of the match after them and the next token. most: maximum tokens with siblings; 0 = no siblings.
    """

    mixer: Mixer
    peek: Callable[[Sequence[int]], Mapping[str, tuple[int, int]]]
    most: int = 0


@dataclass(frozen=True, slots=True)
class DraftTask:
    """A request's task for one drafter in one round.

    length: maximum depth, 1 or more. stop_rule: of a chain. tree: None = a chain. mix:
    replaces the stop rule, for drafters that ``can_mix``.
    """

    context: Context
    length: int
    stop_rule: StopRule = field(default_factory=Fixed)
    tree: TreeShape | None = None
    mix: Mix | None = None


class DraftSession(Protocol):
    """The state of one drafter for the rows of an engine."""

    def open(self, context: Context, expected: int) -> None:
        """Start a request in its row, with its prompt so far; ``expected``: its maximum length."""

    def close(self, row: int) -> None:
        """Free a row."""

    def crop(self, context: Context, length: int) -> None:
        """Reuse an open row for another request, keeping its first ``length`` tokens."""

    def copy(self, source: int, row: int, length: int) -> None:
        """Start an open row from the first ``length`` tokens of another row."""

    def propose(self, tasks: Sequence[DraftTask]) -> DeviceRead[list[Draft]]:
        """One draft per task; may be empty. Every token that was drawn must be in the draft."""

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        """Roll back rejected tokens, after the drafts of the last ``propose`` were verified.

        judged: scores of these drafts from verification, to be returned by ``score``.
        """

    def score(
        self, contexts: Sequence[Context], everything: bool
    ) -> DeviceRead[list[Scores | None]]:
        """New scores along the verified text; None for a request without any.

        everything: include scores that need an extra forward (panoramic feedback).
        """

    def probe(self, contexts: Sequence[Context]) -> DeviceRead[list[Scores | None]]:
        """Cheap scores on the last tokens of texts, at positions not scored before.

        A probe may ignore distant context, so its q may differ from that of a draft.
        """


@runtime_checkable
class CatchingUpSession(Protocol):
    """A session that prefills a text before it drafts."""

    def num_uncached_tokens(self, context: Context) -> int:
        """Number of uncached tokens of the text, without its last one."""

    def catch_up(self, contexts: Sequence[Context], most: int) -> DeviceRead[None]:
        """Prefill the next uncached tokens of each text, at most ``most`` per request."""


class Retrieving(DraftSession, Protocol):
    """The session of a drafter that ``retrieves``."""

    def match_length(self, context: Context) -> int:
        """Length of the longest match at the end of the text, 0 = none."""

    def peek(self, context: Context, drafted: Sequence[int]) -> tuple[int, int]:
        """Length of the match after text and draft, and the next token; (0, -1) = none."""


class Drafter(Protocol):
    """A drafter, loaded once, with a session for each engine.

    can_branch: whether it drafts trees. can_mix: whether its chains may contain retrieved tokens
    (``Mix``). retrieves: whether it copies text; its sessions are ``Retrieving``. relative_cost:
    initial estimate of a draft step's time relative to the target's. token_bytes: memory per token.
    """

    name: str
    can_branch: bool
    can_mix: bool
    retrieves: bool
    relative_cost: float
    token_bytes: int

    def start(self) -> DraftSession: ...


@runtime_checkable
class Shaping(Protocol):
    """A drafter that limits its plans. max_length: None = no limit. tree: the default shape."""

    max_length: int | None
    tree: TreeShape | None


@runtime_checkable
class ShowingHidden(Protocol):
    """A drafter that shows stop rules its hidden states. home: its folder, where a head may be."""

    home: Path | None
    hidden_size: int

    def show_hidden(self) -> None: ...
