"""Drafters: retrieval, language models and trained heads, behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.drafters.eagle import EagleDrafter as EagleDrafter, EagleRunner
    from draftwise.drafters.lm import LMDrafter as LMDrafter, LMRunner
    from draftwise.drafters.drawing import Chain
    from draftwise.drafters.drawing import without_replacement
    from draftwise.drafters.session import NeuralSession
    from draftwise.drafters.protocol import Context, Drafter, DraftTask
    from draftwise.drafters.retrieval import (
        DatastoreDrafter, LookupDrafter, RetrievalSession, SuffixDrafter,
    )

__getattr__, __dir__ = exports(__name__)
