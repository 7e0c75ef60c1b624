"""Options, per-request control, refusals, wrappers, counters and state, without vLLM."""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from draftwise.controller.costs import StepCosts
from draftwise.controller.guard import Guard
from draftwise.errors import DraftwiseError
from draftwise.integrations import vllm as room
from draftwise.integrations.vllm import metrics, plugin
from draftwise.integrations.vllm.nothing import NullProposer
from draftwise.integrations.vllm.options import (
    PluginOptions,
    Tenants,
    Wishes,
    parse_options,
    read_costs,
    wishes_of,
)
from draftwise.integrations.vllm.plugin import repaired
from draftwise.integrations.vllm.refusals import (
    NULL_PROPOSER,
    advice,
    check_server,
    limits_of,
    on_runner_v1,
)
from draftwise.integrations.vllm.upkeep import Upkeep, about_of
from draftwise.state import VERSION, StateFile, state_path
from integrations.vllm.fakes import FakeEngine, FakeRequest

torch = pytest.importorskip("torch")


def server(**changes: Any) -> SimpleNamespace:
    """A ``VllmConfig`` that draftwise accepts; changes are ``part__field``."""
    parts: dict[str, dict[str, Any]] = {
        "speculative": {
            "method": "custom_class",
            "model": NULL_PROPOSER,
            "num_speculative_tokens": 16,
            "rejection_sample_method": "standard",
            "draft_sample_method": "greedy",
            "enable_adaptive_verification": False,
            "use_multi_module_mtp": lambda: False,
            plugin.LENGTHS: None,
        },
        "parallel": {
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
            "tensor_parallel_size": 1,
        },
        "model": {
            "is_diffusion": False,
            "logits_processors": None,
            "model": "org/some-model",
            "dtype": "bfloat16",
            "max_model_len": 4096,
            "enforce_eager": False,
        },
        "scheduler": {
            "async_scheduling": False,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
        },
        "compilation": {"max_cudagraph_capture_size": 512, "cudagraph_mode": "PIECEWISE"},
        "cache": {"cache_dtype": "auto"},
        "device": {"device_type": "cuda"},
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
        ({"model__logits_processors": ["my.Processor"]}, "--logits-processors"),
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


ON_THE_DEVICE = {"scheduler__async_scheduling": True, "use_v2_model_runner": True}


def test_runner_v2_is_served_with_and_without_a_model() -> None:
    lengths = [[1, 1, 0], [2, 8, 3]]
    changes = {"speculative__method": "eagle", f"speculative__{plugin.LENGTHS}": lengths}
    config = server(**ON_THE_DEVICE, **changes)
    check_server(config, asynchronous=True)
    limits = limits_of(config, PluginOptions(max_draft=4), asynchronous=True)
    assert (limits.model, limits.retrieval, limits.max_draft, limits.longest_model) == (
        True, True, 16, 3
    )  # fmt: skip
    alone = server(**ON_THE_DEVICE, speculative__method="ngram_gpu")
    check_server(alone, asynchronous=True)
    limits = limits_of(alone, PluginOptions(), asynchronous=True)
    assert (limits.model, limits.retrieval, limits.max_draft) == (False, True, 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_v2_model_runner": False}, "take SynchronousScheduler"),
        ({"scheduler__async_scheduling": False}, "take SynchronousScheduler"),
        ({"speculative__method": "dspark"}, "method 'dspark' cannot share"),
        ({"speculative__method": "draft_model"}, "always drafts num_speculative_tokens"),
        (
            {"speculative__method": "mtp", "speculative__use_multi_module_mtp": lambda: True},
            "mtp does with several layers",
        ),
        ({"speculative__draft_sample_method": "probabilistic"}, "no probabilities"),
    ],
)
def test_refused_on_runner_v2_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    given = {"speculative__method": "eagle3"} | ON_THE_DEVICE | changes
    with pytest.raises(DraftwiseError, match=reason):
        check_server(server(**given), asynchronous=True)


