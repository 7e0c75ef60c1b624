"""``draftwise train eagle``: an EAGLE-3 head for a target, from its own answers or given texts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.eagle_run import Run, Wish
from draftwise.cli.eagle_texts import Asking, as_texts, read_examples
from draftwise.cli.failures import Output, quiet, refused_values
from draftwise.types import DraftwiseError

LAYOUTS = ("authors", "speculators")
HELD_OUT, MOST_HELD_OUT = 10, 64
"""Every tenth text is held out, at most so many."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="jsonl with `text`, `prompt` and `completion`, or `prompt` alone, which the target "
        "answers itself."
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        help="In place of --data, prompts that the target answers: one a line, jsonl with `prompt` "
        "or `messages`, or `self`: an instruct model writes its own."
    ),
]
Lend = Annotated[
    bool,
    typer.Option(
        "--lend", help="Use the target's own lm_head: neither trained nor stored, a third faster."
    ),
]
Regression = Annotated[
    float, typer.Option(min=0.0, help="With --lend: weight of EAGLE-1's regression to its states.")
]
Probe = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of the steps after which to look.")
]
Layout = Annotated[str, typer.Option(help="authors (SafeAILab/EAGLE) or speculators (vLLM).")]
Epochs = Annotated[float, typer.Option(help="Passes over all texts.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate.")]
Passes = Annotated[
    int, typer.Option("--depth", min=1, help="Tokens of a draft that training unrolls.")
]
DraftVocab = Annotated[
    int | None,
    typer.Option(min=2, help="Tokens that it can draft, the most frequent. Default: up to 32000."),
]
MaxLength = Annotated[int, typer.Option(min=8, help="Tokens of a text, at most; the rest is cut.")]
BatchTokens = Annotated[int, typer.Option(min=16, help="Tokens of a step, about.")]
Heats = Annotated[str, typer.Option(help="Temperatures of the target's own answers, in turn.")]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--ask-again",
        help="Keep the target's states on disk, or ask it in every epoch. Default: below 4 GB.",
    ),
]
Bf16 = Annotated[bool | None, typer.Option(help="Mixed precision. Default: on CUDA.")]


@command
def eagle(
    *,
    target: o.Target,
    out: t.Out,
    data: Data = None,
    prompts: Prompts = None,
    num_prompts: t.NumPrompts = 1000,
    layout: Layout = "authors",
    epochs: Epochs = 4.0,
    lr: Rate = 1e-3,
    depth: Passes = 7,
    draft_vocab: DraftVocab = None,
    max_length: MaxLength = 2048,
    batch_tokens: BatchTokens = 2048,
    temperatures: Heats = "0,0.7,1",
    max_new_tokens: t.MaxNewTokens = 256,
    rows: t.Rows = 32,
    keep: Keep = None,
    lend: Lend = False,
    regression: Regression = 0.0,
    probe: Probe = 0.05,
    work: t.Work = None,
    seed: t.Seed = 0,
    bf16: Bf16 = None,
    hardware: o.Hardware,
) -> None:
    """Train an EAGLE-3 head for a target, and say how often each token of a draft is accepted.

    The head learns from the hidden states of three of the target's layers and from its
    distributions, unrolled as deep as it shall draft. An interrupted run goes on where it was.
    Use it as `--drafter eagle:OUT`.
    """
    folder = work or out / "work"
    wish = Wish(
        epochs, lr, depth, draft_vocab, max_length, batch_tokens, seed, keep, bf16, lend,
        regression, probe,
    )  # fmt: skip
    with quiet(), refused_values():
        _check(layout, data, prompts, wish)
        asking = Asking(t.heats(temperatures), max_new_tokens, rows, max_length, seed)
        examples = None if data is None else read_examples(data)
        own = t.check_inputs(target, hardware, prompts)
        scene = t.load_scene(target, hardware)
        if examples is None:
            own = t.gather(own, scene, folder, num_prompts, rows=rows, seed=seed)
            examples = [(given.prompt, None) for given in own]
    inputs = {
        "target": scene.target.name,
        "data": hashlib.sha256(json.dumps(examples).encode()).hexdigest()[:16],
        "numbers": [epochs, lr, depth, draft_vocab, max_length, batch_tokens, seed, temperatures],
        "answers": [max_new_tokens, rows, bf16, lend, regression],
    }
    with quiet(), t.keeping(folder), t.Bars() as bars:
        t.claim(folder, inputs)
        texts = as_texts(scene, examples, asking, bars, folder)
        held_out = texts[::HELD_OUT][:MOST_HELD_OUT]
        taught = [text for i, text in enumerate(texts) if i % HELD_OUT]
        if not taught:
            raise DraftwiseError("that is too little: two texts are needed, one is held out")
        run = Run(scene, taught, held_out, wish, folder, bars)
        report = run.train()
        run.save(out, layout)
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    _show(report, out)


def _check(layout: str, data: Path | None, prompts: Path | None, wish: Wish) -> None:
    """Refuse what needs no model to be refused."""
    if layout not in LAYOUTS:
        raise DraftwiseError(f"unknown layout {layout!r}; the layouts are: {', '.join(LAYOUTS)}")
    if (data is None) == (prompts is None):
        raise DraftwiseError("say what to learn from: --data FILE, or --prompts FILE or self")
    if wish.regression and not wish.lends:
        raise DraftwiseError("--regression leads to states of the target's lm_head: add --lend")


def _show(report: dict[str, Any], out: Path) -> None:
    table = Table("token of a draft", "accepted", title=f"{out}: held-out texts, temperature 1")
    for number, alpha in enumerate(report["acceptance_by_depth"], 1):
        table.add_row(str(number), f"{alpha:.3f}")
    Output().print(table)
