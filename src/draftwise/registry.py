"""Registry of policies, rewards, feedbacks, stop rules and drafters by name; specs; presets.

A new entry needs its file and ONE line here, which adds it to the command line, the contract tests,
the losslessness matrix and the simulator. An entry is ``name: (module:class, options for the
contract test)``; modules are imported on first use. A program may add a class:
``POLICIES["mine"] = (Mine, {})``.

A spec is text: ``"ucb1"``, ``"ucb1:beta=0.01"``, ``"lm:path/to/model"`` (a bare value sets the
first option); options are separated by commas. A preset is a whole system, such as a paper's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from draftwise.bandits.feedback import FeedbackBuilder
from draftwise.checks import known, refuse_removed, string, strings, wholes
from draftwise.errors import BadValue, shown
from draftwise.install import LAB_HINT, find_part
from draftwise.protocols import Policy, Reward, StopRule
from draftwise.types import LONGEST_PLAN, NONE, PLAIN, DraftwiseError, Plan, TreeShape

Table = dict[str, tuple[Any, Mapping[str, Any]]]

POLICIES: Table = {
    "fixed": ("bandits.simple:FixedPlan", {"plan": 1}),
    "random": ("bandits.simple:Random", {}),
    "ucb1": ("bandits.ucb:UCB1", {"beta": 1.0}),
    "ucbspec": ("bandits.ucb:UCBSpec", {"delta": 0.5}),
    "ucb-tuned": ("bandits.ucb:UCBTuned", {}),
    "discounted-ucb": ("bandits.ucb:DiscountedUCB", {"beta": 0.05, "discount": 0.99}),
    "sliding-ucb": ("bandits.ucb:SlidingUCB", {"beta": 0.05, "window": 100}),
    "exp3": ("bandits.weights:EXP3", {"gamma": 0.4}),
    "exp3spec": ("bandits.weights:EXP3Spec", {}),
    "thompson-gaussian": ("bandits.thompson:ThompsonGaussian", {}),
    "thompson-bernoulli": ("bandits.thompson:ThompsonBernoulli", {}),
    "sequential-halving": ("bandits.simple:SequentialHalving", {"budget": 200}),
    "petc": ("bandits.simple:PETC", {"c": 32.0}),
    "hedge": ("bandits.weights:Hedge", {}),
    "normalhedge": ("bandits.weights:NormalHedge", {}),
    "adanormalhedge": ("bandits.weights:AdaNormalHedge", {}),
    "goodput": ("controller.goodput:Goodput", {}),
    "delayed": ("bandits.wrappers:Delayed", {"base": "ucbspec", "rounds": 3}),
    "copies": ("bandits.wrappers:Copies", {"base": "exp3spec"}),
    "one-plan": ("bandits.wrappers:OnePlan", {"base": "ucbspec"}),
    "batched": ("bandits.wrappers:Batched", {"base": "thompson-gaussian", "skip": 2}),
}
REWARDS: Table = {
    "length": ("bandits.rewards:Length", {}),
    "simple": ("bandits.rewards:Length", {}),
    "blend": ("bandits.rewards:Blend", {"alpha": 0.5}),
    "divergence": ("bandits.rewards:Divergence", {}),
    "acceptance": ("bandits.rewards:Acceptance", {}),
    "expected-length": ("bandits.rewards:ExpectedLength", {}),
    "throughput": ("bandits.rewards:Throughput", {}),
}
FEEDBACKS: Table = {
    "bandit": ("bandits.feedback:Bandit", {}),
    "prefix": ("bandits.feedback:Prefix", {}),
    "free": ("bandits.feedback:Free", {}),
    "panoramic": ("bandits.feedback:Panoramic", {}),
}
STOP_RULES: Table = {
    "fixed": ("bandits.stop_rules:Fixed", {}),
    "max-confidence": ("bandits.stop_rules:MaxConfidence", {"threshold": 0.8}),
    "svip": ("bandits.stop_rules:Svip", {"threshold": 0.6}),
    "svip-difference": ("bandits.stop_rules:SvipDifference", {"threshold": 0.2}),
    "logit-margin": ("bandits.stop_rules:LogitMargin", {"threshold": 0.2}),
    "adaedl": ("bandits.stop_rules:AdaEdl", {"epsilon": 0.5}),
    "any-of": ("bandits.stop_rules:AnyOf", {"rules": "max-confidence:0.5+svip-difference"}),
    "head": ("bandits.stop_rules:Head", {}),
    "tapout-token": ("bandits.stop_rules:TapOutToken", {"bandit": "thompson-bernoulli"}),
}
DRAFTERS: Table = {
    "lm": ("drafters.lm:LMDrafter", {}),
    "lookup": ("drafters.retrieval:LookupDrafter", {}),
    "suffix": ("drafters.retrieval:SuffixDrafter", {"max_tokens": 1000}),
    "datastore": ("drafters.retrieval:DatastoreDrafter", {}),
    "eagle": ("drafters.eagle:load_eagle", {}),
}
TABLES: Mapping[str, Table] = {
    "policy": POLICIES, "reward": REWARDS, "feedback": FEEDBACKS, "stop rule": STOP_RULES,
    "drafter": DRAFTERS,
}  # fmt: skip
LAB_POLICIES = frozenset({"draft-all", "router"})
"""What the package draftwise-lab adds, as entry points of the group ``draftwise.policies``."""
SIMULATED = frozenset({"draft-all"})
"""Policies that play every plan in each round, which only the lab's simulator does."""
FILLED: Mapping[str, frozenset[str]] = {
    "policy": frozenset({"num_plans", "rng", "plans", "request_tokens", "make_base", "prompt"}),
    "reward": frozenset(),
    "feedback": frozenset({"plans", "reward"}),
    "stop rule": frozenset({"rng", "home", "make_rule", "make_bandit"}),
    "drafter": frozenset({"name", "vocab_size", "target"}),
}
"""Parameters that the caller of ``build`` supplies, and no spec may set."""