def test_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = room.Nonsense
    assert plugin.name_of("draftwise.integrations.vllm.scheduler.SynchronousScheduler") == (
        plugin.SYNCHRONOUS
    )
    assert plugin.name_of("vllm.v1.core.sched.scheduler.Scheduler") is None
    assert plugin.name_of(None) is None


def test_steps_stay_within_the_largest_graph_and_its_size_is_advised() -> None:
    assert limits_of(server(), PluginOptions()).max_step_tokens == 512
    assert limits_of(
        server(compilation__max_cudagraph_capture_size=0), PluginOptions()
    ) == limits_of(server(compilation__max_cudagraph_capture_size=8192), PluginOptions())
    assert limits_of(server(speculative__num_speculative_tokens=3), PluginOptions()).max_draft == 3
    lines = " ".join(advice(server(scheduler__max_num_seqs=300), asynchronous=False))
    assert '{"max_cudagraph_capture_size": 600}' in lines
    assert "relative to plain decoding on model runner V1" in lines
    assert "max_cudagraph" not in " ".join(advice(server(), asynchronous=True))
    lengths = {f"speculative__{plugin.LENGTHS}": [[1, 1, 0], [2, 8, 4]]}
    (line,) = advice(server(scheduler__max_num_seqs=4, **lengths), asynchronous=True)
    assert "4 of the 5 lengths of drafts, 0 to 4" in line
    assert "--max-num-seqs 5" in line
    assert not advice(server(scheduler__max_num_seqs=5, **lengths), asynchronous=True)
    assert not advice(server(device__device_type="cpu"), asynchronous=False)


def test_options_are_checked() -> None:
    assert parse_options(None) == PluginOptions()
    assert parse_options({"drafters": ["model"], "state": None}).drafters == ("model",)
    for given, message in [
        ({"polcy": "x"}, "the options are: drafters, max_draft, history_tokens, state, costs"),
        ({"drafters": ["lokup"]}, "retrieval, model"),
        ({"drafters": []}, "at least one"),
        ({"max_draft": 0}, "1 to 128"),
        ({"max_draft": 2.5}, "whole number"),
        ({"max_draft": float("nan")}, "whole number"),
        ({"history_tokens": -1}, "0 to"),
        ({"state": 3}, "a file's path"),
        ({"state": ""}, "a file's path"),
        ({"costs": 3}, "costs 3 cannot be used"),
        ({"costs": "no such file"}, "No such file"),
        ("goodput", "write an object"),
    ]:
        with pytest.raises(DraftwiseError, match=message):
            parse_options(given)


