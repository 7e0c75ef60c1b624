"""The default policy of draftwise's own engine."""

from draftwise.policies.goodput.acceptance import MATCH_PRIORS, Bins, MatchTable, Rates, bin_of
from draftwise.policies.goodput.experience import (
    PRIOR_VARIANCE,
    WINDOW,
    Experience,
    Recall,
    features,
)
from draftwise.policies.goodput.mixing import GoodputMixer, Prices
from draftwise.policies.goodput.policy import (
    PROBE_TOKENS_PAID,
    Goodput,
    PlanCosts,
    ProbeScheduler,
    expected_tokens,
    retrieved_tokens,
)

__all__ = [
    "MATCH_PRIORS",
    "PRIOR_VARIANCE",
    "PROBE_TOKENS_PAID",
    "WINDOW",
    "Bins",
    "Experience",
    "Goodput",
    "GoodputMixer",
    "MatchTable",
    "PlanCosts",
    "Prices",
    "ProbeScheduler",
    "Rates",
    "Recall",
    "bin_of",
    "expected_tokens",
    "features",
    "retrieved_tokens",
]
