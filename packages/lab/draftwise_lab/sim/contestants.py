"""From what a user types to contestants: ``POLICY[@LENGTHS][/REWARD[/FEEDBACK]]``."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise import registry
from draftwise.types import PLAIN, DraftwiseError, Plan
from draftwise_lab.sim.play import Contestant

_HEDGING = ("expected-length", "panoramic")
_METASD = ("divergence", "bandit")
_TAPOUT = ("blend", "bandit")
_DEFAULT = ("length", "bandit")

HABITS: dict[str, tuple[str, str]] = {
    "ucb1": _METASD,
    "exp3": _METASD,
    "sequential-halving": _METASD,
    "petc": _METASD,
    "discounted-ucb": _METASD,
    "sliding-ucb": _METASD,
    "ucb-tuned": _TAPOUT,
    "thompson-gaussian": _TAPOUT,
    "thompson-bernoulli": _TAPOUT,
    "hedge": _HEDGING,
    "normalhedge": _HEDGING,
    "adanormalhedge": _HEDGING,
    "goodput": ("length", "free"),
}
"""Reward and feedback of each policy's own paper; every other policy has ``length``, ``bandit``."""


def parse_lengths(text: str) -> tuple[int, ...]:
    """``"8"``, ``"2,4,8"`` or ``"0-16"`` (0 = the plan ``none``) as numbers.

    >>> parse_lengths("0-3,8")
    (0, 1, 2, 3, 8)
    """
    lengths: list[int] = []
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            lengths.extend(range(int(low), int(high if dash else low) + 1))
    except ValueError as error:
        raise DraftwiseError(f"lengths {text!r}: write 8, 2,4,8 or 0-16 (0 = none)") from error
    if not lengths or min(lengths) < 0:
        raise DraftwiseError(f"lengths {text!r} name no length: write 8, 2,4,8 or 0-16")
    return tuple(dict.fromkeys(lengths))


def make_plans(
    drafters: Sequence[str], lengths: Sequence[int], rules: Sequence[str] = ("fixed",)
) -> tuple[Plan, ...]:
    """Drafters x lengths x rules, with ``none`` first if 0 is among the lengths."""
    plans = [
        Plan(drafter, length, rule)
        for drafter in drafters
        for length in lengths
        if length > 0
        for rule in rules
    ]
    return tuple([PLAIN, *plans] if 0 in lengths else plans)


def make_contestant(
    label: str, drafters: Sequence[str], lengths: Sequence[int], rules: Sequence[str] = ("fixed",),
    *, reward: str | None = None, feedback: str | None = None,
) -> Contestant:  # fmt: skip
    """A contestant from its label; what the label leaves open is ``reward``, ``feedback``, or the
    habit of the policy's own paper.

    Raises DraftwiseError for an unknown policy, reward, feedback or length.
    """
    head, *others = label.split("/")
    spec, _, own_lengths = head.partition("@")
    if len(others) > 2:
        raise DraftwiseError(f"{label!r}: write POLICY[@LENGTHS][/REWARD[/FEEDBACK]]")
    habit = HABITS.get(_learner(spec), _DEFAULT)
    chosen_reward = others[0] if others else reward or habit[0]
    chosen_feedback = others[1] if len(others) > 1 else feedback or habit[1]
    plans = make_plans(drafters, parse_lengths(own_lengths) if own_lengths else lengths, rules)
    _try(spec, chosen_reward, chosen_feedback, plans)
    return Contestant(label, spec, chosen_reward, chosen_feedback, plans)


def _learner(spec: str) -> str:
    """The name of the policy that learns: the base's, where one policy wraps another.

    >>> _learner("ucb1:beta=1"), _learner("delayed:base=hedge,rounds=2")
    ('ucb1', 'hedge')
    """
    name, _, options = spec.partition(":")
    bases = [part for part in options.split(",") if part.startswith("base=")]
    return bases[0].removeprefix("base=") if bases else name


def _try(policy: str, reward: str, feedback: str, plans: Sequence[Plan]) -> None:
    """Build everything once, so that a mistake is told before the work begins."""
    registry.make_policy(policy, len(plans), plans=plans)
    made = registry.make_reward(reward)
    registry.make_feedback(feedback, plans=plans, reward=made)
