"""Compiled forwards: the logits of plain ones, no recompilation, and equal tokens.

Method: dynamo traces each forward into one graph, which a counting backend runs without compiling
(quick); one test compiles with inductor. Errors are relative to the largest logit, 1e-4 in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from draftwise.drafters import LMDrafter
from draftwise.nn import CausalModel, CompiledSteps, branches
from draftwise.pool import models_of
from draftwise.registry import Preset, build
from draftwise.speculator import Speculator
from draftwise.types import TreeShape
from engine.pairs import BUDGETS, PROMPTS, plain_greedy, reader
from models import CONFIGS, near_copy
from nn.test_cache import error, plain, texts_of

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Reset the compiler's state after each test."""
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that counts graphs and runs them without compiling."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        self.num_graphs += 1
        return graph.forward  # type: ignore[no-any-return]


def compiled(
    kind: str = "llama", attention: str = "sdpa", backend: Any = "eager", **changes: Any
) -> CausalModel:
    model = CausalModel(reader(kind, attention=attention, **changes), kind)
    model.compile((2, 6), backend)
    return model


@pytest.mark.parametrize(
    ("kind", "attention"), [*((kind, "sdpa") for kind in CONFIGS), ("llama", "eager")]
)
@torch.inference_mode()
def test_logits_are_those_of_plain_forwards(kind: str, attention: str) -> None:
    """For every width, full and padded, with garbage in between that is rolled back."""
    counting = Counting()
    model, text = compiled(kind, attention, backend=counting), texts_of((70,))[0]
    cache = model.new_cache(1, 90)
    model.extend(cache, [0], [text[:30]], keep=1)
    for num in (1, 2, 3, 7, 6):
        start = cache.lengths[0]
        model.extend(cache, [0], [[9] * 5], keep=1)
        cache.lengths[0] = start
        found = model.extend(cache, [0], [text[start : start + num]], keep=num).last(0, num)
        assert error(model, text[: start + num], found) < TOLERANCE
    assert counting.num_graphs == 2, "one a width"


@pytest.mark.parametrize("kind", ["llama", "gemma3-mixed"])
@torch.inference_mode()
def test_trees_look_at_their_own_branch(kind: str) -> None:
    counting = Counting()
    model, (text, fed) = compiled(kind, backend=counting), texts_of((20, 6))
    cache = model.new_cache(1, 60)
    model.extend(cache, [0], [text], keep=1)
    tree = branches([-1, 0, 0, 1, 2, 3], base=20)
    logits = model.extend(cache, [0], [fed], keep=6, trees=[tree]).flat
    for path in ([0, 1, 3, 5], [0, 2, 4]):
        expected = plain(model, [*text, *(fed[n] for n in path)])[-1]
        assert float((logits[path[-1]] - expected).abs().max() / expected.abs().max()) < TOLERANCE
    assert counting.num_graphs == 1


@torch.inference_mode()
def test_hidden_states_come_along() -> None:
    model, text = compiled(), texts_of((20,))[0]
    model.tap([1, -1])
    cache = model.new_cache(1, 60)
    model.extend(cache, [0], [text[:10]], keep=1)
    found = model.extend(cache, [0], [text[10:14]], keep=4).hidden
    states = model.module(torch.tensor([text[:14]]), output_hidden_states=True).hidden_states
    for tap in (1, 2):
        assert (found[tap][0] - states[tap][0, 10:]).abs().max() < TOLERANCE * states[
            tap
        ].abs().max()


@torch.inference_mode()
def test_the_next_request_compiles_nothing_and_sees_nothing_of_the_last() -> None:
    """Also for another length below the same power of two; leftover NaN must have no effect."""
    counting = Counting()
    model, text = compiled(backend=counting), texts_of((60,))[0]
    cache = model.new_cache()
    for row, expected in enumerate((90, 200, 256)):
        cache.open(row, expected)
        model.extend(cache, [row], [text[:30]], keep=1)
        found = model.extend(cache, [row], [text[30:34]], keep=4).last(0, 4)
        assert error(model, text[:34], found) < TOLERANCE
        cache.storage(row).keys[0].fill_(torch.nan)
        cache.close(row)
    assert counting.num_graphs == 1
    model.extend(model.new_cache(1, 257), [0], [text], keep=1)
    assert counting.num_graphs == 1, "prompts are read by the module itself"


