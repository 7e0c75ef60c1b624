"""What ``draftwise train eagle`` reads: a file of texts, or prompts that the target answers."""

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

from draftwise.chat import Message
from draftwise.cli import options as o
from draftwise.cli import training as t
from draftwise.cli.command import command
from draftwise.cli.failures import Output, quiet, refused_values
from draftwise.lines import TRACE_BYTES, any_json, numbered_lines
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.train.lesson import Text
    from draftwise.types import Costs


Example = tuple[str | Sequence[Message], str | None]
"""Prompt and completion; no prompt for a text, no completion to be answered."""


@dataclass(frozen=True)
class Asking:
    """How prompts are answered: temperatures in turn, tokens at most, rows at once."""

    heats: Sequence[float]
    max_new_tokens: int
    rows: int
    max_length: int
    seed: int


def read_examples(file: Path) -> list[Example]:
    """Prompt and completion of each line; no prompt for a ``text``, no completion to be answered.

    Raises DraftwiseError that names the line which is something else, or where there is none.
    """
    lines = numbered_lines(file, TRACE_BYTES, pipes=True)
    found = [_example(line, f"{file}, line {number}") for number, line in lines]
    if not found:
        raise DraftwiseError(f"{file} is empty: write one json object a line")
    return found


def _example(line: str, where: str) -> Example:
    try:
        row: Any = any_json(line)
    except ValueError as error:
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


def as_texts(
    scene: t.Scene, examples: Sequence[Example], how: Asking, bars: t.Bars, folder: Path
) -> list[Text]:
    """All texts as tokens, the prompts without a completion answered by the target."""
    from draftwise.train.answers import answers
    from draftwise.train.lesson import Text

    found, unanswered = [], []
    room = min(how.max_length, scene.target.max_positions)
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
    return found + answers(
        scene.target.module,
        unanswered,
        [how.heats[i % len(how.heats)] for i in range(len(unanswered))],
        folder / "answers.jsonl",
        max_new_tokens=how.max_new_tokens,
        eos_token_id=scene.eos_token_id,
        seed=how.seed,
        rows=how.rows,
        progress=bars.stage("answers", len(unanswered)),
    )


MOST_KEPT_BYTES = 4 << 30
"""Above this the target's states are computed again in every epoch."""


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
    keep: bool | None
    bf16: bool | None
    lends: bool
    regression: float
    probe: float


class Run:
    """One training run: the head, its looks at what it is worth, its result."""

    def __init__(
        self,
        scene: t.Scene,
        taught: Sequence[Text],
        held_out: Sequence[Text],
        wish: Wish,
        folder: Path,
        bars: t.Bars,
    ) -> None:
        import torch

        from draftwise.train.eagle import draft_vocabulary, new_head
        from draftwise.train.lesson import groups
        from draftwise.train.loop import Settings

        self._target, self._held_out, self._wish = scene.target, held_out, wish
        self._taught, self._folder, self._bars = taught, folder, bars
        size = wish.draft_vocab or min(32000, scene.target.vocab_size)
        ids = draft_vocabulary(taught, size, scene.target.vocab_size)
        self._head = new_head(scene.target.module, ids, seed=wish.seed, lends=wish.lends)
        steps = max(1, round(wish.epochs * len(groups(taught, wish.batch_tokens))))
        self._is_half = scene.target.dtype == torch.bfloat16  # what it lends does not mix with ours
        on_cuda = scene.target.device.type == "cuda"
        mixed = self._is_half or (on_cuda if wish.bf16 is None else wish.bf16)
        self._settings = Settings(
            steps, wish.lr, min(50, steps // 10), steps // 2, clip=0.5, bf16=mixed
        )
        self._costs: Costs | None = None

    def train(self) -> dict[str, Any]:
        """Look, train as far as the probe, look again, and train to the end."""
        from draftwise.train.eagle import observed_batches, train_eagle

        wish, steps = self._wish, self._settings.steps
        batches = observed_batches(
            self._target.module,
            {"texts": self._taught},
            self._head.config.taps,
            seed=wish.seed,
            tokens_per_batch=wish.batch_tokens,
            keep=self._folder / "states" if self._keeps() else None,
        )
        update = self._bars.stage("training", steps)
        self._look("before training")
        first = round(wish.probe * steps)
        for stop in (first, steps) if 0 < first < steps else (steps,):
            losses = train_eagle(
                self._head,
                batches,
                self._settings,
                num_passes=wish.depth,
                regression=wish.regression,
                checkpoint=self._folder / "head.pt",
                progress=update,
                stop_at=stop,
            )
            found = self._look(f"after {len(losses)} of {steps} steps")
        return found | {
            "held_out_texts": len(self._held_out),
            "steps": len(losses),
            "last_loss": losses[-1],
            "parameters": self._head.num_parameters,
            "hidden_states": list(self._head.config.taps),
            "draft_vocab_size": self._head.config.draft_vocab_size,
        }

    def save(self, out: Path, layout: str) -> None:
        """Write the head in the target's precision."""
        from draftwise.nn.heads.eagle_files import save_head

        target = self._target
        save_head(self._head.cpu(), out, layout=layout, dtype=target.dtype, verifier=target.name)

    def _keeps(self) -> bool:
        from draftwise.train.eagle import kept_bytes

        if self._wish.keep is not None:
            return self._wish.keep
        return kept_bytes(self._taught, self._head) < MOST_KEPT_BYTES

    def _look(self, when: str) -> dict[str, Any]:
        """Acceptance by depth on held-out answers, and the speed that it promises."""
        import torch

        from draftwise.train.eagle import acceptance_by_depth
        from draftwise.train.speedup import chain_speedups, head_costs

        self._head.eval()
        module, depth = self._target.module, self._wish.depth
        with torch.autocast(module.device.type, torch.bfloat16, enabled=self._is_half):
            if self._costs is None:
                self._costs = head_costs(self._target, self._head)
            alphas = acceptance_by_depth(self._head, module, self._held_out, depth)
        target_s, draft_s = self._costs.target_s, self._costs.draft_s["head"]
        expected = chain_speedups(alphas, target_s, draft_s)
        Console(stderr=True).print(
            f"{when}: acceptance {', '.join(f'{alpha:.3f}' for alpha in alphas)}, expected "
            f"{expected.max():.2f}x plain decoding with drafts of {expected.argmax() + 1} (a "
            f"target token takes {1000 * target_s[0]:.1f} ms, a drafted one {1000 * draft_s:.1f})",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        return {
            "acceptance_by_depth": [round(alpha, 4) for alpha in alphas],
            "expected_speedup": round(float(expected.max()), 3),
            "target_ms": round(1000 * float(target_s[0]), 2),
            "draft_ms": round(1000 * draft_s, 2),
        }


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
