"""``draftwise train head``: SpecDec++'s acceptance head for a target and a drafter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import Output, quiet, refused_values
from draftwise.types import DraftwiseError

LABELS = ("sampled", "analytic")


@command
def head(
    *,
    target: o.Target,
    drafter: Annotated[
        str,
        typer.Option(
            "--drafter",
            "-d",
            metavar="SPEC",
            help="The drafter whose tokens it judges, a model: PATH, lm:PATH or zoo:NAME.",
        ),
    ],
    prompts: t.Prompts,
    out: t.Out,
    depth: Annotated[
        int, typer.Option(min=0, help="Residual layers before the last (the paper's D).")
    ] = 3,
    w_rej: Annotated[
        float, typer.Option(help="Weight of rejected tokens in the loss: 1, 3, 6, 12.")
    ] = 6.0,
    label: Annotated[
        str, typer.Option(help="sampled: min(1, p/q) of the token; analytic: sum of min(p, q).")
    ] = "analytic",
    mixing: Annotated[
        float, typer.Option(help="Share of the target's own tokens that are read.")
    ] = 0.15,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", "-t", metavar="T", help="At which answers and drafts are drawn."
        ),
    ] = 1.0,
    tied: Annotated[
        bool, typer.Option("--tied", help="One residual layer D times, as released.")
    ] = False,
    epochs: Annotated[float, typer.Option(help="Passes over all judged tokens.")] = 12.0,
    lr: t.Rate = 2e-3,
    answers: t.Answers,
    as_json: o.AsJson = False,
    hardware: o.Hardware,
) -> None:
    """Train a head that ends drafts where a token will probably be rejected.

    The target answers the prompts, the drafter is asked at every position, and the head learns from
    the drafter's hidden states. Put it into the drafter's folder as `head`, and the preset
    `specdecpp` finds it. Answers and judged tokens are kept in the work folder, so that a second
    head for the same models costs its own training only.
    """
    folder, seed = answers.folder(out), answers.seed
    with quiet(), refused_values():
        if label not in LABELS:
            raise DraftwiseError(f"unknown label {label!r}; the labels are: {', '.join(LABELS)}")
        own = t.check_inputs(target, hardware, prompts, drafter)
        scene = t.load_scene(target, hardware)
        given = scene.encode_all(t.gather(own, scene, folder, answers), answers.max_new_tokens)
        loaded = t.load_drafter(drafter, scene, hardware)
        from draftwise.train import head as h

        options = h.HeadOptions(depth, w_rej, label, tied, epochs, lr, seed=seed)  # type: ignore[arg-type]
        setting = h.Setting(scene.target.module, loaded.model.module, temperature, mixing, seed)
    inputs = {
        "target": scene.target.name,
        "drafter": loaded.model.name,
        "prompts": t.fingerprint(given),
        "numbers": [temperature, mixing, answers.max_new_tokens, answers.rows, seed],
    }
    with quiet(), t.working_in(folder, inputs) as bars:
        texts = scene.answers(given, [temperature], folder / "answers.jsonl", answers, bars)
        judged = h.judge_texts(setting, texts, folder / "judged", bars.stage("judging", len(texts)))
        kind = "tied" if tied else "head"
        name = f"{kind}-D{depth}-w{w_rej:g}-{label}-{seed}-{epochs:g}-{lr:g}.pt"
        steps = h.head_settings(judged.taught, options).steps
        measured = h.make_head(
            setting, judged, options, out, checkpoint=folder / name,
            progress=bars.stage("training", steps),
        )  # fmt: skip
        t.write_report(out, measured.numbers)
    try:
        h.plot_reliability(measured.curves, out / "reliability.png")
    except DraftwiseError as error:  # matplotlib is missing
        print(f"no reliability.png: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(measured.numbers))
    else:
        _show(measured.numbers, out)


def _show(numbers: dict[str, Any], out: Path) -> None:
    table = Table("held-out drafts", "as trained", "without the weight", title=f"{out}")
    for name, key in (("KL, nats", "kl"), ("calibration error", "ece")):
        table.add_row(name, f"{numbers[key]:.4f}", f"{numbers[key + '_without_weight']:.4f}")
    table.add_row("KL of their mean acceptance", f"{numbers['kl_of_the_mean']:.4f}", "")
    biases = zip(numbers["product_bias"], numbers["product_bias_without_weight"], strict=True)
    for depth, (raw, undone) in enumerate(biases, 1):
        if depth in {1, 2, 4, 8}:
            truth = numbers["product_truth"][depth - 1]
            name = f"bias of the product of {depth} (truth {truth:.2f})"
            table.add_row(name, f"{raw:+.3f}", f"{undone:+.3f}")
    Output().print(table)
