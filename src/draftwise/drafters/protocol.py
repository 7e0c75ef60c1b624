"""The interface between the engine and drafters: contexts, tasks, sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from draftwise.bandits.stop_rules import Fixed
from draftwise.nn.cache import HiddenStates
from draftwise.nn.sampling import DeviceRead, Dists, Occurrences, SampledSpan
from draftwise.protocols import Mixer, StopRule
from draftwise.types import Draft, Ints, SamplingParams, Scores, TreeShape

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


class ModelDrafter:
    """What drafters that run a model have in common; a head or a smaller model may set the rest."""

    can_mix, retrieves = True, False
    max_length: int | None = None  # the longest draft of its plans; None = that of the plan
    tree: TreeShape | None = None  # the shape of its plans without one; None = chains
    home: Path | None = None  # its folder, where a stop rule's head may be
    hidden_size = 0  # of the states that it can show to stop rules; 0 = none

    def show_hidden(self) -> None:
        """Make hidden states available to stop rules."""


def score_known(
    context: Context, start: int, known: Sequence[int] | Dists, matches: Sequence[int] | None = None
) -> DeviceRead[Scores | None]:
    """Scores of a drafter's q against the verified p, from position ``start`` on.

    known: the tokens that it would have proposed (-1 = none), or distributions. Covers only
    positions whose p is still stored; None if there are none.
    """
    first = max(start, context.targets_start)
    end = min(start + len(known), context.targets_start + len(context.targets), len(context.tokens))
    if first >= end:
        return None
    places = slice(first - start, end - start)
    p: list[Any] = context.targets[first - context.targets_start : end - context.targets_start]
    lengths = None if matches is None else np.array(matches[places], dtype=np.int64)
    if context.sampling.temperature == 0:  # lists are faster for so few
        tokens: Sequence[float]
        if isinstance(known, Dists):
            tokens = (yield [known.take(places).tokens])[0].tolist()
        else:
            tokens = known[places]
        agreed = [float(token == point >= 0) for token, point in zip(tokens, p, strict=True)]
        both = zip(agreed, p, context.tokens[first:end], strict=True)
        of_text = [alpha * (point == token) for alpha, point, token in both]
        return Scores(first, np.array(agreed), np.array(of_text), lengths)
    text = np.array(context.tokens[first:end])
    if isinstance(known, Dists):
        target, q = _rows(p), known.take(places).probs
        of_p, of_q = _at(target, text), _at(q, text)
        capped = torch.where(of_p > 0, (of_q / of_p).clamp(max=1), 0.0)
        alphas, ratios = yield [torch.minimum(target, q).sum(-1), capped]
        alphas, ratios = np.minimum(np.nan_to_num(alphas), 1.0), np.nan_to_num(ratios)
    else:
        proposed = np.array(known[places])
        (alphas,) = yield [_at(_rows(p), proposed)]
        alphas = np.minimum(np.nan_to_num(np.where(proposed < 0, 0.0, alphas)), 1.0)
        ratios = ((proposed == text) & (alphas > 0)).astype(np.float64)
    return Scores(first, alphas, ratios, lengths)


def joined(parts: Sequence[Scores]) -> Scores | None:
    """Consecutive scores of one drafter as one, from the last gap on; None if empty."""
    if len(parts) < 2:
        return parts[0] if parts else None
    before, last = joined(parts[:-1]), parts[-1]
    if before is None or before.start + len(before.alphas) != last.start:
        return last
    alphas = np.concatenate((before.alphas, last.alphas))
    return Scores(before.start, alphas, np.concatenate((before.ratios, last.ratios)))


def _at(dists: Tensor, tokens: Ints) -> Tensor:
    """[n] probability in [n, V] of one token each; negative ids are read as token 0."""
    index = torch.from_numpy(tokens.clip(0)).to(dists.device)
    return dists.gather(1, index[:, None])[:, 0]


def _rows(p: Sequence[int | Tensor]) -> Tensor:
    return torch.stack([torch.as_tensor(row) for row in p])
