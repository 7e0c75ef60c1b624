"""Request parameters: invalid values are named before work starts; valid ones work."""

from __future__ import annotations

import inspect
import time
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from bad_values import BAD_BATCH, BAD_REQUEST, BAD_SAMPLING
from draftwise import DraftwiseError, SamplingParams, Speculator
from draftwise.engine.options import Options, RequestParams
from draftwise.errors import BadValue
from draftwise.settings import DEFAULTS
from engine.pairs import POOLS, PROMPTS, plain_greedy, run, speculator
from engine.scripted import byte_tokenizer

PROMPT = PROMPTS[0]
V = 64


def cases(*tables: dict[str, tuple[Any, ...]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{index}")
        for table in tables
        for name, values in table.items()
        for index, value in enumerate(values)
    ]


@pytest.fixture(scope="module")
def made() -> Speculator:
    return speculator(POOLS["lookup"], "ucb1", tokenizer=byte_tokenizer())


@pytest.mark.parametrize(("name", "value"), cases(BAD_SAMPLING, BAD_REQUEST, BAD_BATCH))
def test_a_bad_value_is_named_before_anything_runs(made: Speculator, name: str, value: Any) -> None:
    with pytest.raises(DraftwiseError) as caught:
        made.generate(PROMPT, **{name: value})
    assert len(str(caught.value)) < 600
    if name not in {"preset", "policy"} or not isinstance(value, str):
        assert str(caught.value).startswith(name.replace("stop_strings", "stop"))
        assert "it must be" in str(caught.value) or "give one" in str(caught.value)
    if name not in BAD_BATCH:
        with pytest.raises(DraftwiseError):
            made.request(PROMPT, **{name: value})


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("hello " * 10**7, {}, "60,000,000 characters"),
        ([{"role": "user", "content": "hello " * 10**7}], {}, "60,000,000 characters"),
        (PROMPT, {"stop": "x" * 10**6}, ""),
        (PROMPT, {"stop": [f"stop {number}" for number in range(10_000)]}, ""),
    ],
    ids=["text", "messages", "a long stop", "many stops"],
)
def test_sizes_cost_little(made: Speculator, prompt: Any, options: Any, said: str) -> None:
    began = time.process_time()
    if said:
        with pytest.raises(DraftwiseError, match=said):
            made.generate(prompt, **options)
    else:
        assert made.generate(prompt, max_new_tokens=40, **options).tokens
    assert time.process_time() - began < 2


def test_a_speculator_takes_a_length_for_each_token_of_a_plan_at_most() -> None:
    target = speculator(POOLS["lookup"], "ucb1").target
    for lengths in ([1] * 300_000, range(1, 10**12)):
        with pytest.raises(BadValue, match="no more than 1,024 of them"):
            Speculator.from_pretrained(target, ["lookup"], lengths=lengths)


def test_every_parameter_is_in_the_table() -> None:
    fields = {*SamplingParams.__dataclass_fields__, *RequestParams.__dataclass_fields__}
    assert fields <= {*BAD_SAMPLING, *BAD_REQUEST, *BAD_BATCH}
    own = {"do_sample", "stop_strings", "attention_mask", "num_return_sequences", "trace"}
    assert Options.__annotations__.keys() == fields | own
    assert not fields & own


@pytest.mark.parametrize("method", ["generate", "stream", "start", "request"])
def test_an_unknown_option_names_what_was_called(made: Speculator, method: str) -> None:
    with pytest.raises(DraftwiseError, match=rf"^{method}\(\) has no option 'top_kk'; did you mea"):
        for _ in getattr(made, method)(PROMPT, top_kk=5):
            pass
    with pytest.raises(TypeError, match=r"its options are: .*logit_bias.*min_p.*temperature"):
        list(getattr(made, method)(PROMPT, nonsense=5))


@pytest.mark.parametrize(
    "options",
    [
        {"min_p": 0.2, "temperature": 1.0},
        {"logit_bias": {7: 4.0, 9: -4.0}},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"top_k": np.int64(3), "temperature": np.float32(0.5)},
        {"process": lambda text, logits: logits.roll(1)},
    ],
    ids=lambda options: "-".join(options),
)
def test_by_name_is_what_sampling_params_are(options: dict[str, Any]) -> None:
    by_name, in_params = (speculator(POOLS["good"], "random", seed=3) for _ in range(2))
    found = by_name.generate(PROMPT, max_new_tokens=12, seed=5, **options)
    params = SamplingParams(**options)
    assert (
        found.tokens
        == in_params.generate(PROMPT, max_new_tokens=12, seed=5, sampling=params).tokens
    )
    assert found.tokens != plain_greedy(PROMPT, 12)


