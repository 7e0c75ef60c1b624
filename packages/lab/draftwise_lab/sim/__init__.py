"""The simulator: policies against each other on text whose acceptance is known. numpy only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise_lab.sim.costs import REGIMES as REGIMES
    from draftwise_lab.sim.costs import CostTable as CostTable
    from draftwise_lab.sim.costs import load_costs as load_costs
    from draftwise_lab.sim.environments import Confident as Confident
    from draftwise_lab.sim.environments import Cycles as Cycles
    from draftwise_lab.sim.environments import Drifting as Drifting
    from draftwise_lab.sim.environments import Environment as Environment
    from draftwise_lab.sim.environments import IndependentAlphas as IndependentAlphas
    from draftwise_lab.sim.environments import Load as Load
    from draftwise_lab.sim.environments import Piecewise as Piecewise
    from draftwise_lab.sim.environments import TruncatedGeometric as TruncatedGeometric
    from draftwise_lab.sim.environments import stream as stream
    from draftwise_lab.sim.environments import text_of as text_of
    from draftwise_lab.sim.match import Match as Match
    from draftwise_lab.sim.match import Outcome as Outcome
    from draftwise_lab.sim.match import averages as averages
    from draftwise_lab.sim.match import best_plans as best_plans
    from draftwise_lab.sim.match import every_plan as every_plan
    from draftwise_lab.sim.match import look_back as look_back
    from draftwise_lab.sim.match import make_match as make_match
    from draftwise_lab.sim.match import policy_seed as policy_seed
    from draftwise_lab.sim.match import report as text_report
    from draftwise_lab.sim.match import results as results
    from draftwise_lab.sim.match import run_match as run_match
    from draftwise_lab.sim.play import HABITS as HABITS
    from draftwise_lab.sim.play import Contestant as Contestant
    from draftwise_lab.sim.play import Reference as Reference
    from draftwise_lab.sim.play import Run as Run
    from draftwise_lab.sim.play import Trail as Trail
    from draftwise_lab.sim.play import best_plan as best_plan
    from draftwise_lab.sim.play import fixed_path as fixed_path
    from draftwise_lab.sim.play import fold as fold
    from draftwise_lab.sim.play import guides_of as guides_of
    from draftwise_lab.sim.play import make_contestant as make_contestant
    from draftwise_lab.sim.play import make_plans as make_plans
    from draftwise_lab.sim.play import parse_lengths as parse_lengths
    from draftwise_lab.sim.play import play as play_all
    from draftwise_lab.sim.play import score_prompts as score_prompts
    from draftwise_lab.sim.play import totals as totals
    from draftwise_lab.sim.plots import prepare as prepare
    from draftwise_lab.sim.presets import DOMAINS as DOMAINS
    from draftwise_lab.sim.presets import HEDGESPEC_LLAMA as HEDGESPEC_LLAMA
    from draftwise_lab.sim.presets import HEDGESPEC_QWEN8B as HEDGESPEC_QWEN8B
    from draftwise_lab.sim.presets import METASD_LENGTH as METASD_LENGTH
    from draftwise_lab.sim.presets import PAPERS as PAPERS
    from draftwise_lab.sim.presets import SETTINGS as SETTINGS
    from draftwise_lab.sim.presets import Setting as Setting
    from draftwise_lab.sim.presets import alpha_of as alpha_of
    from draftwise_lab.sim.presets import from_speedups as from_speedups
    from draftwise_lab.sim.presets import mean_tokens as mean_tokens
    from draftwise_lab.sim.presets import metasd_table as metasd_table
    from draftwise_lab.sim.presets import multilingual_overhead as multilingual_overhead
    from draftwise_lab.sim.presets import setting as setting
    from draftwise_lab.sim.regret import best_plan_curve as best_plan_curve
    from draftwise_lab.sim.regret import exp3spec_bound as exp3spec_bound
    from draftwise_lab.sim.regret import fixed_mats as fixed_mats
    from draftwise_lab.sim.regret import geometric_lower_bound as geometric_lower_bound
    from draftwise_lab.sim.regret import metasd_leading_term as metasd_leading_term
    from draftwise_lab.sim.regret import regret_curve as regret_curve
    from draftwise_lab.sim.regret import ucbspec_bound as ucbspec_bound
    from draftwise_lab.sim.request import GLANCE_WEIGHT as GLANCE_WEIGHT
    from draftwise_lab.sim.request import MAX_BACKLOG as MAX_BACKLOG
    from draftwise_lab.sim.request import PROBE_TOKENS as PROBE_TOKENS
    from draftwise_lab.sim.request import Reading as Reading
    from draftwise_lab.sim.request import SimulatedRequest as SimulatedRequest
    from draftwise_lab.sim.text import PROMPT_TOKENS as PROMPT_TOKENS
    from draftwise_lab.sim.text import Retrieval as Retrieval
    from draftwise_lab.sim.text import Text as Text
    from draftwise_lab.sim.text import Track as Track
    from draftwise_lab.sim.text import runs_of as runs_of
    from draftwise_lab.sim.traces import ARRAYS as ARRAYS
    from draftwise_lab.sim.traces import Recorded as Recorded
    from draftwise_lab.sim.traces import RoundTrace as RoundTrace
    from draftwise_lab.sim.traces import costs_by_batch as costs_by_batch
    from draftwise_lab.sim.traces import measured_costs as measured_costs
    from draftwise_lab.sim.traces import trace_setting as trace_setting

__getattr__, __dir__ = exports(__name__)
