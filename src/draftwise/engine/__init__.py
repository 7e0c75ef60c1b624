"""The engine: scheduling, prefill, and the loop that drafts, verifies, commits and learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.engine.outputs import Answer, Detokenizer, Ending
    from draftwise.engine.deciders import Bandits, Controlled
    from draftwise.engine.engine import Engine as Engine
    from draftwise.engine.generation import Generation, Result
    from draftwise.engine.loop import Loop, verify_batch
    from draftwise.nn.check import (
        LosslessnessReport as LosslessnessReport, rounding_bound,
    )
    from draftwise.engine.deciders import SharedPolicyState
    from draftwise.engine.options import Options, RequestParams
    from draftwise.engine.outputs import (
        NO_DRAFT as NO_DRAFT, PHASES as PHASES, TARGET, RequestOutput, Round,
        SourceAttribution, Stats,
    )
    from draftwise.engine.drafting import (
        FEW, FIRST_PIECE, IDLE_S, LARGEST_PIECE, LEAST_PIECE, PrefillBudget,
    )
    from draftwise.engine.request import Request as Request, RoundState as RoundState
    from draftwise.engine.verify import (
        draw as draw, is_broken as is_broken, mass as mass, overlap as overlap, ratio as ratio,
        residual as residual,
    )

__getattr__, __dir__ = exports(__name__)
