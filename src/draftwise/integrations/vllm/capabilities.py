"""The parts of vLLM that draftwise uses, looked up by name in vLLM's source files.

vLLM releases every two weeks and has no stable scheduler interface, so a version check would not
suffice: the tables list every class, method, parameter and attribute that draftwise uses.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from draftwise.errors import DraftwiseError

NEEDS = """\
v1/core/sched/scheduler.py Scheduler requests log_stats max_model_len shutdown
v1/core/sched/scheduler.py Scheduler.schedule dynamic_sd_lookup num_spec_tokens_to_schedule
v1/core/sched/scheduler.py Scheduler.update_from_output scheduler_output model_runner_output
v1/core/sched/scheduler.py Scheduler.update_from_output sampled_token_ids req_id_to_index
v1/core/sched/scheduler.py Scheduler.reset_prefix_cache
v1/core/sched/scheduler.py Scheduler.get_grammar_bitmask
v1/core/sched/output.py SchedulerOutput num_scheduled_tokens scheduled_spec_decode_tokens
v1/core/sched/output.py SchedulerOutput total_num_scheduled_tokens num_spec_tokens_to_schedule
v1/outputs.py ModelRunnerOutput sampled_token_ids req_id_to_index
v1/request.py Request all_token_ids num_tokens num_output_tokens is_finished use_structured_output
v1/request.py Request is_prefill_chunk spec_token_ids sampling_params prompt_token_ids max_tokens
v1/request.py Request cache_salt lora_request request_id
lora/request.py LoRARequest lora_name lora_int_id
sampling_params.py SamplingParams min_p logit_bias presence_penalty frequency_penalty
sampling_params.py SamplingParams repetition_penalty bad_words allowed_token_ids min_tokens
sampling_params.py SamplingParams extra_args
engine/arg_utils.py EngineArgs scheduler_cls speculative_config additional_config async_scheduling
engine/arg_utils.py EngineArgs max_num_seqs logits_processors compilation_config
engine/arg_utils.py EngineArgs create_engine_config
config/speculative.py SpeculativeConfig method model num_speculative_tokens draft_sample_method
config/speculative.py SpeculativeConfig rejection_sample_method
config/speculative.py SpeculativeConfig num_speculative_tokens_per_batch_size
v1/sample/rejection_sampler.py RejectionSampler.__init__ sampler spec_config
v1/sample/rejection_sampler.py RejectionSampler.forward metadata draft_probs logits
v1/sample/rejection_sampler.py RejectionSampler.forward sampling_metadata predict_bonus_token
v1/spec_decode/metadata.py SpecDecodeMetadata num_draft_tokens
config/vllm.py VllmConfig speculative_config additional_config use_v2_model_runner parallel_config
config/vllm.py VllmConfig model_config scheduler_config compilation_config cache_config
config/vllm.py VllmConfig device_config
config/parallel.py ParallelConfig pipeline_parallel_size data_parallel_size tensor_parallel_size
config/parallel.py ParallelConfig data_parallel_rank
config/scheduler.py SchedulerConfig async_scheduling max_num_seqs max_num_batched_tokens
config/model.py ModelConfig is_diffusion logits_processors model dtype max_model_len enforce_eager
config/model.py ModelConfig served_model_name
config/compilation.py CompilationConfig cudagraph_mode max_cudagraph_capture_size
config/cache.py CacheConfig cache_dtype
config/device.py DeviceConfig device_type
"""
"""Requirements of both schedulers. Each line names a file, a class or function in it, and the
parameters, fields, methods and attributes that the class or function has or uses."""
SYNCHRONOUS = """\
v1/core/sched/scheduler.py Scheduler.update_draft_token_ids draft_token_ids req_ids
v1/outputs.py DraftTokenIds req_ids draft_token_ids
v1/engine/core.py EngineCore.step get_grammar_bitmask update_from_output
v1/engine/core.py EngineCore.post_step take_draft_token_ids
v1/spec_decode/custom_class_proposer.py create_custom_proposer
sampling_params.py SamplingParams._validate_spec_decode speculative_config
v1/sample/logits_processor/__init__.py build_logitsprocs vllm_config device is_pin_memory
v1/sample/logits_processor/__init__.py build_logitsprocs BUILTIN_LOGITS_PROCESSORS
"""
"""Further requirements of ``SynchronousScheduler``."""
OVERLAPPING = """\
v1/core/sched/async_scheduler.py AsyncScheduler._update_after_schedule scheduler_output
v1/core/sched/async_scheduler.py AsyncScheduler._update_after_schedule spec_token_ids
v1/core/sched/output.py SchedulerOutput scheduled_new_reqs
v1/core/sched/output.py NewRequestData req_id
v1/request.py Request num_prompt_tokens
v1/core/sched/async_scheduler.py AsyncScheduler._update_after_schedule num_output_placeholders
v1/engine/core.py EngineCore.step_with_batch_queue get_grammar_bitmask update_from_output
config/speculative.py SpeculativeConfig use_multi_module_mtp enable_adaptive_verification
v1/worker/gpu/model_runner.py GPUModelRunner.sample_tokens num_spec_tokens_to_schedule
v1/worker/gpu/model_runner.py GPUModelRunner.sample_tokens num_speculative_tokens
v1/worker/gpu/model_runner.py GPUModelRunner.sample_tokens observe_verification propose
v1/worker/gpu/model_runner.py GPUModelRunner speculator output_copy_stream main_stream
v1/worker/gpu/model_runner.py GPUModelRunner init_speculator
v1/worker/gpu/model_runner.py GPUModelRunner.execute_model scheduler_output dummy_run
v1/worker/gpu/async_utils.py AsyncOutput.get_output model_runner_output
v1/worker/gpu/async_utils.py async_copy_to_np
v1/worker/gpu/async_utils.py stream to_stream from_stream
v1/worker/gpu/spec_decode/adaptive_verification.py AdaptiveVerificationManager get_num_tokens
v1/worker/gpu/spec_decode/adaptive_verification.py AdaptiveVerificationManager _batch_budget
v1/worker/gpu/spec_decode/adaptive_verification.py AdaptiveVerificationManager _max_total_logits
v1/worker/gpu/spec_decode/adaptive_verification.py AdaptiveVerificationManager num_bonus_tokens
v1/worker/gpu/spec_decode/adaptive_verification.py AdaptiveVerificationManager req_states
v1/worker/gpu/spec_decode/speculator.py DraftModelSpeculator draft_token_confidence_probs
v1/worker/gpu/states.py RequestState all_token_ids total_len req_id_to_index max_num_reqs
v1/worker/gpu/states.py RequestState max_model_len num_speculative_steps draft_tokens
v1/worker/gpu/buffer_utils.py StagedWriteTensor size dtype device
v1/worker/gpu/input_batch.py InputBatch num_reqs req_ids idx_mapping idx_mapping_np
v1/worker/gpu/input_batch.py InputBatch seq_lens_cpu_upper_bound
v1/worker/gpu/spec_decode/__init__.py init_speculator vllm_config device req_states
v1/worker/gpu/spec_decode/speculator.py BaseSpeculator.propose input_batch num_sampled num_rejected
v1/worker/gpu/spec_decode/speculator.py BaseSpeculator.propose dummy_run num_speculative_tokens
v1/worker/gpu/spec_decode/speculator.py DraftModelSpeculator.observe_verification idx_mapping
v1/worker/gpu/spec_decode/ngram/speculator.py NgramGPUSpeculator.propose num_sampled num_rejected
config/speculative.py SpeculativeConfig use_ngram prompt_lookup_min prompt_lookup_max
"""
"""Further requirements of ``Scheduler``. Before 0.32 runner V2 drafts a fixed length."""


def missing(root: Path, *, asynchronous: bool) -> list[str]:
    """All names that a vLLM lacks, as ``file: Class.method(name)``; nothing is imported.

    root: the folder of the package ``vllm``.
    """
    found = []
    for line in (NEEDS + (OVERLAPPING if asynchronous else SYNCHRONOUS)).splitlines():
        file, owner, *needed = line.split()
        if names := _names_in(root / file, owner):
            found += [f"{file}: {owner}({name})" for name in needed if name not in names]
        else:
            found.append(f"{file}: {owner}")
    return list(dict.fromkeys(found))


def check_capabilities(root: Path, *, asynchronous: bool) -> None:
    """Raise DraftwiseError with all names that are missing."""
    if found := missing(root, asynchronous=asynchronous):
        releases = "0.32 and 0.33" if asynchronous else "0.30 to 0.33"
        raise DraftwiseError(
            "this vLLM lacks what draftwise uses of it: "
            + "; ".join(found)
            + f"; install a vLLM that has it ({releases} do), or leave --scheduler-cls out"
        )


def _names_in(file: Path, path: str) -> set[str]:
    """All names in a class, function or method, including its name; empty if it does not exist."""
    owner: ast.AST | None = _tree(file)
    for part in path.split("."):
        body = getattr(owner, "body", ())
        owner = next((node for node in body if getattr(node, "name", None) == part), None)
    nodes = list(ast.walk(owner)) if owner else []
    return {getattr(node, kind, "") for node in nodes for kind in ("name", "attr", "id", "arg")}


@cache
def _tree(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text("utf-8"))
    except (OSError, SyntaxError):
        return None
