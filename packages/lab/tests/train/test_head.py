"""Acceptance heads: labels by hand, the weighted loss, resuming, calibration, products."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwise.types import DraftwiseError
from draftwise_lab.train.answers import answers
from draftwise_lab.train.data import Text
from draftwise_lab.train.head import (
    AcceptanceHead,
    Judged,
    Judgements,
    LabelledChains,
    Setting,
    binary_kl,
    distributions_of,
    draft_chains,
    judge,
    judge_texts,
    make_head,
    measure_head,
    plot_reliability,
    reliability,
    train_head,
    unweighted,
    weighted_bce,
)
from draftwise_lab.train.options import HeadOptions
from models import near_copy, tiny_model
from small_disk import files_of_at_most

TARGET = tiny_model()
DRAFTER = near_copy(TARGET, 0.2)
TEXTS = [Text(tuple((7 * i + 3 * j) % 60 + 1 for j in range(20)), 4) for i in range(24)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def judged(temperature: float = 1.0, mixing: float = 0.25, num: int = 24) -> Judgements:
    generator = torch.Generator().manual_seed(0)
    return judge(Setting(TARGET, DRAFTER, temperature, mixing), TEXTS[:num], generator)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_labels_and_states_are_those_of_the_drawn_tokens(temperature: float) -> None:
    """Recomputed by hand for one text: its draws, ratios, overlaps and the state of each draw."""
    generator = torch.Generator().manual_seed(0)
    found = judge(Setting(TARGET, DRAFTER, temperature, 0.25), TEXTS[:1], generator)
    generator = torch.Generator().manual_seed(0)
    text = torch.tensor([TEXTS[0].tokens])
    with torch.inference_mode():
        p, q = (
            distributions_of(model(text).logits[0, 3:-1], temperature)
            for model in (TARGET, DRAFTER)
        )
        drawn = torch.multinomial(q, 1, generator=generator)[:, 0]
        kept = torch.rand(16, generator=generator) >= 0.25
        mixed = text.clone()
        mixed[0, 4:][kept] = drawn[kept]
        hidden = DRAFTER(mixed, output_hidden_states=True).hidden_states[-1][0, 4:]
    pairs = zip(drawn.tolist(), kept.tolist(), strict=True)
    ratios = [min(1.0, float(p[i, y] / q[i, y])) for i, (y, is_kept) in enumerate(pairs) if is_kept]
    assert found.sampled.tolist() == pytest.approx(ratios, abs=1e-4)
    overlaps = torch.minimum(p, q).sum(-1)[kept]
    assert torch.allclose(found.analytic, overlaps, atol=1e-5)
    assert torch.allclose(found.hidden.float(), hidden[kept], atol=1e-2)
    if temperature == 0:
        assert set(found.sampled.tolist()) <= {0.0, 1.0}
        assert torch.equal(found.sampled, found.analytic)


def test_both_labels_have_the_same_mean() -> None:
    """E_{Y ~ q} min(1, p(Y)/q(Y)) = sum_v min(p, q): labels differ by draw, not their mean."""
    setting = Setting(TARGET, DRAFTER, temperature=1.0, mixing=0.0)
    draws = [judge(setting, TEXTS, torch.Generator().manual_seed(seed)) for seed in range(40)]
    sampled = torch.stack([found.sampled for found in draws]).mean()
    assert float(sampled) == pytest.approx(float(draws[0].analytic.mean()), abs=0.01)


def test_the_share_of_the_target_s_tokens_is_not_judged() -> None:
    assert len(judged(mixing=0.0)) == 24 * 16
    assert len(judged(mixing=0.25)) == pytest.approx(0.75 * 24 * 16, rel=0.1)


def test_the_loss_by_hand() -> None:
    """Labels 0.9 and 0.2, odds 0 and ln 3 (so 0.5 and 0.75), rejections three times as heavy."""

    class Odds(torch.nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden[:, 0]

    hidden = torch.tensor([[0.0], [math.log(3)]])
    expected = [
        -0.9 * math.log(0.5) - 3 * 0.1 * math.log(0.5),
        -0.2 * math.log(0.75) - 3 * 0.8 * math.log(0.25),
    ]
    loss = weighted_bce(Odds(), (hidden, torch.tensor([0.9, 0.2])), 3.0)
    assert float(loss) == pytest.approx(sum(expected) / (0.9 + 0.3 + 0.2 + 2.4), rel=1e-5)


@pytest.mark.parametrize("w_rej", [1.0, 6.0])
def test_the_weight_makes_heads_doubt_and_can_be_undone(w_rej: float) -> None:
    """With uninformative states the best constant has odds P / (w (1 - P))."""
    data = Judgements(torch.zeros(64, 4), torch.full((64,), 0.8), torch.full((64,), 0.8))
    head = train_head(data, HeadOptions(0, w_rej, epochs=300, lr=0.05))
    odds = head(torch.zeros(1, 4)).detach().double().numpy()
    assert float(np.exp(odds[0])) == pytest.approx(4 / w_rej, rel=0.03)
    assert unweighted(odds, w_rej)[0] == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("tied", [False, True])
def test_training_learns_and_tied_layers_stay_one(tied: bool) -> None:
    data = judged()
    head = train_head(data, HeadOptions(2, 1.0, "sampled", tied, epochs=250, lr=1e-2))
    odds = head(data.hidden.float()).detach().double().numpy()
    truth = data.sampled.double().numpy()
    constant = np.full_like(truth, truth.mean())
    assert binary_kl(truth, unweighted(odds, 1.0)) < 0.8 * binary_kl(truth, constant)
    assert len(list(head.parameters())) == (4 if tied else 6)


@pytest.mark.parametrize("stop_at", [1, 7])
def test_an_interrupted_run_gives_the_weights_of_one_that_was_not(
    stop_at: int, tmp_path: Path
) -> None:
    data, options, file = judged(), HeadOptions(2, 6.0, epochs=2), tmp_path / "run.pt"
    whole = train_head(data, options)
    train_head(data, options, checkpoint=file, stop_at=stop_at)
    resumed = train_head(data, options, checkpoint=file)
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_weights(tmp_path: Path) -> None:
    data, options, file = judged(), HeadOptions(1, 6.0, epochs=2), tmp_path / "run.pt"
    train_head(data, options, checkpoint=file, stop_at=5)
    good = torch.load(file, weights_only=True)["model"]
    broken = replace(data, analytic=torch.full_like(data.analytic, math.nan))
    with pytest.raises(DraftwiseError, match=r"no number at step 5 .*are kept in .*run.pt"):
        train_head(broken, options, checkpoint=file)
    kept = torch.load(file, weights_only=True)
    assert len(kept["losses"]) == 5
    assert all(torch.equal(good[name], kept["model"][name]) for name in good)


def test_a_full_disk_is_said_and_costs_nothing_that_was_kept(tmp_path: Path) -> None:
    """A limit on the file size simulates the full disk."""
    data, options, file = judged(), HeadOptions(2, 6.0, epochs=2), tmp_path / "run.pt"
    train_head(data, options, checkpoint=file, stop_at=3)
    before = file.read_bytes()
    with (
        files_of_at_most(4096),
        pytest.raises(DraftwiseError, match=r"cannot be written .*make room, and give"),
    ):
        train_head(data, options, checkpoint=file)
    assert file.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))
    train_head(data, options, checkpoint=file)  # there is room again


def test_the_divergence_by_hand() -> None:
    truth, predicted = np.array([1.0, 0.25]), np.array([0.5, 0.5])
    expected = (math.log(2) + 0.25 * math.log(0.5) + 0.75 * math.log(1.5)) / 2
    assert binary_kl(truth, predicted) == pytest.approx(expected)
    assert binary_kl(truth, truth) == pytest.approx(0.0, abs=1e-5)


def test_calibration_by_hand(tmp_path: Path) -> None:
    """Three predictions near 0.1, true 0.5, and one of 0.9, true 1: (3 * 0.4 + 0.1) / 4."""
    found = reliability(np.array([0.5, 0.5, 0.5, 1.0]), np.array([0.1, 0.1, 0.1, 0.9]))
    assert found.ece == pytest.approx((3 * 0.4 + 0.1) / 4)
    assert found.counts.tolist() == [0, 3, 0, 0, 0, 0, 0, 0, 0, 1]
    plot_reliability({"as trained": found}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_chains_are_drafts_and_stand_where_the_models_agree() -> None:
    """If both models are the same, every draft is accepted; states are of the draft's tokens."""
    found = draft_chains(Setting(TARGET, TARGET), TEXTS, length=3, num_chains=8)
    assert found.truth.shape == (8, 3)
    assert found.hidden.shape == (8, 3, 32)
    assert torch.allclose(found.truth, torch.ones(8, 3), atol=1e-4)
    truth = draft_chains(Setting(TARGET, DRAFTER), TEXTS, length=3, num_chains=8).truth
    assert 0 < truth.min() < truth.max() <= 1