def test_a_file_of_costs_is_checked_and_sets_the_first_prices(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    table = {"target_s": {"1": [0.006, 0.0061], "8": [0.0064, 0.007]}, "draft_s": {"model": 4e-4}}
    file.write_text(json.dumps(table))
    costs = StepCosts()
    costs.load_table(*read_costs(parse_options({"costs": str(file)}).costs))
    assert costs.seconds(8, 0, 0, 8)[[0, 8]] == pytest.approx([0.0064, 0.007])
    assert costs.draft_seconds(3) == pytest.approx(0.0012)
    for bad in (
        "{}",
        '{"target_s": [0]}',
        '{"target_s": {"-1": [1]}}',
        '{"target_s": [2, 1]}',
        '{"target_s": {"a": [1]}}',
        "[",
    ):
        file.write_text(bad)
        with pytest.raises(DraftwiseError, match=r"cannot be used.*target_s"):
            parse_options({"costs": str(file)})


@pytest.mark.parametrize("false", [False, 0, "0", "false", "False", 0.0])
@pytest.mark.parametrize("true", [True, 1, "1", "true", 1.0])
def test_wishes_of_a_request(false: Any, true: Any) -> None:
    others = {"kv_transfer_params": {"a": 1}, "speculation": false, "private": true}
    assert wishes_of(others) == Wishes(speculation=False, private=True)
    assert wishes_of(None) == Wishes()


def test_bad_wishes_are_named() -> None:
    assert wishes_of({"drafters": "model, retrieval"}).drafters == ("model", "retrieval")
    for given, message in [
        ({"speculation": "no"}, "speculation is 'no'"),
        ({"private": None}, "private is None"),
        ({"private": 2}, "private is 2"),
        ({"max_draft": -1}, "max_draft is -1"),
        ({"max_draft": True}, "max_draft is True"),
        ({"max_draft": "4"}, "max_draft is '4'"),
        ({"drafters": ["eagle"]}, "retrieval, model"),
        ({"drafters": {"model": 1}}, "retrieval, model"),
        ({"label": ""}, "label is ''"),
        ({"label": "x" * 65}, "1 to 64 characters"),
        ({"label": "x" * 10**6}, "1 to 64 characters"),
        ({"private": float("nan")}, "private is nan"),
        ({"speculation": float("inf")}, "speculation is inf"),
        ({"private": 1.5}, "private is 1.5"),
        ({"max_draft": 10**5000}, "a very large int"),
        ({"max_draft": float("nan")}, "max_draft is nan"),
        ({"drafters": "x" * 10**6}, "retrieval, model"),
    ]:
        with pytest.raises(DraftwiseError, match=message) as caught:
            wishes_of(given)
        assert len(str(caught.value)) < 200


def test_tenants_are_told_apart_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.integrations.vllm.options.MOST_TENANTS", 3)
    tenants = Tenants()

    def number(salt: str | None) -> int:
        return tenants.number(SimpleNamespace(cache_salt=salt, lora_request=None))

    first = [number(salt) for salt in (None, "a", "b")]
    assert len(set(first)) == 3
    assert [number(salt) for salt in (None, "a", "b")] == first
    number("c")  # the table is full: the oldest entry, None, is dropped and comes back as a new one
    assert number(None) not in first
    tenants.forget()
    assert number("b") not in first


def arguments(**given: Any) -> SimpleNamespace:
    """vLLM's ``EngineArgs`` before they are resolved."""
    names = ("speculative_config", "spec_method", "spec_model", "spec_tokens", "async_scheduling")
    plain = dict.fromkeys((*names, "max_num_seqs", "scheduler_cls", "logits_processors"))
    graphs = {"compilation_config": SimpleNamespace(cudagraph_mode="FULL")}
    return SimpleNamespace(**(plain | graphs | {"additional_config": {}} | given))


def test_what_need_not_be_typed_is_filled_in_on_runner_v1() -> None:
    ours = arguments(scheduler_cls=plugin.SCHEDULER)
    plugin.prepare(ours)
    plugin.use_runner_v1(ours)
    assert ours.speculative_config["model"] == NULL_PROPOSER
    assert ours.speculative_config["num_speculative_tokens"] == PluginOptions().max_draft
    assert (ours.async_scheduling, ours.scheduler_cls) == (False, plugin.SYNCHRONOUS)
    assert ours.compilation_config.cudagraph_mode == "FULL"  # the user's choice stays
    again = arguments(speculative_config=ours.speculative_config)
    plugin.prepare(again)
    plugin.use_runner_v1(again)
    assert again.speculative_config == ours.speculative_config


@pytest.mark.parametrize(
    ("drafters", "width"), [(["retrieval", "model"], 16), (["model"], 3), (["retrieval"], 16)]
)
def test_the_table_of_runner_v2_is_as_wide_as_the_longest_draft(
    drafters: list[str], width: int
) -> None:
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    options = {"draftwise": {"drafters": drafters}}
    args = arguments(speculative_config=config, max_num_seqs=8, additional_config=options)
    plugin.prepare(args)
    plugin.use_runner_v2(args)
    assert args.speculative_config["num_speculative_tokens"] == width
    assert [k for *_, k in args.speculative_config[plugin.LENGTHS]] == [0, 1, 2, 3]
    assert (args.async_scheduling, args.scheduler_cls) == (None, plugin.SCHEDULER)


@pytest.mark.parametrize(
    ("given", "is_cpu", "use_v2", "missing", "reason"),
    [
        ({}, False, None, [], None),
        ({}, True, True, [], None),
        ({"speculative_config": {"method": "eagle3"}}, False, True, [], None),
        ({}, True, None, [], "CPU backend"),
        ({}, False, False, [], "VLLM_USE_V2_MODEL_RUNNER is 0"),
        ({"async_scheduling": False}, False, None, [], "--no-async-scheduling"),
        ({"data_parallel_size": 2}, False, None, [], "data_parallel_size"),
        ({"speculative_config": {"model": "m"}}, False, None, [], "draft_model"),
        ({}, False, None, ["x.py: f"], "lacks x.py: f"),
    ],
)
def test_the_runner_follows_from_the_arguments(
    given: dict[str, Any], is_cpu: bool, use_v2: bool | None, missing: list[str], reason: str | None
) -> None:
    found = on_runner_v1(arguments(**given), is_cpu, use_v2, missing)
    assert found is None if reason is None else reason in (found or "")


class Created:
    """vLLM's ``create_engine_config``: it takes runner V2 or not, whatever was prepared."""

    def __init__(self, takes_v2: bool) -> None:
        self.takes_v2, self.asked = takes_v2, list[SimpleNamespace]()

    def __call__(self, args: SimpleNamespace) -> SimpleNamespace:
        self.asked.append(SimpleNamespace(**vars(args)))
        speculative = {f"speculative__{k}": v for k, v in args.speculative_config.items()}
        is_async = self.takes_v2 and args.async_scheduling is not False
        changes = {"scheduler__async_scheduling": is_async, "use_v2_model_runner": is_async}
        return server(**changes, **speculative)


@pytest.mark.parametrize("takes_v2", [True, False])
def test_the_finished_config_decides_on_the_runner(
    takes_v2: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: False)
    for name, module in {
        "vllm": SimpleNamespace(__file__="vllm/__init__.py", envs=SimpleNamespace()),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(plugin, "missing", lambda *_, **__: [])
    monkeypatch.setattr(plugin, "check_capabilities", lambda *_, **__: None)
    create, args = Created(takes_v2), arguments(scheduler_cls=plugin.SCHEDULER)
    _, is_async = plugin.made(create, args, plugin.SCHEDULER)
    assert is_async is takes_v2
    classes = [asked.scheduler_cls for asked in create.asked]
    assert classes == [plugin.SCHEDULER, plugin.SYNCHRONOUS][: 1 if takes_v2 else 2]
    assert (create.asked[-1].speculative_config["method"] == "ngram_gpu") is takes_v2


@pytest.mark.parametrize(
    "given",
    [
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "mtp", "num-speculative-tokens": 3}},
        {"spec_method": "mtp", "spec_tokens": 3},
        {"speculative_config": {"method": "mtp"}, "spec_tokens": 3},
        {"speculative_config": {"method": "qwen3_next_mtp"}, "spec_tokens": 3},  # vLLM's old name
    ],
)
def test_flags_and_config_are_prepared_alike(given: dict[str, Any]) -> None:
    args = arguments(max_num_seqs=8, **given)
    plugin.prepare(args)
    plugin.use_runner_v1(args)
    assert args.speculative_config.pop("method").endswith("mtp")
    assert args.speculative_config == {"num_speculative_tokens": 3, plugin.LENGTHS: [[1, 8, 3]]}
    assert args.spec_method is args.spec_tokens is None  # vLLM refuses duplicate settings


