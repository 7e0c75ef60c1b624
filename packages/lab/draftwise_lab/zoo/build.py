"""Builds the bundled models stage by stage; skips finished stages and resumes interrupted ones."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from draftwise.files import write_text
from draftwise.nn.eagle_files import load_head
from draftwise.nn.model import CausalModel
from draftwise_lab.train import data
from draftwise_lab.train.data import Observed, Text, answer_logits, observed_batches
from draftwise_lab.train.drafter import distillation_loss, drafter_batches, measure_acceptance
from draftwise_lab.train.eagle import acceptance_by_depth, eagle_loss, new_head
from draftwise_lab.train.head import HeadOptions, Setting, judge_texts, make_head
from draftwise_lab.train.loop import TrainingSettings, fit
from draftwise_lab.train.options import DrafterOptions
from draftwise_lab.train.save import save_head
from draftwise_lab.zoo import corpus
from draftwise_lab.zoo import recipe as r
from draftwise_lab.zoo.corpus import Answers
from draftwise_lab.zoo.domains import DOMAINS, SHARES
from draftwise_lab.zoo.models import cross_entropy, deepen, make_llama, pack, prime_copying


@dataclass(frozen=True)
class Site:
    work: Path
    scale: float = 1.0
    processes: int = 1

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return corpus.load_tokenizer(self.work / "tokenizer")

    def model(self, name: str) -> PreTrainedModel:
        """Load a packed model of this build the way a user would."""
        return AutoModelForCausalLM.from_pretrained(self.work / name).to(self.device).eval()

    def settings(self, phase: r.Phase) -> TrainingSettings:
        steps = max(2, round(phase.steps * self.scale))
        decay = steps // 2 if phase.decay == "half" else steps if phase.decay else 0
        return TrainingSettings(steps, phase.lr, min(40, steps // 2), decay, bf16=True)

    def answers(self) -> Answers:
        return Answers(self.model("target"), self.tokenizer, self.work, self.scale)

    def documents(self, phase: r.Phase, seed: int, domains: Sequence[str] = ()) -> Any:
        """Return step -> token batch, in rows of the phase's context (`TOKENS_PER_STEP` tokens)."""
        rows = r.TOKENS_PER_STEP // phase.context
        return corpus.batches(self.tokenizer, seed, rows, phase.context, domains)

    def fit(self, model: torch.nn.Module, tokens: Any, phase: r.Phase, name: str) -> None:
        """Train on next-token prediction; a checkpoint in ``work`` makes the run resumable."""

        def progress(step: int, loss: float) -> None:
            if step % 100 == 0:
                Console().print(f"  {name}, step {step}, loss {loss:.3f}")

        fit(
            model, lambda m, rows: cross_entropy(m, rows.to(self.device)), tokens,
            self.settings(phase), checkpoint=self.work / f"{name}.pt", progress=progress,
        )  # fmt: skip


def _tokenizer(site: Site) -> None:
    if not (site.work / "tokenizer" / "tokenizer.json").exists():
        corpus.train_tokenizer(site.work / "tokenizer", seed=r.SEED)


def _llama(site: Site, num_layers: int) -> Any:
    tokenizer = site.tokenizer
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    return make_llama(vocab_size=len(tokenizer), num_layers=num_layers, token_ids=ids, seed=r.SEED)


