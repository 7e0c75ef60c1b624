"""Stop rules on the command line: how they end drafts, and nested rules."""

from __future__ import annotations

import pytest

from cli.conftest import Run, run_command

FIXED = ("--policy", "fixed:0", "--preset", "metasd", "--plan-lengths", "8", "--json")
SHORT = ("--max-new-tokens", 24)
NEVER, ALWAYS = "max-confidence:0", "max-confidence:1"


def drafted(generate: Run, *options: object) -> tuple[list[int], int, int]:
    """The tokens, the number of rounds, and the number of drafted tokens."""
    (answer,) = generate("Hello", *SHORT, *FIXED, *options).objects
    return answer["tokens"], answer["num_rounds"], answer["num_drafted"]


def test_a_rule_ends_drafts_and_leaves_the_text(generate: Run) -> None:
    one_token, whole = (drafted(generate, "--rule", rule) for rule in (ALWAYS, NEVER))
    assert whole[0] == one_token[0]
    assert whole[2] > one_token[2]


def test_rules_inside_rules(generate: Run) -> None:
    """A rule's options may contain rules, separated by +, whose own options are separated by ;."""
    one_token = drafted(generate, "--rule", ALWAYS)
    assert drafted(generate, "--rule", f"any-of:rules={NEVER}+{ALWAYS}") == one_token
    nested = "adaedl:gamma=0.3;threshold=2;epsilon=0"
    assert drafted(generate, "--rule", f"any-of:rules={NEVER}+{nested}") == one_token


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("any-of:rules=svip+nope", "unknown stop rule 'nope'"),
        ("svip:-1", "threshold is -1"),
        ("tapout-token:bandit=nope", "unknown policy 'nope'"),
    ],
)
def test_refused_before_anything_is_loaded(spec: str, message: str) -> None:
    ran = run_command("generate", "hi", "--target", "/nonexistent", "--rule", spec)
    assert message in " ".join(ran.refusal.split())
