"""The findings of ``draftwise models --check`` as a page: ``docs/lab/models.md`` is one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from draftwise_lab.cli.survey import NUM_TOKENS, Finding

_HEAD = """# Types of models

Which causal-LM types of transformers {version} are served, and how. Each was built tiny and random
from its own configuration (a layer of each kind, windows of 3) and put through the
[self-check](../kv_cache.md#the-self-check-at-load). Where column p says so, {tokens} tokens of
greedy text of a single row and of three ragged ones, drafted by a disturbed copy of the model,
equal those of plain forwards in fp32, and a chi-square test compared the distribution of a sampled
token. This page is
written by

```
draftwise models --check all --write {path}
```

| | types |
|---|---|
| served | {served} of {all} |
| of them with states (recurrent, hybrid, short convolutions) | {states} |
| rows packed end to end | {packed} |
| rows padded side by side | {padded} |
| one row at a time | {alone} |
| with trees | {trees} |
| refused or not built | {refused} |

A tiny random model stands for its type, not for a checkpoint: what is loaded is checked again. No
type was tried on a GPU or with fused kernels (`fla`, `mamba_ssm`, `causal_conv1d`) here.

## Served

Rows: *packed* end to end, *padded* side by side, or *alone*, a forward each
([why](../kv_cache.md#packed-and-padded-batches)). Types with states serve chains only. p: of the
chi-square test; texts were equal wherever it stands; - = not compared.

| type | layers | rows | trees | states | p |
|---|---|---|---|---|---|
"""

_TAIL = """
## Refused, and why

| type | reason |
|---|---|
"""


def page(findings: Sequence[Finding], path: Path) -> str:
    """The page in Markdown; path: where it is to lie."""
    served = [finding for finding in findings if finding.is_served]
    rows = [finding.rows for finding in served]
    head = _HEAD.format(
        version=version("transformers"),
        path=path,
        tokens=NUM_TOKENS,
        served=len(served),
        all=len(findings),
        states=sum(finding.has_states for finding in served),
        packed=rows.count("packed"),
        padded=rows.count("padded"),
        alone=rows.count("alone"),
        trees=sum(finding.has_trees for finding in served),
        refused=len(findings) - len(served),
    )
    refused = [f"| {f.type} | {_cell(f.reason)} |" for f in findings if not f.is_served]
    return head + "\n".join(map(_row, served)) + "\n" + _TAIL + "\n".join(refused) + "\n"


def findings_of(text: str) -> dict[str, Finding]:
    """What a page says of each type; nothing where it was another transformers, or fewer tokens."""
    head, _, tables = text.partition("| type |")
    if (
        f" {version('transformers')} are served" not in head
        or f" {NUM_TOKENS} tokens of" not in head
    ):
        return {}
    rows = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in tables.splitlines()
        if line.startswith("| ")
    ]
    found = [_served(*row) if len(row) > 2 else Finding(row[0], row[1]) for row in rows]
    return {finding.type: finding for finding in found if finding.reason != "reason"}


def _served(name: str, kinds: str, rows: str, trees: str, states: str, law: str) -> Finding:
    told = tuple(kinds.split(", ")) if kinds else ()
    p = None if law == "-" else float(law)
    return Finding(name, "", states == "yes", rows, trees == "yes", told, p)


def _row(finding: Finding) -> str:
    law = "-" if finding.law is None else f"{finding.law:.2g}"
    kinds = ", ".join(finding.kinds)
    marks = ["yes" if has else "" for has in (finding.has_trees, finding.has_states)]
    return f"| {finding.type} | {kinds} | {finding.rows} | {marks[0]} | {marks[1]} | {law} |"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("<", "(").replace(">", ")")
