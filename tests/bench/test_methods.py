"""Method specs as users type them."""

from __future__ import annotations

import pytest

from draftwise.bench.suites import parse_method, with_plain
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError

DRAFTERS = ["small", "lookup"]


def test_presets_and_fixed_plans() -> None:
    metasd = parse_method("metasd@2,4", DRAFTERS)
    assert (metasd.setting.lengths, metasd.drafter) == ((2, 4), None)
    assert metasd.setting.policy == PRESETS["metasd"].policy
    fixed = parse_method("fixed:smallx4/max-confidence:0.4", DRAFTERS)
    assert (fixed.drafter, fixed.setting.policy) == ("small", "fixed:0")
    assert [str(p) for p in fixed.setting.plans(["small"])] == ["smallx4/max-confidence:0.4"]


def test_plain_decoding_comes_first_and_once() -> None:
    assert with_plain(["metasd", "plain", "fixed:lookupx2", "metasd"]) == [
        "plain", "metasd", "fixed:lookupx2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nope", "unknown method"),
        ("transformers", "unknown method 'transformers'; write plain, a preset"),
        ("metasd@x", "write lengths as"),
        ("metasd@0", "lengths are 1 or more"),
        ("fixed:small", "names no plan"),
        ("fixed:smallx0", "at least one token|1 or more"),
        ("fixed:otherx3", "no drafter 'other'; there are: small, lookup"),
        ("fixed:smallx3/nope", "stop rule names are"),
    ],
)
def test_mistakes_say_what_is_valid(spec: str, message: str) -> None:
    with pytest.raises(DraftwiseError, match=message):
        parse_method(spec, DRAFTERS)


def test_names_are_checked_before_anything_is_known_of_drafters() -> None:
    assert parse_method("fixed:whoeverx3").drafter == "whoever"
