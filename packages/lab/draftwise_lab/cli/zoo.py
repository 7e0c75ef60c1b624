"""`draftwise zoo`: show the bundled models, or rebuild them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from draftwise import zoo
from draftwise.cli.failures import Output
from draftwise.cli.options import command
from draftwise_lab.zoo.recipe import NOMINAL_MINUTES

app = typer.Typer(no_args_is_help=True, help="Describe or rebuild the bundled models.")

_FILE_WIDTH = 160


@app.command()
@command
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show the bundled models, their folders, and each drafter's acceptance by domain."""
    found = zoo.manifest()
    if as_json:
        paths = {"drafters": zoo.drafter_paths(), "eagles": zoo.eagle_paths()}
        told = {
            "target": str(zoo.target_path()),
            **{kind: {n: str(path) for n, path in own.items()} for kind, own in paths.items()},
            "domains": found["domains"],
            "prompts": zoo.prompts(),
            "acceptance": found["acceptance"],
            "acceptance_by_depth": found.get("acceptance_by_depth", {}),
        }
        typer.echo(json.dumps(told))
        return
    console = Output()
    if not console.is_terminal:  # a file has room for full names
        console = Output(width=max(console.width, _FILE_WIDTH))
    console.print(_matrix(found["acceptance"]))
    if depths := found.get("acceptance_by_depth"):
        console.print(_depths(depths))
    console.print(_folders(found["files"]))


def _matrix(acceptance: dict[str, dict[str, float]]) -> Table:
    columns = list(next(iter(acceptance.values())))
    best = {domain: max(row[domain] for row in acceptance.values()) for domain in columns}
    first = Column("drafter", no_wrap=True)
    table = Table(first, *columns, title="acceptance probability at temperature 1")
    for name, row in acceptance.items():
        marks = ("[bold green]" if row[domain] == best[domain] else "" for domain in columns)
        table.add_row(name, *(f"{m}{row[d]:.2f}" for m, d in zip(marks, columns, strict=True)))
    return table


def _depths(acceptance: dict[str, dict[str, list[float]]]) -> Table:
    """Table of the EAGLE heads' alpha at the first token of a draft and at the fourth."""
    columns = list(next(iter(acceptance.values())))
    first = Column("EAGLE head", no_wrap=True)
    table = Table(first, *columns, title="the same of a draft's first > fourth token")
    for name, row in acceptance.items():
        table.add_row(name, *(f"{row[d][0]:.2f} > {row[d][3]:.2f}" for d in columns))
    return table


def _folders(files: dict[str, dict[str, object]]) -> Table:
    heads = Column("model", no_wrap=True), "MB", Column("folder", overflow="fold")
    table = Table(*heads, title="bundled models")
    paths = {"target": zoo.target_path(), **zoo.drafter_paths(), **zoo.eagle_paths()}
    for name, path in paths.items():
        key = next(key for key in files if key.split("/")[-2] == name)
        table.add_row(name, f"{int(str(files[key]['bytes'])) / 1e6:.1f}", str(path))
    return table


@app.command()
@command
def build(
    *,
    work: Annotated[Path, typer.Option(help="Folder for checkpoints; give it again to resume.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to publish weights and prompts. Default: packages/zoo."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Size of the build; the default made the bundled one.")
    ] = NOMINAL_MINUTES,
    processes: Annotated[int, typer.Option(help="Processes of one thread for the drafters.")] = 1,
) -> None:
    """Rebuild the bundled models from scratch; an interrupted build resumes."""
    from draftwise_lab.zoo.build import build as run  # delays the import of torch

    run(out or zoo.home(), work, minutes=minutes, processes=processes)
