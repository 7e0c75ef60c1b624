"""Stop rules decide whether to draft one more token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.stop_rules.head import read_head
    from draftwise.stop_rules.tapout import TABLE_1, TapOutToken, split_rules
    from draftwise.stop_rules.thresholds import AdaEdl, Fixed, MaxConfidence

__getattr__, __dir__ = exports(__name__)
