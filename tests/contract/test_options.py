"""The contract of every option in the tables: bounded and typed.

Method: each test runs over every option of every entry that needs no file, so that a new option is
tested without a new test.
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise import registry
from draftwise.registry import TABLES, make_policy
from draftwise.settings import DRAFTER_HELP
from draftwise.types import DraftStep, DraftwiseError, Feedback, Outcome, Plan

PLANS = [Plan("none", 0), Plan("a", 2), Plan("a", 4), Plan("b", 3)]
LARGE_NUMBERS = ("nan", "inf", "-inf", "1e999", "1e308", "-1e308", "9" * 400)
NEEDS_A_MODEL = {"eagle", "lm"}
BOUNDED_BY_THE_REQUEST = {("petc", "num_tokens")}
"""Only the logarithm of the value matters, so any int is safe."""


def options() -> Iterator[tuple[str, str, str, set[Any]]]:
    """Kind, entry, option and the types allowed by its annotation."""
    for kind, table in TABLES.items():
        for name in table:
            factory = registry.lookup(kind, name)
            hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
            filled = registry.FILLED[kind]
            for option in inspect.signature(factory).parameters:
                if option not in filled:
                    hint = hints[option]
                    yield kind, name, option, set(typing.get_args(hint)) or {hint}


NUMERIC = [(k, n, o, t) for k, n, o, t in options() if t <= {int, float, bool, type(None)}]


def make(kind: str, spec: str) -> Any:
    if kind == "policy":
        return make_policy(spec, len(PLANS), plans=PLANS)
    if kind == "reward":
        return registry.make_reward(spec)
    if kind == "feedback":
        return registry.make_feedback(spec, plans=PLANS, reward=registry.make_reward("length"))
    if kind == "stop rule":
        return registry.make_stop_rule(spec)
    return registry.build("drafter", spec, {"name": "x", "vocab_size": 64})


def others_of(name: str, table: Any, option: str) -> str:
    return "".join(f",{key}={value}" for key, value in table[name][1].items() if key != option)


@pytest.mark.parametrize(("kind", "name", "option", "types"), NUMERIC)
def test_no_number_is_unbounded(kind: str, name: str, option: str, types: set[Any]) -> None:
    if name in NEEDS_A_MODEL or name == "datastore":
        pytest.skip("needs a file")
    for value in LARGE_NUMBERS:
        if (name, option) in BOUNDED_BY_THE_REQUEST and value == "9" * 400:
            continue
        spec = f"{name}:{option}={value}{others_of(name, TABLES[kind], option)}"
        said = f"{spec[:60]} was taken: check {option} in the constructor, as with checks.whole"
        assert option in refusal(kind, spec), said


def refusal(kind: str, spec: str) -> str:
    """What is said of a wrong spec; empty if it is taken."""
    try:
        make(kind, spec)
    except DraftwiseError as error:
        return str(error)
    return ""


def probes(types: set[Any]) -> list[str]:
    if bool in types:
        return ["true", "false"]
    if int in types:
        return [str(sign * 10**power) for power in range(0, 8) for sign in (1, -1)] + ["0"]
    return [f"{sign}1e{power}" for power in range(-9, 10) for sign in ("", "-")] + ["0", "0.5", "1"]


@pytest.mark.parametrize(
    ("kind", "name", "option", "types"),
    [case for case in NUMERIC if case[0] in {"policy", "stop rule"}],
)
def test_whatever_is_accepted_plays_and_stays_small(
    kind: str, name: str, option: str, types: set[Any]
) -> None:
    accepted = 0
    for value in probes(types):
        spec = f"{name}:{option}={value}{others_of(name, TABLES[kind], option)}"
        try:
            made = make(kind, spec)
        except DraftwiseError:
            continue
        accepted += 1
        if kind == "stop rule" and name != "head":
            assert made.should_continue(DraftStep(1, 4, 0.5, 0.5, 0.5, 0.5, 0.5)) in {True, False}
            made.learn(2, 1)
        elif kind == "policy":
            plays(made)
    assert accepted, f"no value of {name}:{option} was accepted"


def plays(policy: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(12):
        decision = policy.choose()
        assert 0 < decision.prob <= 1
        values = rng.random(len(PLANS))
        policy.learn(decision, Feedback(values, np.ones(len(PLANS), dtype=bool)))
        assert np.isfinite(policy.probabilities()).all()
        assert np.isfinite(policy.estimates()).all()
    arrays = [value for value in vars(policy).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) < 32 << 20


@pytest.mark.parametrize("spec", ["blend:alpha=0.1", "blend:alpha=1"])
def test_rewards_of_accepted_options_are_finite(spec: str) -> None:
    alphas = np.full(4, 0.5)
    outcome = Outcome(Plan("a", 4), 4, alphas, alphas, alphas, 4, 2, 0.01)
    assert 0 <= registry.make_reward(spec)(outcome) <= 1


def test_examples_of_a_router_are_a_plain_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(DraftwiseError, match="no plain file"):
            make_policy(f"router:examples={path}", 2)


@pytest.mark.parametrize("name", DRAFTER_HELP)
def test_the_listed_options_of_drafters_are_those_of_the_code(name: str) -> None:
    listed, made = DRAFTER_HELP[name], registry.lookup("drafter", name)
    assert (inspect.getdoc(made) or "").partition("\n")[0] == listed.about
    if name == "lm":  # its options are those of the spec, not of the class
        return
    hints = typing.get_type_hints(made.__init__ if inspect.isclass(made) else made)
    assert listed.options == {
        key: (hints[key], ... if each.default is inspect.Parameter.empty else each.default)
        for key, each in inspect.signature(made).parameters.items()
        if key not in registry.FILLED["drafter"]
    }


def test_every_drafter_is_listed() -> None:
    assert DRAFTER_HELP.keys() == registry.DRAFTERS.keys()
