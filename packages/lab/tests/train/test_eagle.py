"""Training EAGLE heads: unrolling equals drafting, the loss is the formula, heads learn."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftwise.nn.cache import RaggedCache
from draftwise.nn.eagle import EagleHead, read
from draftwise.nn.eagle_files import load_head, rope_of
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError
from draftwise_lab.train.data import Text, halved, observe, observed_batches
from draftwise_lab.train.eagle import (
    acceptance_by_depth,
    draft_vocabulary,
    eagle_loss,
    new_head,
    unrolled,
)
from draftwise_lab.train.loop import TrainingSettings, fit
from draftwise_lab.train.save import save_head
from eagles import eagle_head
from engine.pairs import PROMPTS, plain_greedy, reader
from models import tiny_model

PASSES = 4


def loss_of(num_passes: int, **more: float) -> Any:
    return partial(eagle_loss, num_passes=num_passes, **more)


@pytest.fixture(scope="module")
def target() -> Any:
    return reader()


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    """Greedy text of the target, which a head can learn."""
    return [Text((*p, *plain_greedy(p, 40)), max(1, len(p) - 2)) for p in PROMPTS for _ in range(2)]


def a_head(target: Any, **changes: Any) -> EagleHead:
    return eagle_head(CausalModel(target, "target"), **changes)


def drafted(head: EagleHead, states: torch.Tensor, tokens: list[int], start: int) -> torch.Tensor:
    """States along a draft after slot ``start``, with the text's tokens."""
    cache = RaggedCache(1, 80)
    hidden = head.fuse(states[: start + 1])
    (found,) = read(head, cache, [0], [tokens[1 : start + 2]], [hidden])
    passes = [found[-1]]
    for token in tokens[start + 2 : start + 1 + PASSES]:
        (found,) = read(head, cache, [0], [[token]], [passes[-1][None]])
        passes.append(found[-1])
    return torch.stack(passes)


@pytest.mark.parametrize("changes", [{}, {"generation": 1}, {"norm_before_residual": True}])
@torch.no_grad()
def test_unrolling_is_drafting(target: Any, texts: list[Text], changes: dict[str, Any]) -> None:
    """Every pass at every start has the state that a real draft of these tokens would have."""
    head = a_head(target, **changes)
    batch = observe(target, texts[:4], head.config.taps)
    passes = unrolled(head, batch, PASSES)
    for row, text in enumerate(texts[:4]):
        tokens = list(text.tokens)
        for start in (0, 1, 5, len(tokens) - PASSES - 1):
            expected = drafted(head, batch.states[row], tokens, start)
            found = torch.stack([states[row, start] for states in passes])
            assert torch.allclose(found, expected, atol=1e-4)


@torch.no_grad()
def test_the_loss_is_soft_cross_entropy_over_what_can_be_drafted(
    target: Any, texts: list[Text]
) -> None:
    head = a_head(target, draft_vocab_size=20)
    batch = observe(target, texts[:3], head.config.taps)
    ids, passes = head.draft_ids, unrolled(head, batch, 2)
    assert ids is not None
    sums = []
    for step in range(2):
        losses = []
        for row, text in enumerate(texts[:3]):
            logits = target(torch.tensor([text.tokens])).logits[0]
            for position in range(text.start, len(text.tokens)):  # position of the predicted token
                slot = position - 2 - step
                p = logits[position - 1]
                if slot < 0 or int(p.argmax()) not in ids:
                    continue
                q = head.draft_logits(passes[step][row, slot]).log_softmax(-1)
                losses.append(-float((p[ids].softmax(-1) * q).sum()))
        assert losses
        sums.append(sum(losses) / len(losses))
    expected = (sums[0] + 0.8 * sums[1]) / 1.8
    assert float(eagle_loss(head, batch, 2)) == pytest.approx(expected, rel=1e-4)


def test_a_head_learns_what_its_target_says(target: Any, texts: list[Text], tmp_path: Path) -> None:
    """Deeper draft tokens improve too, and a finished run is loaded instead of repeated."""
    settings = TrainingSettings(60, lr=5e-3, warmup_steps=10, decay_steps=30)

    def run(name: str) -> tuple[EagleHead, list[float]]:
        head = new_head(target, None, seed=0)
        batches = observed_batches(
            target, {"all": texts}, head.config.taps, seed=0, tokens_per_batch=256
        )
        losses = fit(head, loss_of(PASSES), batches, settings, checkpoint=tmp_path / name)
        return head, losses

    untrained = acceptance_by_depth(new_head(target, None, seed=0), target, texts, PASSES)
    head, losses = run("whole.pt")
    assert losses[-1] < losses[0]
    found = acceptance_by_depth(head.eval(), target, texts, PASSES)
    assert all(after > before + 0.1 for before, after in zip(untrained, found, strict=True))
    again, same = run("whole.pt")
    assert same == losses
    for one, other in zip(head.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_loss_that_is_no_number_keeps_the_last_good_weights(
    target: Any, texts: list[Text], tmp_path: Path
) -> None:
    head, checkpoint = new_head(target, None, seed=0), tmp_path / "head.pt"
    good = observed_batches(target, {"all": texts}, head.config.taps, seed=0)

    def batches(step: int) -> Any:
        batch = good(step)
        if step == 2:
            batch.states.fill_(float("nan"))
        return batch

    with pytest.raises(DraftwiseError, match="no number at step 2"):
        fit(head, loss_of(2), batches, TrainingSettings(5), checkpoint=checkpoint)
    kept = torch.load(checkpoint, weights_only=True)
    assert len(kept["losses"]) == 2
    assert all(weights.isfinite().all() for weights in kept["model"].values())


def test_what_the_target_said_is_kept(target: Any, texts: list[Text], tmp_path: Path) -> None:
    """The target's outputs are cached by data set, so that several heads can learn from one."""
    taps, options = (0, 1, 2), {"seed": 0, "tokens_per_batch": 128}
    lessons = {"one": texts[:4], "two": texts[4:]}
    asked = observed_batches(target, lessons, taps, keep=tmp_path, **options)
    first = [asked(step) for step in range(12)]
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}
    again = observed_batches(tiny_model(seed=9), lessons, taps, keep=tmp_path, **options)
    for step, batch in enumerate(first):
        kept = again(step)
        assert torch.equal(kept.tokens, batch.tokens)
        assert torch.allclose(kept.states, batch.states, atol=1e-2)
        assert torch.allclose(kept.last, batch.last, atol=1e-2)
        assert torch.equal(kept.best, batch.best)


