"""Acceptance: the probability that each further token of a draft is accepted.

Two drafters are modelled by hazards: the probability that a token is rejected, given that all
tokens before it were accepted.

- The model drafter's hazard depends on the position in the draft, the outcome of the request's
  last draft, and the length of the suffix of the text that occurred earlier.
- Retrieval's hazard depends on the length of the matched suffix, which grows by one with every
  accepted token, and on whether all matching places agree. Drafts that continue a draft of the
  model have separate tables.

All requests share the tables. Each request scales the hazards of each drafter by one factor: its
discounted rejections over those that the tables expected, both with a prior weight. This is the
posterior mean of a gamma-distributed rate.

Only uncensored evidence is used. A position is observed if it was verified, or holds the bonus
token, and every position before it was accepted. Later positions are censored.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftwise.compiled import compiled, warms_up
from draftwise.controller.rates import MATCH_PRIOR, NUM_MATCHES
from draftwise.types import Floats, Ints

Int32 = NDArray[np.int32]

NUM_OUTCOMES = 4
"""Outcomes of a request's last draft: none yet, all rejected, partly accepted, all accepted."""
NUM_KINDS = 5
"""Kinds of retrieval: places disagree; agree; after 1, 2, 3 or more tokens of the model."""

DISCOUNT = 0.9995  # discount of a shared table, for each observation
REQUEST_DISCOUNT = 0.99  # discount of a request's factor, for each observation
REQUEST_WEIGHT = 16.0  # prior weight of a request's factor, in rejections
PRIOR_WEIGHT = 6.0  # prior weight of the tables, in observations
LOWEST, HIGHEST = 0.005, 0.98  # bounds of a hazard

# columns of ``Slots.facts``
OFFERED, FOUND, MATCH, KIND, AFTER_FOUND, AFTER_MATCH, AFTER_KIND = range(7)
PLAYED_MODEL, PLAYED_MATCH, LAST, LENGTH, GROUP, ROOM, KEPT, NUM_FACTS = range(7, 15)
# indices into tokens, survival and factors; no literals, since numba compiles a function once more
# for each literal argument
_THREE: Any = np.arange(3)
MODEL, OWN, AFTER = _THREE
OBSERVED, EXPECTED = range(2)


class Slots(NamedTuple):
    """State of running requests, by slot.

    facts: [slots, NUM_FACTS] number of tokens drafted by the model; number of tokens, match length
    and kind of retrieval, and the same of retrieval after all of the model's tokens; the draft
    under verification: tokens of the model, and tokens of retrieval after them; outcome of the last
    draft, length of the text, bucket of the match, room, and correct tokens of the model in the
    latest step.
    tokens: [slots, 3, length] of the model, of retrieval, and of retrieval after the model.
    survival: [slots, 3, length] probability that the first j + 1 of these tokens are accepted; the
    model's is filled to the longest draft. factors: [slots, 2, 2] rejections by drafter, observed
    and expected. worth: [slots] of a token of the request, relative to the mean of all requests.
    """

    facts: Ints
    tokens: Int32
    survival: Floats
    factors: Floats
    worth: Floats


class Tables(NamedTuple):
    """Statistics that all requests share.

    model: [outcomes, buckets, length, 2] discounted rejections and observations, by outcome of the
    last draft, match of the text, and position. matches: [kinds, buckets, 2] the same for
    retrieval. after: [buckets, length + 1] mean survival of retrieval one step after a draft whose
    first token was accepted, by the match before that step, and the number of observations. It
    approximates retrieval after a draft of any length; the exact values would need one search for
    each length.
    """

    model: Floats
    matches: Floats
    after: Floats


