"""Sample answers as HTML, each token in the colour of the drafter that wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from draftwise.bench.methods import DEFAULT
from draftwise.bench.runs import Run
from draftwise.bench.suites import Suite
from draftwise.engine.request import TARGET
from draftwise.engine.text import Detokenizer

_PROMPT_LINES = 5
_TINT = "59"
"""Of a drafter's colour, as the last two digits of #rrggbbaa: text stays readable on it."""


def samples(
    runs: Sequence[Run], suite: Suite, tokenizer: Any, drafters: Mapping[str, str]
) -> list[str]:
    """What to see, and the default's answers (or the first learner's) to one prompt a domain.

    drafters: a colour for each.
    """
    written = [run for run in runs if run.course]
    if not written:
        return ["No answer was kept."]
    names = [run.method for run in written]
    method = DEFAULT if DEFAULT in names else names[0]
    mine = [run for run in written if run.method == method]
    everyone = [source for run in mine for source in _sources(run)]
    colours = {name: shade for name, shade in drafters.items() if name in everyone}
    words = (
        f"The first prompt of every domain, answered by <code>{escape(method)}</code>. Tokens "
        "without a colour are the target's own: bonus tokens, and what was decoded plainly."
    )
    answers = [_answer(run, suite, tokenizer, colours) for run in mine]
    return [words, _keys(colours, everyone), *answers]


def _sources(run: Run) -> list[str]:
    return list((run.course or {}).get("sources", []))


def _keys(colours: Mapping[str, str], everyone: Sequence[str]) -> str:
    """The legend, with each drafter's share of all tokens shown."""
    marks = [
        f'<span><i style="background:{colours[name]}"></i>{escape(name)} '
        f'<span class="soft">{everyone.count(name) / len(everyone):.0%}</span></span>'
        for name in colours
    ]
    rest = everyone.count(TARGET) / max(1, len(everyone))
    marks.append(f'<span>{TARGET} <span class="soft">{rest:.0%}</span></span>')
    return f'<div class="keys">{"".join(marks)}</div>'


def _answer(run: Run, suite: Suite, tokenizer: Any, colours: Mapping[str, str]) -> str:
    item = suite.items[run.item]
    lines = item.turns[0].rstrip("\n").split("\n")
    asked = "\n".join(["..."] * (len(lines) > _PROMPT_LINES) + lines[-_PROMPT_LINES:])
    detokenizer, pieces = Detokenizer(tokenizer), []
    tokens = [token for ids in run.tokens for token in ids]
    for token, source in zip(tokens, _sources(run), strict=True):
        text = escape(detokenizer.push([token]))
        if text and source in colours:
            tint = f"{colours[source]}{_TINT}"
            text = f'<i style="background:{tint}" title="{escape(source)}">{text}</i>'
        pieces.append(text)
    rounds = sum(run.num_rounds)
    title = f"{item.domain}: {len(tokens)} tokens in {rounds} rounds"
    body = f'<span class="asked">{escape(asked)}</span>\n{"".join(pieces)}'
    return f"<h3>{escape(title)}</h3><pre>{body}</pre>"
