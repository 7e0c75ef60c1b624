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
from draftwise.cli.failures import VOICE, note
from draftwise.cli.load import check_chat, check_models, loading
from draftwise.cli.lock import alone_in
from draftwise.cli.options import Hardware
from draftwise.cli.prompts import Given, read_batch
from draftwise.registry import DRAFTERS
from draftwise.specs import BUNDLED, expand, name_and_spec
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.nn.model import CausalModel

Prompts = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Prompts of your own use: one a line, or jsonl with `prompt` or `messages`. `self`: "
        "an instruct model writes its own.",
    ),
]
NumPrompts = Annotated[int, typer.Option(min=2, help="How many, with `--prompts self`.")]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", metavar="FOLDER", help="Folder for what is made; give it again to go on."
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(help="Folder for answers and checkpoints. Default: OUT/work."),
]
MaxNewTokens = Annotated[
    int,
    typer.Option(
        "--max-new-tokens", "-n", min=1, metavar="N", help="Tokens of an answer, at most."
    ),
]
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


def check_inputs(
    target: str, hardware: Hardware, prompts: Path | None = None, drafter: str | None = None
) -> list[Given]:
    """Refuse, before anything is loaded, what is not there or cannot be read.

    drafter: as for ``load_drafter``. Returns the prompts of the file; none for ``self``, which
    takes a model with a chat template. Raises DraftwiseError, OSError.
    """
    given = [] if prompts is None or str(prompts) == SELF else read_batch(prompts)
    specs = [] if drafter is None else [model_spec(drafter)]
    check_models(target, specs, hardware.dtype, hardware.device, hardware.threads)
    if str(prompts) == SELF or any(not isinstance(one.prompt, str) for one in given):
        check_chat(target)
    return given


def load_scene(target: str, hardware: Hardware) -> Scene:
    """The target and its tokenizer; DraftwiseError for a model that cannot be loaded."""
    dtype, device, threads = hardware.dtype, hardware.device, hardware.threads
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
    given: list[Given], scene: Scene, folder: Path, num: int, *, rows: int, seed: int
) -> list[Given]:
    """The prompts of a file, or where there are none, what the model writes and ``folder`` keeps.

    Raises DraftwiseError as ``make_prompts`` does.
    """
    if given:
        return given
    file = folder / "own-prompts.jsonl"
    texts, share = own_prompts(scene, file, num, longest=160, rows=rows, seed=seed)
    note(share)
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


def model_spec(text: str) -> str:
    """``PATH``, or any spec of one drafter that is a model, such as ``zoo:python``.

    Raises DraftwiseError for drafters of other kinds, and for several.
    """
    spec = text if text.partition(":")[0] in {*DRAFTERS, *BUNDLED} or "=" in text else f"lm:{text}"
    found = [name_and_spec(one)[1] for one in expand([spec])]
    if len(found) != 1 or not found[0].startswith("lm:"):
        raise DraftwiseError(
            f"{text} is no drafter for this command: name one that is a model, as PATH, lm:PATH or "
            "zoo:NAME"
        )
    return spec


def load_drafter(spec: str, scene: Scene, hardware: Hardware) -> Any:
    """The drafter of a spec such as ``zoo:python`` or ``lm:PATH``, checked against the target."""
    with loading(spec, hardware.threads):
        from draftwise.pool import load_drafters

        given, device = [model_spec(spec)], hardware.device
        return load_drafters(given, scene.target, None, dtype=hardware.dtype, device=device)[0]


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
            disable=not (VOICE.notes and console.is_terminal),
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
