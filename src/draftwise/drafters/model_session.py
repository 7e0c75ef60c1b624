"""A tree of a network's likeliest continuations, grown level by level on the device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.drafters.continuations import pruned
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask
from draftwise.nn.sampling import Dists, SampledSpan, draw, warped
from draftwise.nn.transfer import DeviceRead, together
from draftwise.nn.trees import Branches
from draftwise.types import Draft, DraftStep, Floats, Ints, Scores, TreeShape


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """A level of a tree that is read next.

    tokens: [n]. tree: how they stand after the text. above: [n] which token of the level before
    each continues (of the first level, the text's end: 0).
    """

    tokens: Tensor
    tree: Branches
    above: Tensor


Growing = Generator[TreeLevel, Tensor, tuple[Tensor, Tensor]]
"""Asks for a level to be read, is sent its logits, and gives tokens [N] and parents [N]."""


def grow(shape: TreeShape, depth: int, base: int, logits: Tensor) -> Growing:
    """A tree after ``base`` tokens that the network has read; logits: [V] after them.

    Source: EAGLE-2 (Li et al. 2024), section 4: the ``top_k`` likeliest tokens of a level, by the
        product of probabilities along their path, get ``top_k`` children each; when the depth is
        reached, the likeliest ``total_tokens`` of all are the draft.
    Differs: for an LM by the log-probabilities of an ordinary LM, at temperature 1 and before any
        warp: the tree is a function of the text, so no token in it was drawn, and p decides alone.
    Cost: one forward and one top-k a level; the host sees nothing of it.
    """
    num = min(shape.top_k, logits.shape[-1])
    tokens, parents, scores = [], [], []
    level, nodes = logits[None], torch.full((1,), -1, device=logits.device)
    above = torch.zeros(1, device=logits.device)
    seen = torch.zeros((1, 0), dtype=torch.bool, device=logits.device)
    for step in range(depth):
        found = torch.log_softmax(level.float(), dim=-1).topk(num, dim=-1)
        tokens.append(found.indices.flatten())
        parents.append(nodes.repeat_interleave(num))
        scores.append((above[:, None] + found.values).flatten())
        if step + 1 == depth:
            break
        best = _best(scores[-1], num)
        slots = best // num  # which token of the level before
        nodes = best + sum(map(len, tokens[:-1]))
        above = scores[-1][best]
        own = torch.eye(len(best), dtype=torch.bool, device=seen.device)
        seen = torch.cat((seen[slots], own), dim=1)
        positions = np.repeat(base + np.arange(step + 1), num)
        level = yield TreeLevel(tokens[-1][best], Branches(base, positions, seen), slots)
    every = torch.cat(scores)
    chosen = _best(every, shape.total_tokens)
    place = torch.full((len(every) + 1,), -1, device=logits.device)  # the last one: of the text
    place[chosen] = torch.arange(len(chosen), device=logits.device)
    return torch.cat(tokens)[chosen], place[torch.cat(parents)[chosen]]


def _best(scores: Tensor, num: int) -> Tensor:
    """The ``num`` likeliest of these, in the order they were made; of equals the first."""
    return scores.sort(descending=True, stable=True).indices[:num].sort().values


PROBE_TOKENS = 32
"""Tokens at the end of a prompt from which a first impression is made."""


@dataclass(frozen=True, slots=True)
class DraftInput:
    """What is read of one text and the draft after it, up to ``end`` tokens of both.

    num: the last so many positions up to ``end`` whose logits are wanted, at least 1. ahead: tokens
    that will be drawn after them. most: of what was not read yet, only the last tokens.
    """

    context: Context
    end: int
    num: int = 1
    drafted: Sequence[int] = ()
    ahead: int = 0
    most: int | None = None


class DraftModelRunner(Protocol):
    """What one kind of network reads, and what gives its logits; it knows no policy and no draws.

    Position t of a text is that of its t-th token, counted from 0; q of position t is known when
    what stands before it was read.
    """

    @property
    def probe_tokens(self) -> int | None:
        """Tokens from which a first impression is made; None = all of a text."""

    @property
    def remembers(self) -> bool:
        """Whether what was read of a text need not be read again."""

    @property
    def shows_hidden(self) -> bool:
        """Whether states are shown beside logits."""

    @property
    def resumes(self) -> bool:
        """Whether it can draft after tokens that it did not draw."""

    def open(self, row: int, expected: int) -> None:
        """A text begins, of at most so many tokens."""

    def close(self, row: int) -> None:
        """Free what the row has."""

    def crop(self, row: int, length: int) -> None:
        """Another text goes on after the first ``length`` tokens."""

    def copy(self, source: int, row: int, length: int) -> None:
        """An open row begins like another one."""

    def follow(self, context: Context) -> int:
        """The text may have grown: tokens that a draft may put into the cache; -1 = no draft."""

    def base(self, context: Context) -> int:
        """Slots of the cache that hold what was read of the row."""

    def first(self, context: Context) -> int:
        """The first position whose q is that of a draft."""

    def num_unread(self, context: Context, end: int) -> int:
        """Positions up to ``end`` whose q reading on would give."""

    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, Tensor | None]:
        """Read on: [sum of num, V] logits, and where states are shown, [R, D] the last of each."""

    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Read a token [R] after what was read of each row: [R, V] logits, [R, D] states."""

    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        """Read a level of each row's tree: [n, V] each."""

    def settle(self, context: Context, base: int, agreed: int) -> None:
        """Text and draft agree on ``agreed`` tokens; it began after ``base`` (0 = none)."""


@dataclass(frozen=True, slots=True)
class DraftLogits:
    """q of the token that each of n chains draws next, its logits [n, V], states [n, D]."""

    q: Dists
    logits: Tensor
    hidden: Tensor | None

    def described(self, tokens: Tensor, whole: bool) -> Tensor:
        """[N, 4] of the tokens drawn, or unless ``whole`` [N, 1], which is all that mixers read.

        The largest probability, the token's own, the entropy, the gap of the two largest; greedy
        drafts are judged at temperature 1.
        """
        if len(self.q.probs) == len(self.q):
            probs = self.q.probs
        else:
            probs = self.logits.float().softmax(-1)
            if len(self.q.probs):
                drawn = torch.from_numpy(np.flatnonzero(self.q.places >= 0)).to(probs.device)
                probs = probs.index_copy(0, drawn, self.q.probs)
        if not whole:
            return probs.amax(-1, keepdim=True)
        own = probs.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
        top = probs.topk(2).values
        entropy = torch.special.entr(probs).sum(-1)
        return torch.stack((top[:, 0], own, entropy, top[:, 0] - top[:, 1]), dim=-1)

    def take(self, rows: Sequence[int]) -> DraftLogits:
        if list(rows) == list(range(len(self.q))):
            return self
        index = torch.tensor(rows, dtype=torch.long, device=self.logits.device)
        hidden = None if self.hidden is None else self.hidden[index]
        return DraftLogits(self.q.take(rows), self.logits[index], hidden)


def prefill_logits(
    reader: DraftModelRunner, chains: Sequence[Chain], nums: Sequence[int]
) -> tuple[DraftLogits, list[DraftInput], Dists]:
    """Read each text and what is drafted of it; q's of the last ``nums`` positions, and the last.

    Copied tokens that are read by the way leave their q's to the chains (``offpath_probs``).
    """
    readings = []
    for chain, num in zip(chains, nums, strict=True):
        end = len(chain.context.tokens) + len(chain.tokens)
        ahead = chain.length - len(chain.tokens)
        readings.append(DraftInput(chain.context, end, num, chain.tokens, ahead))
    logits, hidden = reader.read(readings)
    q = warped(logits, [text_span(reading) for reading in readings])
    last, end = [], 0
    for chain, num in zip(chains, nums, strict=True):
        end += num
        last.append(end - 1)
        for back in range(min(len(chain.tokens), num - 1), 0, -1):
            chain.add_offpath(len(chain.tokens) - back - 1, q, end - 1 - back)
    every = len(last) == len(q)
    heard = DraftLogits(q if every else q.take(last), logits if every else logits[last], hidden)
    return heard, readings, q


def text_span(reading: DraftInput) -> SampledSpan:
    """The rows of what was read of a text and its draft."""
    first = reading.end + 1 - reading.num
    start = min(first, len(reading.context.tokens))
    return reading.context.span(reading.num, start, reading.drafted, skip=first - start)


def drawn_span(
    context: Context, drafted: Sequence[int | Tensor], device: torch.device
) -> SampledSpan:
    """The row of the token after a draft, of which the host may not know all."""
    if not context.sampling.reads_text:
        return context.span(1, len(context.tokens))
    if context.sampling.process is not None:
        known = [token for token in drafted if isinstance(token, int)]
        return context.span(1, len(context.tokens), known, skip=len(known))
    said = torch.stack([torch.as_tensor(token, device=device) for token in drafted])
    return context.span(1, len(context.tokens), said, skip=len(drafted))


@dataclass(frozen=True, slots=True)
class Sibling:
    """An alternative of a chain's token: what comes before it (-1 = the text), and its q."""

    before: int
    token: int
    q: Tensor | None
    confidence: float


class Chain:
    """The draft of one row: what was written, by whom, and whether it goes on.

    looks: whether each token is looked at before the next is drawn; otherwise the whole draft
    is drawn before the host sees any of it. waits: whether that is only after it was read, for the
    hidden state there.
    """

    def __init__(self, task: DraftTask, shows_hidden: bool, resumes: bool = True) -> None:
        self.context, self.length, self.tree = task.context, task.length, task.tree
        self._guide, self._mix, self._resumes = task.guide, task.mix, resumes
        self.is_over = False
        self.looks = (
            task.mix is not None
            or not task.guide.never_stops
            or task.context.sampling.process is not None
        )
        self.waits = task.mix is None and shows_hidden and task.guide.waits_for_hidden
        self.is_mixed = task.mix is not None
        self.tokens: list[int] = []
        self.sources: list[str] = []  # of copied tokens; "" = the drafter itself
        self.probs: list[Tensor | None] = []
        self.offpath_probs: list[tuple[int, Tensor]] = []
        self.confidences: list[float] = []
        self.siblings: list[Sibling] = []
        self._hidden: NDArray[np.float32] | None = None
        self._step = DraftStep(0, task.length)

    @property
    def needs_facts(self) -> bool:
        """Whether more than the tokens is looked at: their probabilities."""
        return self.is_mixed or self._guide.needs_probs

    def shorten(self, num_slots: int) -> None:
        """Draft no deeper than fits into so many slots."""
        room = num_slots if self.tree is None else 1 + num_slots // self.tree.top_k
        self.length = max(0, min(self.length, room))

    def copy(self) -> None:
        """Append what the mixer takes from retrieval, up to where it wants the drafter, or ends."""
        if self._mix is None:
            return
        while not self.is_over:
            found = self._mix.peek(self.tokens)
            matches = {name: self._match(*match) for name, match in found.items()}
            may_draft = self._resumes or not any(self.sources)
            picked = self._mix.mixer.pick(self._step, matches, may_draft)
            if picked == self._mix.mixer.drafter:
                return
            if picked is None:
                self.is_over = True
            else:
                self._append(found[picked][1], None, picked)
                self._step = DraftStep(len(self.tokens), self.length)

    def _match(self, length: int, token: int) -> int:
        """A match's length; 0 where what follows it cannot stand after this draft."""
        if not length or self.context.sampling.process is None:
            return length
        stands = self.context.num_allowed([*self.tokens, token]) > len(self.tokens)
        return length if stands else 0

    def begins(self) -> bool:
        """Whether to draw a first token."""
        return not self.is_over and self.length > 0 and (self.is_mixed or self.should_continue())

    def should_continue(self) -> bool:
        """Whether to draw another token; a mixer lets others write first."""
        if self.is_over:
            return False
        if self.is_mixed:
            self.copy()
            return not self.is_over
        return self._guide.should_continue(self._step)

    def keep(self, token: int, q: Tensor | None, facts: Floats | None) -> None:
        """The drafter drew this token, which is in the draft from now on.

        q: [V] that it was drawn from, None = it was certain. facts: of the token, as ``described``.
        A token of -1 says that q was not finite: the draft ends before it.
        """
        if token < 0:
            self.is_over = True
        if self.is_over:
            return
        self._append(token, q, "")
        depth, before = len(self.tokens), self._step.entropy
        if facts is None:
            self._step = DraftStep(depth, self.length, hidden_before=self._hidden)
        elif self.is_mixed:
            self.confidences[-1] = float(facts[0])
            self._step = DraftStep(depth, self.length, max_prob=float(facts[0]))
        else:
            largest, prob, entropy, margin = facts.tolist()
            step = DraftStep(depth, self.length, prob, largest, entropy, margin, before)
            self._step = replace(step, hidden_before=self._hidden)

    def num_siblings(self) -> int:
        """Alternatives of the token that was kept last, which are to be verified, too."""
        if self._mix is None or not self.tokens or self.context.sampling.process is not None:
            return 0
        room = self._mix.most - len(self.tokens) - len(self.siblings)
        return min(self._mix.mixer.num_siblings(self._step, room), room) if room > 0 else 0

    def widen(self, tokens: Sequence[int], qs: Sequence[Tensor | None]) -> None:
        """Alternatives of the token that was kept last; qs: as for ``keep``, one each."""
        before, confidence = len(self.tokens) - 2, self.confidences[-1]
        self.siblings += [
            Sibling(before, token, q, confidence) for token, q in zip(tokens, qs, strict=True)
        ]
        self.is_over = self.is_over or self._is_full

    def add_offpath(self, node: int, q: Dists, row: int) -> None:
        """Note what the drafter would have drawn from after a node, to score it."""
        drawn_from = q.q(row)
        self.offpath_probs.append((node, q.tokens[row] if drawn_from is None else drawn_from))

    def show(self, hidden: Floats) -> None:
        """The state at the token that was read last."""
        self._hidden = hidden.astype(np.float32)
        if self.tokens:
            self._step = replace(self._step, hidden=self._hidden)

    def _append(self, token: int, q: Tensor | None, source: str) -> None:
        self.tokens.append(token)
        self.probs.append(q)
        self.sources.append(source)
        self.confidences.append(float("nan"))
        is_last = len(self.tokens) >= self.length or token in self.context.eos
        self.is_over = is_last or self._is_full

    @property
    def _is_full(self) -> bool:
        """Whether chain and siblings are as many as may be verified."""
        num = len(self.tokens) + len(self.siblings)
        return self._mix is not None and 0 < self._mix.most <= num

    def draft(self, source: str) -> Draft:
        """The chain as a draft, and its siblings; greedy and copied tokens are point masses."""
        num, siblings = len(self.tokens), self.siblings
        parents = [*range(-1, num - 1), *(sibling.before for sibling in siblings)]
        confidences = [*self.confidences, *(sibling.confidence for sibling in siblings)]
        return Draft(
            np.asarray([*self.tokens, *(sibling.token for sibling in siblings)], dtype=np.int64),
            [*self.probs, *(sibling.q for sibling in siblings)],
            [own or source for own in self.sources] + [source] * len(siblings),
            np.asarray(parents, dtype=np.int64) if siblings else None,
            confidences if self.is_mixed else (),
            self.offpath_probs,
        )


def draw_blindly(
    reader: DraftModelRunner, chains: Sequence[Chain], heard: DraftLogits
) -> DeviceRead[None]:
    """Draw whole drafts on the device; what stands after an end token is left out."""
    longest = max(chain.length for chain in chains)
    uniforms = _uniforms(chains, longest, heard.logits)
    steps: list[tuple[list[int], Tensor, Dists]] = []
    drawn: list[list[Tensor]] = [[] for _ in chains]
    members, q = list(range(len(chains))), heard.q
    for depth in range(longest):
        tokens = q.draw(uniforms[members, depth] if len(q.probs) else uniforms)
        steps.append((members, tokens, q))
        for place, index in enumerate(members):
            if chains[index].context.sampling.penalises:
                drawn[index].append(tokens[place])
        going = [i for i, index in enumerate(members) if chains[index].length > depth + 1]
        if not going:
            break
        members = [members[i] for i in going]
        fed = tokens if len(going) == len(tokens) else tokens[going]
        rows = [chains[index].context.row for index in members]
        logits, _ = reader.read_drawn(rows, fed.clamp(min=0))
        q = warped(
            logits, [drawn_span(chains[i].context, drawn[i], tokens.device) for i in members]
        )
    (told,) = yield [torch.cat([tokens for _, tokens, _ in steps])]
    found = iter(told.astype(np.int64).tolist())
    for members, _, q in steps:
        for place, index in enumerate(members):
            chains[index].keep(next(found), q.q(place), None)


def look_on(
    reader: DraftModelRunner, chains: Sequence[Chain], heard: DraftLogits
) -> DeviceRead[None]:
    """Draw token after token, and look at each before the next is drawn.

    Rules are asked before a token is read, which is a forward; where one judges the state that
    reading shows, all tokens are read first.
    """
    waits = any(chain.waits for chain in chains)
    while chains:
        tokens = _drawn(chains, heard)
        reading, after = list(range(len(chains))), None
        if waits:
            reading = [i for i in reading if len(chains[i].tokens) + 1 < chains[i].length]
            newest = yield from _newest(chains, tokens)
            after = _hear_drawn(reader, chains, tokens, reading, newest) if reading else None
        yield from _look(chains, heard, tokens, reading, after)
        going = [index for index in reading if chains[index].should_continue()]
        if after is not None:
            for row, index in enumerate(reading):
                if index not in going and not chains[index].is_over:
                    chains[index].add_offpath(len(chains[index].tokens) - 1, after.q, row)
            heard = after.take([reading.index(index) for index in going])
        elif going and reader.resumes and any(chains[index].is_mixed for index in going):
            heard = _hear_mixed(reader, [chains[index] for index in going])
        elif going:
            heard = _hear_drawn(reader, chains, tokens, going, ())
        chains = [chains[index] for index in going]


def _look(
    chains: Sequence[Chain],
    heard: DraftLogits,
    tokens: Tensor,
    reading: Sequence[int],
    after: DraftLogits | None,
) -> DeviceRead[None]:
    """Let the chains keep what they drew, with what their rules read of it.

    after: what was heard after the tokens of these chains, if it was read already.
    """
    wanted = [tokens]
    if any(chain.needs_facts for chain in chains):
        whole = any(chain.needs_facts and not chain.is_mixed for chain in chains)
        wanted.append(heard.described(tokens, whole))
    states = [h.hidden for h in (heard, after) if h is not None and h.hidden is not None]
    told = yield [*wanted, *states]
    for index, chain in enumerate(chains):
        if heard.hidden is not None:
            chain.show(told[len(wanted)][index])
        facts = told[1][index] if chain.needs_facts else None
        chain.keep(int(told[0][index]), heard.q.q(index), facts)
    yield from _widen(chains, heard, tokens)
    if after is not None and after.hidden is not None:
        for index, hidden in zip(reading, told[-1], strict=True):
            chains[index].show(hidden)


def _widen(chains: Sequence[Chain], heard: DraftLogits, tokens: Tensor) -> DeviceRead[None]:
    """Alternatives of the tokens that chains drew last: the likeliest ones, or further draws."""
    found: list[tuple[Chain, Tensor, Sequence[Tensor | None]]] = []
    for index, chain in enumerate(chains):
        if not (num := chain.num_siblings()):
            continue
        q = heard.q.q(index)
        if q is None:
            best = heard.logits[index].topk(min(num + 1, heard.logits.shape[-1])).indices
            found.append((chain, best[best != tokens[index]][:num], [None] * num))
        else:
            drawn = without_replacement(q, tokens[index], chain.context.rng.random(num))
            found.append((chain, *drawn))
    if found:
        told = yield [tokens for _, tokens, _ in found]
        for (chain, _, qs), own in zip(found, told, strict=True):
            chain.widen(own.astype(np.int64).tolist(), qs[: len(own)])


def without_replacement(
    q: Tensor, first: Tensor, uniforms: Floats
) -> tuple[Tensor, Sequence[Tensor]]:
    """Draws from q [V] after ``first``, none of them twice: tokens [n], and each one's own q.

    Source: recursive rejection sampling (SpecInfer; Jeon et al. 2024): each conditional q is q
        without the tokens before it. Where nothing is left the token is 0, and certain.
    """
    tokens, qs = [first], []
    certain = torch.zeros_like(q)
    certain[0] = 1.0
    for uniform in torch.from_numpy(uniforms).to(q.device):
        q = q.index_fill(0, tokens[-1].reshape(1), 0.0)
        total = q.sum()
        q = torch.where(total > 0, q / total, certain)
        qs.append(q)
        tokens.append(draw(q[None], uniform[None])[0])
    return torch.stack(tokens[1:]), qs


def _newest(chains: Sequence[Chain], tokens: Tensor) -> DeviceRead[Sequence[int | Tensor]]:
    """The tokens just drawn, on the host only where a callback reads them."""
    if not any(chain.context.sampling.process for chain in chains):
        return tokens.unbind()
    (values,) = yield [tokens]
    found: list[int] = values.astype(np.int64).tolist()
    return found


def _hear_drawn(
    reader: DraftModelRunner,
    chains: Sequence[Chain],
    tokens: Tensor,
    rows: Sequence[int],
    newest: Sequence[int | Tensor],
) -> DraftLogits:
    """Read the tokens that these rows of the chains drew last; newest: not kept so far."""
    fed = tokens if len(rows) == len(tokens) else tokens[list(rows)]
    read = reader.read_drawn([chains[i].context.row for i in rows], fed.clamp(min=0))
    drafts = [(chains[i].context, [*chains[i].tokens, *newest[i : i + 1]]) for i in rows]
    spans = [drawn_span(context, drafted, tokens.device) for context, drafted in drafts]
    return DraftLogits(warped(read[0], spans), *read)


def _hear_mixed(reader: DraftModelRunner, chains: Sequence[Chain]) -> DraftLogits:
    """Read what was drawn, and what a mixer had copied after it."""
    nums = []
    for chain in chains:
        end = len(chain.context.tokens) + len(chain.tokens)
        nums.append(min(MAX_TARGETS, reader.num_unread(chain.context, end)))
    return prefill_logits(reader, chains, nums)[0]


def _drawn(chains: Sequence[Chain], heard: DraftLogits) -> Tensor:
    """[N] a token of each, by its row's own stream."""
    uniforms = _uniforms(chains, 1, heard.logits)
    return heard.q.draw(uniforms[:, 0] if len(heard.q.probs) else uniforms)


def _uniforms(chains: Sequence[Chain], num: int, like: Tensor) -> Tensor:
    """[N, num] draws of the rows' streams; nothing where all are greedy and need none."""
    if all(chain.context.sampling.temperature == 0 for chain in chains):
        return like.new_empty(0)
    drawn = np.zeros((len(chains), num))
    for row, chain in zip(drawn, chains, strict=True):
        if chain.context.sampling.temperature > 0:
            # no more than its own draft needs: its stream must not depend on its batch
            row[: chain.length] = chain.context.rng.random(min(num, chain.length))
    return torch.from_numpy(drawn).to(like.device)


def score_known(
    context: Context,
    start: int,
    known: Sequence[int] | Dists,
    matches: Sequence[int] | None = None,
) -> DeviceRead[Scores | None]:
    """Compare a drafter's q at positions ``start``... with the verified p there.

    known: the tokens that it would have proposed (-1 = none), or distributions on the device. Only
    positions that are in the text and whose p is still kept count. Returns None if there is none.
    """
    first = max(start, context.targets_start)
    end = min(start + len(known), context.targets_start + len(context.targets), len(context.tokens))
    if first >= end:
        return None
    places = slice(first - start, end - start)
    p = context.targets[first - context.targets_start : end - context.targets_start]
    lengths = None if matches is None else np.array(matches[places], dtype=np.int64)
    if context.sampling.temperature == 0 and not isinstance(known, Dists):
        return _of_points(first, known[places], p, context.tokens[first:end], lengths)
    text = np.array(context.tokens[first:end])
    if context.sampling.temperature == 0:
        assert isinstance(known, Dists)
        (tokens,) = yield [known.take(places).tokens]
        points = np.array(p)
        alphas = ((points == tokens) & (points >= 0)).astype(np.float64)
        ratios = alphas * (points == text)
    elif isinstance(known, Dists):
        alphas, ratios = yield _of_drawn(_rows(p), known.take(places).probs, text)
        alphas, ratios = np.minimum(np.nan_to_num(alphas), 1.0), np.nan_to_num(ratios)
    else:
        proposed = np.array(known[places])
        (alphas,) = yield [_at(_rows(p), proposed)]
        alphas = np.minimum(np.nan_to_num(np.where(proposed < 0, 0.0, alphas)), 1.0)
        ratios = ((proposed == text) & (alphas > 0)).astype(np.float64)
    return Scores(first, alphas, ratios, lengths)


def _of_points(
    start: int, known: Sequence[int], p: Sequence[Any], text: Sequence[int], lengths: Ints | None
) -> Scores:
    """Of proposed tokens beside a greedy target's, without arrays: a round has one or two."""
    alphas = [float(token == point >= 0) for token, point in zip(known, p, strict=True)]
    ratios = [alpha * (point == token) for alpha, point, token in zip(alphas, p, text, strict=True)]
    return Scores(start, np.array(alphas), np.array(ratios), lengths)


def joined(parts: Sequence[Scores]) -> Scores | None:
    """Scores of one drafter in text order as one, from the last gap on; None of none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    before, last = joined(parts[:-1]), parts[-1]
    if before is None or before.start + len(before.alphas) != last.start:
        return last
    return Scores(
        before.start,
        np.concatenate((before.alphas, last.alphas)),
        np.concatenate((before.ratios, last.ratios)),
    )


def _of_drawn(p: Tensor, q: Tensor, text: Ints) -> list[Tensor]:
    """[n] acceptance probabilities, and ``min(1, q/p)`` of the text's tokens."""
    of_p, of_q = _at(p, text), _at(q, text)
    ratios = torch.where(of_p > 0, (of_q / of_p).clamp(max=1), 0.0)
    return [torch.minimum(p, q).sum(-1), ratios]


def _at(dists: Tensor, tokens: Ints) -> Tensor:
    """[n] what [n, V] give to a token each; negative ones stand for none."""
    index = torch.from_numpy(tokens.clip(0)).to(dists.device)
    return dists.gather(1, index[:, None])[:, 0]


def _rows(p: Sequence[int | Tensor]) -> Tensor:
    """[n, V] of rows that were kept."""
    return torch.stack([torch.as_tensor(row) for row in p])


@dataclass(slots=True)
class _ScoredRow:
    """told: the first position that was not scored yet. drafted: what was, after ``base`` tokens.
    scores: what was not reported yet."""

    told: int = 0
    base: int = 0
    drafted: list[int] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)