SCALARS: dict[str, Any] = {
    "numpy": np.int64, "numpy, 32 bits": np.int32, "an array": np.array, "torch": torch.tensor,
    "a whole float": float, "numpy float": np.float64,
    "a torch float": lambda number: torch.tensor(float(number)),
}  # fmt: skip
WHOLE_OPTIONS: dict[str, int] = {
    "max_new_tokens": 4, "seed": 3, "top_k": 5, "eos_token_ids": 2, "max_draft": 2, "logprobs": 1,
    "priority": 1, "num_return_sequences": 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize("name", WHOLE_OPTIONS)
def test_whole_numbers_are_taken_by_value(made: Speculator, name: str, kind: str) -> None:
    value = WHOLE_OPTIONS[name]
    found, expected = (
        made.generate(PROMPT, **{"max_new_tokens": 6, "temperature": 1.0, "seed": 1, name: one})
        for one in (SCALARS[kind](value), value)
    )
    assert found.tokens == expected.tokens
    assert len(found.tokens) == (4 if name == "max_new_tokens" else 6)


@pytest.mark.parametrize("kind", [np.float32, np.array, torch.tensor])
def test_other_numbers_and_flags_too(kind: Any) -> None:
    one, half = kind(1.0), kind(0.5)
    found = SamplingParams(
        temperature=half, top_p=half, min_p=half, repetition_penalty=one, presence_penalty=half,
        frequency_penalty=half, logit_bias={np.int64(3): half},
    )  # fmt: skip
    assert found == SamplingParams(
        temperature=0.5, top_p=0.5, min_p=0.5, presence_penalty=0.5, frequency_penalty=0.5,
        logit_bias={3: 0.5},
    )  # fmt: skip
    assert all(type(value) is float for value in (found.temperature, found.top_p))
    assert RequestParams(ignore_eos=np.bool_(True)) == RequestParams(ignore_eos=torch.tensor(True))


def test_none_is_the_default() -> None:
    """As transformers and clients write it."""
    names = {one.name for one in fields(SamplingParams)}
    assert SamplingParams(**dict.fromkeys(names)) == SamplingParams()
    names = {one.name for one in fields(RequestParams)} - {"sampling"}
    assert RequestParams(**dict.fromkeys(names)) == RequestParams()
    assert [SamplingParams(top_k=k).top_k for k in (-1, 0, None, np.int64(-1))] == [0] * 4


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list, tuple])
def test_lists_and_arrays_of_values(made: Speculator, kind: Any) -> None:
    given = {"seed": kind([1, 2]), "max_new_tokens": kind([3, 4]), "eos_token_ids": kind([61, 62])}
    found = made.generate(PROMPTS[:2], temperature=1.0, lengths=kind([1, 2]), **given)
    assert [len(one.tokens) for one in found] == [3, 4]
    assert found[1].tokens == made.generate(
        PROMPTS[1], temperature=1.0, seed=2, max_new_tokens=4, lengths=[1, 2]
    ).tokens  # fmt: skip


IDS = [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    "prompt",
    [
        np.array(IDS), np.array(IDS, np.uint8), torch.tensor(IDS), torch.tensor(IDS).int(),
        tuple(IDS), [np.int64(n) for n in IDS], [torch.tensor(n) for n in IDS],
        {"input_ids": torch.tensor([IDS])}, torch.tensor([IDS]), np.array([IDS]), [IDS],
        [torch.tensor(IDS)], [np.array(IDS)],
    ],
)  # fmt: skip
def test_prompts_of_any_shape(made: Speculator, prompt: Any) -> None:
    found = made.generate(prompt, max_new_tokens=4)
    expected = made.generate(IDS, max_new_tokens=4)
    assert (found[0] if isinstance(found, list) else found).tokens == expected.tokens


def test_sampling_in_both_ways_is_refused(made: Speculator) -> None:
    with pytest.raises(DraftwiseError, match="sampling and top_k were both given"):
        made.generate(PROMPT, sampling=SamplingParams(1.0), top_k=3)


def test_names_of_transformers() -> None:
    made = speculator(POOLS["lookup"], "ucb1", tokenizer=byte_tokenizer())
    greedy = made.generate(PROMPT, max_new_tokens=12)
    assert made.generate(PROMPT, max_new_tokens=12, do_sample=False).tokens == greedy.tokens
    drawn = made.generate(PROMPT, max_new_tokens=12, do_sample=True, seed=1)
    assert drawn.tokens == made.generate(PROMPT, max_new_tokens=12, temperature=1.0, seed=1).tokens
    for options in (
        {"do_sample": False, "temperature": 1.0},
        {"do_sample": True, "temperature": 0},
    ):
        with pytest.raises(DraftwiseError, match="do_sample is"):
            made.generate(PROMPT, **options)
    stop = greedy.text[2:4]
    one, other = (
        made.generate(PROMPT, max_new_tokens=12, **{n: stop}) for n in ("stop", "stop_strings")
    )
    assert (one.text, one.finish_reason) == (other.text, "stop")
    with pytest.raises(DraftwiseError, match="stop and stop_strings are the same"):
        made.generate(PROMPT, stop="a", stop_strings="b")


def test_several_answers_to_one_prompt(made: Speculator) -> None:
    options = {"temperature": 1.0, "max_new_tokens": 6, "num_return_sequences": 3}
    found = made.generate(PROMPT, seed=4, **options)
    assert [answer.prompt_tokens for answer in found] == [PROMPT] * 3
    assert len({tuple(answer.tokens) for answer in found}) == 3
    both = made.generate(PROMPTS[:2], seed=[4, 5], **options)
    assert [answer.prompt_tokens for answer in both] == [PROMPT] * 3 + [PROMPTS[1]] * 3
    assert [answer.tokens for answer in both[:3]] == [answer.tokens for answer in found]


