"""Counts the host's reads per round: at most two, and one more with probes.

A draft of fixed length is read once, when it is complete; a second read brings the accepted tokens,
the scores and the rest of the round's results. Where a stop rule or a mixer must see each token,
there is one read a drafted token for all rows together.
"""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.speculator import Speculator
from draftwise.types import SamplingParams, TreeShape
from engine.pairs import PROMPTS, speculator
from transfers import counting

TREE = TreeShape(3, 7)
KINDS: dict[str, tuple[list[str], TreeShape | None]] = {
    "lm": (["good"], None),
    "eagle": (["eagle"], None),
    "lookup": (["lookup"], None),
    "suffix": (["suffix"], None),
    "tree of an lm": (["good"], TREE),
    "tree of an eagle": (["eagle"], TREE),
    "tree of a suffix": (["suffix"], TREE),
    "two lms": (["good", "bad"], None),
}
WARPS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(0.9, 20, 0.95),
    "penalised": SamplingParams(0.9, 20, 0.95, 1.2, presence_penalty=0.1),
}

CELLS = pytest.mark.parametrize(
    ("warp", "num_rows"), [("greedy", 8), ("sampled", 1), ("penalised", 8)]
)


def looks_of_rounds(
    made: Speculator, sampling: SamplingParams, num_rows: int, num: int = 5, **options: Any
) -> list[tuple[int, Any, list[Any]]]:
    """For rounds with all rows running: the transfers, their places, and the rounds' records."""
    engine = made.engine()
    for seed in range(num_rows):
        prompt = PROMPTS[seed % len(PROMPTS)]
        engine.admit(
            made.request(prompt, max_new_tokens=60, seed=seed, sampling=sampling, **options)
        )
    while len(engine.step()) < num_rows:
        pass
    found = []
    for _ in range(num):
        with counting() as transfers:
            records = [output.round for output in engine.step() if output.round]
        found.append((transfers.num, dict(transfers.places), records))
    engine.close()
    return found


@CELLS
@pytest.mark.parametrize("kind", KINDS)
def test_fixed_drafts_are_looked_at_twice_a_round(kind: str, warp: str, num_rows: int) -> None:
    pool, tree = KINDS[kind]
    policy = "random" if kind == "two lms" else "fixed:0"
    made = speculator(pool, policy, lengths=(4,), trees=(tree,), with_none=False)
    found = looks_of_rounds(made, WARPS[warp], num_rows, num=12 if num_rows == 1 else 5)
    assert max(num for num, _, _ in found) <= 2, [places for _, places, _ in found]
    if num_rows > 1 or not {"lookup", "suffix"} & {*pool}:  # a row alone may have no match
        assert sum(r.num_drafted for _, _, records in found for r in records) >= 4


@CELLS
def test_plain_decoding_is_looked_at_once(warp: str, num_rows: int) -> None:
    made = speculator(["good"], "fixed:0", lengths=(4,))
    assert {num for num, _, _ in looks_of_rounds(made, WARPS[warp], num_rows)} == {1}


@CELLS
def test_the_default_looks_twice_and_once_a_drafted_token(warp: str, num_rows: int) -> None:
    made = speculator(["good", "bad", "lookup", "suffix"], "goodput", lengths=(1, 2, 4, 8))
    for num, places, records in looks_of_rounds(made, WARPS[warp], num_rows, 10):
        assert num <= 2 + max(record.num_drafted for record in records), places


@pytest.mark.parametrize("rule", ["svip", "max-confidence:0.3"])
def test_a_rule_looks_once_a_token_for_all_rows_together(rule: str) -> None:
    made = speculator(["good"], "fixed:0", rules=(rule,), lengths=(6,), with_none=False)
    for num, places, records in looks_of_rounds(made, WARPS["sampled"], 8):
        assert num <= 1 + max(record.num_drafted for record in records), places


@pytest.mark.parametrize("warp", WARPS)
def test_logprobs_cost_no_look_of_their_own(warp: str) -> None:
    made = speculator(["good"], "fixed:0", lengths=(4,), with_none=False)
    found = looks_of_rounds(made, WARPS[warp], 3, logprobs=3)
    assert max(num for num, _, _ in found) <= 2, [places for _, places, _ in found]
