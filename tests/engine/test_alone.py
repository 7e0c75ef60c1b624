"""A fault of one request or drafter leaves the answers of others unchanged.

A healthy greedy request runs next to one whose parts raise or return invalid values.
"""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import Speculator
from draftwise.engine.deciders import Bandits
from draftwise.engine.request import Request
from draftwise.registry import Preset
from draftwise.types import Decision, DraftwiseError, SamplingParams, Scores, TreeShape
from engine.faults import NONSENSE, Faulty, Odd, each, raising
from engine.pairs import POOLS, PROMPTS, drafters, plain_greedy, run, speculator, target

LONG = [*range(1, 60)]
NUM = 16


def beside(made: Speculator, spoil: Callable[[Request], None], **options: Any) -> Request:
    """Run a faulty request next to a healthy one, and check the healthy one's answer."""
    engine = made.engine()
    sound = made.request(PROMPTS[0], max_new_tokens=NUM)
    spoilt = made.request(PROMPTS[3], max_new_tokens=NUM, **options)
    spoil(spoilt)
    engine.admit(sound)
    engine.step()
    run(engine, spoilt)
    assert sound.tokens == plain_greedy(PROMPTS[0], NUM)
    assert sound.answer.finish_reason == "length"
    return spoilt


@pytest.mark.parametrize("policy", ["random", "goodput"])
@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("choose", raising),
        ("choose", None),
        ("choose", 1),
        ("choose", Decision(99, 1.0, 1)),
        ("choose", Decision(0, float("nan"), 1)),
        ("choose", Decision("a", 1.0, 1)),  # type: ignore[arg-type]
        ("learn", raising),
        ("drafters_to_probe", raising),
        ("drafters_to_probe", 5),
        ("estimates", raising),
        ("estimates", None),
        ("estimates", np.zeros(99)),
    ],
)
def test_a_policy_that_fails_drafts_no_more(policy: str, method: str, answer: Any) -> None:
    made = speculator(POOLS["all"], policy)

    def spoil(request: Request) -> None:
        request.decider.policy = Faulty(request.decider.policy, method, answer)  # type: ignore[assignment]

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        spoilt = beside(made, spoil)
    assert spoilt.tokens == plain_greedy(PROMPTS[3], NUM)
    assert spoilt.answer.finish_reason == "length"
    assert len(said) <= 1


@pytest.mark.parametrize("method", ["reveal", "flush", "panoramic"])
def test_feedback_that_fails_ends_the_drafts_of_its_request(method: str) -> None:
    made = speculator(POOLS["all"])

    def spoil(request: Request) -> None:
        assert isinstance(request.decider, Bandits)

        class Broken:
            def __getattr__(self, name: str) -> Any:
                return raising() if name == method else getattr(sound, name)

        sound, request.decider.feedback = request.decider.feedback, Broken()

    with pytest.warns(UserWarning, match="continues without drafts"):
        spoilt = beside(made, spoil)
    assert spoilt.tokens == plain_greedy(PROMPTS[3], NUM)


@pytest.mark.parametrize("reward", [raising, lambda outcome: "high", lambda outcome: 7.0])
def test_a_reward_that_fails(reward: Any) -> None:
    made = speculator(POOLS["all"], "ucb1")

    def spoil(request: Request) -> None:
        assert isinstance(request.decider, Bandits)
        request.decider.feedback._evaluator.reward = reward  # type: ignore[attr-defined]

    with pytest.warns(UserWarning, match="continues without drafts"):
        assert beside(made, spoil).tokens == plain_greedy(PROMPTS[3], NUM)


def test_biases_are_those_that_were_given() -> None:
    """Changing the caller's bias table after the call affects neither that request nor others."""
    made = speculator(["good"], "fixed:2")
    bias: dict[int, float] = {1: 1.0}
    alone = made.generate(PROMPTS[3], max_new_tokens=NUM, logit_bias=dict(bias))
    engine = made.engine()
    edited = made.request(PROMPTS[3], max_new_tokens=NUM, sampling=SamplingParams(logit_bias=bias))
    engine.admit(edited)
    engine.step()
    bias[10**6] = 1.0
    sound = made.request(PROMPTS[0], max_new_tokens=NUM)
    run(engine, sound)
    assert edited.tokens == alone.tokens
    assert sound.tokens == plain_greedy(PROMPTS[0], NUM)
    assert sound.stats.num_drafted


