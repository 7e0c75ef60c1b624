"""What decides for one request: which plan it plays, whether it drafts, and what it learns.

Policies, rules and callbacks may be the user's: an exception in one of them ends its
request or disables its drafts, and no others. ``SharedPolicyState`` is what requests share.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from draftwise import checks
from draftwise.bandits.feedback import DueFeedback, FeedbackBuilder
from draftwise.controller.goodput import Goodput
from draftwise.controller.rates import Experience
from draftwise.engine.options import AUTO, REQUEST, SESSION, TASK, check_scope
from draftwise.errors import BadValue
from draftwise.files import set_aside, write_text
from draftwise.protocols import Mixer, Policy, StopRule
from draftwise.state import UnusableState, hold, keep_aside, read_state, state_text
from draftwise.types import (
    PLAIN,
    Costs,
    Decision,
    DraftStep,
    DraftwiseError,
    Floats,
    Plan,
    RoundFacts,
    Scores,
)

T = TypeVar("T")


class Decider:
    """What both ways of deciding share: a policy over plans, asked and taught in each round.

    The first exception of the policy or feedback disables the drafts of the request, with a
    warning.
    """

    is_controlled = False  # whether the guard may suspend its drafts, and it probes drafters

    def __init__(
        self, request: int, policy: Policy, plans: Sequence[Plan],
        stop_rules: Mapping[tuple[str, str], StopRule], scores_prompt: bool,
    ) -> None:  # fmt: skip
        self._request = request  # its id, for the warning
        self.policy = policy  # shared by the requests of a scope, if the scope shares one
        self.plans = plans
        self.stop_rules = stop_rules  # by drafter and spec
        self.scores_prompt = scores_prompt  # whether drafters are scored on the prompt
        self.is_idle = False  # the policy or feedback raised: no more drafts
        self.pending: Decision | None = None  # it waits for its drafter to catch up
        self.num_unseen = 0  # emitted tokens from which the policy has not learnt

    @cached_property
    def longest(self) -> int:
        """Maximum tokens of a draft; read in every round, and the plans do not change."""
        return max((plan.num_tokens for plan in self.plans), default=0)

    @property
    def plain(self) -> Decision:
        return Decision(self.plans.index(PLAIN) if PLAIN in self.plans else 0, 1.0, 0)

    def choose(self) -> Decision:
        """The decision for this round; one that waits for its drafter is kept."""
        if self.pending is not None:
            return self.pending
        return self._ask(lambda: self._checked(self.policy.choose()), self.plain)

    def plan_of(self, decision: Decision) -> Plan:
        return PLAIN if self.is_idle else self.plans[decision.plan]

    @property
    def can_rest(self) -> bool:
        """Whether a round may skip the policy, whose decision matters only if drafts pay."""
        return False

    @property
    def advantage(self) -> float:
        """Expected gain of the plan chosen last, relative to its price; 0 = no draft pays."""
        return 0.0

    @property
    def mixer(self) -> Mixer | None:
        """Chooses the drafter of each token of a mixed draft; None = one drafter per draft."""
        return None

    def drafters_to_probe(self, num_rows: int) -> Sequence[str]:
        """Drafters to score now on tokens that they did not draft; num_rows: rows that wait."""
        return ()

    @property
    def reads_everything(self) -> bool:
        """Whether scores of every drafter are ever needed (panoramic feedback)."""
        return False

    def is_panoramic(self, number: int) -> bool:
        """Whether round ``number``, from 1 on, needs scores of every drafter."""
        return False

    def scored(
        self, scores: Mapping[str, Scores], start: int, costs: Costs, matches: Mapping[str, int],
        num_left: int,
    ) -> None:  # fmt: skip
        """Scores on the prompt of ``start`` tokens; they value no plan."""

    def observe(self, decision: Decision, evidence: RoundFacts) -> None:
        """Update the stop rule with the verified draft, and the policy with what is due."""
        rule = self.stop_rules.get((evidence.plan.drafter, evidence.plan.rule))
        has_chain = evidence.num_drafted > 0 and evidence.plan.tree is None
        if rule is not None and has_chain:
            rule.learn(evidence.num_drafted, evidence.num_accepted)
        self._ask(lambda: self._learn(decision, evidence), None)
        self.num_unseen = 0

    def _learn(self, decision: Decision, evidence: RoundFacts) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Learn from what is still queued after the request has ended."""

    def estimates(self) -> Floats:
        """[K] the policy's value of each plan; zeros after an exception."""
        return self._ask(self._checked_estimates, np.zeros(len(self.plans)))

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        """Call the policy or feedback; its first exception disables drafting for the request."""
        if not self.is_idle:
            try:
                return what()
            except Exception as error:
                self.is_idle, self.pending = True, None
                warnings.warn(
                    f"the policy or feedback of request {self._request} failed ({error!r}): "
                    "this request continues without drafts",
                    stacklevel=3,
                )
        return instead

    def _checked(self, decision: Any) -> Decision:
        if not isinstance(decision, Decision) or not isinstance(decision.plan, Integral):
            raise TypeError(f"it chose {decision!r}, which is no Decision for a plan's index")
        if not 0 <= decision.plan < len(self.plans) or not math.isfinite(decision.prob):
            raise ValueError(f"it chose {decision!r}, of {len(self.plans)} plans")
        return decision

    def _checked_estimates(self) -> Floats:
        found = np.asarray(self.policy.estimates(), dtype=np.float64)
        if found.shape != (len(self.plans),):
            raise ValueError(f"its estimates have the shape {found.shape}, of {len(self.plans)}")
        return found


