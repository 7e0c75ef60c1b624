"""What a model drafter runs, and how it draws: trees by level, chains of all rows together.

Chains are drawn whole, on the device, or token by token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, Mix
from draftwise.nn.attention import Branches
from draftwise.nn.cache import RaggedCache
from draftwise.nn.sampling import DeviceRead, Dists, SampledSpan, draw, warped
from draftwise.types import Draft, DraftStep, Floats, TreeShape

PROBE_TOKENS = 32  # number of last tokens that a probe processes


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """The next level of a tree to feed. tokens: [n]. tree: their positions and mask. above: [n]
    index of each token's parent in the previous level (0 in the first level).
    """

    tokens: Tensor
    tree: Branches
    above: Tensor


Growing = Generator[TreeLevel, Tensor, tuple[Tensor, Tensor]]
"""Yields a level, is sent its logits [n, V], returns tokens [N] and parents [N]."""


def grow(shape: TreeShape, depth: int, base: int, logits: Tensor) -> Growing:
    """Grow a tree after ``base`` cached tokens; logits: [V] after them.

    Source: EAGLE-2 (Li et al. 2024), section 4: the ``top_k`` tokens of a level with the likeliest
    paths get ``top_k`` children each; the likeliest ``total_tokens`` of all are the draft. Differs:
    also for ordinary LMs, at temperature 1 and before any warping. No token is drawn, so the tree
    is a function of the text. Cost: one forward and one top-k per level, on the device.
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
        slots = best // num  # index in the previous level
        nodes = best + sum(map(len, tokens[:-1]))
        above = scores[-1][best]
        own = torch.eye(len(best), dtype=torch.bool, device=seen.device)
        seen = torch.cat((seen[slots], own), dim=1)
        positions = np.repeat(base + np.arange(step + 1), num)
        level = yield TreeLevel(tokens[-1][best], Branches(base, positions, seen), slots)
    every = torch.cat(scores)
    chosen = _best(every, shape.total_tokens)
    place = torch.full((len(every) + 1,), -1, device=logits.device)  # [-1]: the root
    place[chosen] = torch.arange(len(chosen), device=logits.device)
    return torch.cat(tokens)[chosen], place[torch.cat(parents)[chosen]]


def _best(scores: Tensor, num: int) -> Tensor:
    """Indices of the ``num`` largest scores, in increasing order; ties go to the first."""
    return scores.sort(descending=True, stable=True).indices[:num].sort().values


@dataclass(frozen=True, slots=True)
class DraftInput:
    """Input of one row: text and draft, up to ``end`` tokens of both. num: last positions whose
    logits are returned, at least 1. most: feed at most this many uncached tokens, the last ones.
    """

    context: Context
    end: int
    num: int = 1
    drafted: Sequence[int] = ()
    most: int | None = None

    @property
    def span(self) -> SampledSpan:
        """The sampling span of its logits."""
        first = self.end + 1 - self.num
        start = min(first, len(self.context.tokens))
        return self.context.span(self.num, start, self.drafted, skip=first - start)