def new_slots(num: int, max_draft: int, old: Slots | None = None) -> Slots:
    """Arrays for ``num`` requests; requests of ``old`` keep their slots."""
    slots = Slots(
        np.zeros((num, NUM_FACTS), np.int64), np.zeros((num, 3, max_draft), np.int32),
        np.zeros((num, 3, max_draft)), np.zeros((num, 2, 2)), np.ones(num),
    )  # fmt: skip
    if old is not None:
        num_old = len(old.facts)
        slots.facts[:num_old], slots.tokens[:num_old] = old.facts, old.tokens
        slots.survival[:num_old], slots.factors[:num_old] = old.survival, old.factors
        slots.worth[:num_old] = old.worth
    return slots


def new_tables(max_draft: int) -> Tables:
    model = np.empty((NUM_OUTCOMES, NUM_MATCHES, max_draft, 2))
    model[..., 0], model[..., 1] = PRIOR_WEIGHT * (1 - 0.7), PRIOR_WEIGHT  # prior acceptance 0.7
    matches = np.empty((NUM_KINDS, NUM_MATCHES, 2))
    matches[..., 0], matches[..., 1] = PRIOR_WEIGHT * (1 - np.array(MATCH_PRIOR)), PRIOR_WEIGHT
    after = np.full((NUM_MATCHES, max_draft + 1), 0.05)  # prior
    after[..., -1] = 0.0
    return Tables(model, matches, after)


@compiled
def bucket_of(match: int) -> int:
    """As in ``rates``, compiled."""
    if match <= 2:
        return max(match, 0)
    if match <= 4:
        return 3
    if match <= 8:
        return 4
    return 5 if match <= 16 else 6


@compiled
def _factor(factor: Floats) -> float:
    return float((factor[OBSERVED] + REQUEST_WEIGHT) / (factor[EXPECTED] + REQUEST_WEIGHT))


def factors_of(slots: Ints, known: Slots) -> Floats:
    """[rows, 2] factors of the hazards of the model drafter and of retrieval."""
    seen = known.factors[slots] + REQUEST_WEIGHT
    return np.asarray(seen[..., OBSERVED] / seen[..., EXPECTED])


@compiled
def _model_survival(table: Floats, factor: float, out: Floats) -> None:
    alive = 1.0
    for j in range(len(out)):
        alive *= 1.0 - min(max(table[j, 0] / table[j, 1] * factor, LOWEST), HIGHEST)
        out[j] = alive


@compiled
def _match_survival(
    hazards: Floats, kind: int, match: int, num: int, factor: float, survival: Floats, slot: int,
    which: int,
) -> None:  # fmt: skip
    alive = 1.0
    for j in range(num):
        hazard = hazards[kind, bucket_of(match + j)] * factor
        alive *= 1.0 - min(max(hazard, LOWEST), HIGHEST)
        survival[slot, which, j] = alive


