"""What follows a bench, or replaces one: reports, replays, sweeps, load on servers."""

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
    from draftwise_lab.bench.charts.canvas import family as family
    from draftwise_lab.bench.charts.canvas import short as short
    from draftwise_lab.bench.load.client import CHAT as CHAT
    from draftwise_lab.bench.load.client import Server as Server
    from draftwise_lab.bench.load.client import Shot as Shot
    from draftwise_lab.bench.load.drive import Load as Load
    from draftwise_lab.bench.load.drive import Volley as Volley
    from draftwise_lab.bench.load.drive import arrivals as arrivals
    from draftwise_lab.bench.load.drive import drive as drive
    from draftwise_lab.bench.load.drive import drive_all as drive_all
    from draftwise_lab.bench.load.numbers import cautions as cautions
    from draftwise_lab.bench.load.numbers import summary as summary
    from draftwise_lab.bench.page import STYLE as STYLE
    from draftwise_lab.bench.replay import play_trace as play_trace
    from draftwise_lab.bench.report import SECTIONS as SECTIONS
    from draftwise_lab.bench.report import report_colours as report_colours
    from draftwise_lab.bench.spec_bench import file_name as file_name
    from draftwise_lab.bench.sweep.figure import draw as draw
    from draftwise_lab.bench.sweep.numbers import Point as Point
    from draftwise_lab.bench.sweep.numbers import discard_at as discard_at
    from draftwise_lab.bench.sweep.numbers import frontier as frontier
    from draftwise_lab.bench.sweep.numbers import gain as gain
    from draftwise_lab.bench.sweep.numbers import point as point
    from draftwise_lab.bench.sweep.numbers import regress as regress
    from draftwise_lab.bench.sweep.runs import Field as Field
    from draftwise_lab.bench.sweep.runs import Run as Run
    from draftwise_lab.bench.sweep.runs import Way as Way
    from draftwise_lab.bench.sweep.runs import fixed_ways as fixed_ways
    from draftwise_lab.bench.sweep.runs import head_ways as head_ways

__getattr__, __dir__ = exports(__name__)
