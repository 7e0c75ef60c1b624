"""The adapter and the controller against a stub of the wrapped methods of vLLM."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest

from draftwise.controller.costs import Step
from integrations.vllm.fakes import FakeEngine, FakeRequest, params

CYCLE = [5, 9, 2, 7, 7, 1, 3]


def repeats(text: list[int]) -> int:
    """A repeating cycle by position: retrieval is right from the second repetition on."""
    return CYCLE[len(text) % len(CYCLE)]


def noise(text: list[int]) -> int:
    """A text in which nothing can be drafted."""
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


def dear(rows: int, tokens: int, drafted: int) -> float:
    """Seconds of a step: 0.02 a token, and 0.1 a draft step of the model drafter."""
    return 1.0 + 0.02 * tokens + 0.1 * drafted


@pytest.mark.parametrize("drafter", [None, repeats, lambda text: 0])
@pytest.mark.parametrize("chunk", [8, 64])
def test_outputs_are_those_of_plain_decoding(drafter, chunk) -> None:
    def model(text: list[int]) -> int:
        return repeats(text) if len(text) % 9 else noise(text)

    engine = FakeEngine(model, drafter, chunk=chunk)
    for request in requests(3, max_tokens=40):
        engine.add(request)
    expected = {request.request_id: plain(model, request) for request in requests(3, 40)}
    assert engine.run() == expected
    assert engine.adapter.num_running == 0
    assert any(drafts for drafts in engine.verified.values())


def test_retrieval_saves_steps_where_text_repeats() -> None:
    engine = FakeEngine(repeats)
    engine.add(requests(1, max_tokens=120)[0])
    engine.run()
    assert len(engine.steps) < 40
    counts = engine.adapter.counts
    assert counts.accepted["retrieval"] > 70
    assert counts.emitted == 119  # the first token is emitted by the prefill
    assert counts.rounds == len(engine.steps) - 1


def test_a_perfect_drafter_of_vllms_is_used_and_a_useless_one_is_given_up() -> None:
    steps = {}
    for name, drafter in {"perfect": noise, "useless": lambda text: 0}.items():
        engine = FakeEngine(noise, drafter, dear)
        for request in requests(2, max_tokens=300):
            engine.add(request)
        engine.run()
        steps[name] = engine
    assert len(steps["perfect"].steps) < 150
    assert steps["perfect"].adapter.counts.accepted["model"] > 300
    assert sum(steps["useless"].drafted[-100:]) < 25


@pytest.mark.parametrize("slowness", [0.8, 1.0, 2.0, 3.0])
def test_the_drafter_is_priced_right_although_the_engine_was_cold(slowness: float) -> None:
    """The first 20 steps of the engine are slower."""
    steps = itertools.count()

    def cost(rows: int, tokens: int, drafted: int) -> float:
        return (1 + slowness * max(0, 1 - next(steps) / 20)) * (12 + 0.3 * tokens + 0.6 * drafted)

    def drafter(text: list[int]) -> int:
        return noise(text) if noise([*text, 1]) % 2 else 0

    engine = FakeEngine(noise, drafter, cost, longest=16)
    for request in requests(16, max_tokens=5000):
        engine.add(request)
    engine.run(300)
    assert 0.3 < engine.controller.costs.draft_seconds(1) < 1.2
    assert sum(engine.drafted[-100:]) < 120, "a second token does not pay"


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


def test_the_token_budget_is_kept() -> None:
    engine = FakeEngine(repeats, budget=20)
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
        ({"extra_args": {"speculation": 0}}, False),
        ({"extra_args": {"max_draft": 0}}, False),
        ({"extra_args": {"drafters": ["model"]}}, False),
        ({"extra_args": {"drafters": "retrieval"}}, True),
        ({"extra_args": {"max_draft": "many"}}, True),  # refused by the API server, ignored here
    ],
)
def test_who_is_drafted_for(given, drafts) -> None:
    engine = FakeEngine(repeats)
    request = requests(1)[0]
    request.sampling_params = params(**given)
    engine.add(request)
    assert engine.run() == {"r0": plain(repeats, request)}
    assert (max(total for _, total, _ in engine.steps[2:]) > 1) == drafts


def test_a_request_limits_its_own_drafts_and_no_others() -> None:
    engine = FakeEngine(repeats, repeats)
    for request, wishes in zip(
        requests(3, 200), ({"max_draft": 2}, {"drafters": ["retrieval"]}, {}), strict=True
    ):
        request.sampling_params = params(extra_args=wishes | {"label": f"task {len(wishes)}"})
        engine.add(request)
    engine.run()
    longest = {id_: max(map(len, drafts)) for id_, drafts in engine.verified.items()}
    assert longest["r0"] == 2
    assert longest["r1"] > 2
    assert longest["r2"] > 2
    labels = engine.adapter.counts.labels
    assert labels["task 1"].emitted == 2 * 199
    assert labels["task 0"].emitted == 199
    assert labels["task 1"].account.speed < labels["task 0"].account.speed


def test_who_may_not_use_the_model_drafter_does_not_get_its_tokens() -> None:
    engine = FakeEngine(noise, noise, dear)  # only the model drafter can be right
    for request, wishes in zip(requests(2, 200), ({"drafters": "retrieval"}, {}), strict=True):
        request.sampling_params = params(extra_args=wishes)
        engine.add(request)
    engine.run()
    assert engine.adapter.counts.accepted["model"] > 100
    kept = sum(map(len, engine.verified.get("r0", [])))
    assert kept < 20 < sum(map(len, engine.verified["r1"]))


SECRET = [500, 501, 502, 503, 504, 505, 506, 507, 508, 509]


def says_the_secret(text: list[int]) -> int:
    """Repeats the tokens of ``SECRET``, which stand for a tenant's text."""
    at = SECRET.index(text[-1]) if text[-1] in SECRET else -1
    return SECRET[(at + 1) % len(SECRET)]


