"""What the training commands share: models, prompts as tokens, bars, and how they end."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from draftwise.chat import Message, encode
from draftwise.cli.failures import say
from draftwise.cli.load import check_places, check_threads, loading
from draftwise.cli.lock import alone_in
from draftwise.cli.prompts import Given, read_batch
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.nn.model import CausalModel

Prompts = Annotated[
    Path,
    typer.Option(
        help="Prompts of your own use: one a line, or jsonl with `prompt` or `messages`. `self`: "
        "an instruct model writes its own."
    ),
]
NumPrompts = Annotated[int, typer.Option(min=2, help="How many, with `--prompts self`.")]
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

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """The tokens of a prompt, which may be a conversation."""
        return list(encode(prompt, self.tokenizer).tokens)

    @property
    def eos_token_id(self) -> int:
        """The token that ends an answer; -1 where there is none."""
        own = getattr(self.target.module.generation_config, "eos_token_id", None)
        found = getattr(self.tokenizer, "eos_token_id", None) if own is None else own
        return -1 if found is None else int(found if isinstance(found, int) else found[0])


def load_scene(target: str, *, dtype: str, device: str, threads: int) -> Scene:
    """The target and its tokenizer; DraftwiseError for a model that cannot be loaded."""
    check_places(target, ())
    check_threads(threads)
    with loading(target, threads):
        from draftwise.nn.load import load_model, load_tokenizer
        from draftwise.pool import resolve_target

        path, _ = resolve_target(target)
        return Scene(load_model(path, dtype=dtype, device=device), load_tokenizer(path))


def encode_prompts(scene: Scene, prompts: Sequence[Given], room: int) -> list[list[int]]:
    """All prompts as tokens.

    Raises DraftwiseError for one that is empty or leaves no ``room`` tokens for an answer.
    """
    rows = [scene.encode(given.prompt) for given in prompts]
    for given, row in zip(prompts, rows, strict=True):
        if not row or len(row) + room > scene.target.max_positions:
            raise DraftwiseError(
                f"{given.where} has {len(row)} tokens: it needs at least one, and with {room} of "
                f"an answer at most {scene.target.max_positions}"
            )
    return rows


SELF = "self"
"""In place of a file: the model writes its prompts itself."""


def gather(
    prompts: Path, scene: Scene, folder: Path, num: int, *, rows: int, seed: int
) -> list[Given]:
    """The prompts of a file, or those that the model writes itself and ``folder`` keeps.

    Raises DraftwiseError as ``read_batch`` and ``make_prompts`` do.
    """
    if str(prompts) != SELF:
        return read_batch(prompts)
    file = folder / "own-prompts.jsonl"
    texts, share = own_prompts(scene, file, num, longest=160, rows=rows, seed=seed)
    say(share, style="dim")
    return [
        Given([{"role": "user", "content": text}], f"prompt {n}") for n, text in enumerate(texts, 1)
    ]


def own_prompts(
    scene: Scene,
    file: Path,
    num: int,
    *,
    longest: int,
    rows: int,
    seed: int,
    avoid: Sequence[Path] = (),
) -> tuple[list[str], str]:
    """User turns of the model's own, with a bar, and what share of them was kept."""
    from draftwise.train.overlap import runs_of
    from draftwise.train.self_prompts import make_prompts

    avoided = runs_of(avoid)
    with keeping(file.parent), Bars() as bars:
        made = make_prompts(
            scene.target, scene.tokenizer, num, file,
            longest=longest, rows=rows, seed=seed, avoid=avoided,
            progress=bars.stage("prompts", num),
        )  # fmt: skip
    return made.texts[:num], made.share


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
    make_folder(work)
    own, path = json.dumps(inputs, sort_keys=True), work / "inputs.json"
    if not path.exists():
        path.write_text(own + "\n", "utf-8")
        return
    before: dict[str, Any] = json.loads(path.read_text("utf-8"))
    now = json.loads(own)
    other = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if other:
        raise DraftwiseError(
            f"{work} holds the work on other inputs ({', '.join(other)} differ): give another "
            "--work (or --out), or remove it"
        )


def make_folder(folder: Path) -> None:
    """Make a folder that may be there already; DraftwiseError where a file has its name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DraftwiseError(f"{folder} is a file, or lies below one: name a folder") from error


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
            TextColumn("left"),
            TimeRemainingColumn(),
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

    Raises DraftwiseError in place of OSError; what was finished stays in ``work``, which no second
    process may work in meanwhile.
    """
    make_folder(work)
    try:
        with alone_in(work):
            yield
    except OSError as error:
        where = error.filename or work
        cure = "make room, and " if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} else ""
        raise DraftwiseError(
            f"{where} cannot be written ({error.strerror or error}): {cure}give the same command "
            f"again; what is finished is kept in {work}"
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
