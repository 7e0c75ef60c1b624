"""``draftwise train head``: SpecDec++'s acceptance head for a target and a drafter."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import Output, quiet, refused_values
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.train.head import HeadOptions, Judged, Measured, Setting

LABELS = ("sampled", "analytic")
Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        "-d",
        metavar="SPEC",
        help="The drafter whose tokens it judges, a model: PATH, lm:PATH or zoo:NAME.",
    ),
]
Depth = Annotated[int, typer.Option(min=0, help="Residual layers before the last (the paper's D).")]
WRej = Annotated[float, typer.Option(help="Weight of rejected tokens in the loss: 1, 3, 6, 12.")]
LabelName = Annotated[
    str, typer.Option(help="sampled: min(1, p/q) of the token; analytic: sum of min(p, q).")
]
Mixing = Annotated[float, typer.Option(help="Share of the target's own tokens that are read.")]
Heat = Annotated[
    float,
    typer.Option("--temperature", "-t", metavar="T", help="At which answers and drafts are drawn."),
]
Tied = Annotated[bool, typer.Option("--tied", help="One residual layer D times, as released.")]
Epochs = Annotated[float, typer.Option(help="Passes over all judged tokens.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate.")]


@command
def head(
    *,
    target: o.Target,
    drafter: Drafter,
    prompts: t.Prompts,
    out: t.Out,
    depth: Depth = 3,
    w_rej: WRej = 6.0,
    label: LabelName = "analytic",
    mixing: Mixing = 0.15,
    temperature: Heat = 1.0,
    tied: Tied = False,
    epochs: Epochs = 12.0,
    lr: Rate = 2e-3,
    max_new_tokens: t.MaxNewTokens = 256,
    num_prompts: t.NumPrompts = 1000,
    rows: t.Rows = 32,
    work: t.Work = None,
    seed: t.Seed = 0,
    as_json: o.AsJson = False,
    hardware: o.Hardware,
) -> None:
    """Train a head that ends drafts where a token will probably be rejected.

    The target answers the prompts, the drafter is asked at every position, and the head learns from
    the drafter's hidden states. Put it into the drafter's folder as `head`, and the preset
    `specdecpp` finds it. Answers and judged tokens are kept in the work folder, so that a second
    head for the same models costs its own training only.
    """
    folder = work or out / "work"
    with quiet(), refused_values():
        if label not in LABELS:
            raise DraftwiseError(f"unknown label {label!r}; the labels are: {', '.join(LABELS)}")
        own = t.check_inputs(target, hardware, prompts, drafter)
        scene = t.load_scene(target, hardware)
        texts = t.gather(own, scene, folder, num_prompts, rows=rows, seed=seed)
        given = t.encode_prompts(scene, texts, max_new_tokens)
        loaded = t.load_drafter(drafter, scene, hardware)
        from draftwise.train.head import HeadOptions, Setting

        options = HeadOptions(depth, w_rej, label, tied, epochs, lr, seed=seed)  # type: ignore[arg-type]
        setting = Setting(scene.target.module, loaded.model.module, temperature, mixing, seed)
    inputs = {
        "target": scene.target.name,
        "drafter": loaded.model.name,
        "prompts": t.fingerprint(given),
        "numbers": [temperature, mixing, max_new_tokens, rows, seed],
    }
    with quiet(), t.keeping(folder), t.Bars() as bars:
        t.claim(folder, inputs)
        judged = _judge(scene, setting, given, folder, max_new_tokens, rows, bars)
        measured = _train(setting, judged, options, out, folder, bars)
        report = out / "report.json"
        report.write_text(json.dumps(measured.numbers, indent=1) + "\n", "utf-8")
    _plot(measured, out / "reliability.png")
    if as_json:
        print(json.dumps(measured.numbers))
    else:
        _show(measured.numbers, out)


def _judge(
    scene: t.Scene, setting: Setting, prompts: Sequence[list[int]], folder: Path,
    max_new_tokens: int, rows: int, bars: t.Bars,
) -> Judged:  # fmt: skip
    """The target's answers, and what becomes of drafts along them."""
    from draftwise.train.answers import answers
    from draftwise.train.head import judge_texts

    num = len(prompts)
    texts = answers(
        setting.target,
        prompts,
        [setting.temperature] * num,
        folder / "answers.jsonl",
        max_new_tokens=max_new_tokens,
        eos_token_id=scene.eos_token_id,
        seed=setting.seed,
        rows=rows,
        progress=bars.stage("answers", num),
    )
    return judge_texts(setting, texts, folder / "judged", bars.stage("judging", num))


def _train(
    setting: Setting, judged: Judged, options: HeadOptions, out: Path, folder: Path, bars: t.Bars
) -> Measured:
    from draftwise.train.head import head_settings, make_head

    kind = "tied" if options.tied else "head"
    name = f"{kind}-D{options.num_layers}-w{options.w_rej:g}-{options.label}-{options.seed}"
    steps = head_settings(judged.taught, options).steps
    return make_head(
        setting,
        judged,
        options,
        out,
        checkpoint=folder / f"{name}-{options.epochs:g}-{options.lr:g}.pt",
        progress=bars.stage("training", steps),
    )


def _plot(measured: Measured, path: Path) -> None:
    """The reliability plot; a line on stderr where matplotlib is missing."""
    from draftwise.train.calibration import plot_reliability
    from draftwise.types import DraftwiseError

    try:
        plot_reliability(measured.curves, path)
    except DraftwiseError as error:
        print(f"no {path.name}: {error}", file=sys.stderr)


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
