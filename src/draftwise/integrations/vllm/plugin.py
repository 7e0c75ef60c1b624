"""The entry point ``vllm.general_plugins``, which vLLM runs early in every process.

Servers that do not name a draftwise scheduler are unchanged, except for a fix to the CPU backend,
whose verification is wrong for every sampled draft. This module must not import numba: vLLM's CPU
backend searches all loaded modules for kernels, and numba's objects make that search fail with an
AttributeError (0.32). The schedulers import numba after the worker has been created.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.errors import DraftwiseError
from draftwise.integrations.vllm import refusals
from draftwise.integrations.vllm.capabilities import check_capabilities, missing
from draftwise.integrations.vllm.metrics import open_folder
from draftwise.integrations.vllm.options import RETRIEVAL, PluginOptions, parse_options, wishes_of
from draftwise.integrations.vllm.refusals import LENGTHS, MARK, NULL_PROPOSER, TABLE, is_null
from draftwise.state import check_path

logger = logging.getLogger("vllm.draftwise")

HOME = "draftwise.integrations.vllm"
SCHEDULER, SYNCHRONOUS = f"{HOME}.Scheduler", f"{HOME}.SynchronousScheduler"
Function = Callable[..., Any]
_wrapped: list[str] = []


def plug_in() -> None:
    """Wrap vLLM's functions; vLLM may call this entry point several times in a process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import logits_processor, rejection_sampler
    from vllm.v1.worker.gpu import spec_decode

    if current_platform.is_cpu():
        wrap(rejection_sampler, "expand_batch_to_tokens", repaired)
    wrap(rejection_sampler.RejectionSampler, "__init__", with_plain_steps)
    wrap(EngineArgs, "create_engine_config", with_drafts)
    wrap(logits_processor, "build_logitsprocs", with_processors)
    wrap(SamplingParams, "_validate_spec_decode", with_all_parameters)
    for module in (spec_decode, sys.modules.get("vllm.v1.worker.gpu.model_runner")):
        wrap(module, "init_speculator", with_device_drafts)


def wrap(owner: Any, name: str, wrapper: Function) -> None:
    """Replace a function once per process by ``wrapper``, whose first argument is the original.

    A function that another plug-in has wrapped is wrapped again. If vLLM has no such function,
    nothing happens: ``check_capabilities`` rejects servers that need it.
    """
    found = getattr(owner, name, None)
    if found is None or hasattr(found, MARK):
        return

    @functools.wraps(found)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(found, *args, **kwargs)

    setattr(wrapped, MARK, True)
    setattr(owner, name, wrapped)
    _wrapped.append(f"{getattr(owner, '__name__', owner)}.{name}")


def name_of(scheduler_cls: Any) -> str | None:
    """The draftwise scheduler that ``scheduler_cls`` is, by path or class; None = neither."""
    if isinstance(scheduler_cls, str):
        name = scheduler_cls.replace(f"{HOME}.scheduler.", f"{HOME}.")
        return name if name in {SCHEDULER, SYNCHRONOUS} else None
    for kind in getattr(scheduler_cls, "__mro__", ()):
        if kind.__module__.startswith(HOME):
            return f"{HOME}.{kind.__name__}"
    return None


