"""Parses the methods to compare (presets, fixed plans, peers); loads nothing.

``plain``, ``PRESET[@LENGTHS]``, ``fixed:DRAFTERxLENGTH[/RULE]``, ``transformers``,
``transformers:lookup[xLENGTH]``, ``transformers:DRAFTERxLENGTH[/heuristic|/confidence[=P]]``, and
the groups ``presets``, ``fixed`` and ``peers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from draftwise import registry
from draftwise.checks import comma_separated, probability
from draftwise.registry import PRESETS, Preset, preset
from draftwise.types import DraftwiseError

PLAIN, DEFAULT, TRANSFORMERS = "plain", "draftwise", "transformers"
GROUPS = ("presets", "fixed", "peers")
DEFAULT_METHODS = (PLAIN, *GROUPS)
LOOKUP = "lookup"
_GRAMMAR = (
    "write plain, a preset (metasd, metasd@4), fixed:DRAFTERxLENGTH, transformers, "
    "transformers:lookup, transformers:DRAFTERxLENGTH[/heuristic|/confidence], "
    f"or a group: {', '.join(GROUPS)}"
)


@dataclass(frozen=True, slots=True)
class Ours:
    """draftwise with one preset. drafter: its only drafter; None = the whole pool."""

    name: str
    setting: Preset
    drafter: str | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Generation by transformers.

    drafter: None = greedy; ``lookup`` = prompt lookup; else an assistant model. schedule:
    ``constant`` or ``heuristic``; threshold: assistant_confidence_threshold, 0 = none.
    """

    name: str
    drafter: str | None = None
    length: int = 0
    schedule: str = "constant"
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """Results of the exploration run that groups expand to: best fixed plans and assistant."""

    plans: Sequence[str]
    assistant: str | None


def check_methods(specs: Sequence[str]) -> None:
    """Raise DraftwiseError for methods that are invalid with any set of drafters."""
    for spec in specs:
        if spec not in GROUPS:
            parse_method(spec)


def expand(specs: Sequence[str], known: Known) -> list[str]:
    """Expand groups to their members; ``plain`` comes first, and every method occurs once.

    >>> expand(["fixed", "plain"], Known(["lookupx4"], None))
    ['plain', 'fixed:lookupx4']
    """
    assisted = []
    if known.assistant is not None:
        name = f"{TRANSFORMERS}:{known.assistant}"
        assisted = [f"{name}x5", f"{name}x5/heuristic", f"{name}x20/confidence"]
    members: Mapping[str, list[str]] = {
        "presets": [name for name in PRESETS if name != PLAIN],
        "fixed": [f"fixed:{plan}" for plan in known.plans],
        "peers": [TRANSFORMERS, f"{TRANSFORMERS}:{LOOKUP}", *assisted],
    }
    found = [name for spec in specs for name in members.get(spec, [spec])]
    return list(dict.fromkeys([PLAIN, *found]))


def parse_method(spec: str, drafters: Mapping[str, bool] | None = None) -> Ours | Peer:
    """Parse a method; raises DraftwiseError. drafters: name -> is it a model; None = any."""
    kind, _, rest = spec.partition(":")
    if kind == TRANSFORMERS:
        return _peer(spec, rest, drafters)
    if kind == "fixed":
        plan, _, rule = rest.partition("/")
        drafter, length = _drafter_and_length(spec, plan, drafters)
        if rule:
            registry.make_guide(rule)
        setting = Preset("fixed:0", "length", "bandit", (length,), rules=(rule or "fixed",))
        setting.plans([drafter])
        return Ours(spec, setting, drafter)
    name, at, lengths = spec.partition("@")
    if name not in PRESETS:
        raise DraftwiseError(f"unknown method {spec!r}; {_GRAMMAR}")
    setting = preset(name)
    if at:
        said = f"method {spec!r}: write lengths as metasd@4 or metasd@2,4"
        setting = replace(setting, lengths=tuple(comma_separated(lengths, int, -inf, said)))
        setting.plans(["drafter"])
    return Ours(spec, setting)


def _peer(spec: str, rest: str, drafters: Mapping[str, bool] | None) -> Peer:
    if not rest:
        return Peer(spec)
    plan, _, way = rest.partition("/")
    if plan == LOOKUP:
        plan = f"{LOOKUP}x10"  # as in the docs of transformers
    is_lookup = plan.startswith(f"{LOOKUP}x")
    drafter, length = _drafter_and_length(spec, plan, None if is_lookup else drafters)
    if length < 1:
        raise DraftwiseError(f"method {spec!r}: a length is 1 or more tokens")
    if is_lookup:
        if way:
            raise DraftwiseError(f"method {spec!r}: prompt lookup has no schedule")
        return Peer(spec, LOOKUP, length)
    if drafters is not None and not drafters[drafter]:
        raise DraftwiseError(f"method {spec!r}: transformers takes models as assistants only")
    name, equals, value = way.partition("=")
    if name in {"", "heuristic"} and not equals:
        return Peer(spec, drafter, length, name or "constant")
    if name != "confidence":
        raise DraftwiseError(f"method {spec!r}: write /heuristic, /confidence or /confidence=0.4")
    try:  # 0.4 is the default of transformers
        return Peer(spec, drafter, length, threshold=probability("", float(value or 0.4)))
    except ValueError as error:
        why = "a confidence is a number from 0 to 1"
        raise DraftwiseError(f"method {spec!r}: {why}") from error


def _drafter_and_length(
    spec: str, plan: str, drafters: Mapping[str, bool] | None
) -> tuple[str, int]:
    drafter, _, length = plan.rpartition("x")
    if not drafter or not length.isdigit():
        raise DraftwiseError(f"method {spec!r} names no plan; {_GRAMMAR}")
    if drafters is not None and drafter not in drafters:
        names = ", ".join(drafters)
        raise DraftwiseError(f"method {spec!r}: no drafter {drafter!r}; there are: {names}")
    return drafter, int(length)
