"""The parts of vLLM that draftwise uses, looked up by name in vLLM's source files.

vLLM releases every two weeks and guarantees nothing about its scheduler, so its version proves
nothing: ``NEEDS`` lists every class, method, parameter and attribute that is used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from draftwise.errors import DraftwiseError


class Need(NamedTuple):
    """A class or function of one file, and names in it.

    names: parameters, fields, methods, or attributes that it reads or sets.
    """

    file: str
    owner: str
    names: tuple[str, ...] = ()


_SCHEDULER = "v1/core/sched/scheduler.py"
NEEDS = (
    Need(_SCHEDULER, "Scheduler", ("requests", "log_stats", "max_model_len", "shutdown")),
    Need(_SCHEDULER, "Scheduler.schedule", ("dynamic_sd_lookup", "num_spec_tokens_to_schedule")),
    Need(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("scheduler_output", "model_runner_output", "sampled_token_ids", "req_id_to_index"),
    ),
    Need(_SCHEDULER, "Scheduler.reset_prefix_cache"),
    Need(_SCHEDULER, "Scheduler.get_grammar_bitmask"),
    Need("v1/core/sched/output.py", "SchedulerOutput", (
        "num_scheduled_tokens", "scheduled_spec_decode_tokens", "total_num_scheduled_tokens",
        "num_spec_tokens_to_schedule",
    )),
    Need("v1/outputs.py", "ModelRunnerOutput", ("sampled_token_ids", "req_id_to_index")),
    Need("v1/request.py", "Request", (
        "all_token_ids", "num_tokens", "num_output_tokens", "is_finished", "use_structured_output",
        "is_prefill_chunk", "spec_token_ids", "sampling_params", "prompt_token_ids", "max_tokens",
        "cache_salt", "lora_request", "request_id",
    )),
    Need("lora/request.py", "LoRARequest", ("lora_name", "lora_int_id")),
    Need("sampling_params.py", "SamplingParams", (
        "min_p", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "bad_words", "allowed_token_ids", "min_tokens", "extra_args",
    )),
    Need("engine/arg_utils.py", "EngineArgs", (
        "scheduler_cls", "speculative_config", "additional_config", "async_scheduling",
        "max_num_seqs", "logits_processors", "compilation_config", "create_engine_config",
    )),
    Need("config/speculative.py", "SpeculativeConfig", (
        "method", "model", "num_speculative_tokens", "draft_sample_method",
        "rejection_sample_method", "num_speculative_tokens_per_batch_size",
    )),
    Need("v1/sample/rejection_sampler.py", "RejectionSampler.__init__", (
        "sampler", "spec_config",
    )),
    Need("v1/sample/rejection_sampler.py", "RejectionSampler.forward", (
        "metadata", "draft_probs", "logits", "sampling_metadata", "predict_bonus_token",
    )),
    Need("v1/spec_decode/metadata.py", "SpecDecodeMetadata", ("num_draft_tokens",)),
    Need("config/vllm.py", "VllmConfig", (
        "speculative_config", "additional_config", "use_v2_model_runner", "parallel_config",
        "model_config", "scheduler_config", "compilation_config", "cache_config", "device_config",
    )),
    Need("config/parallel.py", "ParallelConfig", (
        "pipeline_parallel_size", "data_parallel_size", "tensor_parallel_size",
        "data_parallel_rank",
    )),
    Need("config/scheduler.py", "SchedulerConfig", (
        "async_scheduling", "max_num_seqs", "max_num_batched_tokens",
    )),
    Need("config/model.py", "ModelConfig", (
        "is_diffusion", "logits_processors", "model", "dtype", "max_model_len", "enforce_eager",
        "served_model_name",
    )),
    Need("config/compilation.py", "CompilationConfig", (
        "cudagraph_mode", "max_cudagraph_capture_size",
    )),
    Need("config/cache.py", "CacheConfig", ("cache_dtype",)),
    Need("config/device.py", "DeviceConfig", ("device_type",)),
)  # fmt: skip
"""Of both schedulers."""
SYNCHRONOUS = (
    Need(_SCHEDULER, "Scheduler.update_draft_token_ids", ("draft_token_ids", "req_ids")),
    Need("v1/outputs.py", "DraftTokenIds", ("req_ids", "draft_token_ids")),
    Need("v1/engine/core.py", "EngineCore.step", ("get_grammar_bitmask", "update_from_output")),
    Need("v1/engine/core.py", "EngineCore.post_step", ("take_draft_token_ids",)),
    Need("v1/spec_decode/custom_class_proposer.py", "create_custom_proposer"),
    Need("sampling_params.py", "SamplingParams._validate_spec_decode", ("speculative_config",)),
    Need("v1/sample/logits_processor/__init__.py", "build_logitsprocs", (
        "vllm_config", "device", "is_pin_memory", "BUILTIN_LOGITS_PROCESSORS",
    )),
)  # fmt: skip
"""Of ``Scheduler`` alone."""
OVERLAPPING = (
    Need("v1/core/sched/async_scheduler.py", "AsyncScheduler._update_after_schedule", (
        "scheduler_output", "spec_token_ids", "num_output_placeholders",
    )),
    Need("v1/engine/core.py", "EngineCore.step_with_batch_queue", (
        "get_grammar_bitmask", "update_from_output",
    )),
    Need("config/speculative.py", "SpeculativeConfig", (
        "use_multi_module_mtp", "enable_adaptive_verification",
    )),
    # before 0.32 runner V2 drafts the same length in every step, whatever it is told
    Need("v1/worker/gpu/model_runner.py", "GPUModelRunner.sample_tokens", (
        "num_spec_tokens_to_schedule", "num_speculative_tokens",
    )),
)  # fmt: skip
"""Of ``AsyncScheduler`` alone."""


def missing(root: Path, *, asynchronous: bool) -> list[str]:
    """Everything that a vLLM lacks, as ``file: Class.method(name)``; nothing is imported.

    root: the folder of the package ``vllm``.
    """
    needs = NEEDS + (OVERLAPPING if asynchronous else SYNCHRONOUS)
    return [one for need in needs for one in _missing(root, need)]


def check_capabilities(root: Path, *, asynchronous: bool) -> None:
    """Raise DraftwiseError with the names of everything that is missing."""
    if found := missing(root, asynchronous=asynchronous):
        releases = "0.32 and 0.33" if asynchronous else "0.30 to 0.33"
        raise DraftwiseError(
            "this vLLM lacks what draftwise uses of it: "
            + "; ".join(found)
            + f"; install a vLLM that has it ({releases} do), or leave --scheduler-cls out"
        )


def _missing(root: Path, need: Need) -> Iterator[str]:
    owner = _find(root / need.file, need.owner)
    if owner is None:
        yield f"{need.file}: {need.owner}"
        return
    nodes, kinds = list(ast.walk(owner)), ("name", "attr", "id", "arg")
    names = {getattr(node, kind, None) for node in nodes for kind in kinds}
    for name in need.names:
        if name not in names:
            yield f"{need.file}: {need.owner}({name})"


@cache
def _tree(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text("utf-8"))
    except (OSError, SyntaxError):
        return None


def _find(file: Path, path: str) -> ast.AST | None:
    """A class, function or method by its dotted name."""
    found: ast.AST | None = _tree(file)
    for part in path.split("."):
        body = getattr(found, "body", ())
        found = next((node for node in body if getattr(node, "name", None) == part), None)
    return found
