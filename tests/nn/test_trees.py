"""Trees on the ragged cache: every node's logits are those of its own path alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MptConfig

from draftwise.nn import attention as sight
from draftwise.nn.attention import branches, draft_branches, tree_masks
from draftwise.nn.check import check_model
from draftwise.nn.model import CausalModel
from draftwise.types import Draft
from models import CONFIGS, VOCAB, tiny_model

KINDS = pytest.mark.parametrize("kind", sorted(CONFIGS))
ATTENTION = pytest.mark.parametrize("attention", ["sdpa", "eager"])
TEXTS = (20, 14, 30)  # longer than the sliding windows of the tiny models
PARENTS: list[list[int]] = [[-1, 0, 0, 1, 1, 3], [-1, 0, 1], [-1, 0, 0, 2]]


pytestmark = pytest.mark.usefixtures("without_gradients")


def tokens(seed: int, *lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(0, VOCAB, length).tolist() for length in lengths]


def path_to(node: int, parents: list[int]) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def error(module: Any, text: list[int], logits: torch.Tensor) -> float:
    """Difference relative to the largest logit of a plain forward of this text."""
    plain = module(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
    return float((plain - logits).abs().max() / plain.abs().max())


def node_errors(model: CausalModel, feeds: list[list[int]]) -> list[float]:
    """Errors of each node of trees in a ragged batch, after texts with cropped garbage."""
    texts, fed = tokens(1, *TEXTS), tokens(2, *map(len, PARENTS))
    cache = model.new_cache(len(texts), 60)
    model.extend(cache, [0, 1, 2], texts, keep=1)
    model.extend(cache, [0, 1, 2], tokens(3, 5, 2, 4), keep=1)
    cache.lengths = list(TEXTS)
    errors = []
    for row, parents in enumerate(PARENTS):
        done = 0
        for width in feeds[row]:
            whole = branches(parents[: done + width], TEXTS[row])
            tree = replace(whole, seen=whole.seen[done:])
            chunk = fed[row][done : done + width]
            logits = model.extend(cache, [row], [chunk], keep=9, trees=[tree])
            for node in range(done, done + width):
                text = texts[row] + [fed[row][k] for k in path_to(node, parents)]
                errors.append(error(model.module, text, logits.flat[node - done]))
            done += width
    return errors


@KINDS
@ATTENTION
def test_every_node_reads_its_own_path(kind: str, attention: str) -> None:
    model = CausalModel(tiny_model(kind, attention=attention), kind)
    assert max(node_errors(model, [[6], [3], [4]])) < 1e-5


@KINDS
def test_a_tree_may_be_fed_level_by_level(kind: str) -> None:
    model = CausalModel(tiny_model(kind), kind)
    assert max(node_errors(model, [[1, 2, 2, 1], [1, 1, 1], [3, 1]])) < 1e-5


@KINDS
@ATTENTION
def test_a_batch_of_trees_and_chains_and_the_path_that_is_kept(kind: str, attention: str) -> None:
    model = CausalModel(tiny_model(kind, attention=attention), kind)
    texts, fed, more = tokens(1, *TEXTS), tokens(2, *map(len, PARENTS)), tokens(4, 1, 2, 1)
    cache = model.new_cache(3, 60)
    model.extend(cache, [0, 1, 2], texts, keep=1)
    trees = [branches(PARENTS[0], 20), None, branches(PARENTS[2], 30)]
    logits = model.extend(cache, [0, 1, 2], fed, keep=6, trees=trees)
    kept = [[0, 1, 3], [0], [0, 2, 3]]
    for row, path in enumerate(kept):
        for node in range(len(fed[row])):
            text = texts[row] + [fed[row][k] for k in path_to(node, PARENTS[row])]
            assert error(model.module, text, logits.last(row, len(fed[row]))[node]) < 1e-5
        cache.keep_path(row, TEXTS[row], path)
    after = model.extend(cache, [0, 1, 2], more, keep=2)
    for row, path in enumerate(kept):
        text = texts[row] + [fed[row][k] for k in path] + more[row]
        assert error(model.module, text, after.last(row, 1)[0]) < 1e-5


@pytest.mark.parametrize("bug", ["sees its siblings", "stands at its slot"])
def test_teeth(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> Any:
        queries, keys, seen = tree_masks(*args)
        if bug == "sees its siblings":
            return queries, keys, torch.arange(args[2]) <= torch.from_numpy(args[1])[:, :, None]
        return torch.from_numpy(args[1]), torch.arange(args[2]).repeat(len(args[1]), 1), seen

    monkeypatch.setattr(sight, "tree_masks", wrong)
    model = CausalModel(tiny_model(), "llama")
    assert max(node_errors(model, [[6], [3], [4]])) > 1e-3


def test_teeth_a_path_that_is_not_moved() -> None:
    model = CausalModel(tiny_model(), "llama")
    texts, fed = tokens(1, 20), tokens(2, 4)
    cache = model.new_cache(1, 60)
    model.extend(cache, [0], texts, keep=1)
    model.extend(cache, [0], fed, keep=4, trees=[branches([-1, 0, 0, 2], 20)])
    cache.lengths = [23]
    after = model.extend(cache, [0], [[7]], keep=1)
    text = texts[0] + [fed[0][k] for k in (0, 2, 3)] + [7]
    assert error(model.module, text, after.last(0, 1)[0]) > 1e-3


def test_chains_and_trees_are_told_apart() -> None:
    def of(parents: list[int] | None) -> Any:
        tokens = np.arange(3)
        return draft_branches(
            Draft(tokens, parents=None if parents is None else np.array(parents)), 9
        )

    assert of(None) is None
    assert of([-1, 0, 1]) is None
    assert of([-1, -1, 0]).positions.tolist() == [9, 10, 10, 11]


def test_the_self_check_marks_a_model_that_serves_chains_only() -> None:
    """MPT counts its ALiBi distances by slot: right for chains, wrong for branches."""
    config = MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=64, max_seq_len=128)
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model = CausalModel(module, "mpt")
    check_model(model)
    assert not model.serves_trees
