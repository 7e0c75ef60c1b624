"""Acceptance: how likely each further token of a draft is to be accepted.

Two drafters are modelled, and both by hazards, the probability that a token is rejected given that
all tokens before it were accepted:

- the model drafter, by position in the draft and by what became of the request's last draft;
- retrieval, by the length of the matched suffix, which grows by one with every accepted token, and
  by whether the places that match agree; once for drafts that begin at the text's end, and once
  for those that continue a draft of the model.

The tables are shared by all requests. A request has one factor for each drafter that multiplies
the hazards: its discounted rejections over those that the tables expected, both with a prior
weight, which is the posterior mean of a gamma-distributed rate.

Only free evidence is used. A position counts as observed if it was verified or is the position of
the bonus token, and if every position before it was accepted; whether later ones would have been
accepted is censored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.compiled import compiled, warms_up

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_OUTCOMES = 4
"""What became of a request's last draft: none yet, all rejected, cut short, all accepted."""
NUM_MATCHES = 7
"""Buckets of a matched suffix: none, 1, 2, 3-4, 5-8, 9-16 and 17 or more tokens."""
NUM_KINDS = 5
"""Retrieval whose places disagree, whose places agree, and after 1, 2, and 3 or more tokens of the
model."""

DISCOUNT = 0.9995
"""Of a shared table, for each observation."""
REQUEST_DISCOUNT = 0.99, 0.97
"""Of a request's factor, for each observation: the model drafter's, retrieval's."""
REQUEST_WEIGHT = 16.0, 8.0
"""Rejections that a request's factor of one is worth: the model drafter's, retrieval's."""
MODEL_PRIOR = 0.7
"""Acceptance of a model drafter that was never seen."""
MATCH_PRIOR = (0.05, 0.25, 0.45, 0.6, 0.75, 0.85, 0.95)
"""Acceptance by bucket of retrieval that was never seen."""
PRIOR_WEIGHT = 6.0
"""Observations that a prior of the tables is worth."""
LOWEST, HIGHEST = 0.005, 0.98
"""Bounds of a hazard."""

OBSERVED, EXPECTED = 0, 1


@compiled
def bucket_of(match: int) -> int:
    """The bucket of a matched suffix of so many tokens."""
    if match <= 2:
        return max(match, 0)
    if match <= 4:
        return 3
    if match <= 8:
        return 4
    return 5 if match <= 16 else 6


@compiled
def _bounded(hazard: float) -> float:
    return min(max(hazard, LOWEST), HIGHEST)


@compiled
def model_survival(
    slots: Ints, model: Floats, last: Ints, factors: Floats, num_offered: Ints, out: Floats
) -> None:
    """out[i, j]: probability that the model's first j + 1 tokens are accepted, for slots[i].

    model: [outcomes, length, 2] rejections and observations. last: [slots]. factors: [slots, 2].
    """
    for i in range(len(slots)):
        slot = slots[i]
        weight = REQUEST_WEIGHT[0]
        factor = (factors[slot, OBSERVED] + weight) / (factors[slot, EXPECTED] + weight)
        alive = 1.0
        for j in range(out.shape[1]):
            table = model[last[slot], j]
            alive *= 1.0 - _bounded(table[0] / table[1] * factor)
            out[i, j] = alive if j < num_offered[i] else 0.0


@compiled
def match_survival(
    slots: Ints, matches: Floats, kinds: Ints, match: Ints, num: Ints, factors: Floats, out: Floats
) -> None:
    """out[i, j]: probability that the first j + 1 of num[i] retrieved tokens are accepted.

    matches: [kinds, buckets, 2] rejections and observations. kinds, match, num: [rows].
    """
    for i in range(len(slots)):
        slot = slots[i]
        weight = REQUEST_WEIGHT[1]
        factor = (factors[slot, OBSERVED] + weight) / (factors[slot, EXPECTED] + weight)
        alive = 1.0
        for j in range(out.shape[1]):
            if j >= num[i]:
                out[i, j] = 0.0
                continue
            table = matches[kinds[i], bucket_of(match[i] + j)]
            alive *= 1.0 - _bounded(table[0] / table[1] * factor)
            out[i, j] = alive


@compiled
def _count(table: Floats, factor: Floats, is_rejected: bool, discount: float) -> None:
    """One observation, for the shared table and for the request's factor."""
    rejected = 1.0 if is_rejected else 0.0
    factor[OBSERVED] = factor[OBSERVED] * discount + rejected
    factor[EXPECTED] = factor[EXPECTED] * discount + table[0] / table[1]
    table[0] = table[0] * DISCOUNT + rejected
    table[1] = table[1] * DISCOUNT + 1.0