Seed = int | np.random.SeedSequence | np.random.Generator


def make_policy(
    spec: str, num_plans: int, seed: Seed = 0, *,
    plans: Sequence[Plan] | None = None, request_tokens: int | None = None,
    prompt: Callable[[], str] | None = None,
) -> Policy:  # fmt: skip
    """A policy over ``num_plans`` plans, from a spec such as ``"ucb1:beta=0.01"``.

    plans: the plans, for policies that estimate their costs, such as ``goodput``.
    request_tokens: maximum length of the answer, for policies that plan ahead (``petc``).
    prompt: reads the request's prompt, for policies that choose by it (the lab's ``router``).
    Raises DraftwiseError for an unknown name or option, listing the valid ones, and ValueError
    for fewer than one plan.

    >>> make_policy("fixed:0", num_plans=3).choose().plan
    0
    """
    if num_plans < 1:
        raise ValueError(f"num_plans is {num_plans}: a policy needs at least one plan")
    if plans is not None and len(plans) != num_plans:
        raise ValueError(f"{len(plans)} plans were given for num_plans={num_plans}")
    given: dict[str, Any] = dict(num_plans=num_plans, plans=plans, request_tokens=request_tokens)
    # no closure: policies are pickled
    made = {"rng": np.random.default_rng(seed), "make_base": partial(make_policy, **given)}
    return cast(Policy, build("policy", spec, given | made | {"prompt": prompt}))


def make_reward(spec: str) -> Reward:
    """A reward from a spec such as ``"length"``. Raises as ``make_policy``."""
    return cast(Reward, build("reward", spec, {}))


def make_feedback(spec: str, *, plans: Sequence[Plan], reward: Reward) -> FeedbackBuilder:
    """The feedback of one request from a spec."""
    return cast(FeedbackBuilder, build("feedback", spec, {"plans": plans, "reward": reward}))


def make_stop_rule(spec: str, seed: Seed = 0, *, home: Path | None = None) -> StopRule:
    """A stop rule from a spec such as ``"max-confidence:0.8"``; raises as ``make_policy``.

    home: folder of the drafter, in which ``head`` looks for its weights.
    """
    rng = np.random.default_rng(seed)
    make_rule = partial(make_stop_rule, seed=rng, home=home)
    make_bandit = partial(make_policy, seed=rng)
    given = {"rng": rng, "home": home, "make_rule": make_rule, "make_bandit": make_bandit}
    return cast(StopRule, build("stop rule", spec, given))


def build(kind: str, spec: str, given: Mapping[str, Any]) -> Any:
    """Build the object that ``spec`` names; given: values of its ``FILLED`` parameters.

    Raises DraftwiseError for an unknown name or option, or an invalid value.
    """
    make = _factory(kind, spec, lookup(kind, spec.partition(":")[0]))
    try:
        return make(given)
    except (ValueError, ArithmeticError) as error:
        raise DraftwiseError(f"{kind} {shown(spec)}: {error}") from error
    except RecursionError:
        raise DraftwiseError(f"{kind} {shown(spec)}: too many stand inside each other") from None


