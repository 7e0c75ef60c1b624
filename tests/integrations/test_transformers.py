"""``custom_generate=draftwise.transformers()`` compared with ``generate``, option by option."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import (
    CONFIG_MAPPING,
    DynamicCache,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaForCausalLM,
    LogitsProcessor,
    StoppingCriteria,
)
from transformers.generation import (
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    MaxLengthCriteria,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import draftwise
from draftwise import DraftwiseError
from draftwise.nn.model import cache_argument
from draftwise.nn.tiny import tiny_config, tiny_module
from engine.scripted import byte_tokenizer
from models import SMALL, VOCAB, tiny_model

PROMPTS = torch.tensor([[5, 6, 7, 8, 5, 6, 7], [9, 9, 1, 2, 3, 9, 9]])
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
NUM = 24
PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"
TESTED: set[str] = set()
"""Options of the page's table that a test in this file covers."""


def covers(*options: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Record options, as written in the first column of the page's table, as covered by a test."""
    TESTED.update(options)
    return lambda test: test


def test_every_option_of_the_page_is_tested() -> None:
    page = PAGE.read_text("utf-8").partition("\n## ")[0]
    rows = [line.split("|") for line in page.splitlines() if line[:1] == "|"]
    named = [option.strip() for row in rows[2:] for option in row[1].split(", ")]
    assert len(named) > 20
    assert sorted(set(named) ^ TESTED) == []


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", seed=3)


@pytest.fixture(scope="module")
def ours() -> Any:
    return draftwise.transformers(["lookup", tiny_model("llama", seed=4)], lengths=[1, 3, 6])


class OddOnly(LogitsProcessor):
    """Penalises even or odd tokens, depending on the prefix's sum."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for ids, own in zip(input_ids, scores, strict=True):
            own[(ids.sum() % 2) :: 2] -= 5.0  # in place, as some processors do
        return scores


class AfterSum(StoppingCriteria):
    """Ends a row as soon as its tokens sum to a multiple of 11."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.sum(-1) % 11 == 0


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "an end": {"eos_token_id": [3, 17], "pad_token_id": 0},
    "an end, no pad": {"eos_token_id": 17},
    "repetition penalty": {"repetition_penalty": 1.7},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "least length": {"min_new_tokens": 9, "eos_token_id": [3, 17], "pad_token_id": 0},
    "a processor": {"logits_processor": [OddOnly()]},
    "a criterion": {"stopping_criteria": [AfterSum()], "eos_token_id": 17, "pad_token_id": 0},
    "one token": {"max_new_tokens": 1},
    "no time": {"max_time": 0.0, "pad_token_id": 0},
}