def test_process_is_asked_about_whole_prompts_only() -> None:
    seen: list[int] = []

    def process(text: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(len(text))
        return logits

    for policy in ("random", "goodput"):
        made = speculator(POOLS["all"], policy, feedback="free")
        result = made.generate(
            LONG[:20], max_new_tokens=5, sampling=[SamplingParams(process=process)]
        )
        assert result.tokens == plain_greedy(LONG[:20], 5)
    assert min(seen) == 20


@pytest.mark.parametrize("fault", ["seat", "read"])
def test_a_request_that_cannot_be_seated_or_read_ends_alone(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = speculator(POOLS["all"])
    engine = made.engine()
    prompts = [LONG, [3, *LONG], [5, *LONG]]
    requests = [made.request(prompt, max_new_tokens=NUM) for prompt in prompts]
    if fault == "seat":
        find = engine._prefix_cache.find

        def refusing(context: Any, running: Any) -> Any:
            if context is requests[1].context:
                raise RuntimeError("out of memory")
            return find(context, running)

        monkeypatch.setattr(engine._prefix_cache, "find", refusing)
    else:
        extend = made.target.extend

        def failing(cache: Any, rows: Any, tokens: Any, *more: Any) -> Any:
            if any(list(fed[:2]) == [3, 1] for fed in tokens):
                raise RuntimeError("out of memory")
            return extend(cache, rows, tokens, *more)

        monkeypatch.setattr(made.target, "extend", failing)
    run(engine, *requests)
    assert [r.answer.finish_reason for r in requests] == ["length", "error", "length"]
    for request, prompt in zip(requests[::2], prompts[::2], strict=True):
        assert request.tokens == plain_greedy(prompt, NUM)
    engine.close()
    assert engine.num_cache_bytes == 0


def test_an_answer_that_the_garbage_collector_finds_disturbs_no_other() -> None:
    """An abandoned answer in a reference cycle may be collected in the middle of a forward."""
    made = speculator(POOLS["all"])
    extend = made.target.extend
    generation = made.start(LONG, max_new_tokens=60)
    next(generation)
    holder: dict[str, Any] = {"generation": generation}
    holder["self"] = holder
    del generation, holder

    forwards = itertools.count()

    def collecting(*given: Any, **options: Any) -> Any:
        if next(forwards) < 4:
            gc.collect()
        return extend(*given, **options)

    made.target.extend = collecting  # type: ignore[method-assign]
    try:
        assert made.generate(PROMPTS[0], max_new_tokens=NUM).tokens == plain_greedy(PROMPTS[0], NUM)
    finally:
        del made.target.extend
    assert not made._engine.has_work  # type: ignore[union-attr]


def test_threads_may_share_a_speculator() -> None:
    made, found = speculator(POOLS["all"]), dict[int, list[list[int]]]()

    def ask(number: int) -> None:
        answers = []
        for turn in range(3):
            prompt = PROMPTS[(number + turn) % len(PROMPTS)]
            if number % 2:
                answers.append(made.generate(prompt, max_new_tokens=NUM).tokens)
            else:
                rounds = [round_ for _, round_ in made.stream(prompt, max_new_tokens=NUM)]
                answers.append([token for round_ in rounds for token in round_.tokens])
        found[number] = answers

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        expected = [plain_greedy(PROMPTS[(number + t) % len(PROMPTS)], NUM) for t in range(3)]
        assert found[number] == expected


def test_a_callback_that_asks_its_own_speculator_is_told_what_to_do_instead() -> None:
    made = speculator(POOLS["all"])

    def asks(tokens: Sequence[int]) -> bool:
        return bool(made.generate(PROMPTS[1], max_new_tokens=2).tokens)

    engine = made.engine()
    made._engine = engine
    asking = made.request(PROMPTS[0], max_new_tokens=NUM, stop_when=asks)
    sound = made.request(PROMPTS[3], max_new_tokens=NUM)
    run(engine, asking, sound)
    assert isinstance(asking.error, DraftwiseError)
    assert "another Speculator" in str(asking.error)
    assert sound.tokens == plain_greedy(PROMPTS[3], NUM)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", NONSENSE)
def test_a_drafter_that_returns_nonsense_is_left_out_with_one_warning(
    kind: str, temperature: float
) -> None:
    pool = [Odd(NONSENSE[kind]), *drafters(["good"])]
    setting = Preset("random", "length", "free", (2, 4), True)
    made = Speculator(target(), None, pool, setting, seed=0)
    with pytest.warns(UserWarning, match="drafter odd returned nonsense") as said:
        results = made.generate(PROMPTS, max_new_tokens=NUM, temperature=temperature, seed=1)
    assert len(said) == 1
    assert [result.finish_reason for result in results] == ["length"] * 4
    if temperature == 0:
        assert [r.tokens for r in results] == [plain_greedy(p, NUM) for p in PROMPTS]
    assert all("odd" not in result.sources for result in results)
    assert any("good" in result.sources for result in results)


def scores(alphas: Any, ratios: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda found: [Scores(3, alphas, ratios) for _ in found]


@pytest.mark.parametrize(
    ("spoil", "is_left_out"),
    [
        (lambda found: [], True),
        (lambda found: ["x"] * len(found), True),
        (scores(np.zeros(2), np.zeros(3)), True),
        (scores([0.5], [0.5]), True),
        (scores(np.array([np.nan]), np.array([5.0])), False),  # p may be at fault
    ],
)
def test_scores_that_are_nonsense(spoil: Any, is_left_out: bool) -> None:
    pool = [Odd(spoil, "score"), *drafters(["good"])]
    made = Speculator(
        target(), None, pool, Preset("goodput", "length", "free", (2, 4), True), seed=0
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = made.generate(PROMPTS, max_new_tokens=NUM)
    assert [r.tokens for r in results] == [plain_greedy(p, NUM) for p in PROMPTS]
    assert [str(one.message)[:12] for one in said] == ["drafter odd "] * is_left_out


def test_prefixes_are_shared_within_a_tenant_and_never_of_private_texts() -> None:
    made = speculator(POOLS["lookup"])
    engine = made.engine()

    def hits(tenant: str, **options: Any) -> int:
        before = engine.num_prefix_hits
        request = made.request(LONG, max_new_tokens=3, **options)
        request.context.tenant = tenant
        run(engine, request)
        assert request.tokens == plain_greedy(LONG, 3)
        return engine.num_prefix_hits - before

    assert [hits("a", private=True), hits("a"), hits("b")] == [0, 0, 0]
    assert [hits("a"), hits("b")] == [1, 1]
    assert [hits("a", private=True), hits("a"), hits("b")] == [1, 1, 1]


def test_who_waits_for_a_shared_prompt_keeps_its_place_before_lower_ones() -> None:
    made = speculator(POOLS["lookup"])
    engine = made.engine(max_rows=3)
    shared = LONG * 6
    engine.admit(made.request([7], max_new_tokens=200))
    engine.step()
    first = made.request(shared, max_new_tokens=4)
    engine.admit(first)
    engine.step()
    assert not first.stats.num_rounds
    high = made.request([*shared, 3], max_new_tokens=4, priority=10)
    low = made.request([9, 8, 7], max_new_tokens=100, priority=-10)
    engine.admit(high)
    engine.admit(low)
    while not high.is_over:
        engine.step()
    assert not low.is_over
    assert engine.num_prefix_hits == 1
    run(engine)
    assert high.tokens == plain_greedy([*shared, 3], 4)


def test_trees_are_checked_too() -> None:
    setting = Preset("random", "length", "free", (2,), True, trees=(TreeShape(2, 4),))
    spoil = each(tokens=np.array([5, 9]), parents=np.array([-1, 1]))
    branching = Odd(spoil)
    branching.can_branch = True  # type: ignore[misc]
    made = Speculator(target(), None, [branching], setting, seed=0)
    with pytest.warns(UserWarning, match="parent does not come before"):
        result = made.generate(PROMPTS[0], max_new_tokens=NUM)
    assert result.tokens == plain_greedy(PROMPTS[0], NUM)