def test_states_that_float16_cannot_hold_are_kept_in_bfloat16() -> None:
    """Gemma 3's exceed 65,504: as infinity they made the loss NaN in the second epoch."""
    small, large = torch.tensor([1.0, 0.1]), torch.tensor([1.0, 90_000.0])
    assert halved(small, torch.float32).equal(small.half())
    assert halved(large, torch.float32).equal(large.bfloat16())
    assert halved(small.bfloat16().float(), torch.bfloat16).float().equal(small.bfloat16().float())


def test_the_draft_vocabulary_is_what_is_said_most() -> None:
    texts = [Text((9, 9, 9, 5, 5, 3), 1), Text((0, 5, 7), 2)]
    assert draft_vocabulary(texts, 4, 10).tolist() == [3, 5, 7, 9]
    assert draft_vocabulary(texts, 6, 10).tolist() == [0, 1, 3, 5, 7, 9]
    assert draft_vocabulary(texts, 10, 10) is None


def test_logits_of_some_tokens_are_those_of_all(target: Any, texts: list[Text]) -> None:
    batch, ids = observe(target, texts[:3], (0, 1, 2)), torch.tensor([3, 9, 40])
    assert torch.allclose(batch.logits(ids), batch.logits()[:, ids], atol=1e-5)
    assert torch.equal(batch.logits().argmax(-1), batch.best)


def test_a_lent_head_learns_without_touching_what_it_was_lent(
    target: Any, texts: list[Text], tmp_path: Path
) -> None:
    """Shared rows are neither trained nor stored; with a regression loss on the states."""
    ids = draft_vocabulary(texts, 40, target.config.vocab_size)
    head = new_head(target, ids, seed=0, lends=True)
    assert head.lent_rows is not None
    before = head.lent_rows.get_parameter("weight").clone()
    batches = observed_batches(
        target, {"all": texts}, head.config.taps, seed=0, tokens_per_batch=256
    )
    losses = fit(head, loss_of(2, regression=0.5), batches, TrainingSettings(20, 5e-3, 2, 10))
    assert losses[-1] < losses[0]
    assert torch.equal(head.lent_rows.get_parameter("weight"), before)
    batch, passes = batches(0), 2
    plain = eagle_loss(head, batch, passes)
    assert eagle_loss(head, batch, passes, regression=1.0) > plain
    for layout in ("authors", "speculators"):
        save_head(head, tmp_path / layout, layout=layout)
        again = load_head(tmp_path / layout, CausalModel(target, "target"))
        assert (again.lent_rows is None) == (layout == "speculators")
        assert torch.allclose(eagle_loss(again, batch, passes), plain, atol=1e-5)
    stored = load_file(tmp_path / "authors" / "model.safetensors")
    assert "lm_head.weight" not in stored
    config = tmp_path / "authors" / "config.json"
    config.write_text(config.read_text().replace("lm_head_from_target", "something_else"))
    with pytest.raises(DraftwiseError, match=r"lacks lm_head\.weight"):
        load_head(tmp_path / "authors", CausalModel(target, "target"))


def test_a_new_head_fits_its_target() -> None:
    qwen = tiny_model("qwen3")
    head = new_head(qwen, torch.arange(0, 64, 2), seed=0)
    assert head.draft_ids is not None
    assert head.draft_ids.tolist() == list(range(0, 64, 2))
    assert head.embed_tokens is None
    assert head.config.rope_parameters["rope_theta"] == qwen.config.rope_parameters["rope_theta"]


def test_a_new_head_has_one_rope_of_a_target_that_has_two() -> None:
    gemma = tiny_model("gemma3-mixed")
    kinds = gemma.config.rope_parameters
    assert kinds["sliding_attention"]["rope_theta"] != kinds["full_attention"]["rope_theta"]
    assert new_head(gemma, None, seed=0).config.rope_parameters == kinds["sliding_attention"]
    assert rope_of({}, gemma.config) == kinds["sliding_attention"]
