"""What the workers' mixer does before the first request, with stubs of vLLM and of the kernels."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from draftwise.integrations.vllm.ahead import Orders
from draftwise.integrations.vllm.mixer import Mixer


class Kernels:
    """In place of ``kernels.Drafting``."""

    fails = False

    def __init__(self, num_slots: int, max_len: int, num: int, *_: Any) -> None:
        self.num, self.warmed = num, list[tuple[Any, ...]]()
        self.drafts = torch.zeros(num_slots, num)

    def warm_up(self, *args: Any) -> None:
        if self.fails:
            raise RuntimeError("planted")
        self.warmed.append(args)


@pytest.fixture
def mixer(monkeypatch: pytest.MonkeyPatch) -> Mixer:
    buffers, kernels = ModuleType("buffers"), ModuleType("kernels")
    buffers.StagedWriteTensor = lambda shape, **_: SimpleNamespace(gpu=torch.zeros(shape))
    kernels.ROW, kernels.Drafting = 7, Kernels
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu.buffer_utils", buffers)
    monkeypatch.setitem(sys.modules, "draftwise.integrations.vllm.kernels", kernels)
    states = SimpleNamespace(
        max_num_reqs=2, num_speculative_steps=4, max_model_len=8,
        total_len=SimpleNamespace(gpu=torch.zeros(2)), all_token_ids=None,
    )  # fmt: skip
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(use_ngram=lambda: False), additional_config={}
    )
    drafter = SimpleNamespace(propose=lambda *_, **given: torch.full((2, 4), 5))
    return Mixer(drafter, config, torch.device("cpu"), states)


def test_kernels_are_compiled_before_the_first_request(mixer: Mixer) -> None:
    for _ in range(3):
        assert mixer.propose(None, dummy_run=True).tolist() == [[5] * 4] * 2
    ((text, lengths, given),) = mixer._drafting.warmed
    assert text.shape == (2, 8)
    assert (lengths is mixer._states.total_len.gpu, given) == (True, None)


def test_kernels_that_do_not_compile_leave_vllm_s_drafts(
    mixer: Mixer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Kernels, "fails", True)
    for _ in range(2):
        assert mixer.propose(None, dummy_run=True).tolist() == [[5] * 4] * 2
    assert mixer.has_failed
    assert [r.message for r in caplog.records].count(mixer.failure) == 1


def test_orders_without_hazards_launch_no_kernel_and_report_nothing(mixer: Mixer) -> None:
    """The head still reads the step's tokens: its KV cache has no holes."""
    mixer._states.req_id_to_index = {}
    asked: list[int] = []
    mixer._head = lambda *_, **given: (
        asked.append(given["num_speculative_tokens"]) or torch.ones((2, 4))
    )
    mixer.take(Orders())
    drafts = mixer.propose(SimpleNamespace(num_reqs=1), num_speculative_tokens=3)
    assert (drafts.shape, asked) == ((1, 4), [0])
    mixer.copy(None, None)
    assert mixer.copied is None
    assert not mixer.report(None).names
    assert not mixer.has_failed
