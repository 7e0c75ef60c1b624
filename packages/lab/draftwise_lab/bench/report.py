"""``report.html``: all results of a bench in one file, without scripts or network access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from draftwise.bench.results import cautions, extent, interval
from draftwise.bench.suites import DEFAULT, Suite
from draftwise.colours import drafter_colours
from draftwise.engine.outputs import TARGET, Answer, Ending, RequestOutput, SourceAttribution
from draftwise.types import NONE
from draftwise_lab.bench import charts
from draftwise_lab.bench.records import TRACE, ContestRun
from draftwise_lab.bench.scout import Hindsight, look_back

STYLE = Path(__file__).with_name("report.css").read_text("utf-8")


def page(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def chart(figure: Any, name: str, alt: str) -> str:
    svg = charts.to_svg(figure, name)
    named = svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
    return f"<figure>{named}</figure>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], ours: Sequence[bool] = ()) -> str:
    """An HTML table; cells are already HTML, and the rows in ``ours`` are highlighted."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = []
    for index, row in enumerate(rows):
        mark = ' class="us"' if index < len(ours) and ours[index] else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


_PROMPT_LINES = 5
_TINT = "59"
"""Alpha of a drafter's background colour, the last two digits of #rrggbbaa: text stays readable."""


def samples(
    runs: Sequence[ContestRun], suite: Suite, tokenizer: Any, drafters: Mapping[str, str]
) -> list[str]:
    """A caption, and the default's answers (or the first learning method's) to one prompt per
    domain. drafters: their colours."""
    written = [run for run in runs if run.course]
    if not written:
        return ["No answer was kept."]
    method = next((DEFAULT for run in written if run.method == DEFAULT), written[0].method)
    mine = [run for run in written if run.method == method]
    everyone = [source for run in mine for source in _sources(run)]
    colours = {name: shade for name, shade in drafters.items() if name in everyone}
    words = (
        f"The first prompt of every domain, answered by <code>{escape(method)}</code>. Tokens "
        "without a colour are the target's own: bonus tokens, and what was decoded plainly."
    )
    answers = [_answer(run, suite, tokenizer, colours) for run in mine]
    return [words, _keys(colours, everyone), *answers]


def _sources(run: ContestRun) -> list[str]:
    return list((run.course or {}).get("sources", []))


def _keys(colours: Mapping[str, str], everyone: Sequence[str]) -> str:
    marks = [
        f'<span><i style="background:{colours[name]}"></i>{escape(name)} '
        f'<span class="soft">{everyone.count(name) / len(everyone):.0%}</span></span>'
        for name in colours
    ]
    rest = everyone.count(TARGET) / max(1, len(everyone))
    marks.append(f'<span>{TARGET} <span class="soft">{rest:.0%}</span></span>')
    return f'<div class="keys">{"".join(marks)}</div>'


def _answer(run: ContestRun, suite: Suite, tokenizer: Any, colours: Mapping[str, str]) -> str:
    item = suite.items[run.item]
    lines = item.text.rstrip("\n").split("\n")
    asked = "\n".join(["..."] * (len(lines) > _PROMPT_LINES) + lines[-_PROMPT_LINES:])
    tokens = [token for ids in run.tokens for token in ids]
    pieces = []
    told = Answer(Ending(len(tokens)), tokenizer, by_token=True)
    told.push(tokens)
    output = RequestOutput(token_texts=told.token_texts, sources=_sources(run))
    for piece, source in SourceAttribution().grow(output, told.text):
        text = escape(piece)
        if source in colours:
            tint = f"{colours[source]}{_TINT}"
            text = f'<i style="background:{tint}" title="{escape(source)}">{text}</i>'
        pieces.append(text)
    rounds = sum(run.num_rounds)
    title = f"{item.domain}: {len(tokens)} tokens in {rounds} rounds"
    body = f'<span class="asked">{escape(asked)}</span>\n{"".join(pieces)}'
    return f"<h3>{escape(title)}</h3><pre>{body}</pre>"


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
"""Anchors and titles of the sections, in order."""


