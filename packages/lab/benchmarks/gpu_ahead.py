"""The controller on vLLM's default path, replayed: decided one step ahead, drafted on the device.

    python -m benchmarks gpu_ahead --data FOLDER
    python -m benchmarks gpu_ahead --data FOLDER --model llama70b_fp8_4xh100 --requests 4 16 64

The data are those of ``gpu_replay``. A step is scheduled when the outputs up to the one before last
are known. ``head``: only the head drafts. ``A``: the device chooses drafters, the host the lengths
of each request, by its recent drafts. ``B``: the host gives a number of tokens for the whole step,
by recent steps, and the device divides it among the requests by survival. ``sync``: the same
scheduling time without these delays, drafts on the host. Every rule pays 0.15 ms of scheduling a
step (runner V2), and those with kernels 0.03 ms more. The controller works while the device
computes; ``counted`` adds its time to every step all the same. Retrieval is the host's index, which
votes among places; the kernels take the latest. vLLM's adaptive verification runs with pooled
acceptance, and with confidence: these data lack the head's, so each token draws one of SmolLM2's
head for a right or a wrong token (``Confidence``). ``B confident`` is B with the same.
``--safety`` replays texts on which drafting may lose instead.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gpu_replay
import numpy as np
from gpu_replay import NUM_REQUESTS, SIMPLE, AdaptiveVerification, Fixed, Prices, Row, Source, Text
from shared.script import run, show

from draftwise.controller.acceptance import HIGHEST, LOWEST, bucket_of
from draftwise.controller.controller import Controller, Limits
from draftwise.controller.mixing import MODEL as BY_MODEL
from draftwise.controller.mixing import RETRIEVAL as BY_RETRIEVAL
from draftwise.controller.mixing import divide
from draftwise.integrations.vllm.ahead import NUM_FACTS, AsyncAdapter, Orders, Report, Reports
from draftwise.retrieval.index import RetrievalIndex

SCHEDULING_MS, KERNELS_MS = 0.15, 0.03
HEAD = 5
"""The longest draft of the head."""
K = gpu_replay.LONGEST
RIGHT = np.array([305, 754, 674, 489, 369, 311, 245]) / 3147
WRONG = np.array([1899, 1504, 612, 204, 63, 22, 4]) / 4308
"""Shares of the right and the wrong tokens of SmolLM2's bundled head whose largest probability is
below 0.15, 0.3, .., 0.9, and above: five tokens at each position of 16 greedy everyday answers."""


class Confidence:
    """Probabilities that vLLM predicts for the tokens of a head from the head's confidence.

    Its estimator is fitted to each position, so they are posteriors: the acceptance of the position
    so far, verified or not, and how much likelier the confidence is for a right token than for a
    wrong one.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._seen = np.tile([3.5, 5.0], (HEAD, 1))

    def predict(self, rights: Sequence[int], num: int) -> np.ndarray:
        """[rows, num] for drafts whose first ``rights`` tokens are right."""
        base, lanes = self._seen[:num, 0] / self._seen[:num, 1], np.arange(num)
        good, (draws, behind) = np.array(rights)[:, None], self._rng.random((2, len(rights), num))
        # behind the first wrong token nothing says which ones would have been right
        is_right = np.where(lanes > good, behind < base, lanes < good)
        bins = (np.cumsum([WRONG, RIGHT], axis=1)[is_right.astype(int)] < draws[..., None]).sum(-1)
        odds = base / (1 - base) * (RIGHT / WRONG)[np.minimum(bins, len(RIGHT) - 1)]
        for kept in rights:
            for j in range(min(num, kept + 1)):
                self._seen[j] = 0.9995 * self._seen[j] + (j < kept, 1.0)
        return np.asarray(odds / (1 + odds))


