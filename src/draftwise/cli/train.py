"""``draftwise train``: drafters and what belongs to them, for any pair; one file a command."""

from __future__ import annotations

import typer

from draftwise.cli.train_drafter import drafter
from draftwise.cli.train_eagle import eagle
from draftwise.cli.train_head import head

app = typer.Typer(no_args_is_help=True)
app.command()(drafter)
app.command()(eagle)
app.command()(head)
