"""Mixed drafts in vLLM's workers (runner V2): wraps what vLLM builds, by name.

``init_speculator`` builds the drafter of a worker. The wrap keeps vLLM's instance, replaces its
``propose``, and wraps ``execute_model`` and ``sample_tokens`` of the runner, which carry the
scheduler's orders in and reports of drafts out. An error leaves vLLM's own drafts.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from draftwise.controller.acceptance import Int32
from draftwise.controller.mixing import Hazards
from draftwise.integrations.vllm import ahead
from draftwise.integrations.vllm.adapter import fused
from draftwise.integrations.vllm.ahead import Orders, Report
from draftwise.integrations.vllm.options import RETRIEVAL, parse_options
from draftwise.integrations.vllm.refusals import MARK

logger = logging.getLogger("vllm.draftwise")

HOME = "vllm.v1.worker.gpu"
RUNNER = f"{HOME}.model_runner"
Function = Callable[..., Any]


def with_mixer(make: Function, wrap: Function, config: Any, device: Any, req_states: Any) -> Any:
    """Wrap ``init_speculator``. wrap: replaces a method of a class, once.

    The texts, which vLLM keeps in the host's memory for most drafters, move to the device: 4 bytes
    for each of ``max_num_seqs * max_model_len`` tokens.
    """
    speculator = make(config, device, req_states)
    if not hasattr(config.speculative_config, MARK):
        return speculator
    mixer = Mixer(speculator, config, device, req_states)
    speculator.propose = mixer.propose
    setattr(speculator, MARK, mixer)
    runner = sys.modules[RUNNER].GPUModelRunner
    wrap(runner, "execute_model", with_orders)
    wrap(runner, "sample_tokens", with_report)
    if mixer.divides:
        setattr(req_states, MARK, mixer)
        manager = sys.modules[f"{HOME}.spec_decode.adaptive_verification"]
        wrap(manager.AdaptiveVerificationManager, "get_num_tokens", with_budget)
        speculator.observe_verification = mixer.observe_verification
    return speculator


def mixer_of(runner: Any) -> Mixer | None:
    return getattr(getattr(runner, "speculator", None), MARK, None)


def with_orders(execute: Function, self: Any, scheduler_output: Any, *args: Any, **kw: Any) -> Any:
    """Wrap ``GPUModelRunner.execute_model``: the orders of a step reach the drafter."""
    mixer, orders = mixer_of(self), getattr(scheduler_output, ahead.NAME, None)
    if mixer is not None:
        mixer.budget = None if orders is None else orders.budget
        if orders is not None:
            mixer.remember(orders)  # before the slots of ended requests are given away
    done = execute(self, scheduler_output, *args, **kw)
    if mixer is not None:
        mixer.take(orders)
    return done


def with_report(sample: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``GPUModelRunner.sample_tokens``: drafts of the step before return with this one."""
    mixer = mixer_of(self)
    earlier = None if mixer is None else mixer.copied
    output = sample(self, *args, **kwargs)
    if mixer is None or output is None or not hasattr(output, "get_output"):
        return output
    mixer.copy(self.output_copy_stream, self.main_stream)
    if mixer.is_on:
        get = output.get_output

        def get_output() -> Any:
            done = get()
            setattr(done, ahead.NAME, mixer.report(earlier))
            return done

        output.get_output = get_output
    return output


def with_budget(get: Function, self: Any, *args: Any, **kwargs: Any) -> int:
    """Wrap ``AdaptiveVerificationManager.get_num_tokens``: the scheduler's budget of a step."""
    total: int = get(self, *args, **kwargs)
    mixer: Mixer = getattr(self.req_states, MARK)
    return mixer.budgeted(self) or total


class Copied(NamedTuple):
    """Facts on their way to the host. source: kept, since another stream reads it."""

    names: list[str]
    facts: Int32
    event: Any
    source: torch.Tensor


