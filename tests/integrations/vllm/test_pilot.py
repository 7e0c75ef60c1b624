"""The adapter against a fake of the methods of vLLM that it wraps."""

from __future__ import annotations

import random

import pytest

from draftwise.integrations.vllm import Options
from integrations.vllm.fakes import FakeEngine, FakeRequest, params

CYCLE = [5, 9, 2, 7, 7, 1, 3]


def repeats(text: list[int]) -> int:
    """Goes round a cycle by position: retrieval is right once it has come round."""
    return CYCLE[len(text) % len(CYCLE)]


def noise(text: list[int]) -> int:
    """Nothing can be drafted."""
    return random.Random(hash(tuple(text[-3:])) ^ len(text)).randrange(50_000)


def requests(num: int, max_tokens: int = 60) -> list[FakeRequest]:
    return [
        FakeRequest(f"r{i}", [(i + j) % 11 for j in range(20 + i)], max_tokens) for i in range(num)
    ]


def plain(model, request: FakeRequest) -> list[int]:
    text = list(request.prompt_token_ids)
    while len(text) < len(request.prompt_token_ids) + request.max_tokens:
        text.append(model(text))
    return text[len(request.prompt_token_ids) :]


@pytest.mark.parametrize("policy", ["goodput", "ucbspec", "fixed:3", "fixed:19", "random"])
@pytest.mark.parametrize("drafter", [None, repeats, lambda text: 0])
def test_outputs_are_those_of_plain_decoding(policy, drafter) -> None:
    def model(text: list[int]) -> int:
        return repeats(text) if len(text) % 9 else noise(text)

    if drafter is None and policy == "fixed:19":
        policy = "fixed:12"  # without a drafter of vLLM's there are 17 plans
    engine = FakeEngine(model, Options(policy=policy, state=None), drafter)
    for request in requests(3, max_tokens=40):
        engine.add(request)
    expected = {request.request_id: plain(model, request) for request in requests(3, 40)}
    assert engine.run() == expected
    assert not engine.controller.rows


def test_retrieval_saves_steps_where_text_repeats() -> None:
    engine = FakeEngine(repeats)
    engine.add(requests(1, max_tokens=120)[0])
    engine.run()
    assert len(engine.steps) < 40


def test_a_perfect_drafter_of_vllms_is_played_and_a_useless_one_is_given_up() -> None:
    def dear(rows: int, tokens: int, drafted: int) -> float:
        return 1.0 + 0.02 * tokens + 0.1 * drafted

    steps = {}
    for name, drafter in {"perfect": noise, "useless": lambda text: 0}.items():
        engine = FakeEngine(noise, None, drafter, dear)
        for request in requests(2, max_tokens=120):
            engine.add(request)
        engine.run()
        steps[name] = engine
    assert len(steps["perfect"].steps) < 60
    assert sum(steps["useless"].drafted[-50:]) < 25


def test_the_batch_drafts_less_where_a_token_is_dear() -> None:
    totals = {}
    for price in (0.0, 0.4):
        engine = FakeEngine(
            lambda text: CYCLE[len(text) % 7] if len(text) % 5 else noise(text),
            cost=lambda rows, tokens, drafted, c=price: 1.0 + c * tokens,
        )
        for request in requests(8, max_tokens=80):
            engine.add(request)
        engine.run()
        totals[price] = sum(total for _, total, _ in engine.steps)
    assert totals[0.4] < 0.8 * totals[0.0]


def test_many_requests_do_not_all_draft_before_a_token_has_a_price() -> None:
    """The first draft of sixteen is a probe of eight tokens, and not one of all they may draft."""
    drafted = {}
    for policy in ("goodput", "fixed:16"):
        engine = FakeEngine(
            repeats, Options(policy=policy, state=None), longest=16, cost=lambda *_: 1.0
        )
        for request in requests(16, max_tokens=120):
            engine.add(request)
        engine.run(6)
        drafted[policy] = [total - rows for rows, total, _ in engine.steps[1:]]
    assert drafted["goodput"] == [8, 0, 16, 32, 64]
    assert min(drafted["fixed:16"]) > 128  # a policy without prices drafts as it is told


