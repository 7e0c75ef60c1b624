"""The simulator: policies on text with known acceptance. numpy only."""

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
        Match, Outcome, TextSums, averages, best_plans, every_plan, half_width, look_back,
        make_match, policy_seed, report as text_report, results, run_match, sums_by_text,
    )
    from draftwise_lab.sim.play import (
        HABITS, Contestant, Reference, Run, Trail, best_plan, fixed_path, fold, guides_of,
        make_contestant, make_plans, parse_lengths, play as play_all, score_prompts, totals,
    )
    from draftwise_lab.sim.plots import prepare
    from draftwise_lab.sim.presets import (
        DOMAINS, HEDGESPEC_LLAMA, HEDGESPEC_QWEN8B, METASD_LENGTH, PAPERS, SETTINGS, Setting,
        alpha_of, from_speedups, mean_tokens, metasd_table, multilingual_overhead, setting,
    )
    from draftwise_lab.sim.regret import (
        best_plan_curve, exp3spec_bound, fixed_mats, geometric_lower_bound, metasd_leading_term,
        regret_curve, ucbspec_bound,
    )
    from draftwise_lab.sim.request import (
        GLANCE_WEIGHT, MAX_BACKLOG, PROBE_TOKENS, Reading, SimulatedRequest,
    )
    from draftwise_lab.sim.text import PROMPT_TOKENS, Retrieval, Text, Track, runs_of
    from draftwise_lab.sim.traces import (
        ARRAYS, Recorded, RoundTrace, costs_by_batch, measured_costs, trace_setting,
    )

__getattr__, __dir__ = exports(__name__)
