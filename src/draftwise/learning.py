"""What learns in each request, made from a setting: its plans, policy, feedback and guides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.drafters.protocol import Drafter
from draftwise.engine.memory import Memory, check_scope
from draftwise.feedback import Revealer
from draftwise.nn.model import CausalModel
from draftwise.presets import Preset
from draftwise.protocols import Guide, Policy
from draftwise.types import NONE, DraftwiseError, Plan, TreeShape


class Learning:
    """Makes the learning parts of requests; unknown names and options are refused here, at load.

    State: ``memory``, the policy that requests share, if they do.
    """

    def __init__(
        self,
        setting: Preset,
        target: CausalModel,
        tokenizer: Any,
        drafters: Sequence[Drafter],
        scope: str,
        seed: int,
    ) -> None:
        check_scope(scope)
        self._setting, self._tokenizer, self._drafters = setting, tokenizer, drafters
        self.plans: list[Plan] = _plans(setting, target, drafters)
        own = np.random.SeedSequence(seed)
        policy = self._new_policy(own)
        if getattr(policy, "plays_all", False) and len(drafters) > 1 and not target.serves_trees:
            raise DraftwiseError(
                f"{setting.policy} verifies all drafts as one tree, and {target.name} serves "
                "chains only; choose another policy, or one drafter"
            )
        self.memory = Memory(scope, policy, setting.policy, self.plans)
        reward = registry.make_reward(setting.reward)
        # a policy that prices plans by the evidence needs nobody to value them
        self._reward = None if getattr(policy, "prices_plans", False) else reward
        self.revealer()
        self._show_hidden(self.guides(own))

    def policy(self, prompt: Sequence[int], seed: np.random.SeedSequence) -> Policy:
        """The policy of one request: the shared one, or its own, which may look at the prompt."""
        if self.memory.policy is not None:
            return self.memory.policy
        policy = self._new_policy(seed)
        route = getattr(policy, "route", None)
        if route is not None and self._tokenizer is not None:
            route(self._tokenizer.decode(prompt))
        return policy

    def revealer(self) -> Revealer:
        """What turns one request's rounds into feedback."""
        return registry.make_feedback(self._setting.feedback, plans=self.plans, reward=self._reward)

    def guides(self, seed: np.random.SeedSequence) -> dict[tuple[str, str], Guide]:
        """One guide, with its own randomness, for each drafter and rule that plans name."""
        names = list(dict.fromkeys((p.drafter, p.rule) for p in self.plans if p.drafter != NONE))
        homes = {d.name: getattr(d, "home", None) for d in self._drafters}
        return {
            name: registry.make_guide(name[1], own, home=homes[name[0]])
            for name, own in zip(names, seed.spawn(len(names)), strict=True)
        }

    def _new_policy(self, seed: np.random.SeedSequence) -> Policy:
        return registry.make_policy(self._setting.policy, len(self.plans), seed, plans=self.plans)

    def _show_hidden(self, guides: dict[tuple[str, str], Guide]) -> None:
        """Have drafters show hidden states to the rules that read them, where they have any."""
        drafters = {drafter.name: drafter for drafter in self._drafters}
        for (name, rule), guide in guides.items():
            size = getattr(drafters[name], "hidden_size", 0)
            if not size or not (needed := getattr(guide, "needs_hidden", 0)):
                continue
            if needed != size:
                raise DraftwiseError(
                    f"rule {rule!r} reads hidden states of size {needed}, and drafter {name} has "
                    f"hidden size {size}: train a head on this drafter (draftwise train head)"
                )
            drafters[name].show_hidden()  # type: ignore[attr-defined]


def _plans(setting: Preset, target: CausalModel, drafters: Sequence[Drafter]) -> list[Plan]:
    """The setting's plans over these drafters; DraftwiseError for trees that nobody can serve."""
    branching = [drafter.name for drafter in drafters if drafter.can_branch]
    own = {d.name: (getattr(d, "max_length", None), getattr(d, "tree", None)) for d in drafters}
    wants_trees = any(setting.trees) or any(tree for _, tree in own.values())
    if wants_trees and not (branching and target.serves_trees):
        why = (
            f"{target.name} serves chains only"
            if branching
            else "no drafter of the pool drafts any"
        )
        raise DraftwiseError(f"trees were asked for, but {why}; leave them out")
    plans = setting.plans([drafter.name for drafter in drafters], branching)
    return list(
        dict.fromkeys(_shaped(plan, *own.get(plan.drafter, (None, None))) for plan in plans)
    )


def _shaped(plan: Plan, max_length: int | None, tree: TreeShape | None) -> Plan:
    """A plan within its drafter's own limit, and of its shape where the setting names none."""
    length = plan.length if max_length is None else min(plan.length, max_length)
    return replace(plan, length=length, tree=plan.tree or tree)
