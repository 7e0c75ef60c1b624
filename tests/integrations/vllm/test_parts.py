"""Options, refusals, the plug-in's wrappers, the meter, the counters, the state file; no vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftwise.integrations import vllm as room
from draftwise.integrations.vllm import plugin
from draftwise.integrations.vllm.arms import make_drafter
from draftwise.integrations.vllm.clock import Step, StepMeter
from draftwise.integrations.vllm.metrics import Count, Exporter, Pace
from draftwise.integrations.vllm.nothing import NullProposer
from draftwise.integrations.vllm.options import Options, parse_options
from draftwise.integrations.vllm.refusals import NULL_PROPOSER, check_server
from draftwise.integrations.vllm.repair import checked, expand_batch_to_tokens, is_right
from draftwise.integrations.vllm.state import StateFile
from draftwise.integrations.vllm.versions import TESTED, check_version
from draftwise.types import DraftwiseError, Plan
from integrations.vllm.fakes import FakeEngine, FakeRequest

torch = pytest.importorskip("torch")


def server(**changes: Any) -> SimpleNamespace:
    """A ``VllmConfig`` that can have it; changes are ``part__field``."""
    parts = {
        "speculative": {
            "method": "custom_class",
            "model": NULL_PROPOSER,
            "num_speculative_tokens": 16,
            "rejection_sample_method": "standard",
            "draft_sample_method": "greedy",
        },
        "parallel": {"pipeline_parallel_size": 1, "data_parallel_size": 1},
        "model": {"is_diffusion": False},
        "scheduler": {"async_scheduling": False},
    }
    top = {"use_v2_model_runner": False}
    for name, value in changes.items():
        part, _, key = name.partition("__")
        (parts[part] if key else top)[key or part] = value
    configs = {f"{name}_config": SimpleNamespace(**fields) for name, fields in parts.items()}
    return SimpleNamespace(**configs, **top)


def test_a_plain_server_is_served() -> None:
    check_server(server())
    check_server(server(speculative__method="eagle3", speculative__model="head"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parallel__pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
        (
            {"parallel__data_parallel_size": 2, "speculative__method": "mtp"},
            "different lengths and wait",
        ),
        ({"model__is_diffusion": True}, "diffusion"),
        ({"use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"scheduler__async_scheduling": True}, "--no-async-scheduling"),
        ({"speculative__method": "ngram"}, "draft_model, eagle, eagle3, mtp"),
        ({"speculative__method": "dspark"}, "method 'dspark'"),
        ({"speculative__draft_sample_method": "probabilistic"}, "no probabilities"),
        ({"speculative__rejection_sample_method": "synthetic"}, "model's law"),
        ({"speculative__num_speculative_tokens": 200}, "at most 128"),
    ],
)
def test_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DraftwiseError, match="cannot draft in this server") as refusal:
        check_server(server(**changes))
    assert reason in str(refusal.value)


def test_without_the_plug_in_nothing_would_be_verified() -> None:
    config = server()
    config.speculative_config = None
    with pytest.raises(DraftwiseError, match="VLLM_PLUGINS"):
        check_server(config)


def test_lengths_only_for_asynchronous_scheduling() -> None:
    changes = {"speculative__method": "eagle", "scheduler__async_scheduling": True}
    check_server(server(use_v2_model_runner=True, **changes), asynchronous=True)
    with pytest.raises(DraftwiseError, match=r"take draftwise\.integrations"):
        check_server(server(speculative__method="eagle"), asynchronous=True)
    with pytest.raises(DraftwiseError, match="'custom_class'"):
        check_server(server(scheduler__async_scheduling=True), asynchronous=True)


def test_other_versions_are_refused_by_name() -> None:
    for version in ("0.31.9", "1.0.0", "nonsense"):
        with pytest.raises(DraftwiseError, match=f"tested inside vLLM {TESTED}"):
            check_version(version)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = room.Nonsense


def test_options_are_checked() -> None:
    assert parse_options(None) == Options()
    assert parse_options({"drafters": ["lookup"], "state": None}).drafters == ("lookup",)
    for given, message in [
        ({"polcy": "x"}, "its options are: drafters, max_length"),
        ({"drafters": "lookup"}, "write a list"),
        ({"max_length": 0}, "1 to 128"),
        ({"seed": "1"}, "type int"),
        ("goodput", "write an object"),
    ]:
        with pytest.raises(DraftwiseError, match=message):
            parse_options(given)
    with pytest.raises(DraftwiseError, match="needs a model"):
        make_drafter("lm:path")
    with pytest.raises(DraftwiseError, match="unknown policy 'x'"):
        FakeEngine(len, Options(policy="x"))


def arguments(**given: Any) -> SimpleNamespace:
    """vLLM's ``EngineArgs`` as they come."""
    names = ("speculative_config", "spec_method", "spec_model", "spec_tokens", "async_scheduling")
    plain = dict.fromkeys((*names, "max_num_seqs", "scheduler_cls"))
    return SimpleNamespace(**(plain | {"additional_config": {}} | given))


