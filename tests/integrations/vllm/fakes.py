"""A stub of vLLM: a text as the model, requests, and an engine's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from draftwise.controller.controller import Controller, Limits
from draftwise.integrations.vllm.adapter import Adapter

Model = Callable[[Sequence[int]], int]
"""Maps all tokens so far to the greedy target's next token."""


def params(**given: Any) -> SimpleNamespace:
    """Sampling parameters with vLLM's defaults."""
    plain = {
        "min_p": 0.0,
        "logit_bias": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "bad_words": None,
        "allowed_token_ids": None,
        "min_tokens": 0,
        "extra_args": None,
    }
    return SimpleNamespace(**(plain | given))


@dataclass
class FakeRequest:
    """The fields of vLLM's ``Request`` that draftwise reads."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    sampling_params: Any = field(default_factory=params)
    use_structured_output: bool = False
    output: list[int] = field(default_factory=list)
    spec_token_ids: list[int] = field(default_factory=list)
    is_prefill_chunk: bool = True
    cache_salt: str | None = None
    lora_request: Any = None

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output)

    def is_finished(self) -> bool:
        return len(self.output) >= self.max_tokens


class FakeEngine:
    """Runs requests as ``EngineCore.step`` does, with greedy verification and given step costs.

    model_drafter: writes vLLM's own drafts. chunk: prompt tokens prefilled in a step.
    """

    def __init__(
        self,
        model: Model,
        model_drafter: Model | None = None,
        cost: Callable[[int, int, int], float] = lambda rows, tokens, drafted: 1.0,
        longest: int = 8,
        budget: int = 2048,
        chunk: int = 64,
    ) -> None:
        self.model, self.model_drafter, self.cost, self.chunk = model, model_drafter, cost, chunk
        self.now = 0.0
        self.requests: dict[str, FakeRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.num_read: dict[str, int] = {}
        self.drafted: list[int] = []
        self.steps: list[tuple[int, int, float]] = []
        self.verified: dict[str, list[list[int]]] = {}
        limits = Limits(longest, budget, model=model_drafter is not None)
        self.controller = Controller(limits, history_tokens=1 << 12)
        self.adapter = Adapter(self.controller, self.requests, 4096, lambda: self.now)

    def add(self, request: FakeRequest) -> None:
        self.requests[request.request_id] = request
        self.num_read[request.request_id] = 0

    def run(self, num_steps: int = 10_000) -> dict[str, list[int]]:
        """Step until all requests are done; returns their outputs."""
        while self.requests and num_steps:
            self.step()
            num_steps -= 1
        return self.outputs

    def step(self) -> None:
        self.adapter.starts()
        num_drafted = self.adapter.num_to_draft if self.model_drafter else 0
        scheduled = self._schedule(num_drafted)
        self.drafted.append(num_drafted)
        output = self._execute(scheduled)
        self.adapter.work()
        total = scheduled.total_num_scheduled_tokens
        self.now += self.cost(len(self.requests), total, num_drafted)
        self.steps.append((len(self.requests), total, self.now))
        self.adapter.came_back(scheduled, output)
        ids = list(self.requests)
        for id_, tokens in zip(ids, output.sampled_token_ids, strict=True):
            request = self.requests[id_]
            del tokens[request.max_tokens - len(request.output) :]
            request.output += tokens
            if request.is_finished():
                self.outputs[id_] = self.requests.pop(id_).output
        self.adapter.learn(scheduled, output)
        self._offer(ids, num_drafted)

    def _schedule(self, num_drafted: int) -> Any:
        num, verified = {}, {}
        for id_, request in self.requests.items():
            left = len(request.prompt_token_ids) - self.num_read[id_]
            if left > 0:
                num[id_] = min(left, self.chunk)
                self.num_read[id_] += num[id_]
                request.is_prefill_chunk = left > self.chunk
            else:
                num[id_] = 1 + len(request.spec_token_ids)
                if request.spec_token_ids:
                    verified[id_] = request.spec_token_ids
                    self.verified.setdefault(id_, []).append(request.spec_token_ids)
        return SimpleNamespace(
            num_scheduled_tokens=num,
            scheduled_spec_decode_tokens=verified,
            total_num_scheduled_tokens=sum(num.values()),
            num_spec_tokens_to_schedule=num_drafted,
        )

    def _execute(self, scheduled: Any) -> Any:
        sampled = []
        for id_, request in self.requests.items():
            emitted: list[int] = []
            if not request.is_prefill_chunk:
                for drafted in [*scheduled.scheduled_spec_decode_tokens.get(id_, ()), None]:
                    emitted.append(self.model(request.all_token_ids + emitted))
                    if emitted[-1] != drafted:
                        break
            sampled.append(emitted)
        index = {id_: i for i, id_ in enumerate(self.requests)}
        return SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=index)

    def _offer(self, ids: Sequence[str], num_drafted: int) -> None:
        offers = []
        for id_ in ids:
            own: list[int] = []
            if id_ in self.requests and self.model_drafter:
                for _ in range(num_drafted):
                    own.append(self.model_drafter(self.requests[id_].all_token_ids + own))
            offers.append(own)
        drafts = SimpleNamespace(req_ids=list(ids), draft_token_ids=offers)
        self.adapter.draft(drafts)
        for id_, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True):
            if id_ in self.requests and not self.requests[id_].is_prefill_chunk:
                self.requests[id_].spec_token_ids = tokens
