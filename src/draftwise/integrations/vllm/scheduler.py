"""``--scheduler-cls draftwise.integrations.vllm.Scheduler``: vLLM's own, with other drafts."""

from __future__ import annotations

import time
from typing import Any

import prometheus_client
import vllm.envs as envs
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

from draftwise.integrations.vllm.controller import Controller, Limits
from draftwise.integrations.vllm.metrics import new_exporter
from draftwise.integrations.vllm.options import parse_options
from draftwise.integrations.vllm.pilot import Pilot
from draftwise.integrations.vllm.refusals import check_server, is_null
from draftwise.integrations.vllm.state import StateFile, state_path


class Scheduler(VllmScheduler):  # type: ignore[misc]
    """vLLM's scheduler, in which every request drafts with what pays, at the length that pays.

    Of vLLM's own methods three are wrapped, each calling it: ``schedule`` is timed,
    ``update_from_output`` also teaches, ``update_draft_token_ids`` swaps the drafts; and
    ``dynamic_sd_lookup`` answers how much vLLM's own drafter writes. Everything of draftwise runs
    in this one process, so ranks cannot come apart.
    Errors: DraftwiseError for a server that cannot have it, with the reason.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_server(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)
        speculative = vllm_config.speculative_config
        limits = Limits(
            longest=self.num_spec_tokens,
            budget=self.max_num_scheduled_tokens,
            capacity=self.max_model_len,
            model=None if is_null(speculative) else speculative.method,
        )
        options = parse_options(vllm_config.additional_config.get("draftwise"))
        controller = Controller(options, limits)
        model = vllm_config.model_config
        about = {"policy": options.policy, "plans": [str(p) for p in controller.plans]}
        path = state_path(options.state, model.model, envs.VLLM_CACHE_ROOT)
        self.draftwise = Pilot(
            controller,
            self.requests,
            limits.longest,
            self.max_model_len,
            time.perf_counter,
            StateFile(path, about),
            new_exporter(str(model.served_model_name), prometheus_client)
            if self.log_stats
            else None,
        )
        self.dynamic_sd_lookup = self.draftwise

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM; the step's clock starts."""
        self.draftwise.starts()
        return super().schedule(*args, **kwargs)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM; and what was emitted teaches the policies."""
        facts, step = self.draftwise.facts(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.draftwise.learn(facts, step)
        return outputs

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """As vLLM, with the drafts that were chosen."""
        self.draftwise.draft(draft_token_ids)
        super().update_draft_token_ids(draft_token_ids)

    def shutdown(self) -> None:
        """As vLLM; what was learnt is written."""
        self.draftwise.save()
        super().shutdown()