class Bandits(Decider):
    """The papers' way: a policy chooses one plan for each round, and feedback values the plans.

    There is no guard, and there are no prices and no probes.
    """

    def __init__(
        self, request: int, policy: Policy, plans: Sequence[Plan],
        stop_rules: Mapping[tuple[str, str], StopRule], scores_prompt: bool,
        feedback: FeedbackBuilder,
    ) -> None:  # fmt: skip
        super().__init__(request, policy, plans, stop_rules, scores_prompt)
        self.feedback = feedback

    @property
    def reads_everything(self) -> bool:
        return self._ask(lambda: bool(self.feedback.panoramic), False)

    def is_panoramic(self, number: int) -> bool:
        return self.reads_everything and self._ask(lambda: number % self.feedback.every == 0, False)

    def _learn(self, decision: Decision, evidence: RoundFacts) -> None:
        self._teach(self.feedback.reveal(decision, evidence))

    def end(self) -> None:
        self._ask(lambda: self._teach(self.feedback.flush()), None)

    def _teach(self, due: DueFeedback) -> None:
        for made, feedback in due:
            self.policy.learn(made, feedback)


class Controlled(Decider):
    """draftwise's own way: prices tokens, mixes drafters in a draft, probes, and has a guard.

    It learns from facts and scores: no feedback values its plans.
    """

    is_controlled = True
    policy: Goodput

    @property
    def can_rest(self) -> bool:
        return self.pending is None

    @property
    def advantage(self) -> float:
        return self._ask(lambda: self.policy.advantage, 0.0)

    @property
    def mixer(self) -> Mixer | None:
        return None if self.is_idle else self.policy.mixer

    def scored(
        self, scores: Mapping[str, Scores], start: int, costs: Costs, matches: Mapping[str, int],
        num_left: int,
    ) -> None:  # fmt: skip
        """Learn from scores on the prompt, as from a round without a draft."""
        facts = RoundFacts(
            PLAIN, 0, 0, scores, emitted_start=start, costs=costs, matches=matches,
            num_left=num_left,
        )  # fmt: skip
        self._ask(lambda: self.policy.read(facts), None)

    def _learn(self, decision: Decision, evidence: RoundFacts) -> None:
        self.policy.read(evidence)

    def drafters_to_probe(self, num_rows: int) -> Sequence[str]:
        return self._ask(lambda: tuple(self.policy.drafters_to_probe(num_rows)), ())


class GuardedCallback:
    """A callback that is not called again after its first exception, which ``error`` holds.

    checked: converts a result, from the result and the arguments. instead: replaces the callback.
    """

    def __init__(
        self, call: Callable[..., Any], checked: Callable[..., Any], instead: Callable[..., Any]
    ) -> None:
        self._call, self._checked, self._instead = call, checked, instead
        self.error: Exception | None = None

    def __call__(self, *args: Any) -> Any:
        if self.error is None:
            try:
                return self._checked(self._call(*args), *args)
            except Exception as error:
                self.error = error
        return self._instead(*args)

    def num_allowed(self, text: Sequence[int], num: int) -> int:
        """The number of the last ``num`` tokens that a logits processor allows; default: all."""
        num_allowed = getattr(self._call, "num_allowed", None)
        if num_allowed is not None and self.error is None:
            try:
                return max(0, min(int(num_allowed(text, num)), num))
            except Exception as error:
                self.error = error
        return num


