"""Parses the methods to compare; loads nothing.

``plain``, ``PRESET[@LENGTHS]`` and ``fixed:DRAFTERxLENGTH[/RULE]``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from draftwise import registry
from draftwise.checks import comma_separated
from draftwise.registry import PRESETS, Preset, preset
from draftwise.types import DraftwiseError

PLAIN, DEFAULT = "plain", "draftwise"
GRAMMAR = "write plain, a preset (metasd, metasd@4) or fixed:DRAFTERxLENGTH[/RULE]"


@dataclass(frozen=True, slots=True)
class Method:
    """draftwise with one preset. drafter: its only drafter; None = the whole pool."""

    name: str
    setting: Preset
    drafter: str | None = None


def with_plain(specs: Sequence[str]) -> list[str]:
    """The methods without repetitions, ``plain`` first: every ratio is relative to it.

    >>> with_plain(["metasd", "plain", "metasd"])
    ['plain', 'metasd']
    """
    return list(dict.fromkeys([PLAIN, *specs]))


def parse_method(
    spec: str, drafters: Collection[str] | None = None, grammar: str = GRAMMAR
) -> Method:
    """Parse a method. drafters: the names of the pool; None = any. Raises DraftwiseError."""
    kind, _, rest = spec.partition(":")
    if kind == "fixed":
        plan, _, rule = rest.partition("/")
        drafter, length = drafter_and_length(spec, plan, drafters, grammar)
        if rule:
            registry.make_stop_rule(rule)
        setting = Preset("fixed:0", "length", "bandit", (length,), rules=(rule or "fixed",))
        setting.plans([drafter])
        return Method(spec, setting, drafter)
    name, at, lengths = spec.partition("@")
    if name not in PRESETS:
        raise DraftwiseError(f"unknown method {spec!r}; {grammar}")
    setting = preset(name)
    if at:
        said = f"method {spec!r}: write lengths as metasd@4 or metasd@2,4"
        setting = replace(setting, lengths=tuple(comma_separated(lengths, int, -inf, said)))
        setting.plans(["drafter"])
    return Method(spec, setting)


def drafter_and_length(
    spec: str, plan: str, drafters: Collection[str] | None, grammar: str = GRAMMAR
) -> tuple[str, int]:
    drafter, _, length = plan.rpartition("x")
    if not drafter or not length.isdigit():
        raise DraftwiseError(f"method {spec!r} names no plan; {grammar}")
    if drafters is not None and drafter not in drafters:
        names = ", ".join(drafters)
        raise DraftwiseError(f"method {spec!r}: no drafter {drafter!r}; there are: {names}")
    return drafter, int(length)