def test_the_plug_in_adds_what_need_not_be_typed() -> None:
    seen = []

    def create(self: Any) -> Any:
        seen.append(self)
        return server(device_config=SimpleNamespace(device_type="cuda"))

    create_config = plugin.with_drafts(create)
    others, ours = arguments(), arguments(scheduler_cls=plugin.SCHEDULER)
    create_config(others)
    assert vars(others) == vars(arguments())
    create_config(ours)
    assert ours.speculative_config["model"] == NULL_PROPOSER
    assert ours.speculative_config["num_speculative_tokens"] == Options().max_length
    assert ours.async_scheduling is False
    with_mtp = arguments(
        scheduler_cls=plugin.SCHEDULER,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        max_num_seqs=8,
    )
    create_config(with_mtp)
    key = "num_speculative_tokens_per_batch_size"
    assert with_mtp.speculative_config[key] == [[1, 8, 3]]


def test_the_null_proposer_proposes_nothing() -> None:
    proposer = NullProposer(None)
    proposer.load_model(None)
    assert proposer.propose([[1], []], None, None, slot_mappings=None) == [[], []]


def test_the_self_test_finds_memory_that_was_never_written() -> None:
    def broken(x: Any, cu_num_tokens: Any, num_tokens: int, *replace: int) -> Any:
        return x.new_empty(num_tokens)

    def truncating(x: Any, cu_num_tokens: Any, num_tokens: int, *replace: int) -> Any:
        return expand_batch_to_tokens(x.long(), cu_num_tokens, num_tokens, *replace).to(x.dtype)

    assert is_right(expand_batch_to_tokens)
    assert not is_right(broken)
    assert not is_right(truncating)
    values, ends = torch.tensor([0.35, 0.9]), torch.tensor([2, 3])
    assert torch.equal(checked(broken)(values, ends, 3), torch.tensor([0.35, 0.35, 0.9]))


def test_the_meter_learns_a_line_and_never_overrates_what_it_has_not_seen() -> None:
    meter, rng = StepMeter(), np.random.default_rng(0)
    assert meter.forward_s(4, 8).tolist() == [1.0] * 8
    for _ in range(3):
        meter.saw(Step(4, 4, 0, 0.5))
    assert meter.forward_s(4, 20)[-1] == pytest.approx(0.5)  # a drafted token is free so far
    for _ in range(400):
        rows, drafted = int(rng.integers(1, 17)), int(rng.integers(0, 2)) * 3
        extra = int(rng.integers(0, 4 * rows))
        seconds = 0.1 + 0.01 * rows + 0.005 * extra + drafted * (0.02 + 0.001 * rows)
        slow = 5.0 if rng.random() < 0.05 else 1.0
        meter.saw(Step(rows, rows + extra, drafted, slow * seconds * rng.uniform(0.95, 1.05)))
    for rows, tokens in [(1, 1), (1, 5), (8, 8), (8, 30), (16, 60)]:
        truth = 0.1 + 0.01 * rows + 0.005 * (tokens - rows)
        assert meter.forward_s(rows, tokens)[-1] == pytest.approx(truth, rel=0.1)
    assert meter.draft_s(8) == pytest.approx(0.028, rel=0.25)


