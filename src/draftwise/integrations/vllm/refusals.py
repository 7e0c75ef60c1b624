"""A server's limits, and checks that reject unsupported servers before a model loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftwise.errors import DraftwiseError
from draftwise.install import hint
from draftwise.integrations.vllm.options import MAX_DRAFT, MODEL, RETRIEVAL, PluginOptions

if TYPE_CHECKING:  # the controller imports numba, which the plug-in must not (see plugin.py)
    from draftwise.controller.controller import Limits

MODEL_METHODS = ("draft_model", "eagle", "eagle3", "mtp")
"""vLLM's drafters that write the requested number of tokens one by one and keep a KV cache."""

NULL_PROPOSER = "draftwise.integrations.vllm.nothing.NullProposer"
TABLE = "ngram_gpu"
"""vLLM's method whose drafts draftwise replaces in servers with retrieval alone, on runner V2."""
LENGTHS = "num_speculative_tokens_per_batch_size"
MARK = "__draftwise__"
"""Attribute of what belongs to the plug-in: functions that it has wrapped, the speculative configs
of its servers, and the drafters of their workers."""


def is_null(speculative: Any) -> bool:
    """Whether a server speculates without a model drafter."""
    if speculative is None:
        return False
    null = ("custom_class", NULL_PROPOSER)
    return speculative.method == TABLE or (speculative.method, speculative.model) == null


def limits_of(config: Any, options: PluginOptions, *, asynchronous: bool = False) -> Limits:
    """The controller's limits in a server: a step stays within the largest CUDA graph.

    Larger steps run without a graph, which costs more than drafts gain.
    """
    from draftwise.controller.controller import Limits

    budget = config.scheduler_config.max_num_batched_tokens
    graph = getattr(config.compilation_config, "max_cudagraph_capture_size", None)
    speculative = config.speculative_config
    max_draft, longest = min(options.max_draft, speculative.num_speculative_tokens), None
    if asynchronous:  # the device's table is as wide as the longest draft of any drafter
        max_draft, lengths = speculative.num_speculative_tokens, getattr(speculative, LENGTHS)
        longest = max((entry[2] for entry in lengths or ()), default=None)
    return Limits(
        max_draft=max_draft,
        max_step_tokens=min(budget, graph or budget),
        model=MODEL in options.drafters and not is_null(speculative),
        retrieval=RETRIEVAL in options.drafters,
        longest_model=longest,
    )


def check_arguments(args: Any, options: PluginOptions) -> None:
    """Raise DraftwiseError for unsupported arguments, before vLLM reads the model's config.

    args: vLLM's ``EngineArgs``; its speculative config may be None.
    """
    if RETRIEVAL not in options.drafters and args.speculative_config is None:
        raise DraftwiseError(
            "drafters is ['model'], and this server has no model drafter: add --speculative-config"
        )
    if getattr(args, "logits_processors", None):
        raise DraftwiseError(
            "--logits-processors is set: vLLM refuses custom logits processors in servers that "
            "speculate, since drafts would be verified without them; leave them out, or "
            "leave --scheduler-cls out"
        )


def on_runner_v1(args: Any, is_cpu: bool, use_v2: bool | None, missing: list[str]) -> str | None:
    """Why a server runs on runner V1, by its arguments; None: it may run on V2.

    use_v2: VLLM_USE_V2_MODEL_RUNNER. missing: what vLLM lacks for ``Scheduler``.
    """
    config = args.speculative_config or {}
    method = config.get("method") or ("draft_model" if config else TABLE)
    reasons = _met(
        (use_v2 is False, "VLLM_USE_V2_MODEL_RUNNER is 0"),
        (is_cpu and not use_v2, "vLLM's CPU backend has runner V1 only"),
        (args.async_scheduling is False, "--no-async-scheduling is set"),
        (getattr(args, "data_parallel_size", 1) > 1, "data_parallel_size is above 1"),
        (method == "draft_model", "runner V2 always writes the longest draft of a draft_model"),
        (missing, f"this vLLM lacks {'; '.join(missing)}"),
    )  # fmt: skip
    return next(iter(reasons), None)


def _met(*reasons: tuple[Any, str]) -> list[str]:
    return [reason for is_met, reason in reasons if is_met]


