"""``draftwise train``: trains drafters and heads; ``draftwise prompts``: generates prompts."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from draftwise.chat import Message, encode
from draftwise.checks import comma_separated, known, option
from draftwise.cli import options as o
from draftwise.cli.failures import Output, note, refused_values, say
from draftwise.cli.load import Given, check_chat, check_models, loading, read_batch
from draftwise.files import TRACE_BYTES, json_line, numbered_lines, read_text
from draftwise.install import LAB_COMMANDS
from draftwise.registry import DRAFTERS
from draftwise.settings import BUNDLED, expand, name_and_spec
from draftwise.types import DraftwiseError
from draftwise_lab.cli.options import StageBars, alone_in
from draftwise_lab.train.options import DrafterOptions, HeadOptions, LearningOptions

if TYPE_CHECKING:
    from draftwise.speculator import Speculator
    from draftwise.types import Costs
    from draftwise_lab.train.data import Text
    from draftwise_lab.train.loop import TrainingSettings

LAYOUTS = ("authors", "speculators")
HELD_OUT, MOST_HELD_OUT = 10, 64
"""Every tenth prompt or text is held out; for EAGLE heads at most MOST_HELD_OUT texts."""
MOST_KEPT_BYTES = 4 << 30  # if the target's hidden states take more, every epoch recomputes them
SELF = "self"  # instead of a file: the model writes the prompts
PROMPTS = option(
    ...,
    "Prompts like your users': one per line, or jsonl (docs/cli.md). `self`: an "
    "instruct model writes its own.",
)
OUT = option(
    ..., "Output folder. The same folder resumes an interrupted run.", "--out", "-o",
    metavar="FOLDER",
)  # fmt: skip
SEED = option(0, "Random seed.", least=0)
ROWS = "Answers sampled in one batch."
TEMPERATURES = "Temperatures of the target's answers, used in turn."


def _temperatures(text: str) -> list[float]:
    said = f"--temperatures {text!r}: write numbers of 0 or more with commas"
    return comma_separated(text, float, 0, said)


@dataclass(frozen=True)
class AnswerOptions:
    """How the target's answers, and with ``self`` its prompts, are sampled and kept."""

    num_prompts: int = option(1000, "Number of prompts with `--prompts self`.", least=2)
    max_new_tokens: int = option(
        256, "Maximum number of tokens per answer.", "--max-new-tokens", "-n", least=1
    )
    rows: int = option(32, ROWS, least=1)
    work: Path | None = option(
        None, "Folder for answers and checkpoints. Default: OUT/work.", metavar="FOLDER"
    )
    seed: int = SEED

    def folder(self, out: Path) -> Path:
        return self.work or out / "work"


def encode_all(base: Speculator, prompts: Sequence[Given], room: int) -> list[list[int]]:
    """Encode all prompts; DraftwiseError if one leaves no room for ``room`` more tokens."""
    rows = [list(encode(given.prompt, base.tokenizer).tokens) for given in prompts]
    for given, row in zip(prompts, rows, strict=True):
        if not row or len(row) + room > base.target.max_positions:
            raise DraftwiseError(
                f"{given.where} has {len(row)} tokens: it needs at least one, and with {room} "
                f"of an answer at most {base.target.max_positions}"
            )
    return rows


def answer_all(
    base: Speculator, prompts: Sequence[list[int]], temperatures: Sequence[float], file: Path,
    how: AnswerOptions, bars: StageBars,
) -> list[Text]:  # fmt: skip
    """Sample the target's answers, with temperatures in turn; ``file`` keeps them for resuming."""
    from draftwise.engine.options import eos_tokens
    from draftwise_lab.train.answers import answers

    end = next(iter(eos_tokens(base.target, base.tokenizer)), -1)
    return answers(
        base.target.module, prompts, list(islice(cycle(temperatures), len(prompts))), file,
        max_new_tokens=how.max_new_tokens, eos_token_id=end, seed=how.seed, rows=how.rows,
        progress=bars.stage(file.stem, len(prompts)),
    )  # fmt: skip


