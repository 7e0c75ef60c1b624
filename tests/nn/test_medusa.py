"""Medusa heads: the authors' files load key by key, and drafts are the heads' argmaxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwise.drafters import Context, DraftTask
from draftwise.nn import CausalModel, distributions, load_medusa_heads
from draftwise.speculator import Speculator
from draftwise.stop_rules import Fixed
from draftwise.types import DraftwiseError, SamplingParams
from eagles import features_of
from engine.pairs import PROMPTS, eagle_target, medusa, plain_greedy, reader, speculator
from sessions import opened

SIZE, VOCAB = 32, 64


def weights(num_heads: int, num_layers: int) -> dict[str, Tensor]:
    """A checkpoint with the authors' names."""
    torch.manual_seed(0)
    found = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            found[f"{head}.{layer}.linear.weight"] = 0.2 * torch.randn(SIZE, SIZE)
            found[f"{head}.{layer}.linear.bias"] = 0.2 * torch.randn(SIZE)
        found[f"{head}.{num_layers}.weight"] = 0.3 * torch.randn(VOCAB, SIZE)
    return found


def write(
    folder: Path, stored: dict[str, Tensor], num_heads: Any, num_layers: Any, suffix: str = "pt"
) -> Path:
    folder.mkdir(exist_ok=True)
    config = {
        "medusa_num_heads": num_heads,
        "medusa_num_layers": num_layers,
        "base_model_name_or_path": "some/target",
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    file = folder / f"medusa_lm_head.{suffix}"
    if suffix == "pt":
        torch.save(stored, file)
    else:
        save_file(stored, file)
    return folder


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("counted", [2, 3])
def test_heads_load_and_say_what_their_formula_says(
    tmp_path: Path, counted: int, num_layers: int, suffix: str
) -> None:
    """Published files hold more heads than their configuration states: all are loaded."""
    stored = weights(3, num_layers)
    heads = load_medusa_heads(
        write(tmp_path, stored, counted, num_layers, suffix), eagle_target("llama", 64)
    )
    assert len(heads) == 3
    states = torch.randn(5, SIZE)
    found = heads.logits(states, 2)
    assert found.shape == (2, 5, VOCAB)
    for head in range(2):
        x = states
        for layer in range(num_layers):
            y = (
                x @ stored[f"{head}.{layer}.linear.weight"].T
                + stored[f"{head}.{layer}.linear.bias"]
            )
            x = x + y * torch.sigmoid(y)
        assert torch.allclose(found[head], x @ stored[f"{head}.{num_layers}.weight"].T, atol=1e-5)


@pytest.mark.parametrize(
    ("gone", "new", "complaint"),
    [
        (["1.0.linear.bias"], {}, r"lacks '1\.0\.linear\.bias'"),
        (["0.1.weight"], {}, r"lacks '0\.1\.weight'"),
        ([], {"0.1.bias": (VOCAB,)}, r"has '0\.1\.bias', which has no place"),
        ([], {"blocks.0.weight": (3,)}, r"has 'blocks\.0\.weight', which has no place"),
        ([], {"1.0.linear.bias": (7,)}, r"linear\.bias has the shape \(7,\), and .* \(32,\)"),
        ([], {"3.1.weight": (VOCAB, SIZE)}, r"lacks '2\.0\.linear\.bias'"),
    ],
)
def test_every_key_has_its_place(
    tmp_path: Path, gone: list[str], new: dict[str, tuple[int, ...]], complaint: str
) -> None:
    stored = {name: tensor for name, tensor in weights(2, 1).items() if name not in gone}
    stored |= {name: torch.zeros(shape) for name, shape in new.items()}
    with pytest.raises(DraftwiseError, match=complaint):
        load_medusa_heads(write(tmp_path, stored, 2, 1), eagle_target("llama", 64))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"vocab_size": 80}, "target of vocabulary 64, and t has 80"),
        ({"hidden_size": 48}, "target of hidden size 32, and t has 48"),
    ],
)
def test_heads_of_another_target_are_refused_with_both_sizes(
    tmp_path: Path, changes: dict[str, int], complaint: str
) -> None:
    folder, other = write(tmp_path, weights(2, 1), 2, 1), CausalModel(reader(**changes), "t")
    with pytest.raises(DraftwiseError, match=complaint):
        load_medusa_heads(folder, other)