@pytest.mark.parametrize(
    ("max_num_seqs", "lengths"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        (6, [0, 1, 2, 3, 4, 5]),
        (5, [0, 1, 2, 3, 5]),
        (2, [0, 5]),
        (1, [5]),
    ],
)
def test_few_requests_keep_the_longest_draft(max_num_seqs: int | None, lengths: list[int]) -> None:
    """vLLM looks up one length for each number of requests."""
    given = {"method": "eagle3", "num_speculative_tokens": 5}
    listed = plugin.adapted(given, max_num_seqs, each=True)[plugin.LENGTHS]
    assert [length for *_, length in listed] == lengths
    starts, ends, _ = zip(*listed, strict=True)
    assert starts == tuple(range(1, len(lengths) + 1))
    assert ends == (*starts[:-1], max_num_seqs or 1024)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"additional_config": {"draftwise": {"drafters": ["x"]}}}, "retrieval"),
        ({"additional_config": {"draftwise": {"drafters": ["model"]}}}, "no model"),
        ({"logits_processors": ["a.B"]}, "verified without them"),
        ({"speculative_config": {"method": "mtp"}}, 'add "num_speculative_tokens"'),
        ({"speculative_config": {"method": "deepseek_mtp"}}, 'add "num_speculative_tokens"'),
        (
            {"speculative_config": {"method": "mtp"}, "spec_method": "eagle"},
            "--spec-method and 'method'",
        ),
        (
            {"additional_config": {"draftwise": {"state": "/dev/null/x/state.json"}}},
            "state /dev/null/x/state.json",
        ),
        ({"additional_config": {"draftwise": {"state": "/dev"}}}, "no plain file"),
    ],
)
@pytest.mark.parametrize("use", [plugin.use_runner_v1, plugin.use_runner_v2])
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    given: dict[str, Any], message: str, use: Any
) -> None:
    args = arguments(**given)
    with pytest.raises(DraftwiseError, match=message):  # noqa: PT012
        plugin.prepare(args)
        use(args)