@torch.inference_mode()
def test_two_requests_at_once_have_storage_of_their_own() -> None:
    model, texts = compiled(), texts_of((40, 40))
    caches = [model.new_cache(1, 60) for _ in texts]
    for cache, text in zip(caches, texts, strict=True):
        model.extend(cache, [0], [text[:30]], keep=1)
    for cache, text in zip(caches, texts, strict=True):
        found = model.extend(cache, [0], [text[30:]], keep=4).last(0, 4)
        assert error(model, text, found) < TOLERANCE


@torch.inference_mode()
def test_what_does_not_fit_is_refused_though_the_storage_is_larger() -> None:
    model = compiled()
    cache = model.new_cache(1, 10)
    model.extend(cache, [0], [[1] * 9], keep=1)
    with pytest.raises(ValueError, match="holds 10 tokens a row, and 11 are needed"):
        model.extend(cache, [0], [[1, 2]], keep=1)


def speculator(backend: Any, names: list[str], trees: Any = (None,), **options: Any) -> Speculator:
    """A target, a similar drafter and lookup, compiled as by ``from_pretrained``."""
    target = compiled(backend=backend)
    drafting = CausalModel(near_copy(target.module, noise=0.04), "good")
    drafting.compile((2,), backend)
    known = {"good": LMDrafter("good", drafting, target)}
    found = [known.get(n) or build("drafter", n, {"name": n}) for n in names]
    setting = Preset("random", "length", "free", (1, 4, 16), True, trees=trees)
    return Speculator(target, None, found, setting, **options)


@pytest.mark.parametrize("trees", [(None,), (TreeShape(3, 10), None)], ids=["chains", "trees"])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_greedy_tokens_are_the_targets(num_rows: int, trees: Any) -> None:
    """Batches run uncompiled until one row is left."""
    counting = Counting()
    made = speculator(counting, ["good", "lookup"], trees)
    for _ in range(2):
        results = made.generate(PROMPTS[:num_rows], max_new_tokens=BUDGETS[:num_rows])
        expected = [plain_greedy(p, n) for p, n in zip(PROMPTS, BUDGETS, strict=True)]
        assert [result.tokens for result in results] == expected[:num_rows]
    assert 1 <= counting.num_graphs <= 2 + 1


def test_seconds_of_compiling_belong_to_no_round() -> None:
    made = speculator("eager", ["good"])
    made.generate(PROMPTS[0], max_new_tokens=20)
    wall, cpu = made.compiling()
    assert wall > 0
    assert cpu > 0
    steps = made.target.compiled
    assert isinstance(steps, CompiledSteps)
    before = made.clock()
    steps.spent_s += 1000
    assert made.clock() < before - 900


def test_where_nothing_can_be_compiled_the_models_run_as_they_are() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no working C++ compiler found")

    made = speculator(broken, ["lookup"])
    with pytest.warns(UserWarning, match=r"cannot be compiled.*no working C\+\+.*--compile"):
        result = made.generate(PROMPTS[0], max_new_tokens=24)
    assert result.tokens == plain_greedy(PROMPTS[0], 24)


@pytest.mark.slow
@torch.inference_mode()
def test_inductor_itself() -> None:
    """The real compiler, on packed half-precision weights: one layer, one width."""
    model = CausalModel(reader("llama", num_hidden_layers=1).to(torch.bfloat16), "tiny")
    model.compile((2,))
    text = texts_of((20,))[0]
    cache = model.new_cache(1, 60)
    model.extend(cache, [0], [text[:15]], keep=1)
    for start in (15, 17):
        found = model.extend(cache, [0], [text[start : start + 2]], keep=2).last(0, 2)
        assert error(model, text[: start + 2], found) < 0.1
    assert model.compiled is not None
    assert model.compiled.spent_s > 0


def test_the_facade_compiles_target_and_drafters_only_where_asked() -> None:
    module = reader("llama")
    for wanted in (False, True):
        made = Speculator.from_pretrained(
            module, [near_copy(module, noise=0.04), "lookup"], preset="metasd", compile=wanted
        )
        models = [made.target, *models_of(made.drafters)]
        assert len(models) == 2
        assert [model.compiled is not None for model in models] == [wanted, wanted]
