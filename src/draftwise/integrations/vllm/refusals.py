"""Which servers cannot have it, and why: asked before a model is loaded."""

from __future__ import annotations

from typing import Any

from draftwise.install import hint
from draftwise.integrations.vllm.options import MAX_LENGTH
from draftwise.types import DraftwiseError

MODEL_METHODS = ("draft_model", "eagle", "eagle3", "mtp")
"""vLLM's drafters that draft as many tokens as they are told, step by step, and keep their KV."""

NULL_PROPOSER = "draftwise.integrations.vllm.nothing.NullProposer"


def is_null(speculative: Any) -> bool:
    """Whether the server has no drafter of vLLM's."""
    return bool(speculative.method == "custom_class" and speculative.model == NULL_PROPOSER)


def check_server(config: Any, *, asynchronous: bool = False) -> None:
    """Raise DraftwiseError with the reason if this server's steps cannot be drafted for.

    config: a finished ``VllmConfig``. asynchronous: for ``AsyncScheduler``, of lengths only.
    """
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None:
        raise DraftwiseError(
            "vLLM did not load the plug-in of draftwise, so nothing would be verified: install it "
            f"into vLLM's environment ({hint('vllm')}), and let VLLM_PLUGINS, if it is set, name "
            "draftwise"
        )
    reasons = _common(config, parallel, speculative)
    reasons += _of_lengths(config, speculative) if asynchronous else _of_drafts(config, speculative)
    if reasons:
        raise DraftwiseError(
            "draftwise cannot draft in this server: " + "; ".join(reasons) + "; change that, or "
            "leave --scheduler-cls out"
        )


def _common(config: Any, parallel: Any, speculative: Any) -> list[str]:
    """What neither scheduler can have."""
    reasons = []
    if parallel.pipeline_parallel_size > 1:
        reasons.append(
            f"pipeline_parallel_size is {parallel.pipeline_parallel_size}: several steps are under "
            "way at once there, and drafts would be chosen before their text is known"
        )
    if parallel.data_parallel_size > 1 and not is_null(speculative):
        reasons.append(
            f"data_parallel_size is {parallel.data_parallel_size} with a drafter of vLLM's: ranks "
            "would choose different lengths and wait for each other for ever"
        )
    if config.model_config.is_diffusion:
        reasons.append("a diffusion model has no next token to draft")
    if speculative.num_speculative_tokens > MAX_LENGTH:
        reasons.append(
            f"num_speculative_tokens is {speculative.num_speculative_tokens}, and vLLM verifies at "
            f"most {MAX_LENGTH}"
        )
    if speculative.rejection_sample_method != "standard":
        reasons.append(
            f"rejection_sample_method is {speculative.rejection_sample_method!r}: outputs would "
            "not have the model's law"
        )
    return reasons


def _of_drafts(config: Any, speculative: Any) -> list[str]:
    """What keeps the scheduler's own drafts from being verified."""
    reasons = []
    if not is_null(speculative) and speculative.method not in MODEL_METHODS:
        reasons.append(
            f"method {speculative.method!r} cannot share a server with other drafters: those that "
            f"can are {', '.join(MODEL_METHODS)}; draftwise retrieves by itself (ngram and suffix "
            "are not needed)"
        )
    if config.use_v2_model_runner:
        reasons.append(
            "model runner V2 verifies what it drafted itself, whatever the scheduler says: set "
            "VLLM_USE_V2_MODEL_RUNNER=0, or use draftwise.integrations.vllm.AsyncScheduler, which "
            "chooses lengths only"
        )
    if config.scheduler_config.async_scheduling:
        reasons.append(
            "asynchronous scheduling schedules before drafts are known: give --no-async-scheduling"
        )
    if speculative.draft_sample_method != "greedy":
        reasons.append(
            f"draft_sample_method is {speculative.draft_sample_method!r}: retrieved drafts have no "
            "probabilities, so all have to be judged as certain (greedy)"
        )
    return reasons


def _of_lengths(config: Any, speculative: Any) -> list[str]:
    """What keeps lengths from being chosen."""
    reasons = []
    if speculative.method not in MODEL_METHODS:
        reasons.append(
            f"AsyncScheduler chooses lengths of vLLM's own drafter ({', '.join(MODEL_METHODS)}), "
            f"and this server has {speculative.method!r}; without a drafter take Scheduler"
        )
    if not config.scheduler_config.async_scheduling:
        reasons.append("scheduling is not asynchronous: take draftwise.integrations.vllm.Scheduler")
    return reasons
