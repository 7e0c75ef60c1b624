"""Inside vLLM: ``vllm serve MODEL --scheduler-cls draftwise.integrations.vllm.Scheduler``.

Importing this needs no vLLM; its two schedulers do, and refuse one that was not tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.integrations.vllm.arms import make_drafter as make_drafter
    from draftwise.integrations.vllm.clock import Step as Step
    from draftwise.integrations.vllm.clock import StepMeter as StepMeter
    from draftwise.integrations.vllm.controller import Controller as Controller
    from draftwise.integrations.vllm.controller import Limits as Limits
    from draftwise.integrations.vllm.lengths import Lengths as Lengths
    from draftwise.integrations.vllm.metrics import Count as Count
    from draftwise.integrations.vllm.metrics import Exporter as Exporter
    from draftwise.integrations.vllm.metrics import Pace as Pace
    from draftwise.integrations.vllm.nothing import NullProposer as NullProposer
    from draftwise.integrations.vllm.options import Options as Options
    from draftwise.integrations.vllm.options import parse_options as parse_options
    from draftwise.integrations.vllm.pilot import Pilot as Pilot
    from draftwise.integrations.vllm.plugin import with_drafts as with_drafts
    from draftwise.integrations.vllm.refusals import NULL_PROPOSER as NULL_PROPOSER
    from draftwise.integrations.vllm.refusals import check_server as check_server
    from draftwise.integrations.vllm.repair import checked as checked
    from draftwise.integrations.vllm.repair import expand_batch_to_tokens as expand_batch_to_tokens
    from draftwise.integrations.vllm.repair import is_right as is_right
    from draftwise.integrations.vllm.state import StateFile as StateFile
    from draftwise.integrations.vllm.versions import TESTED as TESTED
    from draftwise.integrations.vllm.versions import check_version as check_version

_get, __dir__ = exports(__name__)

__all__ = ["AsyncScheduler", "Scheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return _get(name)
    import vllm

    from draftwise.integrations.vllm.versions import check_version

    check_version(vllm.__version__)
    if name == "Scheduler":
        from draftwise.integrations.vllm.scheduler import Scheduler

        return Scheduler
    from draftwise.integrations.vllm.asynchronous import AsyncScheduler

    return AsyncScheduler
