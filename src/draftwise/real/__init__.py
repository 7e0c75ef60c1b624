"""Pretrained targets installed by ``pip``: located, checked, unpacked once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.real.bundled import RETRIEVAL, drafter_specs, own_folders, own_specs
    from draftwise.real.unpack import PRETRAINED, Pretrained, unpacked

__getattr__, __dir__ = exports(__name__)
