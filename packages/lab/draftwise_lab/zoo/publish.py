"""The last stage: the finished models, their prompts and the manifest go into the package."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftwise_lab.zoo.domains import DOMAINS, SHARES
from draftwise_lab.zoo.recipe import DRAFTERS, EAGLES, SEED
from draftwise_lab.zoo.samples import heldout_prompts

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def publish(work: Path, out: Path) -> None:
    """Copy the models of `work` to `out/weights` and write `manifest.json` and `prompts.json`."""
    weights = out / "weights"
    shutil.rmtree(weights, ignore_errors=True)
    for name in EAGLES:
        shutil.copytree(work / "eagles" / name, weights / "eagles" / name)
    for name in ("target", *(f"drafters/{drafter}" for drafter in DRAFTERS)):
        shutil.copytree(work / name, weights / name)
        for file in _TOKENIZER:
            shutil.copy(work / "tokenizer" / file, weights / name / file)
    measured = json.loads((work / "acceptance.json").read_text("utf-8"))
    seconds = json.loads((work / "seconds.json").read_text("utf-8"))
    _write(weights / "manifest.json", _manifest(weights, measured, seconds))
    _write(out / "prompts.json", {domain: heldout_prompts(domain) for domain in SHARES})


def _manifest(weights: Path, measured: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "domains": list(DOMAINS),
        "drafters": list(DRAFTERS),
        "eagles": list(EAGLES),
        **measured,
        "seed": SEED,
        "versions": {"python": platform.python_version()}
        | {library: version(library) for library in _LIBRARIES},
        "seconds": {stage: round(value, 1) for stage, value in seconds.items()},
        "build_seconds": round(sum(seconds.values()), 1),
        "files": {
            path.relative_to(weights).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in sorted(weights.rglob("*.safetensors"))
        },
    }


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