def test_folders_that_hold_no_heads(tmp_path: Path) -> None:
    target = eagle_target("llama", 64)
    with pytest.raises(DraftwiseError, match=r"no Medusa head in \./gone"):
        load_medusa_heads("./gone", target)
    with pytest.raises(DraftwiseError, match=r"no config\.json of a Medusa head"):
        load_medusa_heads(tmp_path, target)
    with pytest.raises(DraftwiseError, match="medusa_num_heads=None and medusa_num_layers=1"):
        load_medusa_heads(write(tmp_path, weights(1, 1), None, 1), target)
    with pytest.raises(DraftwiseError, match=r"lacks '2\.0\.linear\.bias'"):
        load_medusa_heads(write(tmp_path, weights(2, 1), 3, 1), target)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"nonsense")
    with pytest.raises(DraftwiseError, match="cannot be read as weights"):
        load_medusa_heads(tmp_path, target)
    (tmp_path / "medusa_lm_head.pt").unlink()
    with pytest.raises(DraftwiseError, match=r"neither medusa_lm_head\.safetensors nor"):
        load_medusa_heads(tmp_path, target)


@pytest.mark.parametrize(
    ("options", "plans"),
    [("", ["medusax2", "medusax3"]), (",depth=2", ["medusax2"]), (",depth=9", None)],
)
def test_a_spec_drafts_one_token_a_head_at_most(
    tmp_path: Path, options: str, plans: list[str] | None
) -> None:
    folder = write(tmp_path, weights(3, 1), 3, 1)
    made = Speculator.from_pretrained(
        reader(), [f"medusa:{folder}{options}"], preset="metasd", lengths=[2, 6]
    )
    assert [str(plan) for plan in made.plans] == (plans or ["medusax2", "medusax3"])
    assert made.generate(PROMPTS[0], max_new_tokens=8).tokens == plain_greedy(PROMPTS[0], 8)
    with pytest.raises(DraftwiseError, match="depth is 0: it must be a whole number from 1"):
        Speculator.from_pretrained(reader(), [f"medusa:{folder},depth=0"])


@torch.inference_mode()
def test_q_is_what_each_head_says_of_the_last_state() -> None:
    """The q of draft position i is head i's at the last state; head 0 scores the text."""
    target, drafter = eagle_target("llama", 64), medusa()
    sampling = SamplingParams(0.8, 20, 0.95, 1.3)
    text = PROMPTS[2] + plain_greedy(PROMPTS[2], 10)
    context = Context(0, text, sampling, np.random.default_rng(0))
    context.features = features_of(target, text)
    context.remember(1, [torch.full((64,), 1 / 64)] * (len(text) - 1))
    session = opened(drafter, [context])
    (draft,) = session.propose([DraftTask(context, 6, Fixed())])
    states = target.module(
        input_ids=torch.tensor([text[:-1]]), output_hidden_states=True
    ).hidden_states[-1][0]
    tokens = draft.tokens.tolist()
    assert len(tokens) == 4
    for head in range(4):
        logits = drafter.heads[head](states[-1:])
        (q,) = distributions(logits, sampling, [*text, *tokens[:head]], [])
        assert np.allclose(draft.q(head), q, atol=1e-5)
    (scores,) = session.score([context], everything=True)
    assert scores is not None
    assert (scores.start, len(scores.alphas)) == (2, len(text) - 2)
    logits = drafter.heads[0](states[:-1])
    for place, row in enumerate(logits, 2):
        (q,) = distributions(row[None], sampling, text[:place], [])
        expected = np.minimum(q, 1 / 64).sum()
        assert scores.alphas[place - 2] == pytest.approx(expected, abs=1e-5)


def test_taught_heads_draft_what_is_kept() -> None:
    """Heads that were off by one position would be lossless but useless."""
    made = speculator(["medusa"], "fixed:0", lengths=(4,), with_none=False)
    result = made.generate(PROMPTS[0], max_new_tokens=24)
    assert result.tokens == plain_greedy(PROMPTS[0], 24)
    assert result.stats.mean_accepted_tokens > 2.5