def test_where_nothing_can_be_drafted_hardly_anything_is_lost() -> None:
    """Steps are noisy, some length always looks cheap; and short matches lie everywhere."""
    clock, rng = random.Random(2), random.Random(5)
    texts = [
        [rng.randrange(40 if rng.random() < 0.5 else 5000) for _ in range(120)] for _ in "x" * 32
    ]

    def seconds(rows: int, tokens: int) -> float:
        return 0.08 + 0.003 * rows + 0.004 * (tokens - rows)

    engine = FakeEngine(
        lambda text: texts[text[0] - 9000][len(text)],
        cost=lambda rows, tokens, drafted: seconds(rows, tokens) * clock.uniform(0.8, 1.2),
        longest=16, chunk=1 << 20,
    )  # fmt: skip
    lost = plain = 0.0
    for first in (0, 16):
        for i in range(first, first + 16):
            engine.add(FakeRequest(f"r{i}", [9000 + i, *texts[i][1:70]], 48))
        engine.step()
        while engine.requests:
            rows = len(engine.requests)
            engine.step()
            _, total, _ = engine.steps[-1]
            plain += seconds(rows, rows)
            lost += seconds(rows, total) - seconds(rows, rows)
    assert lost < 0.01 * plain


def test_the_token_budget_is_kept() -> None:
    engine = FakeEngine(repeats, Options(policy="fixed:8", state=None), budget=20)
    for request in requests(6, max_tokens=60):
        engine.add(request)
    for _ in range(5):
        engine.step()
    while engine.requests:
        engine.step()
        drafted = sum(len(request.spec_token_ids) for request in engine.requests.values())
        assert drafted + len(engine.requests) <= 20


@pytest.mark.parametrize(
    ("given", "drafts"),
    [
        ({}, True),
        ({"presence_penalty": 0.5}, True),
        ({"min_p": 0.1}, False),
        ({"logit_bias": {3: 1.0}}, False),
    ],
)
def test_requests_that_vllm_cannot_verify_play_none(given, drafts) -> None:
    engine = FakeEngine(repeats)
    request = requests(1)[0]
    request.sampling_params = params(**given)
    engine.add(request)
    assert engine.run() == {"r0": plain(repeats, request)}
    assert (max(total for _, total, _ in engine.steps[2:]) > 1) == drafts


@pytest.mark.parametrize(
    "given",
    [{"repetition_penalty": 1.3}, {"bad_words": ["no"]}, {"min_tokens": 3}, {"guided": True}],
)
def test_private_requests_teach_no_other(given) -> None:
    """After such an answer the shared history is empty, and the next request begins anew."""
    engine = FakeEngine(repeats, Options(drafters=("suffix",), state=None))
    (drafter,) = engine.controller._arms._drafters
    is_guided = given.pop("guided", False)
    engine.add(FakeRequest("a", [40, 41, 42], 30, params(**given), use_structured_output=is_guided))
    engine.run()
    assert not drafter.num_shared_tokens
    assert engine.controller.state()["policy"] is None
    engine.add(FakeRequest("a", [40, 41, 42], 30))
    engine.run()
    assert drafter.num_shared_tokens
    assert engine.controller.state()["policy"] is not None


def test_a_request_begins_with_what_the_last_one_knew() -> None:
    """Useless drafts of vLLM's are tried by the first request, and hardly by the next."""
    engine = FakeEngine(
        noise, None, lambda text: 0, lambda rows, tokens, drafted: 1.0 + 0.3 * drafted
    )
    drafted = []
    for name in ("a", "b"):
        engine.add(FakeRequest(name, [3, 4, 5], 24))
        engine.run()
        drafted.append(sum(engine.drafted))
        engine.drafted.clear()
    assert drafted[1] < drafted[0]
    again = FakeEngine(noise, None, lambda text: 0)
    again.controller.load_state(engine.controller.state())
    assert again.controller.state()["policy"] == engine.controller.state()["policy"]


def test_cancelled_requests_leave_nothing_behind() -> None:
    engine = FakeEngine(repeats)
    for request in requests(4):
        engine.add(request)
    for _ in range(4):
        engine.step()
    assert len(engine.controller.rows) == 4
    for id_ in ("r0", "r2"):
        del engine.requests[id_]
    engine.step()
    assert set(engine.controller.rows) == {"r1", "r3"}
    engine.run()
    assert not engine.controller.rows


def test_a_text_that_changed_begins_anew() -> None:
    """A preempted request keeps its text; a session whose prompt grew is read again."""
    engine = FakeEngine(repeats)
    request = requests(1, max_tokens=100)[0]
    engine.add(request)
    for _ in range(4):
        engine.step()
    request.output += [4, 4, 4]
    request.spec_token_ids = []
    engine.step()
    assert engine.controller.rows["r0"].context.tokens == request.all_token_ids
    engine.run()
