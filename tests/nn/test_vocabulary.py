"""Drafters whose logits are padded to another size than the target's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cli.models_on_disk import VOCAB, make_target, save_model
from draftwise import DraftwiseError, Speculator
from draftwise.nn.load import load_model
from draftwise.nn.sampling import Shared
from draftwise.pool import load_drafters
from models import near_copy

SIZES = {"target": VOCAB + 7, "longer": VOCAB + 15, "shorter": VOCAB + 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models with one tokenizer; the drafters' padding rows have the largest logits."""
    folder, target = tmp_path_factory.mktemp("padded"), make_target()
    for name, size in SIZES.items():
        module = near_copy(target, 0.02)
        module.resize_token_embeddings(size, mean_resizing=False)
        with torch.no_grad():
            module.lm_head.weight[VOCAB:] = 0.0 if name == "target" else 9.0
        save_model(folder / name, module)
    return folder


@pytest.mark.parametrize("name", ["longer", "shorter"])
@pytest.mark.parametrize("comes_as", ["folder", "module"])
def test_padding_is_never_drafted(home: Path, name: str, comes_as: str) -> None:
    folder = home / name
    drafter = (
        f"lm:{folder}" if comes_as == "folder" else AutoModelForCausalLM.from_pretrained(folder)
    )
    made = Speculator.from_pretrained(home / "target", [drafter], policy="fixed:1", lengths=(3,))
    plain = Speculator.from_pretrained(home / "target", [], preset="plain")
    options = {"max_new_tokens": 30, "ignore_eos": True}
    found = made.generate("a text of bytes", **options)
    assert found.tokens == plain.generate("a text of bytes", **options).tokens
    assert found.stats.num_accepted > 0.5 * found.stats.num_drafted
    # the text may contain a token that only the target has a row for
    odd = [3, SIZES["target"] - 1, 4, 5]
    assert made.generate(odd, **options).tokens == plain.generate(odd, **options).tokens


def test_q_is_normalised_over_what_is_shared() -> None:
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    for size in (7, 12):
        found = Shared(5, 9, size).spread(logits).softmax(-1)
        assert found.shape == (2, size)
        assert torch.allclose(found[:, :5], logits[:, :5].softmax(-1))
        assert not found[:, 5:].any()
    assert Shared(5, 9, 9).spread(logits) is logits


def test_without_tokenizers_sizes_must_be_equal(home: Path) -> None:
    target = load_model(home / "target")
    stray = make_target(vocab_size=VOCAB + 15)
    with pytest.raises(DraftwiseError, match="no two tokenizers to tell whether that is padding"):
        load_drafters([stray], target, str(home / "target"), dtype="auto", device="cpu")
