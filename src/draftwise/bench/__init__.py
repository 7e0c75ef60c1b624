"""Side by side: suites of prompts, methods and peers, paired timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.bench.contestants import Asked as Asked
    from draftwise.bench.contestants import PeerContestant as PeerContestant
    from draftwise.bench.contestants import Reply as Reply
    from draftwise.bench.environment import command as command
    from draftwise.bench.environment import commit as commit
    from draftwise.bench.environment import environment as describe_environment
    from draftwise.bench.environment import versions as versions
    from draftwise.bench.methods import DEFAULT as DEFAULT
    from draftwise.bench.methods import Known as Known
    from draftwise.bench.methods import Ours as Ours
    from draftwise.bench.methods import Peer as Peer
    from draftwise.bench.methods import check_methods as check_methods
    from draftwise.bench.methods import expand as expand
    from draftwise.bench.methods import parse_method as parse_method
    from draftwise.bench.paired import Method as Method
    from draftwise.bench.paired import Ratio as Ratio
    from draftwise.bench.paired import Timing as Timing
    from draftwise.bench.paired import measure as measure_pairs
    from draftwise.bench.paired import ratio as ratio
    from draftwise.bench.paired import turns as turns
    from draftwise.bench.results import cautions as cautions
    from draftwise.bench.results import make_sheet as make_sheet
    from draftwise.bench.results import results as results_of
    from draftwise.bench.runs import Run as Run
    from draftwise.bench.runs import Store as Store
    from draftwise.bench.runs import Wish as Wish
    from draftwise.bench.runs import prepare as prepare
    from draftwise.bench.runs import whole_turns as whole_turns
    from draftwise.bench.session import TRACE as TRACE
    from draftwise.bench.session import Contest as Contest
    from draftwise.bench.session import Contestant as Contestant
    from draftwise.bench.session import Encoder as Encoder
    from draftwise.bench.session import Question as Question
    from draftwise.bench.session import make_contestants as make_contestants
    from draftwise.bench.session import measure as measure
    from draftwise.bench.suites import Item as Item
    from draftwise.bench.suites import Suite as Suite
    from draftwise.bench.suites import copy_prompts as copy_prompts
    from draftwise.bench.suites import load_suite as load_suite

__getattr__, __dir__ = exports(__name__)
