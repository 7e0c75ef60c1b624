"""Options that `simulate`, `replay` and `advise` share."""

from __future__ import annotations

from typing import Annotated

import typer

from draftwise import registry

_OF_ITS_PAPER = "Default: that of each policy's paper."

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="SPEC",
        help=f"{', '.join(registry.POLICIES)}; repeatable, as POLICY[@LENGTHS][/REWARD[/FEEDBACK]]."
        " Default: the preset's panel (simulate), the default policy (replay).",
    ),
]
Reward = Annotated[str | None, typer.Option(help=f"{', '.join(registry.REWARDS)}. {_OF_ITS_PAPER}")]
Feedback = Annotated[
    str | None, typer.Option(help=f"{', '.join(registry.FEEDBACKS)}. {_OF_ITS_PAPER}")
]
Lengths = Annotated[
    str | None, typer.Option(help="Draft lengths: `8`, `2,4,8`, `0-16` (0 = plain decoding).")
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs", help="gpu, cpu, loaded or a JSON file. Default: a trace's own seconds, if any."
    ),
]
Seeds = Annotated[int, typer.Option(min=1, max=10**6, help="Number of random seeds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one object.")]
