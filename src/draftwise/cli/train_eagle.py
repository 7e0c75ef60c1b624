"""``draftwise train eagle``: an EAGLE-3 head for any target, from texts or the target's answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from draftwise.chat import Message
from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import Output, quiet, refused_values
from draftwise.lines import numbered_lines
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.train.data import Text
    from draftwise.types import Costs


Example = tuple[str | Sequence[Message], str | None]
"""Prompt and completion; no prompt for a text, no completion to be answered."""
LAYOUTS = ("authors", "speculators")
HELD_OUT, MOST_HELD_OUT = 10, 64
"""Every tenth text is held out, at most so many."""
MOST_KEPT_BYTES = 4 << 30
"""Above this the target's states are computed again in every epoch."""

Prompts = Annotated[
    Path | None,
    typer.Option(
        help="In place of --data, prompts that the target answers: one a line, jsonl with `prompt` "
        "or `messages`, or `self`: an instruct model writes its own."
    ),
]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--ask-again",
        help="Keep the target's states on disk, or ask it in every epoch. Default: below 4 GB.",
    ),
]
LEARNING = t.Learning(epochs=4.0, lr=1e-3)


@dataclass(frozen=True)
class Head:
    """What kind of head, and what it reads."""

    layout: Annotated[
        str, typer.Option(help="authors (SafeAILab/EAGLE) or speculators (vLLM).")
    ] = "authors"
    depth: Annotated[
        int, typer.Option("--depth", min=1, help="Tokens of a draft that training unrolls.")
    ] = 7
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens that it can draft, the most frequent. Default: up to 32000."
        ),
    ] = None
    max_length: Annotated[
        int, typer.Option(min=8, help="Tokens of a text, at most; the rest is cut.")
    ] = 2048
    temperatures: t.Heats = "0,0.7,1"
    keep: Keep = None
    lend: Annotated[
        bool,
        typer.Option(
            "--lend",
            help="Use the target's own lm_head: neither trained nor stored, a third faster.",
        ),
    ] = False
    regression: Annotated[
        float,
        typer.Option(min=0.0, help="With --lend: weight of EAGLE-1's regression to its states."),
    ] = 0.0


@command
def eagle(
    *,
    target: o.Target,
    out: t.Out,
    data: Annotated[
        Path | None,
        typer.Option(
            help="jsonl with `text`, `prompt` and `completion`, or `prompt` alone, which the "
            "target answers itself."
        ),
    ] = None,
    prompts: Prompts = None,
    head: Head,
    learning: t.Learning = LEARNING,
    answers: t.Answers,
    hardware: o.Hardware,
) -> None:
    """Train an EAGLE-3 head for a target, and say how often each token of a draft is accepted.

    The head learns from the hidden states of three of the target's layers and from its
    distributions, unrolled as deep as it shall draft. An interrupted run goes on where it was.
    Use it as `--drafter eagle:OUT`.
    """
    folder = answers.folder(out)
    with quiet(), refused_values():
        _check(head, data, prompts)
        heats = t.heats(head.temperatures)
        examples = None if data is None else read_examples(data)
        own = t.check_inputs(target, hardware, prompts)
        scene = t.load_scene(target, hardware)
        if examples is None:
            given = t.gather(own, scene, folder, answers)
            examples = [(one.prompt, None) for one in given]
    inputs = {
        "target": scene.target.name,
        "data": t.fingerprint(examples),
        "numbers": [learning.epochs, learning.lr, head.depth, head.draft_vocab, head.max_length,
                    learning.batch_tokens, answers.seed, head.temperatures],
        "answers": [answers.max_new_tokens, answers.rows, learning.bf16, head.lend,
                    head.regression],
    }  # fmt: skip
    with quiet(), t.working_in(folder, inputs) as bars:
        texts = _as_texts(scene, examples, heats, head.max_length, answers, bars, folder)
        held_out = texts[::HELD_OUT][:MOST_HELD_OUT]
        taught = [text for i, text in enumerate(texts) if i % HELD_OUT]
        if not taught:
            raise DraftwiseError("that is too little: two texts are needed, one is held out")
        report = _train(scene, taught, held_out, head, learning, answers.seed, folder, out, bars)
        t.write_report(out, report)
    table = Table("token of a draft", "accepted", title=f"{out}: held-out texts, temperature 1")
    for number, alpha in enumerate(report["acceptance_by_depth"], 1):
        table.add_row(str(number), f"{alpha:.3f}")
    Output().print(table)


