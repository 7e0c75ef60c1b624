"""SGLang's policy: choices and costs against a stub, contracts against the wheel.

The contract tests need ``make sglang-wheel``; they import SGLang's modules that need no CUDA.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftwise.errors import DraftwiseError
from draftwise.integrations.sglang import (
    CONFIG,
    SglangSettings,
    StepsPolicy,
    plug_in,
    read_settings,
)
from draftwise.state import StateFile, read_state

BENCHMARKS = Path(__file__).parents[2] / "packages" / "lab" / "benchmarks"
ANY_BATCH = SglangSettings({1: [0, 1, 2, 3, 5]}, state=None)

Seconds = Callable[[int, int], float]
"""Seconds of a step by number of requests and drafted tokens of each."""


def flat(batch: int, steps: int) -> float:
    """A step in which verification costs little."""
    return 0.010 + 0.0004 * steps + 2e-6 * batch * (steps + 1)


def slow(batch: int, steps: int) -> float:
    """The same on a slow machine, on which a minute has few steps."""
    return 20 * flat(batch, steps)


def steep(batch: int, steps: int) -> float:
    """A step in which all tokens cost the same."""
    return 0.002 + 0.0005 * steps + 0.001 * batch * (steps + 1)


class FakeServer:
    """SGLang's scheduler and worker, as the policy sees them, with a simulated clock.

    rate: probability that a drafted token is accepted. overlap: the next step is chosen before the
    last one is reported. Every ``prefill_every`` steps a prefill of 80 ms comes first.
    """

    def __init__(
        self, policy_of: Callable[..., StepsPolicy], seconds: Seconds, rate: float = 0.7,
        *, overlap: bool = True, prefill_every: int = 0,
    ) -> None:  # fmt: skip
        self.now_s = 100.0
        self.policy = policy_of(clock=lambda: self.now_s)
        self.seconds, self.rate, self.overlap = seconds, rate, overlap
        self.prefill_every = prefill_every
        self.steps: list[int] = []
        self.spent_s = self.plain_s = 0.0
        self._rng = random.Random(0)
        self._told: tuple[list[int], float] | None = None

    def run(self, batch: int, num: int) -> Counter[int]:
        """Run ``num`` steps of a batch and count how often each length was chosen."""
        for _ in range(num):
            prefill_s = self._prefill()
            steps = self.policy.get_steps_for_batch(batch)
            self._tell()
            took_s = self.seconds(batch, steps)
            counts = [self._accepted(steps) for _ in range(batch)]
            self._told = counts, self.now_s + prefill_s + took_s
            if prefill_s and self.overlap:
                # the scheduler waits for the prefill's result, then asks for the next step
                self.now_s += prefill_s
            if not self.overlap:
                self._tell()
            self.steps.append(steps)
            self.spent_s += took_s
            self.plain_s += (1 + sum(counts) / batch) * self.seconds(batch, 0)
        return Counter(self.steps[-num:])

    def _prefill(self) -> float:
        if not self.prefill_every or len(self.steps) % self.prefill_every:
            return 0.0
        self.policy.interrupted()
        self._tell()
        if self.overlap:
            return 0.08
        self.now_s += 0.08
        return 0.0

    def _accepted(self, steps: int) -> int:
        kept = 0
        while kept < steps and self._rng.random() < self.rate:
            kept += 1
        return kept

    def _tell(self) -> None:
        if self._told is not None:
            counts, self.now_s = self._told
            self.policy.on_verify_complete(counts, len(counts))
            self._told = None


def policy(**given: Any) -> StepsPolicy:
    return StepsPolicy(ANY_BATCH, **given)


@pytest.mark.parametrize("overlap", [True, False])
def test_long_drafts_where_they_are_accepted(overlap: bool) -> None:
    server = FakeServer(policy, flat, rate=0.95, overlap=overlap)
    server.run(8, 200)
    assert server.run(8, 200).most_common(1)[0][0] == 5
    assert server.plain_s / server.spent_s > 3


@pytest.mark.parametrize("overlap", [True, False])
def test_never_slower_where_nothing_is_accepted(overlap: bool) -> None:
    server = FakeServer(policy, flat, rate=0.0, overlap=overlap)
    server.run(16, 800)
    assert server.plain_s / server.spent_s > 0.99
    assert server.run(16, 200)[0] > 150


def dear(batch: int, steps: int) -> float:
    """The same while another program slows all drafted tokens to twenty times their price."""
    return 20 * flat(batch, steps) - 19 * flat(batch, 0)


def doubled(batch: int, steps: int) -> float:
    """The same while another program slows everything down."""
    return 2 * flat(batch, steps)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("busy", [dear, doubled])
@pytest.mark.parametrize("period", [0, 150])
def test_drafts_never_lose_where_prices_change(batch: int, busy: Seconds, period: int) -> None:
    """period: steps after which the machine is busy, or quiet, again; 0: it stays busy."""
    server = FakeServer(policy, flat, rate=0.5)
    server.run(batch, 300)
    server.spent_s = server.plain_s = 0.0
    for number in range(0, 2000, 50):
        is_quiet = period and number // period % 2
        server.seconds = flat if is_quiet else busy
        server.run(batch, 50)
    speed = server.plain_s / server.spent_s
    assert speed >= 0.99
    assert speed > 1.2 or busy is dear


def test_drafts_come_back_when_they_pay_again() -> None:
    server = FakeServer(policy, flat, rate=0.0)
    server.run(8, 600)
    server.rate = 0.9
    server.run(8, 400)
    assert server.run(8, 100)[0] == 0


def test_short_drafts_in_large_batches() -> None:
    """Good drafts pay for one request; for 64, where every token costs as much, few do."""
    small, large = FakeServer(policy, steep, rate=0.95), FakeServer(policy, steep, rate=0.6)
    small.run(1, 300)
    large.run(64, 300)
    alone, many = small.run(1, 60), large.run(64, 60)
    assert alone.most_common(1)[0][0] >= 1
    assert many[0] > 50


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefill_every", [1, 5])
def test_prefills_between_steps_are_not_priced(overlap: bool, prefill_every: int) -> None:
    server = FakeServer(policy, flat, overlap=overlap, prefill_every=prefill_every)
    server.run(8, 400)
    for steps in (0, 3):
        known = server.policy.costs.seconds(8, 0, steps, 8 * steps)[-1]
        assert known == pytest.approx(flat(8, steps), rel=0.1)


def test_idle_time_is_not_priced() -> None:
    server = FakeServer(policy, flat, overlap=False)
    for _ in range(100):
        server.run(4, 3)
        server.now_s += 5.0
    assert server.policy.costs.seconds(4, 0, 0, 0)[0] == pytest.approx(flat(4, 0), rel=0.1)


def test_a_pause_does_not_end_drafting() -> None:
    server = FakeServer(policy, flat, rate=0.95)
    server.run(8, 200)
    server.seconds = lambda batch, steps: 3.0
    server.run(8, 1)
    server.seconds = flat
    assert server.run(8, 100)[0] == 0


def test_a_text_in_which_drafts_fail_does_not_end_drafting_for_long() -> None:
    """One request has no accepted token in thirty steps after a good period."""
    server = FakeServer(policy, flat, rate=0.9)
    server.run(1, 400)
    server.rate = 0.0
    server.run(1, 30)
    server.rate = 0.9
    assert server.run(1, 100)[0] < 10


def test_a_padded_batch_takes_the_time_of_its_graph() -> None:
    chosen = SglangSettings({1: [0, 1, 3], 8: [0, 1]}, state=None)
    made = StepsPolicy(chosen)
    assert made.cuda_graph_bs_for_step(3) is None
    made.set_cuda_graph_bs([1, 2, 4, 8, 16])
    assert made.cuda_graph_bs_for_step(3) == [1, 2, 4]
    assert made.cuda_graph_bs_for_step(1) == [1, 2, 4, 8, 16]
    server = FakeServer(lambda **given: made, flat, rate=0.99)
    made._clock = lambda: server.now_s
    assert max(server.run(5, 300)) == 1  # a batch of 5 uses the graph of 8, which has no length 3
    assert max(server.run(4, 300)) == 3


def test_requests_are_told_apart_by_name() -> None:
    """One whose drafts are accepted runs again after another one, whose drafts are rejected."""
    made = policy()
    for _ in range(40):
        made.expect(["bad"], 50)
        steps = made.get_steps_for_batch(1)
        made.on_verify_complete([0], 1)
        made.expect(["good"], 50)
        steps = made.get_steps_for_batch(1)
        made.on_verify_complete([steps], 1)
    made.expect(["good", "bad"], 100)
    made.get_steps_for_batch(2)
    model = np.array(made.state()["model"])
    made.expect(["good", "new"], 100)
    made.get_steps_for_batch(2)
    made.on_verify_complete([0, 0], 2)
    gained = np.array(made.state()["model"])[..., 1].sum() - model[..., 1].sum()
    assert gained < 1.0  # "bad" has left, so its last step is not learned; that of "good" is


def test_a_step_that_was_dropped_is_left_out() -> None:
    made = policy()
    made.get_steps_for_batch(3)
    made.get_steps_for_batch(2)
    assert made.on_verify_complete([0, 0], 2) is None
    assert made.on_verify_complete([0, 0], 2) is None  # nothing is in flight
    assert sum(made.counts.values()) == 1


def group(
    seconds: Sequence[Seconds], **given: Any
) -> tuple[list[FakeServer], list[int], list[int]]:
    """Two ranks, the choices sent by the first, and those received by the second."""
    sent: list[int] = []
    heard: list[int] = []

    def send(steps: int) -> int:
        sent.append(steps)
        return steps

    def hear(_: int) -> int:
        heard.append(sent[len(heard)])
        return heard[-1]

    ranks = [
        FakeServer(lambda clock, a=agree: policy(clock=clock, agree=a), cost, **given)
        for agree, cost in zip((send, hear), seconds, strict=True)
    ]
    return ranks, sent, heard


def test_a_group_takes_the_choice_of_its_first_rank() -> None:
    """Ranks with different clocks exchange choices at the same calls, and agree."""
    (first, other), sent, heard = group((flat, steep))
    for batch in (4, 4, 7, 7, 2, 9, 9, 9, 1):
        first.run(batch, 11)
        other.run(batch, 11)
        assert len(sent) == len(heard)
    assert first.steps == other.steps
    assert len(set(first.steps)) > 2


def wait_for(path: Path) -> None:
    """Wait until the background thread has written a file."""
    for _ in range(200):
        if path.exists():
            return
        time.sleep(0.05)


def test_what_was_learnt_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    about = {"device": "a GPU", "model": "m"}

    def server(about: dict[str, str]) -> FakeServer:
        file = StateFile(path, about)
        return FakeServer(lambda clock: policy(clock=clock, state=file), slow, rate=0.95)

    first = server(about)
    first.run(8, 400)  # more than a minute
    wait_for(path)
    assert json.loads(path.read_text())["about"] == about
    assert server(about).run(8, 1)[5] == 1
    assert server(about | {"device": "another"}).run(8, 1)[0] == 1


def test_the_state_is_written_within_the_first_seconds(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", {})
    server = FakeServer(lambda clock: policy(clock=clock, state=file), slow)
    while server.now_s < 106.0:
        server.run(4, 1)
    wait_for(file.path)
    assert read_state(file.path)[1]["costs"]["num_steps"] > 10


def test_a_state_with_absurd_seconds_is_left_out(tmp_path: Path, caplog: Any) -> None:
    server = FakeServer(policy, flat)
    server.run(8, 50)
    state = json.loads(json.dumps(server.policy.state()))
    file = StateFile(tmp_path / "state.json", {})
    for name in ("mean", "variance", "noise_s"):
        costs = state["costs"]
        costs = costs | {name: 1e200 if name == "noise_s" else [1e300, *costs[name][1:]]}
        file.path.write_text(file.text(state | {"costs": costs}))
        caplog.clear()
        again = FakeServer(lambda clock: policy(clock=clock, state=file), flat)
        assert "it is kept as" in caplog.text
        again.run(8, 50)


@pytest.mark.parametrize("broken", ["length_survival", "learn_lengths"])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_its_own_ends_drafting_and_not_the_server(
    broken: str, failing: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """If one rank fails, the group still makes one choice and exchanges it at the same calls."""
    ranks, sent, heard = group((flat, flat), rate=0.95)

    def fails(*_: Any) -> None:
        raise RuntimeError("as no test foresaw")

    for _ in range(40):
        for rank in ranks:
            rank.run(8, 5)
    assert min(ranks[0].steps[-5:]) == 5
    for number in range(40):
        for rank in ranks:
            with monkeypatch.context() as patch:
                if rank is ranks[failing] and number == 3:
                    patch.setattr(f"draftwise.integrations.sglang.policy.{broken}", fails)
                rank.run(8 + number % 3, 5)
        assert len(sent) == len(heard)
    assert ranks[0].steps == ranks[1].steps
    assert set(ranks[0].steps[-50:]) == ({0} if failing == 0 else {5})
    assert caplog.text.count("Traceback") == 1
    assert "until the server is restarted" in caplog.text
    assert len(ranks[failing].policy._flights) < 5


@pytest.mark.parametrize("learnt", [{}, {"model": [[1.0]]}, {"model": "x", "costs": {}}])
def test_a_state_that_does_not_fit_is_left_out(
    learnt: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = StateFile(tmp_path / "state.json", {})
    file.path.write_text(file.text(learnt))
    made = policy(state=file)
    assert made.get_steps_for_batch(1) == 0
    assert "it is kept as" in caplog.text


def test_one_line_a_minute_says_what_drafting_brought(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(policy, slow, rate=0.9)
    with caplog.at_level(logging.INFO, "sglang.draftwise"):
        server.run(4, 750)
    lines = [each.getMessage() for each in caplog.records]
    assert 2 <= len(lines) <= server.spent_s / 60 + 1
    claimed = float(lines[-1].split()[1])
    assert claimed == pytest.approx(server.plain_s / server.spent_s, rel=0.1)


def test_the_config_that_comes_with_draftwise() -> None:
    settings = read_settings(str(CONFIG))
    assert settings is not None
    assert 0 in settings.candidates
    assert settings.for_batch(128)[-1] <= settings.for_batch(1)[-1]
    assert settings.for_batch(0) == settings.for_batch(1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"1": {"candidate_steps": [0]}, "draftwise": []}, '"draftwise" is an object'),
        ({"1": {"candidate_steps": [0]}, "draftwise": {"stat": 1}}, '"draftwise" is an object'),
        ({"1": {"candidate_steps": [0]}, "draftwise": {"state": 1}}, '"state"'),
        ({"1": {"candidate_steps": [0]}, "draftwise": {"report_s": 0}}, '"report_s"'),
        ({"draftwise": {}}, "name candidates"),
        ({"1": {"candidate_steps": []}, "draftwise": {}}, "name candidates"),
        ({"1": {"candidate_steps": [-1]}, "draftwise": {}}, "name candidates"),
        ({"1": {"candidate_steps": 3}, "draftwise": {}}, "name candidates"),
        ({"1": [0, 1], "draftwise": {}}, "name candidates"),
    ],
)
def test_bad_configs_are_refused(config: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(DraftwiseError, match=says) as caught:
        read_settings(str(path))
    assert "--speculative-adaptive-config" in str(caught.value)


def test_configs_of_sglang_leave_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"1": {"candidate_steps": [1, 3]}}))
    assert read_settings(str(path)) is None
    assert read_settings(None) is None
    with pytest.raises(DraftwiseError, match=r"--speculative-adaptive-config .*none\.json"):
        read_settings(str(tmp_path / "none.json"))


# against SGLang's own modules


@pytest.fixture(scope="module")
def sglang() -> Iterator[Callable[[str], Any]]:
    """Loads a module of ``sglang.srt``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from shared.sglang_wheel import unpacked

        try:
            with unpacked() as load:
                yield load
        except (FileNotFoundError, ModuleNotFoundError) as error:
            pytest.skip(str(error))