def test_the_plug_in_does_not_import_numba(tmp_path: Path) -> None:
    """vLLM's CPU backend ends at start-up if numba was imported before the worker was created."""
    costs = tmp_path / "costs.json"
    costs.write_text('{"target_s": [0.006, 0.0061]}')
    program = f"""
import sys
from types import SimpleNamespace
from draftwise.integrations.vllm import plugin
options = {{"draftwise": {{"costs": {str(costs)!r}}}}}
args = SimpleNamespace(additional_config=options, speculative_config=None, async_scheduling=None,
                       max_num_seqs=None, compilation_config=None)
plugin.prepare(args)
plugin.use_runner_v1(args)
print([name for name in ("numba", "llvmlite", "draftwise.controller.controller")
       if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_what_others_wrapped_is_wrapped_once() -> None:
    """The mark of a wrapped method must not be one that functools.wraps copies."""
    calls = []

    def original(value: int) -> int:
        return value

    @functools.wraps(original)
    def others(value: int) -> int:
        calls.append("others")
        return original(value)

    def ours(function: Any, value: int) -> int:
        calls.append("ours")
        return int(function(value))

    owner = SimpleNamespace(method=others)
    for _ in range(2):
        plugin.wrap(owner, "method", ours)
    assert owner.method(3) == 3
    assert calls == ["ours", "others"]
    plugin.wrap(owner, "gone", ours)
    assert not hasattr(owner, "gone")


VLLMS_OWN = SimpleNamespace(method="mtp", model="m", **{plugin.LENGTHS: [[1, 8, 3]]})
"""The config of a server without draftwise that varies lengths by the number of requests."""
MTP = SimpleNamespace(**vars(VLLMS_OWN) | {plugin.MARK: True})
NULL = SimpleNamespace(method="custom_class", model=NULL_PROPOSER, **{plugin.MARK: True})


def test_bad_wishes_are_refused_where_draftwise_drafts_and_nowhere_else() -> None:
    asked = SimpleNamespace(extra_args={"max_draft": -1})

    def validate(self: Any, speculative_config: Any) -> None:
        plugin.with_all_parameters(lambda *given: None, self, speculative_config)

    for config in (NULL, MTP):
        with pytest.raises(ValueError, match="max_draft is -1"):
            validate(asked, config)
    validate(asked, VLLMS_OWN)
    validate(asked, SimpleNamespace(method="mtp", model="m"))
    validate(asked, None)


class FakeRejectionSampler:
    """Stands in for vLLM's module, whose caller runs ``forward``."""

    def __init__(self, sampler: Any, spec_config: Any = None, device: Any = None) -> None:
        self.sampler, self.device = sampler, device

    def forward(self, *given: Any) -> Any:
        return "verified", *given


