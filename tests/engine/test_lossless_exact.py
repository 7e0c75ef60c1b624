"""Losslessness, level 2: draft and verification together have exactly the target's distribution.

Method: three tokens, models with rational probabilities, every branch of every uniform followed
(``engine.exact``), distributions compared with ``==``. A round emits a varying number of tokens, so
its distribution is compared after the target has continued each outcome to one length.

Five planted bugs must each change the distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from draftwise import Draft, verify
from draftwise.engine import verify as verify_module
from draftwise.engine.verify import draw
from engine.exact import VOCAB, Law, Model, World, completed, law, model, own_law, texts_of

Procedure = Callable[[World], tuple[int, ...]]

SEEDS = range(6)
SHAPES = {
    "two leaves": [-1, -1],
    "three leaves": [-1, -1, -1],
    "full, depth two": [-1, -1, 0, 0, 1, 1],
    "spine with twigs": [-1, -1, 0, 0, 2],
    "comb, children far from parents": [-1, 0, -1, 1, 0, 2],
}
"""Trees as the parent of each node."""


def round_law(p: Model, length: int, procedure: Procedure) -> Law:
    """The distribution of a round's tokens after the target has continued them to ``length``."""
    return completed(law(procedure), p, length)


def judged(world: World, p: Model, draft: Draft) -> tuple[int, ...]:
    """The tokens emitted when the target verifies this draft after the empty text."""
    texts = texts_of(draft)
    verdict = verify(draft, [p(text) for text in texts], world.uniforms(len(draft) + 1))
    return tuple(verdict.tokens.tolist())


def drawn_chain(
    world: World,
    q: Model,
    length: int,
    should_continue: Callable[[Any, int], bool] = lambda q, t: True,
) -> tuple[list[int], list[Any]]:
    """Tokens drawn from q in order; ``should_continue`` may end the draft after each."""
    tokens: list[int] = []
    probs: list[Any] = []
    while len(tokens) < length:
        probs.append(q(tuple(tokens)))
        tokens.append(draw(probs[-1], world.uniform()))
        if not should_continue(probs[-1], tokens[-1]):
            break
    return tokens, probs


def without_replacement(world: World, q: Any, num: int) -> tuple[list[int], list[Any]]:
    """``num`` different tokens drawn from q, each with the conditional q it was drawn from."""
    tokens: list[int] = []
    probs: list[Any] = []
    for _ in range(num):
        rest = q.copy()
        rest[tokens] = Fraction(0)
        if not rest.sum():
            break
        probs.append(rest / rest.sum())
        tokens.append(draw(probs[-1], world.uniform()))
    return tokens, probs


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_chain_of_drawn_tokens(length: int, seed: int) -> None:
    p, q = model(f"p{seed}"), model(f"q{seed}", parts=3)

    def play(world: World) -> tuple[int, ...]:
        tokens, probs = drawn_chain(world, q, length)
        return judged(world, p, Draft.chain(tokens, probs, "q"))

    assert round_law(p, length + 1, play) == own_law(p, length + 1)


