"""Commands that the lab adds to `draftwise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise_lab.cli.options import StageBars, alone_in
    from draftwise_lab.cli.simulate import simulate as simulate_command
    from draftwise_lab.cli.survey import (
        Finding, all_types, check_type, chi_square, findings_of, record,
    )
    from draftwise_lab.cli.train import LAYOUTS as TRAIN_LAYOUTS, claim

__getattr__, __dir__ = exports(__name__)
