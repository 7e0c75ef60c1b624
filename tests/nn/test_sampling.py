"""Batched sampling parameters against transformers' own processors, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftwise.nn.sampling import Occurrences, warped
from draftwise.nn.sampling import SampledSpan as Span
from draftwise.types import SamplingParams


def theirs(logits: Tensor, sampling: SamplingParams, text: Sequence[int]) -> Tensor:
    """[V] The distribution from which ``generate`` of transformers would draw after this text."""
    steps: list[Any] = [RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    if sampling.temperature not in (0, 1):
        steps.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        steps.append(MinPLogitsWarper(sampling.min_p))
    scores = LogitsProcessorList(steps)(torch.tensor([list(text)]), logits[None].float())
    return scores.softmax(-1)[0]


def rounded(num: int, vocab_size: int, seed: int) -> Tensor:
    """[num, V] bfloat16 logits with many ties."""
    made = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(num, vocab_size, generator=made)).bfloat16()


KINDS = [
    SamplingParams(1.0),
    SamplingParams(0.7, top_k=5),
    SamplingParams(0.7, top_k=20, top_p=0.8),
    SamplingParams(1.3, top_p=0.6),
    SamplingParams(1.0, min_p=0.05),
    SamplingParams(0.9, top_k=7, top_p=0.9, min_p=0.1, repetition_penalty=1.3),
    SamplingParams(0.5, repetition_penalty=0.8),
    SamplingParams(0.8, top_k=1),
    SamplingParams(0.8, top_p=0.01),
]


@pytest.mark.parametrize("vocab_size", [3, 40, 500])
@pytest.mark.parametrize("seed", range(8))
def test_rows_of_different_parameters_are_those_of_transformers(seed: int, vocab_size: int) -> None:
    """Supports are equal, including ties of bfloat16; probabilities agree up to rounding.

    Of tokens that tie at the edge of a nucleus, only the number is compared.
    """
    rows = 3 * len(KINDS)
    logits, text = rounded(rows, vocab_size, seed), [0, 2, 1, 2]
    spans = [Span(own, 3, text, len(text), [1, 0]) for own in KINDS]
    found = warped(logits, spans)
    assert found.places.tolist() == list(range(rows))
    for index in range(rows):
        expected = theirs(logits[index], KINDS[index // 3], [*text, 1, 0][: 4 + index % 3])
        row = found.probs[index]
        if KINDS[index // 3].top_p < 1:
            row, expected = row.sort().values, expected.sort().values
        assert torch.equal(row > 0, expected > 0), (index, KINDS[index // 3])
        torch.testing.assert_close(row, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("top_p", [0.1, 0.3, 0.49, 0.76, 0.9])
def test_as_many_stay_where_all_tie(top_p: float, top_k: int) -> None:
    """Also beyond the top k, with which the others tie."""
    logits = torch.zeros(1, 8)
    sampling = SamplingParams(1.0, top_k=top_k, top_p=top_p)
    found = warped(logits, [Span(sampling, 1)]).probs[0]
    assert (found > 0).sum() == (theirs(logits[0], sampling, [0]) > 0).sum()
    assert found.sort().values.equal(found), "those of the highest ids"


def test_greedy_and_sampled_rows_side_by_side() -> None:
    logits = rounded(6, 40, 3)
    greedy, drawn = SamplingParams(), SamplingParams(1.0)
    found = warped(logits, [Span(greedy, 2), Span(drawn, 1), Span(greedy, 1), Span(drawn, 2)])
    assert found.places.tolist() == [-1, -1, 0, -1, 1, 2]
    assert found.tokens[[0, 1, 3]].tolist() == logits[[0, 1, 3]].float().argmax(-1).tolist()
    torch.testing.assert_close(found.probs, logits[[2, 4, 5]].float().softmax(-1))
    assert len(found) == 6
    assert found.tokens[[2, 4, 5]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_told_by_minus_one(bad: float) -> None:
    logits = torch.zeros(4, 9)
    logits[[1, 3], 4] = bad
    plain, cut = SamplingParams(1.0), SamplingParams(1.0, top_k=3, top_p=0.5, min_p=0.1)
    for sampling in (SamplingParams(), plain, cut):
        found = warped(logits, [Span(sampling, 4)])
        assert (found.tokens < 0).tolist() == [False, True, False, True]


def test_forbidden_tokens_stay_out_however_else_they_are_scored() -> None:
    def only_even(text: Sequence[int], scores: Tensor) -> Tensor:
        scores[1::2] = -torch.inf
        return scores

    rough = {"repetition_penalty": 1.2, "frequency_penalty": -1.0, "logit_bias": {1: 50.0}}
    for cut in ({}, {"top_k": 30}, {"top_p": 0.99}, {"top_k": 30, "top_p": 0.9, "min_p": 0.01}):
        sampling = SamplingParams(1.0, process=only_even, **rough, **cut)
        found = warped(rounded(3, 40, 1), [Span(sampling, 3, [1, 2, 3], 3, [5, 7])])
        assert found.tokens.tolist() == [0, 0, 0]
        assert not found.probs[:, 1::2].any()


def test_a_bias_is_added_and_penalties_are_subtracted_for_what_the_answer_has() -> None:
    logits = torch.zeros(3, 6)
    sampling = SamplingParams(1.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={5: 2})
    span = Span(sampling, 3, [0, 1, 1, 2], 3, [1], num_prompt=1)
    expected = torch.tensor(
        [
            [0, -1.0, 0, 0, 0, 2],  # after 0 | 1 1: token 1 twice
            [0, -1.0, -0.75, 0, 0, 2],  # and 2
            [0, -1.25, -0.75, 0, 0, 2],  # and the drafted 1
        ]
    )
    torch.testing.assert_close(warped(logits, [span]).probs, expected.softmax(-1))


def test_in_a_tree_each_node_is_penalised_for_its_own_path() -> None:
    logits, parents = torch.zeros(4, 5), np.array([-1, 0, -1])
    sampling = SamplingParams(1.0, repetition_penalty=2.0, frequency_penalty=1.0)
    found = warped(logits, [Span(sampling, 4, [0], 1, [1, 1, 2], parents, num_prompt=1)]).probs
    expected = -torch.tensor([[0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0.0]])
    torch.testing.assert_close(found, expected.softmax(-1))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_occurrences_kept_from_round_to_round_are_those_counted_again(data: st.DataObject) -> None:
    """Also for rows before the counted text: a drafter that catches up on the prompt."""
    tokens = st.integers(0, 6)
    text = data.draw(st.lists(tokens, min_size=2, max_size=12))
    num_prompt = data.draw(st.integers(1, len(text)))
    kept = Occurrences(num_prompt)
    logits = rounded(6, 7, 0)
    sampling = SamplingParams(1.0, 0, 1.0, 1.5, presence_penalty=0.3, frequency_penalty=0.2)
    for length in range(1, len(text) + 1):
        drafted = data.draw(st.lists(tokens, max_size=3))
        start = data.draw(st.integers(max(1, length - 2), length))
        num = length - start + len(drafted) + 1
        spans = [
            Span(sampling, num, text[:length], start, drafted, None, num_prompt, seen)
            for seen in (kept, None)
        ]
        ours, anew = (warped(logits[:num], [span]).probs for span in spans)
        assert torch.equal(ours, anew)


def test_rows_and_spans_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="spans of 2 rows for logits of 3"):
        warped(torch.zeros(3, 4), [Span(SamplingParams(), 2)])
