"""Losslessness, level 1: at temperature 0 the tokens are those of plain ``model.generate``.

Method: the matrix covers the registry's tables, so one line there adds a new policy, stop rule,
feedback, reward or drafter. fp32 on one thread; in lower precision, kernels of different widths
round differently and near-ties may flip, so identity is promised for fp32 only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from draftwise.engine.loop import Loop
from draftwise.engine.request import RoundState
from draftwise.errors import DraftwiseError
from draftwise.nn.cache import RaggedCache
from draftwise.registry import FEEDBACKS, POLICIES, REWARDS, STOP_RULES
from draftwise.speculator import Speculator
from draftwise.types import TreeShape
from engine.pairs import BUDGETS, INSIDE, POOLS, PROMPTS, plain_greedy, spec, speculator, target
from models import CONFIGS


def assert_greedy(speculator: Speculator, num_rows: int, kind: str = "llama") -> None:
    """All rows of a batch, or the first prompt alone, get the target's greedy tokens."""
    prompts, budgets = PROMPTS[:num_rows], BUDGETS[:num_rows]
    results = speculator.generate(prompts, max_new_tokens=budgets)
    expected = [plain_greedy(p, n, kind) for p, n in zip(prompts, budgets, strict=True)]
    assert [result.tokens for result in results] == expected
    assert [result.finish_reason for result in results] == ["length"] * num_rows


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_on_every_pool(policy: str, pool: str) -> None:
    feedback = "panoramic" if "hedge" in policy else "free"
    made = speculator(POOLS[pool], spec(POLICIES, policy), feedback=feedback)
    assert_greedy(made, 4 if len(POOLS[pool]) > 1 else 1)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("stop_rule", STOP_RULES)
def test_every_stop_rule_on_every_pool(stop_rule: str, pool: str, num_rows: int) -> None:
    rules = {"rules": (spec(STOP_RULES, stop_rule),), "lengths": (2, 7), "with_none": False}
    if stop_rule == "head" and pool in ("lookup", "suffix", *INSIDE):
        with pytest.raises(DraftwiseError, match="no drafter here has any"):
            speculator(POOLS[pool], **rules)
    else:
        assert_greedy(speculator(POOLS[pool], **rules), num_rows)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize(("feedback", "reward"), [*itertools.product(FEEDBACKS, REWARDS)])
def test_every_feedback_with_every_reward(feedback: str, reward: str, num_rows: int) -> None:
    made = speculator(
        POOLS["all"],
        "exp3spec",
        feedback=spec(FEEDBACKS, feedback),
        reward=spec(REWARDS, reward),
    )
    assert_greedy(made, num_rows)


@pytest.mark.parametrize("options", ["every=3", "delay=0", "per_token=true", "warmup=2,hybrid=3"])
def test_panoramic_options(options: str) -> None:
    assert_greedy(speculator(POOLS["all"], "hedge", feedback=f"panoramic:{options}"), 4)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("pool", ["all", *INSIDE])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_of_model(kind: str, pool: str, num_rows: int) -> None:
    made = speculator(POOLS[pool], kind=kind, feedback="panoramic")
    assert_greedy(made, num_rows, kind)


@pytest.mark.parametrize("length", [1, 2, 16])
def test_every_length_of_draft(length: int) -> None:
    """A draft never extends past the answer's last token, however long drafts may be."""
    assert_greedy(speculator(["good"], "fixed:1", lengths=(length,)), 4)


TREES = [TreeShape(1, 4), TreeShape(2, 3), TreeShape(4, 16), TreeShape(8, 40)]


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("pool", ["good", "bad", "suffix", "all", "eagle"])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_every_shape_of_tree(tree: TreeShape, pool: str, num_rows: int) -> None:
    made = speculator(POOLS[pool], lengths=(1, 5), trees=(tree,), with_none=False)
    assert_greedy(made, num_rows)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("pool", ["good", "suffix", "all", "eagle"])
