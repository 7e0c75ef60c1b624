"""The specification of the kernels of runner V2, in numpy: who drafts for a request, and what.

``match`` finds where the text's end occurred before, ``follow`` reads what came next, and ``mix``
takes retrieval, or the model's draft with retrieval after it, whichever is worth more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftwise.controller.acceptance import HIGHEST, LOWEST, bucket_of
from draftwise.controller.mixing import MODEL as BY_MODEL
from draftwise.controller.mixing import NOTHING as BY_NOBODY
from draftwise.controller.mixing import RETRIEVAL as BY_RETRIEVAL
from draftwise.controller.mixing import Hazards
from draftwise.retrieval.kernels import LONGEST_MATCH
from draftwise.types import Floats, Ints

Int32 = NDArray[np.int32]


class Match(NamedTuple):
    """Where the end of a text occurred before.

    length: its tokens, at most LONGEST_MATCH; 0: nowhere. place: of the token after the latest such
    occurrence. hits: number of occurrences. agree: whether all have the same next token. shared:
    whether they are in the history of other requests.
    """

    length: int = 0
    place: int = 0
    hits: int = 0
    agree: bool = False
    shared: bool = False


class History(NamedTuple):
    """A ring of earlier answers. tokens, owners: [size] tokens, -1 before each text and at the
    place where the next text begins (``newest``), and their tenants."""

    tokens: Int32
    owners: Int32
    newest: int


@dataclass(frozen=True)
class Row:
    """What is known of a request. outcome: of its last draft, as in ``acceptance``. factors: of its
    hazards, for the model and for retrieval. room: maximum tokens of a draft. tenant: owner of the
    texts that it may draft from; -1: none but its own."""

    outcome: int = 0
    factors: tuple[float, float] = (1.0, 1.0)
    may_use_model: bool = True
    may_use_retrieval: bool = True
    room: int = 128
    tenant: int = 0


@dataclass(frozen=True)
class Mixed:
    """The drafts of one request, max_draft tokens each.

    own: retrieval after the text; after: retrieval after the model's tokens; both -1 behind their
    last token, and without a match. matches: of both. drafter: BY_NOBODY, BY_RETRIEVAL or BY_MODEL.
    draft: the chosen draft, filled up with its last token. confidence: of each token, the
    probability that it is accepted if all before it were; 0 for the filling.
    """

    own: Int32
    after: Int32
    matches: tuple[Match, Match]
    drafter: int
    draft: Int32
    confidence: Floats


def match(text: Int32, head: Int32, history: History | None = None, tenant: int = -1) -> Match:
    """Find the longest end of ``text + head`` that occurs in ``text``, or a longer one in history.

    text: [n]; head: [k] drafted tokens that continue it, or none. tenant: whose history.
    """
    ending = np.concatenate([text, head])[::-1][:LONGEST_MATCH]
    places = np.arange(1, max(len(text), 1))
    own = _longest(text, places, places, ending)
    if history is None:
        return own
    tokens, owners, newest = history
    places = np.arange(1, len(tokens))
    places = places[(owners[places] == tenant) & (tokens[places] >= 0)]
    ages = (places - newest) % len(tokens)
    shared = _longest(tokens, places, ages, ending)
    return shared._replace(shared=True) if shared.length > own.length else own


def _longest(tokens: Int32, places: Ints, order: Ints, ending: Int32) -> Match:
    """The longest match before ``places``, and the last place in ``order`` that has it."""
    lengths, alive = np.zeros(len(places), np.int64), np.ones(len(places), bool)
    for j, token in enumerate(ending):
        before = places - 1 - j
        alive &= (before >= 0) & (tokens[np.maximum(before, 0)] == token)
        lengths += alive
    longest = int(lengths.max(initial=0))
    if not longest:
        return Match()
    found = lengths == longest
    latest = places[found][order[found].argmax()]
    nexts = set(tokens[places[found]].tolist())
    return Match(longest, int(latest), int(found.sum()), len(nexts) == 1)


def follow(text: Int32, head: Int32, place: int, num: int) -> Int32:
    """The ``num`` tokens from ``place`` on; past the end of ``text + head`` they repeat."""
    whole = np.concatenate([text, head])
    return whole[place + np.arange(num) % (len(whole) - place)].astype(np.int32)


def remembered(history: History, place: int, num: int) -> Int32:
    """At most ``num`` tokens of the history from ``place`` to the end of their text."""
    tokens = history.tokens[place : place + num]
    ends = np.flatnonzero(tokens < 0)
    return tokens[: ends[0]] if len(ends) else tokens


def survival(hazards: Floats, factor: float) -> Floats:
    """[n] probabilities that all tokens up to each one are accepted."""
    alive: Floats = np.cumprod(1.0 - np.clip(hazards * factor, LOWEST, HIGHEST)).astype(float)
    return alive


def worth(alive: Floats, price: float, room: int) -> float:
    """Expected tokens of a draft beyond what its tokens cost, at the best length up to ``room``."""
    return float(np.maximum(alive[:room] - price, 0.0).sum())


def mix(
    text: Int32, head: Int32, hazards: Hazards, row: Row, price: float,
    history: History | None = None, given: Floats | None = None,
) -> Mixed:  # fmt: skip
    """Choose who drafts for a request.

    text: [n] the whole text, n > 0. head: [k] the model's draft, k at most max_draft. price:
    expected tokens that a verified token must bring. given: [k] confidence of the model's tokens,
    in place of its hazards.
    """
    length, num = hazards.model.shape[-1], len(head)
    own = match(text, head[:0], history, row.tenant)
    after = match(text, head, history, row.tenant) if num else Match()
    kinds = int(own.agree), 1 + min(num, 3)
    (own_tokens, own_alive), (after_tokens, after_alive) = (
        _retrieved(text, drafted, history, found, hazards.matches[kind], row.factors[1], length)
        for drafted, found, kind in zip((head[:0], head), (own, after), kinds, strict=True)
    )
    model = survival(hazards.model[row.outcome, bucket_of(own.length)], row.factors[0])
    if given is not None:
        model = np.cumprod(given).astype(float)
    uses_after = row.may_use_retrieval and after.length > 0
    chain = np.concatenate([head, after_tokens[: length - num] if uses_after else head[:0]])
    chain_alive = np.zeros(length)
    chain_alive[:num] = model[:num]
    if num and uses_after:
        chain_alive[num:] = model[num - 1] * after_alive[: length - num]
    gains = -1.0, -1.0
    if row.may_use_retrieval and own.length:
        gains = worth(own_alive, price, row.room), gains[1]
    if row.may_use_model and num:
        gains = gains[0], worth(chain_alive, price, row.room)
    if max(gains) < 0:
        drafter, draft, alive = BY_NOBODY, text[-1:], np.zeros(length)
    elif gains[0] > gains[1]:
        drafter, draft, alive = BY_RETRIEVAL, own_tokens, own_alive
    else:
        drafter, draft, alive = BY_MODEL, chain, chain_alive
    draft = draft[draft >= 0]
    alive = np.where(np.arange(length) < row.room, alive, 0.0)
    before = np.append(1.0, alive[:-1])
    return Mixed(
        own_tokens, after_tokens, (own, after), drafter,
        np.pad(draft, (0, length - len(draft)), "edge").astype(np.int32),
        np.divide(alive, before, out=np.zeros(length), where=before > 0),
    )  # fmt: skip


def _retrieved(
    text: Int32, head: Int32, history: History | None, found: Match, hazards: Floats,
    factor: float, num: int,
) -> tuple[Int32, Floats]:  # fmt: skip
    """The tokens after a match, and their survival; -1 and 0 behind the last one."""
    if not found.length:
        return np.full(num, -1, np.int32), np.zeros(num)
    if found.shared and history is not None:
        tokens = remembered(history, found.place, num)
    else:
        tokens = follow(text, head, found.place, num)
    buckets = [bucket_of(found.length + j) for j in range(num)]
    alive = np.where(np.arange(num) < len(tokens), survival(hazards[buckets], factor), 0.0)
    return np.pad(tokens, (0, num - len(tokens)), constant_values=-1).astype(np.int32), alive
