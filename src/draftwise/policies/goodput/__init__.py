"""The default policy, which plays the plan with the most expected tokens per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.policies.goodput.acceptance import MATCH_PRIORS, Bins, MatchTable, Rates, bin_of
    from draftwise.policies.goodput.experience import (
        PRIOR_VARIANCE, WINDOW, Experience, Recall, features,
    )
    from draftwise.policies.goodput.mixing import GoodputMixer, Prices
    from draftwise.policies.goodput.policy import (
        PROBE_TOKENS_PAID, Goodput, PlanCosts, ProbeScheduler, expected_tokens, retrieved_tokens,
    )

__getattr__, __dir__ = exports(__name__)