@pytest.mark.parametrize(
    ("config", "num_draft_tokens", "is_plain"),
    [
        (NULL, [0, 0], True),
        (NULL, [0, 1], False),
        (MTP, [0], True),
        (VLLMS_OWN, [0], False),
        (SimpleNamespace(method="suffix", model="m"), [0, 0], False),
        (None, [0], False),
    ],
)
def test_steps_without_drafts_are_sampled_as_without_speculation(
    monkeypatch: pytest.MonkeyPatch, config: Any, num_draft_tokens: list[int], is_plain: bool
) -> None:
    """Servers without draftwise must keep vLLM's own sampling."""
    monkeypatch.setattr(FakeRejectionSampler, "__init__", FakeRejectionSampler.__init__)
    plugin.wrap(FakeRejectionSampler, "__init__", plugin.with_plain_steps)
    sampler = FakeRejectionSampler(lambda **given: given, config, "cpu")
    assert sampler.device == "cpu"
    drafts = SimpleNamespace(num_draft_tokens=num_draft_tokens)
    found = sampler.forward(drafts, None, "logits", "parameters")
    plain = {"logits": "logits", "sampling_metadata": "parameters", "predict_bonus_token": True}
    assert found == (plain if is_plain else ("verified", drafts, None, "logits", "parameters"))


def test_the_null_proposer_proposes_nothing() -> None:
    proposer = NullProposer(None)
    proposer.load_model(None)
    assert proposer.propose([[1], []], None, None, slot_mappings=None) == [[], []]


def test_memory_that_was_never_written_is_replaced() -> None:
    def broken(x: Any, cu_num_tokens: Any, num_tokens: int, *replace: int) -> Any:
        return x.new_empty(num_tokens)

    values, ends = torch.tensor([0.35, 0.9]), torch.tensor([2, 3])
    assert torch.equal(repaired(broken, values, ends, 3), torch.tensor([0.35, 0.35, 0.9]))
    counts = torch.tensor([3, 0]), torch.tensor([1, 3])
    assert repaired(broken, *counts, 3, 0, 1).tolist() == [3, 1, 1]


VERSIONS = {"vllm": "1", "draftwise": "2"}


@pytest.mark.parametrize(
    "changes",
    [
        {"model__model": "org/other"},
        {"model__dtype": "float16"},
        {"model__max_model_len": 8192},
        {"model__enforce_eager": True},
        {"parallel__tensor_parallel_size": 4},
        {"scheduler__max_num_seqs": 8},
        {"speculative__method": "eagle3"},
        {"compilation__cudagraph_mode": "FULL"},
        {"cache__cache_dtype": "fp8"},
    ],
)
def test_another_setting_has_another_state(changes: dict[str, Any], tmp_path: Path) -> None:
    one, other = (about_of(server(**c), 16, "H100", VERSIONS) for c in ({}, changes))
    assert state_path("auto", one, "/cache") != state_path("auto", other, "/cache")
    file, found = StateFile(tmp_path / "s.json", one), []
    file.path.write_text(file.text({"costs": 1}))
    assert file.restore(found.append)
    assert not StateFile(file.path, other).restore(found.append)
    assert found == [{"costs": 1}]


def test_another_device_version_length_or_rank_has_another_state() -> None:
    paths = {
        state_path("auto", about_of(server(), *about), "/cache", rank)
        for about, rank in [
            ((16, "H100", VERSIONS), 0),
            ((16, "A10", VERSIONS), 0),
            ((8, "H100", VERSIONS), 0),
            ((16, "H100", {"vllm": "2"}), 0),
            ((16, "H100", VERSIONS), 1),
        ]
    }
    assert len(paths) == 5
    assert state_path("a/b.json", {}, "/cache", 2) == Path("a/b.json.rank2")


