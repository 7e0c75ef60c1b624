"""INSIDE a draft: when to stop drafting; each a leaf behind the protocol ``Guide``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.guides.adaedl import AdaEdl as AdaEdl
    from draftwise.guides.any_of import TABLE_1 as TABLE_1
    from draftwise.guides.any_of import split_rules as split_rules
    from draftwise.guides.confidence import MaxConfidence as MaxConfidence
    from draftwise.guides.fixed import Fixed as Fixed
    from draftwise.guides.head_file import read_head as read_head
    from draftwise.guides.tapout_token import TapOutToken as TapOutToken

__getattr__, __dir__ = exports(__name__)
