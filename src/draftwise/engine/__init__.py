"""The loop: draft, verify, commit, reveal, learn; and what feeds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.engine.attribution import SourceAttribution as SourceAttribution
    from draftwise.engine.attribution import held_back as held_back
    from draftwise.engine.attribution import painted as painted
    from draftwise.engine.costs import LARGEST_PIECE as LARGEST_PIECE
    from draftwise.engine.costs import LEAST_PIECE as LEAST_PIECE
    from draftwise.engine.costs import MeasuredCostModel as MeasuredCostModel
    from draftwise.engine.costs import PrefillBudget as PrefillBudget
    from draftwise.engine.drafting import FEW as FEW
    from draftwise.engine.engine import Engine as Engine
    from draftwise.engine.generation import Generation as Generation
    from draftwise.engine.generation import RequestOutput as RequestOutput
    from draftwise.engine.generation import Result as Result
    from draftwise.engine.loop import Loop as Loop
    from draftwise.engine.losslessness import LosslessnessReport as LosslessnessReport
    from draftwise.engine.losslessness import rounding_bound as rounding_bound
    from draftwise.engine.memory import SharedPolicyState as SharedPolicyState
    from draftwise.engine.memory import UnusableState as UnusableState
    from draftwise.engine.memory import hold as hold
    from draftwise.engine.options import Options as Options
    from draftwise.engine.options import RequestParams as RequestParams
    from draftwise.engine.records import PHASES as PHASES
    from draftwise.engine.records import Round as Round
    from draftwise.engine.request import TARGET as TARGET
    from draftwise.engine.request import Request as Request
    from draftwise.engine.request import RoundState as RoundState
    from draftwise.engine.request import RuleComparison as RuleComparison
    from draftwise.engine.request import Stats as Stats
    from draftwise.engine.text import Answer as Answer
    from draftwise.engine.text import Detokenizer as Detokenizer
    from draftwise.engine.text import Ending as Ending
    from draftwise.engine.verification import verify_batch as verify_batch

__getattr__, __dir__ = exports(__name__)
