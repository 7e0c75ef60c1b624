"""The lab's side of ``draftwise bench``: see ``draftwise.bench.Studio``."""

from __future__ import annotations

from draftwise_lab.bench.charts.canvas import check_matplotlib as check_report
from draftwise_lab.bench.report import write_report
from draftwise_lab.bench.scout import look, scout
from draftwise_lab.bench.spec_bench import write_answers

__all__ = ["check_report", "look", "scout", "write_answers", "write_report"]
