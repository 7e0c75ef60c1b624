"""Stop rules decide whether to draft one more token.

A rule compares a statistic of the drafter's q with a threshold (``ThresholdRule``), asks several
rules (``Several``), or asks a trained head (``Head``).
"""

from __future__ import annotations

import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from draftwise.checks import LARGE, flag, number, probability
from draftwise.files import local_path
from draftwise.protocols import Policy, StopRule
from draftwise.types import Decision, DraftStep, DraftwiseError, Feedback


class ThresholdRule(ABC):
    """Compares one number of the last token with a threshold; at depth 0 the draft continues.

    The token itself stays in the draft, so the output distribution is unchanged. Cost: O(V). A
    threshold outside a rule's documented range raises ValueError.
    """

    needs_probs = True
    never_stops = waits_for_hidden = False
    needs_hidden = 0

    @abstractmethod
    def should_continue(self, step: DraftStep) -> bool:
        """Whether to draft one more token."""

    def learn(self, num_drafted: int, num_accepted: int) -> None:  # noqa: B027
        pass


class Fixed(ThresholdRule):
    """Never stop before the plan's length. Source: Leviathan et al. (2023)."""

    needs_probs, never_stops = False, True

    def should_continue(self, step: DraftStep) -> bool:
        return True


class MaxConfidence(ThresholdRule):
    """Stop when the largest q at the last drafted token is below a threshold in [0, 1].

    Source: TapOut, table 1 (Max-Confidence, threshold 0.8). Differs: none.

    >>> MaxConfidence(0.8).should_continue(DraftStep(depth=1, length=5, max_prob=0.7))
    False
    """

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = probability("threshold", threshold)

    def should_continue(self, step: DraftStep) -> bool:
        return step.depth == 0 or step.max_prob >= self._threshold