def begin(
    target: str, hardware: o.Hardware, prompts: Path | None = None, drafter: str | None = None
) -> tuple[Speculator, list[Given]]:
    """Check the input; return the loaded target and the file's prompts (none for ``self``)."""
    given = [] if prompts is None or str(prompts) == SELF else read_batch(prompts)
    check_models(target, [] if drafter is None else [model_spec(drafter)])
    if str(prompts) == SELF or any(not isinstance(one.prompt, str) for one in given):
        check_chat(target)
    return o.load(hardware.settings(target=target, drafters=[])), given


def gather(given: list[Given], base: Speculator, folder: Path, how: AnswerOptions) -> list[Given]:
    """The prompts passed, or without any, prompts that the model writes and ``folder`` keeps."""
    if given:
        return given
    texts, share = own_prompts(base, folder / "own-prompts.jsonl", how, longest=160)
    note(share)
    return [
        Given([{"role": "user", "content": text}], f"prompt {n}") for n, text in enumerate(texts, 1)
    ]


def own_prompts(
    base: Speculator, file: Path, how: AnswerOptions, *, longest: int, avoid: Sequence[Path] = ()
) -> tuple[list[str], str]:
    """Prompts written by the model, and a line with the share that was kept."""
    from draftwise_lab.train.prompts import make_prompts, runs_of

    num, avoided = how.num_prompts, runs_of(avoid)
    with keeping(file.parent) as bars:
        texts, share = make_prompts(
            base.target, base.tokenizer, num, file, longest=longest, rows=how.rows, seed=how.seed,
            avoid=avoided, progress=bars.stage("prompts", num),
        )  # fmt: skip
    return texts[:num], share


def model_spec(text: str) -> str:
    """The spec of a model drafter: ``PATH`` becomes ``lm:PATH``; DraftwiseError for others."""
    spec = text if text.partition(":")[0] in {*DRAFTERS, *BUNDLED} or "=" in text else f"lm:{text}"
    found = [name_and_spec(one)[1] for one in expand([spec])]
    if len(found) != 1 or not found[0].startswith("lm:"):
        raise DraftwiseError(
            f"{text} is no drafter for this command: name one that is a model, as PATH, lm:PATH or "
            "zoo:NAME"
        )
    return spec


def load_drafter(spec: str, base: Speculator, hardware: o.Hardware) -> Any:
    with loading(spec, hardware.threads):
        from draftwise.pool import load_drafters

        kind = {"dtype": hardware.dtype, "device": hardware.device}
        return load_drafters([model_spec(spec)], base.target, None, **kind)[0]


def claim(work: Path, inputs: Mapping[str, Any]) -> None:
    """Make or resume a work folder; DraftwiseError if it holds work on other inputs."""
    work.mkdir(parents=True, exist_ok=True)
    now, path = json.loads(json.dumps(inputs, sort_keys=True)), work / "inputs.json"
    if not path.exists():
        path.write_text(json.dumps(now) + "\n", "utf-8")
    before = json.loads(path.read_text("utf-8"))
    if other := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
        raise DraftwiseError(
            f"{work} holds the work on other inputs ({', '.join(other)} differ): give another "
            "--work (or --out), or remove it"
        )


def fingerprint(prompts: Any) -> str:
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


