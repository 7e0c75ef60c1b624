"""What vLLM's entry point ``vllm.general_plugins`` runs in every process, before anything is built.

Nothing changes for a server that does not name one of draftwise's schedulers, but for the repair of
the CPU backend's verification, which is a bug for every sampled draft.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from draftwise.integrations.vllm.options import parse_options
from draftwise.integrations.vllm.refusals import (
    MODEL_METHODS,
    NULL_PROPOSER,
    check_server,
    is_null,
)
from draftwise.integrations.vllm.repair import checked
from draftwise.integrations.vllm.versions import check_version
from draftwise.types import DraftwiseError

logger = logging.getLogger("vllm.draftwise")

HOME = "draftwise.integrations.vllm"
SCHEDULER, ASYNC_SCHEDULER = f"{HOME}.Scheduler", f"{HOME}.AsyncScheduler"


def name_of(scheduler_cls: Any) -> str | None:
    """Which of draftwise's schedulers a server names, by path or by class; None = neither."""
    if isinstance(scheduler_cls, str):
        return scheduler_cls if scheduler_cls in {SCHEDULER, ASYNC_SCHEDULER} else None
    for kind in getattr(scheduler_cls, "__mro__", ()):
        if kind.__module__.startswith(HOME):
            return f"{HOME}.{kind.__name__}"
    return None


def plug_in() -> None:
    """Called by vLLM, possibly several times in a process."""
    import vllm

    try:
        check_version(vllm.__version__)
    except DraftwiseError as error:
        logger.info("%s", error)  # servers that ask for the scheduler are refused
        return
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import logits_processor, rejection_sampler

    if current_platform.is_cpu():
        _wrap(rejection_sampler, "expand_batch_to_tokens", checked)
    _wrap(EngineArgs, "create_engine_config", with_drafts)
    _wrap(logits_processor, "build_logitsprocs", with_processors)
    _wrap(SamplingParams, "_validate_spec_decode", with_all_parameters)


def with_drafts(create: Callable[..., Any]) -> Callable[..., Any]:
    """``EngineArgs.create_engine_config`` for servers that name a scheduler of draftwise."""

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.scheduler_cls)
        if name is None:
            return create(self, *args, **kwargs)
        prepare(self, name)
        config = create(self, *args, **kwargs)
        check_server(config, asynchronous=name == ASYNC_SCHEDULER)
        if is_slow_cpu(config, os.environ):
            logger.warning(
                "speculation on the CPU is many times slower without Intel's OpenMP: start vLLM "
                "with LD_PRELOAD naming libiomp5.so (pip install intel-openmp) and libtcmalloc"
            )
        return config

    return create_engine_config


def prepare(args: Any, name: str) -> None:
    """Fill in what the user need not type; ``args`` are vLLM's ``EngineArgs``."""
    options = parse_options((args.additional_config or {}).get("draftwise"))
    given = (args.speculative_config, args.spec_method, args.spec_model, args.spec_tokens)
    if all(value is None for value in given) and name == SCHEDULER:
        args.speculative_config = {
            "method": "custom_class",
            "model": NULL_PROPOSER,
            "num_speculative_tokens": options.max_length,
        }
    elif args.speculative_config is not None:
        args.speculative_config = adapted(args.speculative_config, args.max_num_seqs, name)
    if name == SCHEDULER and args.async_scheduling is None:
        args.async_scheduling = False


def adapted(given: dict[str, Any], max_num_seqs: int | None, name: str) -> dict[str, Any]:
    """A speculative config that says that the drafted length changes from step to step.

    vLLM prepares its graphs by it. For asynchronous scheduling every length is named once, since
    the V2 runner captures a graph for each of them.

    >>> adapted({"method": "mtp", "num_speculative_tokens": 2}, 8, ASYNC_SCHEDULER)[
    ...     "num_speculative_tokens_per_batch_size"]
    [[1, 1, 0], [2, 2, 1], [3, 8, 2]]
    """
    key, longest = "num_speculative_tokens_per_batch_size", given.get("num_speculative_tokens")
    is_model = given.get("method", "draft_model") in MODEL_METHODS
    if given.get(key) or not longest or not is_model:
        return given
    last = max(max_num_seqs or 1024, longest + 1)
    if name == SCHEDULER:
        return given | {key: [[1, last, longest]]}
    each = [[length + 1, length + 1, length] for length in range(longest)]
    return given | {key: [*each, [longest + 1, last, longest]]}


def is_slow_cpu(config: Any, environment: Any) -> bool:
    """Whether this is the CPU backend without Intel's OpenMP."""
    is_cpu = config.device_config.device_type == "cpu"
    return is_cpu and "libiomp5" not in environment.get("LD_PRELOAD", "")


def with_processors(build: Callable[..., Any]) -> Callable[..., Any]:
    """``build_logitsprocs`` that keeps min_p and logit_bias where draftwise schedules.

    vLLM builds neither for a server that speculates. Requests that use them play ``none`` here, and
    what a request without a draft samples does go through all processors.
    """

    @functools.wraps(build)
    def build_logitsprocs(
        vllm_config: Any, device: Any, is_pin_memory: bool, *args: Any, **kwargs: Any
    ) -> Any:
        built = build(vllm_config, device, is_pin_memory, *args, **kwargs)
        speculative = vllm_config.speculative_config
        if speculative is None or not is_null(speculative):
            return built
        from vllm.v1.sample import logits_processor

        kinds = logits_processor.BUILTIN_LOGITS_PROCESSORS
        return type(built)(kind(vllm_config, device, is_pin_memory) for kind in kinds)

    return build_logitsprocs


def with_all_parameters(validate: Callable[..., Any]) -> Callable[..., Any]:
    """``SamplingParams._validate_spec_decode``, which refuses min_p and logit_bias.

    Where retrieval alone drafts they are served; beside vLLM's own drafter vLLM still refuses them.
    """

    @functools.wraps(validate)
    def validate_spec_decode(self: Any, speculative_config: Any) -> Any:
        if speculative_config is not None and is_null(speculative_config):
            return None
        return validate(self, speculative_config)

    return validate_spec_decode


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Wrap once, however often a process loads plug-ins."""
    if not hasattr(getattr(owner, name), "__wrapped__"):
        setattr(owner, name, wrapper(getattr(owner, name)))
