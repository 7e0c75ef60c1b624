"""INSIDE a draft: when to stop drafting; each a leaf after the protocol ``StopRule``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.stop_rules.head import read_head as read_head
    from draftwise.stop_rules.tapout import TABLE_1 as TABLE_1
    from draftwise.stop_rules.tapout import TapOutToken as TapOutToken
    from draftwise.stop_rules.tapout import split_rules as split_rules
    from draftwise.stop_rules.thresholds import AdaEdl as AdaEdl
    from draftwise.stop_rules.thresholds import Fixed as Fixed
    from draftwise.stop_rules.thresholds import MaxConfidence as MaxConfidence

__getattr__, __dir__ = exports(__name__)
