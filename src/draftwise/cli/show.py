"""How results look: colours by drafter, the summary line, bars and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from draftwise.colours import drafter_colours
from draftwise.types import NONE

if TYPE_CHECKING:
    from draftwise.engine.paint import Piece
    from draftwise.engine.request import Stats

PLAIN_STYLE = "dim"
"""Of the target's own tokens, and of rounds without a draft."""


def colours(drafters: Sequence[str]) -> dict[str, str]:
    """A style for each drafter, in order; the target's own tokens stay in the background."""
    return drafter_colours(drafters) | {"target": PLAIN_STYLE, NONE: PLAIN_STYLE}


def painted(pieces: Sequence[Piece], styles: Mapping[str, str]) -> Text:
    """Pieces of an answer in their writers' colours."""
    text = Text()
    for piece, source in pieces:
        text.append(piece, styles.get(source, ""))
    return text


def legend(styles: Mapping[str, str]) -> Text:
    """Each writer's name in its colour."""
    text = Text()
    for name, style in styles.items():
        if name != NONE:
            text.append("■ ", style).append(f"{name}  ", style)
    return text


def broken(name: str, width: int) -> str:
    """A long name on several lines of at most ``width``, broken after marks and not in words.

    >>> broken("transformers:generalistx20/confidence", 30).split("\\n")
    ['transformers:generalistx20/', 'confidence']
    """
    lines = [""]
    for part in re.findall(r"[^/:@,+ ]*[/:@,+ ]|[^/:@,+ ]+", name):
        if len(lines[-1]) + len(part) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def rate(value: float) -> str:
    """Four digits, and never a power of ten.

    >>> rate(72.3149), rate(12345.6)
    ('72.31', '12346')
    """
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def signed(regret: float) -> str:
    """A regret with its sign, without a minus zero."""
    return f"{round(regret, 1) + 0.0:+.1f}"


def regret_note(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """What the column ``regret`` says; empty where there is none."""
    if not any("regret" in row for row in rows.values()):
        return ""
    return "regret: rounds more (-: fewer) than the policy's best fixed plan in hindsight"


def shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Parts of the whole, largest first; nothing where nothing was counted."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return {name: value / total for name, value in ordered if value > 0}


def percentages(counts: Mapping[str, float], least: float = 0.005) -> str:
    """``"code 61%  none 39%"``: the shares that are worth a word."""
    return "  ".join(f"{name} {part:.0%}" for name, part in shares(counts).items() if part >= least)


def summary(stats: Stats) -> str:
    """One line about one answer (or several taken together)."""
    seconds = sum(stats.seconds_by_phase.values())
    parts = [
        f"{stats.num_emitted} tokens in {seconds:.2f} s",
        f"{stats.tok_per_s:.1f} tok/s",
        f"{stats.num_rounds} rounds, MAT {stats.mean_accepted_tokens:.2f}",
    ]
    if stats.num_drafted:
        parts.append(f"acceptance {stats.draft_acceptance_rate:.2f}")
    parts.append(f"pulls: {percentages(stats.pulls)}")
    return " · ".join(parts)


def total(stats: Sequence[Stats], are_together: bool = False) -> Stats:
    """Counts added up; seconds too, unless these rows ran together: then those of the longest."""
    from draftwise.engine.request import Stats

    whole = Stats()
    for one in stats:
        whole.num_rounds += one.num_rounds
        whole.num_drafted += one.num_drafted
        whole.num_accepted += one.num_accepted
        whole.num_emitted += one.num_emitted
        whole.pulls.update(one.pulls)
        for phase, seconds in one.seconds_by_phase.items():
            before = whole.seconds_by_phase[phase]
            whole.seconds_by_phase[phase] = (
                max(before, seconds) if are_together else before + seconds
            )
    return whole
