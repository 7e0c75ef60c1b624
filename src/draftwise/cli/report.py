"""The demo's tables: both decoders' speed, the drafters, where the time went, what it took."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from draftwise.cli.show import PLAIN_STYLE, shares, total
from draftwise.types import NONE

if TYPE_CHECKING:
    from draftwise.engine.generation import Result
    from draftwise.engine.request import Stats

_BAR = 24


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, answered both ways."""

    domain: str
    plain: Result
    fast: Result

    @property
    def is_identical(self) -> bool:
        """Whether both said the same, token for token."""
        return self.plain.tokens == self.fast.tokens


def report(
    pairs: Sequence[Pair], styles: Mapping[str, str], title: str, is_greedy: bool
) -> RenderableType:
    """All tables, one below the other."""
    fast = total([pair.fast.stats for pair in pairs])
    return Group(
        _speeds(pairs, title, is_greedy),
        "",
        _writers(pairs, fast, styles),
        "",
        _phases(fast),
        "",
        *_facts(pairs, is_greedy),
    )


def _speeds(pairs: Sequence[Pair], title: str, is_greedy: bool) -> Table:
    """A row for each prompt and one for all of them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("prompt", no_wrap=True)
    headings = ("tokens", "plain\ntok/s", f"{title}\ntok/s", "ratio", "MAT", "accepted\n/drafted")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    if is_greedy:
        table.add_column("same\ntext", no_wrap=True)
    for pair in pairs:
        cells = _cells(pair.domain, pair.plain.stats, pair.fast.stats)
        table.add_row(*cells, *([_yes(pair.is_identical)] if is_greedy else []))
    table.add_section()
    plain, fast = (total([r.stats for r in rs]) for rs in zip(*map(_both, pairs), strict=True))
    whole = [_yes(all(pair.is_identical for pair in pairs))] if is_greedy else []
    table.add_row(*_cells("all", plain, fast), *whole, style="bold")
    return table


def _both(pair: Pair) -> tuple[Result, Result]:
    return pair.plain, pair.fast


def _cells(name: str, plain: Stats, fast: Stats) -> list[str]:
    ratio = fast.tok_per_s / plain.tok_per_s if plain.tok_per_s else 0.0
    return [
        name,
        str(fast.num_emitted),
        f"{plain.tok_per_s:.1f}",
        f"{fast.tok_per_s:.1f}",
        f"{ratio:.2f}x",
        f"{fast.mean_accepted_tokens:.2f}",
        f"{fast.draft_acceptance_rate:.2f}",
    ]


def _yes(is_so: bool) -> Text:
    return Text("yes", "green") if is_so else Text("NO", "bold red")


def _writers(pairs: Sequence[Pair], fast: Stats, styles: Mapping[str, str]) -> Table:
    """Rounds and tokens by drafter."""
    pulls = shares(fast.pulls)
    written = shares(Counter(source for pair in pairs for source in pair.fast.sources))
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for heading in ("drafter", "pulls (rounds)", "tokens written"):
        table.add_column(heading)
    names = [name for name in {**pulls, **written} if name not in {NONE, "target"}]
    for name in names:
        table.add_row(
            Text(f"■ {name}", styles.get(name, "")),
            _bar(pulls.get(name, 0.0), styles.get(name, "")),
            _bar(written.get(name, 0.0), styles.get(name, "")),
        )
    table.add_row(
        Text("■ none / target", PLAIN_STYLE),
        _bar(pulls.get(NONE, 0.0), PLAIN_STYLE),
        _bar(written.get("target", 0.0), PLAIN_STYLE),
    )
    return table


def _bar(part: float, style: str) -> Text:
    """A bar as long as the part, and the part in figures."""
    eighths = round(part * _BAR * 8)
    blocks = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text.assemble((blocks, style), " " if blocks else "", f"{part:.0%}")


def _phases(fast: Stats) -> Table:
    """Which share of draftwise's seconds each phase of the round had."""
    table = Table(box=None, padding=(0, 1))
    table.add_column("time by phase")
    parts = shares(fast.seconds_by_phase)
    for phase in parts:
        table.add_column(phase, justify="right")
    table.add_row("", *(f"{part:.1%}" for part in parts.values()))
    return table


def _facts(pairs: Sequence[Pair], is_greedy: bool) -> list[RenderableType]:
    """One line each: whether the words are the same, and what it took."""
    same = _yes(all(pair.is_identical for pair in pairs)) if is_greedy else Text("")
    verdict = "output identical: " if is_greedy else "output: same distribution (sampled)"
    lines = [Text.assemble((f" {verdict}", "bold"), same)]
    peak = peak_memory_bytes()
    if peak is not None:
        lines.append(Text.assemble((" peak memory: ", "bold"), f"{peak / 1e6:.0f} MB"))
    return list(lines)


def peak_memory_bytes() -> int | None:
    """The most memory this process had at once; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