def test_the_policy_has_the_methods_that_sglang_calls(sglang: Callable[[str], Any]) -> None:
    protocol = sglang("speculative.adaptive_runtime_state").AdaptiveSpecPolicy
    wanted = {name for name in vars(protocol) if not name.startswith("_")}
    assert {"get_steps_for_batch", "on_verify_complete", "candidate_steps"} <= wanted
    for name in wanted - {"candidate_steps"}:
        theirs = inspect.signature(getattr(protocol, name)).parameters
        assert list(inspect.signature(getattr(StepsPolicy, name)).parameters) == list(theirs)


class FakeWorker:
    """The part of a worker that SGLang's controller uses."""

    def __init__(self, steps: int) -> None:
        self.speculative_num_steps = steps
        self.built: dict[int, Any] = {}

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: Any
    ) -> Any:
        assert speculative_num_draft_tokens == speculative_num_steps + 1
        self.built[speculative_num_steps] = cuda_graph_bs
        return SimpleNamespace(speculative_num_steps=speculative_num_steps)

    def apply_runtime_state(self, state: Any) -> None:
        self.speculative_num_steps = state.speculative_num_steps


def test_sglangs_controller_follows_batches_that_grow_and_shrink(
    sglang: Callable[[str], Any],
) -> None:
    """Every chosen length has graphs for the batch, and the choices converge to what pays."""
    settings = read_settings(str(CONFIG))
    assert settings is not None
    now_s, graphs, rng = 0.0, [1, 2, 4, 8, 16, 32, 64, 128], random.Random(0)
    made = StepsPolicy(settings, clock=lambda: now_s)
    worker = FakeWorker(3)
    controller = sglang("speculative.adaptive_runtime_state").AdaptiveController(worker, made)
    controller.init_states(graphs)
    assert sorted(worker.built) == controller.candidate_steps
    chosen: dict[int, list[int]] = {}
    sizes = [1, 3, 9, 30, 70, 128, 90, 40, 12, 2, 1]
    for size in sizes * 2:
        for _ in range(60):
            controller.activate_step_by_batch(size)
            steps = worker.speculative_num_steps
            padded = next(graph for graph in graphs if graph >= size)
            assert padded in worker.built[steps]
            now_s += 0.006 + 0.0004 * steps + 2e-5 * max(0, padded * (steps + 1) - 128)
            accepted = [min(steps, int(rng.expovariate(0.6))) for _ in range(size)]
            controller.on_verify_complete(accepted, size)
            chosen.setdefault(size, []).append(steps)
    assert np.mean(chosen[1][-60:]) > np.mean(chosen[128][-60:]) > 0


