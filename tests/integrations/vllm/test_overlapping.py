"""Overlapping steps against a stub: a step's result arrives after the next is scheduled."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftwise.controller.controller import Controller, Limits
from draftwise.controller.costs import Step
from draftwise.controller.mixing import MODEL as BY_MODEL
from draftwise.controller.mixing import NOTHING as BY_NOBODY
from draftwise.controller.mixing import RETRIEVAL as BY_RETRIEVAL
from draftwise.controller.mixing import divide
from draftwise.integrations.vllm.ahead import NUM_FACTS, AsyncAdapter, Report, Reports
from draftwise.retrieval.index import PROMPT_TAIL
from integrations.vllm.fakes import params


class FakeAsync:
    """Schedules a step before the previous one's result arrives, as ``AsyncScheduler`` does.

    The model's drafts are zeros, and so is every token that accepts one. While ``repeats``, the
    device reports zeros by retrieval, too.
    """

    repeats = False

    def __init__(
        self, acceptance: float, token_s: float, num: int = 4, longest: int = 4,
        retrieval: bool = True, model: bool = True,
    ) -> None:  # fmt: skip
        self.now, self.longest, self.token_s = 0.0, longest, token_s
        self.rng, self.acceptance = random.Random(3), acceptance
        reports = Reports(longest)
        self.controller = Controller(
            Limits(longest, model=model, retrieval=retrieval), index=reports
        )
        self.requests = {f"r{i}": self._request(f"r{i}") for i in range(num)}
        self.adapter = AsyncAdapter(
            self.controller, self.requests, 100_000, lambda: self.now,
            reports=reports, width=longest, fallback=longest,
        )  # fmt: skip
        self.written: Any = None
        self.scheduled: list[int] = []
        self.is_resting: list[bool] = []
        self.unread = set[str]()
        self.emitted = 0

    def _request(self, name: str) -> Any:
        return SimpleNamespace(
            request_id=name, cache_salt=None, lora_request=None, is_finished=lambda: False,
            num_output_placeholders=0, all_token_ids=[1] * 9, spec_token_ids=[], num_tokens=9,
            is_prefill_chunk=False, sampling_params=params(), use_structured_output=False,
            max_tokens=40_000, num_output_tokens=0, prompt_token_ids=[1], num_prompt_tokens=9,
        )  # fmt: skip

    def schedule(self) -> Any:
        self.adapter.starts()
        self.adapter.shorten()
        verified = {id_: r.spec_token_ids for id_, r in self.requests.items() if r.spec_token_ids}
        num = {id_: 1 + len(verified.get(id_, ())) for id_ in self.requests}
        num |= {id_: self.requests[id_].num_tokens for id_ in self.unread}
        scheduled = SimpleNamespace(
            num_scheduled_tokens=num,
            scheduled_spec_decode_tokens=verified,
            total_num_scheduled_tokens=sum(num.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=id_) for id_ in self.unread],
        )
        scheduled.draftwise = orders = self.adapter.orders(scheduled)
        self.is_resting.append(orders is not None and orders.hazards is None)
        self.scheduled.append(sum(map(len, verified.values())))
        self.unread.clear()
        for request in self.requests.values():
            request.spec_token_ids = [-1] * self.adapter.num_to_draft
        return scheduled

    def report(self, scheduled: Any) -> Report:
        """Drafts of the step before, and those that this one writes."""
        told, names = scheduled.draftwise.head, list(scheduled.num_scheduled_tokens)
        facts = np.full((len(names), 4 * self.longest + NUM_FACTS), -1, np.int32)
        facts[:, 2 * self.longest : 2 * self.longest + told] = 0
        facts[:, 3 * self.longest : -2] = 0
        facts[:, 3 * self.longest : 3 * self.longest + told] = 1e6 * self.acceptance
        facts[:, -2:] = BY_MODEL if told else BY_NOBODY, told
        if self.repeats:
            facts[:, : self.longest] = 0
            facts[:, 3 * self.longest : 4 * self.longest] = 1e6
            facts[:, 4 * self.longest : -1] = 9, 1, 1, 0, 0, 0, BY_RETRIEVAL
        written = None if scheduled.draftwise.hazards is None else Report(names, facts)
        earlier, self.written = self.written, written
        return earlier or Report((), facts[:0])

    def comes_back(self, scheduled: Any) -> None:
        sampled = []
        for id_ in scheduled.num_scheduled_tokens:
            num = 0
            for _ in scheduled.scheduled_spec_decode_tokens.get(id_, ()):
                if self.rng.random() > self.acceptance:
                    break
                num += 1
            sampled.append([0] * num + [1])
            self.emitted += num + 1
        tokens, told = scheduled.total_num_scheduled_tokens, scheduled.draftwise.head
        self.now += 1.0 + self.token_s * tokens + 0.02 * told
        index = {id_: i for i, id_ in enumerate(scheduled.num_scheduled_tokens)}
        output = SimpleNamespace(
            sampled_token_ids=sampled, req_id_to_index=index, draftwise=self.report(scheduled)
        )
        self.adapter.came_back(scheduled, output)
        self.adapter.learn(scheduled, output)

    def run(self, steps: int) -> None:
        under_way = [self.schedule()]
        for _ in range(steps):
            under_way.append(self.schedule())
            self.comes_back(under_way.pop(0))


def test_good_drafts_are_verified_whole_and_bad_ones_hardly() -> None:
    good, bad = FakeAsync(0.9, token_s=0.02), FakeAsync(0.05, token_s=0.3)
    good.run(300)
    bad.run(600)
    assert sum(good.scheduled[-40:]) > 40 * 4 * 2
    assert sum(bad.scheduled[-100:]) < 100
    assert good.controller.guard.speed > 1.5
    counts = good.adapter.counts
    assert counts.drafted["model"] == sum(good.scheduled) - sum(good.scheduled[-1:])
    assert counts.emitted == good.emitted
    assert counts.accepted["model"] == good.emitted - counts.rounds


def test_kernels_that_load_when_a_shape_first_occurs_do_not_end_drafts() -> None:
    """On a GPU the first step of a shape takes up to hundreds of times a usual step."""

    class Loading(FakeAsync):
        def comes_back(self, scheduled: Any) -> None:
            shape = len(scheduled.num_scheduled_tokens), scheduled.draftwise.head
            if shape not in seen:
                seen.add(shape)
                self.now += 30.0
            super().comes_back(scheduled)

    seen: set[tuple[int, int]] = set()
    engine, usual = (make(0.5, token_s=0.01) for make in (Loading, FakeAsync))
    engine.run(300), usual.run(300)
    assert len(seen) > 3
    assert engine.emitted > 0.9 * usual.emitted > 1.3 * 300 * 4


class Traffic(FakeAsync):
    """A GPU with 64 requests that replace each other: steps are reported late, steps with prefill
    take longer, and shapes load kernels when they first occur."""

    def __init__(self, seed: int, acceptance: float) -> None:
        super().__init__(acceptance, 1.4e-3, num=0, longest=2)
        self.rng, self.shapes, self.late, self.plain_s = random.Random(seed), set[Any](), 0.0, 0.0
        self.left: dict[str, int] = {}
        self.num_begun = 0
        self.fill()

    def fill(self) -> None:
        while len(self.requests) < 64:
            name = f"r{self.num_begun}"
            self.num_begun += 1
            self.requests[name] = request = self._request(name)
            request.num_tokens = self.rng.randrange(40, 130)
            self.left[name] = self.rng.randrange(48, 144)
            self.unread.add(name)

    def comes_back(self, scheduled: Any) -> None:
        num, told = scheduled.num_scheduled_tokens, scheduled.draftwise.head
        verified = scheduled.scheduled_spec_decode_tokens
        drafted = sum(map(len, verified.values()))
        prompts = scheduled.total_num_scheduled_tokens - len(num) - drafted
        prompt_s = (0.6 + 1e-3 * prompts) if prompts else 0.0
        shape = told, (len(num) + drafted).bit_length(), prompts > 0
        loading_s = 0.0 if shape in self.shapes else self.rng.choice([0.0, 2.5])
        self.shapes.add(shape)
        late = abs(self.rng.gauss(0.0, 0.08))
        self.now += prompt_s + loading_s + late - self.late + 0.05 * (told > 0)
        self.now -= self.token_s * prompts
        self.late, before = late, self.emitted
        super().comes_back(scheduled)
        emitted = self.emitted - before
        self.plain_s += emitted / len(num) * (1.0 + self.token_s * len(num) + prompt_s)
        for id_ in num.keys() & self.requests.keys():
            self.requests[id_].num_output_tokens += 1
            self.left[id_] -= 1
            if not self.left[id_]:
                del self.requests[id_]
        self.fill()


@pytest.mark.parametrize(("acceptance", "least"), [(0.42, 1.2), (0.02, 0.99)])
@pytest.mark.parametrize("seed", [0, 2, 3, 4])
def test_traffic_of_a_gpu(seed: int, acceptance: float, least: float) -> None:
    """The first kernels and prefills must not end drafts that gain a third."""
    engine = Traffic(seed, acceptance)
    engine.run(200)
    now_s, plain_s = engine.now, engine.plain_s
    engine.run(400)
    assert (engine.plain_s - plain_s) / (engine.now - now_s) > least


def test_acceptance_is_learnt_of_the_step_that_comes_back() -> None:
    """Half of all tokens are accepted, whatever lengths were chosen for later steps in flight."""
    engine = FakeAsync(0.5, token_s=0.01)
    engine.run(800)
    table = np.array(engine.controller.state()["acceptance"]["model"])
    rejected, seen = table[..., 0].sum(), table[..., 1].sum()
    assert seen > 500
    assert abs(rejected / seen - 0.5) < 0.1
    assert abs(engine.controller.kept / engine.controller.promised - 1) < 0.1


def test_its_own_time_is_a_part_of_the_steps() -> None:
    """draftwise's own time is charged to drafts, left out of the cost model, and counted once."""
    engine = FakeAsync(0.9, token_s=0.01)
    choose, observe, seen = engine.controller.choose, engine.controller.observe, []

    def slow(*args: Any, **kwargs: Any) -> Any:
        engine.now += 0.05
        return choose(*args, **kwargs)

    def watched(step: Step, *args: Any) -> None:
        seen.append((step, engine.now))
        observe(step, *args)

    engine.controller.choose, engine.controller.observe = slow, watched
    engine.run(200)
    for step, _ in seen[2:]:  # the first output has no drafts to choose from
        assert step.own_seconds == pytest.approx(0.05)
        assert step.seconds == pytest.approx(1 + 0.01 * step.num_tokens + 0.02 * step.num_drafted)
    counts, guard = engine.adapter.counts, engine.controller.guard
    assert counts.own_s == pytest.approx(
        0.05 * (len(seen) - 2)
    )  # the last choice is the next step's
    assert counts.step_s == pytest.approx(seen[-1][1] - 0.05)
    assert guard.spent_s == pytest.approx(counts.step_s, rel=1e-3)