def test_options_of_single_requests_work_in_a_batch(made: Speculator) -> None:
    found = made.generate(PROMPT, max_new_tokens=4, logprobs=2, lengths=[2], policy="fixed:0")
    assert [len(told.top) for told in found.logprobs] == [2] * 4
    assert found.tokens == plain_greedy(PROMPT, 4)


WRONG_CALLBACKS: dict[str, Any] = {
    "process returns nothing": {"process": lambda text, logits: None},
    "process returns too few": {"process": lambda text, logits: logits[:10]},
    "process returns rows": {"process": lambda text, logits: logits[None]},
    "process returns ints": {"process": lambda text, logits: logits.long()},
    "process returns a list": {"process": lambda text, logits: logits.tolist()},
    "stop_when returns an array": {"stop_when": lambda tokens: np.array([1, 2])},
    "stop_when returns a tensor": {"stop_when": lambda tokens: torch.ones(3)},
}


@pytest.mark.parametrize("options", WRONG_CALLBACKS.values(), ids=WRONG_CALLBACKS)
def test_what_a_callback_returns_ends_its_own_request_alone(options: dict[str, Any]) -> None:
    made = speculator(["good"], "fixed:1")
    engine = made.engine()
    victim = made.request(PROMPT, max_new_tokens=12)
    engine.admit(victim)
    engine.step()
    bad = made.request([1, 2, 3], max_new_tokens=12, **options)
    run(engine, bad)
    assert (victim.tokens, victim.answer.finish_reason) == (plain_greedy(PROMPT, 12), "length")
    assert (bad.answer.finish_reason, isinstance(bad.error, DraftwiseError)) == ("error", True)
    assert next(iter(options)) in str(bad.error)
    later = made.request(PROMPT, max_new_tokens=12)
    run(engine, later)
    assert later.stats.num_drafted > 0, "the drafter was left out for another request's callback"


@pytest.mark.parametrize(
    "convert", [lambda x: x.numpy(), lambda x: x.numpy().astype(np.float64), lambda x: x.double()]
)
def test_arrays_of_the_right_shape_are_taken(convert: Any) -> None:
    made = speculator(["good"], "fixed:1")
    params = SamplingParams(process=lambda text, logits: convert(logits))
    assert made.generate(PROMPT, max_new_tokens=9, sampling=params).tokens == plain_greedy(
        PROMPT, 9
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": None}, "None is no model: give a folder"),
        ({"target": 5}, "5 is no model"),
        ({"target": torch.nn.Linear(2, 2)}, "is no model"),
        ({"drafters": [None]}, "None is no model"),
        ({"drafters": 5}, "drafters is 5: it must be a spec"),
        ({"dtype": "float3"}, "unknown dtype 'float3'; the dtypes are: auto, float32"),
        ({"dtype": "Tensor"}, "unknown dtype 'Tensor'"),
        ({"device": "gpu"}, "unknown device 'gpu'; write auto, cpu, cuda"),
        ({"device": "map:foo"}, "device is 'map:foo': it must be map: and one of auto, balanced"),
        ({"device": -1}, "write auto"),
        ({"lengths": 4}, "lengths is 4"),
        ({"lengths": [2.5]}, "lengths is"),
        ({"lengths": "12"}, "lengths is '12'"),
        ({"policy": 5}, "policy is 5"),
        ({"rules": 5}, "rules is 5"),
        ({"trees": [None]}, "trees is None"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"num_prefixes": -1}, "num_prefixes is -1"),
        ({"deterministic": "yes"}, "deterministic is 'yes'"),
    ],
)
def test_what_cannot_be_loaded_is_said(changes: dict[str, Any], said: str) -> None:
    target = speculator(POOLS["lookup"]).target.module
    with pytest.raises(DraftwiseError, match=said):
        Speculator.from_pretrained(**({"target": target, "drafters": []} | changes))


def test_a_speculator_takes_all_settings_and_has_no_defaults_of_its_own() -> None:
    given = inspect.signature(Speculator.from_pretrained).parameters
    defaults = {one.name: getattr(DEFAULTS, one.name) for one in fields(DEFAULTS)}
    own = {"target", "tokenizer"}  # required, or loaded with the target
    assert given.keys() - own == defaults.keys() - {"target", "state", "threads"}
    assert all(defaults[name] == one.default for name, one in given.items() if name not in own)


def test_a_prompt_that_begins_with_the_padding_token_is_no_batch(
    made: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made.target.module.config, "pad_token_id", 7, raising=False)
    found = made.generate([7, 5, 6], max_new_tokens=2)
    row, engine = made.request([7, 5, 6], max_new_tokens=2), made.engine()
    run(engine, row)
    assert row.tokens == found.tokens
    with pytest.raises(DraftwiseError, match="attention_mask"):
        made.generate([[7, 5, 6], [5, 6, 7]], max_new_tokens=2)