def adapter_of(name: str) -> SimpleNamespace:
    return SimpleNamespace(lora_name=name, lora_int_id=len(name))


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        ({}, {}, True),
        ({"cache_salt": "a"}, {"cache_salt": "a"}, True),
        ({"cache_salt": "a"}, {"cache_salt": "b"}, False),
        ({"cache_salt": "a"}, {}, False),
        ({}, {"lora_request": adapter_of("sql")}, False),
        ({"lora_request": adapter_of("sql")}, {"lora_request": adapter_of("sql")}, True),
        ({"lora_request": adapter_of("sql")}, {"lora_request": adapter_of("chat")}, False),
        ({"sampling_params": params(extra_args={"private": 1})}, {}, False),
        ({"sampling_params": params(repetition_penalty=1.3)}, {}, False),
        ({"sampling_params": params(bad_words=["no"])}, {}, False),
        ({"sampling_params": params(min_tokens=3)}, {}, False),
        ({"use_structured_output": True}, {}, False),
    ],
)
def test_no_text_of_another_tenant_or_of_a_private_request_is_proposed(
    first, second, is_shared
) -> None:
    engine = FakeEngine(says_the_secret, cost=lambda rows, tokens, drafted: 1 + 0.01 * tokens)
    engine.add(FakeRequest("a", [500], 60, **first))
    engine.run()
    for number in range(3):  # a first step emits the first tokens of the secret
        engine.add(FakeRequest(f"b{number}", [1, 2, 3, 4, 500], 9, **second))
        engine.run()
    drafted = [
        token for n in range(3) for draft in engine.verified.get(f"b{n}", ()) for token in draft
    ]
    if not is_shared:  # later requests may draft from earlier answers of the same tenant
        drafted = [token for draft in engine.verified.get("b0", ()) for token in draft]
    assert any(token in SECRET for token in drafted) == is_shared


def test_after_new_weights_no_old_text_is_proposed() -> None:
    engine = FakeEngine(says_the_secret)
    engine.add(FakeRequest("a", [500], 60))
    engine.run()
    engine.add(FakeRequest("long", [1, 2, 3], 400))
    engine.step()
    engine.adapter.forget()
    engine.add(FakeRequest("b", [1, 2, 3, 4, 500], 9))
    while "b" in engine.requests:
        engine.step()
    assert "b" not in engine.verified
    engine.run()
    assert len(engine.outputs["long"]) == 400


