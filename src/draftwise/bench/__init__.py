"""Side by side: suites of prompts, methods and peers, paired timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.bench.environment import (
        command, commit, environment as describe_environment, versions,
    )
    from draftwise.bench.methods import (
        DEFAULT, Known, Ours, Peer, check_methods, expand, parse_method,
    )
    from draftwise.bench.results import (
        Ratio, Timing, cautions, make_sheet, ratio, results as results_of, turns,
    )
    from draftwise.bench.runs import BenchSettings, Run, RunStore, prepare, whole_turns
    from draftwise.bench.session import (
        TRACE, Asked, Contest, Contestant, Encoder, PeerContestant, Question, TimedReply,
        make_contestants, measure,
    )
    from draftwise.bench.suites import Item, Suite, copy_prompts, load_suite

__getattr__, __dir__ = exports(__name__)
