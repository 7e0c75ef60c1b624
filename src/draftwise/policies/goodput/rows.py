"""Many requests at once: what their drafts promise, and what they play together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftwise.policies.goodput.acceptance import Rates
from draftwise.policies.goodput.matches import BUCKETS, MATCH_CAP, MatchTable
from draftwise.policies.goodput.pricing import PlanCosts
from draftwise.policies.goodput.ragged import best_ragged
from draftwise.policies.goodput.together import best_together
from draftwise.types import Floats, Ints


def best_plans(
    costs: PlanCosts,
    rates: Sequence[Rates],
    tables: Sequence[Mapping[str, MatchTable]],
    matches: Sequence[Mapping[str, int]],
    paces: Floats | None = None,
) -> Ints:
    """[B] plans. paces: as for ``best_ragged``; the rest: as for ``tokens_of_rows``."""
    tokens = tokens_of_rows(costs, rates, tables, matches)
    plans = tokens, costs.sizes, costs.drafters, costs.drafting()
    if costs.batch_s is None:
        return best_together(*plans, np.array(costs.target_s))
    return best_ragged(*plans, costs.batch_s, paces)


def tokens_of_rows(
    costs: PlanCosts,
    rates: Sequence[Rates],
    tables: Sequence[Mapping[str, MatchTable]],
    matches: Sequence[Mapping[str, int]],
) -> Floats:
    """[B, K] expected emitted tokens of each request's plans; 0 = nothing to propose.

    tables, matches: of each request. rates: too; none where no request has an LM drafter.
    """
    believed = Rates.of_rows(rates) if rates else np.zeros((len(tables), len(costs.names)))
    tokens = costs.expected_tokens(believed)
    retrieving = set().union(*tables)
    for row, name in enumerate(costs.names):
        if name in retrieving:
            own = [request for request, known in enumerate(tables) if name in known]
            found = retrieved(
                [tables[request][name] for request in own],
                [matches[request].get(name, 0) for request in own],
                costs.longest,
            )
            costs.put_retrieved(tokens, own, row, found)
    return tokens


def retrieved(tables: Sequence[MatchTable], matches: Sequence[int], longest: int) -> Floats:
    """[B, longest + 1] emitted tokens of a round of retrieval by length, as ``retrieved_tokens``.

    >>> retrieved([MatchTable()] * 2, [1, 0], 2).round(3).tolist()
    [[1.0, 1.3, 1.435], [0.0, 0.0, 0.0]]
    """
    rates, found = np.array([table.rates for table in tables]), np.array(matches)
    rungs = np.minimum(found[:, None] + np.arange(longest), MATCH_CAP)
    reached = rates[np.arange(len(tables))[:, None], BUCKETS[rungs]].cumprod(axis=1)
    tokens: Floats = np.ones((len(tables), longest + 1))
    tokens[:, 1:] += reached.cumsum(axis=1)
    tokens *= found.astype(bool)[:, None]
    return tokens