class LogitMargin(ThresholdRule):
    """Stop when the two largest q at the last drafted token differ by less than a threshold.

    Source: TapOut, table 1 and appendix A.1 (LogitMargin, threshold 0.2): despite its name the
    margin is one of probabilities. Differs: none.
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = probability("threshold", threshold)

    def should_continue(self, step: DraftStep) -> bool:
        return step.depth == 0 or step.margin >= self._threshold


def root_entropy(nats: float) -> float:
    return math.sqrt(max(nats, 0.0))  # rounding errors below 0 count as 0, and nan stays nan


class Svip(ThresholdRule):
    """Stop when the root of the entropy of q at the last drafted token is above a threshold.

    Source: TapOut, table 1 and appendix A.1 (SVIP, of Zhang et al. 2025): sqrt(H) > 0.6; H in nats.
    Differs: none known; the paper names no unit for H, and 0.6 is a threshold for nats.
    """

    def __init__(self, threshold: float = 0.6) -> None:
        self._threshold = number("threshold", threshold, 0, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        return step.depth == 0 or root_entropy(step.entropy) <= self._threshold


class SvipDifference(ThresholdRule):
    """Stop when the root of the entropy of q rose by more than a threshold over the token before.

    Source: TapOut, table 1 and appendix A.1 (SVIPDifference, threshold 0.2), H in nats.
    Differs: the draft continues after its first token, which has no predecessor in the draft.
    """

    def __init__(self, threshold: float = 0.2) -> None:
        self._threshold = number("threshold", threshold, -LARGE, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        rise = root_entropy(step.entropy) - root_entropy(step.entropy_before)
        return not rise > self._threshold  # nan, for the first token, is not a rise


class AdaEdl(ThresholdRule):
    """Stop when ``1 - sqrt(gamma H)`` at the last drafted token is below an adaptive lambda.

    Source: TapOut, table 1 and appendix A.1 (AdaEDL, of Agrawal et al. 2024). H in nats.
    Update: after each draft, with r its acceptance rate (accepted / drafted): lambda = beta2 *
        lambda + (1 - beta2) * (lambda + epsilon * sign(alpha - r)), so lambda rises (drafts get
        shorter) while fewer than alpha of the tokens are accepted.
    Differs: (1) the paper prints no values: gamma 0.2, alpha 0.9, beta2 0.9, epsilon 0.01 and the
        initial lambda, ``threshold`` 0.7, are this project's; 0.7 stops at sqrt(H) = 0.67, close to
        SVIP's 0.6; (2) its running ``accept_rate`` (with beta1) is omitted, as the printed update
        of lambda does not use it; (3) as printed, lambda moves by (1 - beta2) epsilon a draft,
        0.001 here, and restarts in each request: by at most 0.05 over an answer of 50 drafts, so
        the rule is nearly constant unless epsilon is larger.
    State: lambda, as ``threshold``. Ranges: alpha and beta2 in [0, 1], gamma and epsilon >= 0.
    """

    def __init__(
        self, threshold: float = 0.7, gamma: float = 0.2, alpha: float = 0.9, beta2: float = 0.9,
        epsilon: float = 0.01,
    ) -> None:  # fmt: skip
        self._root_gamma = math.sqrt(number("gamma", gamma, 0, LARGE))
        self._target_rate, self._beta2 = probability("alpha", alpha), probability("beta2", beta2)
        self._epsilon = number("epsilon", epsilon, 0, LARGE)
        self.threshold = number("threshold", threshold, -LARGE, LARGE)

    def should_continue(self, step: DraftStep) -> bool:
        bound = 1.0 - self._root_gamma * root_entropy(step.entropy)
        return step.depth == 0 or bound >= self.threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        miss = self._target_rate - num_accepted / num_drafted
        sign = (miss > 0) - (miss < 0)
        moved = self.threshold + self._epsilon * sign
        self.threshold = self._beta2 * self.threshold + (1.0 - self._beta2) * moved


TABLE_1 = "max-confidence+svip+adaedl+svip-difference+logit-margin"  # with TapOut's thresholds


def split_rules(text: str) -> list[str]:
    """Split ``"a:x=1;y=2+b"`` into the specs of its rules; ValueError for an empty rule.

    >>> split_rules("adaedl:gamma=0.3;alpha=0.8+svip:0.5")
    ['adaedl:gamma=0.3,alpha=0.8', 'svip:0.5']
    """
    specs = [part.strip().replace(";", ",") for part in text.split("+")]
    if not all(specs):
        raise ValueError(f"rules is {text!r}: write rules joined by +, such as svip+max-confidence")
    return specs


class Several:
    """Rules that all see every step and learn from every draft; state and cost are their sum."""

    never_stops = False

    def __init__(self, rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self.needs_probs = any(rule.needs_probs for rule in rules)
        self.waits_for_hidden = any(rule.waits_for_hidden for rule in rules)

    @property
    def needs_hidden(self) -> int:
        """The size of the hidden states that rules need, or 0; DraftwiseError if sizes differ."""
        sizes = sorted({rule.needs_hidden for rule in self._rules} - {0})
        if len(sizes) > 1:
            raise DraftwiseError(
                f"rules read hidden states of sizes {sizes}: one drafter has one size"
            )
        return sizes[0] if sizes else 0

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        for rule in self._rules:
            rule.learn(num_drafted, num_accepted)


class AnyOf(Several):
    """Stop as soon as any of several rules stops.

    Source: this project. Written ``any-of:rules=svip:0.5+max-confidence``: rules are joined by
    ``+``; inside a rule, ``;`` replaces the comma between options (``adaedl:gamma=0.3;alpha=1``).
    Errors: ValueError for an empty rule, DraftwiseError for an unknown one.
    """

    def __init__(self, make_rule: Callable[[str], StopRule], rules: str = TABLE_1) -> None:
        super().__init__([make_rule(spec) for spec in split_rules(rules)])

    def should_continue(self, step: DraftStep) -> bool:
        # a list: all rules are evaluated, since some keep state by draft
        return all([rule.should_continue(step) for rule in self._rules])


class TapOutToken(Several):
    """After each token a bandit for that position chooses the rule that decides whether to stop.

    Source: TapOut, sections 3.1 to 3.3, token level: ``bandit=ucb1:beta=1`` (UCB1) or
        ``bandit=thompson-bernoulli`` (Beta-Bernoulli Thompson sampling); the rules of table 1.
    Update: after the round, the bandit of position i learns, for the rule that it chose there, 1 if
        the token at position i was accepted and 0 if not.
    Differs: (1) the reward is taken literally, that of the token AT the position, which is drawn
        before the rule is chosen: it separates rules only through noise and through which drafts
        reach the position, so expect a nearly uniform mix of rules (the paper also finds the token
        level weaker, section 4.2.1); tokens after the first rejection count as not accepted; (2)
        every rule learns from every draft, so AdaEDL's lambda from those that others ended, too;
        (3) the last position of the longest length has no bandit: nothing is left to decide.
    State: a policy for each position reached so far; the decisions of the current draft.
    Errors: as ``any-of`` for rules; DraftwiseError for a bandit that is not a policy.
    """

    def __init__(
        self, make_rule: Callable[[str], StopRule], make_bandit: Callable[[str, int], Policy],
        bandit: str = "ucb1:beta=1", rules: str = TABLE_1,
    ) -> None:  # fmt: skip
        super().__init__([make_rule(spec) for spec in split_rules(rules)])
        self._new_bandit = partial(make_bandit, bandit.replace(";", ","), len(self._rules))
        self._bandits = [self._new_bandit()]
        self._made: list[Decision] = []

    def should_continue(self, step: DraftStep) -> bool:
        answers = [rule.should_continue(step) for rule in self._rules]
        if step.depth == 0:
            self._made = []
            return True
        if len(self._bandits) < step.depth:
            self._bandits.append(self._new_bandit())
        self._made.append(self._bandits[step.depth - 1].choose())
        return answers[self._made[-1].plan]

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        for position, decision in enumerate(self._made):
            values, seen = np.zeros(len(self._rules)), np.zeros(len(self._rules), dtype=np.bool_)
            values[decision.plan], seen[decision.plan] = float(position < num_accepted), True
            self._bandits[position].learn(decision, Feedback(values, seen))
        self._made = []
        super().learn(num_drafted, num_accepted)


Array = NDArray[np.float32]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A loaded head: residual blocks ([D, D], [D]), then weights [D] and bias of the log-odds.

    Heads on disk have SpecDec++'s layout and are loaded without torch: ``config.json``
    (``hidden_size``, ``num_layers``) and ``model.safetensors`` with the keys
    ``model.{i}.linear.weight`` and ``.bias`` of the residual layers i < num_layers, then
    ``model.{num_layers}.weight`` [2, D] and ``.bias`` [2]; class 1 is "accepted".
    """

    blocks: tuple[tuple[Array, Array], ...]
    odds: Array
    bias: float

    def acceptance(self, hidden: Array) -> float:
        """The predicted probability that the token with this hidden state [D] is accepted.

        >>> HeadWeights((), np.array([1.0, -1.0], np.float32), 0.0).acceptance(
        ...     np.array([2.0, 2.0], np.float32)
        ... )
        0.5
        """
        x = hidden
        for weight, bias in self.blocks:
            y = weight @ x + bias
            x = x + y * _sigmoid(y)
        return float(_sigmoid(self.odds @ x + self.bias))


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)  # exp(-x) would overflow for very negative x


