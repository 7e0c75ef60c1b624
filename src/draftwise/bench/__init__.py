"""Benchmarks: prompt suites, methods and baselines, paired timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.bench.environment import commit, versions
    from draftwise.bench.methods import DEFAULT, Known, Ours, Peer, check_methods, expand
    from draftwise.bench.methods import parse_method
    from draftwise.bench.results import Timing, cautions, make_sheet, ratio, turns
    from draftwise.bench.results import results as results_of
    from draftwise.bench.runs import BenchSettings, Run, RunStore, prepare, whole_turns
    from draftwise.bench.session import (
        TRACE, Asked, Contest, Contestant, Encoder, Question, TimedReply, make_contestants, measure,
    )
    from draftwise.bench.suites import Item, Suite, load_suite

__getattr__, __dir__ = exports(__name__)
