"""Decides what to draft, and when to draft nothing, for every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.controller.acceptance import (
        AFTER, AFTER_FOUND, AFTER_KIND, AFTER_MATCH, DISCOUNT, FOUND, GROUP, HIGHEST, KIND,
        LAST, LENGTH, LOWEST, MATCH, MODEL, OFFERED, OWN, PLAYED_MATCH, PLAYED_MODEL, ROOM, Slots,
        Tables, bucket_of, learn as learn_acceptance, new_slots, new_tables, take as take_proposals,
    )
    from draftwise.controller.batches import (
        CREDIT as BATCH_CREDIT, SKIPPED, TOGETHER, Batches,
    )
    from draftwise.controller.choice import NUM_PRICES, best_length, choose as choose_drafts
    from draftwise.controller.controller import Controller, Limits
    from draftwise.controller.costs import MeasuredCostModel, Step, StepCosts
    from draftwise.controller.rates import (
        PRIOR_VARIANCE, WINDOW, Experience, Recall, features,
    )
    from draftwise.controller.goodput import (
        PROBE_TOKENS_PAID, Goodput, PlanCosts, ProbeScheduler, expected_tokens, retrieved_tokens,
    )
    from draftwise.controller.guard import MARGIN, NO_GUARD, ROUNDS, SURE, Guard, Next, Tuning
    from draftwise.controller.mixing import (
        MODEL as BY_MODEL, NOTHING as BY_NOBODY, RETRIEVAL as BY_RETRIEVAL, Hazards, divide,
        hazards_of,
    )
    from draftwise.controller.rates import Bins, MatchTable, Rates, bin_of
    from draftwise.controller.writer import GoodputMixer, Prices

__getattr__, __dir__ = exports(__name__)
