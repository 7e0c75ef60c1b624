"""Ways to stop drafts, and what each of them feeds: forwards counted, so that any price fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fixed_costs import Cost, each
from shared.clock import Priced

from draftwise import Speculator
from draftwise.engine.records import Round

DRAFTER = "generalist"
FIXED = (1, 2, 3, 4, 6, 8)
TABLE_1 = ("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin")
GRID = ("max-confidence:0.6", "max-confidence:0.4", "svip:0.9", "svip:1.2", "adaedl:0.5")
"""Thresholds beside the paper's own: what tuning could have found."""
TOKEN_LEVEL = {
    "TapOut token, UCB1": "tapout-token:bandit=ucb1:beta=1",
    "TapOut token, Thompson": "tapout-token:bandit=thompson-bernoulli",
}
HEAD, LAGGING = "SpecDec++, bundled head", "SpecDec++, bundled head, lag"


@dataclass(frozen=True)
class Way:
    """What ``Speculator.from_pretrained`` is given, beyond the target and the drafter.

    shares: all prompts teach one policy, so that they come one after another. is_priced: what it
    chooses depends on what forwards cost.
    """

    options: dict[str, Any]
    shares: bool = False
    is_priced: bool = False

    @property
    def reads_in_vain(self) -> bool:
        """Whether its rule judges a token by what reading it shows."""
        rule = self.options.get("rules", [""])[0]
        return str(rule).startswith("head") and "lag=true" not in rule

    def speculator(self) -> Speculator:
        """Loaded anew, with an empty memory."""
        drafters = [] if self.options["preset"] == "plain" else [f"zoo:{DRAFTER}"]
        scope = "session" if self.shares else "request"
        return Speculator.from_pretrained("zoo", drafters, scope=scope, **self.options)


def rule(spec: str, length: int = 128) -> Way:
    """One rule, always."""
    return Way({"preset": "tapout", "policy": "fixed:0", "rules": [spec], "lengths": [length]})


def rules_bandit(policy: str = "ucb1:beta=1", reward: str = "blend", **more: Any) -> Way:
    """TapOut: a bandit over the rules of table 1."""
    return Way({"preset": "tapout", "policy": policy, "reward": reward, **more}, shares=True)


def lengths_bandit(policy: str, feedback: str) -> Way:
    """A bandit over the fixed lengths, by the same reward."""
    options = {"policy": policy, "reward": "blend", "feedback": feedback}
    return Way({"preset": "banditspec", "lengths": FIXED, **options}, shares=True)


def main_ways() -> dict[str, Way]:
    """What is played at every temperature; the last ones at every price."""
    found = {"plain": Way({"preset": "plain"})}
    found |= {f"length {k}": rule("fixed", k) for k in FIXED}
    found |= {spec: rule(spec) for spec in TABLE_1}
    found[HEAD], found[LAGGING] = rule("head", 20), rule("head:lag=true", 20)
    found["TapOut token, UCB1"] = rule(TOKEN_LEVEL["TapOut token, UCB1"])
    found["TapOut, UCB1, blend"] = rules_bandit()
    found["TapOut, prefix:rules=true"] = rules_bandit(feedback="prefix:rules=true")
    found["draftwise"] = Way({"preset": "draftwise"}, is_priced=True)
    return found


def more_ways() -> dict[str, Way]:
    """The rest of TapOut's tables, and variants."""
    found = {spec: rule(spec) for spec in GRID}
    found["TapOut token, Thompson"] = rule(TOKEN_LEVEL["TapOut token, Thompson"])
    found["TapOut, UCB1, simple"] = rules_bandit(reward="simple")
    found["TapOut, UCB-Tuned, blend"] = rules_bandit("ucb-tuned")
    found["TapOut, Thompson, blend"] = rules_bandit("thompson-gaussian")
    priced = rules_bandit(reward="goodput")
    found["TapOut, UCB1, goodput"] = dataclasses.replace(priced, is_priced=True)
    for option in ("mix", "looks"):
        policy = f"goodput:{option}=false"
        found[f"draftwise, {option}=false"] = Way(
            {"preset": "draftwise", "policy": policy}, is_priced=True
        )
    for feedback in ("bandit", "prefix", "prefix:longer=false"):
        found[f"lengths, UCB1, {feedback}"] = lengths_bandit("ucb1:beta=1", feedback)
    for feedback in ("bandit", "prefix"):
        found[f"lengths, UCBSpec, {feedback}"] = lengths_bandit("ucbspec", feedback)
    return found


@dataclass(frozen=True)
class Played:
    """One answer: forwards and tokens fed, of target and drafter; and what came of it.

    blend: the sum of TapOut's reward over its rounds, by rule. clock_s: where the clock ran.
    """

    target_forwards: int
    target_tokens: int
    draft_forwards: int
    draft_tokens: int
    emitted: int
    rounds: int
    drafted: int
    accepted: int
    blend: dict[str, tuple[int, float]]
    clock_s: float = 0.0

    def seconds(self, target: Cost, drafter: Cost) -> float:
        """At these prices; of a way that depends on prices, what its clock said."""
        if self.clock_s:
            return self.clock_s
        of_target = target[0] * self.target_forwards + target[1] * self.target_tokens
        of_drafter = drafter[0] * self.draft_forwards + drafter[1] * self.draft_tokens
        return 1e-3 * (of_target + of_drafter)


def count(way: Way, rounds: Sequence[Round], num_prompt: int, budget: int) -> Played:
    """What the rounds of one request fed to its two models.

    A draft of n tokens takes n forwards, the first of which reads what the drafter has not read;
    a rule that waits for what reading a token shows, and then stops, takes one more.
    """
    forwards, fed, unread, left = 0, 0, num_prompt, budget
    blend: dict[str, tuple[int, float]] = {}
    for round_ in rounds:
        n, accepted = round_.num_drafted, round_.num_accepted
        vain = int(way.reads_in_vain and 0 < n < min(round_.plan.length, left - 1))
        if n:
            forwards, fed = forwards + n + vain, fed + unread + n - 1 + vain
            unread = 0
            num, total = blend.get(round_.plan.rule, (0, 0.0))
            value = accepted / 2 / 128 + accepted / 2 / n
            blend[round_.plan.rule] = (num + 1, total + value)
        unread += round_.num_emitted - min(max(n - 1, 0) + vain, accepted)
        left -= round_.num_emitted
    drafted = sum(round_.num_drafted for round_ in rounds)
    return Played(
        len(rounds) + 1, num_prompt - 1 + drafted + len(rounds), forwards, fed,
        budget - left, len(rounds), drafted, sum(r.num_accepted for r in rounds), blend,
    )  # fmt: skip


def at_costs(spec: Speculator, target: Cost, drafter: Cost) -> list[float]:
    """From now on the speculator's clock is moved by forwards alone; the clock, in seconds."""
    clock = [0.0]
    for loaded in spec.drafters:
        model: Any = loaded
        model.model = Priced(model.model, each(drafter), clock)
    priced: Any = Priced(spec.target, each(target), clock)
    spec.target = priced
    spec._pool = dataclasses.replace(spec._pool, target=priced, clock=lambda: clock[0])
    return clock
