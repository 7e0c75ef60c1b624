"""A row of a batch equals the request alone: same tokens, same randomness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise.drafters.lm import LMDrafter
from draftwise.engine.engine import Generation
from draftwise.engine.options import RequestParams
from draftwise.engine.outputs import Ending
from draftwise.nn.cache import BLOCK
from draftwise.nn.model import CausalModel
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, SamplingParams, TreeShape
from engine.pairs import BUDGETS, POOLS, PROMPTS, plain_greedy, reader, speculator, target
from engine.scripted import byte_tokenizer
from models import near_copy

SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=1.1)
OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0}


def run(made: Speculator, rows: list[int], params: SamplingParams) -> list[tuple[Any, ...]]:
    """Run requests together, each with the random streams of its number."""
    streams = np.random.SeedSequence(5).spawn(len(PROMPTS))
    requests = [
        made._learning.request(
            PROMPTS[row], RequestParams(sampling=params), Ending(BUDGETS[row] + 8), streams[row]
        )
        for i, row in enumerate(rows)
    ]
    generation = Generation(made.engine(num_prefixes=0), requests, None)
    list(generation)
    return [(r.tokens, r.sources, dict(r.stats.pulls)) for r in generation.results()]


COOL = SamplingParams(temperature=0.7)


@pytest.mark.parametrize(
    ("policy", "params"), [("random", COOL), ("exp3spec", SAMPLED), ("ucb1", SamplingParams())]
)
@pytest.mark.parametrize("pool", ["all", "eagle", "eagle+good+lookup"])
def test_a_row_is_the_same_alone_and_in_any_company(
    pool: str, policy: str, params: SamplingParams
) -> None:
    """Tokens, their sources and the plans played are equal; the policies here use no clock."""
    made = speculator(POOLS[pool], policy, trees=(None, TreeShape(3, 8)))
    alone = [run(made, [row], params)[0] for row in range(4)]
    assert run(made, [0, 1, 2, 3], params) == alone
    assert run(made, [2, 0], params) == [alone[2], alone[0]]


def test_rows_with_their_own_sampling() -> None:
    made = speculator(POOLS["all"])
    sampling = [SamplingParams(), SAMPLED, SamplingParams(repetition_penalty=1.4), SAMPLED]
    results = made.generate(PROMPTS, max_new_tokens=12, sampling=sampling)
    assert results[0].tokens == plain_greedy(PROMPTS[0], 12)
    assert results[2].tokens == plain_greedy(PROMPTS[2], 12, penalty=1.4)
    assert results[1].tokens != plain_greedy(PROMPTS[1], 12)


def test_same_seed_same_tokens() -> None:
    made = speculator(POOLS["all"])
    first, again, other = (made.generate(PROMPTS, seed=seed, **OPTIONS) for seed in (3, 3, 4))
    assert [r.tokens for r in first] == [r.tokens for r in again]
    assert [r.tokens for r in first] != [r.tokens for r in other]
    assert len({tuple(r.tokens) for r in made.generate([PROMPTS[0]] * 4, **OPTIONS)}) == 4


def test_the_default_policy_repeats_itself_where_it_is_told_to() -> None:
    """By default measured times price plans, so a seed fixes the distribution, not the tokens."""
    options = {"max_new_tokens": 40, "temperature": 1.0, "seed": 3}
    made = [speculator(POOLS["all"], "goodput", deterministic=True) for _ in range(2)]
    first, again = (each.generate(PROMPTS[0], **options) for each in made)
    third = made[0].generate(PROMPTS[0], **options)
    assert first.tokens == again.tokens == third.tokens
    assert first.stats.pulls == again.stats.pulls == third.stats.pulls
    assert set(first.stats.pulls) != {"none"}


def test_a_seed_of_its_own_makes_a_row_what_it_would_be_alone() -> None:
    made = speculator(POOLS["all"])
    rows = made.generate(PROMPTS[:3], seed=[7, 8, 9], **OPTIONS)
    alone = [made.generate(PROMPTS[i], seed=7 + i, **OPTIONS) for i in range(3)]
    assert [r.tokens for r in rows] == [r.tokens for r in alone]
    with pytest.raises(DraftwiseError, match="2 seeds for 3 prompts"):
        made.start(PROMPTS[:3], seed=[1, 2])


@pytest.mark.parametrize(("scope", "num"), [("request", 4), ("session", 1)])
def test_who_shares_a_policy(scope: str, num: int) -> None:
    made = speculator(POOLS["all"], "ucb1", scope=scope)
    generation = made.start(PROMPTS, max_new_tokens=3)
    assert len({id(request.decider.policy) for request in generation._requests}) == num
    later = made.start(PROMPTS[0], max_new_tokens=3)
    is_shared = later._requests[0].decider.policy is generation._requests[0].decider.policy
    assert is_shared == (scope == "session")


def test_a_drafter_that_lags_far_behind_joins_one_that_does_not() -> None:
    """Catching up makes one row's input wide, which must not overrun the other row's storage."""
    made = speculator(["good", "lookup"], "fixed:1", lengths=(2,), with_none=False)
    plans = {"row that plays": [0] * 40, "row that waits": [1] * 6 + [0] * 40}
    from engine.scripted import Playlist

    generation = made.start([PROMPTS[2] * 2, PROMPTS[0] * 3], max_new_tokens=12)
    for request, played in zip(generation._requests, plans.values(), strict=True):
        request.decider.policy = Playlist(played, 2)
    list(generation)
    found = [result.tokens for result in generation.results()]
    assert found == [plain_greedy(PROMPTS[2] * 2, 12), plain_greedy(PROMPTS[0] * 3, 12)]


def test_storage_follows_the_text() -> None:
    """800 tokens: keys and values of two layers, one row, two heads of eight floats."""
    module = reader(max_position_embeddings=1024)
    made = Speculator.from_pretrained(
        module, [near_copy(module, 0.04)], policy="fixed:1", lengths=[8]
    )
    generation = made.start(PROMPTS[0], max_new_tokens=800)
    per_token = 2 * 2 * 2 * 8 * 4
    for round_ in generation:
        request = generation._requests[0]
        if request.is_over:  # its row is given back
            continue
        text, row = len(PROMPTS[0]) + len(request.tokens), request.context.row
        assert generation._engine._cache.lengths[row] == text - 1, round_.round
        assert generation._engine.num_cache_bytes <= per_token * (1.2 * text + BLOCK)
    (result,) = generation.results()
    assert len(result.tokens) == 800
    assert result.stats.mean_accepted_tokens > 1.5


def test_a_drafter_of_few_positions_drafts_up_to_them() -> None:
    short = reader(max_position_embeddings=32)
    short.load_state_dict(near_copy(target().module, 0.02).state_dict())
    pool = [LMDrafter("short", CausalModel(short, "short"), target())]
    made = Speculator(target(), None, pool, speculator(["lookup"], "fixed:1").setting)
    result = made.generate(PROMPTS[2], max_new_tokens=44)
    assert result.tokens == plain_greedy(PROMPTS[2], 44)
    assert 0 < result.stats.num_drafted < 20


def test_the_router_sends_each_prompt_of_a_batch_to_its_plan(tmp_path: Path) -> None:
    examples = tmp_path / "examples.jsonl"
    lines = [{"text": "abacabad", "plan": 1}, {"text": "xyzxzyyx", "plan": 2}]
    examples.write_text("\n".join(json.dumps(line) for line in lines))
    made = speculator(
        ["good", "bad"],
        f"router:examples={examples}",
        lengths=(2,),
        tokenizer=byte_tokenizer(),
    )
    results = made.generate(["zyxyzx", "abacab"], max_new_tokens=8)
    assert [set(result.stats.pulls) for result in results] == [{"bad"}, {"good"}]
