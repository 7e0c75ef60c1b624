"""WHICH plan: numpy only, no torch, no clock, no I/O.

Here the papers' algorithms, one a file; ``goodput`` is the default policy, ``wrappers`` change when
or by how many requests a policy is taught, ``baselines`` learn nothing (or nothing while they run),
``parts`` is what policies share. ``baselines.router`` alone reads a file, once, when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.policies.adanormalhedge import AdaNormalHedge as AdaNormalHedge
    from draftwise.policies.adanormalhedge import (
        adanormalhedge_probabilities as adanormalhedge_probabilities,
    )
    from draftwise.policies.baselines.draft_all import DraftAll as DraftAll
    from draftwise.policies.baselines.fixed import Fixed as Fixed
    from draftwise.policies.baselines.random import Random as Random
    from draftwise.policies.baselines.router import Router as Router
    from draftwise.policies.baselines.router import naive_bayes_scores as naive_bayes_scores
    from draftwise.policies.discounted_ucb import DiscountedUCB as DiscountedUCB
    from draftwise.policies.exp3 import EXP3 as EXP3
    from draftwise.policies.exp3spec import EXP3Spec as EXP3Spec
    from draftwise.policies.hedge import Hedge as Hedge
    from draftwise.policies.normalhedge import NormalHedge as NormalHedge
    from draftwise.policies.normalhedge import normalhedge_precision as normalhedge_precision
    from draftwise.policies.normalhedge import (
        normalhedge_probabilities as normalhedge_probabilities,
    )
    from draftwise.policies.parts.argmax_law import argmax_law as argmax_law
    from draftwise.policies.parts.argmax_law import shared_cells as shared_cells
    from draftwise.policies.parts.instant_regrets import instant_regrets as instant_regrets
    from draftwise.policies.parts.probability import draw as draw
    from draftwise.policies.parts.state import dump as dump
    from draftwise.policies.parts.state import load as load
    from draftwise.policies.parts.tally import Tally as Tally
    from draftwise.policies.petc import PETC as PETC
    from draftwise.policies.petc import exploration_budget as exploration_budget
    from draftwise.policies.sequential_halving import SequentialHalving as SequentialHalving
    from draftwise.policies.sequential_halving import better_half as better_half
    from draftwise.policies.sequential_halving import pulls_per_plan as pulls_per_plan
    from draftwise.policies.sliding_ucb import SlidingUCB as SlidingUCB
    from draftwise.policies.thompson_bernoulli import ThompsonBernoulli as ThompsonBernoulli
    from draftwise.policies.thompson_gaussian import ThompsonGaussian as ThompsonGaussian
    from draftwise.policies.thompson_gaussian import (
        gaussian_best_probabilities as gaussian_best_probabilities,
    )
    from draftwise.policies.thompson_gaussian import gaussian_posterior as gaussian_posterior
    from draftwise.policies.ucb1 import UCB1 as UCB1
    from draftwise.policies.ucb1 import ucb1_indices as ucb1_indices
    from draftwise.policies.ucb_tuned import UCBTuned as UCBTuned
    from draftwise.policies.ucb_tuned import ucb_tuned_indices as ucb_tuned_indices
    from draftwise.policies.ucbspec import UCBSpec as UCBSpec
    from draftwise.policies.ucbspec import ucbspec_radii as ucbspec_radii
    from draftwise.policies.wrappers.in_flight import evidence_from_json as evidence_from_json
    from draftwise.policies.wrappers.in_flight import evidence_to_json as evidence_to_json
    from draftwise.policies.wrappers.one_plan import OnePlan as OnePlan

__getattr__, __dir__ = exports(__name__)
