"""The schedulers: ``--scheduler-cls draftwise.integrations.vllm.Scheduler``."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import vllm
import vllm.envs as envs
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

import draftwise
from draftwise.compiled import warm_up
from draftwise.controller.controller import Controller, Limits
from draftwise.files import cpu_name
from draftwise.integrations.vllm.adapter import Adapter
from draftwise.integrations.vllm.ahead import NAME, AsyncAdapter, Reports
from draftwise.integrations.vllm.capabilities import check_capabilities
from draftwise.integrations.vllm.metrics import FOLDER, MULTIPROC, Exporter
from draftwise.integrations.vllm.options import PluginOptions, parse_options, read_costs
from draftwise.integrations.vllm.refusals import check_server, limits_of
from draftwise.integrations.vllm.upkeep import Upkeep, about_of
from draftwise.state import StateFile, state_path

logger = logging.getLogger("vllm.draftwise")


class Lengths:
    """In place of vLLM's table of draft lengths by number of requests: always the adapter's."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __getitem__(self, num_requests: int) -> int:
        return self._adapter.num_to_draft


class _Steps(VllmScheduler):  # type: ignore[misc]
    """Base of both schedulers. Decisions are made in the scheduler's process, so ranks cannot
    disagree. Errors: DraftwiseError with the reason if the server is not supported.
    """

    _asynchronous = False

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_capabilities(Path(vllm.__file__).parent, asynchronous=self._asynchronous)
        check_server(vllm_config, asynchronous=self._asynchronous)
        super().__init__(vllm_config, *args, **kwargs)
        options = parse_options(vllm_config.additional_config.get("draftwise"))
        limits = limits_of(vllm_config, options, asynchronous=self._asynchronous)
        warm_up(logger)
        self.draftwise = self._adapter(limits, options, vllm_config.speculative_config)
        if options.costs is not None:  # a saved state replaces these costs
            self.draftwise.controller.costs.load_table(*read_costs(options.costs))
        self._upkeep = _upkeep(self, vllm_config, options)
        self.dynamic_sd_lookup = Lengths(self.draftwise)

    def _adapter(self, limits: Limits, options: PluginOptions, speculative: Any) -> Adapter:
        controller = Controller(limits, history_tokens=options.history_tokens)
        return Adapter(controller, self.requests, self.max_model_len, time.perf_counter)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As in vLLM; starts the step's clock."""
        self.draftwise.starts()
        return super().schedule(*args, **kwargs)

    def get_grammar_bitmask(self, *args: Any, **kwargs: Any) -> Any:
        """As in vLLM; runs deferred work while the model computes."""
        mask = super().get_grammar_bitmask(*args, **kwargs)
        self.draftwise.work()
        return mask

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As in vLLM; the controller learns from the step."""
        self.draftwise.came_back(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.draftwise.learn(scheduler_output, model_runner_output)
        self._upkeep.tick()
        return outputs

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in vLLM; also drops the history of answers, since the weights may have changed."""
        done = super().reset_prefix_cache(*args, **kwargs)
        self.draftwise.forget()
        return done

    def shutdown(self) -> None:
        """As in vLLM; writes the state."""
        self._upkeep.close()
        super().shutdown()


class Scheduler(_Steps, VllmAsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler on model runner V2; each request uses the drafter and draft
    length with the highest gain.

    Drafts stay on the device, where the workers choose drafters by the scheduler's orders. Where
    a server runs on runner V1, the plug-in takes ``SynchronousScheduler`` instead.
    """

    _asynchronous = True
    draftwise: AsyncAdapter

    def _adapter(self, limits: Limits, options: PluginOptions, speculative: Any) -> AsyncAdapter:
        reports, width = Reports(limits.max_draft), speculative.num_speculative_tokens
        return AsyncAdapter(
            Controller(limits, index=reports), self.requests, self.max_model_len, time.perf_counter,
            reports=reports, width=width, fallback=limits.longest_model or width,
            divides=bool(speculative.enable_adaptive_verification),
        )  # fmt: skip

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As in vLLM, with drafts cut to the tokens worth verifying, and orders for the workers."""
        self.draftwise.shorten()
        scheduled = super().schedule(*args, **kwargs)
        setattr(scheduled, NAME, self.draftwise.orders(scheduled))
        return scheduled


class SynchronousScheduler(_Steps):
    """vLLM's synchronous scheduler on model runner V1: drafts pass through the host."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """As in vLLM, with the controller's drafts."""
        self.draftwise.draft(draft_token_ids)
        super().update_draft_token_ids(draft_token_ids)


def _upkeep(scheduler: _Steps, config: Any, options: PluginOptions) -> Upkeep:
    """The upkeep of one engine, with its saved state; logs what is active."""
    adapter, parallel = scheduler.draftwise, config.parallel_config
    limits, file = adapter.controller.limits, None
    rank = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank) or 0)
    if options.state is not None:
        versions = {"vllm": vllm.__version__, "draftwise": draftwise.__version__}
        about = about_of(config, limits.max_draft, _device_name(), versions)
        path = state_path(options.state, about, envs.VLLM_CACHE_ROOT, rank)
        file = StateFile(path, about, logger)
    exporter, figures = _sinks(rank) if scheduler.log_stats else (None, None)
    name = config.model_config.served_model_name
    labels = {"model_name": str(name[0] if isinstance(name, list) else name), "engine": str(rank)}
    drafters = ["retrieval"] * limits.retrieval + [config.speculative_config.method] * limits.model
    logger.info(
        "draftwise %s is active in vLLM %s: drafts by %s, at most %d tokens each, %d tokens in a "
        "step; state: %s; counters in /metrics: %s",
        draftwise.__version__, vllm.__version__, " and ".join(drafters), limits.max_draft,
        limits.max_step_tokens, file.path if file else "not kept",
        "yes" if exporter or figures else "no (vLLM's statistics are off, or this engine was not "
        "started by a process with draftwise's plug-in; the log has them)",
    )  # fmt: skip
    upkeep = Upkeep(adapter, time.perf_counter, file, exporter, figures, labels)
    upkeep.load()
    upkeep.export()
    return upkeep


def _sinks(rank: int) -> tuple[Exporter | None, Path | None]:
    """Destinations of metrics: prometheus_client, or a metrics file; both None without either."""
    if os.environ.get(MULTIPROC):
        import prometheus_client

        return Exporter(prometheus_client), None
    folder = os.environ.get(FOLDER)
    return None, Path(folder) / f"engine{rank}.json" if folder else None


def _device_name() -> str:
    """Name of the accelerator; for a CPU also its model, usable cores and threads."""
    name = str(current_platform.get_device_name())
    if not current_platform.is_cpu():
        return name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS") or "all"
    return f"{name}, {cpu_name()}, {cores} cores, {threads} threads"
