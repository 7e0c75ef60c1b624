"""What learns in each request, made from a setting: its plans, policy, feedback and guides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from draftwise import registry
from draftwise.drafters.protocol import Context, Drafter, Shaping, ShowingHidden
from draftwise.engine.guarded import GuardedStopRule, guarded_process, guarded_stop
from draftwise.engine.memory import SharedPolicyState, check_scope
from draftwise.engine.options import RequestParams
from draftwise.engine.request import Request
from draftwise.engine.text import Answer, Ending
from draftwise.feedback import FeedbackBuilder
from draftwise.nn.model import CausalModel
from draftwise.presets import Preset
from draftwise.protocols import PlayingAll, Policy, PricingPlans, Routing, StopRule
from draftwise.types import NONE, PLAIN, DraftwiseError, Plan, TreeShape

_IDS = itertools.count()
"""Numbers of requests: none occurs twice in a process."""


@dataclass(frozen=True, slots=True)
class LearningLimits:
    """What a request may use of the pool; None = all drafters, drafts as long as the plans say."""

    drafters: frozenset[str] | None = None
    max_draft: int | None = None


_ALL = LearningLimits()


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
        seed: int | None,
        limits: LearningLimits = _ALL,
    ) -> None:
        check_scope(scope)
        self._limits = limits
        if limits.drafters is not None:
            drafters = [drafter for drafter in drafters if drafter.name in limits.drafters]
        self._setting, self._tokenizer, self._drafters = setting, tokenizer, drafters
        self.plans: list[Plan] = _plans(setting, target, drafters, limits)
        self._is_drafted = self.plans != [PLAIN]
        has_feedback = setting.feedback.split(":")[0] in {"free", "panoramic"}
        self.scores_prompt = self._is_drafted and has_feedback
        own = np.random.SeedSequence(seed)
        policy = self._new_policy(own)
        if isinstance(policy, PlayingAll) and len(drafters) > 1 and not target.serves_trees:
            raise DraftwiseError(
                f"{setting.policy} verifies all drafts as one tree, and {target.name} serves "
                "chains only; choose another policy, or one drafter"
            )
        self.memory = SharedPolicyState(scope, policy, setting.policy, self.plans)
        reward = registry.make_reward(setting.reward)
        # a policy that prices plans by the evidence needs no reward to value them
        self._reward = None if isinstance(policy, PricingPlans) else reward
        self.revealer()
        self._show_hidden(self.guides(own))

    def request(
        self,
        prompt: Sequence[int],
        params: RequestParams,
        ending: Ending,
        stream: np.random.SeedSequence,
    ) -> Request:
        policy_seed, draft_seed, accept_seed, guide_seed = stream.spawn(4)
        sampling, callbacks = params.sampling, []
        if ending.stop_when is not None:
            callbacks.append(guarded_stop(ending.stop_when))
            ending = replace(ending, stop_when=callbacks[-1])
        if sampling.process is not None:
            callbacks.append(guarded_process(sampling.process))
            sampling = replace(sampling, process=callbacks[-1])
        return Request(
            id=next(_IDS),
            prompt=tuple(prompt),
            context=Context(
                -1,
                list(prompt),
                sampling,
                np.random.default_rng(draft_seed),
                tenant=params.tenant,
                is_private=params.private,
                eos=ending.eos,
                drafters=self._limits.drafters if self._is_drafted else frozenset(),
            ),
            answer=Answer(ending, self._tokenizer),
            policy=self.policy(
                prompt,
                policy_seed,
                ending.max_new_tokens,
                label=params.label,
                private=params.private,
            ),
            revealer=self.revealer(),
            accept_rng=np.random.default_rng(accept_seed),
            plans=self.plans,
            guides=self.guides(guide_seed),
            callbacks=callbacks,
            priority=params.priority,
            label=params.label,
            scores_prompt=self.scores_prompt,
            num_logprobs=params.logprobs,
            wants_prompt_logprobs=params.prompt_logprobs,
        )

    def policy(
        self,
        prompt: Sequence[int],
        seed: np.random.SeedSequence,
        max_new_tokens: int,
        *,
        label: str = "",
        private: bool = False,
    ) -> Policy:
        """The policy of one request: the shared one, or its own, which may look at the prompt.

        label, private: as for ``SharedPolicyState.begin``.
        """
        if self.memory.policy is not None:
            return self.memory.policy
        policy = self._new_policy(seed, max_new_tokens)
        if isinstance(policy, Routing) and self._tokenizer is not None:
            policy.route(self._tokenizer.decode(prompt))
        self.memory.begin(policy, prompt, label, private)
        return policy

    def revealer(self) -> FeedbackBuilder:
        return registry.make_feedback(self._setting.feedback, plans=self.plans, reward=self._reward)

    def guides(self, seed: np.random.SeedSequence) -> dict[tuple[str, str], StopRule]:
        """One guide, with its own randomness, for each drafter and rule that plans name."""
        names = list(dict.fromkeys((p.drafter, p.rule) for p in self.plans if p.drafter != NONE))
        homes = {d.name: d.home for d in self._drafters if isinstance(d, ShowingHidden)}
        return {
            name: GuardedStopRule(
                registry.make_guide(name[1], own, home=homes.get(name[0])), name[1]
            )
            for name, own in zip(names, seed.spawn(len(names)), strict=True)
        }

    def _new_policy(self, seed: np.random.SeedSequence, num_tokens: int | None = None) -> Policy:
        spec, plans = self._setting.policy, self.plans
        return registry.make_policy(spec, len(plans), seed, plans=plans, request_tokens=num_tokens)

    def _show_hidden(self, guides: dict[tuple[str, str], StopRule]) -> None:
        """Have drafters show hidden states to the rules that read them, where they have any.

        Raises DraftwiseError where a rule reads them and no drafter has any: it would never stop.
        """
        drafters = {d.name: d for d in self._drafters if isinstance(d, ShowingHidden)}
        if not drafters:
            blind = [rule for (_, rule), guide in guides.items() if reads_hidden(guide)]
            if blind:
                raise DraftwiseError(
                    f"rule {blind[0]!r} reads a drafter's hidden states, and no drafter here has "
                    "any: name a model (lm:PATH) with a trained head (draftwise train head)"
                )
        for (name, rule), guide in guides.items():
            if name not in drafters or not (needed := guide.needs_hidden):
                continue
            if needed != (size := drafters[name].hidden_size):
                raise DraftwiseError(
                    f"rule {rule!r} reads hidden states of size {needed}, and drafter {name} has "
                    f"hidden size {size}: train a head on this drafter (draftwise train head)"
                )
            drafters[name].show_hidden()


def reads_hidden(guide: StopRule) -> bool:
    """Whether a rule needs hidden states; one without weights of its own still does."""
    try:
        return guide.needs_hidden > 0
    except DraftwiseError:
        return True


def _plans(
    setting: Preset, target: CausalModel, drafters: Sequence[Drafter], limits: LearningLimits
) -> list[Plan]:
    """The setting's plans over these drafters; DraftwiseError for trees that none can serve."""
    branching = [drafter.name for drafter in drafters if drafter.can_branch]
    own = {d.name: d for d in drafters if isinstance(d, Shaping)}
    wants_trees = any(setting.trees) or any(drafter.tree for drafter in own.values())
    if wants_trees and not (branching and target.serves_trees) and limits.drafters is None:
        why = (
            f"{target.name} serves chains only"
            if branching
            else "no drafter of the pool drafts any"
        )
        raise DraftwiseError(f"trees were asked for, but {why}; leave them out")
    plans = setting.plans([drafter.name for drafter in drafters], branching)
    shaped = (_shaped(plan, own.get(plan.drafter)) for plan in plans)
    return list(dict.fromkeys(_shortened(plan, limits.max_draft) for plan in shaped))


def _shaped(plan: Plan, drafter: Shaping | None) -> Plan:
    """A plan within its drafter's own limit, and of its shape where the setting names none."""
    if drafter is None:
        return plan
    length = min(plan.length, drafter.max_length or plan.length)
    return replace(plan, length=length, tree=plan.tree or drafter.tree)


def _shortened(plan: Plan, most: int | None) -> Plan:
    """A plan of at most so many tokens: a tree keeps its shape, as far as it goes."""
    if most is None or plan.num_tokens <= most:
        return plan
    tree = plan.tree and TreeShape(min(plan.tree.top_k, most), most)
    return replace(plan, length=min(plan.length, most), tree=tree)
