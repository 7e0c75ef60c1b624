"""Mixing drafters on the device: what the controller and the kernels of vLLM's runner V2 share.

There drafts never reach the host. The controller decides one step ahead how many tokens the model
drafter writes and what a verified token must bring, and the device decides for each request who
drafts: retrieval, or the model with retrieval after it, whichever is worth more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from draftwise.controller.acceptance import Tables
from draftwise.types import Floats, Ints

NOTHING, RETRIEVAL, MODEL = range(3)
"""Who drafts for a request; MODEL: the model drafter, and retrieval after its tokens."""


class Hazards(NamedTuple):
    """Probabilities that a token is rejected if all tokens before it were accepted; float32.

    model: [outcomes, buckets, max_draft] of ``Tables.model``. matches: [kinds, buckets].
    """

    model: Floats
    matches: Floats


def hazards_of(tables: Tables) -> Hazards:
    """Hazards by the tables of all requests, in the device's precision."""
    model, matches = tables.model, tables.matches
    return Hazards(
        (model[..., 0] / model[..., 1]).astype(np.float32),
        (matches[..., 0] / matches[..., 1]).astype(np.float32),
    )


def divide(alive: Floats, capacities: Ints, budget: int) -> Ints:
    """[rows] tokens of each draft that are verified, if the whole step verifies ``budget``.

    alive: [rows, length] survival. capacities: [rows]. As vLLM's adaptive verification: tokens in
    order of their survival, which falls along each draft.
    """
    lanes = np.arange(alive.shape[1])
    inside = lanes < capacities[:, None]
    budget = min(budget, int(inside.sum()))
    best = np.argsort(-np.where(inside, alive, -1.0), axis=None, kind="stable")[:budget]
    return np.bincount(best // len(lanes), minlength=len(alive))
