"""The settings of a ``Speculator``: their defaults and checks, for Python and all commands."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from draftwise import checks, registry
from draftwise.checks import comma_separated, option
from draftwise.engine.options import SEED_HELP
from draftwise.nn.folder import DTYPES, check_hardware
from draftwise.specs import BUNDLED

_models, _learning = partial(option, panel="Models"), partial(option, panel="Learning")


def read_lengths(text: str | None) -> list[int] | None:
    said = f"--plan-lengths {text!r}: write whole numbers with commas, such as 1,2,4,8"
    return None if text is None else comma_separated(text, int, -inf, said)


@dataclass(frozen=True, slots=True)
class Hardware:
    """dtype: a ``torch.dtype``, too; device: also a dict, the target's ``device_map``."""

    dtype: Any = option(
        "auto", f"{', '.join(DTYPES)}; int8 and int4 on CPUs only.",
        metavar="TYPE", panel="Models", known=DTYPES, kind=str,
    )  # fmt: skip
    device: Any = option(
        "auto",
        "auto (CUDA if available), cpu, cuda, cuda:1, mps, xpu; `map:auto`, `map:balanced`: spread "
        "the target over all devices (accelerate).",
        metavar="DEVICE", panel="Models", known=("auto", "cpu", "cuda", "map:auto"), kind=str,
    )  # fmt: skip
    threads: int = _models(1, "Number of torch threads.")

    def __post_init__(self) -> None:
        check_hardware(self.dtype, self.device)
        checks.whole("threads", self.threads, 1, 16 * (os.cpu_count() or 1))

    def settings(self, **more: Any) -> Settings:
        return Settings(**asdict(self), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Hardware):
    """The models of commands that choose no policy; drafters None = the target's own."""

    target: Any = option(
        "zoo",
        "A folder (also of a PEFT adapter), a hub id, a `.gguf` file, `smollm2` or `gemma3` "
        "(from the extras of these names), or `zoo`, the bundled model.",
        "--target", "--model", "-m", metavar="MODEL", known=BUNDLED, kind=str,
    )  # fmt: skip
    drafters: Sequence[Any] | None = option(
        None,
        "`lm:PATH`, `lookup`, `suffix`, `datastore:FILE`, `zoo`, `zoo:NAME`, `smollm2:NAME` or "
        "`NAME=SPEC`; repeatable. Default: `lookup`; with `zoo` also its drafters, with "
        "`smollm2` and `gemma3` also `suffix` and their head.",
        "--drafter", "-d", metavar="SPEC", kind=list[str] | None,
        known=[*registry.DRAFTERS, *BUNDLED],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Models):
    """All settings of a ``Speculator``; None = the preset's or the target's own."""

    compile: bool = _models(
        False, "Compile the models with torch.compile: minutes to start, faster steps.", "--compile"
    )
    preset: str = _learning(
        "draftwise", f"{', '.join(registry.PRESETS)}.", metavar="NAME", known=registry.PRESETS
    )
    policy: str | None = _learning(
        None,
        "Chooses drafter and length: `goodput`, `ucb1:beta=0.01`, `fixed:0`, ...; `draftwise "
        f"models` lists all {len(registry.POLICIES)}.",
        "--policy", "-p", metavar="SPEC", known=registry.POLICIES,
    )  # fmt: skip
    lengths: Sequence[int] | None = _learning(
        None, "Draft lengths to choose from: `1,2,4,8`.", "--plan-lengths",
        metavar="N,N", kind=str | None, read=read_lengths,
    )  # fmt: skip
    reward: str | None = _learning(
        None, f"{', '.join(registry.REWARDS)}.", metavar="SPEC", known=registry.REWARDS
    )
    feedback: str | None = _learning(
        None, f"{', '.join(registry.FEEDBACKS)}.", metavar="SPEC", known=registry.FEEDBACKS
    )
    rules: Sequence[str] | None = _learning(
        None,
        f"Stop rule, which ends drafts early: {', '.join(registry.GUIDES)}; repeatable.",
        "--rule", "--guide", metavar="SPEC", known=registry.GUIDES, kind=list[str] | None,
    )  # fmt: skip
    trees: Sequence[str] | None = _learning(
        None,
        "Draft shape: `chain`, or TOP_KxTOTAL_TOKENS such as `4x16`; repeatable.",
        "--tree", metavar="SHAPE", kind=list[str] | None,
    )  # fmt: skip
    scope: str = _learning(
        "request",
        "auto: each request starts from what earlier ones learnt; request: each starts from "
        "scratch; session or `task:LABEL`: all share one policy.",
        metavar="SCOPE", known=("auto", "request", "session", "task:"),
    )  # fmt: skip
    state: Path | None = option(
        None, "File that keeps shared learning between runs.", panel="Learning"
    )
    seed: int | None = option(None, SEED_HELP, panel="Sampling")
    num_prefixes: int = option(4)
    deterministic: bool = option(False)

    @property
    def learning(self) -> registry.Preset:
        """The preset with the given fields replaced; raises DraftwiseError."""
        names = "policy", "reward", "feedback", "lengths", "rules", "trees"
        given = {name: getattr(self, name) for name in names}
        return registry.adjusted(registry.preset(self.preset), **given)


DEFAULTS = Settings()