GLANCE_WEIGHT = 0.25
"""Of alphas from so short a text: a drafter may live by what lies farther back."""


class NeuralSession:
    """Rows of one drafter that computes its q's, by what its ``DraftModelRunner`` reads.

    Drafts of a fixed length are drawn on the device, token after token, and looked at once, when
    they are done; a rule, a mixer or a callback has each token looked at, for all rows together.
    """

    def __init__(self, name: str, reader: DraftModelRunner) -> None:
        self._name, self._reader = name, reader
        self._rows: dict[int, _ScoredRow] = {}

    def open(self, context: Context, expected: int) -> None:
        self._reader.open(context.row, expected)
        self._rows[context.row] = _ScoredRow()

    def close(self, row: int) -> None:
        self._reader.close(row)
        del self._rows[row]

    def crop(self, context: Context, length: int) -> None:
        self._reader.crop(context.row, length)
        self._rows[context.row] = _ScoredRow(length)

    def copy(self, source: int, row: int, length: int) -> None:
        self._reader.copy(source, row, length)
        self._rows[row] = _ScoredRow(length)

    def propose(self, tasks: Sequence[DraftTask]) -> DeviceRead[list[Draft]]:
        """Catch up, then draw token after token, all rows that go on in one forward a step."""
        reader = self._reader
        chains = [Chain(task, reader.shows_hidden, reader.resumes) for task in tasks]
        for chain in chains:
            chain.shorten(self._reader.follow(chain.context))
            chain.copy()
            row = self._rows[chain.context.row]
            row.base, row.drafted = len(chain.context.tokens), chain.tokens
        able = [chain for chain in chains if not chain.is_over and chain.length > 0]
        trees: dict[int, Draft] = {}
        if able:
            ends = [len(chain.context.tokens) + len(chain.tokens) for chain in able]
            nums = [self._num_wanted(c.context, end) for c, end in zip(able, ends, strict=True)]
            heard, readings, q = prefill_logits(self._reader, able, nums)
            backlog = self._remember(readings, q)
            yield from together([self._draft(able, heard, trees), backlog])
        return [trees.get(c.context.row) or c.draft(self._name) for c in chains]

    def num_uncached_tokens(self, context: Context) -> int:
        """Tokens of the text that are not in the reader's memory."""
        if not self._reader.remembers or self._reader.follow(context) < 1:
            return 0
        return max(0, self._reader.num_unread(context, len(context.tokens) - 1))

    def catch_up(self, contexts: Sequence[Context], most: int) -> DeviceRead[None]:
        """Read the next tokens of each text; what is known of p there is compared."""
        readings = []
        for context in contexts:
            end = len(context.tokens) - 1
            end -= max(0, self._reader.num_unread(context, end) - most)
            readings.append(DraftInput(context, end, self._num_wanted(context, end)))
        logits, _ = self._reader.read(readings)
        yield from self._remember(
            readings, warped(logits, [text_span(reading) for reading in readings])
        )

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        for context in contexts:
            row, agreed = self._rows[context.row], len(context.tokens)
            if row.drafted:
                agreed = row.base
                for ours, theirs in zip(row.drafted, context.tokens[row.base :], strict=False):
                    if ours != theirs:
                        break
                    agreed += 1
            self._reader.settle(context, row.base, agreed)
            row.base, row.drafted = 0, []
        for context, scores in zip(contexts, judged, strict=False):
            if scores is not None:
                row = self._rows[context.row]
                row.scores.append(scores)
                row.told = scores.start + len(scores.alphas)

    def score(
        self, contexts: Sequence[Context], everything: bool
    ) -> DeviceRead[list[Scores | None]]:
        if everything:
            yield from self._catch_up(contexts, None)
        return [self._report(context) for context in contexts]

    def probe(self, contexts: Sequence[Context]) -> DeviceRead[list[Scores | None]]:
        """The end of each text read by itself; what was left out is read when it drafts."""
        skipped = yield from self._catch_up(contexts, self._reader.probe_tokens)
        found = [self._report(context) for context in contexts]
        return [
            replace(scores, weight=GLANCE_WEIGHT) if scores and context.row in skipped else scores
            for context, scores in zip(contexts, found, strict=True)
        ]

    def _catch_up(self, contexts: Sequence[Context], most: int | None) -> DeviceRead[set[int]]:
        """Read texts up to their last token, or the last ``most`` that are missing, for scores.

        Returns the rows of which something was left out.
        """
        readings, skipped = [], set()
        for context in contexts:
            room, end = self._reader.follow(context), len(context.tokens) - 1
            missing = self._reader.num_unread(context, end)
            if most is not None and missing > most:
                skipped.add(context.row)
            elif room < 0:
                continue
            if missing > 0:
                num = min(self._num_wanted(context, end), most or MAX_TARGETS)
                readings.append(DraftInput(context, end, num, most=most))
        if readings:
            logits, _ = self._reader.read(readings)
            q = warped(logits, [text_span(reading) for reading in readings])
            yield from self._remember(readings, q)
        return skipped

    def _num_wanted(self, context: Context, end: int) -> int:
        """Positions up to ``end`` whose q can still be compared with a p, or 1 to draw there."""
        first = max(self._rows[context.row].told, self._reader.first(context))
        first = min(end, max(first, context.targets_start)) if context.targets else end
        unread = self._reader.num_unread(context, end)
        return max(1, min(unread, MAX_TARGETS, end + 1 - first))

    def _remember(self, readings: Sequence[DraftInput], q: Dists) -> DeviceRead[None]:
        """Score the q's of positions that texts already have."""
        asks, rows, place = [], [], 0
        for reading in readings:
            context, first = reading.context, reading.end + 1 - reading.num
            num = min(reading.num, len(context.tokens) - first)
            row = self._rows[context.row]
            skip = max(0, row.told - first)
            if num > skip:
                known = q.take(slice(place + skip, place + num))
                asks.append(score_known(context, first + skip, known))
                rows.append(row)
                row.told = first + num
            place += reading.num
        for row, scores in zip(rows, (yield from together(asks)), strict=True):
            if scores is not None:
                row.scores.append(scores)

    def _report(self, context: Context) -> Scores | None:
        """What was not told before, and is not told again."""
        row = self._rows[context.row]
        found, row.scores = joined(row.scores), []
        return found

    def _draft(
        self, chains: Sequence[Chain], heard: DraftLogits, trees: dict[int, Draft]
    ) -> DeviceRead[None]:
        """Grow trees, and draw chains, with as few looks as they allow."""
        lines = [i for i, chain in enumerate(chains) if chain.tree is None]
        growing = [i for i, chain in enumerate(chains) if chain.tree is not None]
        asks: list[DeviceRead[None]] = []
        if growing:
            asks.append(self._grow([chains[i] for i in growing], heard.take(growing), trees))
        begun = [i for i in lines if chains[i].begins()]
        if begun:
            own = [chains[i] for i in begun]
            draw = look_on if any(chain.looks for chain in own) else draw_blindly
            asks.append(draw(self._reader, own, heard.take(begun)))
        yield from together(asks)

    def _grow(
        self, chains: Sequence[Chain], heard: DraftLogits, trees: dict[int, Draft]
    ) -> DeviceRead[None]:
        """A tree for each row, made on the device and looked at once."""
        rows = [chain.context.row for chain in chains]
        grown = self._grown(chains, heard)
        seen = yield [tensor for tree in grown for tensor in tree]
        for index, (row, chain) in enumerate(zip(rows, chains, strict=True)):
            context = chain.context
            self._reader.settle(context, len(context.tokens), len(context.tokens))
            tokens, parents = (found.astype(np.int64) for found in seen[2 * index : 2 * index + 2])
            tokens, parents = pruned(tokens, parents, context.eos, context.num_allowed)
            trees[row] = Draft(tokens, None, [self._name] * len(tokens), parents)

    def _grown(self, chains: Sequence[Chain], heard: DraftLogits) -> list[tuple[Tensor, Tensor]]:
        """Tokens and parents of all rows' trees, which grow level by level together."""
        growing = [
            grow(chain.tree, chain.length, self._reader.base(chain.context), heard.logits[index])
            for index, chain in enumerate(chains)
            if chain.tree is not None
        ]
        found: list[tuple[Tensor, Tensor] | None] = [None] * len(chains)
        sent: dict[int, Tensor | None] = dict.fromkeys(range(len(chains)))
        while sent:
            feeds: dict[int, TreeLevel] = {}
            for index, logits in sent.items():
                try:
                    feeds[index] = (
                        next(growing[index]) if logits is None else growing[index].send(logits)
                    )
                except StopIteration as done:
                    found[index] = done.value
            rows = [chains[index].context.row for index in feeds]
            levels = self._reader.read_level(rows, list(feeds.values())) if feeds else []
            sent = dict(zip(feeds, levels, strict=True))
        return [tree for tree in found if tree is not None]