def check_server(config: Any, *, asynchronous: bool = False) -> None:
    """Raise DraftwiseError with the reasons why a finished ``VllmConfig`` cannot draft."""
    speculative = config.speculative_config
    if speculative is None:
        raise DraftwiseError(
            "vLLM did not load the plug-in of draftwise, so nothing would be verified: install it "
            f"into vLLM's environment ({hint('vllm')}), and let VLLM_PLUGINS, if it is set, name "
            "draftwise"
        )
    if reasons := _unsupported(config, speculative, asynchronous):
        raise DraftwiseError(
            "draftwise cannot draft in this server: " + "; ".join(reasons) + "; change that, or "
            "leave --scheduler-cls out"
        )


def _unsupported(config: Any, speculative: Any, asynchronous: bool) -> list[str]:
    parallel, model, method = config.parallel_config, config.model_config, speculative.method
    is_async, is_v2 = config.scheduler_config.async_scheduling, config.use_v2_model_runner
    is_fixed = asynchronous and (method == "draft_model" or speculative.use_multi_module_mtp())
    return _met(
        (parallel.pipeline_parallel_size > 1,
         f"pipeline_parallel_size is {parallel.pipeline_parallel_size}: several steps are under "
         "way at once there, and drafts would be chosen before their text is known"),
        (parallel.data_parallel_size > 1 and not is_null(speculative),
         f"data_parallel_size is {parallel.data_parallel_size} with a drafter of vLLM's: ranks "
         "would choose different lengths and wait for each other for ever"),
        (model.is_diffusion, "a diffusion model has no next token to draft"),
        (getattr(model, "logits_processors", None),
         "vLLM refuses --logits-processors in servers that speculate"),
        (speculative.num_speculative_tokens > MAX_DRAFT,
         f"num_speculative_tokens is {speculative.num_speculative_tokens}, and vLLM verifies at "
         f"most {MAX_DRAFT}"),
        (speculative.rejection_sample_method != "standard",
         f"rejection_sample_method is {speculative.rejection_sample_method!r}: outputs would "
         "not have the model's law"),
        (not is_null(speculative) and method not in MODEL_METHODS,
         f"method {method!r} cannot share a server with other drafters: those that can are "
         f"{', '.join(MODEL_METHODS)}; draftwise retrieves by itself (ngram and suffix are not "
         "needed)"),
        (speculative.draft_sample_method != "greedy",
         f"draft_sample_method is {speculative.draft_sample_method!r}: retrieved drafts have no "
         "probabilities, so all have to be judged as certain (greedy)"),
        (is_v2 and not asynchronous,
         "SynchronousScheduler needs model runner V1: set VLLM_USE_V2_MODEL_RUNNER=0, or use "
         "draftwise.integrations.vllm.Scheduler"),
        (is_async and not asynchronous,
         "SynchronousScheduler needs drafts before it schedules: give --no-async-scheduling"),
        (asynchronous and not (is_v2 and is_async),
         "Scheduler needs model runner V2 with asynchronous scheduling: take SynchronousScheduler"),
        (is_fixed,
         f"method {method!r} on model runner V2 always drafts num_speculative_tokens "
         "(mtp does with several layers), whatever it is told, so a shorter draft saves nothing: "
         "set VLLM_USE_V2_MODEL_RUNNER=0, or use eagle, eagle3 or mtp of one layer"),
    )  # fmt: skip


def advice(config: Any, *, asynchronous: bool) -> list[str]:
    """Advice on the flags of a server on a GPU, one sentence each; none on a CPU."""
    if config.device_config.device_type == "cpu" or config.model_config.enforce_eager:
        return []
    seqs = config.scheduler_config.max_num_seqs
    largest = config.compilation_config.max_cudagraph_capture_size
    wanted = min(2 * seqs, config.scheduler_config.max_num_batched_tokens)
    lengths = {entry[2] for entry in getattr(config.speculative_config, LENGTHS, None) or ()}
    longest = max(lengths, default=0)
    return _met(
        (not asynchronous,
         "speeds in the log are relative to plain decoding on model runner V1 without "
         "asynchronous scheduling; without draftwise this server may run on runner V2 with it, "
         "which is faster"),
        (not asynchronous,
         "CUDA graphs are piecewise, because requests draft different lengths: full graphs of "
         "runner V1 fit steps only in which every request drafts the longest draft"),
        (asynchronous and seqs <= longest,
         f"max_num_seqs is {seqs}, so vLLM captures full CUDA graphs for {seqs} of the "
         f"{longest + 1} lengths of drafts, 0 to {longest}: for all of them give --max-num-seqs "
         f"{longest + 1}"),
        (largest and largest < wanted,
         f"the largest CUDA graph holds {largest} tokens, so {seqs} requests draft less than "
         "one token each: for drafts at full load add --compilation-config "
         f"'{{\"max_cudagraph_capture_size\": {wanted}}}'"),
    )  # fmt: skip