def _check(head: Head, data: Path | None, prompts: Path | None) -> None:
    """Refuse what needs no model to be refused."""
    if head.layout not in LAYOUTS:
        raise DraftwiseError(
            f"unknown layout {head.layout!r}; the layouts are: {', '.join(LAYOUTS)}"
        )
    if (data is None) == (prompts is None):
        raise DraftwiseError("say what to learn from: --data FILE, or --prompts FILE or self")
    if head.regression and not head.lend:
        raise DraftwiseError("--regression leads to states of the target's lm_head: add --lend")


def read_examples(file: Path) -> list[Example]:
    """Prompt and completion of each line; no prompt for a ``text``, no completion to be answered.

    Raises DraftwiseError that names the line which is something else, or where there is none.
    """
    found = [_example(line, f"{file}, line {number}") for number, line in numbered_lines(file)]
    if not found:
        raise DraftwiseError(f"{file} is empty: write one json object a line")
    return found


def _example(line: str, where: str) -> Example:
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


def _as_texts(
    scene: t.Scene, examples: Sequence[Example], heats: Sequence[float], max_length: int,
    how: t.Answers, bars: t.Bars, folder: Path,
) -> list[Text]:  # fmt: skip
    """All texts as tokens, the prompts without a completion answered by the target."""
    from draftwise.train.data import Text

    found, unanswered = [], []
    room = min(max_length, scene.target.max_positions)
    for prompt, completion in examples:
        start = scene.encode(prompt) if prompt else []
        if completion is None:
            unanswered.append(start[: max(1, room - how.max_new_tokens)])
            continue
        rest = scene.tokenizer(completion, add_special_tokens=not prompt)["input_ids"]
        end = [scene.eos_token_id] if scene.eos_token_id >= 0 else []
        tokens = [*start, *rest, *end][:room]
        if max(1, len(start)) < len(tokens):
            found.append(Text(tuple(tokens), max(1, len(start))))
    if not unanswered:
        return found
    return found + scene.answers(unanswered, heats, folder / "answers.jsonl", how, bars)


def _train(
    scene: t.Scene, taught: Sequence[Text], held_out: Sequence[Text], wish: Head,
    learning: t.Learning, seed: int, folder: Path, out: Path, bars: t.Bars,
) -> dict[str, Any]:  # fmt: skip
    """Train a head and write it in the target's precision; what is reported of it."""
    import torch

    from draftwise.nn.heads.eagle import save_head
    from draftwise.train import eagle as e
    from draftwise.train.data import groups, observed_batches
    from draftwise.train.loop import Settings
    from draftwise.train.speedup import measure_costs

    target, module = scene.target, scene.target.module
    size = wish.draft_vocab or min(32000, target.vocab_size)
    ids = e.draft_vocabulary(taught, size, target.vocab_size)
    head = e.new_head(module, ids, seed=seed, lends=wish.lend)
    steps = max(1, round(learning.epochs * len(groups(taught, learning.batch_tokens))))
    is_half = target.dtype == torch.bfloat16  # what it lends does not mix with ours
    mixed = is_half or (target.device.type == "cuda" if learning.bf16 is None else learning.bf16)
    settings = Settings(steps, learning.lr, min(50, steps // 10), steps // 2, clip=0.5, bf16=mixed)
    keeps = e.kept_bytes(taught, head) < MOST_KEPT_BYTES if wish.keep is None else wish.keep
    batches = observed_batches(
        module, {"texts": taught}, head.config.taps, seed=seed,
        tokens_per_batch=learning.batch_tokens, keep=folder / "states" if keeps else None,
    )  # fmt: skip
    costs: Costs | None = None
    report: dict[str, Any] = {}

    def look(when: str) -> None:
        nonlocal costs
        head.eval()
        with torch.autocast(module.device.type, torch.bfloat16, enabled=is_half):
            costs = costs or measure_costs(target, head)
            alphas = e.acceptance_by_depth(head, module, held_out, wish.depth)
        report["acceptance_by_depth"] = [round(alpha, 4) for alpha in alphas]
        report.update(t.worth(when, alphas, costs))

    def loss(model: Any, batch: Any) -> Any:
        return e.eagle_loss(model, batch, wish.depth, wish.regression)

    look("before training")
    losses = t.train(head, loss, batches, settings, folder / "head.pt", bars, look, learning.probe)
    save_head(head.cpu(), out, layout=wish.layout, dtype=target.dtype, verifier=target.name)
    return report | {
        "held_out_texts": len(held_out),
        "steps": len(losses),
        "last_loss": losses[-1],
        "parameters": head.num_parameters,
        "hidden_states": list(head.config.taps),
        "draft_vocab_size": head.config.draft_vocab_size,
    }
