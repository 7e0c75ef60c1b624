"""Policies choose the plan of each round; numpy only, no torch, no clock, no I/O.

``ucb``, ``weights``, ``thompson`` and ``explore`` hold the papers' algorithms, one family per file.
``goodput`` is the default policy. ``wrappers`` change when a policy learns, or share it among
requests. ``baselines`` do not learn while they run (``Router`` may read a file when constructed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.policies.base import Tally, draw, instant_regrets
    from draftwise.policies.baselines import DraftAll, FixedPlan, Random, Router, naive_bayes_scores
    from draftwise.policies.explore import PETC, SequentialHalving
    from draftwise.policies.thompson import (
        ThompsonBernoulli, ThompsonGaussian, argmax_law, gaussian_best_probabilities, shared_cells,
    )
    from draftwise.policies.ucb import (
        UCB1, DiscountedUCB, SlidingUCB, UCBSpec, UCBTuned, ucb1_indices, ucbspec_radii,
    )
    from draftwise.policies.weights import (
        EXP3, AdaNormalHedge, EXP3Spec, Hedge, NormalHedge, adanormalhedge_weights,
        normalhedge_precision, normalhedge_weights,
    )
    from draftwise.policies.wrappers import OnePlan

__getattr__, __dir__ = exports(__name__)
