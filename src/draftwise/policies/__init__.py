"""WHICH plan: numpy only, no torch, no clock, no I/O.

The papers' algorithms, a family a file: ``ucb``, ``exp3``, ``hedge``, ``thompson``, ``explore``.
``goodput`` is the default policy, ``wrappers`` change when or by how many requests a policy is
taught, ``baselines`` learn nothing while they run, ``base`` and ``state`` are what policies share.
``Router`` alone reads a file, once, when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.policies.base import Tally as Tally
    from draftwise.policies.base import draw as draw
    from draftwise.policies.base import instant_regrets as instant_regrets
    from draftwise.policies.baselines import DraftAll as DraftAll
    from draftwise.policies.baselines import Fixed as Fixed
    from draftwise.policies.baselines import Random as Random
    from draftwise.policies.baselines import Router as Router
    from draftwise.policies.baselines import naive_bayes_scores as naive_bayes_scores
    from draftwise.policies.exp3 import EXP3 as EXP3
    from draftwise.policies.exp3 import EXP3Spec as EXP3Spec
    from draftwise.policies.explore import PETC as PETC
    from draftwise.policies.explore import SequentialHalving as SequentialHalving
    from draftwise.policies.explore import better_half as better_half
    from draftwise.policies.explore import exploration_budget as exploration_budget
    from draftwise.policies.explore import pulls_per_plan as pulls_per_plan
    from draftwise.policies.hedge import AdaNormalHedge as AdaNormalHedge
    from draftwise.policies.hedge import Hedge as Hedge
    from draftwise.policies.hedge import NormalHedge as NormalHedge
    from draftwise.policies.hedge import (
        adanormalhedge_probabilities as adanormalhedge_probabilities,
    )
    from draftwise.policies.hedge import normalhedge_precision as normalhedge_precision
    from draftwise.policies.hedge import (
        normalhedge_probabilities as normalhedge_probabilities,
    )
    from draftwise.policies.state import dump as dump
    from draftwise.policies.state import load as load
    from draftwise.policies.thompson import ThompsonBernoulli as ThompsonBernoulli
    from draftwise.policies.thompson import ThompsonGaussian as ThompsonGaussian
    from draftwise.policies.thompson import argmax_law as argmax_law
    from draftwise.policies.thompson import (
        gaussian_best_probabilities as gaussian_best_probabilities,
    )
    from draftwise.policies.thompson import gaussian_posterior as gaussian_posterior
    from draftwise.policies.thompson import shared_cells as shared_cells
    from draftwise.policies.ucb import UCB1 as UCB1
    from draftwise.policies.ucb import DiscountedUCB as DiscountedUCB
    from draftwise.policies.ucb import SlidingUCB as SlidingUCB
    from draftwise.policies.ucb import UCBSpec as UCBSpec
    from draftwise.policies.ucb import UCBTuned as UCBTuned
    from draftwise.policies.ucb import ucb1_indices as ucb1_indices
    from draftwise.policies.ucb import ucb_tuned_indices as ucb_tuned_indices
    from draftwise.policies.ucb import ucbspec_radii as ucbspec_radii
    from draftwise.policies.wrappers import OnePlan as OnePlan
    from draftwise.policies.wrappers import evidence_from_json as evidence_from_json
    from draftwise.policies.wrappers import evidence_to_json as evidence_to_json

__getattr__, __dir__ = exports(__name__)
