"""The papers as settings of the same four words: plans, feedback, reward, policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from draftwise.checks import known, string, strings, wholes
from draftwise.types import LONGEST_PLAN, NONE, PLAIN, DraftwiseError, Plan, TreeShape

MAX_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Preset:
    """One system: the lengths of its plans (with ``none`` or not), and three specs.

    rules: guide specs; plans are drafters x lengths x rules, and x trees (None = a chain) for
    drafters that can branch. source: where it comes from.
    """

    policy: str
    reward: str
    feedback: str
    lengths: tuple[int, ...]
    with_none: bool = False
    rules: tuple[str, ...] = ("fixed",)
    source: str = ""
    trees: tuple[TreeShape | None, ...] = (None,)

    def plans(self, drafters: Sequence[str], branching: Collection[str] = ()) -> list[Plan]:
        """All plans over these drafters, ``none`` first where it belongs.

        branching: those that can draft trees; the others draft chains. Rules end chains only.

        Raises DraftwiseError for a length below 1 or where no plan is left.
        """
        short = [length for length in self.lengths if length < 1]
        if short:
            raise DraftwiseError(
                f"plan length {short[0]}: lengths are 1 or more tokens (plain decoding is the plan "
                f"{NONE!r}, which the presets plain and draftwise contain)"
            )
        plans = [
            Plan(drafter, length, rule, tree)
            for drafter in drafters
            for length in self.lengths
            for tree in (self.trees if drafter in branching else (None,))
            for rule in (self.rules if tree is None else ("fixed",))
        ]
        if self.with_none or not plans:
            plans.insert(0, PLAIN)
        return plans


def adjusted(setting: Preset, **given: Any) -> Preset:
    """A setting with whatever is given in place of its own; None = as it is. Raises BadValue."""
    found = {name: _FIELDS[name](name, value) for name, value in given.items() if value is not None}
    return replace(setting, **found)


PRESETS: dict[str, Preset] = {
    "plain": Preset("fixed:0", "length", "bandit", (), True, source="plain decoding, same loop"),
    "metasd": Preset(
        "ucb1:beta=0.01", "divergence", "bandit", (5,), source="MetaSD, algorithm 2 and section 4.1"
    ),
    "banditspec": Preset("ucbspec", "length", "bandit", (4,), source="BanditSpec, algorithm 4"),
    "banditspec-load": Preset(
        "one-plan:base=ucbspec", "throughput", "bandit", (1, 2, 3, 4), True,
        source="BanditSpec, section 6.2; rows share the length if they share the policy (scope)",
    ),
    "hedgespec": Preset(
        "normalhedge", "expected-length", "panoramic:per_token=true,every=12,warmup=6,hybrid=6",
        (8,), source="HedgeSpec, algorithm 1, section 3.3, theorem 3, both tricks of appendix B.5",
    ),
    "tapout": Preset(
        "ucb1:beta=1", "blend", "bandit", (128,),
        rules=("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin"),
        source="TapOut, table 1, sections 3.2, 3.3 and 4; meant for one drafter",
    ),
    "specdecpp": Preset(
        "fixed:0", "length", "bandit", (20,), rules=("head",),
        source="SpecDec++, algorithm 1 and section 5.1; one drafter, with its trained head",
    ),
    "draftwise": Preset(
        "goodput", "length", "free", tuple(range(1, MAX_LENGTH + 1)), True,
        source="every drafter x every length and none, priced by measured seconds",
    ),
}  # fmt: skip


def parse_tree(text: str) -> TreeShape | None:
    """``4x16`` (children after a token x tokens in all) to a shape, ``chain`` to None.

    >>> parse_tree("4x16")
    TreeShape(top_k=4, total_tokens=16)
    """
    if text == "chain":
        return None
    try:
        top_k, total_tokens = (int(part) for part in text.split("x"))
        return TreeShape(top_k, total_tokens)
    except ValueError as error:
        raise DraftwiseError(
            f"tree {text!r}: write TOP_KxTOTAL_TOKENS, both 1 or more, such as 4x16; or chain"
        ) from error


def preset(name: str) -> Preset:
    """The preset of this name; DraftwiseError lists the valid ones."""
    known("preset", name, PRESETS)
    return PRESETS[name]


_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "policy": string,
    "reward": string,
    "feedback": string,
    "lengths": partial(wholes, most=LONGEST_PLAN, num=LONGEST_PLAN),
    "rules": strings,
    "trees": lambda name, value: tuple(map(parse_tree, strings(name, value))),
}
