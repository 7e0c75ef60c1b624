"""Each rule of TapOut's table 1, on steps computed by hand from its formula."""

from __future__ import annotations

import math
from typing import Any

import pytest

from draftwise import make_stop_rule
from draftwise.bandits.stop_rules import TABLE_1, AdaEdl, split_rules
from draftwise.registry import preset
from draftwise.types import DraftStep, DraftwiseError


def entropy_of(*probs: float) -> float:
    return -sum(p * math.log(p) for p in probs)


def step_of(*probs: float, depth: int = 1, before: float = math.nan) -> DraftStep:
    """The step after a token drawn from q = ``probs``, whose first entry is the token's."""
    top, second = sorted(probs)[-1:-3:-1]
    return DraftStep(depth, 8, probs[0], top, entropy_of(*probs), top - second, before)


HALVES, SURE = (0.5, 0.5), (0.9, 0.1)
# H in nats: 0.693 of (0.5, 0.5), 0.500 of (0.8, 0.2), 0.423 of (0.85, 0.15), 0.325 of (0.9, 0.1)

CASES: list[tuple[str, DraftStep, bool]] = [
    # max-confidence: stop when max q < 0.8
    ("max-confidence", step_of(0.81, 0.19), True),
    ("max-confidence", step_of(0.79, 0.21), False),
    ("max-confidence", step_of(0.19, 0.81), True),  # max q, not the drawn token's probability
    ("max-confidence:0.5", step_of(*HALVES), True),
    # svip: stop when sqrt(H) > 0.6, so H > 0.36
    ("svip", step_of(*SURE), True),
    ("svip", step_of(0.85, 0.15), False),
    ("svip:0.7", step_of(0.85, 0.15), True),
    ("svip", step_of(0.1, 0.9), True),
    # svip-difference: stop when sqrt(H) - sqrt(H before) > 0.2; sqrt(H) is 0.833 after (0.5, 0.5)
    ("svip-difference", step_of(*HALVES, depth=2, before=0.40), False),  # 0.8326 - 0.6325 = 0.2001
    ("svip-difference", step_of(*HALVES, depth=2, before=0.42), True),  # 0.833 - 0.648 = 0.185
    ("svip-difference", step_of(*HALVES, depth=2, before=0.25), False),  # 0.833 - 0.5 = 0.333
    ("svip-difference:0.4", step_of(*HALVES, depth=2, before=0.25), True),
    ("svip-difference", step_of(*SURE, depth=2, before=2.0), True),  # the entropy fell
    ("svip-difference", step_of(*HALVES), True),  # no entropy before the first token
    ("svip-difference", step_of(*HALVES, depth=2, before=-1e-9), False),  # rounding below 0
    # logit-margin: stop when q1 - q2 < 0.2
    ("logit-margin", step_of(0.5, 0.25, 0.25), True),
    ("logit-margin", step_of(0.4, 0.3, 0.3), False),
    ("logit-margin:0.05", step_of(0.4, 0.3, 0.3), True),
    # adaedl: stop when 1 - sqrt(0.2 H) < lambda, at first 0.7: H > 0.45
    ("adaedl", step_of(0.85, 0.15), True),  # 1 - sqrt(0.0845) = 0.709
    ("adaedl", step_of(0.8, 0.2), False),  # 1 - sqrt(0.1001) = 0.684
    ("adaedl:0.68", step_of(0.8, 0.2), True),
    ("adaedl:gamma=0.1", step_of(0.8, 0.2), True),
    # any-of: one rule is enough
    ("any-of:rules=svip+max-confidence", step_of(*SURE), True),
    ("any-of:rules=svip+max-confidence:0.95", step_of(*SURE), False),
    ("any-of:rules=svip:0.1+max-confidence", step_of(*SURE), False),
    ("any-of:rules=adaedl:threshold=0.68;gamma=0.2+fixed", step_of(0.8, 0.2), True),
]


@pytest.mark.parametrize(("spec", "step", "expected"), CASES)
def test_by_hand(spec: str, step: DraftStep, expected: bool) -> None:
    assert make_stop_rule(spec).should_continue(step) is expected
    assert make_stop_rule(spec).should_continue(DraftStep(0, 8)) is True


def test_every_rule_of_table_1_has_a_case() -> None:
    """Rules that are added later have the contract tests, and need none here."""
    assert set(TABLE_1.split("+")) <= {spec.partition(":")[0] for spec, _, _ in CASES}


def test_lambda_moves_as_printed() -> None:
    """lambda' = beta2 lambda + (1 - beta2)(lambda + epsilon sign(alpha - r)), worked out."""
    rule = AdaEdl(threshold=0.5, alpha=0.75, beta2=0.5, epsilon=0.1)
    found = []
    for drafted, accepted in ((4, 1), (4, 4), (4, 4), (4, 3)):
        rule.learn(drafted, accepted)
        found.append(rule.threshold)
    # r = 0.25 < alpha: up by 0.5 * 0.1; r = 1: down, twice; r = alpha: sign 0, no change
    assert found == pytest.approx([0.55, 0.5, 0.45, 0.45])


@pytest.mark.parametrize(("accepted_share", "expected"), [(0.0, 1), (1.0, 8)])
def test_drafts_shrink_where_nothing_is_accepted_and_grow_where_all_is(
    accepted_share: float, expected: int
) -> None:
    rule, depth = AdaEdl(threshold=0.75, epsilon=0.1), 0
    for _ in range(30):
        depth = 0
        while depth < 8 and rule.should_continue(DraftStep(depth, 8, entropy=0.05 * depth)):
            depth += 1
        rule.learn(depth, int(accepted_share * depth))
    assert depth == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("svip:-1", "threshold is -1"),
        ("svip:nan", "threshold is nan"),
        ("svip-difference:nan", "threshold is nan: it must be a finite number"),
        ("logit-margin:1.5", "threshold is 1.5: it must be a finite number from 0 to 1"),
        ("adaedl:alpha=2", "alpha is 2"),
        ("adaedl:epsilon=-1", "epsilon is -1"),
        ("any-of:rules=svip+", "joined by +"),
        ("any-of:rules=svip+nope", "unknown stop rule 'nope'"),
        ("any-of:rules=svip:0.5;x=1", "no option 'x'"),
        ("tapout-token:bandit=nope", "unknown policy 'nope'"),
        ("tapout-token:rules=", "needs|joined by"),
    ],
)
def test_nonsense_is_refused(spec: str, message: str) -> None:
    with pytest.raises(DraftwiseError, match=message):
        make_stop_rule(spec)


def test_the_table_is_the_paper_s() -> None:
    assert split_rules(TABLE_1) == list(preset("tapout").rules)
    defaults: dict[str, Any] = {
        name: make_stop_rule(name)._threshold  # type: ignore[attr-defined]
        for name in ("max-confidence", "svip", "svip-difference", "logit-margin")
    }
    assert defaults == {
        "max-confidence": 0.8, "svip": 0.6, "svip-difference": 0.2, "logit-margin": 0.2,
    }  # fmt: skip
