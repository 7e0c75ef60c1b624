"""Periodic tasks: metrics every second, log and state every minute."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from draftwise.integrations.vllm.adapter import Adapter, fused
from draftwise.integrations.vllm.metrics import Exporter, Figure, as_text
from draftwise.integrations.vllm.options import DRAFTERS
from draftwise.state import SaveTimer, StateFile, Writer

logger = logging.getLogger("vllm.draftwise")


def about_of(
    config: Any, max_draft: int, device: str, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that costs and acceptance depend on, from a finished ``VllmConfig``; plain JSON.

    device: its name. versions: of vLLM and draftwise. A state with any different value is rejected.
    """
    model, parallel = config.model_config, config.parallel_config
    scheduler, speculative = config.scheduler_config, config.speculative_config
    compilation = config.compilation_config
    return {
        "model": str(model.model),
        "revision": getattr(model, "revision", None),
        "device": device,
        "dtype": str(model.dtype),
        "quantization": str(getattr(model, "quantization", None)),
        "kv_dtype": str(config.cache_config.cache_dtype),
        "tensor_parallel": parallel.tensor_parallel_size,
        "data_parallel": parallel.data_parallel_size,
        "expert_parallel": bool(getattr(parallel, "enable_expert_parallel", False)),
        "drafter": [speculative.method, str(speculative.model)],
        "max_draft": max_draft,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": model.max_model_len,
        "async": bool(scheduler.async_scheduling),
        "eager": bool(model.enforce_eager),
        "graphs": [str(compilation.cudagraph_mode), compilation.max_cudagraph_capture_size],
        "versions": dict(versions),
    }


class Upkeep:
    """Saves, exports and logs the counters of an adapter; call ``tick`` after every step.

    file: the state file, or None. exporter: exports to prometheus_client; or figures: the metrics
    file that the API server reads. labels: of this engine's samples. The state is saved a few
    seconds after the start, then at growing intervals up to a minute, and when the engine is idle.
    """

    failure = "draftwise failed to save or to count: neither is done any more"

    def __init__(
        self, adapter: Adapter, clock: Callable[[], float], file: StateFile | None = None,
        exporter: Exporter | None = None, figures: Path | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._adapter, self._clock, self._file = adapter, clock, file
        self._exporter, self._figures, self._labels = exporter, figures, dict(labels or {})
        self._writer = Writer(logger) if file is not None or figures is not None else None
        self._exported_s = self._logged_s = clock()
        self._timer = SaveTimer(self._logged_s)
        self._saved_steps = 0
        self.has_failed = False
        self._logged = deepcopy(adapter.counts)

    def load(self) -> None:
        """Load the state of an earlier server, and log its source."""
        controller = self._adapter.controller
        if self._file is None:
            logger.info("draftwise: nothing is kept across restarts (state is null)")
        elif self._file.restore(controller.load_state):
            num, path = controller.costs.num_steps, self._file.path
            logger.info("draftwise: prices of %d steps and acceptance from %s", num, path)

    @fused
    def tick(self) -> None:
        """After a step: export every second, save when due, and log every minute.

        An error stops this, not the engine.
        """
        now, is_idle = self._clock(), not self._adapter.num_running
        if now - self._exported_s >= 1.0 or is_idle:
            self._exported_s = now
            self.export()
        if self._timer.is_due(now) or is_idle:
            self.save()
        if now - self._logged_s >= 60.0:
            self.log(now)

    def export(self) -> None:
        if self._exporter is not None:
            self._exporter.export(self._samples(), self._labels)
        elif self._figures is not None and self._writer is not None:
            self._writer.write(self._figures, as_text(self._samples(), self._labels))

    def save(self) -> None:
        num = self._adapter.counts.steps
        if self._file is not None and self._writer is not None and num > self._saved_steps:
            self._saved_steps = num
            state = self._adapter.controller.state()
            self._writer.write(self._file.path, self._file.text(state))

    def log(self, now: float) -> None:
        """Log speed, tokens per second, and drafted and accepted tokens since the last log line."""
        counts, before, controller = self._adapter.counts, self._logged, self._adapter.controller
        guard, seconds = controller.guard, now - self._logged_s
        self._logged_s, self._logged = now, deepcopy(counts)
        emitted, rounds = counts.emitted - before.emitted, counts.rounds - before.rounds
        own_ms = 1e3 * (counts.own_s - before.own_s) / max(counts.steps - before.steps, 1)
        drafts = [
            f"{name}: {counts.accepted[name] - before.accepted[name]} of {num} tokens kept"
            for name in DRAFTERS
            if (num := counts.drafted[name] - before.drafted[name])
        ]
        parts = [
            f"{guard.recent_speed:.2f} times plain decoding ({guard.speed:.2f} since the start)",
            f"{emitted / seconds:.0f} tokens/s, {emitted / max(rounds, 1):.2f} a round",
            ", ".join(drafts) or "nothing was drafted",
            f"own time {own_ms:.2f} ms a step",
        ]
        if not controller.allows_drafts:
            parts.append("drafting rests: it has cost more than it brought")
        labels = sorted(counts.labels.items(), key=lambda of: -of[1].rounds)
        for label, of in labels[:8]:  # those with the most rounds
            parts.append(f"{label}: {of.account.recent_speed:.2f} ({of.account.speed:.2f})")
        logger.info("draftwise: %s", "; ".join(parts))

    def close(self) -> None:
        self.save()
        self.export()
        if self._writer is not None:
            self._writer.flush()

    def _samples(self) -> Iterator[Figure]:
        controller = self._adapter.controller
        return self._adapter.counts.figures(controller.guard, controller.allows_drafts)
