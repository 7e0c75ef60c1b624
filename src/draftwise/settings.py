"""What a ``Speculator`` is made of: one set of fields for Python, CLI, server and bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from draftwise import presets, registry
from draftwise.checks import comma_separated, option
from draftwise.specs import BUNDLED

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64", "int8", "int4")
_models, _learning = partial(option, panel="Models"), partial(option, panel="Learning")


def read_lengths(text: str | None) -> list[int] | None:
    said = f"--plan-lengths {text!r}: write whole numbers with commas, such as 1,2,4,8"
    return None if text is None else comma_separated(text, int, -inf, said)


@dataclass(frozen=True, slots=True)
class Hardware:
    dtype: Any = option(
        "auto",
        f"{', '.join(DTYPES)}; int8 and int4 on CPUs only.",
        metavar="TYPE",
        panel="Models",
        known=DTYPES,
        kind=str,
    )
    device: Any = option(
        "auto",
        "auto (CUDA if available), cpu, cuda, cuda:1, mps, xpu; `map:auto`, `map:balanced`: spread "
        "the target over all devices (accelerate).",
        metavar="DEVICE",
        panel="Models",
        known=("auto", "cpu", "cuda", "map:auto"),
        kind=str,
    )
    threads: int = _models(1, "Number of torch threads.", metavar="N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Hardware):
    """A target, its drafters, how they are computed, and what is learnt from which requests.

    None = as the preset or the target has it. ``Speculator.from_pretrained`` takes the fields by
    name, and says what they mean; ``state`` and ``threads`` are the command line's.
    """

    target: Any = option(
        "zoo",
        "A folder (also of a PEFT adapter), a hub id, a `.gguf` file, `smollm2` or `gemma3` "
        "(from the extras of these names), or `zoo`, the bundled model.",
        *("--target", "--model", "-m"),
        metavar="MODEL",
        known=BUNDLED,
        kind=str,
    )
    drafters: Sequence[Any] | None = option(
        None,
        "`lm:PATH`, `lookup`, `suffix`, `datastore:FILE`, `zoo`, `zoo:NAME`, `smollm2:NAME` or "
        "`NAME=SPEC`; repeatable. Default: `lookup`; with `zoo` also its drafters, with "
        "`smollm2` and `gemma3` also `suffix` and their head.",
        *("--drafter", "-d"),
        metavar="SPEC",
        known=[*registry.DRAFTERS, *BUNDLED],
        kind=list[str] | None,
    )
    compile: bool = _models(
        False, "Compile the models with torch.compile: minutes to start, faster steps.", "--compile"
    )
    preset: str = _learning(
        "draftwise", f"{', '.join(presets.PRESETS)}.", metavar="NAME", known=presets.PRESETS
    )
    policy: str | None = _learning(
        None,
        "Chooses drafter and length: `goodput`, `ucb1:beta=0.01`, `fixed:0`, ...; `draftwise "
        f"models` lists all {len(registry.POLICIES)}.",
        *("--policy", "-p"),
        metavar="SPEC",
        known=registry.POLICIES,
    )
    lengths: Sequence[int] | None = _learning(
        None,
        "Draft lengths to choose from: `1,2,4,8`.",
        "--plan-lengths",
        metavar="N,N",
        kind=str | None,
        read=read_lengths,
    )
    reward: str | None = _learning(
        None, f"{', '.join(registry.REWARDS)}.", metavar="SPEC", known=registry.REWARDS
    )
    feedback: str | None = _learning(
        None, f"{', '.join(registry.FEEDBACKS)}.", metavar="SPEC", known=registry.FEEDBACKS
    )
    rules: Sequence[str] | None = _learning(
        None,
        f"Stop rule, which ends drafts early: {', '.join(registry.GUIDES)}; repeatable.",
        *("--rule", "--guide"),
        metavar="SPEC",
        known=registry.GUIDES,
        kind=list[str] | None,
    )
    trees: Sequence[str] | None = _learning(
        None,
        "Draft shape: `chain`, or TOP_KxTOTAL_TOKENS such as `4x16`; repeatable.",
        "--tree",
        metavar="SHAPE",
        kind=list[str] | None,
    )
    scope: str = _learning(
        "request",
        "auto: each request starts from what earlier ones learnt; request: each starts from "
        "scratch; session or task:LABEL: all share one policy.",
        metavar="SCOPE",
        known=("auto", "request", "session", "task:"),
    )
    state: Path | None = option(
        None, "File that keeps shared learning between runs.", panel="Learning", metavar="FILE"
    )
    seed: int | None = option(
        None,
        "Random seed. Default: another one each run. Sampled text repeats only with presets that "
        "do not depend on measured time (the default does).",
        panel="Sampling",
        metavar="N",
    )

    @property
    def learning(self) -> presets.Preset:
        """The preset with what is given in place of its parts; raises DraftwiseError."""
        names = "policy", "reward", "feedback", "lengths", "rules", "trees"
        given = {name: getattr(self, name) for name in names}
        return presets.adjusted(presets.preset(self.preset), **given)

    def for_python(self) -> dict[str, Any]:
        own = {"state", "threads"}
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in own}