def learnt_engine(num_tokens: int = 60) -> FakeEngine:
    engine = FakeEngine(
        lambda text: len(text) % 3, cost=lambda rows, tokens, _: 0.1 + 0.01 * tokens
    )
    engine.add(FakeRequest("a", [1, 2, 3, 4], num_tokens))
    return engine


def test_what_was_learnt_is_written_within_seconds_and_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    engine = learnt_engine(400)
    upkeep = Upkeep(engine.adapter, lambda: engine.now, StateFile(path, {"model": "m"}))
    upkeep.load()
    while engine.now < 7.0:  # the server may be killed at any time
        engine.step()
        upkeep.tick()
    upkeep._writer.flush()  # type: ignore[union-attr]
    again = learnt_engine()
    Upkeep(again.adapter, lambda: 0.0, StateFile(path, {"model": "m"})).load()
    assert again.controller.costs.num_steps > 20
    ours, theirs = (e.controller.costs.seconds(1, 100, 0, 4) for e in (engine, again))
    assert theirs == pytest.approx(ours, rel=0.05)
    engine.run()
    upkeep.tick()  # the engine is idle: what it learned since then is saved, too
    upkeep._writer.flush()  # type: ignore[union-attr]
    last = learnt_engine()
    Upkeep(last.adapter, lambda: 0.0, StateFile(path, {"model": "m"})).load()
    assert last.controller.costs.num_steps == engine.controller.costs.num_steps


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", f'{{"draftwise": {VERSION}}}',
     f'{{"draftwise": {VERSION}, "about": {{"model": "m"}}, "learnt": {{"costs": {{}}}}}}',
     f'{{"draftwise": {VERSION}, "about": {{"model": "m"}}, "learnt": {{"model": [[1e999]]}}}}',
     '{"draftwise": 2, "about": {"model": "m"}, "learnt": {}}',
     f'{{"draftwise": {VERSION}, "about": {{"model": "another"}}, "learnt": {{}}}}'],
)  # fmt: skip
def test_a_state_that_cannot_be_used_is_kept_aside(text: str, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    engine = learnt_engine()
    Upkeep(engine.adapter, lambda: 0.0, StateFile(path, {"model": "m"})).load()
    (aside,) = tmp_path.glob("state.json.unused-*")
    assert aside.read_text() == text
    assert "it is kept as" in caplog.text
    engine.run()


def test_the_log_says_each_minute_what_drafting_brought(caplog: Any) -> None:
    engine = FakeEngine(
        lambda text: len(text) % 3, cost=lambda rows, tokens, _: 1 + 0.1 * tokens, longest=2
    )
    engine.add(FakeRequest("a", [1, 2, 3, 4], 300))
    upkeep = Upkeep(engine.adapter, lambda: engine.now)
    with caplog.at_level(logging.INFO, "vllm.draftwise"):
        upkeep.load()
        while engine.requests:
            engine.step()
            upkeep.tick()
    lines = [line for line in caplog.messages if "times plain decoding" in line]
    assert int(engine.now // 60) >= len(lines) >= int(engine.now // 63) > 1
    assert "retrieval: " in lines[0]
    assert "tokens kept" in lines[0]
    assert "nothing is kept" in caplog.messages[0]


def test_figures_reach_the_api_server_by_a_file(tmp_path: Path) -> None:
    engine, environment, registry = learnt_engine(), {}, CollectorRegistry()
    folder = metrics.open_folder(environment, registry)
    assert folder == metrics.open_folder(environment, registry)
    assert folder is not None
    labels = {"model_name": "m", "engine": "1"}
    upkeep = Upkeep(
        engine.adapter, lambda: engine.now, figures=folder / "engine1.json", labels=labels
    )
    (folder / "engine0.json").write_text("{")  # half-written by a non-atomic writer
    assert "draftwise" not in generate_latest(registry).decode()
    engine.run()
    upkeep.close()
    found = generate_latest(registry).decode()
    emitted = engine.adapter.counts.emitted
    assert f'draftwise:emitted_tokens_total{{engine="1",model_name="m"}} {emitted}.0' in found
    assert 'draftwise:speed{engine="1",model_name="m",window="start"} ' in found
    assert 'draftwise:accepted_tokens_total{drafter="retrieval",' in found
    assert metrics.open_folder({metrics.MULTIPROC: str(tmp_path)}, registry) is None


def test_a_server_started_by_another_engines_process_reads_its_own_folder(tmp_path: Path) -> None:
    environment, registry = {metrics.FOLDER: str(tmp_path)}, CollectorRegistry()
    folder = metrics.open_folder(environment, registry)
    assert folder is not None
    assert folder != tmp_path
    assert environment[metrics.FOLDER] == str(folder)
    row = ["emitted_tokens", True, {"engine": "0"}, 3]
    (folder / "engine0.json").write_text(json.dumps([row]))
    assert 'draftwise:emitted_tokens_total{engine="0"} 3.0' in generate_latest(registry).decode()


def test_closed_batches_that_rest_are_told(caplog: Any) -> None:
    """The account of closed batches is empty while the guard still allows drafts."""
    engine = learnt_engine()
    upkeep = Upkeep(engine.adapter, lambda: engine.now)
    for is_closed in (False, True):
        batches = engine.controller.batches
        batches.is_closed, batches._account.to_skip = is_closed, 1
        assert engine.controller.guard.allows_drafts
        with caplog.at_level(logging.INFO, "vllm.draftwise"):
            upkeep.log(1.0 + is_closed)
        assert ("drafting rests" in caplog.text) == is_closed
        (told,) = (f.value for f in upkeep._samples() if f.name == "drafting_allowed")
        assert bool(told) != is_closed


class FakePrometheus:
    """Counters and gauges of ``prometheus_client``, as sums by label."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.names = set[str]()

    def _new(self, name: str) -> Any:
        if name in self.names:
            raise ValueError(f"Duplicated timeseries in CollectorRegistry: {name}")
        self.names.add(name)

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
    prometheus, engine = FakePrometheus(), learnt_engine()
    upkeep = Upkeep(engine.adapter, lambda: engine.now, exporter=metrics.Exporter(prometheus))
    for _ in range(20):
        engine.step()
        upkeep.export()
    values, counts = prometheus.values, engine.adapter.counts
    assert values["draftwise:emitted_tokens",] == counts.emitted
    assert values["draftwise:drafted_tokens", "retrieval"] == counts.drafted["retrieval"] > 0
    assert values["draftwise:speed", "start"] == engine.controller.guard.speed


def test_engines_of_one_process_share_their_counters() -> None:
    prometheus, engine = FakePrometheus(), learnt_engine()
    for _ in range(3):
        engine.step()
    for _ in range(2):
        Upkeep(engine.adapter, lambda: engine.now, exporter=metrics.Exporter(prometheus)).export()
    assert prometheus.values["draftwise:emitted_tokens",] == 2 * engine.adapter.counts.emitted > 0


def test_labels_are_bounded() -> None:
    counts = metrics.Counts()
    for number in range(100):
        counts.add_label(f"task {number}", 2, 1.0, 0.5 + number % 2)
    assert len(counts.labels) == metrics.MOST_LABELS + 1
    other, num = counts.labels["other"], 100 - metrics.MOST_LABELS
    assert (other.rounds, other.emitted) == (num, 2 * num)
    assert counts.labels["task 0"].account.speed == 1.0
    assert counts.labels["task 1"].account.speed == 3.0
    assert other.account.speed == pytest.approx(2.0)
    speeds = {
        tuple(f.labels.values()): f.value
        for f in counts.figures(Guard(), allows_drafts=True)
        if f.name == "label_speed"
    }
    assert speeds["task 1", "start"] == speeds["task 1", "recent"] == 3.0
