"""The recipe, stage by stage; a finished stage is skipped and a stopped one resumes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress as Bar
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwise.lines import write_text
from draftwise_lab.zoo.corpus import load_tokenizer, train_tokenizer
from draftwise_lab.zoo.domains import SHARES
from draftwise_lab.zoo.drafters import distill_drafter, pretrain_drafter
from draftwise_lab.zoo.eagles import depth_matrix, pack_eagle, train_zoo_eagle
from draftwise_lab.zoo.evaluate import acceptance_matrix, heldout_answers, heldout_loss
from draftwise_lab.zoo.lessons import load
from draftwise_lab.zoo.models import pack
from draftwise_lab.zoo.publish import publish
from draftwise_lab.zoo.recipe import (
    DRAFTERS,
    EAGLES,
    GENERALIST,
    NOMINAL_MINUTES,
    SEED,
    TARGET_PHASES,
)
from draftwise_lab.zoo.samples import make_lesson
from draftwise_lab.zoo.stops import stop_texts, train_stop
from draftwise_lab.zoo.target import train_target


@dataclass(frozen=True)
class Site:
    """Where a build works, how much of the recipe it does, and on what device."""

    work: Path
    scale: float = 1.0
    processes: int = 1

    @property
    def device(self) -> str:
        """CUDA where there is one."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    def model(self, name: str) -> PreTrainedModel:
        """A packed model of this build, loaded as a user's."""
        return AutoModelForCausalLM.from_pretrained(self.work / name).to(self.device).eval()


def build(out: Path, work: Path, *, minutes: float = NOMINAL_MINUTES, processes: int = 1) -> None:
    """Make the whole zoo in `work` and publish it in `out` (a package's `zoo` folder).

    `minutes` scales the number of steps and samples, measured against `NOMINAL_MINUTES`.
    Every process uses one thread. Errors: ValueError for a budget that is not positive.
    """
    if minutes <= 0 or processes < 1:
        raise ValueError(f"minutes and processes must be positive, got {minutes}, {processes}")
    torch.set_num_threads(1)
    site = Site(work, minutes / NOMINAL_MINUTES, processes)
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
    """Add the time a stage takes to what earlier, interrupted runs of it took."""
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds = json.loads(path.read_text("utf-8")) if path.exists() else {}
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began
        write_text(path, json.dumps(seconds, indent=2) + "\n")


def _tokenizer(site: Site) -> None:
    if not (site.work / "tokenizer" / "tokenizer.json").exists():
        train_tokenizer(site.work / "tokenizer", seed=SEED)


def _target(site: Site) -> None:
    if (site.work / "target" / "config.json").exists():
        return
    total = sum(max(2, round(phase.steps * site.scale)) for phase in TARGET_PHASES)
    with Bar() as bar:
        task = bar.add_task("target", total=total)
        model = train_target(
            load_tokenizer(site.work / "tokenizer"),
            site.work,
            device=site.device,
            scale=site.scale,
            progress=lambda _, loss: bar.update(
                task, advance=1, description=f"target, loss {loss:.3f}"
            ),
        )
    pack(model.cpu(), site.work / "target")


def _samples(site: Site) -> None:
    _spread(site, _one_lesson, tuple(SHARES))


def _one_lesson(site: Site, domain: str) -> None:
    if not (site.work / f"lesson-{domain}" / "texts.json").exists():
        tokenizer, target = load_tokenizer(site.work / "tokenizer"), site.model("target")
        heldout_answers(target, tokenizer, domain, site.work)
        make_lesson(domain, target, tokenizer, site.work, scale=site.scale)


def _drafters(site: Site) -> None:
    _spread(site, _one_drafter, DRAFTERS)


def _one_drafter(site: Site, name: str) -> None:
    folder = site.work / "drafters" / name
    if (folder / "config.json").exists():
        return
    tokenizer = load_tokenizer(site.work / "tokenizer")
    model = pretrain_drafter(name, tokenizer, site.work, device=site.device, scale=site.scale)
    domains = tuple(SHARES) if name == GENERALIST else (name,)
    lessons = [load(site.work / f"lesson-{domain}") for domain in domains]
    distill_drafter(name, model, lessons, site.work, scale=site.scale)
    pack(model.cpu(), folder)


def _eagles(site: Site) -> None:
    first, *others = EAGLES  # the others begin as the first
    _spread(site, _one_eagle, (first,))
    _spread(site, _one_eagle, others)


def _one_eagle(site: Site, name: str) -> None:
    folder = site.work / "eagles" / name
    if (folder / "config.json").exists():
        return
    lessons = {domain: load(site.work / f"lesson-{domain}").texts for domain in EAGLES[name]}
    tokenizer, target = load_tokenizer(site.work / "tokenizer"), site.model("target")
    head = train_zoo_eagle(name, target, tokenizer, lessons, site.work, scale=site.scale)
    pack_eagle(head.cpu(), folder)


def _stops(site: Site) -> None:
    _spread(site, _stop_answers, tuple(SHARES))
    _spread(site, _one_stop, DRAFTERS)


def _stop_answers(site: Site, domain: str) -> None:
    tokenizer = load_tokenizer(site.work / "tokenizer")
    stop_texts(site.model("target"), tokenizer, domain, site.work, scale=site.scale)


def _one_stop(site: Site, name: str) -> None:
    if (site.work / "drafters" / name / "head" / "config.json").exists():
        return
    tokenizer = load_tokenizer(site.work / "tokenizer")
    models = site.model("target"), site.model(f"drafters/{name}")
    train_stop(name, *models, tokenizer, site.work, scale=site.scale)


def _acceptance(site: Site) -> None:
    path = site.work / "acceptance.json"
    if path.exists():
        return
    tokenizer, target = load_tokenizer(site.work / "tokenizer"), site.model("target")
    drafters = {name: site.model(f"drafters/{name}") for name in DRAFTERS}
    found = {
        "acceptance": acceptance_matrix(target, drafters, tokenizer, site.work),
        "acceptance_by_depth": depth_matrix(
            target,
            {name: site.work / "eagles" / name for name in EAGLES},
            {d: heldout_answers(target, tokenizer, d, site.work) for d in SHARES},
        ),
        "heldout_loss": {d: round(heldout_loss(target, tokenizer, d), 4) for d in SHARES},
    }
    write_text(path, json.dumps(found))


def _spread(site: Site, job: Callable[[Site, str], None], names: Sequence[str]) -> None:
    """Run `job` for every name, in `site.processes` processes of one thread each."""
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
    "samples": _samples,
    "drafters": _drafters,
    "eagles": _eagles,
    "stops": _stops,
    "acceptance": _acceptance,
}
