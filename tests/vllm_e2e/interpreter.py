"""vLLM's model runner V2 with asynchronous scheduling on a CPU, by Triton's interpreter.

vLLM runs V2 on GPUs only. Its kernels are Triton's, which PyPI's ``triton`` interprets without a
GPU, slowly but exactly; the CPU platform would switch asynchronous scheduling off.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def use_runner_v2() -> None:
    """Switch this process to runner V2; call before anything imports vLLM."""
    os.environ |= {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    import triton.backends

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(compiler=None, driver=driver)
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def keep_asynchronous(cls: Any, config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(keep_asynchronous)
    # one kernel is more than the interpreter can run: vLLM's own form of it in torch instead
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False


def use_adaptive_verification() -> None:
    """Let adaptive verification run without CUDA graphs and profiles; after ``use_runner_v2``."""
    import vllm.config.vllm as config
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as module

    config.VllmConfig._validate_adaptive_verification = lambda self: None
    module.resolve_adaptive_cudagraph_mode = lambda *_, **__: CUDAGraphMode.NONE
    module._assign_draft_token_budget_compiled = module._assign_draft_token_budget
    module.get_varlen_cudagraph_unsupported_backend = lambda *_, **__: None
    init = module.AdaptiveVerificationManager.__init__

    def priced(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.set_cost_curves([(1, 1.0), (16, 1.0)], [(1, 5.0), (16, 6.0), (512, 50.0)])

    module.AdaptiveVerificationManager.__init__ = priced
