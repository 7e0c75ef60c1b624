"""Commands that `draftwise` gains with the lab."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise_lab.cli.simulate import simulate as simulate_command
    from draftwise_lab.cli.survey import Finding as Finding
    from draftwise_lab.cli.survey import all_types as all_types
    from draftwise_lab.cli.survey import check_type as check_type
    from draftwise_lab.cli.survey import chi_square as chi_square
    from draftwise_lab.cli.survey import findings_of as findings_of
    from draftwise_lab.cli.survey import page as page

__getattr__, __dir__ = exports(__name__)