def test_requests_that_cannot_be_verified_get_no_placeholders() -> None:
    engine = FakeAsync(0.9, token_s=0.0)
    engine.requests["r1"].sampling_params = params(min_p=0.1)
    engine.requests["r2"].sampling_params = params(extra_args={"speculation": False})
    engine.requests["r3"].sampling_params = params(extra_args={"max_draft": 1})
    for _ in range(60):
        scheduled = engine.schedule()
        spec = scheduled.scheduled_spec_decode_tokens
        assert not {"r1", "r2"} & spec.keys()
        assert len(spec.get("r3", ())) <= 1
        engine.comes_back(scheduled)
    assert engine.scheduled[-1] > 0


def test_who_is_gone_is_forgotten() -> None:
    engine = FakeAsync(0.5, token_s=0.1)
    engine.run(6)
    for id_ in ("r0", "r3"):
        del engine.requests[id_]
    engine.run(2)
    assert [f"r{i}" in engine.controller for i in range(4)] == [False, True, True, False]


def test_what_was_learnt_is_taken_up() -> None:
    first, second = FakeAsync(0.9, token_s=0.02), FakeAsync(0.9, token_s=0.02)
    first.run(200)
    second.controller.load_state(first.controller.state())
    for engine in (first, second):
        engine.scheduled.clear()
        engine.run(30)
    assert sum(second.scheduled) > 0.8 * sum(first.scheduled)