class Confident(AdaptiveVerification):
    """vLLM's adaptive verification with confidence: a number of tokens by the drafts of two steps
    ago, divided among the requests by the present ones."""

    def __init__(self, seed: int) -> None:
        super().__init__(HEAD)
        self._confidence, self._recent = Confidence(seed), list[np.ndarray]()

    def decide(self, rows: list[Row], seconds: Callable[[int], float]) -> gpu_replay.Played:
        alive = np.cumprod(self._confidence.predict([row.head for row in rows], HEAD), axis=1)
        self._recent = [*self._recent[-2:], np.sort(alive, axis=None)[::-1]]
        gains = self._recent[0][: alive.size]
        totals = len(rows) + np.append(0.0, np.cumsum(gains))
        num = int((totals / [seconds(num) for num in range(len(totals))]).argmax())
        capacities = np.array([min(HEAD, row.left - 1) for row in rows])
        return self._play(rows, divide(alive, capacities, num).tolist())


def survival(hazards: np.ndarray, factor: float) -> np.ndarray:
    """[n] probabilities that all tokens up to each one are accepted."""
    return np.cumprod(1.0 - np.clip(hazards * float(factor), LOWEST, HIGHEST))


def worth(alive: np.ndarray, price: float, room: int) -> float:
    """Expected tokens of a draft beyond what its tokens cost, at the best length up to ``room``."""
    return float(np.maximum(alive[:room] - price, 0.0).sum())


class Device:
    """Texts, drafts and facts as a worker has them."""

    def __init__(self, retrieves: bool) -> None:
        self.index = RetrievalIndex(K, 1 << 18)
        self.retrieves = retrieves
        self.slots: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}

    def begin(self, row: Row) -> None:
        slot = next(i for i in range(len(self.slots) + 1) if i not in self.slots.values())
        self.slots[row.name], self.outcomes[row.name] = slot, 0
        self.index.open(slot, row.text.prompt + row.text.answer[: row.known])

    def end(self, name: str) -> None:
        self.index.close(self.slots.pop(name))
        del self.outcomes[name]

    def facts(self, rows: Sequence[Row], heads: Sequence[Sequence[int]]) -> np.ndarray:
        """What the kernels report, without the choice of a drafter."""
        num_head = len(heads[0])
        facts = np.full((len(rows), 4 * K + NUM_FACTS), -1, np.int32)
        facts[:, 3 * K :] = 0
        facts[:, -1] = num_head
        slots, limits = [self.slots[row.name] for row in rows], [K] * len(rows)
        drafts = np.zeros((len(rows), K), np.int32)
        for i, head in enumerate(heads):
            drafts[i, : len(head)] = facts[i, 2 * K : 2 * K + len(head)] = head
        if not self.retrieves:
            return facts
        for which, found in enumerate((
            self.index.propose(slots, limits),
            self.index.propose_after(slots, drafts, [num_head] * len(rows), limits),
        )):  # fmt: skip
            begin = 4 * K + 3 * which
            for i, num in enumerate(found.num_tokens):
                facts[i, which * K : which * K + num] = found.tokens[i, :num]
            facts[:, begin] = np.where(found.num_tokens > 0, found.match, 0)
            facts[:, begin + 1], facts[:, begin + 2] = found.hits, found.agree >= found.hits
        return facts

    def choose(
        self,
        row: Row,
        facts: np.ndarray,
        hazards: Any,
        factors: Sequence[float],
        price: float,
        given: np.ndarray | None = None,
    ) -> tuple[int, list[int], np.ndarray]:
        """Who drafts, the tokens, and their survival: as the kernels choose, on given proposals."""
        num = max(int(facts[-1]), 0)
        own, after = (t[: int((t >= 0).sum())] for t in (facts[:K], facts[K : 2 * K]))
        match, after_match = int(facts[4 * K]), int(facts[4 * K + 3])
        buckets = [bucket_of(match + j) for j in range(K)]
        own_alive = survival(hazards.matches[int(facts[4 * K + 2]), buckets], factors[1])
        model = survival(hazards.model[self.outcomes[row.name], bucket_of(match)], factors[0])
        if given is not None:
            model = np.cumprod(given)
        buckets = [bucket_of(after_match + j) for j in range(K)]
        late = survival(hazards.matches[1 + min(num, 3), buckets], factors[1])
        head = facts[2 * K : 2 * K + num].tolist()
        chain = head + after[: K - num].tolist() if num else []
        through = model[num - 1] if num else 0.0
        chain_alive = np.append(model[:num], through * late[: len(chain) - num])
        own_alive = own_alive[: len(own)]
        gains = worth(own_alive, price, row.room), worth(chain_alive, price, row.room)
        if len(own) and (gains[0] > gains[1] or not chain):
            return BY_RETRIEVAL, own.tolist(), own_alive
        return BY_MODEL, chain, chain_alive


