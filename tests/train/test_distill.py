"""Distillation: sampling from a target, lessons on disk, and acceptance."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from draftwise.train import (
    Settings,
    Text,
    acceptance,
    answer_logits,
    continue_prompts,
    groups,
    lesson_batches,
    make_llama,
    measure_acceptance,
    pad,
    reserve,
    teach,
)
from draftwise.train import distill_drafter as distill

VOCAB = 48
EOS = 2


def tiny(num_layers: int, seed: int) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return make_llama(
        vocab_size=VOCAB,
        num_layers=num_layers,
        hidden_size=32,
        intermediate_size=48,
        head_dim=16,
        seed=seed,
    ).eval()


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    model = tiny(2, 0)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(6)  # sharper than chance
    return model


@pytest.fixture(scope="module")
def texts(target: LlamaForCausalLM) -> list[Text]:
    prompts = [[1, 3 + i % 40] for i in range(48)]
    new = continue_prompts(target, prompts, [1.0] * 48, max_new_tokens=24, eos_token_id=EOS, seed=0)
    return [Text((*a, *b), len(a)) for a, b in zip(prompts, new, strict=True)]


def test_greedy_rows_equal_generate_whatever_their_neighbours(target: LlamaForCausalLM) -> None:
    prompts = [[1, 5, 9, 11], [1, 7], [1, 8, 30]]
    new = continue_prompts(
        target, prompts, [0.0, 0.0, 1.0], max_new_tokens=12, eos_token_id=EOS, seed=3
    )
    for row in (0, 1):
        expected = target.generate(
            torch.tensor([prompts[row]]),
            attention_mask=torch.ones(1, len(prompts[row]), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        assert new[row] == expected[0, len(prompts[row]) :].tolist()


def test_sampling_is_a_function_of_its_seed(target: LlamaForCausalLM) -> None:
    draws = [
        continue_prompts(
            target, [[1, 4]] * 8, [1.0] * 8, max_new_tokens=20, eos_token_id=EOS, seed=seed
        )
        for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert all(EOS not in answer[:-1] for answer in draws[0])


def test_a_prompt_without_tokens_is_refused(target: LlamaForCausalLM) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        continue_prompts(target, [[]], [1.0], max_new_tokens=1, eos_token_id=EOS, seed=0)


def test_acceptance_is_the_overlap() -> None:
    p = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    q = [Fraction(1, 8), Fraction(5, 8), Fraction(1, 4)]
    overlap = float(sum(min(a, b) for a, b in zip(p, q, strict=True)))
    logits = [torch.tensor([[float(x) for x in row]]).log() for row in (p, q)]
    assert acceptance(*logits).item() == pytest.approx(overlap)


def test_positions_predict_exactly_the_answer() -> None:
    texts = [Text((5, 6, 7, 8), 2), Text((9, 10), 1)]
    tokens, positions = pad(texts)
    assert tokens.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0]]
    assert tokens.flatten()[positions + 1].tolist() == [7, 8, 10]


def test_groups_hold_every_text_once(texts: list[Text]) -> None:
    found = groups(texts, 64)
    assert sorted(i for group in found for i in group) == list(range(len(texts)))
    assert all(len(g) * max(len(texts[i].tokens) for i in g) <= 64 for g in found)


def test_a_text_without_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="start must lie inside"):
        Text((1, 2, 3), 3)


def test_a_lesson_keeps_the_logits_of_its_texts(
    target: LlamaForCausalLM, texts: list[Text], tmp_path: Path
) -> None:
    lesson = teach(target, texts, tmp_path / "lesson")
    again = teach(target, [], tmp_path / "lesson")  # finished: loaded, not made
    assert again.texts == lesson.texts
    batch = lesson_batches([lesson], seed=0, tokens_per_batch=128)(3)
    with torch.inference_mode():
        expected = answer_logits(target, batch.tokens, batch.positions)
    assert torch.allclose(batch.logits.float(), expected, atol=2e-2)


def test_distillation_raises_acceptance(
    target: LlamaForCausalLM, texts: list[Text], tmp_path: Path
) -> None:
    lesson = teach(target, texts, tmp_path / "lesson")
    drafter = tiny(1, 5)
    before = measure_acceptance(target, {"drafter": drafter}, texts)["drafter"]
    settings = Settings(steps=120, lr=1e-2, warmup_steps=5, decay_steps=40)
    losses = distill(drafter, [lesson], settings, seed=0, checkpoint=tmp_path / "run.pt")
    assert losses[-1] < losses[0]
    after = measure_acceptance(target, {"drafter": drafter.eval(), "target": target}, texts)
    assert after["drafter"] > before + 0.15
    assert after["target"] == pytest.approx(1.0, abs=1e-5)


def test_a_table_has_its_room_before_it_is_filled(tmp_path: Path) -> None:
    """A sparse file that outgrows the disk ends the process with a bus error, without a word."""
    file = tmp_path / "table"
    with file.open("wb") as opened:
        opened.truncate(1 << 20)
    reserve(file)
    assert file.stat().st_blocks * 512 >= 1 << 20
