"""Reports on bench results, trace replays, advice for other engines, and sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise_lab.bench.advice import (
        ENGINES, Source, advise, batch_table, choose, play_trace, transformers, vllm,
    )
    from draftwise_lab.bench.charts import family, short
    from draftwise_lab.bench.contest import (
        ContestResult, Recorder, comparisons, contest_results, make_contestants, measure,
    )
    from draftwise_lab.bench.peers import (
        Known, Peer, PeerContestant, check_methods, expand, parse as parse_contestant,
    )
    from draftwise_lab.bench.records import (
        TRACE, ContestRun, ContestSettings, RunStore, course, prepare, whole_turns,
    )
    from draftwise_lab.bench.report import SECTIONS, STYLE, report_colours
    from draftwise_lab.bench.scout import Question, sources_of
    from draftwise_lab.bench.studio import file_name
    from draftwise_lab.bench.sweep import (
        Field, Point, Run, Way, discard_at, draw, fixed_ways, frontier, gain, head_ways, point,
        regress,
    )

__getattr__, __dir__ = exports(__name__)