@dataclass
class Request:
    """What ``AsyncAdapter`` reads of vLLM's requests. Outputs reach it one step late."""

    row: Row
    num_output_tokens: int = 0
    num_output_placeholders: int = 0
    spec_token_ids: Sequence[int] = ()
    prompt_token_ids: Sequence[int] = ()
    use_structured_output = is_prefill_chunk = False
    cache_salt = lora_request = None
    sampling_params = SimpleNamespace(
        min_p=0.0, logit_bias=None, presence_penalty=0.0, frequency_penalty=0.0, min_tokens=0,
        repetition_penalty=1.0, bad_words=None, allowed_token_ids=None, extra_args=None,
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.request_id = self.row.name
        self.num_prompt_tokens = len(self.row.text.prompt) + self.row.known
        self.max_tokens = self.row.left

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self) -> bool:
        return self.num_output_tokens >= self.max_tokens


class Step(NamedTuple):
    """A step under way: vLLM's objects as far as ``AsyncAdapter`` reads them, and its seconds."""

    scheduled: Any
    output: Any
    seconds: float


class Engine:
    """Overlapping steps: one computes while the scheduler learns from the one before."""

    def __init__(self, texts: Sequence[Text], size: int, prices: Prices, seed: int, mode: str):
        self.confidence = Confidence(seed) if "confident" in mode else None
        self.mode, self.prices, self.rng = mode.split()[0], prices, random.Random(seed + 1)
        self.device, self.source = Device(mode != "head"), Source(texts, size, seed, False)
        reports, self.now_s = Reports(K), 0.0
        limits = Limits(K, model=True, retrieval=mode != "head", longest_model=HEAD)
        self.requests: dict[str, Request] = {}
        self.adapter = AsyncAdapter(
            Controller(limits, index=reports), self.requests, 1 << 20, lambda: self.now_s,
            reports=reports, width=K, fallback=HEAD, divides=self.mode == "B",
        )  # fmt: skip
        self.drafters, self.survivals = dict[str, int](), dict[str, np.ndarray]()
        self.factors: dict[str, Sequence[float]] = {}
        self.report = Report((), np.zeros((0, 4 * K + NUM_FACTS), np.int32))
        self.under_way: Step | None = None
        self.own_s, self.wrote = 0.0, 0
        self.begin(self.source.rows)

    def begin(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.device.begin(row)
            placeholders = [-1] * self.adapter.num_to_draft
            self.requests[row.name] = Request(row, spec_token_ids=placeholders)

    def step(self) -> tuple[float, float, int, float]:
        """Run one step; seconds, the adapter's seconds, tokens, and plain seconds."""
        rows, context, num = self.source.rows, self.source.context, len(self.source.rows)
        self.own_s = 0.0
        scheduled, orders = self.schedule(rows)
        assert orders is not None, "the adapter has failed"
        self.cut(rows, scheduled, orders)
        verified = [len(row.draft) for row in rows]
        tokens = num + sum(verified)
        seconds = self.prices.ms(tokens, num, context / num, orders.head)
        mixes = self.mode != "head" and orders.hazards is not None
        seconds = (seconds + KERNELS_MS * mixes) / 1e3
        plain = self.prices.ms(num, num, context / num, 0) / 1e3
        emitted = [gpu_replay._emit(row) for row in rows]
        self.verify(rows, emitted, verified)
        if self.under_way is not None:
            self.come_back(self.under_way)
        names = [row.name for row in rows]
        self.under_way = Step(scheduled, SimpleNamespace(
            sampled_token_ids=emitted, req_id_to_index={name: i for i, name in enumerate(names)},
            draftwise=self.report,
        ), seconds)  # fmt: skip
        for row in rows:
            if row.left <= 0:
                self.device.end(row.name)
        self.begin(self.source.fill())
        self.device.index.work(4096)
        self.draft(orders)
        count = sum(map(len, emitted))
        return seconds, self.own_s, count, plain * count / num

    def timed(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the adapter, within its own time."""
        begin_s = time.thread_time()
        done = call(*args)
        self.own_s += time.thread_time() - begin_s
        return done

    def schedule(self, rows: Sequence[Row]) -> tuple[Any, Any]:
        """What vLLM's scheduler says of a step, and the orders for its drafts."""
        adapter, requests = self.adapter, [self.requests[row.name] for row in rows]
        adapter.starts()
        self.timed(adapter.shorten)
        drafts = {r.request_id: r.spec_token_ids for r in requests if r.spec_token_ids}
        num = {r.request_id: 1 + len(r.spec_token_ids) for r in requests}
        scheduled = SimpleNamespace(
            num_scheduled_tokens=num, scheduled_spec_decode_tokens=drafts,
            total_num_scheduled_tokens=sum(num.values()), scheduled_new_reqs=(),
        )  # fmt: skip
        scheduled.draftwise = orders = self.timed(adapter.orders, scheduled)
        for request in requests:
            request.num_output_placeholders += num[request.request_id]
            request.spec_token_ids = [-1] * adapter.num_to_draft
        return scheduled, orders

    def cut(self, rows: Sequence[Row], scheduled: Any, orders: Orders) -> None:
        """Truncate drafts to the tokens that are verified."""
        drafts = scheduled.scheduled_spec_decode_tokens
        rooms = [min(len(drafts.get(row.name, ())), row.room, len(row.draft)) for row in rows]
        if orders.budget is not None:
            alive = np.zeros((len(rows), K))
            for i, (row, room) in enumerate(zip(rows, rooms, strict=True)):
                alive[i, :room] = self.survivals.get(row.name, np.zeros(K))[:room]
            rooms = divide(alive, np.array(rooms), orders.budget).tolist()
        for row, room in zip(rows, rooms, strict=True):
            row.draft = row.draft[:room]

    def verify(
        self, rows: Sequence[Row], emitted: Sequence[list[int]], verified: Sequence[int]
    ) -> None:
        """Extend the device's texts, and note the outcome of the head's drafts."""
        for row, out, num in zip(rows, emitted, verified, strict=True):
            self.device.index.extend([self.device.slots[row.name]], out, [len(out)])
            by_model = min(num, self.wrote)
            if self.drafters.get(row.name) == BY_MODEL and by_model:
                kept = min(len(out) - 1, by_model)
                self.device.outcomes[row.name] = 1 if kept == 0 else 2 if kept < by_model else 3

    def come_back(self, step: Step) -> None:
        """The scheduler gets a step's output."""
        self.now_s += step.seconds
        self.adapter.came_back(step.scheduled, step.output)
        for name, i in step.output.req_id_to_index.items():
            request = self.requests[name]
            request.num_output_tokens += len(step.output.sampled_token_ids[i])
            request.num_output_placeholders -= step.scheduled.num_scheduled_tokens[name]
            if request.is_finished():
                del self.requests[name]
        self.timed(self.adapter.learn, step.scheduled, step.output)
        self.timed(self.adapter.work)

    def draft(self, orders: Orders) -> None:
        """Write the next step's drafts."""
        rows, num_head = self.source.rows, orders.head
        self.factors |= dict(zip(orders.names, orders.factors.tolist(), strict=True))
        self.report = Report((), self.report.facts[:0])
        self.wrote = num_head
        if orders.hazards is None or not rows:
            for row in rows:
                row.draft = []
            return
        heads = []
        for row in rows:
            truth = row.text.answer[row.known : row.known + num_head]
            good = min(row.head, num_head)
            head = truth[:good] + gpu_replay.astray(row, truth, good, num_head, self.rng)
            heads.append((head + [0] * num_head)[:num_head])
        facts = self.device.facts(rows, heads)
        given: Any = [None] * len(rows)
        if self.confidence is not None:
            given = self.confidence.predict([row.head for row in rows], num_head)
        for row, own, told in zip(rows, facts, given, strict=True):
            factors = self.factors.get(row.name, (1.0, 1.0))
            drafter, row.draft, alive = self.device.choose(
                row, own, orders.hazards, factors, orders.price, told
            )
            row.branch = ()
            own[-2] = self.drafters[row.name] = drafter
            self.survivals[row.name] = alive = alive[: row.room]
            own[3 * K : 3 * K + len(alive)] = 1e6 * alive / np.append(1.0, alive[:-1])[: len(alive)]
        self.report = Report([row.name for row in rows], facts)


def drive(
    texts: Sequence[Text], size: int, prices: Prices, seed: int, mode: str
) -> dict[str, float]:
    """Speed relative to plain decoding, tokens a step, and the controller's milliseconds."""
    engine, steps = Engine(texts, size, prices, seed, mode), []
    while engine.source.rows:
        is_full = len(engine.source.rows) == size
        step = engine.step()
        if is_full:
            steps.append(step)
    columns = np.array(steps)
    seconds, own_s = columns[:, :2].sum(0)
    return {
        "speed": float(columns[:, 3].sum() / seconds),
        "counted": float(columns[:, 3].sum() / (seconds + own_s)),
        "tokens": float(columns[:, 2].mean()),
        "own_ms": 1e3 * float(columns[:, 1].mean()),
    }


def cell(texts: list[Text], size: int, prices: Prices, seeds: Sequence[int]) -> dict[str, Any]:
    """One batch size: simple rules, vLLM's rule, and the controller in each mode."""

    def mean(make: Any) -> float:
        ratios = [
            gpu_replay.play(texts, size, prices, make(), seed)
            / gpu_replay.play(texts, size, prices, Fixed(0), seed)
            for seed in seeds
        ]
        return float(np.mean(ratios))

    simple = {name: mean(lambda given=given: Fixed(*given)) for name, given in SIMPLE.items()}
    best = max(simple, key=simple.__getitem__)
    row: dict[str, Any] = {
        "requests": size, "best": best, "best_speed": simple[best],
        "vllm": mean(lambda: AdaptiveVerification(HEAD)),
        "vllm_confident": mean(lambda: Confident(0)),
    }  # fmt: skip
    runs = [gpu_replay.drive(texts, size, prices, seed) for seed in seeds]
    row["sync"] = float(np.mean([run.speed() for run in runs]))
    for mode in ("head", "A", "B", "B confident"):
        found = [drive(texts, size, prices, seed, mode) for seed in seeds]
        row[mode] = float(np.mean([one["speed"] for one in found]))
        row[f"{mode}_counted"] = float(np.mean([one["counted"] for one in found]))
    row |= {"own_ms": found[-1]["own_ms"], "A_of_best": row["A"] / row["best_speed"]}
    row |= {"B_of_best": row["B"] / row["best_speed"], "B_of_head": row["B"] / row["head"]}
    return row


def replay(args: argparse.Namespace) -> dict[str, Any]:
    gpu_replay.SCHEDULING_MS = SCHEDULING_MS
    texts, prices = gpu_replay.load(args.data), Prices(args.data / "step_costs.npz", args.model)
    cells, safe = [], []
    for size in args.requests:
        num = min(args.texts or NUM_REQUESTS.get(size, 3 * size), len(texts))
        if args.safety:
            for name, some in gpu_replay.strange(texts, size):
                if name in {"nothing to draft", "head never right"}:
                    found = {mode: drive(some, size, prices, 0, mode) for mode in ("A", "B")}
                    speeds = {mode: one["speed"] for mode, one in found.items()}
                    safe.append({"requests": size, "text": name, **speeds})
                    show(safe[-1:], args.model)
            continue
        cells.append(cell(random.Random(100).sample(texts, num), size, prices, args.seeds))
        show(cells[-1:], args.model)
    return {"model": args.model, "cells": cells, "safety": safe}


def main() -> None:
    run(
        __doc__, replay, model="llama8b_bf16_1xh100", requests=[1, 4, 16, 64, 128], seeds=[0, 1, 2],
        data={"type": Path, "required": True, "help": "folder of the data"},
        texts={"type": int, "help": "answers of each run; default: 40 to 420"},
        safety={"action": "store_true", "help": "only texts where drafting may lose"},
    )  # fmt: skip


if __name__ == "__main__":
    main()
