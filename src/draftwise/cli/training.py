"""What the training commands share: models, prompts as tokens, bars, and how they end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from draftwise.cli.load import loading
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.nn.model import CausalModel

Prompts = Annotated[
    Path, typer.Option(help="Prompts of your own use: one a line, or jsonl with `prompt`.")
]
Out = Annotated[Path, typer.Option(help="Folder for what is made; give it again to go on.")]
Work = Annotated[
    Path | None,
    typer.Option(help="Folder for answers and checkpoints. Default: OUT/work."),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed, the same result.")]
Rows = Annotated[int, typer.Option(min=1, help="Answers that are sampled together.")]


@dataclass(frozen=True)
class Scene:
    """A loaded target with its tokenizer."""

    target: CausalModel
    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return list(self.tokenizer(text)["input_ids"])

    @property
    def eos_token_id(self) -> int:
        """The token that ends an answer; -1 where there is none."""
        own = getattr(self.target.module.generation_config, "eos_token_id", None)
        found = getattr(self.tokenizer, "eos_token_id", None) if own is None else own
        return -1 if found is None else int(found if isinstance(found, int) else found[0])


def load_scene(target: str, *, dtype: str, device: str, threads: int) -> Scene:
    """The target and its tokenizer; DraftwiseError for a model that cannot be loaded."""
    with loading(target, threads):
        from draftwise.nn.load import load_model, load_tokenizer
        from draftwise.pool import resolve_target

        path, _ = resolve_target(target)
        return Scene(load_model(path, dtype=dtype, device=device), load_tokenizer(path))


def encode_prompts(scene: Scene, file: Path, texts: Sequence[str], room: int) -> list[list[int]]:
    """All prompts as tokens.

    Raises DraftwiseError for one that is empty or leaves no ``room`` tokens for an answer.
    """
    rows = [scene.encode(text) for text in texts]
    for number, row in enumerate(rows, 1):
        if not row or len(row) + room > scene.target.max_positions:
            raise DraftwiseError(
                f"{file}, prompt {number} has {len(row)} tokens: it needs at least one, and with "
                f"{room} of an answer at most {scene.target.max_positions}"
            )
    return rows


def load_drafter(spec: str, scene: Scene, *, dtype: str, device: str, threads: int) -> Any:
    """The drafter of a spec such as ``zoo:python`` or ``lm:PATH``, checked against the target.

    Raises DraftwiseError for what is no model, or more than one.
    """
    refusal = DraftwiseError(f"--drafter {spec}: name one model, as PATH, lm:PATH or zoo:NAME")
    if spec == "zoo":
        raise refusal
    with loading(spec, threads):
        from draftwise.drafters.lm import LMDrafter
        from draftwise.pool import load_drafters

        given = spec if spec.startswith(("lm:", "zoo")) else f"lm:{spec}"
        found = load_drafters([given], scene.target, None, dtype=dtype, device=device)
    if len(found) != 1 or not isinstance(found[0], LMDrafter):
        raise refusal
    return found[0]


def claim(work: Path, inputs: Mapping[str, Any]) -> None:
    """Make a work folder for these inputs, or go on in it.

    Raises DraftwiseError where it holds the work on other inputs, which must not be mixed in.
    """
    work.mkdir(parents=True, exist_ok=True)
    own, path = json.dumps(inputs, sort_keys=True), work / "inputs.json"
    if not path.exists():
        path.write_text(own + "\n", "utf-8")
    elif path.read_text("utf-8").strip() != own:
        raise DraftwiseError(
            f"{work} holds the work on other models, prompts or seeds: give another --work (or "
            "--out), or remove it"
        )


def fingerprint(prompts: Sequence[Sequence[int]]) -> str:
    """A short name for these prompts and no others."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


class Bars:
    """One bar for each stage of a run, on stderr; stages that were done before stand full."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, name: str, total: int) -> Callable[..., None]:
        """A bar; call what is returned with how much is done, and the loss where there is one."""
        task = self._progress.add_task(name, total=total)

        def update(done: int, loss: float | None = None) -> None:
            shown = name if loss is None else f"{name}, loss {loss:.3f}"
            self._progress.update(task, completed=done, description=shown)

        return update


@contextmanager
def keeping(work: Path) -> Iterator[None]:
    """Around the work itself: a disk that fails is said, with where to go on.

    Raises DraftwiseError in place of OSError; what was finished stays in ``work``.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or work
        raise DraftwiseError(
            f"{where} cannot be written ({error.strerror or error}): make room, and give the same "
            f"command again; what is finished is kept in {work}"
        ) from error


def heats(text: str) -> list[float]:
    """``--temperatures``: numbers of 0 or more, with commas between them."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if min(found) < 0:
        raise DraftwiseError(f"--temperatures {text!r}: write numbers of 0 or more with commas")
    return found