def _target(site: Site) -> None:
    """Train in three phases, from a shallow model on short texts to a deep one on long texts."""
    if (site.work / "target" / "config.json").exists():
        return
    model = _llama(site, r.TARGET_PHASES[0].num_layers)
    prime_copying(model, seed=r.SEED, matchers=(1,))
    model = model.to(site.device)
    for number, phase in enumerate(r.TARGET_PHASES):
        depth = model.config.num_hidden_layers
        if phase.num_layers != depth:
            torch.manual_seed(r.SEED + number)
            model = deepen(model, phase.num_layers // depth).to(site.device)
        site.fit(model, site.documents(phase, r.SEED + number), phase, f"target-{phase.name}")
    pack(model.cpu(), site.work / "target")


def _lesson(site: Site, domain: str) -> None:
    answers = site.answers()
    answers.heldout(domain)
    answers.lesson(domain)


def _drafter(site: Site, name: str) -> None:
    """Train a one-layer drafter on its domain's text, then distil the target into it.

    Source: MetaSD, appendix F.1, with soft targets in place of sampled tokens.
    """
    folder = site.work / "drafters" / name
    if (folder / "config.json").exists():
        return
    model, everything = _llama(site, 1).to(site.device), name == r.GENERALIST
    documents = site.documents(r.PRETRAINING, r.SEED + 10, () if everything else (name,))
    site.fit(model, documents, r.PRETRAINING, f"pretrained-{name}")
    answers, domains = site.answers(), tuple(SHARES) if everything else (name,)
    texts = [text for domain in domains for text in answers.lesson(domain)]
    options = DrafterOptions(seed=r.SEED + 30)
    lessons = drafter_batches(answers.target, texts, options, site.work / f"states-{name}")
    checkpoint = site.work / f"distilled-{name}.pt"
    fit(model, distillation_loss, lessons, site.settings(r.DISTILLATION), checkpoint=checkpoint)
    pack(model.cpu(), folder)


def _eagle(site: Site, name: str) -> None:
    """Distil an EAGLE head from the target, first on documents of its domains, then on lessons.
    Specialists start from the generalist's last checkpoint in ``work``. All heads share the
    target's hidden states on lessons, which are kept in ``work/states``."""
    folder = site.work / "eagles" / name
    if (folder / "config.json").exists():
        return
    answers, is_general = site.answers(), name == r.EAGLE_GENERALIST
    target = answers.target
    texts = {domain: answers.lesson(domain) for domain in r.EAGLES[name]}
    head = new_head(target, None, seed=r.SEED)
    if not is_general:
        start = torch.load(site.work / f"lessons-{r.EAGLE_GENERALIST}.pt", weights_only=True)
        head.load_state_dict(start["model"])
    taps = head.config.taps
    tokens = site.documents(r.EAGLE_DOCUMENTS, r.SEED + 70, () if is_general else tuple(texts))

    def documents(step: int) -> Observed:
        rows = [Text(tuple(row), 1) for row in tokens(step).tolist()]
        with torch.autocast(target.device.type, torch.bfloat16):
            return data.observe(target, rows, taps)

    lessons = observed_batches(target, texts, taps, seed=r.SEED + 50, keep=site.work / "states")
    first, last = r.EAGLE_PHASES if is_general else r.SPECIAL_PHASES
    for phase, observed in ((first, documents), (last, lessons)):
        loss = partial(eagle_loss, num_passes=r.EAGLE_PASSES[phase.name])
        checkpoint = site.work / f"{phase.name}-{name}.pt"
        fit(head, loss, observed, site.settings(phase), checkpoint=checkpoint)
    save_head(head.cpu(), folder, dtype=torch.float16)


def _stop_answers(site: Site, domain: str) -> None:
    site.answers().for_stops(domain)


def _stop(site: Site, name: str) -> None:
    """Train a drafter's acceptance head and write it to the folder ``head`` next to its weights.

    Source: SpecDec++, section 4.4. Uses the same functions as ``draftwise train head``.
    """
    folder = site.work / "drafters" / name / "head"
    if (folder / "config.json").exists():
        return
    answers, domains = site.answers(), tuple(SHARES) if name == r.GENERALIST else (name,)
    texts = [text for domain in domains for text in answers.for_stops(domain)]
    setting = Setting(answers.target, site.model(f"drafters/{name}"), seed=r.SEED + 60)
    make_head(
        setting, judge_texts(setting, texts, site.work / f"head-judged-{name}"),
        HeadOptions(r.STOP_LAYERS, r.STOP_W_REJ, "analytic", seed=r.SEED), folder,
        checkpoint=site.work / f"head-{name}.pt",
    )  # fmt: skip


def _acceptance(site: Site) -> None:
    """Measure acceptance on held-out answers at T = 1, by drafter (and depth) and domain."""
    if (path := site.work / "acceptance.json").exists():
        return
    answers = site.answers()
    target, heldout = answers.target, {domain: answers.heldout(domain) for domain in SHARES}
    drafters = {name: site.model(f"drafters/{name}") for name in r.DRAFTERS}
    columns = {d: measure_acceptance(target, drafters, texts) for d, texts in heldout.items()}
    adapter = CausalModel(target, "target")
    heads = {name: load_head(site.work / "eagles" / name, adapter) for name in r.EAGLES}

    def depths(head: Any, texts: Sequence[Text]) -> list[float]:
        return [round(a, 4) for a in acceptance_by_depth(head, target, texts, r.EAGLE_DEPTHS)]

    found = {
        "acceptance": {n: {d: round(columns[d][n], 4) for d in SHARES} for n in drafters},
        "acceptance_by_depth": {
            name: {domain: depths(head, texts) for domain, texts in heldout.items()}
            for name, head in heads.items()
        },
        "heldout_loss": {d: round(heldout_loss(target, site.tokenizer, d), 4) for d in SHARES},
    }
    write_text(path, json.dumps(found))


@torch.inference_mode()
def heldout_loss(target: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, domain: str) -> float:
    """The target's loss, in nats per token, on answers of held-out documents of `domain`."""
    document = corpus.drawn(domain, "held out", heldout=True)
    texts = [corpus.as_text(tokenizer, document(number)) for number in range(2 * r.NUM_HELDOUT)]
    total, count = 0.0, 0
    for group in data.groups(texts, 4096):
        tokens_, positions = (x.to(target.device) for x in data.pad([texts[i] for i in group]))
        logits = answer_logits(target, tokens_, positions).float()
        truth = tokens_.flatten()[positions + 1]
        loss = torch.nn.functional.cross_entropy(logits, truth, reduction="sum")
        total, count = total + float(loss), count + len(truth)
    return total / count


_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def publish(work: Path, out: Path) -> None:
    """Copy the models of `work` to `out/weights` and write `manifest.json` and `prompts.json`."""
    weights = out / "weights"
    shutil.rmtree(weights, ignore_errors=True)
    for name in r.EAGLES:
        shutil.copytree(work / "eagles" / name, weights / "eagles" / name)
    for name in ("target", *(f"drafters/{drafter}" for drafter in r.DRAFTERS)):
        shutil.copytree(work / name, weights / name)
        for file in _TOKENIZER:
            shutil.copy(work / "tokenizer" / file, weights / name / file)
    measured = json.loads((work / "acceptance.json").read_text("utf-8"))
    seconds = json.loads((work / "seconds.json").read_text("utf-8"))
    _write(weights / "manifest.json", _manifest(weights, measured, seconds))
    _write(out / "prompts.json", {domain: corpus.heldout_prompts(domain) for domain in SHARES})


def _manifest(weights: Path, measured: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    versions = {library: version(library) for library in _LIBRARIES}
    files = {
        path.relative_to(weights).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(weights.rglob("*.safetensors"))
    }
    return {
        "domains": list(DOMAINS),
        "drafters": list(r.DRAFTERS),
        "eagles": list(r.EAGLES),
        **measured,
        "seed": r.SEED,
        "versions": {"python": platform.python_version(), **versions},
        "seconds": {stage: round(value, 1) for stage, value in seconds.items()},
        "build_seconds": round(sum(seconds.values()), 1),
        "files": files,
    }


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")


def build(out: Path, work: Path, *, minutes: float = r.NOMINAL_MINUTES, processes: int = 1) -> None:
    """Build the whole zoo in `work` and publish it in `out`, the folder of draftwise-zoo.
    `minutes` scales the numbers of steps and samples relative to `r.NOMINAL_MINUTES`. Every process
    uses one thread. Errors: ValueError if `minutes` or `processes` is not positive."""
    if minutes <= 0 or processes < 1:
        raise ValueError(f"minutes and processes must be positive, got {minutes}, {processes}")
    torch.set_num_threads(1)
    site = Site(work, minutes / r.NOMINAL_MINUTES, processes)
    work.mkdir(parents=True, exist_ok=True)
    console = Console()
    for name, stage in STAGES.items():
        console.print(f"[bold]{name}[/bold]")
        with _timed(work / "seconds.json", name):
            stage(site)
    publish(work, out)
    console.print(f"published in {out}")


@contextmanager
def _timed(path: Path, stage: str) -> Iterator[None]:
    """Add a stage's time to the time recorded by earlier, interrupted runs."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds = json.loads(path.read_text("utf-8")) if path.exists() else {}
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began
        write_text(path, json.dumps(seconds, indent=2) + "\n")


def _spread(job: Callable[[Site, str], None], names: Sequence[str], site: Site) -> None:
    """Run `job` for every name, in `site.processes` single-threaded processes."""
    context = get_context("spawn")
    with ProcessPoolExecutor(
        site.processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        futures = {name: pool.submit(job, site, name) for name in names}
        for name, future in futures.items():
            future.result()
            Console().print(f"  {name} done")


STAGES: dict[str, Callable[[Site], None]] = {
    "tokenizer": _tokenizer,
    "target": _target,
    "samples": partial(_spread, _lesson, tuple(SHARES)),
    "drafters": partial(_spread, _drafter, r.DRAFTERS),
    "eagles, the first": partial(_spread, _eagle, tuple(r.EAGLES)[:1]),  # the others start from it
    "eagles": partial(_spread, _eagle, tuple(r.EAGLES)[1:]),
    "answers for stops": partial(_spread, _stop_answers, tuple(SHARES)),
    "stops": partial(_spread, _stop, r.DRAFTERS),
    "acceptance": _acceptance,
}
