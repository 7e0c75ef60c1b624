"""Pretrained targets that ``pip`` installs: found, checked, unpacked once, with their licences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.real.bundled import RETRIEVAL as RETRIEVAL
    from draftwise.real.bundled import drafter_specs as drafter_specs
    from draftwise.real.bundled import own_folders as own_folders
    from draftwise.real.bundled import own_specs as own_specs
    from draftwise.real.unpack import PRETRAINED as PRETRAINED
    from draftwise.real.unpack import Pretrained as Pretrained
    from draftwise.real.unpack import unpacked as unpacked

__getattr__, __dir__ = exports(__name__)
