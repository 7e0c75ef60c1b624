"""Asynchronous scheduling against a fake: steps overlap, and what they reveal comes late."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from draftwise.integrations.vllm import Lengths, Options
from integrations.vllm.fakes import params


class FakeAsync:
    """Schedules a step before the one before it has come back, as ``AsyncScheduler`` does."""

    def __init__(self, acceptance: float, token_s: float, num: int = 4, longest: int = 4) -> None:
        self.now, self.longest, self.token_s = 0.0, longest, token_s
        self.rng, self.acceptance = random.Random(3), acceptance
        self.lengths = Lengths(Options(), "eagle", longest, 4096, lambda: self.now)
        self.requests = {f"r{i}": self._request() for i in range(num)}
        self.scheduled: list[int] = []
        self.emitted = 0

    def _request(self) -> Any:
        return SimpleNamespace(
            spec_token_ids=[], is_prefill_chunk=False, sampling_params=params(), num_tokens=9,
            use_structured_output=False, max_tokens=4000, num_output_tokens=0, prompt_token_ids=[1],
        )  # fmt: skip

    def schedule(self) -> Any:
        verified = {id_: r.spec_token_ids for id_, r in self.requests.items() if r.spec_token_ids}
        num = {id_: 1 + len(verified.get(id_, ())) for id_ in self.requests}
        told = self.lengths[len(self.requests)]
        scheduled = SimpleNamespace(
            num_scheduled_tokens=num,
            scheduled_spec_decode_tokens=verified,
            total_num_scheduled_tokens=sum(num.values()),
            num_spec_tokens_to_schedule=told,
        )
        self.scheduled.append(sum(map(len, verified.values())))
        for request in self.requests.values():
            request.spec_token_ids = [-1] * told
        self.lengths.choose(self.requests, list(num))
        return scheduled

    def comes_back(self, scheduled: Any) -> None:
        sampled = []
        for id_ in scheduled.num_scheduled_tokens:
            num = 1
            for _ in scheduled.scheduled_spec_decode_tokens.get(id_, ()):
                if self.rng.random() > self.acceptance:
                    break
                num += 1
            sampled.append([0] * num)
            self.emitted += num
        tokens, told = scheduled.total_num_scheduled_tokens, scheduled.num_spec_tokens_to_schedule
        self.now += 1.0 + self.token_s * tokens + 0.02 * told
        index = {id_: i for i, id_ in enumerate(scheduled.num_scheduled_tokens)}
        output = SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=index)
        self.lengths.learn(self.requests, scheduled, output)

    def run(self, steps: int) -> None:
        under_way = [self.schedule()]
        for _ in range(steps):
            under_way.append(self.schedule())
            self.comes_back(under_way.pop(0))


def test_good_drafts_are_verified_whole_and_bad_ones_hardly() -> None:
    good, bad = FakeAsync(0.9, token_s=0.02), FakeAsync(0.05, token_s=0.3)
    good.run(120)
    bad.run(120)
    assert sum(good.scheduled[-40:]) > 40 * 4 * 3
    assert sum(bad.scheduled[-40:]) < 40 * 4


def test_requests_that_cannot_be_verified_get_no_placeholders() -> None:
    engine = FakeAsync(0.9, token_s=0.0)
    engine.requests["r1"].sampling_params = params(min_p=0.1)
    for _ in range(12):
        scheduled = engine.schedule()
        assert "r1" not in scheduled.scheduled_spec_decode_tokens
        engine.comes_back(scheduled)
    assert engine.scheduled[-1] > 0


def test_who_is_gone_is_forgotten() -> None:
    engine = FakeAsync(0.5, token_s=0.1)
    engine.run(6)
    for id_ in ("r0", "r3"):
        del engine.requests[id_]
    engine.run(2)
    assert set(engine.lengths._rows) == {"r1", "r2"}