def test_answers_enter_the_history_of_their_tenant() -> None:
    engine = FakeAsync(0.5, token_s=0.1)
    requests = engine.requests
    requests["r1"].cache_salt = "a"
    requests["r2"].sampling_params = params(extra_args={"private": True})
    requests["r3"].sampling_params = params(presence_penalty=0.5)
    engine.run(6)
    for request in list(requests.values())[:3]:
        request.num_tokens, request.num_output_tokens = 30, 21
        del requests[request.request_id]
    engine.run(1)
    ended = engine.schedule().draftwise.ended
    first = max(9 - PROMPT_TAIL, 0)
    found = [(name, begin, end) for name, begin, end, _ in ended]
    assert found == [("r0", first, 30), ("r1", first, 30)]
    assert ended[0].tenant != ended[1].tenant
    assert not engine.schedule().draftwise.ended
    engine.adapter.forget()
    assert [engine.schedule().draftwise.forgets for _ in range(2)] == [True, False]


def test_many_requests_without_retrieval_use_slots_again() -> None:
    """Facts of a request that has ended say nothing about the next one in its slot."""
    engine = FakeAsync(0.9, token_s=1e-3, num=40, retrieval=False)
    engine.run(12)
    for name in list(engine.requests)[:20]:
        del engine.requests[name]
    engine.run(2)
    for i in range(40, 60):
        engine.requests[f"r{i}"] = engine._request(f"r{i}")
    engine.run(12)
    assert not engine.adapter.has_failed
    assert engine.adapter.num_running == 40


