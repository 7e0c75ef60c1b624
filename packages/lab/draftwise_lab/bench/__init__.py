"""What follows a bench, or replaces one: reports, replays, advice, sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise_lab.bench.advice import ENGINES as ENGINES
    from draftwise_lab.bench.advice import Source as Source
    from draftwise_lab.bench.advice import advise as advise
    from draftwise_lab.bench.advice import batch_table as batch_table
    from draftwise_lab.bench.advice import choose as choose
    from draftwise_lab.bench.advice import transformers as transformers
    from draftwise_lab.bench.advice import vllm as vllm
    from draftwise_lab.bench.charts import family as family
    from draftwise_lab.bench.charts import short as short
    from draftwise_lab.bench.replay import play_trace as play_trace
    from draftwise_lab.bench.report import SECTIONS as SECTIONS
    from draftwise_lab.bench.report import STYLE as STYLE
    from draftwise_lab.bench.report import report_colours as report_colours
    from draftwise_lab.bench.studio import file_name as file_name
    from draftwise_lab.bench.sweep import Field as Field
    from draftwise_lab.bench.sweep import Point as Point
    from draftwise_lab.bench.sweep import Run as Run
    from draftwise_lab.bench.sweep import Way as Way
    from draftwise_lab.bench.sweep import discard_at as discard_at
    from draftwise_lab.bench.sweep import draw as draw
    from draftwise_lab.bench.sweep import fixed_ways as fixed_ways
    from draftwise_lab.bench.sweep import frontier as frontier
    from draftwise_lab.bench.sweep import gain as gain
    from draftwise_lab.bench.sweep import head_ways as head_ways
    from draftwise_lab.bench.sweep import point as point
    from draftwise_lab.bench.sweep import regress as regress

__getattr__, __dir__ = exports(__name__)
