"""The simulator: policies on text with known acceptance probabilities; needs only numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise_lab.sim.costs import REGIMES, CostTable, load_costs
    from draftwise_lab.sim.environments import (
        Confident, Cycles, Drifting, Environment, IndependentAlphas, Load, Piecewise,
        TruncatedGeometric, stream, text_of,
    )
    from draftwise_lab.sim.match import (
        HABITS, Contestant, Match, Outcome, Reference, Run, TextSums, Trail, averages, best_plan,
        best_plans, every_plan, fixed_path, fold, half_width, look_back, make_contestant,
        make_match, make_plans, parse_lengths, play as play_all, policy_seed,
        report as text_report, results, run_match, score_prompts, stop_rules_of,
        sums_by_text, totals,
    )
    from draftwise_lab.sim.presets import (
        DOMAINS, HEDGESPEC_LLAMA, HEDGESPEC_QWEN8B, METASD_EAGLE_OVERHEAD, METASD_LENGTH, PAPERS,
        SETTINGS, Setting, alpha_of, from_speedups, mean_tokens, metasd_table, metasd_world,
        multilingual_overhead, setting,
    )
    from draftwise_lab.sim.regret import (
        best_plan_curve, exp3spec_bound, fixed_mats, geometric_lower_bound, metasd_leading_term,
        prepare, regret_curve, ucbspec_bound,
    )
    from draftwise_lab.sim.request import (
        GLANCE_WEIGHT, MAX_BACKLOG, PROBE_TOKENS, Reading, SimulatedRequest,
    )
    from draftwise_lab.sim.text import PROMPT_TOKENS, Retrieval, Text, Track, runs_of
    from draftwise_lab.sim.traces import (
        ARRAYS, Recorded, RoundTrace, costs_by_batch, measured_costs, trace_setting,
    )

__getattr__, __dir__ = exports(__name__)