def test_what_steps_without_drafts_take_is_found_out() -> None:
    """Seventeen tokens cost twice what sixteen do, and something can always be drafted."""
    meter, rng, plain = StepMeter(), np.random.default_rng(0), []
    for number in range(400):
        extra = 0 if meter.wants_plain(16) else int(rng.integers(1, 16))
        plain += [number] if not extra else []
        meter.saw(Step(16, 16 + extra, 0, 0.2 if extra else 0.1))
        assert not meter.wants_plain(2)
    assert np.diff([-1, *plain]).tolist() == [9, 17, 33, *[65] * 5]
    first, second = meter.forward_s(16, 17)[15:]
    assert first < 0.13
    assert second > 0.17


def test_a_draft_that_looked_cheap_thrice_is_not_cheaper_than_none() -> None:
    meter = StepMeter()
    for extra, seconds in [(0, 0.1)] * 15 + [(8, 0.14)] * 15 + [(1, 0.08)] * 3:
        meter.saw(Step(16, 16 + extra, 0, seconds))
    meter.saw(Step(16, 16, 0, 0.1))
    for _ in range(8):
        meter.saw(Step(16, 24, 0, 0.14))
    believed = meter.forward_s(16, 24)[15:]
    assert (np.diff(believed) >= -1e-9).all()
    assert meter.priced_s(16, 24)[16] > 1.009 * meter.forward_s(16, 24)[15]


def test_what_was_learnt_outlives_the_server(tmp_path: Path) -> None:
    path, about = tmp_path / "new" / "state.json", {"policy": "goodput"}
    file = StateFile(path, about)
    assert file.load() == {}
    assert file.is_due(60.0)
    engine = FakeEngine(lambda text: len(text) % 3)
    engine.add(FakeRequest("a", [1, 2, 3, 4], 30))
    engine.run()
    file.save(engine.controller.state(), 60.0)
    assert not file.is_due(61.0)
    again = FakeEngine(lambda text: len(text) % 3)
    again.controller.load_state(StateFile(path, about).load())
    ours, theirs = engine.controller.meter, again.controller.meter
    assert np.allclose(ours.forward_s(1, 9), theirs.forward_s(1, 9))
    assert StateFile(path, {"policy": "ucb1"}).load() == {}
    assert path.stat().st_size < 100_000
    path.write_text("{")
    assert StateFile(path, about).load() == {}
    (aside,) = path.parent.glob("state.json.unused-*")
    assert (aside.read_text(), path.exists()) == ("{", False)


def test_the_meters_file_is_bounded() -> None:
    meter, rng = StepMeter(), np.random.default_rng(0)
    for _ in range(600):
        rows = int(rng.integers(1, 200))
        meter.saw(Step(rows, rows + int(rng.integers(0, 8 * rows)), int(rng.integers(0, 9)), 0.1))
    assert len(json.dumps(meter.state())) < 100_000
    with pytest.raises(ValueError, match="not the state of a meter"):
        meter.load_state([1])


class FakePrometheus:
    """Counters and gauges of ``prometheus_client``, as sums by label."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def _new(self, name: str) -> Any:
        def labels(*given: str) -> Any:
            key = (name, *given)
            return SimpleNamespace(
                inc=lambda n: self.values.update({key: self.values.get(key, 0) + n}),
                set=lambda n: self.values.update({key: n}),
            )

        return SimpleNamespace(labels=labels)

    def Counter(self, name: str, text: str, labels: list[str]) -> Any:
        return self._new(name)

    def Gauge(self, name: str, text: str, labels: list[str], multiprocess_mode: str) -> Any:
        return self._new(name)


def test_counters_are_exported_once_each() -> None:
    prometheus = FakePrometheus()
    exporter, counts, pace = Exporter("m", prometheus), {Plan("lookup", 3): Count()}, Pace()
    for _ in range(2):
        counts[Plan("lookup", 3)].add(drafted=3, accepted=2, emitted=3)
        pace.add(3, 0.1, 0.2)
        exporter.export(counts, pace)
        exporter.export(counts, pace)
    assert prometheus.values["draftwise:rounds", "m", "lookup", "3"] == 2
    assert prometheus.values["draftwise:accepted_tokens", "m", "lookup", "3"] == 4
    assert prometheus.values["draftwise:measured_tokens_per_second", "m"] == pytest.approx(15.0)
