"""The entry point ``vllm.general_plugins``, which vLLM runs early in every process.

Servers that do not name a draftwise scheduler are unchanged, except that the CPU backend's
verification is repaired, which is wrong for every sampled draft. This module must not import numba:
vLLM's CPU backend searches all loaded modules for kernels, and objects of numba end that search
with an AttributeError (0.32). The schedulers import numba later, after the worker was created.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftwise.errors import DraftwiseError
from draftwise.integrations.vllm.capabilities import check_capabilities
from draftwise.integrations.vllm.metrics import open_folder
from draftwise.integrations.vllm.options import parse_options, wishes_of
from draftwise.integrations.vllm.refusals import (
    MODEL_METHODS,
    NULL_PROPOSER,
    advice,
    check_arguments,
    check_server,
    is_null,
)
from draftwise.integrations.vllm.repair import checked
from draftwise.integrations.vllm.state import check_path

logger = logging.getLogger("vllm.draftwise")

HOME = "draftwise.integrations.vllm"
SCHEDULER, ASYNC_SCHEDULER = f"{HOME}.Scheduler", f"{HOME}.AsyncScheduler"
MARK = "__draftwise__"
"""Attribute of what this plug-in has wrapped, and of the speculative configs of its servers."""
LENGTHS = "num_speculative_tokens_per_batch_size"


def name_of(scheduler_cls: Any) -> str | None:
    """The draftwise scheduler that a server names, by path or class; None = neither."""
    if isinstance(scheduler_cls, str):
        name = scheduler_cls.replace(f"{HOME}.scheduler.", f"{HOME}.")
        return name if name in {SCHEDULER, ASYNC_SCHEDULER} else None
    for kind in getattr(scheduler_cls, "__mro__", ()):
        if kind.__module__.startswith(HOME):
            return f"{HOME}.{kind.__name__}"
    return None


def plug_in() -> None:
    """The entry point; vLLM may call it several times in a process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import logits_processor, rejection_sampler

    if current_platform.is_cpu():
        wrap(rejection_sampler, "expand_batch_to_tokens", checked)
    wrap(rejection_sampler.RejectionSampler, "__init__", with_plain_steps)
    wrap(EngineArgs, "create_engine_config", with_drafts)
    wrap(logits_processor, "build_logitsprocs", with_processors)
    wrap(SamplingParams, "_validate_spec_decode", with_all_parameters)