@pytest.mark.parametrize("trees", [(TREES[2],), (None, *TREES[1:])], ids=["trees", "both"])
def test_goodput_prices_trees(
    trees: tuple[TreeShape | None, ...], pool: str, num_rows: int
) -> None:
    made = speculator(POOLS[pool], "goodput", lengths=(1, 5), trees=trees)
    for _ in range(2):
        assert_greedy(made, num_rows)


@pytest.mark.parametrize("kind", CONFIGS)
def test_trees_and_chains_in_one_batch_on_every_kind_of_model(kind: str) -> None:
    made = speculator(
        [*POOLS["all"], "eagle"],
        kind=kind,
        feedback="panoramic",
        lengths=(4,),
        trees=(None, *TREES[1:]),
    )
    assert_greedy(made, 4, kind)


@pytest.mark.parametrize("trees", [(None,), (TreeShape(3, 9),)], ids=["chain", "tree"])
def test_repetition_penalty(trees: tuple[TreeShape | None, ...]) -> None:
    made = speculator(POOLS["all"], feedback="panoramic", trees=trees)
    results = made.generate(PROMPTS, max_new_tokens=20, repetition_penalty=1.4)
    expected = [plain_greedy(prompt, 20, penalty=1.4) for prompt in PROMPTS]
    assert [result.tokens for result in results] == expected
    assert expected != [plain_greedy(prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("kind", ["stop_token_ids", "eos_token_ids"])
def test_every_pool_ends_with_a_token(kind: str, pool: str, num_rows: int) -> None:
    prompts = PROMPTS[:num_rows]
    plain = [plain_greedy(prompt, 24) for prompt in prompts]
    end = plain[0][7]
    results = speculator(POOLS[pool]).generate(prompts, max_new_tokens=24, **{kind: end})
    cut = [t[: t.index(end) + 1] if end in t else t for t in plain]
    assert [result.tokens for result in results] == cut


def test_scope_session_shares_what_was_learned_and_changes_no_token() -> None:
    made = speculator(POOLS["all"], "ucb1", scope="session")
    for _ in range(2):
        assert_greedy(made, 4)


def test_teeth_rejected_tokens_left_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: after a rejection the cache is cropped one token too late."""
    commit = Loop._commit

    def crop_too_late(self: Loop, turn: RoundState) -> None:
        fed = self._cache.lengths[turn.row]
        commit(self, turn)
        self._cache.lengths[turn.row] = min(fed, self._cache.lengths[turn.row] + 1)

    monkeypatch.setattr(Loop, "_commit", crop_too_late)
    with pytest.raises(AssertionError):
        assert_greedy(speculator(["bad"], "fixed:1", lengths=(3,)), 1)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_tiny_models_read_far_back(kind: str) -> None:
    """Without long-range attention the matrix would not detect wrong caches, masks or positions."""
    texts = torch.randint(0, 64, (100, 20), generator=torch.Generator().manual_seed(0))
    changed = texts.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 64
    with torch.inference_mode():
        before, after = (target(kind).module(input_ids=t).logits[:, -1] for t in (texts, changed))
    assert (before.argmax(-1) != after.argmax(-1)).float().mean() > 0.15


def test_teeth_an_accepted_path_left_where_the_tree_was_fed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted bug: the cache is cut to the accepted path's length without moving the path there."""

    def cut_only(self: RaggedCache, row: int, base: int, path: Sequence[int]) -> None:
        self.lengths[row] = base + len(path)

    monkeypatch.setattr(RaggedCache, "keep_path", cut_only)
    with pytest.raises(AssertionError):
        assert_greedy(speculator(["bad"], "fixed:1", lengths=(3,), trees=(TreeShape(8, 40),)), 1)


def test_what_plays_every_plan_is_for_the_simulator() -> None:
    with pytest.raises(DraftwiseError, match=r"policy draft-all plays every plan .* simulator"):
        speculator(POOLS["all"], "draft-all", lengths=(3,))
