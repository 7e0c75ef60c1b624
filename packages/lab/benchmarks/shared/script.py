"""A benchmark as a declaration: its options, its parts, a table and a JSON file of its results."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track as _track
from rich.table import Table
from shared.results import save

Work = Callable[[argparse.Namespace], Mapping[str, Any]]
HELP = {
    "domains": "held-out prompts of each domain",
    "prompts": "of each domain or category",
    "tokens": "of each answer",
    "repeats": "times that everything is measured",
    "suite": "as for draftwise bench",
    "drafter": "a spec; repeatable",
    "work": "folder that keeps what a run can go on from",
    "out": "JSON file for the results",
}
"""Help of options that several benchmarks share."""


def options(
    doc: str | None, parts: Mapping[str, Any] | None = None, /, **declared: Any
) -> argparse.Namespace:
    """Parse the command line.

    declared: by option, its default, whose type is the option's (``False``: a switch; a list: any
    number of values), or a dict of ``add_argument``'s arguments, where ``flags`` replaces the name.
    parts: the choices of ``--part``, by name; the first lines of their docstrings are its help.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if parts:
        lines = {name: (part.__doc__ or name).partition("\n")[0] for name, part in parts.items()}
        about = "; ".join(f"{name}: {line}" for name, line in lines.items()).replace("%", "%%")
        parser.add_argument("--part", choices=list(parts), required=True, help=about)
    for name, given in {**declared, "out": None}.items():
        how = dict(given) if isinstance(given, dict) else _how(given)
        how.setdefault("help", HELP.get(name))
        parser.add_argument(how.pop("flags", "--" + name.replace("_", "-")), **how)
    return parser.parse_args()


def _how(default: Any) -> dict[str, Any]:
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, list):
        return {"nargs": "+", "type": type(default[0]), "default": default}
    return {"default": default, "type": str if default is None else type(default)}


def run(doc: str | None, work: Work | Mapping[str, Work], /, **declared: Any) -> None:
    """Parse the options, run the benchmark (or its ``--part``), and save the result. The exit
    status is 1 if the result has a true ``failed``."""
    parts = work if isinstance(work, Mapping) else {}
    args = options(doc, parts, **declared)
    quiet(getattr(args, "threads", 1))
    chosen = parts[args.part] if isinstance(work, Mapping) else work
    found = chosen(args)
    save(args.out, found)
    if found.get("failed"):
        raise SystemExit(1)


def quiet(threads: int = 1) -> None:
    """Set the number of torch threads, and silence transformers."""
    from transformers.utils import logging as theirs

    torch.set_num_threads(threads)
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)


def track(things: Iterable[Any], what: str = "measuring") -> Iterable[Any]:
    """Iterate with a progress bar on stderr."""
    return _track(list(things), what, console=Console(stderr=True))


def show(
    rows: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]], title: str | None = None
) -> None:
    """Print a table of rows, or of rows by name; nested data appears only in the JSON."""
    table: list[Mapping[str, Any]]
    table = [{"": n, **r} for n, r in rows.items()] if isinstance(rows, Mapping) else list(rows)
    keys = [k for k in dict.fromkeys(k for row in table for k in row) if not _nested(table, k)]
    made = Table(*keys, title=title, box=None, title_justify="left")
    for row in table:
        made.add_row(*(cell(row.get(key)) for key in keys))
    Console(width=200).print(made)


def _nested(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(isinstance(row.get(key), (dict, list)) and not _is_span(row[key]) for row in rows)


def _is_span(value: Any) -> bool:
    if isinstance(value, dict):
        return {"value", "low", "high"} <= value.keys()
    return isinstance(value, (list, tuple)) and len(value) == 3 and isinstance(value[0], float)


def cell(value: Any) -> str:
    """Format a value: three decimals below 100; [value, low, high] as a value with its interval."""
    if value is None:
        return ""
    if _is_span(value):
        ends = [value[k] for k in ("value", "low", "high")] if isinstance(value, dict) else value
        return "{:.3f} ({:.3f} to {:.3f})".format(*ends)
    if isinstance(value, float) or hasattr(value, "dtype"):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def rounded(value: Any, digits: int = 4) -> Any:
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each, digits) for each in value]
    return round(float(value), digits) if isinstance(value, float) else value
