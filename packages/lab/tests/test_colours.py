"""Each drafter has its own colour, the same everywhere, with enough contrast."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from bench.test_contest_results import made_up

from draftwise.cli.show import colours
from draftwise.colours import PALETTE, drafter_colours
from draftwise.serve.app import PAGE
from draftwise_lab.bench.report import STYLE, report_colours

NAMES = [f"drafter{index}" for index in range(len(PALETTE))]
BACKGROUNDS = sorted(set(re.findall(r"--(?:back|card): (#[0-9a-f]{6})", STYLE + PAGE.text)))


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``, 0 to 1, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_twelve_drafters_have_different_colours_and_further_ones_repeat_them() -> None:
    found = drafter_colours([*NAMES, "more"])
    assert len({found[name] for name in NAMES}) == len(NAMES)
    assert found["more"] == PALETTE[0]
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
    assert json.loads(found[1]) == list(expected.values())


def test_rules_and_plans_of_a_policy_take_no_drafters_colour() -> None:
    arms = ["none", "adaedl", "lookupx8", "x", "svip", *(f"xx{n}" for n in range(5))]
    runs = [replace(run, course={"arms": arms, "sources": ["x"]}) for run in made_up()[:3]]
    found = report_colours(["x", "lookup"], runs)
    assert found.keys() == {"x", "lookup", *arms}
    assert len(set(found.values())) == len(found)
    assert drafter_colours(["x", "lookup"]).items() <= found.items()
