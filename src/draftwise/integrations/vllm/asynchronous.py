"""``--scheduler-cls draftwise.integrations.vllm.AsyncScheduler``: lengths, for CUDA and runner V2.

Written against the sources of vLLM 0.32 and tested with fakes; it was never run on a GPU.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler

from draftwise.integrations.vllm.lengths import Lengths
from draftwise.integrations.vllm.options import parse_options
from draftwise.integrations.vllm.refusals import check_server


class AsyncScheduler(VllmAsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, in which each request has as much verified as pays.

    Drafts are written and kept on the device; the scheduler sets their lengths only, and how much
    is drafted in a step. UNTESTED ON HARDWARE.
    Errors: DraftwiseError for a server that cannot have it, with the reason.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_server(vllm_config, asynchronous=True)
        super().__init__(vllm_config, *args, **kwargs)
        self.draftwise = Lengths(
            parse_options(vllm_config.additional_config.get("draftwise")),
            vllm_config.speculative_config.method,
            self.num_spec_tokens,
            self.max_model_len,
            time.perf_counter,
        )
        self.dynamic_sd_lookup = self.draftwise

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """As vLLM; then fewer placeholders, where fewer pay."""
        super()._update_after_schedule(scheduler_output)
        self.draftwise.choose(self.requests, list(scheduler_output.num_scheduled_tokens))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM; and the accepted lengths teach the policies, one step late."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.draftwise.learn(self.requests, scheduler_output, model_runner_output)
        return outputs
