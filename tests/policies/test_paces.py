"""When requests count as having begun together, and what their paces are."""

from __future__ import annotations

import pytest

from draftwise.policies.goodput.pace import TOGETHER, Pace, paces_of


def after(*emitted: int) -> Pace:
    pace = Pace()
    for num in emitted:
        pace.saw(num)
    return pace


def test_requests_that_began_together_have_no_paces() -> None:
    assert paces_of([after(*[1] * 40), after(*[3] * (40 - TOGETHER))]) is None
    assert paces_of([Pace()]) is None


def test_paces_of_requests_that_come_and_go() -> None:
    found = paces_of([after(*[4] * 300), after(*[1] * 200), Pace()])
    assert found is not None
    assert found.tolist() == pytest.approx([4.0, 1.0, 1.0], abs=0.01)


def test_the_pace_follows_the_text() -> None:
    assert after(*[5] * 100, *[1] * 100).value < 1.3
