"""``draftwise models --check``: the types' findings as they come, and the page they go to."""

from __future__ import annotations

import difflib
from pathlib import Path

from draftwise.cli.failures import Output
from draftwise.types import DraftwiseError
from draftwise_lab.cli.survey import Finding, all_types, survey
from draftwise_lab.cli.survey_page import findings_of, page


def check_types(console: Output, wanted: str, is_quick: bool, write: Path | None) -> None:
    """Check one type, several (by commas), all or the rest, print a line each, and write the page.

    The page is written with each type that is done, and keeps its rows of types not checked now:
    what broke off is taken up by ``rest``, the types that it has no row of.
    Raises DraftwiseError for a type that the installed transformers does not have.
    """
    known = all_types()
    written = {} if write is None or not write.is_file() else findings_of(write.read_text("utf-8"))
    left = {"all": known, "rest": [name for name in known if name not in written]}
    types = left.get(wanted, wanted.split(","))
    for name in types:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known)) or "see --check all"
            raise DraftwiseError(f"no causal-LM type {name!r} in this transformers; near: {near}")

    def show(finding: Finding) -> None:
        if write is not None:
            written[finding.type] = finding
            write.write_text(page([written[name] for name in known if name in written], write))
        if not finding.is_served:
            console.print(f"{finding.type:24} refused: {finding.reason}", markup=False)
            return
        trees = "trees" if finding.has_trees else "chains"
        states = ", states" if finding.has_states else ""
        texts = "" if finding.law is None else f", texts equal, p = {finding.law:.2g}"
        console.print(f"{finding.type:24} {finding.rows}, {trees}{states}{texts}", markup=False)

    found = survey(types, show, is_quick)
    served = sum(finding.is_served for finding in found)
    console.print(f"{served} of {len(found)} are served", style="bold")
