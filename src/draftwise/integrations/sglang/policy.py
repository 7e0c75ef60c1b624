"""The SGLang policy: predicts cost and gain of each number of draft steps, and chooses the best.

Before each draft SGLang requests one number of steps for the whole batch, and after each
verification it reports how many draft tokens of each request were accepted
(``AdaptiveSpecPolicy``). Its overlap scheduler requests a step before it reports the previous one.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.controller.acceptance import learn_lengths, length_survival, new_slots, new_tables
from draftwise.controller.costs import Step, StepCosts, like
from draftwise.controller.guard import Guard, Tuning
from draftwise.errors import DraftwiseError
from draftwise.files import STATE_BYTES, local_path, read_text, strict_json
from draftwise.integrations.vllm.adapter import fused
from draftwise.state import SaveTimer, StateFile, Writer
from draftwise.types import Ints

logger = logging.getLogger("sglang.draftwise")

CONFIG = Path(__file__).with_name("draftwise.json")
"""The default config file, shipped with draftwise."""
PERIOD = 4
"""Steps between two choices while the batch size stays the same; a trial lasts one step."""
SWITCH_GAIN = 0.015
"""Relative speed gain required to change the length, since a change costs SGLang time."""
TUNING = Tuning(credit=8.0, share=0.004)
"""Larger than the guard's defaults: with one length for a small batch, the policy reacts late to an
answer in which drafts fail for dozens of steps."""


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """A parsed config file: candidate steps by smallest batch size, and the "draftwise" entry."""

    tiers: Mapping[int, Sequence[int]]
    state: str | None = "auto"
    report_s: float = 60.0

    @property
    def candidates(self) -> list[int]:
        return sorted(set().union(*self.tiers.values()))

    def for_batch(self, batch_size: int) -> list[int]:
        """The candidates for a batch size; as in SGLang, the first tier covers smaller batches."""
        lowest = max((low for low in self.tiers if low <= batch_size), default=min(self.tiers))
        return sorted(set(self.tiers[lowest]))


def read_settings(path: str | None) -> SglangSettings | None:
    """Read the settings of a config file; None without a "draftwise" entry."""
    if path is None:
        return None
    try:
        found = strict_json(read_text(local_path(path), STATE_BYTES))
    except (OSError, ValueError) as error:
        raise DraftwiseError(f"--speculative-adaptive-config {path}: {error}") from error
    if not isinstance(found, dict) or "draftwise" not in found:
        return None
    own, where = found["draftwise"], f"--speculative-adaptive-config {path}"
    if not isinstance(own, dict) or not own.keys() <= {"state", "report_s"}:
        raise DraftwiseError(f'{where}: "draftwise" is an object of "state" and "report_s"')
    if not isinstance(own.get("state", "auto"), str | None):
        raise DraftwiseError(f'{where}: "state" is "auto", a path, or null')
    report_s = own.get("report_s", 60)
    if type(report_s) not in (int, float) or report_s <= 0:
        raise DraftwiseError(f'{where}: "report_s" is a number of seconds above 0')
    return SglangSettings(_read_tiers(found, where), own.get("state", "auto"), float(report_s))


def _read_tiers(found: Mapping[str, Any], where: str) -> dict[int, list[int]]:
    """Parse the tiers of SGLang's config format, whose keys are decimal batch sizes."""
    form = '{{"{}": {{"candidate_steps": [0, 1, 3]}}}}'
    tiers: dict[int, list[int]] = {}
    for low in filter(str.isdecimal, found):
        tier = found[low]
        steps = tier.get("candidate_steps") if isinstance(tier, dict) else None
        is_list = isinstance(steps, list) and all(type(k) is int and 0 <= k < 256 for k in steps)
        if not steps or not is_list:
            raise DraftwiseError(f"{where}: name candidates as {form.format(low)}")
        tiers[int(low)] = steps
    if not tiers:
        raise DraftwiseError(f"{where}: name candidates by batch size, as {form.format(1)}")
    return tiers


@dataclass(slots=True)
class _Flight:
    """A step whose number of draft steps is chosen and whose result is not reported yet."""

    steps: int
    names: Sequence[Any]
    slots: Ints
    num_context: int
    begun_s: float
    is_clean: bool