@compiled
def take(
    slots: Ints, rooms: Ints, offers: Int32, lengths: Ints, found: Int32, num_found: Int32,
    match: Int32, hits: Int32, agree: Int32, known: Slots, tables: Tables, has_model: bool,
    floor: float, rows: Ints, drafts: Int32, nums: Ints, left: Ints,
) -> tuple[int, int, int]:  # fmt: skip
    """Store the drafts of the model and of retrieval with their survival probabilities.

    offers, lengths: concatenated drafts of the model; lengths is empty if it did not draft. found,
    num_found, match, hits, agree: proposals of retrieval; match is empty if texts were not
    searched. floor: survival of a draft's last token below which a continuation cannot be worth its
    price. rows, drafts, nums, left (outputs): slots, tokens, lengths and remaining room of drafts
    that may be worth continuing. Returns the length of the longest draft, the number of rows
    written, and the tokens of all texts.
    """
    facts, tokens, survival, factors, _ = known
    length = tokens.shape[2]
    hazards = tables.matches[:, :, 0] / tables.matches[:, :, 1]
    begin, longest, count, context = 0, 0, 0, 0
    for i in range(len(slots)):
        slot = slots[i]
        context += facts[slot, LENGTH]
        facts[slot, :LAST] = 0
        facts[slot, ROOM] = room = min(max(rooms[i], 0), length)
        if len(lengths):
            facts[slot, OFFERED] = min(lengths[i], length)
            for j in range(facts[slot, OFFERED]):
                tokens[slot, MODEL, j] = offers[begin + j]
            begin += lengths[i]
            longest = max(longest, facts[slot, OFFERED])
        if len(match):  # otherwise the bucket of the latest search is kept
            num = num_found[i]
            facts[slot, FOUND], facts[slot, MATCH] = num, match[i]
            facts[slot, KIND] = 1 if agree[i] >= hits[i] else 0
            before = facts[slot, GROUP]
            facts[slot, GROUP] = bucket_of(facts[slot, MATCH])
            for j in range(num):
                tokens[slot, OWN, j] = found[i, j]
            _match_survival(
                hazards, facts[slot, KIND], match[i], num, _factor(factors[slot, OWN]), survival,
                slot, OWN,
            )  # fmt: skip
            if facts[slot, KEPT] > 0:
                _learn_after(tables.after[before], survival[slot, OWN], num)
                facts[slot, KEPT] = 0
        if has_model:
            table = tables.model[facts[slot, LAST], facts[slot, GROUP]]
            _model_survival(table, _factor(factors[slot, MODEL]), survival[slot, MODEL])
        offered = facts[slot, OFFERED]
        if len(match) and 0 < offered < room and survival[slot, MODEL, offered - 1] > floor:
            rows[count], nums[count], left[count] = slot, offered, room - offered
            for j in range(offered):
                drafts[count, j] = tokens[slot, MODEL, j]
            count += 1
    return longest, count, context


@compiled
def find_after(
    slots: Ints, found: Int32, num_found: Int32, match: Int32, known: Slots, tables: Tables
) -> None:
    """Store retrieval's proposals after the model's drafts, with their survival probabilities."""
    facts, tokens, survival, factors, _ = known
    hazards = tables.matches[:, :, 0] / tables.matches[:, :, 1]
    for i in range(len(slots)):
        slot = slots[i]
        num = num_found[i]
        kind = 1 + min(facts[slot, OFFERED], 3)
        facts[slot, AFTER_FOUND], facts[slot, AFTER_MATCH] = num, match[i]
        facts[slot, AFTER_KIND] = kind
        for j in range(num):
            tokens[slot, AFTER, j] = found[i, j]
        _match_survival(
            hazards, kind, match[i], num, _factor(factors[slot, OWN]), survival, slot, AFTER
        )


@compiled
def _count(table: Floats, factor: Floats, is_rejected: bool) -> None:
    rejected = 1.0 if is_rejected else 0.0
    factor[OBSERVED] = factor[OBSERVED] * REQUEST_DISCOUNT + rejected
    factor[EXPECTED] = factor[EXPECTED] * REQUEST_DISCOUNT + table[0] / table[1]
    table[0] = table[0] * DISCOUNT + rejected
    table[1] = table[1] * DISCOUNT + 1.0


@compiled
def _learn_match(
    draft: Int32, match: int, kind: int, most: int, emitted: Int32, begin: int,
    tables: Tables, factor: Floats,
) -> None:  # fmt: skip
    """Score at most ``most`` retrieved tokens against emitted[begin:], up to the first rejected."""
    for j in range(most):
        is_rejected = draft[j] != emitted[begin + j]
        _count(tables.matches[kind, bucket_of(match + j)], factor, is_rejected)
        if is_rejected:
            break


@compiled
def _learn_after(row: Floats, survival: Floats, num: int) -> None:
    length = len(row) - 1
    row[length] += 1.0
    weight = max(1.0 - 0.99, 1.0 / (row[length] + 4.0))  # the prior counts as 4
    for j in range(length):
        value = survival[j] if j < num else 0.0
        row[j] += weight * (value - row[j])


