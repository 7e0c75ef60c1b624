"""``draftwise train eagle``: an EAGLE-3 head for a target, from its own answers or given texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.failures import quiet, refusals, refused_values
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.nn.eagle import EagleHead
    from draftwise.train.lesson import Text

HELD_OUT, MOST_HELD_OUT = 10, 64
"""Every tenth text is held out, at most so many."""

Data = Annotated[
    Path,
    typer.Option(
        help="jsonl with `text`, `prompt` and `completion`, or `prompt` alone, which the target "
        "answers itself."
    ),
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
    bool, typer.Option("--keep", help="Keep what the target says on disk: later epochs are faster.")
]
Bf16 = Annotated[bool | None, typer.Option(help="Mixed precision. Default: on CUDA.")]


@dataclass(frozen=True)
class Wish:
    """The numbers of a run."""

    epochs: float
    lr: float
    depth: int
    draft_vocab: int | None
    max_length: int
    batch_tokens: int
    seed: int
    keep: bool
    bf16: bool | None


@refusals()
def eagle(
    target: o.Target,
    data: Data,
    out: t.Out,
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
    keep: Keep = False,
    work: t.Work = None,
    seed: t.Seed = 0,
    bf16: Bf16 = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    threads: o.Threads = 1,
) -> None:
    """Train an EAGLE-3 head for a target, and say how often each token of a draft is accepted.

    The head learns from the hidden states of three of the target's layers and from its
    distributions, unrolled as deep as it shall draft. An interrupted run goes on where it was.
    Use it as `--drafter eagle:OUT`.
    """
    folder = work or out / "work"
    wish = Wish(epochs, lr, depth, draft_vocab, max_length, batch_tokens, seed, keep, bf16)
    with quiet(), refused_values():
        from draftwise.nn.eagle_save import LAYOUTS

        if layout not in LAYOUTS:
            raise DraftwiseError(
                f"unknown layout {layout!r}; the layouts are: {', '.join(LAYOUTS)}"
            )
        heats = t.heats(temperatures)
        examples = read_examples(data)
        scene = t.load_scene(target, dtype=dtype, device=device, threads=threads)
    inputs = {
        "target": scene.target.name,
        "data": hashlib.sha256(data.read_bytes()).hexdigest()[:16],
        "numbers": [epochs, lr, depth, draft_vocab, max_length, batch_tokens, seed, temperatures],
        "answers": [max_new_tokens, rows, bf16],
    }
    with quiet(), t.keeping(folder), t.Bars() as bars:
        t.claim(folder, inputs)
        texts = _texts(scene, examples, wish, bars, folder, (heats, max_new_tokens, rows))
        held_out = texts[::HELD_OUT][:MOST_HELD_OUT]
        taught = [text for i, text in enumerate(texts) if i % HELD_OUT]
        if not taught:
            raise DraftwiseError(f"{data} has too little: two texts are needed, one is held out")
        head, losses = _train(scene, taught, wish, folder, bars)
        report = _measure(scene, head, held_out, losses, depth)
        _save(head, out, layout, scene)
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    _show(report, out)


def read_examples(file: Path) -> list[tuple[str, str | None]]:
    """Prompt and completion of each line; no prompt for a ``text``, no completion to be answered.

    Raises DraftwiseError that names the line which is something else, or where there is none.
    """
    found: list[tuple[str, str | None]] = []
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                found.append(_example(line, f"{file}, line {number}"))
    if not found:
        raise DraftwiseError(f"{file} is empty: write one json object a line")
    return found


def _example(line: str, where: str) -> tuple[str, str | None]:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise DraftwiseError(f"{where} is not json: {error}") from error
    if isinstance(row, dict):
        prompt, text, completion = (row.get(key) for key in ("prompt", "text", "completion"))
        if isinstance(text, str) and text:
            return "", text
        if isinstance(prompt, str) and prompt and (completion is None or completion):
            return prompt, completion if completion is None else str(completion)
    raise DraftwiseError(
        f"{where}: write an object with a string `text`, `prompt` and `completion`, or `prompt`"
    )


def _texts(
    scene: t.Scene,
    examples: Sequence[tuple[str, str | None]],
    wish: Wish,
    bars: t.Bars,
    folder: Path,
    asking: tuple[list[float], int, int],
) -> list[Text]:
    """All texts as tokens, the prompts without a completion answered by the target."""
    from draftwise.train.answers import answers
    from draftwise.train.lesson import Text

    found, unanswered = [], []
    room = min(wish.max_length, scene.target.max_positions)
    heats, max_new_tokens, rows = asking
    for prompt, completion in examples:
        start = scene.encode(prompt) if prompt else []
        if completion is None:
            unanswered.append(start[: max(1, room - max_new_tokens)])
            continue
        rest = scene.tokenizer(completion, add_special_tokens=not prompt)["input_ids"]
        end = [scene.eos_token_id] if scene.eos_token_id >= 0 else []
        tokens = [*start, *rest, *end][:room]
        if max(1, len(start)) < len(tokens):
            found.append(Text(tuple(tokens), max(1, len(start))))
    if not unanswered:
        return found
    return found + answers(
        scene.target.module,
        unanswered,
        [heats[i % len(heats)] for i in range(len(unanswered))],
        folder / "answers.json",
        max_new_tokens=max_new_tokens,
        eos_token_id=scene.eos_token_id,
        seed=wish.seed,
        rows=rows,
        progress=bars.stage("answers", len(unanswered)),
    )


def _train(
    scene: t.Scene, texts: Sequence[Text], wish: Wish, folder: Path, bars: t.Bars
) -> tuple[EagleHead, list[float]]:
    from draftwise.train.eagle import draft_vocabulary, eagle_batches, new_head, train_eagle
    from draftwise.train.lesson import groups
    from draftwise.train.loop import Settings

    target, size = scene.target, wish.draft_vocab or min(32000, scene.target.vocab_size)
    head = new_head(target.module, draft_vocabulary(texts, size, target.vocab_size), seed=wish.seed)
    steps = max(1, round(wish.epochs * len(groups(texts, wish.batch_tokens))))
    mixed = target.device.type == "cuda" if wish.bf16 is None else wish.bf16
    settings = Settings(steps, wish.lr, min(50, steps // 4), steps // 2, clip=0.5, bf16=mixed)
    batches = eagle_batches(
        target.module,
        {"texts": texts},
        head.config.taps,
        seed=wish.seed,
        tokens_per_batch=wish.batch_tokens,
        keep=folder / "states" if wish.keep else None,
    )
    losses = train_eagle(
        head,
        batches,
        settings,
        num_passes=wish.depth,
        checkpoint=folder / "head.pt",
        progress=bars.stage("training", steps),
    )
    return head.eval(), losses


def _measure(
    scene: t.Scene, head: EagleHead, texts: Sequence[Text], losses: Sequence[float], depth: int
) -> dict[str, Any]:
    from draftwise.train.eagle import acceptance_by_depth

    alphas = acceptance_by_depth(head, scene.target.module, texts, depth)
    return {
        "acceptance_by_depth": [round(alpha, 4) for alpha in alphas],
        "held_out_texts": len(texts),
        "steps": len(losses),
        "last_loss": losses[-1],
        "parameters": head.num_parameters,
        "hidden_states": list(head.config.taps),
        "draft_vocab_size": head.config.draft_vocab_size,
    }


def _save(head: EagleHead, out: Path, layout: str, scene: t.Scene) -> None:
    from draftwise.nn.eagle_save import save_head

    save_head(head.cpu(), out, layout=layout, dtype=scene.target.dtype, verifier=scene.target.name)


def _show(report: dict[str, Any], out: Path) -> None:
    table = Table("token of a draft", "accepted", title=f"{out}: held-out texts, temperature 1")
    for number, alpha in enumerate(report["acceptance_by_depth"], 1):
        table.add_row(str(number), f"{alpha:.3f}")
    Console().print(table)