class StepsPolicy:
    """SGLang's ``AdaptiveSpecPolicy``: chooses the number of steps with the most tokens per second.

    clock: returns seconds. agree: broadcasts rank 0's choice to the tensor-parallel group, because
    clocks differ and ranks that disagree hang. state: the state file.

    State: cost model and acceptance by position, shared by all requests; one acceptance factor per
    request; the guard's account; steps in flight (two under the overlap scheduler). ``counts``:
    rounds by number of steps. ``drafted``, ``accepted``: tokens.
    """

    failure = "draftwise failed: SGLang takes the fewest steps until the server is restarted"

    def __init__(
        self, settings: SglangSettings, *, clock: Callable[[], float] = time.perf_counter,
        agree: Callable[[int], int] = int, state: StateFile | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.costs, self.guard = StepCosts(), Guard(TUNING)
        self._table = new_tables(max(1, *settings.candidates)).model[0, 0]
        self._known = new_slots(16, 1)
        self.has_failed = False
        self.counts = Counter[int]()
        self.drafted = self.accepted = 0
        self._clock, self._agree, self._file = clock, agree, state
        self._writer = None if state is None else Writer(logger)
        self._timer = SaveTimer(clock())
        self._graphs: list[int] | None = None
        self._longest: dict[int, int] = {}
        self._slots: dict[Any, int] = {}
        self._free = list(range(16))
        self._seated: Sequence[Any] = ()
        self._rows: Ints = np.zeros(0, np.int64)
        self._flights = deque[_Flight]()
        self._names: Sequence[Any] | None = None
        self._is_clean = False
        self._ended_s = self._marked_s = self._last_s = 0.0
        self._left = self._size = self._steps = self._since_clean = self._num_context = 0
        self._reported_s = clock()
        if state is not None and state.restore(self.load_state):
            logger.info("began with what %d steps had taught", self.costs.num_steps)

    # called by SGLang's adaptive controller

    @property
    def candidate_steps(self) -> list[int]:
        """Numbers of steps for which SGLang captures graphs; 0 is plain decoding."""
        return self.settings.candidates

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Set the captured batch sizes: a batch takes the time of the next larger captured one."""
        self._graphs = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Captured batch sizes for which ``step`` is a candidate; None without CUDA graphs."""
        if self._graphs is None:
            return None
        return [size for size in self._graphs if step in self.settings.for_batch(size)]

    def get_steps_for_batch(self, batch_size: int) -> int:
        flight, size = self._board(batch_size), self._padded(batch_size)
        # all ranks must reach ``agree`` in the same calls, even one whose policy has failed
        if self._left < 1 or size != self._size:
            steps, hold = self._choose(flight, size) or (self.settings.for_batch(size)[0], PERIOD)
            self._left, self._steps = divmod(self._agree(hold << 8 | steps), 256)
            self._size = size
        self._left -= 1
        if flight is not None and not self.has_failed:
            flight.steps = self._steps
            self._flights.append(flight)
        return self._steps

    @fused
    def _board(self, batch_size: int) -> _Flight:
        """Record the next step, before its number of draft steps is chosen."""
        now_s, names = self._clock(), self._names
        if names is None or len(names) != batch_size:
            names = range(batch_size)
        slots, context = self._seat(names), self._num_context
        flight = _Flight(0, names, slots, context, now_s, self._is_clean)
        self._names, self._is_clean, self._marked_s = None, True, now_s
        return flight

    @fused
    def on_verify_complete(
        self, num_correct_drafts_per_req: list[int], batch_size: int
    ) -> int | None:
        """Learn from the oldest step in flight. Returns None: steps only change before a draft."""
        now_s, flights = self._clock(), self._flights
        while flights and len(flights[0].slots) != batch_size:
            flights.popleft()  # a step that SGLang dropped
        if not flights or len(num_correct_drafts_per_req) != batch_size or not batch_size:
            return None
        flight = flights.popleft()
        begun_s = self._ended_s
        if not flight.is_clean:
            # the latest mark follows the prefill: the choice of a step, or the next prefill
            begun_s = max(begun_s, self._marked_s)
        elif flight.begun_s - begun_s > max(self._last_s, 1e-3):
            begun_s = flight.begun_s  # the engine was idle before this step
        self._ended_s = now_s
        self._learn(flight, np.array(num_correct_drafts_per_req, np.int64), now_s - begun_s)
        self._report(now_s)
        return None

    # called by the worker of ``with_policy``

    def expect(self, names: Sequence[Any], num_context: int) -> None:
        """Set the requests and total tokens of the next step; by default, batch rows are names."""
        self._names, self._num_context = names, num_context

    def interrupted(self) -> None:
        """Record a prefill before the next decoding step; its seconds are excluded."""
        self._is_clean, self._marked_s = False, self._clock()

    # learning and choosing

    def _padded(self, batch_size: int) -> int:
        return next((size for size in self._graphs or () if size >= batch_size), batch_size)

    def _seat(self, names: Sequence[Any]) -> Ints:
        """Return the slot of each request; free the slots of requests that left the batch."""
        if names == self._seated:
            return self._rows
        slots = self._slots
        for name in slots.keys() - names:
            self._free.append(slots.pop(name))
        for name in [name for name in names if name not in slots]:
            if not self._free:
                old = len(self._known.factors)
                self._free += range(old, 2 * old)
                self._known = new_slots(2 * old, 1, self._known)
            slots[name] = self._free.pop()
            self._known.factors[slots[name]] = 0.0
        self._seated = names
        self._rows = np.fromiter((slots[name] for name in names), np.int64, len(names))
        return self._rows

    def _learn(self, flight: _Flight, accepted: Ints, seconds: float) -> None:
        steps, slots, kept = flight.steps, flight.slots, accepted
        if flight.names != self._seated:  # ignore requests that ended in the meantime
            here = [name in self._slots for name in flight.names]
            slots, kept = slots[here], kept[here]
        learn_lengths(slots, kept, steps, self._table, self._known)
        self.counts[steps] += 1
        self.drafted += steps * len(accepted)
        self.accepted += int(accepted.sum())
        size = self._padded(len(accepted))
        doubling, context = size.bit_length(), flight.num_context
        self._longest[doubling] = max(self._longest.get(doubling, -1), steps)
        self._since_clean = 0 if flight.is_clean else self._since_clean + 1
        # steps right after a prefill are not measured, unless they never end
        if 0 < self._since_clean < 16 and self.costs.is_known:
            return
        plain_s = self.costs.observe(Step(size, size * (steps + 1), seconds, steps), context)
        seconds = self.costs.counted_s  # a pause is not a cost of drafting
        plain_s, proven_s = (plain_s, self.costs.proven_s) if steps else (seconds, seconds)
        self.guard.observe(
            1 + float(accepted.mean()), seconds, plain_s, proven_s=proven_s,
            confirmed=self.costs.confirmed,
        )  # fmt: skip
        self._last_s = seconds

    @fused
    def _choose(self, flight: _Flight, size: int) -> tuple[int, int]:
        """The candidate with the most tokens per second, and for how many steps to keep it."""
        tier = self.settings.for_batch(size)
        is_new = not self.guard.spent_s  # a restored cost model is usable from the first step
        if not self.costs.is_known or not (is_new or self.guard.allows_drafts):
            return tier[0], 1
        # measure plain decoding first, then one longer candidate at a time, per doubling of the
        # batch size: times of one request do not predict the plain step of 64 requests
        measured = self._longest.get(size.bit_length(), -1)
        tier = tier[: bisect_right(tier, measured) + 1]
        survival = np.empty((len(flight.slots), len(self._table)))
        length_survival(flight.slots, self._table, self._known, survival)
        tokens = np.ones((len(survival), len(self._table) + 1))
        tokens[:, 1:] += survival.cumsum(axis=1)
        # normalised by each request's tokens per step: a slow request occupies its slot for longer
        tokens = (tokens / tokens[:, [self._steps]]).mean(axis=0)
        curve = self.costs.seconds(size, self._num_context, 0, size * tier[-1])
        seconds = np.array([curve[size * k] + self.costs.draft_seconds(k) for k in tier])
        speed = tokens[tier] / np.maximum(seconds, 1e-9)
        best = int(speed.argmax())
        if self._steps in tier and speed[best] < (1 + SWITCH_GAIN) * speed[tier.index(self._steps)]:
            best = tier.index(self._steps)
        if tier[best] > measured:
            return tier[best], 1
        longer = min(best + 1, len(tier) - 1)
        if longer > best:  # retry the next longer candidate, within the guard's probe budget
            lost = (1 - speed[longer] / speed[best] + 2 * SWITCH_GAIN) * seconds[longer]
            if self.guard.may_probe(PERIOD * self._last_s, float(lost)):
                return tier[longer], 1
        return tier[best], PERIOD

    # state and report

    def state(self) -> Mapping[str, Any]:
        """The state for the next server with the same settings, as plain JSON."""
        longest = sorted(self._longest.items())
        return {"costs": self.costs.state(), "model": self._table.tolist(), "longest": longest}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state``; on an error nothing changes."""
        model = like(self._table, state["model"])
        if not (model[..., 1] > 0).all():
            raise ValueError("the acceptance has no observations")
        longest = {int(doubling): int(steps) for doubling, steps in state["longest"]}
        self.costs.load_state(state["costs"])
        self._longest, self._table = longest, model

    def _report(self, now_s: float) -> None:
        if self._file is not None and self._writer is not None and self._timer.is_due(now_s):
            self._writer.write(self._file.path, self._file.text(self.state()))
        if now_s - self._reported_s >= self.settings.report_s:
            self._reported_s = now_s
            share = self.accepted / self.drafted if self.drafted else 0.0
            logger.info(
                "draftwise: %.2f times plain decoding recently, %.2f since the start; %.0f%% of "
                "%d drafted tokens accepted; rounds by steps: %s",
                self.guard.recent_speed, self.guard.speed, 100 * share, self.drafted,
                dict(sorted(self.counts.items())),
            )  # fmt: skip
