"""The papers' algorithms: policies, feedback, rewards and stop rules; numpy only.

A policy chooses the plan of each round: ``ucb``, ``weights`` and ``thompson`` have one family each,
``simple`` has policies that do not learn or only explore, and ``wrappers`` change when a policy
learns, or share it among requests. ``feedback`` says what a round reveals of each plan, and
``rewards`` value it. ``stop_rules`` end drafts.
"""

from draftwise.bandits.base import Tally, draw, instant_regrets
from draftwise.bandits.simple import PETC, FixedPlan, Random, SequentialHalving
from draftwise.bandits.thompson import (
    ThompsonBernoulli,
    ThompsonGaussian,
    argmax_law,
    gaussian_best_probabilities,
    shared_cells,
)
from draftwise.bandits.ucb import (
    UCB1,
    DiscountedUCB,
    SlidingUCB,
    UCBSpec,
    UCBTuned,
    ucb1_indices,
    ucbspec_radii,
)
from draftwise.bandits.weights import (
    EXP3,
    AdaNormalHedge,
    EXP3Spec,
    Hedge,
    NormalHedge,
    adanormalhedge_weights,
    normalhedge_precision,
    normalhedge_weights,
)
from draftwise.bandits.wrappers import OnePlan
