"""What the training commands share: models, prompts as tokens, bars, and how they end."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from draftwise.chat import Message, encode
from draftwise.checks import option
from draftwise.cli.failures import note
from draftwise.cli.load import alone_in, check_chat, check_models, loading
from draftwise.cli.options import Hardware
from draftwise.cli.prompts import Given, read_batch
from draftwise.cli.show import Bars
from draftwise.registry import DRAFTERS
from draftwise.specs import BUNDLED, expand, name_and_spec
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.nn.model import CausalModel
    from draftwise.train.data import Text
    from draftwise.train.loop import TrainingSettings
    from draftwise.types import Costs

PROMPTS = option(
    ...,
    "Prompts like your users': one per line, or jsonl with `prompt` or `messages`. `self`: an "
    "instruct model writes its own.",
    metavar="FILE",
)
OUT = option(
    ...,
    "Output folder. The same folder resumes an interrupted run.",
    "--out",
    "-o",
    metavar="FOLDER",
)
SEED = option(0, "Random seed.", least=0)
ROWS = "Answers sampled in one batch."
TEMPERATURES = "Temperatures of the target's answers, used in turn."
RATE = "Learning rate."


def read_temperatures(text: str) -> list[float]:
    """``--temperatures``: numbers of 0 or more, with commas between them."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if min(found) < 0:
        raise DraftwiseError(f"--temperatures {text!r}: write numbers of 0 or more with commas")
    return found


@dataclass(frozen=True)
class Answers:
    """How many prompts the model writes (``self``), and how they are answered and kept."""

    num_prompts: int = option(1000, "Number of prompts with `--prompts self`.", least=2)
    max_new_tokens: int = option(
        256, "Maximum number of tokens per answer.", "--max-new-tokens", "-n", least=1, metavar="N"
    )
    rows: int = option(32, ROWS, least=1)
    work: Path | None = option(None, "Folder for answers and checkpoints. Default: OUT/work.")
    seed: int = SEED

    def folder(self, out: Path) -> Path:
        return self.work or out / "work"


@dataclass(frozen=True)
class LearningOptions:
    """How long and how fast a drafter learns."""

    epochs: float = option(3.0, "Passes over all texts.")
    lr: float = option(5e-4, RATE)
    probe: float = option(
        0.05, "Share of the steps after which to report the expected speed.", least=0.0, most=1.0
    )
    batch_tokens: int = option(2048, "Approximate number of tokens per step.", least=16)
    bf16: bool | None = option(None, "Mixed precision. Default: on CUDA.", "--bf16/--no-bf16")


@dataclass(frozen=True)
class LoadedTarget:
    """A loaded target with its tokenizer."""

    target: CausalModel
    tokenizer: Any

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """The tokens of a prompt, which may be a conversation."""
        return list(encode(prompt, self.tokenizer).tokens)

    def encode_all(self, prompts: Sequence[Given], room: int) -> list[list[int]]:
        """All prompts as tokens.

        Raises DraftwiseError for one that is empty or leaves no ``room`` tokens for an answer.
        """
        rows = [self.encode(given.prompt) for given in prompts]
        for given, row in zip(prompts, rows, strict=True):
            if not row or len(row) + room > self.target.max_positions:
                raise DraftwiseError(
                    f"{given.where} has {len(row)} tokens: it needs at least one, and with {room} "
                    f"of an answer at most {self.target.max_positions}"
                )
        return rows

    def answers(
        self, prompts: Sequence[list[int]], temperatures: Sequence[float], file: Path, how: Answers,
        bars: Bars,
    ) -> list[Text]:  # fmt: skip
        """The target's answers, at each temperature in turn, kept in ``file``."""
        from draftwise.train.answers import answers

        return answers(
            self.target.module, prompts, list(islice(cycle(temperatures), len(prompts))), file,
            max_new_tokens=how.max_new_tokens, eos_token_id=self.eos_token_id, seed=how.seed,
            rows=how.rows, progress=bars.stage(file.stem, len(prompts)),
        )  # fmt: skip

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


