"""Specs of a contest's methods as users type them."""

from __future__ import annotations

import pytest

from draftwise.bench.suites import Method
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError
from draftwise_lab.bench.peers import Known, Peer, check_methods, expand
from draftwise_lab.bench.peers import parse as parse_method

DRAFTERS = {"small": True, "lookup": False}


def test_presets_fixed_plans_and_peers() -> None:
    for spec in ("metasd@2,4", "fixed:smallx4/max-confidence:0.4"):
        assert isinstance(parse_method(spec, DRAFTERS), Method)
    assert parse_method("transformers") == Peer("transformers")
    assert parse_method("transformers:lookup") == Peer("transformers:lookup", "lookup", 10)
    spec = "transformers:smallx20/confidence"
    assert parse_method(spec, DRAFTERS) == Peer(spec, "small", 20, "constant", 0.4)
    spec = "transformers:smallx5/heuristic"
    assert parse_method(spec, DRAFTERS) == Peer(spec, "small", 5, "heuristic", 0.0)


def test_groups_are_what_was_found() -> None:
    found = expand(["presets", "fixed", "peers", "metasd"], Known(["lookupx8"], "small"))
    assert found[0] == "plain"
    assert len(found) == len(set(found))
    assert set(PRESETS) <= set(found)
    assert {"fixed:lookupx8", "transformers", "transformers:smallx5/heuristic"} <= set(found)
    for spec in found:
        parse_method(spec, DRAFTERS)
    assert not any(":small" in spec for spec in expand(["peers"], Known([], None)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nope", "unknown method"),
        ("fixed:otherx3", "no drafter 'other'; there are: small, lookup"),
        ("transformers:otherx3", "no drafter 'other'"),
        ("transformers:smallx0", "1 or more tokens"),
        ("transformers:smallx3/nope", "write /heuristic"),
        ("transformers:smallx3/confidence=2", "from 0 to 1"),
        ("transformers:lookupx3/heuristic", "no schedule"),
    ],
)
def test_mistakes_say_what_is_valid(spec: str, message: str) -> None:
    with pytest.raises(DraftwiseError, match=message):
        parse_method(spec, DRAFTERS)


def test_a_lookup_is_no_assistant() -> None:
    with pytest.raises(DraftwiseError, match="models as assistants"):
        parse_method("transformers:otherx3", {"other": False})


def test_names_are_checked_before_anything_is_known_of_drafters() -> None:
    check_methods(["presets", "fixed:whoeverx3"])
    with pytest.raises(DraftwiseError, match="unknown method"):
        check_methods(["nope"])