@covers(
    "greedy and sampled text", "`max_new_tokens`", "`eos_token_id`", "left padding", "`max_time`",
    "`repetition_penalty`", "`no_repeat_ngram_size`", "`min_new_tokens`",
    "your `logits_processor`", "your `stopping_criteria`",
)  # fmt: skip
@pytest.mark.parametrize("mask", [None, LEFT], ids=["even", "left-padded"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_greedy_answers_are_those_of_generate(model: Any, ours: Any, name: str, mask: Any) -> None:
    options = {"max_new_tokens": NUM, "do_sample": False, "attention_mask": mask, **SETTINGS[name]}
    expected = model.generate(PROMPTS, **options)
    answers = model.generate(PROMPTS, custom_generate=ours, **options)
    assert answers.tolist() == expected.tolist()


def test_it_drafted_and_its_numbers_can_be_read(model: Any) -> None:
    hook = draftwise.transformers(["lookup"], deterministic=True)  # no guard that slow steps close
    model.generate(PROMPTS[:1], custom_generate=hook, max_new_tokens=NUM, do_sample=False)
    stats = hook.results[0].stats
    assert stats.num_emitted == NUM
    assert stats.num_drafted > 0


@covers("`stop_strings`")
def test_stop_strings_end_an_answer_where_generate_does(model: Any, ours: Any) -> None:
    tokenizer = byte_tokenizer()
    options = {"max_new_tokens": NUM, "do_sample": False, "eos_token_id": 17, "pad_token_id": 0}
    whole = model.generate(PROMPTS, **options)[0, PROMPTS.shape[1] :].tolist()
    options |= {"stop_strings": [tokenizer.decode(whole[4:6]), "!"], "tokenizer": tokenizer}
    expected = model.generate(PROMPTS, **options)
    assert len(set(expected[0, -(NUM - 8) :].tolist())) == 1, "the stop string ended it"
    answers = model.generate(PROMPTS, custom_generate=ours, **options)
    assert answers.tolist() == expected.tolist()


@covers("greedy and sampled text", "`temperature`", "`top_k`", "`top_p`", "`min_p`")
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 3.0}]
)
def test_sampled_tokens_follow_the_law_of_generate(model: Any, options: dict[str, Any]) -> None:
    """Second and third token, 1,500 draws each way; chi-square, false alarm 1e-3 per setting.

    The prompt leaves room for full drafts, so that both tokens come out of drafts.
    """
    torch.manual_seed(0)
    ours = draftwise.transformers(
        [tiny_model("llama", seed=4)], preset="metasd", policy="fixed:0", lengths=[3],
        reward="length", feedback="bandit",
    )  # fmt: skip
    rows = PROMPTS[:1].repeat(1500, 1)
    given = {"max_new_tokens": 3, "do_sample": True, "temperature": 2.0, "top_k": 0, **options}
    theirs = model.generate(rows, **given)[:, -2:] % 8
    mine = model.generate(rows, custom_generate=ours, **given)[:, -2:] % 8
    for place in range(2):
        counts = torch.stack([torch.bincount(x[:, place], minlength=8) for x in (theirs, mine)])
        kept = counts[:, counts.sum(0) > 10].double()
        expected = kept.sum(0, keepdim=True) / 2
        statistic = float(((kept - expected) ** 2 / expected).sum())
        degrees = torch.tensor((kept.shape[1] - 1) / 2)
        p = 1 - torch.special.gammainc(degrees, torch.tensor(statistic / 2))
        assert p > 1e-3 / 2


