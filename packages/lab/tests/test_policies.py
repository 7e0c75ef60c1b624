"""Baselines of the papers: all drafters at once, and a prompt router."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftwise.registry import LAB_POLICIES, make_policy
from draftwise.types import DraftwiseError, Feedback, Plan
from draftwise_lab.policies import DraftAll, Router, naive_bayes_scores

PROMPTS = [
    ("SELECT name, age FROM users WHERE age > 30", 0),
    ("SELECT count(*) FROM orders GROUP BY day", 0),
    ("def add(a, b):\n    return a + b", 1),
    ("for i in range(10):\n    print(i)", 1),
    ("The old man walked slowly to the sea.", 2),
    ("She opened the letter and began to read.", 2),
]


def test_router_sends_prompts_to_their_kind() -> None:
    router = Router(3)
    router.fit([text for text, _ in PROMPTS], [plan for _, plan in PROMPTS])
    assert router.route("SELECT id FROM users WHERE name = 'x'") == 0
    assert router.route("def sub(a, b):\n    return a - b") == 1
    assert router.route("He opened the old letter by the sea.") == 2
    assert [router.choose().plan for _ in range(3)] == [2, 2, 2]


def test_naive_bayes_by_hand() -> None:
    """Counts (3, 0) and (0, 1) in two cells, smoothed by 1: cell 0 has 4/5 under plan 0 and 1/3
    under plan 1; a text with cell 0 twice and cell 1 once has the products of these."""
    counts = np.array([[3.0, 0.0], [0.0, 1.0]])
    scores = naive_bayes_scores(counts, np.array([0, 0, 1]))
    expected = [4 / 5 * 4 / 5 * 1 / 5, 1 / 3 * 1 / 3 * 2 / 3]
    assert np.exp(scores).tolist() == pytest.approx(expected)


def test_router_counts_trigrams() -> None:
    router = Router(2)
    router.fit(["aaaaa", "bbb"], [0, 1])
    # of "aaa", 4/1027 against 1/1025 after smoothing; of "bbb", 1/1027 against 2/1025
    assert [router.route(text) for text in ("aaa", "bbb")] == [0, 1]


def test_router_never_picks_a_plan_without_examples() -> None:
    """Under plans 0 and 4 nothing was counted, so every cell has its full 1/1024; under the others
    a cell without any of their 3,000 trigrams has 1/4,000."""
    router = Router(5)
    router.fit([text for text, _ in PROMPTS] * 40, [plan + 1 for _, plan in PROMPTS] * 40)
    assert {router.route(odd) for odd in ("ÄÖÜ ß", "0123456789", "XQZ#" * 50)} <= {1, 2, 3}


PLANS = [Plan("none", 0), Plan("sql", 2), Plan("sql", 4), Plan("code", 2), Plan("prose", 8)]


def write(path: Path, lines: list[object]) -> str:
    """Write a jsonl file of these objects (strings unchanged); returns its name."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def test_router_is_fitted_by_a_file_of_examples(tmp_path: Path) -> None:
    """A drafter's name stands for its first plan, a number for that plan; one line is empty."""
    names = {0: {"drafter": "sql"}, 1: {"drafter": "code"}, 2: {"plan": 4}}
    keys = ("text", "prompt")
    lines: list[object] = [
        {keys[i % 2]: text} | names[kind] for i, (text, kind) in enumerate(PROMPTS)
    ]
    path = write(tmp_path / "examples.jsonl", [*lines[:2], "", *lines[2:]])
    by_file = make_policy(f"router:examples={path}", len(PLANS), plans=PLANS)
    by_hand = Router(len(PLANS))
    by_hand.fit([text for text, _ in PROMPTS], [(1, 3, 4)[kind] for _, kind in PROMPTS])
    assert isinstance(by_file, Router)
    texts = [text for text, _ in PROMPTS]
    assert [by_file.route(text) for text in texts] == [by_hand.route(text) for text in texts]
    assert by_file.route("SELECT id FROM users") == 1
    assert by_file.route("He opened the old letter by the sea.") == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "a", "plan": 1', "line 2: .*delimiter"),
        ("[1, 2]", "line 2: it must be an object"),
        ({"text": "a"}, "line 2: it must be an object"),
        ({"text": "a", "plan": 1, "drafter": "sql"}, "line 2: it must be an object"),
        ({"text": "a", "prompt": "b"}, 'line 2: it must have "text" or "prompt"; it has text'),
        ({"question": "a", "plan": 1}, 'line 2: it must have "text" or "prompt"; it has question'),
        ({"text": "a", "arm": 1}, 'line 2: it must have "plan" or "drafter"; it has text, arm'),
        ({"text": 3, "plan": 1}, "line 2: its text is 3"),
        ({"text": "a", "plan": 5}, r"line 2: plan 5 is not one of the 5 plans 0\.\.4"),
        ({"text": "a", "plan": -1}, "line 2: plan -1"),
        ({"text": "a", "plan": True}, "line 2: plan True"),
        ({"text": "a", "plan": "sql"}, "line 2: plan 'sql'"),
        ({"text": "a", "drafter": "latin"}, "line 2: .*'latin'.*: none, sql, code, prose"),
        ({"text": "a", "drafter": ["sql"]}, "line 2: unknown drafter"),
    ],
)
def test_a_line_of_examples_that_does_not_parse_is_named(
    tmp_path: Path, line: object, says: str
) -> None:
    path = write(tmp_path / "examples.jsonl", [{"text": "fine", "plan": 0}, line])
    with pytest.raises(DraftwiseError, match=says):
        make_policy(f"router:examples={path}", len(PLANS), plans=PLANS)


def test_a_file_of_examples_that_is_of_no_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match=r"missing\.jsonl: No such file"):
        make_policy(f"router:examples={tmp_path / 'missing.jsonl'}", 2)
    with pytest.raises(DraftwiseError, match="no example"):
        make_policy(f"router:examples={write(tmp_path / 'empty.jsonl', [''])}", 2)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"text": "ok", "plan": 0}\n{"text": "na\xefve", "plan": 0}\n')
    with pytest.raises(DraftwiseError, match="line 2"):
        make_policy(f"router:examples={latin}", 2)
    named = write(tmp_path / "named.jsonl", [{"text": "a", "drafter": "sql"}])
    with pytest.raises(DraftwiseError, match=r'line 1: .*write "plan"'):
        make_policy(f"router:examples={named}", 2)


def test_draft_all_names_one_plan_and_learns_from_all() -> None:
    policy = DraftAll(3)
    assert policy.choose().plan == 0
    policy.learn(policy.choose(), Feedback(np.array([0.1, 0.9, 0.5]), np.ones(3, dtype=bool)))
    assert policy.estimates().tolist() == [0.1, 0.9, 0.5]


def test_a_plan_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.2"):
        Router(3, plan=3)


def test_without_the_lab_their_names_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    for name in LAB_POLICIES:
        with pytest.raises(DraftwiseError, match=f"^policy {name} needs the lab: pip install"):
            make_policy(name, 2)