def test_the_entry_point_is_one_that_sglang_looks_for(sglang: Callable[[str], Any]) -> None:
    found = tomllib.loads((BENCHMARKS.parents[2] / "pyproject.toml").read_text())
    group = sglang("plugins").GENERAL_PLUGINS_GROUP
    value = found["project"]["entry-points"][group]["draftwise"]
    assert EntryPoint("draftwise", value, group).load() is plug_in


def arguments(path: Path, **given: Any) -> SimpleNamespace:
    """The fields of SGLang's ``ServerArgs`` that the checks read."""
    usual = {
        "speculative_algorithm": "EAGLE3", "speculative_adaptive": True,
        "speculative_adaptive_config": str(path), "speculative_eagle_topk": 1,
        "model_path": "org/model", "attn_dp_size": 1, "enable_multi_layer_eagle": False,
        "enable_two_batch_overlap": False,
        "enable_pdmux": False, "ep_join_mode": "none", "_resolved_overrides": [],
    }  # fmt: skip
    return SimpleNamespace(**(usual | given))


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk"),
        ({"attn_dp_size": 2}, "--enable-dp-attention"),
        ({"enable_multi_layer_eagle": True}, "--enable-multi-layer-eagle"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
        ({"speculative_adaptive": False}, "--speculative-adaptive"),
        ({}, None),
    ],
)
def test_what_cannot_work_is_refused_with_its_flag(
    given: Any, flag: str | None, sglang: Callable[[str], Any]
) -> None:
    """Through SGLang's registry of resolution steps, before a model loads."""
    hooks, registry = sglang("arg_groups.resolution_hooks"), sglang("plugins.hook_registry")
    steps = sglang("arg_groups.speculative_hook")

    def handle_speculative_decoding(server_args: Any) -> None:
        """SGLang's step, as far as adaptive drafting is concerned."""
        if server_args.speculative_adaptive:
            steps._maybe_disable_adaptive(server_args)

    plug_in()
    try:
        server = arguments(CONFIG, **given)
        if flag is None:
            hooks.run_hook(handle_speculative_decoding, server)
            return
        with pytest.raises(DraftwiseError, match=flag):
            hooks.run_hook(handle_speculative_decoding, server)
    finally:
        hooks._HOOKS.clear()
        registry.HookRegistry.reset()


