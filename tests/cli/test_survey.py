"""``draftwise models --check``: what it finds, and the page it writes."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.cli.survey import Finding, all_types, check_type, chi_square
from draftwise.cli.survey_page import page


def test_a_type_that_is_served_and_one_that_is_not() -> None:
    assert {"llama", "qwen3_next", "bloom"} <= set(all_types())
    served = check_type("qwen3_next", is_quick=True)
    assert served.is_served
    assert served.has_states
    refused = check_type("bloom", is_quick=True)
    assert not refused.is_served
    assert "ragged KV cache" in refused.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_chi_square_tells_laws_apart(wrong: bool) -> None:
    law = np.array([0.5, 0.25, 0.125, 0.125])
    drawn = np.random.default_rng(0).multinomial(2000, law[::-1] if wrong else law)
    assert (chi_square(drawn, law * 2000) > 1e-4) is not wrong


def test_the_page_counts_what_it_shows() -> None:
    findings = [Finding("a", rows="packed", has_trees=True), Finding("b", "no | masks")]
    text = page(findings, "the command")
    assert "| served | 1 of 2 |" in text
    assert "| b | no / masks |" in text