@contextmanager
def keeping(folder: Path, inputs: Mapping[str, Any] | None = None) -> Iterator[StageBars]:
    """Lock and ``claim`` a work folder; DraftwiseError says how to resume after a disk error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DraftwiseError(f"{folder} is a file, or lies below one: name a folder") from error
    try:
        with alone_in(folder), StageBars() as bars:
            if inputs is not None:
                claim(folder, inputs)
            yield bars
    except OSError as error:
        where = error.filename or folder
        cure = "make room, and " if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} else ""
        raise DraftwiseError(
            f"{where} cannot be written ({error.strerror or error}): {cure}give the same command "
            f"again; what is finished is kept in {folder}"
        ) from error


def train_model(
    model: Any, loss: Any, batches: Callable[[int], Any], settings: TrainingSettings,
    checkpoint: Path, bars: StageBars, look: Callable[[str], object], probe: float,
    *, probe_only: bool = False,
) -> list[float]:  # fmt: skip
    """Train, calling ``look`` after the probe and at the end; returns the loss of every step."""
    from draftwise_lab.train.loop import fit

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
    """Report the expected speed at this acceptance; alpha: of every token, or by depth."""
    from draftwise_lab.train.speedup import speedups

    target_s, (draft_s,) = costs.target_s, costs.draft_s.values()
    expected = speedups(alpha, target_s, draft_s)
    alphas = alpha if isinstance(alpha, list) else [alpha]
    length = int(expected.argmax()) + 1
    say(
        f"{when}: acceptance {', '.join(f'{each:.3f}' for each in alphas)}, expected "
        f"{expected.max():.2f}x plain decoding with drafts of {length} (a target token takes "
        f"{1000 * target_s[0]:.1f} ms, a drafted one {1000 * draft_s:.1f} ms, verifying the draft "
        f"{1000 * target_s[min(length, len(target_s) - 1)]:.1f} ms{more})",
        style="",
    )
    return {
        "expected_speedup": round(float(expected.max()), 3),
        "length": length,
        "target_ms": round(1000 * float(target_s[0]), 3),
        "draft_ms": round(1000 * draft_s, 3),
    }


def write_report(out: Path, found: Any) -> None:
    (out / "report.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


@o.command
def drafter(
    *,
    target: o.Target,
    prompts: Path = PROMPTS,
    out: Path = OUT,
    init: str | None = option(None, "Start from this model: PATH or zoo:NAME."),
    num_layers: int | None = option(
        None, "Start from this many of the target's first layers.", "--layers"
    ),
    temperatures: list[float] = option("0,0.3,0.7,1", TEMPERATURES, kind=str, read=_temperatures),
    samples: int = option(1, "Answers per prompt.", least=1),
    learning: DrafterOptions,
    probe_only: bool = option(False, "Stop after the report of --probe."),
    answers: AnswerOptions,
    hardware: o.Hardware,
) -> None:
    """Train a drafter on the target's own answers.

    The command reports the expected speed before training, after a short probe and at the end.
    An interrupted run resumes, and ends with the same weights.
    """
    folder, seed = answers.folder(out), answers.seed
    with refused_values():
        if (init is None) == (num_layers is None):
            raise DraftwiseError("say where to start: --init MODEL, or --layers N of the target")
        base, own = begin(target, hardware, prompts, init)
        options = replace(learning, seed=seed, bf16=_is_mixed(learning, base))
        encoded = encode_all(base, gather(own, base, folder, answers), answers.max_new_tokens)
        if len(encoded) < 2:
            raise DraftwiseError(f"{prompts} has one prompt: give at least two, one is held out")
        model = _start(base, init, num_layers or 0, seed, hardware.threads)
    inputs = {
        "target": base.target.name,
        "start": [init, num_layers],
        "prompts": fingerprint(encoded),
        "answers": [temperatures, samples, answers.max_new_tokens, answers.rows, seed],
        "training": [options.loss, options.epochs, options.lr, options.batch_tokens, options.bf16],
    }
    with keeping(folder, inputs) as bars:
        from draftwise.nn.model import CausalModel
        from draftwise_lab.train import drafter as d
        from draftwise_lab.train.speedup import break_even, measure_costs

        held_out = answer_all(
            base, encoded[::HELD_OUT], [1.0], folder / "held-out.jsonl", answers, bars
        )
        costs: Costs | None = None
        looks: list[dict[str, Any]] = []

        def look(when: str) -> None:
            nonlocal costs
            model.eval()
            costs = costs or measure_costs(base.target, CausalModel(model, "drafter"))
            named = {"drafter": model}
            alpha = d.measure_acceptance(base.target.module, named, held_out)["drafter"]
            pays = break_even(costs.target_s, costs.draft_s["drafter"])
            found = worth(when, alpha, costs, f"; it pays from acceptance {pays:.2f} on")
            looks.append({"when": when, "acceptance": alpha, "break_even": pays, **found})

        look("before training")
        taught = [p for i, p in enumerate(encoded) if i % HELD_OUT for _ in range(samples)]
        texts = answer_all(base, taught, temperatures, folder / "answers.jsonl", answers, bars)
        batches = d.drafter_batches(base.target.module, texts, options, folder)
        train_model(
            model, d.LOSSES[options.loss], batches, d.drafter_settings(texts, options),
            folder / "run.pt", bars, look, options.probe, probe_only=probe_only,
        )  # fmt: skip
        if not probe_only:
            _save(base, model, out)
            write_report(out, looks)
            print(f"wrote {out}; draft with it: --drafter lm:{out}")


def _is_mixed(learning: LearningOptions, base: Speculator) -> bool:
    return base.target.device.type == "cuda" if learning.bf16 is None else learning.bf16


def _start(base: Speculator, init: str | None, num_layers: int, seed: int, threads: int) -> Any:
    if init is not None:
        single = o.Hardware("float32", str(base.target.device), threads)
        return load_drafter(init, base, single).model.module
    with loading("the target's first layers", threads):
        import torch

        from draftwise_lab.train.drafter import first_layers

        torch.manual_seed(seed)
        return first_layers(base.target.module, num_layers)


def _save(base: Speculator, model: Any, out: Path) -> None:
    from draftwise.nn.layout import put_back

    out.mkdir(parents=True, exist_ok=True)
    put_back(model)
    model.to(base.target.dtype).save_pretrained(out)
    base.tokenizer.save_pretrained(out)


Example = tuple[str | Sequence[Message], str | None]
"""Prompt ("" for a plain text) and completion (None if the target is to answer)."""
LEARNING = LearningOptions(epochs=4.0, lr=1e-3)


@dataclass(frozen=True)
class EagleOptions:
    layout: str = option("authors", "authors (SafeAILab/EAGLE) or speculators (vLLM).")
    depth: int = option(7, "Draft length that training unrolls.", least=1)
    draft_vocab: int | None = option(
        None, "Draft only this many of the most frequent tokens. Default: up to 32000.", least=2
    )
    max_length: int = option(
        2048, "Maximum number of tokens per text; longer texts are truncated.", least=8
    )
    temperatures: list[float] = option("0,0.7,1", TEMPERATURES, kind=str, read=_temperatures)
    keep: bool | None = option(
        None,
        "Keep the target's hidden states on disk, or recompute. Default: keep up to 4 GB.",
        "--keep/--ask-again",
    )
    lend: bool = option(
        False, "Share the target's lm_head, neither trained nor stored; a third faster."
    )
    regression: float = option(0.0, "With --lend: weight of EAGLE-1's regression loss.", least=0.0)

    def __post_init__(self) -> None:
        known("layout", self.layout, LAYOUTS)
        if self.regression and not self.lend:
            raise DraftwiseError("--regression leads to states of the target's lm_head: add --lend")


@o.command
def eagle(
    *,
    target: o.Target,
    out: Path = OUT,
    data: Path | None = option(
        None,
        "jsonl with `text`, `prompt` and `completion`, or `prompt` alone, which the target answers "
        "itself.",
    ),
    prompts: Path | None = option(
        None,
        "Instead of --data: prompts for the target, one per line, jsonl with `prompt` or "
        "`messages`, or `self`: an instruct model writes its own.",
    ),
    head: EagleOptions,
    learning: LearningOptions = LEARNING,
    answers: AnswerOptions,
    hardware: o.Hardware,
) -> None:
    """Train an EAGLE-3 head for a target, and report its acceptance by depth.

    The head learns from the hidden states of three of the target's layers and from the target's
    distributions, unrolled to the draft length. An interrupted run resumes. Use the head as
    `--drafter eagle:OUT`.
    """
    folder = answers.folder(out)
    with refused_values():
        if (data is None) == (prompts is None):
            raise DraftwiseError("say what to learn from: --data FILE, or --prompts FILE or self")
        examples = None if data is None else read_examples(data)
        base, own = begin(target, hardware, prompts)
        if examples is None:
            examples = [(one.prompt, None) for one in gather(own, base, folder, answers)]
    inputs = {
        "target": base.target.name,
        "data": fingerprint(examples),
        "numbers": [learning.epochs, learning.lr, head.depth, head.draft_vocab, head.max_length,
                    learning.batch_tokens, answers.seed, head.temperatures],
        "answers": [answers.max_new_tokens, answers.rows, learning.bf16, head.lend,
                    head.regression],
    }  # fmt: skip
    with keeping(folder, inputs) as bars:
        texts = _as_texts(base, examples, head, answers, bars, folder)
        held_out = texts[::HELD_OUT][:MOST_HELD_OUT]
        taught = [text for i, text in enumerate(texts) if i % HELD_OUT]
        if not taught:
            raise DraftwiseError("that is too little: two texts are needed, one is held out")
        report = _train(base, taught, held_out, head, learning, answers.seed, folder, out, bars)
        write_report(out, report)
    table = Table("token of a draft", "accepted", title=f"{out}: held-out texts, temperature 1")
    for number, alpha in enumerate(report["acceptance_by_depth"], 1):
        table.add_row(str(number), f"{alpha:.3f}")
    Output().print(table)


def read_examples(file: Path) -> list[Example]:
    lines = numbered_lines(file, TRACE_BYTES, pipes=True)
    found = [_example(json_line(line, file, n), f"{file}, line {n}") for n, line in lines]
    if not found:
        raise DraftwiseError(f"{file} is empty: write one json object a line")
    return found


def _example(row: Any, where: str) -> Example:
    if isinstance(row, dict):
        prompt, text, completion = (row.get(key) for key in ("prompt", "text", "completion"))
        if isinstance(text, str) and text:
            return "", text
        if isinstance(prompt, str) and prompt and (completion is None or completion):
            return prompt, None if completion is None else str(completion)
    raise DraftwiseError(
        f"{where}: write an object with a string `text`, `prompt` and `completion`, or `prompt`"
    )


def _as_texts(
    base: Speculator, examples: Sequence[Example], head: EagleOptions, how: AnswerOptions,
    bars: StageBars, folder: Path,
) -> list[Text]:  # fmt: skip
    """All examples as tokens; the target answers prompts without a completion."""
    from draftwise.engine.options import eos_tokens
    from draftwise_lab.train.data import Text

    found, unanswered = [], []
    room = min(head.max_length, base.target.max_positions)
    end = eos_tokens(base.target, base.tokenizer)[:1]
    for prompt, completion in examples:
        start = list(encode(prompt, base.tokenizer).tokens) if prompt else []
        if completion is None:
            unanswered.append(start[: max(1, room - how.max_new_tokens)])
            continue
        rest = base.tokenizer(completion, add_special_tokens=not prompt)["input_ids"]
        tokens, first = (*start, *rest, *end)[:room], max(1, len(start))
        if first < len(tokens):
            found.append(Text(tokens, first))
    if not unanswered:
        return found
    return found + answer_all(
        base, unanswered, head.temperatures, folder / "answers.jsonl", how, bars
    )


def _train(
    base: Speculator, taught: Sequence[Text], held_out: Sequence[Text], chosen: EagleOptions,
    learning: LearningOptions, seed: int, folder: Path, out: Path, bars: StageBars,
) -> dict[str, Any]:  # fmt: skip
    import torch

    from draftwise_lab.train import eagle as e
    from draftwise_lab.train.data import groups, observed_batches
    from draftwise_lab.train.loop import TrainingSettings
    from draftwise_lab.train.save import save_head
    from draftwise_lab.train.speedup import measure_costs

    target, module = base.target, base.target.module
    size = chosen.draft_vocab or min(32000, target.vocab_size)
    ids = e.draft_vocabulary(taught, size, target.vocab_size)
    head = e.new_head(module, ids, seed=seed, lends=chosen.lend)
    steps = max(1, round(learning.epochs * len(groups(taught, learning.batch_tokens))))
    is_half = target.dtype == torch.bfloat16  # its shared bfloat16 weights do not mix with float32
    settings = TrainingSettings(
        steps, learning.lr, min(50, steps // 10), steps // 2, clip=0.5,
        bf16=is_half or _is_mixed(learning, base),
    )  # fmt: skip
    keeps = e.kept_bytes(taught, head) < MOST_KEPT_BYTES if chosen.keep is None else chosen.keep
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
            alphas = e.acceptance_by_depth(head, module, held_out, chosen.depth)
        report["acceptance_by_depth"] = [round(alpha, 4) for alpha in alphas]
        report.update(worth(when, alphas, costs))

    def loss(model: Any, batch: Any) -> Any:
        return e.eagle_loss(model, batch, chosen.depth, chosen.regression)

    look("before training")
    losses = train_model(
        head, loss, batches, settings, folder / "head.pt", bars, look, learning.probe
    )
    save_head(head.cpu(), out, layout=chosen.layout, dtype=target.dtype, verifier=target.name)
    return report | {
        "held_out_texts": len(held_out),
        "steps": len(losses),
        "last_loss": losses[-1],
        "parameters": head.num_parameters,
        "hidden_states": list(head.config.taps),
        "draft_vocab_size": head.config.draft_vocab_size,
    }


@o.command
def head(
    *,
    target: o.Target,
    drafter: str = option(
        ..., "The model drafter: PATH, lm:PATH or zoo:NAME.", "--drafter", "-d", metavar="SPEC"
    ),
    prompts: Path = PROMPTS,
    out: Path = OUT,
    learning: HeadOptions,
    mixing: float = option(0.15, "Share of the answer's own tokens in the drafter's input."),
    temperature: float = option(
        1.0, "Temperature of answers and drafts.", "--temperature", "-t", metavar="T"
    ),
    answers: AnswerOptions,
    as_json: bool = o.AS_JSON,
    hardware: o.Hardware,
) -> None:
    """Train a head that ends drafts where a token will probably be rejected (SpecDec++).

    The target answers the prompts, the drafter drafts at every position, and the head learns from
    the drafter's hidden states. The preset `specdecpp` finds it in the drafter's folder as `head`.
    Answers and labelled tokens are kept in the work folder, so that a second head for the same
    models costs only its own training.
    """
    folder, seed = answers.folder(out), answers.seed
    with refused_values():
        base, own = begin(target, hardware, prompts, drafter)
        given = encode_all(base, gather(own, base, folder, answers), answers.max_new_tokens)
        loaded = load_drafter(drafter, base, hardware)
        from draftwise_lab.train import head as h

        options = replace(learning, seed=seed)
        setting = h.Setting(base.target.module, loaded.model.module, temperature, mixing, seed)
    inputs = {
        "target": base.target.name,
        "drafter": loaded.model.name,
        "prompts": fingerprint(given),
        "numbers": [temperature, mixing, answers.max_new_tokens, answers.rows, seed],
    }
    with keeping(folder, inputs) as bars:
        texts = answer_all(base, given, [temperature], folder / "answers.jsonl", answers, bars)
        judged = h.judge_texts(setting, texts, folder / "judged", bars.stage("judging", len(texts)))
        name = f"{'tied' if options.tied else 'head'}-D{options.num_layers}-w{options.w_rej:g}-"
        name += f"{options.label}-{seed}-{options.epochs:g}-{options.lr:g}.pt"
        tick = bars.stage("training", h.head_settings(judged.taught, options).steps)
        measured = h.make_head(
            setting, judged, options, out, checkpoint=folder / name, progress=tick
        )
        write_report(out, measured.numbers)
    try:
        h.plot_reliability(measured.curves, out / "reliability.png")
    except DraftwiseError as error:  # matplotlib is missing
        print(f"no reliability.png: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(measured.numbers))
    else:
        _show_head(measured.numbers, out)


def _show_head(numbers: dict[str, Any], out: Path) -> None:
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


prompts_app = typer.Typer(no_args_is_help=True)


@prompts_app.callback()
def prompts() -> None:
    """Prompts to train and to measure with."""


@prompts_app.command()
@o.command
def make(
    *,
    target: o.Target,
    out: Path = option(..., "Output jsonl file, with one prompt per line.", "--out", "-o"),
    num: int = option(1000, "Number of prompts.", least=1),
    max_tokens: int = option(160, "Maximum number of tokens per prompt.", least=8),
    rows: int = option(64, ROWS, least=1),
    avoid: list[Path] | None = option(
        None, "Drop prompts that share ten words in a row with this file; repeatable."
    ),
    seed: int = SEED,
    hardware: o.Hardware,
) -> None:
    """Let an instruct model write prompts, by continuing the bare beginning of a user turn.

    No data is needed (Magpie, arXiv 2406.08464). Unfinished, short, repetitive and repeated turns,
    and those in another script than the template's, are dropped and counted. An interrupted run
    resumes from all samples so far, in `NAME.all` next to the file.
    """
    with refused_values():
        for file in avoid or ():
            read_text(file)
        base, _ = begin(target, hardware, Path(SELF))
        everything = out.with_name(out.name + ".all")
        how = AnswerOptions(num, rows=rows, seed=seed)
        texts, share = own_prompts(base, everything, how, longest=max_tokens, avoid=avoid or ())
        lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in texts]
        out.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(f"wrote {out}: {share}")


app = typer.Typer(no_args_is_help=True, help=LAB_COMMANDS["train"])
for train in (drafter, eagle, head):
    app.command()(train)
