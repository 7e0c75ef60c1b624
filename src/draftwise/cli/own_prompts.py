"""``draftwise prompts make``: user turns that an instruct model writes itself, into a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import quiet, refused_values
from draftwise.lines import read_text

app = typer.Typer(no_args_is_help=True)

Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FILE", help="Output jsonl file, with one prompt per line."
    ),
]


@app.callback()
def prompts() -> None:
    """Prompts to train and to measure with."""


@app.command()
@command
def make(
    *,
    target: o.Target,
    out: Out,
    num: Annotated[int, typer.Option("--num", min=1, help="Number of prompts.")] = 1000,
    max_tokens: Annotated[
        int, typer.Option(min=8, help="Maximum number of tokens per prompt.")
    ] = 160,
    rows: t.Rows = 64,
    avoid: Annotated[
        list[Path] | None,
        typer.Option(help="Drop prompts that share ten words in a row with this file; repeatable."),
    ] = None,
    seed: t.Seed = 0,
    hardware: o.Hardware,
) -> None:
    """Let an instruct model write prompts, by continuing the bare beginning of a user turn.

    No data is needed (Magpie, arXiv 2406.08464). Unfinished, short, repetitive and repeated turns,
    and those in another script than the template's, are dropped and counted. An interrupted run
    resumes from all samples so far, in `NAME.all` next to the file.
    """
    with quiet(), refused_values():
        t.check_inputs(target, hardware, Path(t.SELF))
        for file in avoid or ():
            read_text(file)
        scene = t.load_scene(target, hardware)
        everything = out.with_name(out.name + ".all")
        texts, share = t.own_prompts(
            scene, everything, t.Answers(num, rows=rows, seed=seed), longest=max_tokens,
            avoid=avoid or (),
        )  # fmt: skip
        lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts]
        out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(f"wrote {out}: {share}")
