"""A head that learns between answers: lossless text, and rising acceptance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftwise.drafters import EagleDrafter
from draftwise.nn import CausalModel, EagleHead
from draftwise.registry import Preset
from draftwise.speculator import Speculator
from draftwise.train import DrafterAdapter, Text, acceptance_by_depth, new_head
from engine.pairs import PROMPTS, plain_greedy, reader


@pytest.fixture
def pair() -> tuple[CausalModel, EagleHead]:
    target = CausalModel(reader("llama"), "target")
    head = new_head(target.module, torch.arange(60), seed=0).eval().requires_grad_(False)
    return target, head


def test_answers_stay_the_target_s_and_drafts_get_better(
    pair: tuple[CausalModel, EagleHead],
) -> None:
    target, head = pair
    made = Speculator(
        target,
        None,
        [EagleDrafter("eagle", head, target)],
        Preset("fixed:0", "length", "free", (3,), False, ("fixed",)),
        seed=0,
    )
    adapter = DrafterAdapter(target, head, lr=5e-3, repeats=30)
    prompt, accepted = PROMPTS[0], []
    for _ in range(3):
        result = made.generate(prompt, max_new_tokens=40)
        assert list(result.tokens) == plain_greedy(prompt, 40)
        accepted.append(result.stats.draft_acceptance_rate)
        adapter.learn_from(prompt, result.tokens)
        while adapter.step():
            pass
        adapter.apply()
    assert len(adapter._run.losses) == 90
    assert accepted[2] > accepted[0] + 0.2


def test_what_was_learned_counts_once_it_is_applied(pair: tuple[CausalModel, EagleHead]) -> None:
    target, head = pair
    text = [Text((*PROMPTS[0], *plain_greedy(PROMPTS[0], 30)), len(PROMPTS[0]))]
    before = acceptance_by_depth(head, target.module, text, 2)
    adapter = DrafterAdapter(target, head, lr=3e-3)
    adapter.learn_from(text[0].tokens[: text[0].start], text[0].tokens[text[0].start :])
    while adapter.step():
        pass
    assert acceptance_by_depth(head, target.module, text, 2) == before, "not before it is applied"
    adapter.apply()
    assert acceptance_by_depth(head, target.module, text, 2)[0] > before[0]


def test_it_learns_while_somebody_is_waited_for(pair: tuple[CausalModel, EagleHead]) -> None:
    target, head = pair
    before = head.fc.weight.clone()
    lent = target.module.get_input_embeddings().weight.clone()
    adapter = DrafterAdapter(target, head, repeats=3)
    adapter.learn_from(PROMPTS[0], plain_greedy(PROMPTS[0], 20))

    def wait() -> Iterator[None]:
        with adapter.idle():
            while len(adapter._run.losses) < 3:
                pass
            assert torch.equal(head.fc.weight, before)
            yield

    list(wait())
    assert not torch.equal(head.fc.weight, before)
    assert torch.equal(target.module.get_input_embeddings().weight, lent)
    assert not adapter.step(), "nothing is left"


def test_texts_are_forgotten_and_short_ones_left_out(pair: tuple[CausalModel, EagleHead]) -> None:
    adapter = DrafterAdapter(*pair, most=50, repeats=1)
    adapter.learn_from([1], [2])
    assert not adapter.step()
    for _ in range(4):
        adapter.learn_from([1, 2], list(range(3, 23)))
        assert adapter.step()
    assert len(adapter._texts) == len(adapter._batches) == 2
