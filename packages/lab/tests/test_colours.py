"""Each drafter has its own colour, the same everywhere, with enough contrast."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from bench.test_contest_results import made_up

from draftwise.cli import colours
from draftwise.colours import PALETTE, drafter_colours, luminance
from draftwise.serve import PAGE
from draftwise_lab.bench import STYLE, report_colours

NAMES = [f"drafter{index}" for index in range(40)]
BACKGROUNDS = sorted(set(re.findall(r"--(?:back|card): (#[0-9a-f]{6})", STYLE + PAGE.text)))


def test_no_two_drafters_share_a_colour() -> None:
    found = drafter_colours(NAMES)
    assert len(set(found.values())) == len(NAMES)
    assert drafter_colours(NAMES[:3]).items() <= found.items()


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_every_colour_stands_out_from_every_background(background: str) -> None:
    assert len(BACKGROUNDS) == 4
    for colour in drafter_colours(NAMES).values():
        dark, light = sorted([luminance(colour), luminance(background)])
        assert (light + 0.05) / (dark + 0.05) >= 3.0, colour


def test_terminal_page_and_report_agree() -> None:
    expected = drafter_colours(NAMES)
    assert expected.items() <= colours(NAMES).items()
    assert expected.items() <= report_colours(NAMES, []).items()
    found = re.search(r"PALETTE = (\[.*?\])", PAGE.text)
    assert found is not None
    palette = json.loads(found[1])
    assert palette == list(expected.values())[: len(palette)]
    assert len(palette) > len(PALETTE)


def test_rules_and_plans_of_a_policy_take_no_drafters_colour() -> None:
    arms = ["none", "adaedl", "lookupx8", "x", "svip", *(f"xx{n}" for n in range(20))]
    runs = [replace(run, course={"arms": arms, "sources": ["x"]}) for run in made_up()[:3]]
    found = report_colours(["x", "lookup"], runs)
    assert found.keys() == {"x", "lookup", *arms}
    assert len(set(found.values())) == len(found)
    assert drafter_colours(["x", "lookup"]).items() <= found.items()
