"""Medusa heads as drafter: a whole draft from the target's last hidden state, in one forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwise.drafters.chain import Chain, Known, draw_chains
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, score_known
from draftwise.nn.medusa import MedusaHeads, load_medusa_heads
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import distributions
from draftwise.types import Draft, Scores


def load_medusa(
    name: str, target: CausalModel, path: str, depth: int | None = None
) -> MedusaDrafter:
    """Medusa heads from a folder or hub id, in the authors' layout.

    depth: the longest draft, at most one token a head. Raises DraftwiseError for heads that cannot
    be read or were made for another target, ValueError for a depth below 1.
    """
    if depth is not None and depth < 1:
        raise ValueError(f"depth={depth}: it must be 1 or more")
    return MedusaDrafter(name, load_medusa_heads(path, target), target, depth)


class MedusaDrafter:
    """Medusa heads: each guesses one of the coming tokens, all from the target's last state.

    Source: Medusa (Cai et al. 2024), section 2.1. Differs: chains, not trees of the heads' best
    guesses; sampled, where the authors are greedy; verified exactly, where they accept what is
    typical; q is what was sampled from, after temperature, top-k and top-p. The last token of a
    text is the target's own choice, which no state knows yet: head 0 follows *it*, so heads are
    conditioned on one token less than other drafters, and none on what was drafted before. Each
    token is judged with its own q all the same, which is all that losslessness asks for.
    Index: none. Memory: D floats a token, which all heads share. Time: one small layer and one
    ``lm_head`` a token, in one forward for all; nothing to catch up on, but head 0 looks once at
    what it missed, to be scored there. probs: as ``LMDrafter``.

    max_length: one token a head, or less; plans draft no longer.
    """

    can_branch = can_mix = retrieves = False

    def __init__(
        self, name: str, heads: MedusaHeads, target: CausalModel, max_length: int | None = None
    ) -> None:
        self.name, self.heads = name, heads
        self.max_length = min(len(heads), max_length or len(heads))
        self.relative_cost = heads.num_parameters / len(heads) / max(1, target.num_parameters)
        self._tap = target.num_layers
        target.tap([self._tap])

    def start(self, num_rows: int, capacity: int) -> MedusaSession:
        """Nothing scored yet."""
        return MedusaSession(self.name, self.heads, self._tap, self.max_length, num_rows)


class MedusaSession:
    """The q's that the heads said along the texts of a batch; there is no cache.

    The state after token s gives, by head i, q of position s + 2 + i.
    """

    def __init__(
        self, name: str, heads: MedusaHeads, tap: int, max_length: int, num_rows: int
    ) -> None:
        self._name, self._heads, self._tap, self._max_length = name, heads, tap, max_length
        self._known = [Known() for _ in range(num_rows)]

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """All heads look once; then the chains draw, one head a token."""
        chains = [Chain(task) for task in tasks]
        for chain in chains:
            chain.shorten(self._max_length)
        # a text of one token has no hidden state yet: the target reads it in this very round
        able = [c for c in chains if len(c.context.tokens) > 1 and c.length > 0]
        for chain in able:
            self._look(chain.context)
        if able:
            states = [self._states(c.context, len(c.context.tokens) - 2, 1) for c in able]
            logits = self._heads.logits(torch.cat(states), max(c.length for c in able))
            rows = {chain.context.row: logits[:, index] for index, chain in enumerate(able)}
            _show(able, rows)
            draw_chains(able, self._known, lambda active: _show(active, rows))
        for chain in chains:
            known = self._known[chain.context.row]
            known.base, known.drafted = len(chain.context.tokens), chain.tokens
        return [chain.draft(self._name) for chain in chains]

    def commit(self, contexts: Sequence[Context]) -> None:
        """Forget the q's behind the first rejection."""
        for context in contexts:
            self._known[context.row].agree(context.tokens)

    def score(self, contexts: Sequence[Context], everything: bool) -> list[Scores | None]:
        """Drafted positions; with ``everything`` also what head 0 says of the others."""
        if everything:
            for context in contexts:
                self._look(context)
        return [self._report(context) for context in contexts]

    def glance(self, contexts: Sequence[Context]) -> list[Scores | None]:
        """As if each draft had had one token, which is what head 0 tells of."""
        return self.score(contexts, everything=True)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Drop the other rows' memory."""
        self._known = [self._known[row] for row in rows]

    def _look(self, context: Context) -> None:
        """q of the positions whose p is kept and that were not told yet."""
        text, known = context.tokens, self._known[context.row]
        first = max(2, known.end, context.targets_start, len(text) - MAX_TARGETS)
        if first < len(text):
            block = self._heads.logits(self._states(context, first - 2, len(text) - first), 1)[0]
            known.add(first, distributions(block, context.sampling, text[:first], text[first:]))

    def _states(self, context: Context, start: int, num: int) -> Tensor:
        """[num, D] the target's last states after the tokens ``start``, ``start + 1``, ..."""
        if context.features is None:
            raise RuntimeError("the target's hidden states are not there: tap it before prefill")
        return context.features.get([self._tap], start, start + num)

    def _report(self, context: Context) -> Scores | None:
        known = self._known[context.row]
        self._known[context.row] = Known(start=known.end)
        return score_known(context, known.start, known.dists)


def _show(chains: Sequence[Chain], logits: dict[int, Tensor]) -> None:
    """q of the token that each chain draws next, by row from the [heads, V] logits."""
    for chain in chains:
        row, text = logits[chain.context.row][len(chain.tokens)], chain.context.tokens
        said = [*text, *chain.tokens] if chain.reads_text else []
        chain.see(distributions(row[None], chain.context.sampling, said, [])[0], row, None)