class EAGLEWorkerV2:
    """Stands in for SGLang's worker, which needs CUDA, with its adaptive part only."""

    def __init__(self, controller: Any) -> None:
        self.speculative_num_steps = 3
        self.adaptive_controller = controller(self, SimpleNamespace(candidate_steps=[1, 3]))

    def forward_batch_generation(self, batch: Any) -> str:
        if not batch.forward_mode.is_extend():
            self.adaptive_controller.activate_step_by_batch(len(batch.reqs))
        return "forward"

    def apply_runtime_state(self, state: Any) -> None:
        self.speculative_num_steps = state.speculative_num_steps


def batch_of(names: str, is_extend: bool = False) -> SimpleNamespace:
    reqs = [SimpleNamespace(rid=each, origin_input_ids=[0] * 10, output_ids=[0]) for each in names]
    mode = SimpleNamespace(is_extend=lambda: is_extend)
    return SimpleNamespace(reqs=reqs, forward_mode=mode, is_extend_in_batch=False)


def test_sglang_makes_the_worker_with_the_policy(
    sglang: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through SGLang's hooks and ``SpeculativeAlgorithm.create_worker``."""
    stand_in = ModuleType("sglang.srt.speculative.eagle_worker_v2")
    stand_in.EAGLEWorkerV2 = EAGLEWorkerV2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    group = SimpleNamespace(world_size=1, rank_in_group=0)
    runtime = sglang("runtime_context")
    monkeypatch.setattr(runtime, "get_parallel", lambda: SimpleNamespace(tp_group=group))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    controller = sglang("speculative.adaptive_runtime_state").AdaptiveController
    algorithm = sglang("speculative.spec_info").SpeculativeAlgorithm
    registry = sglang("plugins.hook_registry").HookRegistry
    own = algorithm.create_worker
    plug_in()
    registry.apply_hooks()
    try:
        kind = algorithm.EAGLE3.create_worker(arguments(CONFIG))
        plain = tmp_path / "plain.json"
        plain.write_text(json.dumps({"1": {"candidate_steps": [1, 3]}}))
        assert algorithm.EAGLE3.create_worker(arguments(plain)) is EAGLEWorkerV2
    finally:
        algorithm.create_worker = own
        registry.reset()
        sglang("arg_groups.resolution_hooks")._HOOKS.clear()
    assert issubclass(kind, EAGLEWorkerV2)
    monkeypatch.setattr("draftwise.state.FIRST_SAVE_S", 0.0)
    worker = kind(controller)
    made = worker.adaptive_controller.params
    assert isinstance(made, StepsPolicy)
    for steps in made.candidate_steps:
        state = SimpleNamespace(speculative_num_steps=steps)
        worker.adaptive_controller.register(state)
    assert worker.forward_batch_generation(batch_of("ab", is_extend=True)) == "forward"
    assert worker.forward_batch_generation(batch_of("ab")) == "forward"
    assert worker.speculative_num_steps == 0
    worker.adaptive_controller.on_verify_complete([0, 0], 2)
    assert made.counts == {0: 1}
    until = time.monotonic() + 10
    while not (found := list(tmp_path.glob("draftwise/*.json"))) and time.monotonic() < until:
        time.sleep(0.01)  # another thread writes the file
    (state,) = found
    assert state.name.startswith("org--model")
    assert json.loads(state.read_text())["about"]["device"] == "cpu"


def test_sglangs_worker_is_the_one_that_was_read(sglang: Callable[[str], Any]) -> None:
    """The subclass relies on this source of ``EAGLEWorkerV2``, which needs CUDA to import."""
    folder = Path(sys.modules["sglang"].__path__[0])
    source = (folder / "srt/speculative/eagle_worker_v2.py").read_text()
    tree = ast.parse(source)
    (worker,) = (
        node for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "EAGLEWorkerV2"
    )  # fmt: skip
    methods = {node.name: node for node in worker.body if isinstance(node, ast.FunctionDef)}
    assert "self.adaptive_controller" in ast.unparse(methods["__init__"])
    forward = methods["forward_batch_generation"]
    assert [each.arg for each in forward.args.args][:2] == ["self", "batch"]
    assert "self.activate_step_by_batch(batch.seq_lens.shape[0])" in ast.unparse(forward)
    told = ast.unparse(methods["on_verify_complete_cpu"])
    assert "self.adaptive_controller.on_verify_complete(" in told
    results = folder / "srt/managers/scheduler_components/batch_result_processor.py"
    assert "self.model_worker.on_verify_complete_cpu(" in results.read_text()
    engine = (folder / "srt/managers/scheduler.py").read_text()
    assert "self.spec_algorithm.create_worker(self.server_args)" in engine
