"""``draftwise train drafter``: a drafter for any target, by self-distillation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import quiet, refused_values
from draftwise.cli.load import loading
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.types import Costs

LOSSES = ("logits", "sequence")
HELD_OUT = 10
"""Every tenth prompt is held out."""


@command
def drafter(
    *,
    target: o.Target,
    prompts: t.Prompts,
    out: t.Out,
    init: Annotated[
        str | None, typer.Option(help="Start from this model: PATH or zoo:NAME.")
    ] = None,
    num_layers: Annotated[
        int | None,
        typer.Option("--layers", help="Start from the target's own first layers, so many."),
    ] = None,
    lend: Annotated[
        bool,
        typer.Option(
            "--lend",
            help="With --layers: its embeddings and lm_head stay the target's, which stores them.",
        ),
    ] = False,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            min=2, help="With --lend: tokens that it can draft, the most frequent. Default: all."
        ),
    ] = None,
    loss: Annotated[
        str, typer.Option("--loss", help="logits: the target's distribution; sequence: its tokens.")
    ] = "logits",
    temperatures: t.Heats = "0,0.3,0.7,1",
    samples: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 1,
    learning: t.Learning,
    probe_only: Annotated[bool, typer.Option("--probe-only", help="Stop after that look.")] = False,
    answers: t.Answers,
    hardware: o.Hardware,
) -> None:
    """Train a drafter on what the target itself would say.

    Before the long part it says what the drafter is worth now, from measured costs, and again after
    a short probe. An interrupted run goes on where it was, and ends with the same weights.
    """
    folder, seed = answers.folder(out), answers.seed
    with quiet(), refused_values():
        heats = t.heats(temperatures)
        if loss not in LOSSES:
            raise DraftwiseError(f"unknown loss {loss!r}; the losses are: {', '.join(LOSSES)}")
        if draft_vocab is not None and not (lend and loss == "logits"):
            raise DraftwiseError("--draft-vocab is for --lend, and for the loss logits")
        if (init is None) == (num_layers is None):
            raise DraftwiseError(
                "say where to start: --init MODEL, or --layers N of the target's own"
            )
        if lend and num_layers is None:
            raise DraftwiseError("--lend is for a start from the target's own: --layers N")
        own = t.check_inputs(target, hardware, prompts, init)
        options = _options(loss, learning, hardware.device, seed)
        scene = t.load_scene(target, hardware)
        encoded = scene.encode_all(t.gather(own, scene, folder, answers), answers.max_new_tokens)
        if len(encoded) < 2:
            raise DraftwiseError(f"{prompts} has one prompt: give at least two, one is held out")
        model = _start(scene, init, num_layers, lend, seed, hardware.threads)
    inputs = {
        "target": scene.target.name,
        "start": [init, num_layers, lend],
        "prompts": t.fingerprint(encoded),
        "answers": [temperatures, samples, answers.max_new_tokens, answers.rows, seed],
        "training": [loss, learning.epochs, learning.lr, learning.batch_tokens, options.bf16,
                     draft_vocab],
    }  # fmt: skip
    with quiet(), t.working_in(folder, inputs) as bars:
        from draftwise.nn.model import CausalModel
        from draftwise.train import drafter as d
        from draftwise.train.speedup import break_even, measure_costs

        held_out = scene.answers(
            encoded[::HELD_OUT], [1.0], folder / "held-out.jsonl", answers, bars
        )
        costs: Costs | None = None
        looks: list[dict[str, Any]] = []

        def look(when: str) -> None:
            """Acceptance on held-out answers, and the speed it promises."""
            nonlocal costs
            model.eval()
            costs = costs or measure_costs(scene.target, CausalModel(model, "drafter"))
            both = {"drafter": model}
            alpha = d.measure_acceptance(scene.target.module, both, held_out)["drafter"]
            pays = break_even(costs.target_s, costs.draft_s["drafter"])
            found = t.worth(when, alpha, costs, f"; it pays from acceptance {pays:.2f} on")
            looks.append({"when": when, "acceptance": alpha, "break_even": pays, **found})

        look("before training")
        taught = [p for i, p in enumerate(encoded) if i % HELD_OUT for _ in range(samples)]
        texts = scene.answers(taught, heats, folder / "answers.jsonl", answers, bars)
        ids = None
        if draft_vocab is not None:
            ids, costs = d.narrow(model, texts, draft_vocab), None
        batches = d.drafter_batches(scene.target.module, texts, options, folder, ids)
        t.train(
            model, d.LOSSES[loss], batches, d.drafter_settings(texts, options), folder / "run.pt",
            bars, look, learning.probe, probe_only=probe_only,
        )  # fmt: skip
        if not probe_only:
            _save(scene, model, out, lend)
            t.write_report(out, looks)
            print(f"wrote {out}; draft with it: --drafter lm:{out}")


def _options(loss: str, learning: t.Learning, device: str, seed: int) -> Any:
    import torch

    from draftwise.train.drafter import DrafterOptions

    on_gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
    mixed = on_gpu if learning.bf16 is None else learning.bf16
    return DrafterOptions(loss, learning.epochs, learning.lr, learning.batch_tokens, mixed, seed)  # type: ignore[arg-type]


def _start(
    scene: t.Scene, init: str | None, num_layers: int | None, lend: bool, seed: int, threads: int
) -> Any:
    """The drafter before training, in float32."""
    if init is not None:
        single = o.Hardware("float32", str(scene.target.device), threads)
        return t.load_drafter(init, scene, single).model.module
    with loading("the target's first layers", threads):
        import torch

        from draftwise.train.drafter import first_layers

        torch.manual_seed(seed)
        assert num_layers is not None
        return first_layers(scene.target.module, num_layers, lends=lend)


def _save(scene: t.Scene, model: Any, out: Path, lends: bool) -> None:
    """Write the drafter in the target's precision, and its tokenizer unless it borrows all."""
    from draftwise.nn.cpu.layout import put_back
    from draftwise.nn.heads.borrower import save_borrower

    out.mkdir(parents=True, exist_ok=True)
    put_back(model)
    if lends:
        save_borrower(model, out, scene.target.dtype)
    else:
        model.to(scene.target.dtype).save_pretrained(out)
        scene.tokenizer.save_pretrained(out)