def test_the_global_seed_repeats_it(model: Any) -> None:
    ours = draftwise.transformers(["lookup"], preset="metasd")

    def once(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        options = {"max_new_tokens": NUM, "do_sample": True, "temperature": 2.0}
        return list(model.generate(PROMPTS, custom_generate=ours, **options).tolist())

    assert once(1) == once(1) != once(2)


@covers("`num_return_sequences`", "`return_dict_in_generate`")
def test_several_sequences_and_the_output_object(model: Any, ours: Any) -> None:
    output = model.generate(
        PROMPTS, custom_generate=ours, max_new_tokens=4, do_sample=True, temperature=2.0,
        num_return_sequences=3, return_dict_in_generate=True,
    )  # fmt: skip
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.sequences.shape == (6, 11)


class Streamer:
    """Records the values that it receives."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append(value.tolist())

    def end(self) -> None:
        self.pieces.append("end")


@covers("`streamer`")
def test_a_streamer_is_given_what_generate_gives_it(model: Any, ours: Any) -> None:
    theirs, mine = Streamer(), Streamer()
    options = {"max_new_tokens": NUM, "do_sample": False, "eos_token_id": 17}
    model.generate(PROMPTS[:1], streamer=theirs, **options)
    model.generate(PROMPTS[:1], streamer=mine, custom_generate=ours, **options)
    assert mine.pieces == theirs.pieces
    assert mine.pieces[0] == PROMPTS[:1].tolist()
    assert len(mine.pieces) > 3


def test_a_streamer_of_several_sequences_is_refused(model: Any, ours: Any) -> None:
    with pytest.raises(DraftwiseError, match="here are 2: leave out streamer="):
        model.generate(PROMPTS, custom_generate=ours, streamer=Streamer(), max_new_tokens=4)


def test_callables_of_others_are_given_what_they_were_before(model: Any, ours: Any) -> None:
    given: dict[str, Any] = {}

    def theirs(model: Any, input_ids: torch.Tensor, own: int = 0, **rest: Any) -> torch.Tensor:
        given.update(rest, own=own)
        return input_ids

    assert ours is not None  # the hook is in place
    model.generate(PROMPTS, custom_generate=theirs, own=3, max_new_tokens=4)
    assert given["own"] == 3
    assert given.keys().isdisjoint({"tokenizer", "streamer", "assistant_model"})


@covers(
    "`num_beams`", "`output_scores`", "`output_hidden_states`", "right padding",
    "`assistant_model`", "`prompt_lookup_num_tokens`", "`use_mtp`", "`penalty_alpha`",
    "`dola_layers`", "`inputs_embeds`", "your `position_ids`", "`token_type_ids`",
)  # fmt: skip
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "output_hidden_states",
        ),
        ({"attention_mask": LEFT.flip(-1)}, "on the right"),
        ({"inputs_embeds": torch.ones(2, 7, 32)}, "inputs_embeds"),
        ({"position_ids": torch.arange(7)[None] + 3}, "position_ids"),
        ({"position_ids": torch.arange(7).flip(0)[None]}, "position_ids"),
        ({"assistant_model": tiny_model("llama", seed=4)}, "honour assistant_model"),
        ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens"),
        ({"use_mtp": True}, "use_mtp"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
        ({"dola_layers": "high"}, "dola_layers"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    model: Any, ours: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(DraftwiseError, match=named):
        model.generate(PROMPTS, custom_generate=ours, max_new_tokens=4, **options)


@covers("your `cache` (`past_key_values` before 5.24)")
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")  # transformers 5.24
@pytest.mark.filterwarnings("ignore:`cache_params` is deprecated")
@pytest.mark.parametrize("num_cached", [0, 3])
@pytest.mark.parametrize("name", ["past_key_values", "cache_params", "cache"])
@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_a_cache_of_the_callers_is_refused(kind: str, name: str, num_cached: int) -> None:
    """Under each name that a release has for it. An empty one, too: ``generate`` fills it, and the
    caller goes on from there. A cache of recurrent states has no length.
    """
    target = tiny_module(tiny_config(CONFIG_MAPPING[kind]())).eval()
    own, names = cache_argument(target)
    if own != "cache" and name not in names:
        pytest.skip(f"this transformers has no {name} of {kind}")
    cache = DynamicCache(config=target.config)
    if num_cached:
        target(PROMPTS[:, :num_cached], **{own: cache})
    hook = draftwise.transformers(["lookup"])
    with pytest.raises(DraftwiseError, match="a cache of yours, or one that already holds tokens"):
        target.generate(PROMPTS, custom_generate=hook, max_new_tokens=4, **{name: cache})


GREEDY = {"max_new_tokens": NUM, "do_sample": False, "eos_token_id": 17, "pad_token_id": 0}


@covers("`cache_implementation`")
@pytest.mark.parametrize("name", ["dynamic", "static", "offloaded"])
def test_kinds_of_caches_that_change_no_answer_are_accepted(
    model: Any, ours: Any, name: str
) -> None:
    expected = model.generate(PROMPTS, **GREEDY)
    options = {**GREEDY, "cache_implementation": name}
    assert model.generate(PROMPTS, custom_generate=ours, **options).equal(expected)


@covers('`cache_implementation="quantized"`')
def test_a_lossy_cache_is_refused(model: Any, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(backend: str, config: Any) -> Any:  # without the package of the backend
        return DynamicCache(config=config)

    monkeypatch.setattr("transformers.generation.utils.QuantizedCache", made)
    options = {**GREEDY, "cache_implementation": "quantized"}
    with pytest.raises(DraftwiseError, match="cache_implementation='quantized'"):
        model.generate(PROMPTS, custom_generate=ours, **options)


CHECKPOINT: list[tuple[dict[str, Any], str]] = [
    ({"cache_implementation": "static"}, ""),
    ({"output_scores": True, "output_attentions": True}, ""),  # without return_dict_in_generate
    ({"use_cache": False, "length_penalty": 2.0}, ""),
    ({"prefill_chunk_size": 4, "early_stopping": True}, ""),
    ({"repetition_penalty": 1.7, "suppress_tokens": [5, 9]}, ""),
    ({"num_beams": 3}, r"num_beams=3 .of model.generation_config"),
    ({"penalty_alpha": 0.6, "top_k": 4}, r"penalty_alpha=0.6 .of model.generation_config"),
    ({"prompt_lookup_num_tokens": 1}, "prompt_lookup_num_tokens=1"),
]


@pytest.mark.parametrize(("settings", "named"), CHECKPOINT)
def test_settings_of_the_checkpoint_are_honoured_or_named(
    ours: Any, settings: dict[str, Any], named: str
) -> None:
    model = tiny_model("llama", seed=3)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    before = model.generation_config.to_dict()
    if named:
        with pytest.raises(DraftwiseError, match=named):
            model.generate(PROMPTS, custom_generate=ours, **GREEDY)
    else:
        found = model.generate(PROMPTS, custom_generate=ours, **GREEDY)
        assert found.equal(model.generate(PROMPTS, **GREEDY))
    assert model.generation_config.to_dict() == before


def test_ends_and_lengths_of_the_callers_criteria_are_used(model: Any, ours: Any) -> None:
    whole = model.generate(PROMPTS[:1], **GREEDY)[0, PROMPTS.shape[1] :].tolist()
    for criterion in (EosTokenCriteria(torch.tensor([whole[5]])), MaxLengthCriteria(11)):
        options = {**GREEDY, "stopping_criteria": [criterion]}
        expected = model.generate(PROMPTS[:1], **options)
        assert expected.shape[1] < PROMPTS.shape[1] + len(whole)
        assert model.generate(PROMPTS[:1], custom_generate=ours, **options).equal(expected)


WARPERS = [
    [TemperatureLogitsWarper(0.5)],
    [TopKLogitsWarper(3), TopPLogitsWarper(0.5)],
    [TopKLogitsWarper(1, filter_value=-3.0)],
    [RepetitionPenaltyLogitsProcessor(1.5), TemperatureLogitsWarper(3.0)],
]


@pytest.mark.parametrize("warpers", WARPERS)
def test_warpers_of_the_callers_keep_greedy_decoding_greedy(
    model: Any, ours: Any, warpers: list[Any]
) -> None:
    options = {**GREEDY, "logits_processor": warpers}
    expected = model.generate(PROMPTS, **options)
    assert model.generate(PROMPTS, custom_generate=ours, **options).equal(expected)


def pictured() -> Any:
    torch.manual_seed(0)
    text = {**SMALL, "vocab_size": 100, "sliding_window": 64, "pad_token_id": 0}
    sight = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    ids = {"image_token_id": 99, "boi_token_index": 98, "eoi_token_index": 97}
    config = Gemma3Config(text_config=text, vision_config=sight, mm_tokens_per_image=4, **ids)
    return Gemma3ForConditionalGeneration(config).eval()


def test_images_are_refused_by_name_and_texts_of_the_same_model_are_not() -> None:
    model, hook = pictured(), draftwise.transformers(["lookup"])
    ids = torch.tensor([[7, 98, 99, 99, 99, 99, 97, 80, 41]])
    image = {"pixel_values": torch.randn(1, 3, 28, 28), "token_type_ids": (ids == 99).long()}
    with pytest.raises(DraftwiseError, match="pixel_values"):
        model.generate(ids, custom_generate=hook, **GREEDY, **image)
    text = {"token_type_ids": torch.zeros_like(PROMPTS), **GREEDY}
    expected = model.generate(PROMPTS, **text)
    assert model.generate(PROMPTS, custom_generate=hook, **text).equal(expected)


@pytest.mark.parametrize("kind", [0, 1])
def test_token_types_that_a_model_embeds_are_refused(kind: int) -> None:
    model, hook = tiny_model("gpt2", seed=3), draftwise.transformers(["lookup"])
    types = torch.full_like(PROMPTS, kind)
    with pytest.raises(DraftwiseError, match="token_type_ids"):
        model.generate(PROMPTS, custom_generate=hook, token_type_ids=types, **GREEDY)


def test_inputs_of_a_models_own_are_refused_by_name(ours: Any) -> None:
    class Louder(LlamaForCausalLM):  # type: ignore[misc]
        def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
            inputs = super().prepare_inputs_for_generation(*args, **kwargs)
            return inputs | {"volume": torch.tensor(11.0)}

    model = Louder(tiny_model("llama").config).eval()
    with pytest.raises(DraftwiseError, match=r"volume .of test_.*prepare_inputs_for_generation"):
        model.generate(PROMPTS, custom_generate=ours, **GREEDY)


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    ("config", "named"),
    [
        (PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5), "past_key_values"),
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5), "inputs_embeds"),
        (PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=5), "inputs_embeds"),
    ],
)
def test_prompt_learning_of_peft_is_refused(ours: Any, config: Any, named: str) -> None:
    base = tiny_model("llama", seed=3)
    model = get_peft_model(base, config).eval()
    with pytest.raises(DraftwiseError, match=f"{named} .of PeftModelForCausalLM"):
        model.generate(PROMPTS, custom_generate=ours, **GREEDY)
    with model.disable_adapter():
        expected = model.generate(PROMPTS, **GREEDY)
        assert model.generate(PROMPTS, custom_generate=ours, **GREEDY).equal(expected)


ADAPTERS = [
    LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    LoraConfig(
        r=4, target_modules=["q_proj", "k_proj"], use_dora=True, init_lora_weights=False
    ),
    IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"],
        init_ia3_weights=False,
    ),
    LoHaConfig(r=4, alpha=32, target_modules=["q_proj", "o_proj"], init_weights=False),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("config", ADAPTERS, ids=lambda config: type(config).__name__)
def test_an_adapters_text_is_written_and_switched_off(ours: Any, config: Any) -> None:
    torch.manual_seed(5)
    config.task_type = "CAUSAL_LM"
    model = get_peft_model(tiny_model("llama", seed=3), config).eval()
    with torch.no_grad():
        for name, own in model.named_parameters():
            if "ia3" in name:
                own.normal_(1.0, 0.7)
    rows = PROMPTS.repeat(1, 6)  # longer than what the prefix cache shares
    texts = []
    for is_on in (True, False, True):
        with nullcontext() if is_on else model.disable_adapter():
            texts.append(model.generate(rows, **GREEDY).tolist())
            assert model.generate(rows, custom_generate=ours, **GREEDY).tolist() == texts[-1]
    assert texts[0] == texts[2] != texts[1]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_one_adapter_for_each_row_is_refused_by_name(ours: Any) -> None:
    model = get_peft_model(tiny_model("llama", seed=3), ADAPTERS[0], adapter_name="one").eval()
    model.add_adapter("two", ADAPTERS[0])
    with pytest.raises(DraftwiseError, match="adapter_names"):
        model.generate(PROMPTS, custom_generate=ours, adapter_names=["one", "two"], **GREEDY)


class Biases(LogitsProcessor):
    """One bias for each row of the batch."""

    def __init__(self) -> None:
        self.bias = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0)) * 8

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.bias


class Budget(LogitsProcessor):
    """Forces token 17 at its tenth call: a state, of which it expects one call per token."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        scores[:, 17] += 1e4 * (self.num_calls == 10)
        return scores


class Mixed(LogitsProcessor):
    """Each row gets the mean of all rows' scores."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.mean(0, keepdim=True).expand_as(scores).clone()


class FirstWins(StoppingCriteria):
    """Ends all rows when any row has token 9 again."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids[:, 7:] == 9).any().expand(len(input_ids))


class Counted(StoppingCriteria):
    """Ends a row at its eighth call, and records what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append(input_ids.tolist())
        return torch.full((len(input_ids),), len(self.seen) == 8)


ONE_BY_ROW = {0: [3, 5, 9], 1: [4, 6, 8, 17]}
CALLBACKS: dict[str, Callable[[], dict[str, Any]]] = {
    "a bias per row": lambda: {"logits_processor": [Biases()]},
    "a state": lambda: {"logits_processor": [Budget()]},
    "a mean over rows": lambda: {"logits_processor": [Mixed()]},
    "a stop of all rows": lambda: {"stopping_criteria": [FirstWins()]},
    "a count of calls": lambda: {"stopping_criteria": [Counted()]},
    "no end token": lambda: {"stopping_criteria": [AfterSum()], "eos_token_id": None},
    "allowed tokens": lambda: {"prefix_allowed_tokens_fn": lambda row, ids: ONE_BY_ROW[row]},
    "guidance": lambda: {"guidance_scale": 2.0},
    "encoder penalty": lambda: {"encoder_repetition_penalty": 1.5},
}


@covers("`prefix_allowed_tokens_fn`", "`guidance_scale`")
@pytest.mark.parametrize("rows", [PROMPTS[:1], PROMPTS], ids=["one row", "two rows"])
@pytest.mark.parametrize("name", list(CALLBACKS))
def test_callbacks_are_called_as_generate_calls_them(
    model: Any, ours: Any, name: str, rows: torch.Tensor
) -> None:
    if name == "a bias per row" and len(rows) == 1:
        rows = PROMPTS[:1].repeat(2, 1)
    theirs, mine = CALLBACKS[name](), CALLBACKS[name]()
    expected = model.generate(rows, **{**GREEDY, **theirs})
    found = model.generate(rows, custom_generate=ours, **{**GREEDY, **mine})
    assert found.tolist() == expected.tolist()
    if name == "a count of calls":
        assert mine["stopping_criteria"][0].seen == theirs["stopping_criteria"][0].seen


@pytest.mark.parametrize("name", ["a processor", "allowed tokens"])
def test_pure_callbacks_are_called_with_single_rows_and_drafts(model: Any, name: str) -> None:
    callbacks = {"a processor": lambda: {"logits_processor": [OddOnly()]}, **CALLBACKS}[name]()
    always = {"preset": "metasd", "policy": "fixed:0", "lengths": [3], "pure_callbacks": True}
    hook = draftwise.transformers([tiny_model("llama", seed=4)], **always)
    expected = model.generate(PROMPTS, **GREEDY, **callbacks)
    assert model.generate(PROMPTS, custom_generate=hook, **GREEDY, **callbacks).equal(expected)
    assert sum(result.stats.num_drafted for result in hook.results) > 0


def test_a_processor_that_only_claims_to_be_pure_is_found_out(model: Any) -> None:
    hook = draftwise.transformers(["lookup"], pure_callbacks=True)
    with pytest.raises(DraftwiseError, match="Biases returned scores of 2 rows for one"):
        model.generate(PROMPTS, custom_generate=hook, logits_processor=[Biases()], **GREEDY)


def test_a_log_says_once_why_nothing_is_drafted(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = draftwise.transformers(["lookup"])
    for _ in range(2):
        model.generate(PROMPTS, custom_generate=hook, logits_processor=[Biases()], **GREEDY)
    assert [one.getMessage().partition(", since ")[2][:6] for one in caplog.records] == ["Biases"]
    assert hook.results == []


class Strict(LogitsProcessor):
    """Raises for a row that begins with 9 and has more than 9 tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if (input_ids[:, 0] == 9).any() and input_ids.shape[1] > 9:
            raise ValueError("no token is allowed here")
        return scores


class StrictEnd(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        Strict()(input_ids, torch.zeros(1))
        return torch.zeros(len(input_ids), dtype=torch.bool)


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    Strict()(ids[None], torch.zeros(1))
    return [1, 2, 3]


class Hanging(Streamer):
    def put(self, value: torch.Tensor) -> None:
        super().put(value)
        if len(self.pieces) > 3:
            raise ValueError("no token is allowed here")


FAULTS: list[dict[str, Any]] = [
    {"logits_processor": [Strict()]},
    {"stopping_criteria": [StrictEnd()]},
    {"prefix_allowed_tokens_fn": allowed},
    {"streamer": Hanging()},
]


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("rows", [PROMPTS[1:], PROMPTS.flip(0)])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: next(iter(fault)))
def test_what_a_callback_raises_is_raised(
    model: Any, fault: dict[str, Any], rows: torch.Tensor, is_pure: bool
) -> None:
    if "streamer" in fault:
        rows = rows[:1]
    hook = draftwise.transformers(["lookup"], pure_callbacks=is_pure)
    options = {"max_new_tokens": NUM, "do_sample": False, "pad_token_id": 0, "eos_token_id": 17}
    with pytest.raises(ValueError, match="no token is allowed here"):
        model.generate(rows, custom_generate=hook, **options, **fault)
    expected = model.generate(rows, **options)  # the next call is none the worse
    assert model.generate(rows, custom_generate=hook, **options).equal(expected)


def test_logits_that_are_not_finite_end_no_row_quietly(model: Any) -> None:
    broken = copy.deepcopy(model)
    hook = draftwise.transformers(["lookup"])
    broken.generate(PROMPTS, custom_generate=hook, **GREEDY)
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    with pytest.raises(DraftwiseError, match="row 0 are not finite"):
        broken.generate(PROMPTS, custom_generate=hook, **GREEDY)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_callers_model_and_generator_are_left_as_they_were(kind: str) -> None:
    model = tiny_model(kind, seed=3).train()
    model.get_input_embeddings().weight.requires_grad_(False)
    list(model.modules())[3].eval()

    def state() -> Any:
        layers = list(model.modules())
        hooks = [(len(x._forward_hooks), len(x._forward_pre_hooks)) for x in layers]
        return (
            [x.training for x in layers], hooks, [p.requires_grad for p in model.parameters()],
            model.config.to_dict(), model.generation_config.to_dict(),
            model.config._attn_implementation, torch.is_grad_enabled(),
            torch.random.get_rng_state().tolist(),
        )  # fmt: skip

    hook = draftwise.transformers(["lookup", tiny_model(kind, seed=4)])
    model.config.attn_pdrop = 0.0
    before = state()
    model.generate(PROMPTS, custom_generate=hook, **GREEDY)
    assert state()[:-1] == before[:-1]
    if kind == "llama":  # without dropout, greedy decoding draws no numbers
        assert state() == before
    model(input_ids=PROMPTS, labels=PROMPTS).loss.backward()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("num_prefixes", [None, 4])
@pytest.mark.parametrize("is_full", [True, False], ids=["full", "LoRA"])
def test_a_training_loop_with_generation_between_its_steps(
    is_full: bool, num_prefixes: int | None
) -> None:
    """Eight steps; before each, the answer is that of ``generate``; drafts are accepted."""
    torch.manual_seed(1)
    model = tiny_model("llama", seed=3)
    if not is_full:
        config = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0)
        model = get_peft_model(model, config)
    hook = draftwise.transformers(["lookup"], num_prefixes=num_prefixes)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    rows = torch.tensor([[*range(3, 43)], [7, 8, 9, 10] * 10])
    num_accepted = 0
    for step in range(8):
        model.train(step % 2 == 0)
        expected = model.generate(rows, **GREEDY)
        assert model.generate(rows, custom_generate=hook, **GREEDY).equal(expected), step
        num_accepted += sum(result.stats.num_accepted for result in hook.results)
        optimizer.zero_grad()
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    assert num_accepted > 8


def test_a_model_that_nobody_needs_is_given_back() -> None:
    """The hook keeps measurements of a model without keeping the model alive."""
    hook = draftwise.transformers(["lookup"])
    short_lived = tiny_model("llama", seed=5)
    for _ in range(2):
        short_lived.generate(PROMPTS[:1], custom_generate=hook, max_new_tokens=4, do_sample=False)
    is_alive = weakref.ref(short_lived)
    del short_lived
    gc.collect()
    assert is_alive() is None