def report_colours(drafters: Iterable[str], runs: Sequence[ContestRun]) -> dict[str, str]:
    """Assign each drafter one colour for the whole report; plain decoding gets a muted one. Stop
    rules and fixed plans, which some policies choose among, get the colours after those."""
    arms = {arm for run in runs if run.course for arm in run.course["arms"]}
    return {NONE: charts.SOFT} | drafter_colours([*drafters, *sorted(arms - {NONE})])


def write_report(
    results: Mapping[str, Any],
    runs: Sequence[ContestRun],
    suite: Suite,
    tokenizer: Any,
    folder: Path,
) -> Path:
    hindsight = look_back(folder / TRACE)
    colours = report_colours(results["drafters"], runs)
    said, *answers = samples(runs, suite, tokenizer, colours)
    with charts.style():
        parts = [
            _top(results),
            _section("methods", *_methods(results)),
            _section(
                "domains", chart(charts.speedups(results), "domains", "speedups by domain"),
                _by_domain(results),
            ),
            _section(
                "phases", chart(charts.phases(results), "phases", "milliseconds a token by phase"),
            ),
            _section("cost", chart(charts.mat_against_cost(results), "cost", "MAT against cost")),
            _section("writers", *answers, words=said),
            _learning(runs, hindsight, colours),
            _regret(results, runs),
            _section(
                "plane",
                chart(charts.plane(results, hindsight, colours), "plane", "discards, forwards"),
            ),
            _section("environment", _environment(results)),
        ]  # fmt: skip
    path = folder / FILE
    path.write_text(page(f"draftwise contest: {results['suite']}", parts), "utf-8")
    return path


def _top(results: Mapping[str, Any]) -> str:
    settings, found = results["settings"], results["comparisons"]
    heads = []
    for label, row in found.items():
        which = row["methods"][0] if isinstance(row["methods"], list) else "chosen in hindsight"
        heads.append(
            f'<div class="head"><b>{row["median"]:.2f}x</b>'
            f"<span>{interval(row) or 'no interval'}</span>"
            f"<span>{escape(label)}<br>{escape(charts.short(which))}</span></div>"
        )
    links = " ".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in SECTIONS.items())
    top = (
        f"<h1>draftwise contest: {escape(results['suite'])}</h1>"
        f'<p class="soft">{extent(settings)}, temperature {settings["temperature"]:g}, all methods '
        "interleaved.</p>"
    )
    top += "".join(f"<p><strong>{escape(said)}</strong></p>" for said in cautions(results))
    if heads:
        top += "<p>The speed of draftwise, as a multiple of that of</p>"
        top += f'<div class="heads">{"".join(heads)}</div>'
    return f"{top}<nav>{links}</nav>"


WORDS = {
    "methods": (
        "Speeds are tokens over seconds of all prompts together, prefill included; intervals are "
        "95% of a bootstrap over prompts, of the <em>ratio</em> to plain decoding in the same "
        "loop. MAT counts the bonus token."
    ),
    "domains": (
        "Points are ratios to plain decoding, bars their 95% intervals (none with a single "
        "prompt). Names without a prefix are presets and fixed plans of draftwise; <code>hf</code> "
        "is transformers."
    ),
    "phases": "Where a token's time goes, all prompts together; the fastest methods of each kind.",
    "cost": (
        "Up is more tokens a round, right is a dearer round; on a line through the origin all are "
        "equally fast (prompts included, so plain decoding is at 1, 1). A long draft buys height "
        "with width."
    ),
    "plane": (
        "Each discarded token cost a draft step, each target forward a verification. Lines are one "
        "drafter at every fixed length, from a replay of the trace; stars are oracles that end "
        "every draft just before its first rejection (SpecDec++, figure 3). A method can lie below "
        "a line by choosing its drafter, but not below the last star."
    ),
    "environment": (
        "All methods ran in one process on the same weights, in random order for every prompt; an "
        "answer of each was not counted. We report the median over repeats. cpu_share is what this "
        "process had of the processor, in processors, while it answered: well below the number of "
        "threads, others used the machine."
    ),
}
"""How to read each section, as HTML."""