def read_head(folder: Path) -> HeadWeights:
    """The head in ``folder``, cached while its files are unchanged; DraftwiseError without one."""
    weights = folder / "model.safetensors"
    if weights.exists():
        return _load(folder.absolute(), *map(_mark, (weights, folder / "config.json")))
    if (folder / "pytorch_model.bin").exists():
        raise DraftwiseError(
            f"{folder} holds its head as pytorch_model.bin: rewrite it once with `python -c 'from "
            f'draftwise_lab.train.head import load, save; save(load("{folder}"), "{folder}")\'`'
        )
    raise DraftwiseError(
        f"there is no acceptance head in {folder}: make one with `draftwise train head --out "
        f"{folder} ...`, or name another folder as head:PATH"
    )


def _mark(file: Path) -> tuple[int, ...]:
    """What differs after a file was replaced, even by one of the same name, size and time."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=32)
def _load(folder: Path, *marks: tuple[int, ...]) -> HeadWeights:
    """Cached by the files' marks, since every request creates a rule."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config = config.get("config", config)
        size, num_blocks = int(config["hidden_size"]), int(config.get("num_layers", 0))
        tensors = _read_safetensors(folder / "model.safetensors")

        def tensor(name: str, *shape: int) -> Array:
            found = tensors[f"model.{name}"]
            if found.shape != shape:
                raise ValueError(f"a tensor has the shape {found.shape} and not {shape}")
            return found

        # the authors' layers share one set of weights, which may be stored once
        stored = (i if f"model.{i}.linear.weight" in tensors else 0 for i in range(num_blocks))
        layers = [f"{i}.linear" for i in stored]
        blocks = [(tensor(f"{n}.weight", size, size), tensor(f"{n}.bias", size)) for n in layers]
        weight, bias = tensor(f"{num_blocks}.weight", 2, size), tensor(f"{num_blocks}.bias", 2)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise DraftwiseError(
            f"the acceptance head in {folder} cannot be read ({type(error).__name__}: {error}); it "
            "needs config.json with hidden_size and num_layers, and model.safetensors"
        ) from error
    return HeadWeights(tuple(blocks), weight[1] - weight[0], float(bias[1] - bias[0]))


