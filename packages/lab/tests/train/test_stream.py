"""Batched continuations equal single ones; prompts from nothing are filtered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError
from draftwise_lab.train.answers import SamplingTask, answers, continuations, read_kept
from draftwise_lab.train.data import Text, observed_batches
from draftwise_lab.train.prompts import Filter, make_prompts, runs_of, user_prefix
from models import tiny_model

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]] * 3
END = 7


def stream(module: Any, heats: list[float], rows: int, longest: int = 12) -> dict[int, list[int]]:
    tasks = {i: SamplingTask(p, heats[i % len(heats)]) for i, p in enumerate(PROMPTS)}
    model = CausalModel(module, "tiny")
    return dict(
        continuations(model, tasks, max_new_tokens=longest, eos_token_ids=[END], rows=rows, seed=3)
    )


@pytest.mark.parametrize("rows", [1, 4, 15, 99])
def test_greedy_rows_say_what_each_says_alone(rows: int) -> None:
    """For any batch size, and after any earlier request in the row."""
    module = tiny_model("llama")
    found = stream(module, [0.0], rows)
    for index, prompt in enumerate(PROMPTS):
        tokens = torch.tensor([prompt])
        alone = module.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, do_sample=False,
            eos_token_id=END, pad_token_id=0,
        )  # fmt: skip
        assert found[index] == alone[0, len(prompt) :].tolist()


def test_draws_belong_to_the_ask_and_not_to_its_neighbours() -> None:
    module = tiny_model("llama").double()
    few, many = stream(module, [1.0, 0.0], 2), stream(module, [1.0, 0.0], 15)
    assert few == many
    assert len({tuple(answer) for answer in few.values()}) > 8


def test_draws_follow_the_distribution() -> None:
    """First tokens of many equal tasks, against the model's own probabilities; chi-square.

    63 degrees of freedom: above 120 by chance once in about 20,000 seeds.
    """
    module, num = tiny_model("llama"), 6000
    tasks = {i: SamplingTask([1, 2, 3]) for i in range(num)}
    found = continuations(
        CausalModel(module, "t"), tasks, max_new_tokens=1, eos_token_ids=[], rows=2000, seed=0
    )
    counts = torch.bincount(torch.tensor([tokens[0] for _, tokens in found]), minlength=64)
    with torch.no_grad():
        expected = num * module(torch.tensor([[1, 2, 3]])).logits[0, -1].softmax(-1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 120


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        stream(tiny_model("llama"), [0.0], 2, longest=1000)


def test_a_torn_line_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[0, 5, 6]\n[1, 7")
    assert read_kept(path) == [(0, [5, 6])]
    texts = answers(
        tiny_model("llama"), PROMPTS[:3], [0.0] * 3, path, max_new_tokens=4, eos_token_id=-1,
        seed=0, rows=2,
    )  # fmt: skip
    assert texts[0].tokens == (1, 2, 3, 5, 6)
    assert sorted(i for i, _ in read_kept(path)) == [0, 1, 2]


def test_the_filter_says_why() -> None:
    checked = Filter("You are a helpful assistant")
    good = "How do I boil an egg so that its yolk stays soft?"
    assert checked.keeps(good)
    assert not checked.keeps(good + " Thanks")  # a near-duplicate
    assert checked.keeps("Write a short poem about the sea at night, please.")
    for bad in (None, "Hi", "again and " * 60, "Как сварить яйцо всмятку, скажите?"):
        assert not checked.keeps(bad)
    assert checked.counts == {
        "kept": 2, "repeated": 1, "unfinished": 1, "short": 1, "repetitive": 1, "other script": 1,
    }  # fmt: skip
    assert checked.share().startswith("kept 2 of 7 prompts (left out: ")


def test_texts_of_a_benchmark_are_found_wherever_they_stand(tmp_path: Path) -> None:
    text = "Please tell me in a few short words what the capital of France may be"
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"id": 1, "turns": ["first", {"more": text}]}) + "\n\n")
    checked = Filter("You are a helpful assistant", runs_of([file]))
    assert not checked.keeps(f"Dear model! {text.upper()}?")
    assert checked.keeps(text.replace("short", "long").replace("of", "in"))
    assert checked.counts == {"of a benchmark": 1, "kept": 1}
    file.write_text("{")
    for broken in (file, tmp_path / "none"):
        with pytest.raises(DraftwiseError, match="cannot be read as jsonl"):
            runs_of([broken])


def test_a_model_without_a_template_cannot_write_prompts() -> None:
    class Bare:
        chat_template = None

    with pytest.raises(DraftwiseError, match="no chat template"):
        user_prefix(Bare())


class Letters:
    """A tokenizer whose tokens are characters, with a template that ends turns with ``|``."""

    chat_template = "yes"

    def apply_chat_template(self, turns: list[dict[str, str]], tokenize: bool) -> str:
        assert not tokenize
        return "".join(f"<{turn['role']}>{turn['content']}|" for turn in turns)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1 + ord(c) % 62 if c != "|" else 63 for c in text]}

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(96 + t % 26) + (" " if t % 5 == 0 else "") for t in tokens)


def test_prompts_are_sampled_behind_the_bare_prefix_and_kept(tmp_path: Path) -> None:
    model = CausalModel(tiny_model("llama"), "tiny")
    prefix, end = user_prefix(Letters(), "be kind")
    assert prefix == Letters()("<system>be kind|<user>")["input_ids"]
    assert end == [63]
    path = tmp_path / "own.jsonl"
    texts, share = make_prompts(model, Letters(), 3, path, longest=200, rows=8)
    assert len(texts) >= 3
    assert share.startswith(f"kept {len(texts)} of ")
    kept = [json.loads(line)[1] for line in path.read_text().splitlines()]
    assert [text for text in kept if text in texts] == texts
    again = make_prompts(model, Letters(), 3, path, longest=200, rows=8)
    assert again == (texts, share)  # loaded from the cache


@pytest.mark.parametrize("kind", ["llama", "gemma3-mixed"])
def test_states_kept_while_answering_are_those_of_a_forward(kind: str, tmp_path: Path) -> None:
    """With a shared prefix, pads, rows that leave the batch, and a window."""
    module, taps = tiny_model(kind), (0, 1, 2)
    prompts = [[9, 8, *prompt] for prompt in PROMPTS]
    texts = answers(
        module, prompts, [0.0, 1.0, 1.0] * 5, tmp_path / "a.jsonl", max_new_tokens=12,
        eos_token_id=END, seed=3, rows=7, taps=taps, states=tmp_path / "texts",
    )  # fmt: skip
    kept, fresh = (
        observed_batches(module, {"texts": texts}, taps, seed=0, tokens_per_batch=60, keep=keep)
        for keep in (tmp_path, None)
    )
    for step in range(4):
        ours, theirs = kept(step), fresh(step)
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.best, theirs.best)
        assert torch.allclose(ours.last, theirs.last, atol=1e-2)
        for row, slots in enumerate(slots_of(texts, ours.tokens)):
            assert torch.allclose(ours.states[row, :slots], theirs.states[row, :slots], atol=1e-2)


def slots_of(texts: list[Text], tokens: Any) -> list[int]:
    """By row: the slots that a head reads, all but the last token's."""
    lengths = {text.tokens: len(text.tokens) - 1 for text in texts}
    rows = [tuple(row.tolist()) for row in tokens]
    return [max(n for own, n in lengths.items() if row[: len(own)] == own) for row in rows]