def _section(key: str, *body: str, words: str = "") -> str:
    title, said = escape(SECTIONS[key]), words or WORDS[key]
    return f'<section id="{key}"><h2>{title}</h2><p>{said}</p>{"".join(body)}</section>'


def _by_speed(results: Mapping[str, Any]) -> list[str]:
    rows = results["methods"]
    return sorted(rows, key=lambda name: -rows[name]["tok_per_s"])


def _methods(results: Mapping[str, Any]) -> tuple[str, str]:
    order = _by_speed(results)
    heads = ("method", "tok/s", "x plain", "95%", "MAT", "accepted / drafted", "same text")
    cells = [_row(name, results["methods"][name]) for name in order]
    skipped = results["settings"].get("skipped", {})
    left_out = "".join(
        f'<p class="soft">{escape(name)} did not take part: {escape(reason)}</p>'
        for name, reason in skipped.items()
    )
    return table(heads, cells, [n == DEFAULT for n in order]), left_out


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


def _by_domain(results: Mapping[str, Any]) -> str:
    parts, order = results["domains"], _by_speed(results)
    cells = [
        [escape(name), *(f"{parts[d][name]['speedup']['median']:.2f}" for d in parts)]
        for name in order
    ]
    whole = table(["times plain", *parts], cells, [name == DEFAULT for name in order])
    return f"<details><summary>every method in every domain</summary>{whole}</details>"


def _learning(runs: Sequence[ContestRun], hindsight: Hindsight, colours: Mapping[str, str]) -> str:
    learners = [run for run in runs if run.course and charts.family(run.method) != "fixed"]
    several = [run for run in learners if len((run.course or {})["arms"]) > 1]
    if not several:
        return _section("learning", words="No method here chooses among plans.")
    domains = [run.domain for run in several]
    domain = "mixed" if "mixed" in domains else domains[0]
    words = (
        f"One prompt of the domain <code>{escape(domain)}</code>: each policy's own value of every "
        "arm after each round (of an arm's plans the best), and below it the drafters. Units are "
        "the policy's own. Then, over the first prompt of every domain: the share of rounds that "
        "went to the drafter which, alone and at its best length, would have been fastest there."
    )
    one = [run for run in several if run.domain == domain]
    return _section(
        "learning", chart(charts.courses(one, colours), "courses", "estimates and pulls by round"),
        "<h3>Rounds with the best drafter</h3>",
        chart(charts.best_arm(several, hindsight), "best", "share of them"), words=words,
    )  # fmt: skip


def _regret(results: Mapping[str, Any], runs: Sequence[ContestRun]) -> str:
    order = _by_speed(results)
    best = next((name for name in order if charts.family(name) == "fixed"), None)
    if best is None:
        return _section("regret", words="No fixed plan was measured: add some.")
    names = [n for n in order if charts.family(n) in {"draftwise", "preset"}][:7]
    words = (
        f"What learning costs: rounds, and time of rounds, above <code>{escape(best)}</code>, the "
        "fixed plan that was fastest over all prompts of this run, up to the same number of "
        "tokens; means over prompts. Below zero is better than any plan fixed in advance."
    )
    figure = charts.regret(runs, names, best, results["settings"]["clock"])
    return _section("regret", chart(figure, "regret", "regret by tokens emitted"), words=words)


def _environment(results: Mapping[str, Any]) -> str:
    found = {"command": results["command"], **results["environment"]}
    versions = found.pop("versions", {})
    found |= {f"version of {name}": value for name, value in versions.items()}
    rows = [[escape(key), f"<code>{escape(str(value))}</code>"] for key, value in found.items()]
    return table(("", ""), rows)
