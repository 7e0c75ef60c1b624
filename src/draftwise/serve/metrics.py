"""An observer of the worker: Prometheus metrics, and the totals that the live page shows.

Metrics use vLLM's names where the meaning is the same.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftwise.controller.guard import Guard
from draftwise.engine.engine import Engine
from draftwise.engine.outputs import CACHED_S, Account, Round
from draftwise.serve.worker import Observer, RequestHandle, Worker
from draftwise.types import NONE, Plan

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_FEW_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_SPEED = (
    "Tokens a second relative to plain decoding: since the start, and recently. Plain decoding is "
    "priced up to a millisecond a step too high where the model's steps are short"
)
_ALLOWED = "1 while the guard allows drafts, 0 while it does not."
_PRICED_TOKENS = (1, 2, 4, 8, 16, 32, 64)
_PRICE_EVERY_S = 1.0
MOST_LABELS = 32  # labels counted by name; further ones are counted as ``other``


class Metrics(Observer):
    """All metrics of one server, in a separate registry. plans: arms of the server's policy."""

    def __init__(self, model: str, max_rows: int, max_open: int, plans: Sequence[Plan]) -> None:
        self._plans, self._priced_s = plans, float("-inf")
        self._sums: dict[str, float] = defaultdict(float, rounds=0, answers=0)
        self._sources, self._played = Counts[str](), Counts[str]()
        self._best: dict[str, dict[str, float]] = {}  # by drafter, its best plan and that's value
        self._guard = Guard()
        self._registry, self._model = CollectorRegistry(), model
        counter, gauge = partial(self._metric, Counter), partial(self._metric, Gauge)
        histogram = partial(self._metric, Histogram, buckets=_SECONDS)
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of ended requests.")
        self._generated = counter("vllm:generation_tokens", "Tokens generated.")
        words = "Requests that ended, by how."
        self._ended = counter("vllm:request_success", words, "finished_reason")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Drafts verified.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Drafts kept.")
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        self._accepted_at = counter(name, "Kept, by position.", "position")
        gauge("draftwise:max_rows", "Rows that may run together.").set(max_rows)
        gauge("draftwise:max_open", "Answers on their way at most.").set(max_open)
        words = "From submission to the first token."
        self._first = histogram("vllm:time_to_first_token_seconds", words)
        words = "Between tokens; those of one round share its time."
        self._between = histogram("vllm:inter_token_latency_seconds", words, buckets=_FEW_SECONDS)
        words = "From submission to the last token."
        self._whole = histogram("vllm:e2e_request_latency_seconds", words)
        self._pulls = counter("draftwise:pulls", "Rounds by plan.", "drafter", "length")
        self._written = counter("draftwise:tokens", "Tokens by drafter.", "source")
        words = "What the policy expects of a plan."
        self._estimates = gauge("draftwise:estimate", words, "drafter", "length")
        words = "Seconds of a target forward by tokens per row, and of a drafter's step."
        self._prices = gauge("draftwise:price_seconds", words, "model", "tokens")
        # same names and descriptions as in the vLLM plug-in (integrations.vllm.metrics)
        by_label = "by label of the request"
        self._label_rounds = counter("draftwise:label_rounds", f"Rounds {by_label}.", "label")
        words = f"Tokens {by_label}."
        self._label_tokens = counter("draftwise:label_emitted_tokens", words, "label")
        words = f"{_SPEED}, {by_label}"
        self._label_speed = gauge("draftwise:label_speed", words, "label", "window")
        self._accounts: dict[str, Account] = {}
        self._phases = counter("draftwise:phase_seconds", "Engine seconds.", "phase")
        self._http = Counter(
            "draftwise:http_requests", "Responses.", ["path", "status"], registry=self._registry
        )

    def watch(self, worker: Worker) -> None:
        """Add gauges that are computed on each scrape."""
        engine, gauge = worker.engine, partial(self._metric, Gauge)
        self._guard = engine.guard
        for name, words, read in (
            ("vllm:num_requests_running", "Rows that the engine runs.", "num_running"),
            ("draftwise:prefix_hits", "Prompts that began as an earlier one.", "num_prefix_hits"),
            ("draftwise:kv_cache_bytes", "Bytes of the target's KV storage.", "num_cache_bytes"),
            ("draftwise:drafting_allowed", _ALLOWED, "drafting_allowed"),
        ):
            gauge(name, words).set_function(partial(getattr, engine, read))
        waiting = gauge("vllm:num_requests_waiting", "Rows that wait for a place.")
        waiting.set_function(lambda: worker.num_waiting)
        speed = gauge("draftwise:speed", _SPEED, "window")
        speed("start").set_function(lambda: engine.guard.speed)
        speed("recent").set_function(lambda: engine.guard.recent_speed)

    def totals(self) -> dict[str, Any]:
        """For the live page: sums since the start, and speeds relative to plain decoding.

        The engine's thread goes on counting meanwhile, so everything is copied at once.
        """
        speeds = {name: [one.speed, one.recent_speed] for name, one in dict(self._accounts).items()}
        return {
            "now": time.time(), "totals": dict(self._sums), "tokens": dict(self._sources),
            "pulls": dict(self._played), "estimates": dict(self._best),
            "speed": round(self._guard.speed, 4),
            "recent_speed": round(self._guard.recent_speed, 4), "labels": speeds,
        }  # fmt: skip

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None:
        if not rounds:
            return
        for round_ in rounds:
            self._count(round_)
        self._sum(rounds)
        if time.monotonic() - self._priced_s >= _PRICE_EVERY_S:
            self._price(rounds[-1], engine)
        for phase, seconds in rounds[0].seconds.items():  # rows of a step share its seconds
            self._phases(phase).inc(max(0.0, seconds))

    def saw_part(self, num_tokens: int, gap_s: float, is_first: bool) -> None:
        if is_first:
            self._first.observe(gap_s)
            return
        for _ in range(num_tokens):
            self._between.observe(gap_s / num_tokens)

    def saw_end(self, handle: RequestHandle) -> None:
        self._sums["answers"] += 1
        self._prompt.inc(len(handle.ask.prompt))
        self._ended(handle.finish_reason).inc()
        self._whole.observe(handle.took_s)

    def saw_response(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def text(self) -> Any:
        return generate_latest(self._registry)

    def _sum(self, rounds: Sequence[Round]) -> None:
        first, num = rounds[0], sum(round_.num_emitted for round_ in rounds)
        self._sums["rounds"] += len(rounds)
        for name, seconds in (
            ("busy_s", sum(first.seconds.values())),
            ("plain_s", first.prompt_s[0] + first.plain_s * num / len(rounds)),
            ("spent_s", first.prompt_s[1] + first.spent_s),
            ("doubt_s", CACHED_S * num / len(rounds) if any(r.num_drafted for r in rounds) else 0),
            ("verify_s", first.seconds.get("verify", 0.0)),
            ("draft_s", first.seconds.get("draft", 0.0)),
        ):
            self._sums[name] += seconds

    def _price(self, round_: Round, engine: Engine) -> None:
        self._priced_s = time.monotonic()
        if len(round_.estimates) == len(self._plans):  # the server's own policy, not a request's
            best: dict[str, dict[str, float]] = {}
            for plan, value in zip(self._plans, round_.estimates, strict=True):
                self._estimates(plan.drafter, str(plan.length)).set(value)
                if value > best.get(plan.drafter, {"value": float("-inf")})["value"]:
                    best[plan.drafter] = {"length": plan.length, "value": round(float(value), 6)}
            self._best = best
        if (costs := engine.costs) is not None:
            for tokens in (n for n in _PRICED_TOKENS if n <= len(costs.target_s)):
                self._prices("target", str(tokens)).set(costs.target_s[tokens - 1])
            for drafter, seconds in costs.draft_s.items():
                self._prices(drafter, "1").set(seconds)

    def _count(self, round_: Round) -> None:
        plan = round_.plan
        self._pulls(plan.drafter, str(plan.length)).inc()
        self._played[plan.drafter] += 1
        self._sources.update(round_.sources)
        self._generated.inc(len(round_.tokens))
        if round_.label:
            self._count_label(round_)
        for source in round_.sources:
            self._written(source).inc()
        if plan.drafter == NONE or not round_.num_drafted:
            return
        self._drafts.inc()
        self._drafted.inc(round_.num_drafted)
        self._accepted.inc(round_.num_accepted)
        for position in range(round_.num_accepted):
            self._accepted_at(str(position)).inc()

    def _count_label(self, round_: Round) -> None:
        label = round_.label
        if label not in self._accounts and len(self._accounts) >= MOST_LABELS:
            label = "other"
        account = self._accounts.setdefault(label, Account())
        round_.charge(account)
        self._label_rounds(label).inc()
        self._label_tokens(label).inc(len(round_.tokens))
        for window, speed in (("start", account.speed), ("recent", account.recent_speed)):
            if speed is not None:
                self._label_speed(label, window).set(speed)

    def _metric(self, kind: Any, name: str, words: str, *labels: str, **options: Any) -> Any:
        """A metric of this model; if it has labels, a function from their values to a metric."""
        made = kind(name, words, ["model_name", *labels], registry=self._registry, **options)
        return partial(made.labels, self._model) if labels else made.labels(self._model)