def test_the_bias_of_products_by_hand() -> None:
    """A head that always predicts 0.5, on drafts with acceptance 0.8 and 0.5 per token."""
    head = AcceptanceHead(2, 0)
    with torch.no_grad():
        for weights in head.parameters():
            weights.zero_()
    some = Judgements(torch.zeros(4, 2), torch.full((4,), 0.8), torch.full((4,), 0.8))
    chains = LabelledChains(torch.zeros(1, 2, 2), torch.tensor([[0.8, 0.5]]))
    numbers = measure_head(Judged(some, some, chains), head, 1.0).numbers
    assert numbers["product_bias"] == pytest.approx([0.5 - 0.8, 0.25 - 0.4])


def test_answers_go_on_where_they_stopped(tmp_path: Path) -> None:
    prompts = [[1, 2 + i] for i in range(6)]

    def run(path: Path, num: int) -> list[Text]:
        return answers(
            TARGET, prompts[:num], [1.0] * num, path, max_new_tokens=5, eos_token_id=-1, seed=0,
            rows=2,
        )  # fmt: skip

    run(tmp_path / "a.json", 4)
    assert run(tmp_path / "a.json", 6) == run(tmp_path / "b.json", 6)


def test_the_whole_path_is_resumable_and_measured(tmp_path: Path) -> None:
    setting = Setting(TARGET, DRAFTER)
    first = judge_texts(setting, TEXTS, tmp_path / "judged")
    again = judge_texts(setting, TEXTS, tmp_path / "judged")
    assert torch.equal(first.taught.hidden, again.taught.hidden)
    assert len(first.taught) > 5 * len(first.held_out) > 0
    found = make_head(setting, first, HeadOptions(1, 3.0, epochs=5), tmp_path / "head")
    assert (tmp_path / "head" / "model.safetensors").exists()
    assert len(found.numbers["product_bias"]) == 8
    assert set(found.curves) == {"as trained", "without the weight"}
    with pytest.raises(DraftwiseError, match="give more prompts"):
        judge_texts(setting, TEXTS[:1], tmp_path / "few")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "x"}, "sampled, analytic"),
        ({"w_rej": 0.0}, "above 0"),
        ({"epochs": 0}, "above"),
    ],
)
def test_nonsense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, DraftwiseError), match=message):
        HeadOptions(**options)  # type: ignore[arg-type]
