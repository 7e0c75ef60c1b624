"""``draftwise train drafter``: a drafter for any target, by self-distillation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import quiet, refused_values
from draftwise.cli.load import loading
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from torch import Tensor

    from draftwise.train.drafter import DrafterOptions
    from draftwise.train.lesson import Text
    from draftwise.types import Costs

LOSSES = ("logits", "sequence")
HELD_OUT = 10
"""Every tenth prompt is held out."""

Init = Annotated[str | None, typer.Option(help="Start from this model: PATH or zoo:NAME.")]
NumLayers = Annotated[
    int | None, typer.Option("--layers", help="Start from the target's own first layers, so many.")
]
Lend = Annotated[
    bool,
    typer.Option(
        "--lend",
        help="With --layers: its embeddings and lm_head stay the target's, which stores them.",
    ),
]
DraftVocab = Annotated[
    int | None,
    typer.Option(
        min=2, help="With --lend: tokens that it can draft, the most frequent. Default: all."
    ),
]
LossOf = Annotated[
    str, typer.Option("--loss", help="logits: the target's distribution; sequence: its tokens.")
]
Heats = Annotated[str, typer.Option(help="Temperatures of the answers, in turn.")]
Samples = Annotated[int, typer.Option(min=1, help="Answers to each prompt.")]
Epochs = Annotated[float, typer.Option(help="Passes over all answers.")]
Rate = Annotated[float, typer.Option("--lr", help="Learning rate.")]
Probe = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of the steps after which to look.")
]
ProbeOnly = Annotated[bool, typer.Option("--probe-only", help="Stop after that look.")]
BatchTokens = Annotated[int, typer.Option(min=16, help="Tokens of a step, about.")]
Bf16 = Annotated[bool | None, typer.Option(help="Mixed precision. Default: on CUDA.")]


@command
def drafter(
    *,
    target: o.Target,
    prompts: t.Prompts,
    out: t.Out,
    num_prompts: t.NumPrompts = 1000,
    init: Init = None,
    num_layers: NumLayers = None,
    lend: Lend = False,
    draft_vocab: DraftVocab = None,
    loss: LossOf = "logits",
    temperatures: Heats = "0,0.3,0.7,1",
    samples: Samples = 1,
    epochs: Epochs = 3.0,
    lr: Rate = 5e-4,
    probe: Probe = 0.05,
    probe_only: ProbeOnly = False,
    max_new_tokens: t.MaxNewTokens = 256,
    rows: t.Rows = 32,
    work: t.Work = None,
    seed: t.Seed = 0,
    bf16: Bf16 = None,
    batch_tokens: BatchTokens = 2048,
    hardware: o.Hardware,
) -> None:
    """Train a drafter on what the target itself would say.

    Before the long part it says what the drafter is worth now, from measured costs, and again after
    a short probe. An interrupted run goes on where it was, and ends with the same weights.
    """
    folder = work or out / "work"
    with quiet(), refused_values():
        heats = t.heats(temperatures)
        if loss not in LOSSES:
            raise DraftwiseError(f"unknown loss {loss!r}; the losses are: {', '.join(LOSSES)}")
        if draft_vocab is not None and not (lend and loss == "logits"):
            raise DraftwiseError("--draft-vocab is for --lend, and for the loss logits")
        _check_start(init, num_layers, lend)
        own = t.check_inputs(target, hardware, prompts, init)
        given = _options(loss, epochs, lr, batch_tokens, seed, bf16, hardware.device)
        scene = t.load_scene(target, hardware)
        texts = t.gather(own, scene, folder, num_prompts, rows=rows, seed=seed)
        encoded = t.encode_prompts(scene, texts, max_new_tokens)
        if len(encoded) < 2:
            raise DraftwiseError(f"{prompts} has one prompt: give at least two, one is held out")
        model = _start(scene, init, num_layers, lend, seed, hardware.threads)
    inputs = {
        "target": scene.target.name,
        "start": [init, num_layers, lend],
        "prompts": t.fingerprint(encoded),
        "answers": [temperatures, samples, max_new_tokens, rows, seed],
        "training": [loss, epochs, lr, batch_tokens, given.bf16, draft_vocab],
    }
    with quiet(), t.keeping(folder), t.Bars() as bars:
        t.claim(folder, inputs)
        run = _Run(scene, model, folder, given, bars)
        held_out = run.answers("held-out", encoded[::HELD_OUT], [1.0], max_new_tokens, rows)
        run.look("before training", held_out)
        taught = [p for i, p in enumerate(encoded) if i % HELD_OUT for _ in range(samples)]
        lesson = run.answers("answers", taught, heats, max_new_tokens, rows)
        ids = run.narrow(lesson, draft_vocab)
        run.train(lesson, ids, held_out, probe, probe_only)
        if not probe_only:
            run.save(out, lend)


def _options(
    loss: str,
    epochs: float,
    lr: float,
    batch_tokens: int,
    seed: int,
    bf16: bool | None,
    device: str,
) -> DrafterOptions:
    import torch

    from draftwise.train.drafter import DrafterOptions

    on_gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
    mixed = on_gpu if bf16 is None else bf16
    return DrafterOptions(loss, epochs, lr, batch_tokens, mixed, seed)  # type: ignore[arg-type]


def _check_start(init: str | None, num_layers: int | None, lend: bool) -> None:
    """DraftwiseError unless one start was named."""
    if (init is None) == (num_layers is None):
        raise DraftwiseError("say where to start: --init MODEL, or --layers N of the target's own")
    if lend and num_layers is None:
        raise DraftwiseError("--lend is for a start from the target's own: --layers N")


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


class _Run:
    """One training run: its answers, its looks at what the drafter is worth, its result."""

    def __init__(
        self, scene: t.Scene, model: Any, folder: Path, options: DrafterOptions, bars: t.Bars
    ) -> None:
        self._scene, self._model, self._folder = scene, model, folder
        self._options, self._bars = options, bars
        self._costs: Costs | None = None
        self.looks: list[dict[str, Any]] = []

    def answers(
        self, name: str, prompts: Sequence[list[int]], heats: list[float], longest: int, rows: int
    ) -> list[Text]:
        """The target's answers, at each temperature in turn."""
        from draftwise.train.answers import answers

        return answers(
            self._scene.target.module,
            prompts,
            [heats[i % len(heats)] for i in range(len(prompts))],
            self._folder / f"{name}.jsonl",
            max_new_tokens=longest,
            eos_token_id=self._scene.eos_token_id,
            seed=self._options.seed,
            rows=rows,
            progress=self._bars.stage(name, len(prompts)),
        )

    def look(self, when: str, held_out: Sequence[Text]) -> None:
        """Say what the drafter is worth: acceptance on held-out answers, and the speed it means."""
        from draftwise.nn.model import CausalModel
        from draftwise.train.distill import measure_acceptance
        from draftwise.train.speedup import break_even, measure_costs, speedups

        self._model.eval()
        target = self._scene.target
        if self._costs is None:
            self._costs = measure_costs(target, CausalModel(self._model, "drafter"))
        target_s, draft_s = self._costs.target_s, self._costs.draft_s["drafter"]
        alpha = measure_acceptance(target.module, {"drafter": self._model}, held_out)["drafter"]
        expected = speedups(alpha, target_s, draft_s)
        length = int(expected.argmax()) + 1
        found = {
            "when": when, "acceptance": alpha, "expected_speedup": float(expected.max()),
            "length": length, "break_even": break_even(target_s, draft_s),
            "target_ms": 1000 * float(target_s[0]), "draft_ms": 1000 * draft_s,
        }  # fmt: skip
        self.looks.append(found)
        Console(stderr=True).print(
            f"{when}: acceptance {alpha:.3f}, expected {expected.max():.2f}x plain decoding with "
            f"drafts of {length} (a target token takes {1000 * target_s[0]:.1f} ms, a drafted one "
            f"{1000 * draft_s:.1f} ms; it pays from acceptance {found['break_even']:.2f} on)",
            highlight=False, soft_wrap=True,
        )  # fmt: skip

    def narrow(self, lesson: Sequence[Text], size: int | None) -> Tensor | None:
        """The tokens that it can draft, if these are not all; a step costs less then."""
        from draftwise.train.drafter import narrow

        if size is None:
            return None
        self._costs = None
        return narrow(self._model, lesson, size)

    def train(
        self,
        lesson: Sequence[Text],
        ids: Tensor | None,
        held_out: Sequence[Text],
        probe: float,
        probe_only: bool,
    ) -> None:
        """Train as far as the probe, look, and then to the end."""
        from draftwise.train.drafter import drafter_batches, drafter_settings, train_drafter

        target = self._scene.target.module
        read = drafter_batches(target, lesson, self._options, self._folder, ids)
        settings = drafter_settings(lesson, self._options)
        update = self._bars.stage("training", settings.steps)
        first = max(1, round(probe * settings.steps))
        for stop in (first,) if probe_only else (first, settings.steps):
            losses = train_drafter(
                self._model, read, settings, self._options,
                checkpoint=self._folder / "run.pt", progress=update, stop_at=stop,
            )  # fmt: skip
            update(len(losses), losses[-1])
            self.look(f"after {len(losses)} of {settings.steps} steps", held_out)

    def save(self, out: Path, lends: bool) -> None:
        """Write the drafter in the target's precision, and its tokenizer unless it borrows all."""
        out.mkdir(parents=True, exist_ok=True)
        from draftwise.nn.cpu.layout import put_back
        from draftwise.nn.heads.borrower import save_borrower

        put_back(self._model)
        if lends:
            save_borrower(self._model, out, self._scene.target.dtype)
        else:
            self._model.to(self._scene.target.dtype).save_pretrained(out)
            self._scene.tokenizer.save_pretrained(out)
        (out / "report.json").write_text(json.dumps(self.looks, indent=1) + "\n", "utf-8")
        print(f"wrote {out}; draft with it: --drafter lm:{out}")