def load_target(target: str, hardware: Hardware) -> LoadedTarget:
    """The target and its tokenizer; DraftwiseError for a model that cannot be loaded."""
    dtype, device, threads = hardware.dtype, hardware.device, hardware.threads
    with loading(target, threads):
        from draftwise.nn.load import load_model, load_tokenizer
        from draftwise.pool import resolve_target

        path, _ = resolve_target(target)
        return LoadedTarget(load_model(path, dtype=dtype, device=device), load_tokenizer(path))


SELF = "self"
"""In place of a file: the model writes its prompts itself."""


def gather(given: list[Given], base: LoadedTarget, folder: Path, how: Answers) -> list[Given]:
    """The prompts of a file, or where there are none, what the model writes and ``folder`` keeps.

    Raises DraftwiseError as ``make_prompts`` does.
    """
    if given:
        return given
    texts, share = own_prompts(base, folder / "own-prompts.jsonl", how, longest=160)
    note(share)
    return [
        Given([{"role": "user", "content": text}], f"prompt {n}") for n, text in enumerate(texts, 1)
    ]


def own_prompts(
    base: LoadedTarget, file: Path, how: Answers, *, longest: int, avoid: Sequence[Path] = ()
) -> tuple[list[str], str]:
    """User turns of the model's own, with a bar, and what share of them was kept."""
    from draftwise.train.prompts import make_prompts, runs_of

    num, avoided = how.num_prompts, runs_of(avoid)
    with keeping(file.parent), Bars() as bars:
        made = make_prompts(
            base.target, base.tokenizer, num, file,
            longest=longest, rows=how.rows, seed=how.seed, avoid=avoided,
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


def load_drafter(spec: str, base: LoadedTarget, hardware: Hardware) -> Any:
    """The drafter of a spec such as ``zoo:python`` or ``lm:PATH``, checked against the target."""
    with loading(spec, hardware.threads):
        from draftwise.pool import load_drafters

        given, device = [model_spec(spec)], hardware.device
        return load_drafters(given, base.target, None, dtype=hardware.dtype, device=device)[0]


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


def fingerprint(prompts: Any) -> str:
    """A short name for these prompts and no others."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


@contextmanager
def working_in(folder: Path, inputs: Mapping[str, Any]) -> Iterator[Bars]:
    """``keeping`` a folder ``claim``ed for these inputs, with bars."""
    with keeping(folder), Bars() as bars:
        claim(folder, inputs)
        yield bars


def train(
    model: Any, loss: Any, batches: Callable[[int], Any], settings: TrainingSettings,
    checkpoint: Path,
    bars: Bars, look: Callable[[str], object], probe: float, *, probe_only: bool = False,
) -> list[float]:  # fmt: skip
    """Train as far as the probe, look, and (unless ``probe_only``) to the end, and look again."""
    from draftwise.train.loop import fit

    steps = settings.steps
    update = bars.stage("training", steps)
    first = max(1, round(probe * steps)) if probe or probe_only else steps
    for stop in (first,) if probe_only else sorted({first, steps}):
        losses = fit(
            model, loss, batches, settings, checkpoint=checkpoint, progress=update, stop_at=stop
        )
        update(len(losses), losses[-1])
        look(f"after {len(losses)} of {steps} steps")
    return losses


def worth(when: str, alpha: float | list[float], costs: Costs, more: str = "") -> dict[str, Any]:
    """Say the expected speed of a drafter with this acceptance, of every token or by depth."""
    from draftwise.train.speedup import speedups

    target_s, (draft_s,) = costs.target_s, costs.draft_s.values()
    expected = speedups(alpha, target_s, draft_s)
    alphas = alpha if isinstance(alpha, list) else [alpha]
    length = int(expected.argmax()) + 1
    Console(stderr=True).print(
        f"{when}: acceptance {', '.join(f'{each:.3f}' for each in alphas)}, expected "
        f"{expected.max():.2f}x plain decoding with drafts of {length} (a target token takes "
        f"{1000 * target_s[0]:.1f} ms, a drafted one {1000 * draft_s:.1f} ms{more})",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return {
        "expected_speedup": round(float(expected.max()), 3),
        "length": length,
        "target_ms": round(1000 * float(target_s[0]), 3),
        "draft_ms": round(1000 * draft_s, 3),
    }


def write_report(out: Path, found: Any) -> None:
    (out / "report.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


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