@functools.lru_cache(256)
def _factory(kind: str, spec: str, named: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Parse a spec once, as every request builds a policy and rules; named: the spec's class."""
    name, _, text = spec.partition(":")
    parameters, options = _signature(kind, named)
    values = parse_options(f"{kind} {name!r}", text, options)
    for key in options:
        if key not in values and parameters[key].default is inspect._empty:
            raise DraftwiseError(f"{kind} {name!r} needs {key}: write {name}:{key}=VALUE")
    filled = FILLED[kind] & parameters.keys()
    return lambda given: named(**values, **{key: given[key] for key in filled if key in given})


def _signature(
    kind: str, named: Callable[..., Any]
) -> tuple[Mapping[str, inspect.Parameter], dict[str, Any]]:
    """All parameters, and the type of each option that a spec may set."""
    parameters = inspect.signature(named).parameters
    hints = typing.get_type_hints(named.__init__ if inspect.isclass(named) else named)
    return parameters, {k: hints.get(k, str) for k in parameters if k not in FILLED[kind]}


def lookup(kind: str, name: str) -> Callable[..., Any]:
    """The class or function with this name; DraftwiseError lists the valid names."""
    table = TABLES[kind]
    if kind == "policy" and name not in table:
        plugged: Callable[..., Any] | None = find_part(name, "draftwise.policies")
        if plugged is not None:
            return plugged
        if name in LAB_POLICIES:
            raise DraftwiseError(f"policy {name} needs the lab: {LAB_HINT}")
    known(kind, name, table, f"{kind} names")
    found: Callable[..., Any] = table[name][0]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = getattr(importlib.import_module(f"draftwise.{module}"), attribute)
    return found


def parse_options(owner: str, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Parse ``"0.8,window=5"`` to typed values; ``options``: each valid option and its type.

    Commas separate options, except in a path, which ends at ``,NAME=`` of a valid option.
    """
    given: dict[str, str] = {}
    first, last = next(iter(options), ""), ""
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if equals and key in options:
            given[last := key] = value
        elif last and Path in _kinds(options[last]):
            if equals:
                refuse_removed(f"option {key} of {owner}")
            given[last] += "," + part
        elif part.strip() and not given and first and _may_be_bare(part, options[first]):
            given[last := first] = part
        elif part.strip():
            refuse_removed(f"option {key} of {owner}")
            valid = ", ".join(options) or "none"
            raise DraftwiseError(f"{owner} has no option {shown(key)}; its options are: {valid}")
    return {key: _parse_value(owner, key, one.strip(), options[key]) for key, one in given.items()}


def _may_be_bare(part: str, hint: Any) -> bool:
    """Whether a text is a value rather than ``NAME=VALUE`` of an unknown option."""
    return "=" not in part or Path in _kinds(hint)


def _parse_value(owner: str, key: str, text: str, hint: Any) -> Any:
    kinds = _kinds(hint)
    if text.lower() == "none" and type(None) in kinds:
        return None
    if bool in kinds:
        if text.lower() in {"true", "false"}:
            return text.lower() == "true"
        raise DraftwiseError(f"{owner}: {key} is {shown(text)}; write true or false")
    for kind in (int, float, str):
        if kind in kinds:
            with suppress(ValueError):
                return kind(text)
    wanted = " or ".join(sorted(k.__name__ for k in kinds if k is not type(None)))
    raise DraftwiseError(f"{owner}: {key} is {shown(text)}, which is not {wanted}")


def _kinds(hint: Any) -> set[Any]:
    return set(typing.get_args(hint)) or {hint}


MAX_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Preset:
    """One system: specs, and the lengths of its plans, with or without the plan ``none``.

    rules: stop rule specs; plans are drafters x lengths x rules, and x trees (None = a chain) for
    drafters that can branch. source: publication or description.
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
        """All plans over these drafters; ``none``, if included, comes first.

        branching: drafters that can draft trees; the others draft chains. Rules end chains only.
        Raises DraftwiseError for a length below 1.
        """
        if short := [length for length in self.lengths if length < 1]:
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
    """A preset with all values that are not None replaced; raises BadValue."""
    found = {name: _FIELDS[name](name, value) for name, value in given.items() if value is not None}
    adjusted = replace(setting, **found)
    has_rules = found.get("rules", setting.rules) != setting.rules
    if has_rules and adjusted.policy.split(":")[0] == "goodput":
        for rule in adjusted.rules:  # a name that does not exist is the first thing to say
            make_stop_rule(rule)
        must = "left out: the policy goodput ends drafts itself; name another policy or preset"
        raise BadValue("rules", found["rules"], must)
    return adjusted


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
    """Parse ``4x16`` (children of a token x total tokens) to a shape, and ``chain`` to None.

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
