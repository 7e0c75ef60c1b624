"""Settings of a ``Speculator``, and specs of drafters, all checked before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from draftwise import checks, registry, zoo
from draftwise.checks import comma_separated, option
from draftwise.engine.options import SEED_HELP
from draftwise.errors import BadValue, DraftwiseError
from draftwise.files import local_path
from draftwise.nn.folder import DTYPES, find, hardware
from draftwise.registry import DRAFTERS, FEEDBACKS, POLICIES, PRESETS, REWARDS, STOP_RULES

ZOO = "zoo"
BUNDLED = (ZOO, *zoo.PRETRAINED)
"""Targets with bundled drafters: as a spec, each means all of these, ``smollm2:NAME`` one."""


@dataclass(frozen=True, slots=True)
class DrafterHelp:
    """What ``draftwise models`` says of a drafter, without importing it: torch loads slowly."""

    about: str
    options: Mapping[str, tuple[Any, Any]]  # type and default; ``...``: no default

    @property
    def types(self) -> dict[str, Any]:
        return {name: kind for name, (kind, _) in self.options.items()}


_COUNT, _PATH = int | None, Path | str
DRAFTER_HELP: Mapping[str, DrafterHelp] = {
    "lm": DrafterHelp(
        "Any causal LM that shares the target's tokenizer.",
        {"path": (_PATH, ...)},
    ),
    "lookup": DrafterHelp(
        "The longest n-gram at the end of the text that occurred before; its latest occurrence "
        "wins.",
        {"prompt_lookup_min": (int, 1), "prompt_lookup_max": (int, 8)},
    ),
    "suffix": DrafterHelp(
        "The most frequent continuation of the longest suffix match here or in past outputs.",
        {"max_tokens": (int, 262_144), "num_matches": (int, 8), "num_tenants": (int, 16)},
    ),
    "datastore": DrafterHelp(
        "The most frequent continuation of the longest suffix match in a corpus on disk.",
        {"file": (_PATH, ...), "num_matches": (int, 64)},
    ),
    "eagle": DrafterHelp(
        "An EAGLE-1, EAGLE-2 or EAGLE-3 head from a folder or hub id, in either layout.",
        {
            "path": (_PATH, ...),
            "depth": (_COUNT, None),
            "top_k": (_COUNT, None),
            "total_tokens": (_COUNT, None),
        },
    ),
}
"""A test holds options and sentences against the code."""

RESEARCH = "Research: how the policy chooses (draftwise models lists all names)"
_models, _learning = partial(option, panel="Models"), partial(option, panel="Learning")
_research = partial(option, panel=RESEARCH)


def read_lengths(text: str | None) -> list[int] | None:
    said = f"--plan-lengths {text!r}: write whole numbers with commas, such as 1,2,4,8"
    return None if text is None else comma_separated(text, int, -inf, said)


@dataclass(frozen=True, slots=True)
class Hardware:
    """dtype: also a ``torch.dtype``; device: also a dict, the target's ``device_map``."""

    dtype: Any = option(
        "auto", f"{', '.join(DTYPES)}.", metavar="TYPE", panel="Models", known=DTYPES, kind=str,
    )  # fmt: skip
    device: Any = option(
        "auto",
        "auto (CUDA if available), cpu, cuda, cuda:1, mps, xpu; `map:auto`, `map:balanced`: spread "
        "the target over all devices (accelerate).",
        metavar="DEVICE", panel="Models", known=("auto", "cpu", "cuda", "map:auto"), kind=str,
    )  # fmt: skip
    threads: int = _models(
        1, "Number of torch threads. All cores are fastest where no other program runs."
    )

    def __post_init__(self) -> None:
        hardware(self.dtype, self.device)
        checks.whole("threads", self.threads, 1, 16 * (os.cpu_count() or 1))

    def settings(self, **more: Any) -> Settings:
        return Settings(**asdict(self), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Hardware):
    """Models, for commands without a policy; drafters None = the target's defaults."""

    target: Any = option(
        zoo.default_target(),
        "A folder (also of a PEFT adapter), a hub id, a `.gguf` file, `smollm2` or `gemma3` "
        "(from the extras of these names), or `zoo`, the bundled toy. Default: `smollm2` where "
        "it is installed.",
        "--target", "--model", "-m", metavar="MODEL", known=BUNDLED, kind=str,
    )  # fmt: skip
    drafters: Sequence[Any] | None = option(
        None,
        "`lm:PATH`, `lookup`, `suffix`, `datastore:FILE`, `zoo`, `zoo:NAME`, `smollm2:NAME` or "
        "`NAME=SPEC`; repeatable. Default: `lookup`; with `zoo` also its drafters, with "
        "`smollm2` and `gemma3` also `suffix` and their head.",
        "--drafter", "-d", metavar="SPEC", kind=list[str] | None,
        known=[*DRAFTERS, *BUNDLED],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Models):
    """All settings of a ``Speculator``; None = the default of the preset or the target."""

    preset: str = _learning("draftwise", f"{', '.join(PRESETS)}.", metavar="NAME", known=PRESETS)
    policy: str | None = _research(
        None,
        "Chooses drafter and length: `goodput`, `ucb1:beta=0.01`, `fixed:0`, ...; `draftwise "
        f"models` lists all {len(POLICIES)}.",
        "--policy", "-p", metavar="SPEC", known=POLICIES,
    )  # fmt: skip
    lengths: Sequence[int] | None = _research(
        None, "Draft lengths to choose from: `1,2,4,8`.", "--plan-lengths",
        metavar="N,N", kind=str | None, read=read_lengths,
    )  # fmt: skip
    reward: str | None = _research(None, f"{', '.join(REWARDS)}.", metavar="SPEC", known=REWARDS)
    feedback: str | None = _research(
        None, f"{', '.join(FEEDBACKS)}.", metavar="SPEC", known=FEEDBACKS
    )
    rules: Sequence[str] | None = _research(
        None,
        f"Stop rule, which ends drafts early: {', '.join(STOP_RULES)}; repeatable.",
        "--rule", metavar="SPEC", known=STOP_RULES, kind=list[str] | None,
    )  # fmt: skip
    trees: Sequence[str] | None = _research(
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
    num_prefixes: int | None = option(None)
    deterministic: bool = option(
        False,
        "Repeat the answers of a seed, whatever else runs: costs are assumed instead of measured, "
        "and no prefixes are shared.",
        panel="Sampling",
    )

    @property
    def learning(self) -> registry.Preset:
        """The preset with the fields that are not None replaced; raises DraftwiseError."""
        names = "policy", "reward", "feedback", "lengths", "rules", "trees"
        given = {name: getattr(self, name) for name in names}
        return registry.adjusted(registry.preset(self.preset), **given)


DEFAULTS = Settings()


def name_and_spec(given: Any) -> tuple[str, Any]:
    """Split ``NAME=SPEC``, or derive a name from the spec; a model is named by its class."""
    if not isinstance(given, (str, Path)):
        return type(given).__name__, given
    if isinstance(given, Path):
        return _folder_name(given), given
    name, equals, spec = given.partition("=")
    if equals and ":" not in name and "," not in name and not local_path(given).exists():
        return name, spec
    if given.startswith("lm:"):
        return _folder_name(lm_options(given).get("path", "")), given
    return given.partition(":")[0], given


def lm_options(spec: str) -> dict[str, Any]:
    """The options of ``lm:PATH`` by name."""
    return registry.parse_options(
        "drafter 'lm'", spec.removeprefix("lm:"), DRAFTER_HELP["lm"].types
    )


def _folder_name(path: str | Path) -> str:
    """The last part of a path; of ``.`` and ``..`` the name of that folder."""
    name = Path(path).name
    return name if name.strip(".") or not path else Path(os.path.abspath(path)).name


def expand(specs: Sequence[Any]) -> list[Any]:
    """Expand ``zoo`` to all bundled models, ``zoo:NAME`` to one model or EAGLE head, ``smollm2`` to
    all drafters of that target, and ``smollm2:NAME`` to one."""
    expanded: list[Any] = []
    for spec in specs:
        name, comma, options = spec.partition(",") if isinstance(spec, str) else ("", "", "")
        bundle, _, wanted = name.partition(":")
        if bundle not in BUNDLED:
            expanded.append(spec)
            continue
        known = _bundled(bundle, is_named=bool(wanted))
        if wanted not in {"", *known}:
            checks.refuse_removed(f"drafter {name}")
            raise DraftwiseError(f"no {bundle} drafter {wanted!r}; there are: {', '.join(known)}")
        expanded += [f"{n}={s}{comma}{options}" for n, s in known.items() if wanted in {"", n}]
    return expanded


def _bundled(target: str, *, is_named: bool) -> dict[str, str]:
    """The drafters of a bundled target, name -> spec; the zoo's heads only if one is named."""
    if target != ZOO:
        own: dict[str, str] = zoo.package().own_specs(target)
        return own
    models = {name: f"lm:{path}" for name, path in zoo.drafter_paths().items()}
    heads = {name: f"eagle:{path}" for name, path in zoo.eagle_paths().items()}
    return models | heads if is_named else models


def check_drafter(given: str) -> None:
    """Reject, without loading, a spec of an unknown drafter or option, or of what is not there."""
    for spec in expand([given]):
        _check_one(given, *name_and_spec(spec))


def _check_one(given: str, name: str, spec: str) -> None:
    if not spec or not name:
        raise DraftwiseError(f"the drafter {given!r} names nothing; {_KINDS}")
    kind, _, rest = spec.partition(":")
    kind = kind.partition(",")[0]
    if kind not in DRAFTERS:
        if local_path(spec).is_dir():
            raise DraftwiseError(f"drafter {spec!r} is a folder: write lm:{spec}")
        checks.refuse_removed(f"drafter {kind}")
        raise DraftwiseError(f"unknown drafter {kind!r}; {_KINDS}")
    if kind not in DRAFTER_HELP:  # one that the program added
        return
    found = registry.parse_options(f"drafter {kind!r}", rest, DRAFTER_HELP[kind].types)
    if kind == "lookup":
        least, most = found.get("prompt_lookup_min", 1), found.get("prompt_lookup_max", 8)
        if checks.whole("prompt_lookup_min", least, 1) > checks.whole("prompt_lookup_max", most, 1):
            must = f"at most prompt_lookup_max, which is {most}"
            raise BadValue("prompt_lookup_min", least, must)
    if kind == "datastore" and not local_path(found.get("file", "")).exists():
        raise DraftwiseError(f"drafter {kind!r}: there is no {found.get('file', 'file')}")
    if kind in {"lm", "eagle"}:
        _check_model(given, kind, found.get("path", ""))


def _check_model(given: str, kind: str, path: str) -> None:
    if not path:
        raise DraftwiseError(f"drafter {kind!r} needs path: write {kind}:PATH")
    try:
        find(path)
    except DraftwiseError as error:
        raise DraftwiseError(f"drafter {given}: {error}") from error


_KINDS = f"the drafter names are: {', '.join([*DRAFTERS, *BUNDLED])}"