def test_cancelled_requests_leave_nothing_behind() -> None:
    engine = FakeEngine(repeats)
    for request in requests(4):
        engine.add(request)
    for _ in range(4):
        engine.step()
    assert engine.adapter.num_running == 4
    for id_ in ("r0", "r2"):
        del engine.requests[id_]
    engine.step()
    assert [id_ in engine.controller for id_ in ("r0", "r1", "r2", "r3")] == [False, True] * 2
    engine.run()
    assert engine.adapter.num_running == 0


def test_a_text_that_changed_starts_over() -> None:
    """A request whose text changed between two steps must be indexed again."""
    engine = FakeEngine(repeats)
    request = requests(1, max_tokens=100)[0]
    engine.add(request)
    for _ in range(4):
        engine.step()
    request.output += [4, 4, 4]
    request.spec_token_ids = []
    engine.run()
    assert engine.outputs["r0"][-30:] == [repeats([0] * n) for n in range(90, 120)]
    assert engine.adapter.counts.accepted["retrieval"] > 40


def test_prices_are_learnt_while_prompts_are_read_all_the_time() -> None:
    """Every step contains prefill, so costs must be learned without steps that only decode."""

    def seconds(rows: int, tokens: int, drafted: int) -> float:
        return 0.01 + 1e-5 * tokens

    engine = FakeEngine(repeats, cost=seconds, chunk=32)
    for request in requests(2, max_tokens=400):
        engine.add(request)
    number = 0
    while any(f"r{i}" in engine.requests for i in range(2)):
        engine.add(FakeRequest(f"p{number}", list(range(100, 164)), 1))
        number += 1
        engine.step()
    costs = engine.controller.costs
    assert costs.is_known
    assert engine.adapter.counts.accepted["retrieval"] > 400
    assert engine.controller.guard.allows_drafts
    assert engine.controller.guard.speed > 1.5
    believed = float(costs.seconds(2, 800, 0, 0)[0]) + costs.prefill_seconds(2, 64)
    assert believed == pytest.approx(seconds(3, 66, 0), rel=0.03)


def test_one_slow_step_does_not_stop_drafting() -> None:
    """The first draft verification compiles a kernel and takes two hundred times a usual step."""
    slow = iter([2.0])

    def seconds(rows: int, tokens: int, drafted: int) -> float:
        return 0.01 + (next(slow, 0.0) if tokens > rows and rows else 0.0)

    engine = FakeEngine(repeats, cost=seconds, chunk=1 << 20)
    for request in requests(2, max_tokens=300):
        engine.add(request)
    engine.run()
    assert next(slow, None) is None
    assert len(engine.steps) < 150


def test_an_idle_engine_and_its_own_work_are_told_apart() -> None:
    engine = FakeEngine(repeats, cost=lambda rows, tokens, drafted: 0.01)
    choose, seen = engine.controller.choose, []

    def slow(*args):
        engine.now += 0.002
        return choose(*args)

    observe = engine.controller.observe

    def watched(step: Step, *args):
        seen.append(step)
        return observe(step, *args)

    engine.controller.choose, engine.controller.observe = slow, watched
    for name in ("a", "b"):
        engine.add(FakeRequest(name, list(range(20)), 30))
        engine.run()
        engine.now += 5.0  # no requests
    decoding = [step for step in seen if step.num_requests]
    assert all(step.seconds == pytest.approx(0.01) for step in decoding)
    assert {round(step.own_seconds, 6) for step in decoding} == {0.002}
    assert engine.adapter.counts.own_s == pytest.approx(0.002 * len(decoding))


@pytest.mark.parametrize("broken", ["observe", "choose", "begin", "work"])
def test_an_error_of_its_own_ends_drafting_and_not_the_server(broken, caplog) -> None:
    engine = FakeEngine(repeats, repeats)
    for request in requests(2, 60):
        engine.add(request)
    engine.run(8)

    def fails(*_args, **_given):
        raise RuntimeError("as no test foresaw")

    setattr(engine.controller, broken, fails)
    engine.add(FakeRequest("late", [1, 2, 3], 20))
    expected = {r.request_id: plain(repeats, r) for r in requests(2, 60)}
    expected["late"] = plain(repeats, FakeRequest("late", [1, 2, 3], 20))
    assert engine.run() == expected
    assert "nothing is drafted until the server is restarted" in caplog.text
    assert caplog.text.count("Traceback") == 1
    assert engine.drafted[-10:] == [0] * 10
