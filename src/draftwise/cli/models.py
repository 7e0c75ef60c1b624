"""``draftwise models``: lists models, drafters and policies, or loads and checks some."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from draftwise import registry
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.failures import Output, refused_values
from draftwise.cli.show import make_table
from draftwise.install import lab_part
from draftwise.registry import PRESETS
from draftwise.settings import DRAFTER_HELP
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.drafters.protocol import Drafter
    from draftwise.nn.model import CausalModel
    from draftwise.speculator import Speculator

_CHECKING = "Checking types of models"
LISTING = o.Models(target=None)


@o.command
def models(
    *,
    wanted: o.Models = LISTING,
    check: str | None = option(
        None,
        "With the lab: build these model types (comma-separated, `all`, or `rest`: those missing "
        "from the file of --write) tiny, with random weights, and report how each is served, or "
        "why not.",
        panel=_CHECKING, metavar="TYPES",
    ),
    quick: bool = option(
        False, "Run the self-check only, without comparing texts.", panel=_CHECKING
    ),
    write: Path | None = option(None, "Write the results of --check as JSON.", panel=_CHECKING),
) -> None:  # fmt: skip
    """List models, drafters and policies; with --target or --drafter, load and check these."""
    console = Output()
    if check is not None:
        with refused_values():
            lab_part("models.check", "models --check")(console, check, quick, write)
        return
    if wanted.target is None and not wanted.drafters:
        for table in _tables():
            console.print(table)
        return
    with refused_values():
        settings = replace(wanted, target=wanted.target or "zoo").settings()
        o.check(settings)
        found = _describe(settings.target, o.load(settings))
    console.print(found)


def _describe(target: str, loaded: Speculator) -> RenderableType:
    from draftwise.drafters.lm import LMDrafter

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("", "model", "parameters", "positions", "dtype", "attention"):
        table.add_column(heading, no_wrap=True)
    table.add_row("target", *_facts(loaded.target))
    for one in loaded.drafters:
        facts = _facts(one.model) if isinstance(one, LMDrafter) else _other_facts(one)
        table.add_row(one.name, *facts)
    found = f"{target}: {loaded.target.vocab_size:,} tokens, shared by all; every self-check passed"
    return Group(Text(found, "bold", overflow="fold"), table)


def _facts(model: CausalModel) -> list[str]:
    num, positions = f"{model.num_parameters:,}", f"{model.max_positions:,}"
    dtype, attention = str(model.dtype), model.module.config._attn_implementation
    return [type(model.module).__name__, num, positions, dtype.removeprefix("torch."), attention]


def _other_facts(drafter: Drafter) -> list[str]:
    from draftwise.drafters.eagle import EagleDrafter

    if not isinstance(drafter, EagleDrafter):
        return [type(drafter).__name__]
    head = drafter.head
    kind = f"{head.title} {','.join(map(str, head.taps))}"
    return [kind, f"{head.num_parameters:,}", "", str(head.dtype).removeprefix("torch.")]


def _tables() -> Iterator[RenderableType]:
    yield _zoo()
    yield _drafters()
    for title, kind in (
        ("policies", "policy"), ("rewards", "reward"), ("feedbacks", "feedback"),
        ("stop rules", "stop rule"),
    ):  # fmt: skip
        rows = [_entry(kind, name) for name in registry.TABLES[kind]]
        yield _entries(title, "--rule" if kind == "stop rule" else f"--{kind}", rows)
    yield _presets()


def _table(title: str, *headings: str) -> Table:
    return make_table(*headings, title=Text(title, "bold"), title_justify="left", padding=(0, 1))


def _zoo() -> RenderableType:
    from draftwise import zoo

    table = _table("bundled models (--target zoo)", "spec", "MB")
    try:
        folders = {"zoo": zoo.target_path()}
        for name, folder in (zoo.drafter_paths() | zoo.eagle_paths()).items():
            folders[f"zoo:{name}"] = folder
    except DraftwiseError as error:
        return Text(str(error), "yellow")
    for spec, folder in folders.items():
        size = (folder / "model.safetensors").stat().st_size
        table.add_row(spec, f"{size / 1e6:.1f}")
    return table


def _drafters() -> Table:
    rows = []
    for name, known in DRAFTER_HELP.items():
        options = [key if d is ... else f"{key}={d}" for key, (_, d) in known.options.items()]
        rows.append(("lm:PATH" if name == "lm" else name, ", ".join(options), known.about))
    rows.append(("zoo, zoo:NAME", "", "All bundled drafters, or one of them (also EAGLE heads)."))
    return _entries("drafters", "--drafter", rows)


def _entries(title: str, flag: str, rows: list[tuple[str, str, str]]) -> Table:
    table = _table(f"{title} ({flag})", "name", "options", "what it does")
    for name, options, about in rows:
        table.add_row(name, Text(options, "dim"), about)
    return table


def _entry(kind: str, name: str) -> tuple[str, str, str]:
    """A name, its options with their defaults, and the first sentence of its docstring."""
    found = registry.lookup(kind, name)
    options = [
        p.name if p.default is inspect._empty else f"{p.name}={p.default}"
        for p in inspect.signature(found).parameters.values()
        if p.name not in registry.FILLED[kind]
    ]
    return name, ", ".join(options), (inspect.getdoc(found) or "").split("\n")[0]


def _presets() -> Table:
    headings = ("name", "policy", "reward", "feedback", "lengths", "source")
    table = _table("presets (--preset)", *headings)
    table.columns[0].no_wrap = True
    for name, preset in PRESETS.items():
        lengths = [*([0] if preset.with_none else []), *preset.lengths]
        shown = ",".join(map(str, lengths)) if len(lengths) < 5 else f"{lengths[0]}..{lengths[-1]}"
        table.add_row(name, preset.policy, preset.reward, preset.feedback, shown, preset.source)
    return table
