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


def is_null(speculative: Any) -> bool:
    """Whether a server speculates without a model drafter."""
    null = ("custom_class", NULL_PROPOSER)
    return speculative is not None and (speculative.method, speculative.model) == null


def limits_of(config: Any, options: PluginOptions, *, asynchronous: bool = False) -> Limits:
    """The controller's limits in a server: a step stays within the largest CUDA graph.

    Larger steps run without a graph, which costs more than drafts gain.
    """
    from draftwise.controller.controller import Limits

    budget = config.scheduler_config.max_num_batched_tokens
    graph = getattr(config.compilation_config, "max_cudagraph_capture_size", None)
    speculative = config.speculative_config
    return Limits(
        max_draft=min(options.max_draft, speculative.num_speculative_tokens),
        max_step_tokens=min(budget, graph or budget),
        model=MODEL in options.drafters and not is_null(speculative),
        retrieval=RETRIEVAL in options.drafters and not asynchronous,
    )


def check_arguments(args: Any, options: PluginOptions, *, asynchronous: bool) -> None:
    """Raise DraftwiseError for unsupported arguments, before vLLM reads the model's config.

    args: vLLM's ``EngineArgs``; its speculative config may be None.
    """
    has_none = args.speculative_config is None
    reasons = _met(
        (asynchronous and has_none,
         "AsyncScheduler shortens the drafts of vLLM's own drafter, and this server has none: "
         "add --speculative-config, or take draftwise.integrations.vllm.Scheduler, which "
         "retrieves drafts from texts"),
        (RETRIEVAL not in options.drafters and has_none,
         "drafters is ['model'], and this server has no model drafter: add --speculative-config"),
        (asynchronous and MODEL not in options.drafters,
         "AsyncScheduler has no retrieval: let drafters name 'model'"),
        (getattr(args, "logits_processors", None),
         "--logits-processors is set: vLLM refuses custom logits processors in servers that "
         "speculate, since drafts would be verified without them; leave them out, or "
         "leave --scheduler-cls out"),
    )  # fmt: skip
    if reasons:
        raise DraftwiseError(reasons[0])


def _met(*refusals: tuple[Any, str]) -> list[str]:
    return [reason for is_met, reason in refusals if is_met]


def check_server(config: Any, *, asynchronous: bool = False) -> None:
    """Raise DraftwiseError with the reasons why a finished ``VllmConfig`` cannot draft."""
    speculative = config.speculative_config
    if speculative is None:
        raise DraftwiseError(
            "vLLM did not load the plug-in of draftwise, so nothing would be verified: install it "
            f"into vLLM's environment ({hint('vllm')}), and let VLLM_PLUGINS, if it is set, name "
            "draftwise"
        )
    of_scheduler = _of_lengths if asynchronous else _of_drafts
    if reasons := _common(config, speculative) + of_scheduler(config, speculative):
        raise DraftwiseError(
            "draftwise cannot draft in this server: " + "; ".join(reasons) + "; change that, or "
            "leave --scheduler-cls out"
        )


def _common(config: Any, speculative: Any) -> list[str]:
    parallel, model = config.parallel_config, config.model_config
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
    )  # fmt: skip


def _of_drafts(config: Any, speculative: Any) -> list[str]:
    return _met(
        (not is_null(speculative) and speculative.method not in MODEL_METHODS,
         f"method {speculative.method!r} cannot share a server with other drafters: those that "
         f"can are {', '.join(MODEL_METHODS)}; draftwise retrieves by itself (ngram and suffix "
         "are not needed)"),
        (config.use_v2_model_runner,
         "model runner V2 verifies what it drafted itself, whatever the scheduler says: set "
         "VLLM_USE_V2_MODEL_RUNNER=0, or use draftwise.integrations.vllm.AsyncScheduler, which "
         "chooses lengths only"),
        (config.scheduler_config.async_scheduling,
         "asynchronous scheduling schedules before drafts are known: give --no-async-scheduling"),
        (speculative.draft_sample_method != "greedy",
         f"draft_sample_method is {speculative.draft_sample_method!r}: retrieved drafts have no "
         "probabilities, so all have to be judged as certain (greedy)"),
    )  # fmt: skip


def _of_lengths(config: Any, speculative: Any) -> list[str]:
    has_one_length = speculative.method == "draft_model" or speculative.use_multi_module_mtp()
    return _met(
        (speculative.method not in MODEL_METHODS,
         f"AsyncScheduler chooses lengths of vLLM's own drafter ({', '.join(MODEL_METHODS)}), "
         f"and this server has {speculative.method!r}; without a drafter take Scheduler"),
        (config.use_v2_model_runner and has_one_length,
         f"method {speculative.method!r} on model runner V2 always drafts num_speculative_tokens "
         "(mtp does with several layers), whatever it is told, so a shorter draft saves nothing: "
         "take Scheduler with VLLM_USE_V2_MODEL_RUNNER=0, or use eagle, eagle3 or mtp of one "
         "layer"),
        (speculative.enable_adaptive_verification,
         "enable_adaptive_verification is set: the device would divide the drafted tokens among "
         "the requests by itself; leave it out"),
        (not config.scheduler_config.async_scheduling,
         "scheduling is not asynchronous: take draftwise.integrations.vllm.Scheduler"),
    )  # fmt: skip


def advice(config: Any, *, asynchronous: bool) -> list[str]:
    """Advice on the flags of a server on a GPU, one sentence each; none on a CPU."""
    if config.device_config.device_type == "cpu" or config.model_config.enforce_eager:
        return []
    seqs = config.scheduler_config.max_num_seqs
    largest = config.compilation_config.max_cudagraph_capture_size
    wanted = min(2 * seqs, config.scheduler_config.max_num_batched_tokens)
    longest = config.speculative_config.num_speculative_tokens
    return _met(
        (not asynchronous,
         "Scheduler uses model runner V1 without asynchronous scheduling; with eagle, eagle3 or "
         "mtp on runner V2, take draftwise.integrations.vllm.AsyncScheduler"),
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
