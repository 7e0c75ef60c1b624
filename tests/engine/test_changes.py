"""A target that changes between two calls: no answer rests on what it was before.

Method: the same prompt, long enough for the prefix cache, is answered before and after a change and
compared with ``model.generate``. Every change is one that training, adapters or tools make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from draftwise import DraftwiseError, Speculator
from draftwise.nn.load import load_model
from draftwise.registry import preset
from models import tiny_model

PROMPT = [*range(3, 43), 7, 8, 9]  # longer than MIN_PREFIX_TOKENS
NUM = 12


def plain(model: Any, prompt: list[int] = PROMPT) -> list[int]:
    options = {"max_new_tokens": NUM, "do_sample": False, "pad_token_id": 0}
    return list(model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist())


def trained(model: Any) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    ids = torch.tensor([PROMPT])
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids.flip(1)).loss.backward()
        optimizer.step()


def written(model: Any) -> None:
    for own, new in zip(model.parameters(), other().parameters(), strict=True):
        own.data.copy_(new)


def replaced_twice(model: Any) -> None:
    for factor in (2.0, 1.3):  # the second tensor may lie where the first one lay
        for own in model.parameters():
            own.data = own.data * factor


def loaded(model: Any) -> None:
    model.load_state_dict(other().state_dict())


def turned(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(3.0)


def doubled(model: Any) -> None:
    model.double()


def resized(model: Any) -> None:
    model.resize_token_embeddings(80, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[70] = 4 * model.lm_head.weight[:64].mean(0)


def shortened(model: Any) -> None:
    del model.model.layers[1]
    model.config.num_hidden_layers = 1


def with_eager_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def softer(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 0.2


CHANGES = [
    trained, written, replaced_twice, loaded, turned, doubled, resized, shortened, softer,
    with_eager_attention,
]  # fmt: skip


def other() -> Any:
    return tiny_model("llama", seed=9)


@pytest.mark.parametrize("num_prefixes", [None, 4])
@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_after_a_change_is_the_changed_models(
    change: Callable[[Any], None], num_prefixes: int | None
) -> None:
    model = tiny_model("llama", seed=3)
    made = Speculator.from_pretrained(model, ["lookup"], num_prefixes=num_prefixes)
    assert made.generate(PROMPT, max_new_tokens=NUM).tokens == plain(model)
    change(model)
    assert made.generate(PROMPT, max_new_tokens=NUM).tokens == plain(model)


def lora(**options: Any) -> Any:
    torch.manual_seed(0)
    config = LoraConfig(
        r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **options
    )
    model = get_peft_model(tiny_model("llama", seed=3), config, adapter_name="first")
    model.add_adapter("second", config)
    return model.eval()


def scaled(model: Any) -> None:
    for layer in model.modules():
        if hasattr(layer, "scale_layer"):
            layer.scale_layer(0.25)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of PEFT
@pytest.mark.parametrize("num_prefixes", [None, 4])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.set_adapter("second"),
        lambda model: model.base_model.disable_adapter_layers(),
        lambda model: model.merge_adapter(["second"]),
        scaled,
        trained,
    ],
    ids=["switched", "disabled", "merged", "scaled", "trained"],
)
def test_an_answer_after_a_change_of_adapters_is_the_changed_models(
    change: Callable[[Any], None], num_prefixes: int | None
) -> None:
    model = lora()
    inner = model.get_base_model()
    made = Speculator.from_pretrained(inner, ["lookup"], num_prefixes=num_prefixes)
    before = made.generate(PROMPT, max_new_tokens=NUM).tokens
    assert before == plain(inner)
    change(model)
    expected = plain(inner)
    assert made.generate(PROMPT, max_new_tokens=NUM).tokens == expected != before


def hits(made: Speculator, prompts: list[list[int]]) -> int:
    before = 0 if made._engine is None else made._engine.num_prefix_hits
    made.generate(prompts, max_new_tokens=4)
    assert made._engine is not None
    return made._engine.num_prefix_hits - before


def test_prefixes_are_shared_within_a_call_and_between_calls_if_asked_for() -> None:
    model, rows = tiny_model("llama", seed=3), [PROMPT, [*PROMPT, 5], [*PROMPT, 6]]
    by_call = Speculator.from_pretrained(model, ["lookup"])
    assert [hits(by_call, rows), hits(by_call, rows)] == [2, 2]
    assert by_call._engine is not None
    assert by_call._engine.num_cache_bytes == 0  # nothing outlives a call
    kept = Speculator.from_pretrained(model, ["lookup"], num_prefixes=4)
    assert [hits(kept, rows), hits(kept, rows)] == [2, 3]
    trained(model)
    assert hits(kept, rows) == 2
    assert hits(kept, rows) == 3


def test_a_suspended_answer_shares_nothing_with_later_calls() -> None:
    model = tiny_model("llama", seed=3)
    made = Speculator.from_pretrained(model, ["lookup"])
    suspended = made.start([PROMPT], max_new_tokens=200)
    next(suspended)
    written(model)
    assert made.generate(PROMPT, max_new_tokens=NUM).tokens == plain(model)
    suspended.close()


def test_a_speculator_without_specs_of_its_drafters_says_what_to_do() -> None:
    model = tiny_model("llama", seed=3)
    made = Speculator(load_model(model), None, [], preset("plain"))
    model.double()
    with pytest.raises(DraftwiseError, match="another dtype, vocabulary or configuration"):
        made.generate(PROMPT, max_new_tokens=4)


def test_gradient_checkpointing_in_training_mode_is_refused() -> None:
    model = tiny_model("llama", seed=3).train()
    for layer in model.model.layers:  # as ``gradient_checkpointing_enable`` does
        layer.gradient_checkpointing = True
    made = Speculator.from_pretrained(model, ["lookup"])
    with pytest.raises(DraftwiseError, match="gradient_checkpointing_disable"):
        made.generate(PROMPT, max_new_tokens=4)
    model.eval()
    assert made.generate(PROMPT, max_new_tokens=NUM).tokens == plain(model)