def with_drafts(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``EngineArgs.create_engine_config`` for servers with a draftwise scheduler."""

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.scheduler_cls)
        if name is None:
            return create(self, *args, **kwargs)
        import prometheus_client
        import vllm

        is_async = name == ASYNC_SCHEDULER
        logger.info("draftwise wraps of vLLM: %s", ", ".join(_wrapped))
        check_capabilities(Path(vllm.__file__).parent, asynchronous=is_async)
        prepare(self, name)
        config = create(self, *args, **kwargs)
        check_server(config, asynchronous=is_async)
        setattr(config.speculative_config, MARK, True)  # pickled with it, to every process
        for line in advice(config, asynchronous=is_async):
            logger.warning("draftwise: %s", line)
        is_cpu = config.device_config.device_type == "cpu"
        if is_cpu and "libiomp5" not in os.environ.get("LD_PRELOAD", ""):
            logger.warning(
                "speculation on the CPU is many times slower without Intel's OpenMP: start vLLM "
                "with LD_PRELOAD naming libiomp5.so (pip install intel-openmp) and libtcmalloc"
            )
        if not getattr(self, "disable_log_stats", False):
            open_folder(os.environ, prometheus_client.REGISTRY)
        return config

    return create_engine_config


def prepare(args: Any, name: str) -> None:
    """Check the arguments and fill in defaults; ``args``: vLLM's ``EngineArgs``.

    Raises DraftwiseError for wrong options, before a model is loaded.
    """
    options = parse_options((args.additional_config or {}).get("draftwise"))
    check_path(options.state)
    args.speculative_config = given_config(args)
    check_arguments(args, options, asynchronous=name == ASYNC_SCHEDULER)
    if args.speculative_config is None:
        null = {"method": "custom_class", "model": NULL_PROPOSER}
        args.speculative_config = null | {"num_speculative_tokens": options.max_draft}
    else:
        args.speculative_config = adapted(args.speculative_config, args.max_num_seqs, name)
    if name == SCHEDULER:
        if args.async_scheduling is None:
            args.async_scheduling = False
        use_piecewise_graphs(args.compilation_config)


def given_config(args: Any) -> dict[str, Any] | None:
    """The speculative config, including ``--spec-method``, ``--spec-model``, ``--spec-tokens``."""
    flags = {
        "--spec-method": ("method", "spec_method"),
        "--spec-model": ("model", "spec_model"),
        "--spec-tokens": ("num_speculative_tokens", "spec_tokens"),
    }
    found = {key.replace("-", "_"): v for key, v in (args.speculative_config or {}).items()}
    for flag, (key, attribute) in flags.items():
        if (value := getattr(args, attribute, None)) is not None:
            if key in found:
                raise DraftwiseError(f"{flag} and {key!r} of --speculative-config clash: give one")
            found[key] = value
            setattr(args, attribute, None)
    return found or None


def use_piecewise_graphs(compilation: Any) -> None:
    """Select piecewise CUDA graphs, unless the user chose a mode.

    Runner V1 would capture full graphs for steps in which every request has the longest draft,
    which are rare, and round all other sizes up to multiples of that length plus one.
    """
    if compilation is None or getattr(compilation, "cudagraph_mode", None) is not None:
        return
    try:
        from vllm.config import CUDAGraphMode

        compilation.cudagraph_mode = CUDAGraphMode.PIECEWISE
    except ImportError as error:
        logger.warning("draftwise: cannot choose piecewise CUDA graphs: %s", error)


def adapted(given: dict[str, Any], max_num_seqs: int | None, name: str) -> dict[str, Any]:
    """A speculative config whose number of drafted tokens changes from step to step.

    vLLM prepares its graphs accordingly. For asynchronous scheduling every length is listed once,
    since the V2 runner captures a graph for each, up to one for each number of requests: the
    longest draft and the shortest ones come first.

    >>> adapted({"method": "mtp", "num_speculative_tokens": 2}, 8, ASYNC_SCHEDULER)[
    ...     "num_speculative_tokens_per_batch_size"]
    [[1, 1, 0], [2, 2, 1], [3, 8, 2]]
    """
    method = given.get("method") or "draft_model"
    is_model = method in MODEL_METHODS or method.endswith("_mtp")  # vLLM renames these to mtp
    if given.get(LENGTHS) or not is_model:
        return given
    longest = given.get("num_speculative_tokens")
    if not longest:
        raise DraftwiseError(
            "the speculative config has no num_speculative_tokens: draftwise lists the lengths of "
            'drafts before vLLM reads the model, so add "num_speculative_tokens" (or --spec-tokens)'
        )
    last = max_num_seqs or 1024
    num = min(longest, last - 1) if name == ASYNC_SCHEDULER else 0
    each = [[length + 1, length + 1, length] for length in range(num)]
    return given | {LENGTHS: [*each, [num + 1, last, longest]]}


def with_plain_steps(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``RejectionSampler.__init__``: steps without drafts are sampled as without speculation.

    vLLM's rejection sampler copies the logits of all requests and verifies empty drafts. In a step
    without drafts its output is the bonus tokens, which the sampler draws from the same logits.
    """

    @functools.wraps(init)
    def initialise(
        self: Any, sampler: Any, spec_config: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        init(self, sampler, spec_config, *args, **kwargs)
        if not is_of_draftwise(spec_config):
            return
        verify = self.forward

        def forward(metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
            if any(metadata.num_draft_tokens):
                return verify(metadata, draft_probs, logits, sampling_metadata)
            return sampler(
                logits=logits, sampling_metadata=sampling_metadata, predict_bonus_token=True
            )

        self.forward = forward

    return initialise


def is_of_draftwise(speculative: Any) -> bool:
    """Whether a speculative config is of a server with a draftwise scheduler."""
    return hasattr(speculative, MARK)


def with_processors(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``build_logitsprocs`` to keep min_p and logit_bias under a draftwise scheduler.

    vLLM builds neither for a server that speculates. Requests that use them get no drafts, and
    sampling without a draft applies all processors.
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
    """Wrap ``SamplingParams._validate_spec_decode``, which refuses min_p and logit_bias.

    With retrieval alone they are served; with vLLM's own drafter vLLM still refuses them. A bad
    value in a request's ``extra_args`` is refused here as well.
    """

    @functools.wraps(validate)
    def validate_spec_decode(self: Any, speculative_config: Any) -> Any:
        has_null = speculative_config is not None and is_null(speculative_config)
        if is_of_draftwise(speculative_config):
            try:
                wishes_of(self.extra_args)
            except DraftwiseError as error:
                raise _refusal(str(error)) from error
        return None if has_null else validate(self, speculative_config)

    return validate_spec_decode


def _refusal(message: str) -> Exception:
    """vLLM's exception for an answer with status 400."""
    try:
        from vllm.exceptions import VLLMValidationError
    except ImportError:
        return ValueError(message)
    found: Exception = VLLMValidationError(message)
    return found


_wrapped: list[str] = []


def wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Wrap a function once per process, with a log line in servers.

    A function that is already wrapped by someone else is wrapped again. If vLLM has no such
    function, nothing happens: ``check_capabilities`` refuses servers that need it.
    """
    found = getattr(owner, name, None)
    if found is None or hasattr(found, MARK):
        return
    wrapped = wrapper(found)
    setattr(wrapped, MARK, True)
    setattr(owner, name, wrapped)
    _wrapped.append(f"{getattr(owner, '__name__', owner)}.{name}")