@compiled
def learn(
    slots: Ints,
    emitted: NDArray[np.int32],
    counts: Ints,
    played: Ints,
    offers: NDArray[np.int32],
    num_offered: Ints,
    proposals: NDArray[np.int32],
    proposed: Ints,
    after: NDArray[np.int32],
    after_proposed: Ints,
    model: Floats,
    last: Ints,
    model_factors: Floats,
    matches: Floats,
    match_factors: Floats,
    accepted: Ints,
) -> None:
    """Score what every drafter had to say against what a step emitted.

    slots, counts: [rows]; emitted: flat. played: [slots, 3] tokens that were verified, of the
    model, of retrieval (after the model's where both are in one chain), and 1 where they were two
    branches. offers, proposals, after: [slots, length] what the model wrote, what retrieval
    proposed, and what it proposed after all of the model's tokens. proposed, after_proposed:
    [slots, 3] their number of tokens, match and kind. accepted: [rows, 2] is filled with accepted
    tokens of the model and of retrieval.
    """
    begin = 0
    for i in range(len(slots)):
        slot, count = slots[i], counts[i]
        text = emitted[begin : begin + count]
        begin += count
        num_model, num_match, branches = played[slot, 0], played[slot, 1], played[slot, 2]
        kept = 0
        length = num_offered[slot]
        # without a draft of its own the first position is the only one that is seen unselected
        for j in range(min(count, length, num_model + 1)):
            is_rejected = offers[slot, j] != text[j]
            table = model[last[slot], j]
            _count(table, model_factors[slot], is_rejected, REQUEST_DISCOUNT[0])
            if is_rejected:
                break
            kept += 1
        kept = min(kept, num_model)
        if num_model:
            last[slot] = 1 if kept == 0 else 2 if kept < num_model else 3
        found = 0
        own = num_match if num_model == 0 or branches else 0
        for j in range(min(count, proposed[slot, 0], own + 1)):
            is_rejected = proposals[slot, j] != text[j]
            table = matches[proposed[slot, 2], bucket_of(proposed[slot, 1] + j)]
            _count(table, match_factors[slot], is_rejected, REQUEST_DISCOUNT[1])
            if is_rejected:
                break
            found += 1
        found = min(found, own)
        if length and num_model == length and kept == length and not branches:
            for j in range(min(count - length, after_proposed[slot, 0], num_match + 1)):
                is_rejected = after[slot, j] != text[length + j]
                table = matches[after_proposed[slot, 2], bucket_of(after_proposed[slot, 1] + j)]
                _count(table, match_factors[slot], is_rejected, REQUEST_DISCOUNT[1])
                if is_rejected:
                    break
                found += 1
            found = min(found, num_match)
        accepted[i, 0], accepted[i, 1] = kept, found


@compiled
def learn_lengths(
    slots: Ints, accepted: Ints, num_drafted: int, table: Floats, factors: Floats
) -> None:
    """The model's part of ``learn`` for engines that tell lengths and no tokens.

    accepted: [rows], of drafts of num_drafted tokens each, all of which were verified. table:
    [length, 2] rejections and observations; what became of a last draft is not told apart, since
    such an engine decides before it knows.
    """
    for i in range(len(slots)):
        kept = min(accepted[i], num_drafted)
        for j in range(min(kept + 1, num_drafted)):
            _count(table[j], factors[slots[i]], j == kept, REQUEST_DISCOUNT[0])


class Acceptance:
    """The tables of all requests, and the factors of each.

    State: ``model`` [outcomes, max_draft, 2] and ``matches`` [kinds, buckets, 2], discounted
    rejections and observations; ``last`` [slots]; ``model_factors``, ``match_factors`` [slots, 2],
    discounted rejections, observed and expected.
    """

    def __init__(self, max_draft: int) -> None:
        self.model = np.empty((NUM_OUTCOMES, max_draft, 2))
        self.model[..., 0] = PRIOR_WEIGHT * (1 - MODEL_PRIOR)
        self.model[..., 1] = PRIOR_WEIGHT
        self.matches = np.empty((NUM_KINDS, NUM_MATCHES, 2))
        self.matches[..., 0] = PRIOR_WEIGHT * (1 - np.array(MATCH_PRIOR))
        self.matches[..., 1] = PRIOR_WEIGHT
        self.resize(0)

    def resize(self, num_slots: int) -> None:
        """Make room for so many slots."""
        old = len(self.last) if hasattr(self, "last") else 0
        last = np.zeros(num_slots, np.int64)
        model, match = np.zeros((2, num_slots, 2))
        if old:
            last[:old], model[:old] = self.last, self.model_factors
            match[:old] = self.match_factors
        self.last, self.model_factors, self.match_factors = last, model, match

    def forget(self, slot: int) -> None:
        """A new request has the slot: nothing is known of it."""
        self.last[slot] = 0
        self.model_factors[slot] = self.match_factors[slot] = 0.0


@warms_up
def _warm_up() -> None:
    one = np.zeros(1, np.int64)
    tables = Acceptance(2)
    tables.resize(1)
    out = np.empty((1, 2))
    model_survival(one, tables.model, tables.last, tables.model_factors, one, out)
    match_survival(one, tables.matches, one, one, one, tables.match_factors, out)
    tokens = np.zeros((1, 2), np.int32)
    triple = np.zeros((1, 3), np.int64)
    learn_lengths(one, one, 1, tables.model[0], tables.model_factors)
    learn(
        one, np.zeros(0, np.int32), one, triple, tokens, one, tokens, triple, tokens, triple,
        tables.model, tables.last, tables.model_factors, tables.matches, tables.match_factors,
        np.zeros((1, 2), np.int64),
    )  # fmt: skip