def test_chain_over_the_midpoints_of_a_grid() -> None:
    """The same by brute force: all midpoints of the grid instead of intervals.

    p and q in quarters: draws fall on quarters, ratios p/q and residuals on twelfths.
    """
    p, q = model("p0"), model("q0")
    grid = [Fraction(2 * i + 1, 24) for i in range(12)]
    found: Law = {}
    for of_draft, of_accept, of_bonus in itertools.product(grid, repeat=3):
        token = draw(q(()), of_draft)
        draft = Draft.chain([token], [q(())], "q")
        verdict = verify(draft, [p(()), p((token,))], [of_accept, of_bonus])
        text = tuple(verdict.tokens.tolist())
        found[text] = found.get(text, Fraction(0)) + Fraction(1, 12**3)
    assert completed(found, p, 2) == own_law(p, 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_chain_of_point_masses(length: int, seed: int) -> None:
    """A deterministic proposal, as from retrieval; also one to which p gives no mass."""
    p = model(f"p{seed}")
    for tokens in itertools.product(range(VOCAB), repeat=length):
        draft = Draft.chain(tokens, None, "lookup")
        played = round_law(p, length + 1, lambda world, draft=draft: judged(world, p, draft))
        assert played == own_law(p, length + 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_chain_of_mixed_sources(seed: int) -> None:
    """Drawn, copied, drawn: each token is verified with its own q."""
    p, q = model(f"p{seed}"), model(f"q{seed}", parts=3)

    def play(world: World) -> tuple[int, ...]:
        first = draw(q(()), world.uniform())
        copied = (first + 1) % VOCAB
        last = draw(q((first, copied)), world.uniform())
        draft = Draft.chain([first, copied, last], [q(()), None, q((first, copied))], "mixed")
        return judged(world, p, draft)

    assert round_law(p, 4, play) == own_law(p, 4)


def branching(q: Model, p: Model, depth: int, first: bool = False) -> Procedure:
    """A drawn chain of two, and a branch of two copied tokens at ``depth`` that differs from it.

    The copied tokens depend on both drawn ones. first: the branch is verified before the chain.
    """

    def play(world: World) -> tuple[int, ...]:
        tokens, probs = drawn_chain(world, q, 2)
        copied = (tokens[depth] + 1 + (tokens[1] > 0)) % VOCAB
        if copied == tokens[depth]:
            copied = (copied + 1) % VOCAB
        branch, parent = [copied, (sum(tokens) + 1) % VOCAB], depth - 1
        if first:  # only for a branch at the root
            every, qs = [*branch, *tokens], [None, None, *probs]
            return judged(world, p, Draft(np.array(every), qs, ["x"] * 4, np.array([-1, 0, -1, 2])))
        every, qs, parents = [*tokens, *branch], [*probs, None, None], np.array([-1, 0, parent, 2])
        return judged(world, p, Draft(np.array(every), qs, ["x"] * 4, parents))

    return play


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("depth", [0, 1])
def test_branch_of_copied_tokens_chosen_by_the_drawn_ones(depth: int, seed: int) -> None:
    """After a rejection the residual is the same whichever token was drawn."""
    p, q = model(f"p{seed}"), model(f"q{seed}", parts=3)
    assert round_law(p, 3, branching(q, p, depth)) == own_law(p, 3)


def test_teeth_branch_before_the_drawn_token_on_which_it_depends() -> None:
    p, q = model("p1"), model("q1", parts=3)
    assert round_law(p, 3, branching(q, p, 0, first=True)) != own_law(p, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("least", [Fraction(1, 2), Fraction(2, 3)])
def test_stopping_after_a_kept_token_by_its_probability(least: Fraction, seed: int) -> None:
    """Ending a draft after an unlikely token is unbiased, because the token stays in the draft."""
    p, q = model(f"p{seed}"), model(f"q{seed}", parts=3)

    def play(world: World) -> tuple[int, ...]:
        tokens, probs = drawn_chain(world, q, 3, lambda q, token: q[token] >= least)
        return judged(world, p, Draft.chain(tokens, probs, "q"))

    assert round_law(p, 4, play) == own_law(p, 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_of_deterministic_children(shape: str, seed: int) -> None:
    """Children are tried in turn against what is left of p, also when two are equal."""
    p, parents = model(f"p{seed}"), SHAPES[shape]
    rng = np.random.default_rng(seed)
    for _ in range(5):
        tokens = rng.integers(0, VOCAB, len(parents))
        draft = Draft(tokens, [None] * len(parents), ["tree"] * len(parents), np.array(parents))
        played = round_law(p, 4, lambda world, draft=draft: judged(world, p, draft))
        assert played == own_law(p, 4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [2, 3])
def test_siblings_drawn_without_replacement(width: int, seed: int) -> None:
    p, q = model(f"p{seed}"), model(f"q{seed}", parts=5)

    def play(world: World) -> tuple[int, ...]:
        tokens, probs = without_replacement(world, q(()), width)
        draft = Draft(np.array(tokens), probs, ["q"] * len(tokens), np.full(len(tokens), -1))
        return judged(world, p, draft)

    assert round_law(p, 2, play) == own_law(p, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_tree_of_depth_two_drawn_without_replacement(seed: int) -> None:
    p, q = model(f"p{seed}", parts=3), model(f"q{seed}", parts=3)

    def play(world: World) -> tuple[int, ...]:
        tokens, probs = without_replacement(world, q(()), 2)
        parents = [-1] * len(tokens)
        for parent in range(len(parents)):
            more, their = without_replacement(world, q((tokens[parent],)), 2)
            tokens, probs = [*tokens, *more], [*probs, *their]
            parents += [parent] * len(more)
        draft = Draft(np.array(tokens), probs, ["q"] * len(tokens), np.array(parents))
        return judged(world, p, draft)

    assert round_law(p, 3, play) == own_law(p, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_rounds_with_a_plan_chosen_by_the_past(seed: int) -> None:
    """The second round's drafter and length depend on the tokens emitted by the first."""
    p = model(f"p{seed}", parts=3)
    drafters = [model(f"q{seed}", parts=3), model(f"r{seed}", parts=2)]

    def play(world: World) -> tuple[int, ...]:
        tokens, probs = drawn_chain(world, drafters[0], 1)
        first = judged(world, p, Draft.chain(tokens, probs, "q"))
        drafter, length = drafters[first[-1] % 2], 2 if len(first) == 1 else 1
        tokens, probs = drawn_chain(world, lambda text: drafter((*first, *text)), length)
        draft = Draft.chain(tokens, probs, "r")
        return (*first, *judged(world, lambda text: p((*first, *text)), draft))

    assert round_law(p, 4, play) == own_law(p, 4)


def test_greedy_is_the_special_case_of_point_masses() -> None:
    """With p as tokens, drafts are accepted while equal, and the uniforms have no effect."""
    draft = Draft.chain([2, 0, 1], None, "lookup")
    assert verify(draft, [2, 0, 2, 1], [0.9] * 4).tokens.tolist() == [2, 0, 2]
    assert verify(draft, [2, 0, 1, 1], [0.9] * 4).tokens.tolist() == [2, 0, 1, 1]
    assert verify(draft, [0, 0, 1, 1], [0.0] * 4).tokens.tolist() == [0]


@pytest.mark.parametrize(("num_targets", "num_uniforms"), [(2, 3), (3, 2), (4, 3)])
def test_sizes_that_do_not_fit_are_refused(num_targets: int, num_uniforms: int) -> None:
    with pytest.raises(ValueError, match="3 target distributions and 3 uniforms"):
        verify(Draft.chain([0, 1], None, "x"), [0] * num_targets, [0.0] * num_uniforms)


# Planted bugs: each of the following must not have the target's distribution.


def is_exact_for_all(p_and_play: Sequence[tuple[Model, Procedure]], length: int) -> bool:
    return all(round_law(p, length, play) == own_law(p, length) for p, play in p_and_play)


def chains(length: int, **options: Any) -> list[tuple[Model, Procedure]]:
    """The sound procedure for each seed."""

    def of(seed: int) -> tuple[Model, Procedure]:
        p, q = model(f"p{seed}"), model(f"q{seed}", parts=3)

        def play(world: World) -> tuple[int, ...]:
            tokens, probs = drawn_chain(world, q, length, **options)
            return judged(world, p, Draft.chain(tokens, probs, "q"))

        return p, play

    return [of(seed) for seed in SEEDS]


def test_teeth_no_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bonus token after a rejection is drawn from p itself."""
    assert is_exact_for_all(chains(1), 2)
    monkeypatch.setattr(verify_module, "residual", lambda p, q: p)
    assert not is_exact_for_all(chains(1), 2)


def test_teeth_draw_and_discard() -> None:
    """A drawn token of low probability is dropped instead of being the draft's last."""

    def discarding(p: Model, q: Model) -> Procedure:
        def play(world: World) -> tuple[int, ...]:
            tokens, probs = drawn_chain(world, q, 2, lambda q, token: q[token] >= Fraction(1, 2))
            if probs[-1][tokens[-1]] < Fraction(1, 2):
                tokens, probs = tokens[:-1], probs[:-1]
            return judged(world, p, Draft.chain(tokens, probs, "q"))

        return play

    p, q = model("p"), model("q")
    assert round_law(p, 3, discarding(p, q)) != own_law(p, 3)
    same = model("p")
    assert round_law(p, 3, discarding(p, same)) != own_law(p, 3), "wrong even where q equals p"


def test_teeth_reported_q_is_not_the_drawn_one() -> None:
    """Tokens are drawn after top-p, but q is reported before top-p, whose tail has mass here."""
    half, third = Fraction(1, 2), Fraction(1, 6)
    p = np.array([half, 2 * third, third], dtype=object)
    raw = np.array([half, 2 * third, third], dtype=object)
    cut = np.array([Fraction(3, 5), Fraction(2, 5), Fraction(0)], dtype=object)

    def play(world: World) -> tuple[int, ...]:
        return judged(world, lambda text: p, Draft.chain([draw(cut, world.uniform())], [raw], "q"))

    found = round_law(lambda text: p, 1, play)
    assert found != own_law(lambda text: p, 1)
    assert (2,) not in found, "the tail is never said"


def test_teeth_longest_of_several_random_branches() -> None:
    """Several drawn chains are verified separately, and the one with most accepted tokens wins."""
    p, q = model("p1"), model("q1", parts=3)

    def branch(world: World) -> tuple[int, ...]:
        tokens, probs = drawn_chain(world, q, 1)
        return judged(world, p, Draft.chain(tokens, probs, "q"))

    def play(world: World) -> tuple[int, ...]:
        return max((branch(world) for _ in range(2)), key=len)

    assert round_law(p, 2, branch) == own_law(p, 2)
    assert round_law(p, 2, play) != own_law(p, 2)


def test_teeth_one_sample_for_each_branch_of_a_node() -> None:
    """Two children, each compared with its own sample of p: 0.625 and 0.375, not a half each."""
    p = np.array([Fraction(1, 2), Fraction(1, 2), Fraction(0)], dtype=object)

    def play(world: World) -> tuple[int, ...]:
        for child in (0, 1):
            if draw(p, world.uniform()) == child:
                return (child,)
        return (draw(p, world.uniform()),)

    assert law(play) == {(0,): Fraction(5, 8), (1,): Fraction(3, 8)}
    tree = Draft(np.array([0, 1]), [None, None], ["tree"] * 2, np.array([-1, -1]))
    sound = round_law(lambda text: p, 1, lambda world: judged(world, lambda text: p, tree))
    assert sound == {(0,): Fraction(1, 2), (1,): Fraction(1, 2)}
