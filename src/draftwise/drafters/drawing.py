"""Chains drawn token after token: on the device alone, or with a look at each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwise.drafters.chain import Chain
from draftwise.drafters.protocol import MAX_TARGETS
from draftwise.drafters.reader import Heard, Reader, drawn_span, listen
from draftwise.nn.sampling import Dists, warped
from draftwise.nn.transfer import Ask


def draw_blindly(reader: Reader, chains: Sequence[Chain], heard: Heard) -> Ask[None]:
    """Draw whole drafts on the device; what stands behind an end token is left out."""
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


def look_on(reader: Reader, chains: Sequence[Chain], heard: Heard) -> Ask[None]:
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
        going = [index for index in reading if chains[index].goes_on()]
        if after is not None:
            for row, index in enumerate(reading):
                if index not in going and not chains[index].is_over:
                    chains[index].set_aside(len(chains[index].tokens) - 1, after.q, row)
            heard = after.take([reading.index(index) for index in going])
        elif going and any(chains[index].is_mixed for index in going):
            heard = _hear_mixed(reader, [chains[index] for index in going])
        elif going:
            heard = _hear_drawn(reader, chains, tokens, going, ())
        chains = [chains[index] for index in going]


def _look(
    chains: Sequence[Chain],
    heard: Heard,
    tokens: Tensor,
    reading: Sequence[int],
    after: Heard | None,
) -> Ask[None]:
    """Let the chains keep what they drew, with what their rules read of it.

    after: what was heard behind the tokens of these chains, if it was read already.
    """
    has_facts = any(chain.needs_facts for chain in chains)
    wanted = [tokens, *([heard.described(tokens)] if has_facts else [])]
    states = [h.hidden for h in (heard, after) if h is not None and h.hidden is not None]
    told = yield [*wanted, *states]
    for index, chain in enumerate(chains):
        if heard.hidden is not None:
            chain.show(told[len(wanted)][index])
        facts = told[1][index] if chain.needs_facts else None
        chain.keep(int(told[0][index]), heard.q.q(index), facts)
    if after is not None and after.hidden is not None:
        for index, hidden in zip(reading, told[-1], strict=True):
            chains[index].show(hidden)


def _newest(chains: Sequence[Chain], tokens: Tensor) -> Ask[Sequence[int | Tensor]]:
    """The tokens just drawn, on the host only where a callback reads them."""
    if not any(chain.context.sampling.process for chain in chains):
        return tokens.unbind()
    (values,) = yield [tokens]
    found: list[int] = values.astype(np.int64).tolist()
    return found


def _hear_drawn(
    reader: Reader,
    chains: Sequence[Chain],
    tokens: Tensor,
    rows: Sequence[int],
    newest: Sequence[int | Tensor],
) -> Heard:
    """Read the tokens that these rows of the chains drew last; newest: not kept so far."""
    fed = tokens if len(rows) == len(tokens) else tokens[list(rows)]
    read = reader.read_drawn([chains[i].context.row for i in rows], fed.clamp(min=0))
    drafts = [(chains[i].context, [*chains[i].tokens, *newest[i : i + 1]]) for i in rows]
    spans = [drawn_span(context, drafted, tokens.device) for context, drafted in drafts]
    return Heard(warped(read[0], spans), *read)


def _hear_mixed(reader: Reader, chains: Sequence[Chain]) -> Heard:
    """Read what was drawn, and what a mixer had copied behind it."""
    nums = []
    for chain in chains:
        end = len(chain.context.tokens) + len(chain.tokens)
        nums.append(min(MAX_TARGETS, reader.num_unread(chain.context, end)))
    return listen(reader, chains, nums)[0]


def _drawn(chains: Sequence[Chain], heard: Heard) -> Tensor:
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