def _read_safetensors(path: Path) -> dict[str, Array]:
    """Load all tensors as float32, even bfloat16, which numpy does not support."""
    found: dict[str, Array] = {}
    for name, entry in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} is of type {entry['dtype']}")
        raw = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        found[name] = raw.astype(np.float32).reshape(entry["shape"])
    return found


class Head:
    """Stop when ``1 - prod_i P(token i is accepted)``, as a head predicts it, exceeds ``h``.

    Source: SpecDec++, section 4.3, equation 4.1 and algorithm 1; h 0.7 as section 5.3 recommends
        for w_rej = 6, D = 3. Written ``head:PATH,h=0.7``; without a path it is the folder ``head``
        next to the drafter's weights. ``draftwise train head`` trains the weights.
    Differs: (1) the product includes the last drafted token, as section 4.3 defines the rule; in
        algorithm 1 and the authors' code it ends one token earlier (``lag=true``), so the last
        token is submitted unjudged; (2) without hidden states (drafts of retrieval) the draft
        continues.
    State: the product over the current draft, a float. Cost: O((D + 1) H^2) a token for D layers of
        hidden size H, on one core: 16 microseconds at H = 128 and D = 3, 9 milliseconds at 4096.
    Errors: ValueError if h is not in [0, 1]; DraftwiseError for a folder without a readable head,
        or, on first use, if neither a path nor a drafter's folder is known.
    """

    needs_probs = False
    never_stops = False

    def __init__(
        self, home: Path | None, path: Path | str | None = None, h: float = 0.7, lag: bool = False
    ) -> None:
        self._threshold, self._lag = probability("h", h), flag("lag", lag)
        self.waits_for_hidden = not lag
        folder = (
            local_path(path) if path is not None else home / "head" if home is not None else None
        )
        self._loaded = None if folder is None else read_head(folder)
        self._survival = 1.0

    @property
    def needs_hidden(self) -> int:
        return len(self._weights.odds)

    def should_continue(self, step: DraftStep) -> bool:
        if step.depth == 0:
            self._survival = 1.0
            return True
        hidden = step.hidden_before if self._lag else step.hidden
        if hidden is not None and not (self._lag and step.depth == 1):
            self._survival *= self._weights.acceptance(hidden)
        return 1.0 - self._survival <= self._threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        pass

    @property
    def _weights(self) -> HeadWeights:
        if self._loaded is None:
            raise DraftwiseError(
                "rule 'head' has no weights: write head:PATH, or use it on a drafter whose folder "
                "holds one (draftwise train head --out DRAFTER/head)"
            )
        return self._loaded