class Mixer:
    """Writes the drafts of one worker: by the model drafter, by retrieval, or by both.

    ``divides``: whether vLLM's adaptive verification divides the budget of a step among its
    requests. ``copied``: names of the latest batch, with its facts on their way to the host.
    """

    failure = "draftwise failed in a worker: vLLM's own drafts are verified from here on"

    def __init__(self, speculator: Any, config: Any, device: Any, req_states: Any) -> None:
        from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

        from draftwise.integrations.vllm.kernels import ROW, Drafting

        self.has_failed, self.budget = False, None
        self.divides = bool(getattr(speculator, "enable_adaptive_verification", False))
        self._confidence: Any = getattr(speculator, "draft_token_confidence_probs", None)
        self.has_head = not config.speculative_config.use_ngram()
        self._head, self._states, self._device = speculator.propose, req_states, device
        self._observe: Any = getattr(speculator, "observe_verification", None)
        num, width = req_states.max_num_reqs, req_states.num_speculative_steps
        if self.has_head:
            req_states.all_token_ids = StagedWriteTensor(
                (num, req_states.max_model_len), dtype=torch.int32, device=device
            )
        options = parse_options(config.additional_config.get("draftwise"))
        searches = RETRIEVAL in options.drafters
        self._drafting = Drafting(
            num, req_states.max_model_len, width, device,
            options.history_tokens if searches else 0, searches,
        )  # fmt: skip
        self._rows = np.zeros((num, ROW), np.int32)
        self._orders: Orders | None = None
        self._names: list[str] = []
        self._is_warm = False
        self.copied: Copied | None = None

    @fused
    def budgeted(self, manager: Any) -> int | None:
        """Tokens of a step with the budget of its orders; None without orders."""
        if self.budget is None or manager._batch_budget is None:
            return None
        drafts, others, _ = manager._batch_budget
        room = manager._max_total_logits - len(drafts) * manager.num_bonus_tokens
        budget = max(min(self.budget, sum(drafts.values()), room), 0)
        manager._batch_budget = drafts, others, budget
        return int(sum(others.values())) + budget

    @property
    def is_on(self) -> bool:
        return self._orders is not None and not self.has_failed

    def take(self, orders: Orders | None) -> None:
        """Take the orders of a step, after the runner has placed its requests in slots."""
        self._orders = orders
        if orders is not None:
            self._place(orders)

    @fused
    def remember(self, orders: Orders) -> None:
        """Move answers of requests that have ended to the history."""
        if orders.forgets:
            self._drafting.forget()
        for name, begin, end, tenant in orders.ended:
            if (slot := self._states.req_id_to_index.get(name)) is not None:
                text = self._states.all_token_ids.gpu[slot, begin:end]
                self._drafting.remember(text, tenant)

    @fused
    def _place(self, orders: Orders) -> None:
        slots, rows = self._states.req_id_to_index, self._rows
        for name, may in orders.begun.items():
            if (slot := slots.get(name)) is not None:
                rows[slot, :4] = may.model, may.retrieval, may.room, 1
                rows[slot, 4:6] = np.ones(2, np.float32).view(np.int32)
                rows[slot, 6] = may.tenant
        places = [i for i, name in enumerate(orders.names) if name in slots]
        if places:
            own = [slots[orders.names[i]] for i in places]
            rows[own, 4:6] = np.ascontiguousarray(orders.factors[places], np.float32).view(np.int32)

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the drafter's ``propose``, with the drafts that the orders want."""
        if not self._is_warm:  # vLLM's first call profiles memory, before any request
            self._is_warm = True
            self._warm_up()
        orders = self._orders
        if orders is None or self.has_failed or kwargs.get("dummy_run"):
            return self._head(input_batch, *args, **kwargs)  # type: ignore[no-any-return]
        head = self._drafting.drafts
        num_head = min(orders.head, self._drafting.num) if self.has_head else 0
        if self.has_head:
            head = self._head(input_batch, *args, **kwargs | {"num_speculative_tokens": num_head})
        self._names = []
        if orders.hazards is None:  # the scheduler has no use for drafts of this step
            return head[: input_batch.num_reqs]
        drafts = self._mix(orders, orders.hazards, input_batch, args, head, num_head)
        if drafts is None:  # the last columns may hold vLLM's placeholder
            return head[: input_batch.num_reqs].clamp(min=0)
        return drafts

    @fused
    def _warm_up(self) -> None:
        text, lengths = self._states.all_token_ids.gpu, self._states.total_len.gpu
        self._drafting.warm_up(text, lengths, self._confidence if self.divides else None)

    @fused
    def _mix(
        self, orders: Orders, hazards: Hazards, batch: Any, args: tuple[Any, ...], head: Any,
        num_head: int,
    ) -> torch.Tensor:  # fmt: skip
        num_sampled, num_rejected = args[4], args[5]
        num, slots, states = batch.num_reqs, batch.idx_mapping_np[: batch.num_reqs], self._states
        flat = np.concatenate([array.ravel() for array in hazards])
        rows = self._rows[slots]
        self._rows[slots, 3] = 0
        sent = torch.from_numpy(np.concatenate([rows.ravel(), flat.view(np.int32)]))
        if self._device.type == "cuda":
            sent = sent.pin_memory()
        sent = sent.to(self._device, non_blocking=True)
        self._drafting(
            states.all_token_ids.gpu, states.total_len.gpu, batch.idx_mapping[:num],
            num_sampled[:num], num_rejected[:num], head, num_head,
            sent[rows.size :].view(torch.float32), sent[: rows.size].view(num, -1), orders.price,
            int(batch.seq_lens_cpu_upper_bound[:num].max()) + 1,
            self._confidence if self.divides else None,
        )  # fmt: skip
        if self.divides:
            self._confidence[:num] = self._drafting.confidence[:num]
        self._names = list(batch.req_ids)
        return self._drafting.drafts[:num]

    def observe_verification(
        self, idx_mapping: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor
    ) -> None:
        """As the drafter's; tokens of retrieval teach vLLM nothing about the model's."""
        counts = num_sampled, num_rejected
        masked = self._masked(idx_mapping, *counts) if self.is_on else None
        self._observe(idx_mapping, *(masked or counts))

    @fused
    def _masked(
        self, idx_mapping: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled and rejected tokens as if only the model's had been verified."""
        by_model = self._drafting.memory[idx_mapping, 1]
        kept = (num_sampled - 1).clamp(min=0)
        admitted = torch.minimum(kept + num_rejected, by_model)
        kept = torch.minimum(kept, admitted)
        sampled = torch.where(by_model == 0, 0, kept + 1).to(num_sampled.dtype)
        return sampled, (admitted - kept).to(num_rejected.dtype)

    def copy(self, copy_stream: Any, main_stream: Any) -> None:
        """Start to copy the facts of the latest drafts to the host, beside the next step."""
        self.copied = None
        if self.is_on and self._names:
            self._copy(copy_stream, main_stream)

    @fused
    def _copy(self, copy_stream: Any, main_stream: Any) -> None:
        from vllm.v1.worker.gpu.async_utils import async_copy_to_np, stream

        facts = self._drafting.facts[: len(self._names)].clone()
        with stream(copy_stream, main_stream):
            copy_stream.wait_stream(main_stream)
            done = async_copy_to_np(facts)
            event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(copy_stream)
        self.copied = Copied(self._names, done, event, facts)

    @fused
    def report(self, copied: Copied | None) -> Report | None:
        """Facts of earlier drafts, once they have arrived; None after a failure."""
        if self.has_failed:
            return None
        if copied is None:
            return Report((), np.zeros((0, 0), np.int32))
        copied.event.synchronize()
        return Report(copied.names, copied.facts)
