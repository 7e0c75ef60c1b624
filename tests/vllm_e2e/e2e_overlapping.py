"""vLLM's real AsyncScheduler under draftwise, driven as by runner V2, without a model.

Steps overlap as in ``EngineCore.step_with_batch_queue``: a step is scheduled before the one before
it returns. The device is simulated: its model drafts as many tokens as it is told, and they are
accepted with a given probability; its texts have nothing to retrieve.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from draftwise import zoo
from draftwise.controller.mixing import MODEL as BY_MODEL
from draftwise.controller.mixing import NOTHING as BY_NOBODY
from draftwise.integrations.vllm import plugin
from draftwise.integrations.vllm.ahead import NUM_FACTS, Report
from vllm_e2e.jobs import DRAFT_MODEL

# vLLM and torch, imported in this process, use what newer versions of torch deprecate
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """The config of a server with an EAGLE head on runner V2, derived from one of the CPU build."""
    from vllm.engine.arg_utils import EngineArgs

    args = EngineArgs(
        model=str(zoo.target_path()),
        scheduler_cls="draftwise.integrations.vllm.SynchronousScheduler",
        additional_config={"draftwise": {"state": str(tmp_path / "state.json")}},
        max_model_len=512,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        enable_prefix_caching=False,
        enforce_eager=True,
        **DRAFT_MODEL,
    )
    config = args.create_engine_config()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    config.speculative_config.method = "eagle3"
    config.scheduler_config.async_scheduling = True
    assert config.use_v2_model_runner
    return config


class Device:
    """The simulated device. token_s: seconds per token of a step."""

    def __init__(self, config: Any, acceptance: float, token_s: float) -> None:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from draftwise.integrations.vllm import Scheduler

        spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
        cache = KVCacheConfig(600, [], [KVCacheGroupSpec(["layer"], spec)])
        config.cache_config.num_gpu_blocks = 600
        manager = StructuredOutputManager(config)
        self.scheduler = Scheduler(config, cache, manager, block_size=16, log_stats=True)
        self.acceptance, self.token_s = acceptance, token_s
        self.now, self.rng, self.written = 0.0, random.Random(5), self.report([], 0)
        self.scheduler.draftwise.clock.now = lambda: self.now
        self.emitted: dict[str, int] = {}
        self.verified: dict[str, list[int]] = {}

    def add(self, name: str, num_prompt: int = 40, max_tokens: int = 100, **given: Any) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0, **given)
        self.scheduler.add_request(
            Request(name, [1 + n % 50 for n in range(num_prompt)], params, None)
        )

    def run(self) -> None:
        under_way: deque[Any] = deque()
        while self.scheduler.has_unfinished_requests() or under_way:
            if self.scheduler.has_unfinished_requests():
                under_way.append(self.scheduler.schedule())
                self.scheduler.get_grammar_bitmask(under_way[-1])
            if len(under_way) == 2 or not self.scheduler.has_unfinished_requests():
                self.come_back(under_way.popleft())

    def come_back(self, scheduled: Any) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(scheduled.num_scheduled_tokens)
        sampled = []
        for name in names:
            drafted = len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            request = self.scheduler.requests.get(name)
            kept = 0
            while kept < drafted and self.rng.random() < self.acceptance:
                kept += 1
            is_chunk = request is not None and not drafted and self.num_left(request) > 0
            sampled.append([] if is_chunk else [7] * kept + [8])
            if drafted:
                self.verified.setdefault(name, []).append(drafted)
        told = scheduled.draftwise.head
        self.now += 1.0 + self.token_s * scheduled.total_num_scheduled_tokens + 0.02 * told
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        output.draftwise, self.written = self.written, self.report(names, told)
        for one in self.scheduler.update_from_output(scheduled, output).values():
            for answer in one.outputs:
                self.emitted[answer.request_id] = self.emitted.get(answer.request_id, 0) + len(
                    answer.new_token_ids
                )

    def report(self, names: list[str], told: int) -> Report:
        """The drafts that a step writes."""
        longest = self.scheduler.draftwise.controller.limits.max_draft
        facts = np.full((len(names), 4 * longest + NUM_FACTS), -1, np.int32)
        facts[:, 2 * longest : 2 * longest + told] = 7
        facts[:, 3 * longest : -2] = 0
        facts[:, 3 * longest : 3 * longest + told] = 1e6 * self.acceptance
        facts[:, -2:] = BY_MODEL if told else BY_NOBODY, told
        return Report(names, facts)

    @staticmethod
    def num_left(request: Any) -> int:
        """Prompt tokens that are not prefilled yet."""
        return int(request.num_prompt_tokens - request.num_computed_tokens)


def test_good_drafts_are_verified_and_every_request_gets_its_tokens(config: Any) -> None:
    device = Device(config, acceptance=0.9, token_s=0.01)
    for number in range(6):
        device.add(f"r{number}", num_prompt=40 + 30 * number, max_tokens=120)
    device.run()
    assert device.emitted == dict.fromkeys(device.emitted, 120)
    assert len(device.emitted) == 6
    adapter = device.scheduler.draftwise
    assert adapter.num_running == 0
    assert adapter.counts.accepted["model"] > 300
    assert adapter.controller.guard.speed > 1.3
    kept, promised = adapter.controller.kept, adapter.controller.promised
    assert abs(kept / promised - 1) < 0.15


def test_bad_drafts_are_given_up(config: Any) -> None:
    device = Device(config, acceptance=0.03, token_s=0.2)
    for number in range(4):
        device.add(f"r{number}", max_tokens=300)
    device.run()
    late = [num for drafts in device.verified.values() for num in drafts[-20:]]
    assert sum(map(sum, device.verified.values())) < 4 * 300 * 0.2
    assert sum(late) / max(len(late), 1) < 2
    assert device.scheduler.draftwise.controller.guard.speed > 0.97


def test_requests_choose_and_the_state_is_kept(config: Any) -> None:
    device = Device(config, acceptance=0.9, token_s=0.01)
    device.add("off", extra_args={"speculation": False})
    device.add("short", extra_args={"max_draft": 1})
    device.add("free")
    device.run()
    assert "off" not in device.verified
    assert set(device.verified["short"]) == {1}
    assert max(device.verified["free"]) > 1
    device.scheduler.shutdown()
    again = Device(config, acceptance=0.9, token_s=0.01)
    costs = again.scheduler.draftwise.controller.costs
    assert costs.num_steps == device.scheduler.draftwise.controller.costs.num_steps > 30


def test_deferred_work_runs_while_the_model_computes(config: Any) -> None:
    device, calls = Device(config, acceptance=0.9, token_s=0.01), []
    device.scheduler.draftwise.work = lambda: calls.append(device.now)
    device.add("r", max_tokens=40)
    device.run()
    assert len(calls) > 8


def test_the_mark_of_a_server_reaches_its_workers(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is in the config pickled for the workers; a server of plain vLLM has none."""
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    speculative = DRAFT_MODEL["speculative_config"] | {plugin.LENGTHS: [[1, 8, 4]]}
    args = EngineArgs(str(zoo.target_path()), speculative_config=speculative)
    for ours, made in ((True, config), (False, args.create_engine_config())):
        sent = pickle.loads(pickle.dumps(made))
        assert sent.speculative_config.uses_dynamic_speculative_decoding()
        assert plugin.is_of_draftwise(sent.speculative_config) is ours


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "draft_model"}, "always drafts num_speculative_tokens"),
        ({"method": "mtp", "num_nextn_predict_layers": 2}, "mtp does with several layers"),
        ({"method": "ngram"}, "'ngram' cannot share"),
    ],
)
def test_refused_with_the_reason(changes: dict[str, Any], reason: str, config: Any) -> None:
    from draftwise.errors import DraftwiseError

    speculative = config.speculative_config
    for name, value in changes.items():
        of_model = name.startswith("num_nextn")
        setattr(speculative.draft_model_config.hf_config if of_model else speculative, name, value)
    with pytest.raises(DraftwiseError, match=reason):
        Device(config, 0.5, 0.1)