class DraftModelRunner(ABC):
    """Runs one kind of network on its KV cache and returns logits; samples nothing.

    Position t of a text is that of its t-th token, from 0; q of position t is conditioned on the
    tokens before it. resumes: whether it can draft after tokens that it did not draw. lag: tokens
    at the start of a text that take no slot. first: the first position whose q equals that of a
    draft.
    """

    resumes = False
    lag = first = 0

    def __init__(self, cache: RaggedCache) -> None:
        self._cache = cache

    @property
    def probe_tokens(self) -> int:
        """Maximum number of tokens that a probe processes."""
        return min(PROBE_TOKENS, self._cache.capacity)

    @property
    def shows_hidden(self) -> bool:
        """Whether it returns hidden states with the logits."""
        return False

    def open(self, row: int) -> None:
        self._cache.open(row)

    def close(self, row: int) -> None:
        self._cache.close(row)

    def crop(self, row: int, length: int) -> None:
        """Reuse the row for another text, keeping its first ``length`` tokens."""
        self._cache.crop(row, max(0, length - self.lag))

    def copy(self, source: int, row: int, length: int) -> None:
        """Fill an open row with the first ``length`` tokens of another one."""
        length = max(0, min(length - self.lag, self._cache.lengths[source]))
        self._cache.copy(source, row, self._cache.reachable(source, length))

    @abstractmethod
    def follow(self, context: Context) -> int:
        """Adapt the row to a longer text; return the slots left for a draft, -1 = cannot draft."""

    def base(self, context: Context) -> int:
        """Number of cached tokens of the row."""
        return self._cache.lengths[context.row]

    def num_unread(self, context: Context, end: int) -> int:
        """Number of positions up to ``end`` whose q is not computed yet."""
        return end - self.lag - self._cache.lengths[context.row]

    @abstractmethod
    def read(self, readings: Sequence[DraftInput]) -> tuple[Tensor, Tensor | None]:
        """Feed uncached tokens: [sum of num, V] logits, [R, D] last states if ``shows_hidden``."""

    @abstractmethod
    def read_drawn(self, rows: Sequence[int], tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed each row one token [R]: [R, V] logits, [R, D] states."""

    @abstractmethod
    def read_level(self, rows: Sequence[int], feeds: Sequence[TreeLevel]) -> list[Tensor]:
        """Feed each row a level of its tree: [n, V] logits each."""

    @abstractmethod
    def rollback(self, context: Context, base: int, agreed: int) -> None:
        """Roll back to ``agreed`` tokens; base: where the draft began (0 = none)."""


@dataclass(slots=True)
class _Node:
    """A drafted token. parent: -1 = the text. q: None = a point mass. confidence: NaN if it was
    copied. source: the drafter that copied it; "" = the chain's own.
    """

    parent: int
    token: int
    q: Tensor | None
    source: str = ""
    confidence: float = float("nan")


class Chain:
    """The draft of one row while it grows.

    nodes: its tokens. alternatives: their siblings, and branches of copied tokens. is_stepwise: the
    host receives each token before the next is drawn. waits: the stop rule needs a token's hidden
    state to judge it. needs_facts: the mixer or stop rule needs probabilities.
    """

    def __init__(self, task: DraftTask, shows_hidden: bool, resumes: bool = True) -> None:
        self.context, self.length, self.tree = task.context, task.length, task.tree
        self._stop_rule, self._mix, self._resumes = task.stop_rule, task.mix, resumes
        self.is_mixed = task.mix is not None
        self.is_over = False
        has_callback = task.context.sampling.process is not None
        self.is_stepwise = self.is_mixed or has_callback or not task.stop_rule.never_stops
        self._may_branch = task.mix is not None and task.mix.most > 0 and not has_callback
        self.waits = not self.is_mixed and shows_hidden and task.stop_rule.waits_for_hidden
        self.needs_facts = self.is_mixed or task.stop_rule.needs_probs
        self.tokens: list[int] = []
        self.nodes: list[_Node] = []
        self.alternatives: list[_Node] = []
        self.offpath_probs: list[tuple[int, Tensor]] = []
        self._found: dict[int, Mapping[str, tuple[int, int]]] = {}  # matches by depth
        self._hidden: NDArray[np.float32] | None = None
        self._step = DraftStep(0, task.length)

    @property
    def end(self) -> int:
        """Number of tokens of text and chain."""
        return len(self.context.tokens) + len(self.tokens)

    def shorten(self, num_slots: int) -> None:
        """Limit the depth to what fits into ``num_slots`` slots."""
        room = num_slots if self.tree is None else 1 + num_slots // self.tree.top_k
        self.length = max(0, min(self.length, room))

    def copy(self) -> None:
        """Append retrieved tokens until the mixer chooses the drafter, or ends the draft."""
        if self._mix is None:
            return
        while not self.is_over:
            found = self._found[len(self.tokens)] = self._mix.peek(self.tokens)
            matches = {name: self._match(*match) for name, match in found.items()}
            may_draft = self._resumes or not any(node.source for node in self.nodes)
            picked = self._mix.mixer.pick(self._step, matches, may_draft, self._may_branch)
            if picked == self._mix.mixer.drafter:
                return
            if picked is None:
                self.is_over = True
            else:
                self._append(found[picked][1], None, picked)
                self._step = DraftStep(len(self.tokens), self.length)

    def _match(self, length: int, token: int) -> int:
        """The match's length; 0 if its next token has probability 0 here."""
        allowed = self.context.num_allowed([*self.tokens, token]) if length else 0
        return length if allowed > len(self.tokens) else 0

    def should_continue(self) -> bool:
        """Whether to draw another token, after appending those that the mixer copies."""
        self.copy()
        return not self.is_over and (self.is_mixed or self._stop_rule.should_continue(self._step))

    def keep(self, token: int, q: Tensor | None, facts: Floats | None) -> None:
        """Append a drawn token; -1 = q was not finite, which ends the draft. q: [V], None = a point
        mass. facts: its row of ``DraftLogits.described``.
        """
        self.is_over = self.is_over or token < 0
        if self.is_over:
            return
        self._append(token, q, "")
        depth, before = len(self.tokens), self._step.entropy
        if facts is None:
            self._step = DraftStep(depth, self.length, hidden_before=self._hidden)
        elif self.is_mixed:
            self.nodes[-1].confidence = float(facts[0])
            self._step = DraftStep(depth, self.length, max_prob=float(facts[0]))
        else:
            largest, prob, entropy, margin = facts.tolist()
            about = (prob, largest, entropy, margin, before)
            self._step = DraftStep(depth, self.length, *about, hidden_before=self._hidden)

    def num_siblings(self) -> int:
        """Number of siblings of the last token to verify."""
        if self._mix is None or not self.tokens or not self._may_branch:
            return 0
        room = self._mix.most - self.num_tokens
        return min(self._mix.mixer.num_siblings(self._step, room), room) if room > 0 else 0

    def widen(self, tokens: Sequence[int], qs: Sequence[Tensor | None]) -> None:
        """Add siblings of the last token; qs: as for ``keep``."""
        last = self.nodes[-1]
        self.alternatives += [
            _Node(last.parent, token, q, confidence=last.confidence)
            for token, q in zip(tokens, qs, strict=True)
        ]
        self.is_over = self.is_over or self._is_full

    def branch(self) -> None:
        """Let the mixer add branches of copied tokens where they differ from the chain's.

        Verification tries them after the chain's token and its siblings, whose values may decide: a
        residual is the same whichever token was drawn (docs/verification.md).
        """
        mix = self._mix
        if mix is None or not self._may_branch:
            return
        for depth, token in enumerate(self.tokens):
            room = min(mix.most - self.num_tokens, self.length - depth)
            own = {a.token for a in self.alternatives if a.parent == depth - 1} | {token}
            found = self._found.get(depth, {}).items()
            others = {name: match for name, (match, first) in found if match and first not in own}
            if room > 0 and others:
                width, confidence = self.num_tokens, self.nodes[depth].confidence
                name, num = mix.mixer.branch(depth, confidence, others, width, room)
                self._copy_branch(mix, depth, name, num)

    def _copy_branch(self, mix: Mix, depth: int, name: str, num: int) -> None:
        path, parent, found = self.tokens[:depth], depth - 1, self._found[depth]
        for _ in range(num):
            match, token = found.get(name, (0, -1))
            if not match:
                break
            self.alternatives.append(_Node(parent, token, None, name))
            if token in self.context.eos:
                break
            parent, path = self.num_tokens - 1, [*path, token]
            found = mix.peek(path)

    def add_offpath(self, node: int, q: Dists, row: int) -> None:
        """Store the drafter's q after a node, for scoring."""
        drawn_from = q.q(row)
        self.offpath_probs.append((node, q.tokens[row] if drawn_from is None else drawn_from))

    def show(self, hidden: Floats) -> None:
        self._hidden = hidden.astype(np.float32)
        if self.tokens:
            self._step = replace(self._step, hidden=self._hidden)

    def _append(self, token: int, q: Tensor | None, source: str) -> None:
        self.nodes.append(_Node(len(self.tokens) - 1, token, q, source))
        self.tokens.append(token)
        is_last = len(self.tokens) >= self.length or token in self.context.eos
        self.is_over = is_last or self._is_full

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + len(self.alternatives)

    @property
    def _is_full(self) -> bool:
        return self._mix is not None and 0 < self._mix.most <= self.num_tokens

    def draft(self, source: str) -> Draft:
        self.branch()
        nodes = [*self.nodes, *self.alternatives]
        is_tree = bool(self.alternatives)
        return Draft(
            np.array([node.token for node in nodes], dtype=np.int64),
            [node.q for node in nodes],
            [node.source or source for node in nodes],
            np.array([node.parent for node in nodes], dtype=np.int64) if is_tree else None,
            [node.confidence for node in nodes] if self.is_mixed else (),
            self.offpath_probs,
        )


@dataclass(frozen=True, slots=True)
class DraftLogits:
    """q of the next token of n chains, its logits [n, V], and hidden states [n, D]."""

    q: Dists
    logits: Tensor
    hidden: Tensor | None

    def described(self, tokens: Tensor, whole: bool) -> Tensor:
        """[N, 4] largest probability, that of the drawn token, entropy, margin of the two largest;
        for greedy drafts at temperature 1. Unless ``whole``: [N, 1], the largest.
        """
        probs = self.q.probs
        if len(probs) < len(self.q):
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
    """Feed each text and its draft. Returns q of the last position, the inputs, and q of the last
    ``nums`` positions; chains store q of their copied tokens, for scoring (``offpath_probs``).
    """
    readings = [
        DraftInput(c.context, c.end, num, c.tokens) for c, num in zip(chains, nums, strict=True)
    ]
    logits, hidden = reader.read(readings)
    q = warped(logits, [reading.span for reading in readings])
    last, end = [], 0
    for chain, num in zip(chains, nums, strict=True):
        end += num
        last.append(end - 1)
        for back in range(min(len(chain.tokens), num - 1), 0, -1):
            chain.add_offpath(len(chain.tokens) - back - 1, q, end - 1 - back)
    if len(last) == len(q):
        return DraftLogits(q, logits, hidden), readings, q
    rows: slice | list[int] = slice(last[0], end) if len(last) == 1 else last
    return DraftLogits(q.take(rows), logits[rows], hidden), readings, q


def draw_on_device(
    reader: DraftModelRunner, chains: Sequence[Chain], current: DraftLogits
) -> DeviceRead[None]:
    """Draw whole drafts on the device; tokens after an end token are dropped."""
    longest = max(chain.length for chain in chains)
    uniforms = _uniforms(chains, longest, current.logits)
    steps: list[tuple[list[int], Tensor, Dists]] = []
    drawn: list[list[Tensor]] = [[] for _ in chains]
    members, q = list(range(len(chains))), current.q
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
        rows = [chains[i].context.row for i in members]
        logits, _ = reader.read_drawn(rows, fed.clamp(min=0))
        spans = [drawn_span(chains[i].context, drawn[i], tokens.device) for i in members]
        q = warped(logits, spans)
    (values,) = yield [torch.cat([tokens for _, tokens, _ in steps])]
    found = iter(values.astype(np.int64).tolist())
    for members, _, q in steps:
        for place, index in enumerate(members):
            chains[index].keep(next(found), q.q(place), None)


def draw_stepwise(
    reader: DraftModelRunner, chains: Sequence[Chain], current: DraftLogits
) -> DeviceRead[None]:
    """Draw token by token, each received by the host before the next is drawn. Stop rules decide
    before a token costs a forward, or after it if one needs the token's hidden state.
    """
    waits = any(chain.waits for chain in chains)
    while chains:
        uniforms = _uniforms(chains, 1, current.logits)
        tokens = current.q.draw(uniforms[:, 0] if len(current.q.probs) else uniforms)
        reading, after = list(range(len(chains))), None
        if waits:
            reading = [i for i in reading if len(chains[i].tokens) + 1 < chains[i].length]
            newest = yield from _newest(chains, tokens)
            after = _read_drawn(reader, chains, tokens, reading, newest) if reading else None
        yield from _append_drawn(chains, current, tokens, reading, after)
        going = [index for index in reading if chains[index].should_continue()]
        if after is not None:
            for row, index in enumerate(reading):
                if index not in going and not chains[index].is_over:
                    chains[index].add_offpath(len(chains[index].tokens) - 1, after.q, row)
            current = after.take([reading.index(index) for index in going])
        elif going and reader.resumes and any(chains[index].is_mixed for index in going):
            mixed = [chains[index] for index in going]  # with tokens copied after the drawn ones
            nums = [min(MAX_TARGETS, reader.num_unread(c.context, c.end)) for c in mixed]
            current, _, _ = prefill_logits(reader, mixed, nums)
        elif going:
            current = _read_drawn(reader, chains, tokens, going, ())
        chains = [chains[index] for index in going]


def _append_drawn(
    chains: Sequence[Chain],
    current: DraftLogits,
    tokens: Tensor,
    reading: Sequence[int],
    after: DraftLogits | None,
) -> DeviceRead[None]:
    """Append the drawn tokens to their chains. after: logits after them, if already computed."""
    wanted = [tokens]
    if any(chain.needs_facts for chain in chains):
        whole = any(chain.needs_facts and not chain.is_mixed for chain in chains)
        wanted.append(current.described(tokens, whole))
    states = [h.hidden for h in (current, after) if h is not None and h.hidden is not None]
    values = yield [*wanted, *states]
    for index, chain in enumerate(chains):
        if current.hidden is not None:
            chain.show(values[len(wanted)][index])
        facts = values[1][index] if chain.needs_facts else None
        chain.keep(int(values[0][index]), current.q.q(index), facts)
    yield from _widen(chains, current, tokens)
    if after is not None and after.hidden is not None:
        for index, hidden in zip(reading, values[-1], strict=True):
            chains[index].show(hidden)


def _widen(chains: Sequence[Chain], current: DraftLogits, tokens: Tensor) -> DeviceRead[None]:
    """Add siblings of the last tokens: the likeliest ones (greedy), or further draws."""
    found: list[tuple[Chain, Tensor, Sequence[Tensor | None]]] = []
    for index, chain in enumerate(chains):
        if not (num := chain.num_siblings()):
            continue
        q = current.q.q(index)
        if q is None:
            best = current.logits[index].topk(min(num + 1, current.logits.shape[-1])).indices
            found.append((chain, best[best != tokens[index]][:num], [None] * num))
        else:
            uniforms = chain.context.rng.random(num)
            found.append((chain, *without_replacement(q, tokens[index], uniforms)))
    if found:
        values = yield [tokens for _, tokens, _ in found]
        for (chain, _, qs), own in zip(found, values, strict=True):
            chain.widen(own.astype(np.int64).tolist(), qs[: len(own)])


def without_replacement(q: Tensor, first: Tensor, uniforms: Floats) -> tuple[Tensor, list[Tensor]]:
    """Draw further tokens from q [V] after ``first``, without replacement: tokens [n], q of each.

    Source: recursive rejection sampling (SpecInfer; Jeon et al. 2024): each q excludes the tokens
    drawn before. If no mass is left, the token is 0 with probability 1.
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
    """The drawn tokens, on the host only if a callback reads them."""
    if not any(chain.context.sampling.process for chain in chains):
        return tokens.unbind()
    (values,) = yield [tokens]
    found: list[int] = values.astype(np.int64).tolist()
    return found


def _read_drawn(
    reader: DraftModelRunner,
    chains: Sequence[Chain],
    tokens: Tensor,
    rows: Sequence[int],
    newest: Sequence[int | Tensor],
) -> DraftLogits:
    """Feed the tokens that these chains drew last; newest: those not appended yet."""
    fed = tokens if len(rows) == len(tokens) else tokens[list(rows)]
    read = reader.read_drawn([chains[i].context.row for i in rows], fed.clamp(min=0))
    drafts = [(chains[i].context, [*chains[i].tokens, *newest[i : i + 1]]) for i in rows]
    spans = [drawn_span(context, drafted, tokens.device) for context, drafted in drafts]
    return DraftLogits(warped(read[0], spans), *read)


def _uniforms(chains: Sequence[Chain], num: int, like: Tensor) -> Tensor:
    """[N, num] uniforms of the rows' draft streams; empty if all rows are greedy."""
    if all(chain.context.sampling.temperature == 0 for chain in chains):
        return like.new_empty(0)
    drawn = np.zeros((len(chains), num))
    for row, chain in zip(drawn, chains, strict=True):
        if chain.context.sampling.temperature > 0:
            # only what the row's draft needs: its stream must not depend on the batch
            row[: chain.length] = chain.context.rng.random(min(num, chain.length))
    return torch.from_numpy(drawn).to(like.device)


def drawn_span(
    context: Context, drafted: Sequence[int | Tensor], device: torch.device
) -> SampledSpan:
    """The sampling span after a draft whose tokens may be on the device."""
    if not context.sampling.reads_text:
        return context.span(1, len(context.tokens))
    tokens: Sequence[int] | Tensor = [token for token in drafted if isinstance(token, int)]
    if context.sampling.process is None:
        tokens = torch.stack([torch.as_tensor(token, device=device) for token in drafted])
    return context.span(1, len(context.tokens), tokens, skip=len(tokens))
