"""Registration with SGLang 0.5.23 through its plug-in mechanism and hooks.

SGLang's adaptive code only serves the algorithms EAGLE and EAGLE3
(``adaptive_unsupported_reason``), so registering a new name (``SpeculativeAlgorithm.register``)
would disable it. Instead, ``create_worker`` returns a subclass of SGLang's worker.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from platformdirs import user_cache_dir

from draftwise import __version__
from draftwise.compiled import warm_up
from draftwise.errors import DraftwiseError
from draftwise.integrations.sglang.policy import SglangSettings, StepsPolicy, read_settings
from draftwise.state import StateFile, state_path

logger = logging.getLogger("sglang.draftwise")


def plug_in() -> None:
    """Register draftwise's hooks; SGLang calls this entry point in every process of a server."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_resolution_hook("handle_speculative_decoding")(with_checks)
    create_worker = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
    HookRegistry.register(create_worker, with_policy, HookType.AFTER)


def with_checks(server_args: Any, resolve: Callable[[Any], None]) -> None:
    """Reject server arguments under which SGLang would use a fixed number of steps."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    path = resolving_view(server_args).speculative_adaptive_config
    settings = read_settings(path)
    resolve(server_args)
    if settings is None or resolving_view(server_args).speculative_adaptive:
        return
    reason = adaptive_unsupported_reason(server_args)
    if reason is None:
        raise DraftwiseError(
            f"--speculative-adaptive-config {path} asks for draftwise, which needs "
            "--speculative-adaptive as well"
        )
    name = re.match(r"(\w+)=", reason)
    flag = name[1].replace("_", "-") if name else "enable-dp-attention"
    if "platform" in reason:
        flag = "speculative-algorithm"
    raise DraftwiseError(f"draftwise cannot work with this --{flag}: {reason}")


def with_policy(worker: Any, _algorithm: Any, server_args: Any) -> Any:
    """Return a subclass of ``EAGLEWorkerV2`` whose adaptive controller uses draftwise's policy.

    Returns None, which keeps SGLang's class, unless the config enables draftwise.
    """
    from sglang.srt.arg_groups.overrides import resolving_view

    given = resolving_view(server_args)
    found = read_settings(given.speculative_adaptive_config)
    if found is None or not given.speculative_adaptive:
        return None
    settings = found

    class DraftwiseWorker(worker):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if getattr(self, "adaptive_controller", None) is None:
                raise DraftwiseError(
                    f"{worker.__name__} has no adaptive controller: draftwise works with SGLang "
                    "0.5.23, --speculative-algorithm EAGLE or EAGLE3, and without --pp-size"
                )
            agree, is_first = agreement()
            file = state_file(settings, given) if is_first else None
            mine = settings if is_first else replace(settings, report_s=math.inf)
            warm_up(logger)
            self.adaptive_controller.params = StepsPolicy(mine, agree=agree, state=file)
            steps = self.adaptive_controller.candidate_steps
            logger.info("draftwise chooses among %s steps", steps)

        def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
            policy = self.adaptive_controller.params
            if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
                policy.interrupted()
            else:
                reqs = batch.reqs or ()
                context = sum(len(req.origin_input_ids) + len(req.output_ids) for req in reqs)
                policy.expect([req.rid for req in reqs], context)
            return super().forward_batch_generation(batch, *args, **kwargs)

    DraftwiseWorker.__name__ = f"Draftwise{worker.__name__}"
    return DraftwiseWorker


def agreement() -> tuple[Callable[[int], int], bool]:
    """A function that broadcasts rank 0's choice to its TP group, and whether this is rank 0."""
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if group is None or group.world_size == 1:
        return int, True
    import torch

    def agree(steps: int) -> int:
        choice = torch.tensor([steps])
        torch.distributed.broadcast(choice, src=group.ranks[0], group=group.cpu_group)
        return int(choice.item())

    return agree, group.rank_in_group == 0


def state_file(settings: SglangSettings, given: Any) -> StateFile | None:
    """The state file for this device, model, dtype, parallelism and version; None if disabled."""
    if settings.state is None:
        return None
    import sglang
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    names = ("model_path", "speculative_draft_model_path", "dtype", "quantization",
             "kv_cache_dtype", "tp_size", "ep_size", "attention_backend")  # fmt: skip
    about = {name: str(getattr(given, name, None)) for name in names}
    about |= {"device": device, "sglang": sglang.__version__, "draftwise": __version__}
    about |= {"steps": str(settings.candidates), "model": str(given.model_path)}
    path = state_path(settings.state, about, user_cache_dir())
    logger.info("what is learnt is kept in %s", path)
    return StateFile(path, about, logger)
