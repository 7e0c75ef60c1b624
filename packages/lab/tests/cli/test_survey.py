"""``draftwise models --check``: its findings, and the file it writes."""

from __future__ import annotations

import json
from importlib.metadata import version

import numpy as np
import pytest

from draftwise_lab.cli.survey import Finding, all_types, check_type, chi_square, findings_of, record


def test_a_type_that_is_served_and_one_that_is_not() -> None:
    assert {"llama", "qwen3_next", "bloom"} <= set(all_types())
    refused = check_type("bloom", is_quick=True)
    assert not refused.is_served
    assert "ragged KV cache" in refused.reason


@pytest.mark.parametrize(
    ("name", "kinds", "has_states"),
    [
        ("qwen3_next", ("linear", "full"), True),
        ("inkling_text", ("hybrid_sliding", "hybrid"), True),
        ("deepseek_v3", ("full",), False),  # values narrower than keys
    ],
)
def test_types_that_are_served(name: str, kinds: tuple[str, ...], has_states: bool) -> None:
    found = check_type(name, is_quick=True)
    assert (found.reason, found.kinds, found.has_states) == ("", kinds, has_states)


def test_texts_and_the_law_are_compared() -> None:
    """XGLM accepts only masks with all rows."""
    found = check_type("xglm", num_tokens=20)
    assert found.reason == ""
    assert found.law is not None


@pytest.mark.parametrize("wrong", [False, True])
def test_chi_square_tells_laws_apart(wrong: bool) -> None:
    law = np.array([0.5, 0.25, 0.125, 0.125])
    drawn = np.random.default_rng(0).multinomial(2000, law[::-1] if wrong else law)
    assert (chi_square(drawn, law * 2000) > 1e-4) is not wrong


def test_what_was_found_can_be_gone_on_with() -> None:
    findings = [
        Finding("a", "", True, "packed", True, ("linear", "full"), 0.25),
        Finding("b", "no | masks"),
        Finding("c", rows="alone"),
    ]
    text = json.dumps(record(findings))
    assert findings_of(text) == {one.type: one for one in findings}
    for name, other in ((version("transformers"), "4.0"), ('"tokens": 300', '"tokens": 20')):
        assert name in text
        assert findings_of(text.replace(name, other)) == {}
