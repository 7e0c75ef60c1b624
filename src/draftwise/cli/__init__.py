"""The command line: one file a command; nothing here imports torch before a command needs it."""

from __future__ import annotations

import typer

from draftwise.cli.bench import bench
from draftwise.cli.datastore import app as datastore
from draftwise.cli.demo import demo
from draftwise.cli.failures import refusals
from draftwise.cli.generate import generate
from draftwise.cli.models import models
from draftwise.cli.replay import advise_, replay
from draftwise.cli.simulate import simulate
from draftwise.cli.sweep import sweep
from draftwise.cli.train import app as train
from draftwise.cli.zoo import app as zoo

app = typer.Typer(
    name="draftwise",
    help="Faster text from any Hugging Face causal LM, losslessly, learning as it goes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(generate)
app.command()(demo)
app.command()(models)
app.command()(simulate)
app.command()(sweep)
app.command()(bench)
app.command()(replay)
app.command("advise")(advise_)
app.add_typer(datastore, name="datastore", help="Datastores to draft from: build one.")
app.add_typer(train, name="train", help="Drafters, and heads that end their drafts: train them.")
app.add_typer(zoo, name="zoo", help="The bundled tiny models: remake them, look at them.")


def main() -> None:
    """The entry point ``draftwise``."""
    with refusals():
        app()
