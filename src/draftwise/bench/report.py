"""``report.html``: everything that a bench found, for people to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from draftwise.bench import scout
from draftwise.bench.charts import canvas, learning, speed
from draftwise.bench.hindsight import Hindsight, look_back
from draftwise.bench.methods import DEFAULT
from draftwise.bench.page import chart, page, section, table
from draftwise.bench.results import cautions, extent, interval
from draftwise.bench.runs import Run
from draftwise.bench.samples import samples
from draftwise.bench.suites import Suite
from draftwise.colours import drafter_colours
from draftwise.types import NONE

FILE = "report.html"
SECTIONS = {
    "methods": "All methods",
    "domains": "Speedup by domain",
    "phases": "Time by phase",
    "cost": "MAT against cost",
    "writers": "The drafter of each token",
    "learning": "Estimates and pulls",
    "regret": "Regret",
    "plane": "Discards and verifications",
    "environment": "How it was measured",
}
"""Anchors and titles, in order."""


def report_colours(drafters: Iterable[str], runs: Sequence[Run]) -> dict[str, str]:
    """A colour for each drafter in the whole report; plain decoding stays in the background.

    Stop rules and fixed plans, which some policies choose among, get the colours after those.
    """
    arms = {arm for run in runs if run.course for arm in run.course["arms"]}
    return {NONE: canvas.SOFT} | drafter_colours([*drafters, *sorted(arms - {NONE})])


def check_report() -> None:
    """Raise DraftwiseError, before any work is done, if no report can be made."""
    canvas.check_matplotlib()


def write_report(
    results: Mapping[str, Any], runs: Sequence[Run], suite: Suite, tokenizer: Any, folder: Path
) -> Path:
    """Draw everything and write one file; returns its path."""
    hindsight = look_back(folder / scout.FILE)
    colours = report_colours(results["drafters"], runs)
    with canvas.style():
        parts = [
            _top(results),
            _methods(results),
            _domains(results),
            _phases(results),
            _cost(results),
            section("writers", SECTIONS["writers"], *samples(runs, suite, tokenizer, colours)),
            _learning(runs, hindsight, colours),
            _regret(results, runs),
            _plane(results, hindsight, colours),
            _environment(results),
        ]
    path = folder / FILE
    path.write_text(page(f"draftwise bench: {results['suite']}", parts), "utf-8")
    return path


def _top(results: Mapping[str, Any]) -> str:
    settings, found = results["settings"], results["comparisons"]
    heads = []
    for label, row in found.items():
        which = row["methods"][0] if isinstance(row["methods"], list) else "chosen in hindsight"
        heads.append(
            f'<div class="head"><b>{row["median"]:.2f}x</b>'
            f"<span>{interval(row) or 'no interval'}</span>"
            f"<span>{escape(label)}<br>{escape(canvas.short(which))}</span></div>"
        )
    links = " ".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in SECTIONS.items())
    top = (
        f"<h1>draftwise bench: {escape(results['suite'])}</h1>"
        f'<p class="soft">{extent(settings)}, temperature {settings["temperature"]:g}, all methods '
        "interleaved.</p>"
    )
    top += "".join(f"<p><strong>{escape(said)}</strong></p>" for said in cautions(results))
    if heads:
        top += "<p>The speed of draftwise, as a multiple of that of</p>"
        top += f'<div class="heads">{"".join(heads)}</div>'
    return f"{top}<nav>{links}</nav>"


def _methods(results: Mapping[str, Any]) -> str:
    words = (
        "Speeds are tokens over seconds of all prompts together, prefill included; intervals are "
        "95% of a bootstrap over prompts, of the <em>ratio</em> to plain decoding in the same "
        "loop. MAT counts the bonus token."
    )
    rows = results["methods"]
    order = sorted(rows, key=lambda name: -rows[name]["tok_per_s"])
    heads = ("method", "tok/s", "x plain", "95%", "MAT", "accepted / drafted", "same text")
    body = table(heads, [_row(name, rows[name]) for name in order], [n == DEFAULT for n in order])
    skipped = results["settings"].get("skipped", {})
    left_out = "".join(
        f'<p class="soft">{escape(name)} did not take part: {escape(reason)}</p>'
        for name, reason in skipped.items()
    )
    return section("methods", SECTIONS["methods"], words, body, left_out)


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    rate = row["draft_acceptance_rate"]
    same = f"{row['same_tokens']:.0%}"
    if row["lossless"] is not None:
        same = '<span class="yes">yes</span>' if row["lossless"] else '<span class="no">NO</span>'
    return [
        escape(name), f"{row['tok_per_s']:.1f}", f"{row['speedup']['median']:.2f}",
        interval(row["speedup"]), f"{row['mat']:.2f}", "" if rate is None else f"{rate:.2f}",
        same,
    ]  # fmt: skip


def _domains(results: Mapping[str, Any]) -> str:
    words = (
        "Points are ratios to plain decoding, bars their 95% intervals (none with a single "
        "prompt). Names without a prefix are presets and fixed plans of draftwise; <code>hf</code> "
        "is transformers."
    )
    drawn = chart(canvas.to_svg(speed.speedups(results), "domains"), "speedups by domain")
    parts = results["domains"]
    rows = results["methods"]
    order = sorted(rows, key=lambda name: -rows[name]["tok_per_s"])
    cells = [
        [escape(name), *(f"{parts[d][name]['speedup']['median']:.2f}" for d in parts)]
        for name in order
    ]
    whole = table(["times plain", *parts], cells, [name == DEFAULT for name in order])
    more = f"<details><summary>every method in every domain</summary>{whole}</details>"
    return section("domains", SECTIONS["domains"], words, drawn, more)


def _phases(results: Mapping[str, Any]) -> str:
    words = "Where a token's time goes, all prompts together; the fastest methods of each kind."
    drawn = chart(canvas.to_svg(speed.phases(results), "phases"), "milliseconds a token by phase")
    return section("phases", SECTIONS["phases"], words, drawn)


def _cost(results: Mapping[str, Any]) -> str:
    words = (
        "Up is more tokens a round, right is a dearer round; on a line through the origin all are "
        "equally fast (prompts included, so plain decoding is at 1, 1). A long draft buys height "
        "with width."
    )
    drawn = chart(canvas.to_svg(speed.mat_against_cost(results), "cost"), "MAT against cost")
    return section("cost", SECTIONS["cost"], words, drawn)


def _learning(runs: Sequence[Run], hindsight: Hindsight, colours: Mapping[str, str]) -> str:
    learners = [run for run in runs if run.course and canvas.family(run.method) != "fixed"]
    several = [run for run in learners if len((run.course or {})["arms"]) > 1]
    if not several:
        return section("learning", SECTIONS["learning"], "No method here chooses among plans.")
    domains = [run.domain for run in several]
    domain = "mixed" if "mixed" in domains else domains[0]
    words = (
        f"One prompt of the domain <code>{escape(domain)}</code>: each policy's own value of every "
        "arm after each round (of an arm's plans the best), and below it the drafters. Units are "
        "the policy's own. Then, over the first prompt of every domain: the share of rounds that "
        "went to the drafter which, alone and at its best length, would have been fastest there."
    )
    one = [run for run in several if run.domain == domain]
    drawn = canvas.to_svg(learning.courses(one, colours), "courses")
    return section(
        "learning", SECTIONS["learning"], words,
        chart(drawn, "estimates and pulls by round"),
        "<h3>Rounds with the best drafter</h3>",
        chart(canvas.to_svg(learning.best_arm(several, hindsight), "best"), "share of them"),
    )  # fmt: skip


def _regret(results: Mapping[str, Any], runs: Sequence[Run]) -> str:
    rows = results["methods"]
    fixed = [name for name in rows if canvas.family(name) == "fixed"]
    if not fixed:
        return section("regret", SECTIONS["regret"], "No fixed plan was measured: add some.")
    best = max(fixed, key=lambda name: float(rows[name]["tok_per_s"]))
    order = sorted(rows, key=lambda name: -rows[name]["tok_per_s"])
    names = [n for n in order if canvas.family(n) in {"draftwise", "preset"}][:7]
    words = (
        f"What learning costs: rounds, and time of rounds, above <code>{escape(best)}</code>, the "
        "fixed plan that was fastest over all prompts of this run, up to the same number of "
        "tokens; means over prompts. Below zero is better than any plan fixed in advance."
    )
    drawn = canvas.to_svg(
        learning.regret(runs, names, best, results["settings"]["clock"]), "regret"
    )
    return section("regret", SECTIONS["regret"], words, chart(drawn, "regret by tokens emitted"))


def _plane(results: Mapping[str, Any], hindsight: Hindsight, colours: Mapping[str, str]) -> str:
    words = (
        "Each discarded token cost a draft step, each target forward a verification. Lines are one "
        "drafter at every fixed length, from a replay of the trace; stars are oracles that end "
        "every draft just before its first rejection (SpecDec++, figure 3). A method can lie below "
        "a line by choosing its drafter, but not below the last star."
    )
    drawn = chart(
        canvas.to_svg(learning.plane(results, hindsight, colours), "plane"), "discards, forwards"
    )
    return section("plane", SECTIONS["plane"], words, drawn)


def _environment(results: Mapping[str, Any]) -> str:
    found = {"command": results["command"], **results["environment"]}
    versions = found.pop("versions", {})
    found |= {f"version of {name}": value for name, value in versions.items()}
    rows = [[escape(key), f"<code>{escape(str(value))}</code>"] for key, value in found.items()]
    words = (
        "All methods ran in one process on the same weights, in random order for every prompt; an "
        "answer of each was not counted. We report the median over repeats. cpu_share is what this "
        "process had of the processor, in processors, while it answered: well below the number of "
        "threads, others used the machine."
    )
    return section("environment", SECTIONS["environment"], words, table(("", ""), rows))
