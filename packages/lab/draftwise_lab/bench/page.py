"""The report's frame: one file, no script, nothing from the network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #626b76; --line: #dfe3e8;
  --back: #ffffff; --card: #f6f8fa; --good: #11723f; --bad: #c0262d;
  --font: system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
  --mono: ui-monospace, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b1; --line: #333b46;
  --back: #12161c; --card: #1a2029; --good: #4cc38a; --bad: #ff6b70; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1060px; padding: 28px 22px 70px; background: var(--back);
  color: var(--ink); font: 15px/1.5 var(--font); }
h1 { font-size: 25px; margin: 0 0 2px; }
h2 { font-size: 18px; margin: 44px 0 4px; }
p { margin: 4px 0 12px; max-width: 78ch; }
.soft, figcaption { color: var(--soft); }
nav { margin: 14px 0 0; line-height: 2; }
nav a { color: var(--ink); margin-right: 14px; white-space: nowrap; }
figure { margin: 10px 0 0; overflow-x: auto; }
svg { display: block; height: auto; }
svg text { font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th, td { padding: 3px 11px; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.us td { font-weight: 650; }
td code { white-space: normal; overflow-wrap: anywhere; }
.yes { color: var(--good); } .no { color: var(--bad); font-weight: 700; }
.heads { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0 6px; }
.head { background: var(--card); border: 1px solid var(--line); border-radius: 9px;
  padding: 11px 16px; min-width: 176px; }
.head b { display: block; font-size: 23px; line-height: 1.25; }
.head span { display: block; font-size: 12.5px; color: var(--soft); max-width: 230px; }
pre { font: 13px/1.6 var(--mono); background: var(--card); border: 1px solid var(--line);
  border-radius: 7px; padding: 11px 14px; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: 6px 0 14px; }
pre .asked { color: var(--soft); }
pre i { font-style: normal; border-radius: 2px; }
.keys { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; margin: 6px 0; }
.keys i { display: inline-block; width: 12px; height: 12px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--soft); }
h3 { font-size: 14px; margin: 16px 0 2px; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The whole file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(anchor: str, title: str, words: str, *body: str) -> str:
    """A heading that can be linked to, what to see in it, and the thing itself."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2><p>{words}</p>{"".join(body)}</section>'


def chart(svg: str, alt: str) -> str:
    """A figure with a description in words."""
    named = svg.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
    return f"<figure>{named}</figure>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], ours: Sequence[bool] = ()) -> str:
    """Cells are HTML already; rows of ``ours`` stand out."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = []
    for index, row in enumerate(rows):
        mark = ' class="us"' if index < len(ours) and ours[index] else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