def with_drafts(create: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``EngineArgs.create_engine_config`` for servers with a draftwise scheduler."""
    name = name_of(self.scheduler_cls)
    if name is None:
        return create(self, *args, **kwargs)
    import prometheus_client

    logger.info("draftwise wraps of vLLM: %s", ", ".join(_wrapped))
    config, is_async = made(create, self, name, *args, **kwargs)
    setattr(config.speculative_config, MARK, True)  # pickled with the config, to every process
    for line in refusals.advice(config, asynchronous=is_async):
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


def made(
    create: Function, args: Any, name: str, *given: Any, **more: Any
) -> tuple[Any, bool]:  # fmt: skip
    """The server's config, and whether it runs on runner V2 with asynchronous scheduling.

    Only the finished config says which runner vLLM takes: what was prepared for V2 is prepared
    again for V1 where it must be.
    """
    import vllm
    from vllm import envs
    from vllm.platforms import current_platform

    root = Path(vllm.__file__).parent
    prepare(args)
    if name == SCHEDULER:
        use_v2, before = getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", None), dict(vars(args))
        lacks = missing(root, asynchronous=True)
        reason = refusals.on_runner_v1(args, current_platform.is_cpu(), use_v2, lacks)
        if reason is None:
            use_runner_v2(args)
            config = create(args, *given, **more)
            if config.use_v2_model_runner and config.scheduler_config.async_scheduling:
                refusals.check_server(config, asynchronous=True)
                return config, True
            reason = "vLLM does not take runner V2 with asynchronous scheduling here"
            vars(args).update(before)
        logger.info("draftwise: SynchronousScheduler on model runner V1, since %s", reason)
    check_capabilities(root, asynchronous=False)
    use_runner_v1(args)
    config = create(args, *given, **more)
    refusals.check_server(config, asynchronous=False)
    return config, False


def prepare(args: Any) -> None:
    """Check the arguments; ``args``: vLLM's ``EngineArgs``.

    Raises DraftwiseError for wrong options, before a model is loaded.
    """
    options = options_of(args)
    check_path(options.state)
    args.speculative_config = given_config(args)
    refusals.check_arguments(args, options)


def options_of(args: Any) -> PluginOptions:
    return parse_options((args.additional_config or {}).get("draftwise"))


def use_runner_v1(args: Any) -> None:
    """Fill in what a server on runner V1 needs."""
    args.scheduler_cls = SYNCHRONOUS
    if args.speculative_config is None:
        null = {"method": "custom_class", "model": NULL_PROPOSER}
        args.speculative_config = null | {"num_speculative_tokens": options_of(args).max_draft}
    else:
        args.speculative_config = adapted(args.speculative_config, args.max_num_seqs)
    if args.async_scheduling is None:
        args.async_scheduling = False
    use_piecewise_graphs(args.compilation_config)


def use_runner_v2(args: Any) -> None:
    """Fill in what a server on runner V2 needs: a table of drafts for the longest of any drafter.

    >>> from types import SimpleNamespace
    >>> args = SimpleNamespace(additional_config=None, max_num_seqs=8, speculative_config=None)
    >>> use_runner_v2(args)
    >>> args.speculative_config["method"], args.speculative_config["num_speculative_tokens"]
    ('ngram_gpu', 16)
    """
    args.scheduler_cls = SCHEDULER
    options, given = options_of(args), args.speculative_config
    if given is None:
        # of vLLM's own n-gram drafts, which replace draftwise's after an error
        contexts = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
        lengths = [[1, 1, 0], [2, max(args.max_num_seqs or 1024, 2), options.max_draft]]
        given = {"method": TABLE, "num_speculative_tokens": options.max_draft}
        args.speculative_config = given | contexts | {LENGTHS: lengths}
        return
    args.speculative_config = given = adapted(given, args.max_num_seqs, each=True)
    if LENGTHS in given and RETRIEVAL in options.drafters:
        given["num_speculative_tokens"] = max(given["num_speculative_tokens"], options.max_draft)


def given_config(args: Any) -> dict[str, Any] | None:
    """The speculative config with ``--spec-method``, ``--spec-model``, ``--spec-tokens``."""
    found = {key.replace("-", "_"): v for key, v in (args.speculative_config or {}).items()}
    keys = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
    for name, key in keys.items():
        if (value := getattr(args, name, None)) is not None:
            if key in found:
                flag = f"--{name.replace('_', '-')}"
                raise DraftwiseError(f"{flag} and {key!r} of --speculative-config clash: give one")
            found[key] = value
            setattr(args, name, None)
    return found or None


def use_piecewise_graphs(compilation: Any) -> None:
    """Select piecewise CUDA graphs, unless the user chose a mode.

    Runner V1 would capture full graphs for the rare steps in which every request has the longest
    draft, and pad all other sizes to multiples of that length plus one.
    """
    if compilation is None or getattr(compilation, "cudagraph_mode", None) is not None:
        return
    try:
        from vllm.config import CUDAGraphMode

        compilation.cudagraph_mode = CUDAGraphMode.PIECEWISE
    except ImportError as error:
        logger.warning("draftwise: cannot choose piecewise CUDA graphs: %s", error)


def adapted(
    given: dict[str, Any], max_num_seqs: int | None, each: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Adapt a speculative config to draft lengths that change from step to step.

    vLLM prepares its graphs accordingly. each: every length has an entry, since runner V2 captures
    a graph for each; if ``max_num_seqs`` allows fewer entries, only the shortest lengths and the
    longest one have one.

    >>> adapted({"method": "mtp", "num_speculative_tokens": 2}, 8, each=True)[
    ...     "num_speculative_tokens_per_batch_size"]
    [[1, 1, 0], [2, 2, 1], [3, 8, 2]]
    """
    method = given.get("method") or "draft_model"
    is_model = method in refusals.MODEL_METHODS or method.endswith(
        "_mtp"
    )  # vLLM renames these to mtp
    if given.get(LENGTHS) or not is_model:
        return given
    longest = given.get("num_speculative_tokens")
    if not longest:
        raise DraftwiseError(
            "the speculative config has no num_speculative_tokens: draftwise lists the lengths of "
            'drafts before vLLM reads the model, so add "num_speculative_tokens" (or --spec-tokens)'
        )
    last = max_num_seqs or 1024
    num = min(longest, last - 1) if each else 0
    short = [[length + 1, length + 1, length] for length in range(num)]
    return given | {LENGTHS: [*short, [num + 1, last, longest]]}


def with_device_drafts(make: Function, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``init_speculator``, which builds the drafter of a worker on runner V2."""
    from draftwise.integrations.vllm.mixer import with_mixer

    return with_mixer(make, wrap, *args, **kwargs)


def with_plain_steps(
    init: Function, self: Any, sampler: Any, spec_config: Any = None, *args: Any, **kwargs: Any
) -> None:
    """Wrap ``RejectionSampler.__init__``: steps without drafts use the plain sampler.

    vLLM's rejection sampler copies the logits of all requests and verifies empty drafts. In a step
    without drafts it only returns bonus tokens, which the plain sampler draws from the same logits.
    """
    init(self, sampler, spec_config, *args, **kwargs)
    if not is_of_draftwise(spec_config):
        return
    verify = self.forward

    def forward(metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        if any(metadata.num_draft_tokens):
            return verify(metadata, draft_probs, logits, sampling_metadata)
        return sampler(logits=logits, sampling_metadata=sampling_metadata, predict_bonus_token=True)

    self.forward = forward


def is_of_draftwise(speculative: Any) -> bool:
    """Whether a speculative config belongs to a server with a draftwise scheduler."""
    return hasattr(speculative, MARK)


def with_processors(
    build: Function, vllm_config: Any, device: Any, is_pin_memory: bool, *args: Any, **kwargs: Any
) -> Any:
    """Wrap ``build_logitsprocs`` to keep min_p and logit_bias in servers with retrieval alone.

    vLLM builds neither processor for a server that speculates. Requests that use them get no
    drafts, and sampling without a draft applies all processors.
    """
    built = build(vllm_config, device, is_pin_memory, *args, **kwargs)
    if not is_null(vllm_config.speculative_config):
        return built
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS as kinds

    return type(built)(kind(vllm_config, device, is_pin_memory) for kind in kinds)


def with_all_parameters(validate: Function, self: Any, speculative_config: Any) -> Any:
    """Wrap ``SamplingParams._validate_spec_decode``, which rejects min_p and logit_bias.

    Servers with retrieval alone accept both; with vLLM's drafters vLLM still rejects them. A bad
    value in a request's ``extra_args`` is rejected here as well.
    """
    if is_of_draftwise(speculative_config):
        try:
            wishes_of(self.extra_args)
        except DraftwiseError as error:
            raise _refusal(str(error)) from error
    return None if is_null(speculative_config) else validate(self, speculative_config)


def _refusal(message: str) -> Exception:
    """vLLM's exception for a response with status 400."""
    try:
        from vllm.exceptions import VLLMValidationError
    except ImportError:
        return ValueError(message)
    found: Exception = VLLMValidationError(message)
    return found


def repaired(broken: Function, *args: Any, **kwargs: Any) -> Tensor:
    """Replace ``expand_batch_to_tokens``, which returns uninitialised memory on vLLM's CPU backend.

    vLLM's function repeats each request's temperature, top-k and top-p for its drafted tokens, but
    passes a copy of its output to the C++ kernel, so the returned tensor is never written (seen in
    0.32.0). Greedy requests are not affected; all others sample from a wrong distribution.
    """
    return expand_batch_to_tokens(*args, **kwargs)


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """[batch] values to [num_tokens]: each repeated for every drafted token of its request.

    >>> expand_batch_to_tokens(torch.tensor([0.0, 0.5]), torch.tensor([1, 3]), 3, 0, 1).tolist()
    [1.0, 0.5, 0.5]
    """
    if replace_from != replace_to:
        x = x.masked_fill(x == replace_from, replace_to)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.repeat_interleave(counts.to(torch.int64), output_size=num_tokens)
