"""Benchmarks: prompts from any source, methods, paired timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.bench.results import versions
    from draftwise.bench.suites import (
        DEFAULT, GRAMMAR, PLAIN, Method, drafter_and_length, parse_method, with_plain,
    )
    from draftwise.bench.results import (
        FEW_PROMPTS, SHORT_TOKENS, Ratio, Row, Run, Sheet, Timing, cautions, extent, interval,
        make_sheet, ratio, rows, summary, turns,
    )
    from draftwise.bench.session import (
        Asked, Contestant, Encoder, OurContestant, TimedReply, as_run, contest,
    )
    from draftwise.bench.suites import Item, Suite, load_suite, read_items, usual_items

__getattr__, __dir__ = exports(__name__)