@compiled
def _shorten(facts: Ints, verified: int) -> None:
    facts[PLAYED_MODEL] = min(facts[PLAYED_MODEL], verified)
    facts[PLAYED_MATCH] = min(facts[PLAYED_MATCH], verified - facts[PLAYED_MODEL])


@compiled
def learn(
    slots: Ints, emitted: Int32, counts: Ints, verified: Ints, known: Slots, tables: Tables
) -> int:
    """Score every drafter's proposals against the tokens that a step emitted.

    slots, counts: [rows]; emitted: [sum of counts]. verified: [rows] verified tokens of each
    draft, or empty if all were verified. Returns the tokens of all texts before the step.
    """
    all_facts, all_tokens, _, all_factors, _ = known
    begin: Any = np.int64(0)
    context: Any = np.int64(0)
    for i in range(len(slots)):
        slot, count = slots[i], counts[i]
        facts, tokens, factors = all_facts[slot], all_tokens[slot], all_factors[slot]
        if len(verified):
            _shorten(facts, verified[i])
        num_model, num_match = facts[PLAYED_MODEL], facts[PLAYED_MATCH]
        offered, kept = facts[OFFERED], 0
        # if the model's draft was not verified, only its first position is uncensored
        for j in range(min(count, offered, num_model + 1)):
            is_rejected = tokens[MODEL, j] != emitted[begin + j]
            _count(tables.model[facts[LAST], facts[GROUP], j], factors[MODEL], is_rejected)
            if is_rejected:
                break
            kept += 1
        facts[KEPT] = kept
        kept = min(kept, num_model)
        if num_model:
            facts[LAST] = 1 if kept == 0 else 2 if kept < num_model else 3
        own = num_match if num_model == 0 else 0
        _learn_match(
            tokens[OWN], facts[MATCH], facts[KIND], min(count, facts[FOUND], own + 1), emitted,
            begin, tables, factors[OWN],
        )  # fmt: skip
        if offered and num_model == offered and kept == offered:
            most = min(count - offered, facts[AFTER_FOUND], num_match + 1)
            _learn_match(
                tokens[AFTER], facts[AFTER_MATCH], facts[AFTER_KIND], most, emitted,
                begin + offered, tables, factors[OWN],
            )  # fmt: skip
        context += facts[LENGTH]
        facts[LENGTH] += count
        begin += count
        for column in range(LAST):
            facts[column] = 0
    return int(context)


@compiled
def learn_lengths(
    slots: Ints, accepted: Ints, num_drafted: int, table: Floats, known: Slots
) -> None:
    """The model's part of ``learn`` for engines that report accepted lengths without tokens.

    accepted: [rows] tokens of drafts of num_drafted tokens each, all verified. table: [length, 2]
    rejections and observations by position; not by outcome of the last draft, since such an engine
    decides before that outcome is known.
    """
    for i in range(len(slots)):
        kept = min(accepted[i], num_drafted)
        for j in range(min(kept + 1, num_drafted)):
            _count(table[j], known.factors[slots[i], MODEL], j == kept)


@compiled
def length_survival(slots: Ints, table: Floats, known: Slots, out: Floats) -> None:
    """out[i, j]: probability that the model's first j + 1 tokens are accepted, for slots[i]."""
    for i in range(len(slots)):
        _model_survival(table, _factor(known.factors[slots[i], MODEL]), out[i])


@warms_up
def _warm_up() -> None:
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    known, tables = new_slots(1, 2), new_tables(2)
    bucket_of(1)
    tokens, row = np.zeros((1, 2), np.int32), np.zeros(1, np.int32)
    take(
        one, one, row, none, tokens, row, row, row, row, known, tables, True, 0.0, one,
        tokens.copy(), one, one,
    )  # fmt: skip
    find_after(one, tokens, row, row, known, tables)
    learn(one, row, one, none, known, tables)
    learn_lengths(one, one, 1, tables.model[0, 0], known)
    length_survival(one, tables.model[0, 0], known, np.empty((1, 2)))