def test_a_budget_is_divided_as_on_the_device() -> None:
    alive = np.array([[0.9, 0.5, 0.4], [0.8, 0.6, 0.1], [0.2, 0.18, 0.17], [0.7, 0.6, 0.5]])
    capacities = np.array([3, 3, 3, 0])
    for budget, wanted in (
        (0, [0, 0, 0, 0]),
        (2, [1, 1, 0, 0]),
        (5, [3, 2, 0, 0]),
        (99, [3, 3, 3, 0]),
    ):
        assert divide(alive, capacities, budget).tolist() == wanted


def test_a_worker_that_reports_nothing_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler gives no more orders, and vLLM's drafter its fixed length; steps go on. The
    worker has logged its error."""
    engine = FakeAsync(0.9, token_s=0.01)
    engine.run(20)
    engine.report = lambda _: None
    engine.run(1)
    assert engine.adapter.has_failed
    assert engine.adapter.orders(None) is None
    assert engine.adapter.num_to_draft == engine.longest
    assert not [r for r in caplog.records if "draftwise failed" in r.message]


def test_retrieval_that_the_device_reports_is_learnt_and_chosen() -> None:
    """All retrieved tokens are right: the requests verify them, whatever the head offers."""
    engine = FakeAsync(1.0, token_s=0.02)
    engine.repeats = True
    engine.run(60)
    counts = engine.adapter.counts
    assert counts.accepted["retrieval"] > 0.9 * counts.drafted["retrieval"] > 300
    assert counts.drafted["model"] == 0
    assert min(engine.scheduled[-20:]) == 4 * engine.longest
    state = np.array(engine.controller.state()["acceptance"]["matches"])
    assert state[1, 5, 0] / state[1, 5, 1] < 0.1  # the token after a short draft is another one


@pytest.mark.parametrize("model", [True, False])
def test_a_server_that_drafts_nothing_rests_until_texts_repeat(model: bool) -> None:
    """Most steps have neither kernels nor columns for drafts; retrieval that is found later is
    verified soon after."""
    engine = FakeAsync(0.0, token_s=0.3, model=model)
    engine.run(400)
    for old, new in (("r0", "r8"), ("r1", "r9")):
        del engine.requests[old]
        engine.requests[new] = engine._request(new)
        engine.unread.add(new)
    engine.run(300)
    assert engine.adapter.num_running == 4
    assert sum(engine.is_resting[-200:]) > 120
    assert sum(engine.scheduled[-200:]) < 20
    steps = zip(engine.is_resting[:-1], engine.scheduled[1:], strict=True)
    assert not [num for is_resting, num in steps if is_resting and num]
    engine.acceptance, engine.repeats, engine.token_s = 1.0, True, 0.02
    engine.run(60)
    assert min(engine.scheduled[-10:]) == 4 * engine.longest
    assert not any(engine.is_resting[-10:])
    assert engine.adapter.counts.accepted["retrieval"] > 20 * 4 * engine.longest


def test_only_steps_with_tokens_of_the_head_mix_where_nothing_is_retrieved() -> None:
    """A head that is never right is only probed, and found to be right later."""
    engine, told = FakeAsync(0.0, token_s=0.3, retrieval=False), list[int]()
    orders = engine.adapter.orders

    def watched(scheduled: Any) -> Any:
        told.append(orders(scheduled).head)
        return orders(scheduled)

    engine.adapter.orders = watched
    engine.run(400)
    assert engine.is_resting == [not num for num in told]
    assert sum(engine.is_resting[-300:]) > 240
    engine.acceptance, engine.token_s = 1.0, 0.0
    engine.run(300)
    assert not any(engine.is_resting[-10:])
    assert min(engine.scheduled[-10:]) > 4