def guarded_stop(stop_when: Callable[..., Any]) -> GuardedCallback:
    """Guard ``stop_when``: a true result or an exception ends the answer."""

    def checked(answer: Any, *_: Any) -> bool:
        try:
            return bool(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise BadValue("what stop_when returned", answer, "True or False") from error

    return GuardedCallback(stop_when, checked, lambda *_: True)


def guarded_process(process: Callable[..., Any]) -> GuardedCallback:
    """Guard ``process``, which returns [V] logits: unchanged ones after an exception."""

    def checked(answer: Any, text: Sequence[int], logits: Tensor) -> Tensor:
        found = torch.as_tensor(answer) if isinstance(answer, np.ndarray) else answer
        if not isinstance(found, Tensor) or not found.is_floating_point():
            must = f"the {len(logits)} logits, as a tensor or array of floats"
            raise BadValue("what process returned", answer, must)
        if found.shape != logits.shape:
            raise DraftwiseError(
                f"process returned logits of the shape {list(found.shape)}, and not "
                f"{list(logits.shape)}"
            )
        return found.to(logits)

    return GuardedCallback(process, checked, lambda text, logits: logits)


class GuardedStopRule:
    """A stop rule that ends every draft after its first exception, with one warning.

    Tokens drawn before that stay: dropping them by value would change the output distribution.
    """

    def __init__(self, stop_rule: StopRule, rule: str) -> None:
        self._stop_rule, self._rule, self._is_broken = stop_rule, rule, False
        self.needs_probs = stop_rule.needs_probs
        self.never_stops, self.waits_for_hidden = stop_rule.never_stops, stop_rule.waits_for_hidden

    @property
    def needs_hidden(self) -> int:  # not copied: loading a head sets it
        return self._stop_rule.needs_hidden

    def should_continue(self, step: DraftStep) -> bool:
        return self._ask(lambda: bool(self._stop_rule.should_continue(step)), False)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        self._ask(lambda: self._stop_rule.learn(num_drafted, num_accepted), None)

    def _ask(self, what: Callable[[], T], instead: T) -> T:
        if not self._is_broken:
            try:
                return what()
            except Exception as error:
                self._is_broken = True
                said = f"rule {self._rule!r} raised {error!r}: its request no longer drafts with it"
                warnings.warn(said, stacklevel=3)
        return instead


class SharedPolicyState:
    """State that the requests of a speculator share within one scope.

    shared: the memory from which the policy of each request starts, which a file can keep. It is
    keyed by drafter, so it survives a change of the plans. policy: instead, one policy for all
    requests, if it is no ``Goodput`` and the scope is ``session`` or
    ``task:LABEL``. Both are None if every request starts from scratch.
    """

    def __init__(self, scope: str, policy: Policy, name: str) -> None:
        self.scope = check_scope(scope)
        self.policy: Policy | None = None
        self.shared: Experience | None = None
        self._name = name
        if scope != REQUEST and isinstance(policy, Goodput):
            self.shared = policy.new_memory()
        elif scope not in {AUTO, REQUEST}:
            self.policy = policy
        self._seen: str | None = None

    def save(self, path: str | Path) -> None:
        """Write the state atomically; other scopes in the file are kept.

        A file that another process changed, or that has another policy, is renamed with a warning.
        Raises DraftwiseError if nothing can be kept, the folder is missing, or another process
        holds the file (``hold``); OSError.
        """
        kept, path = self._kept(), checks.path("path", path)
        if not path.parent.is_dir():
            raise DraftwiseError(f"cannot write {path}: there is no folder {path.parent}")
        with hold(path, wait_s=10.0):
            present = self._present(path)
            saved = present["saved"] | {self.scope: secrets.token_hex(8)}
            scopes = present["scopes"] | {self.scope: kept.state()}
            about = {"policy": self._name}
            write_text(path, state_text(about, {"saved": saved, "scopes": scopes}))
            self._seen = saved[self.scope]

    def load(self, path: str | Path) -> None:
        """Read a saved state; a scope that is not in the file starts from scratch.

        Raises DraftwiseError if nothing can be kept, or for a file with another policy, and
        ``UnusableState`` for a damaged file, another version, or a file without a state.
        """
        kept, path = self._kept(), checks.path("path", path)
        found = self._read(path)
        if self.scope in found["scopes"]:
            try:
                kept.load_state(found["scopes"][self.scope])
            except Exception as error:
                why = str(error) if isinstance(error, ValueError) else "its numbers are damaged"
                raise UnusableState(path, why) from error
        self._seen = found["saved"].get(self.scope)

    def load_or_set_aside(self, path: Path) -> str | None:
        """Load a file if it exists; rename an unusable one and return a warning.

        Raises the other errors of ``load``; OSError.
        """
        try:
            if path.exists():
                self.load(path)
        except UnusableState as error:
            return keep_aside(path, error)
        return None

    def _kept(self) -> Experience:
        if self.shared is None:
            raise DraftwiseError(
                f"the policy {self._name} with the scope {self.scope} keeps nothing between runs: "
                f"use the policy goodput with the scope {AUTO}, {SESSION} or {TASK}LABEL"
            )
        return self.shared

    def _present(self, path: Path) -> dict[str, Any]:
        """The content of the file; a file that must not be overwritten is renamed."""
        found: dict[str, Any] = {"saved": {}, "scopes": {}}
        if path.exists():
            try:
                found = self._read(path)
                if self._seen in {None, found["saved"].get(self.scope)}:
                    return found
                why = f"{path} was written by someone else since it was read"
            except (DraftwiseError, OSError) as error:
                why = str(error)
            warnings.warn(f"{why}; it is kept as {set_aside(path)}", stacklevel=3)
        return found

    def _read(self, path: Path) -> dict[str, Any]:
        about, found = read_state(path)
        for key in ("saved", "scopes"):
            if not isinstance(found.get(key), dict):
                raise UnusableState(path, f"its {key} are no table")
        if about.get("policy") != self._name:
            raise DraftwiseError(
                f"cannot load {path}: it was learnt with the policy {about.get('policy')}, not "
                f"{self._name}; use the options it was made with, or another file"
            )
        return found
