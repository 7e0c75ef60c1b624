"""Lookup against a reference that searches the whole text at every position."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.bandits.stop_rules import Fixed
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.drafters.retrieval import LookupDrafter
from draftwise.retrieval.kernels import LONGEST_MATCH
from draftwise.types import SamplingParams
from sessions import opened


def common(text: list[int], source: int) -> int:
    """How many tokens before ``source`` equal those at the end of the text."""
    num = 0
    while num < source and text[source - 1 - num] == text[len(text) - 1 - num]:
        num += 1
    return num


def reference(text: list[int], least: int, most: int) -> tuple[int, int]:
    """Match length and place of the longest earlier n-gram, the latest of them; (0, 0) if none.

    Tokens beyond ``most`` only lengthen the reported match; they do not decide between places.
    """
    best = (0, 0)
    for source in range(1, len(text)):
        size = min(common(text, source), most)
        if size >= max(least, best[0]):
            best = (size, source)
    if best[0] == most:
        return min(common(text, best[1]), LONGEST_MATCH), best[1]
    return best


def texts() -> list[list[int]]:
    """Random strings over small alphabets, and some with long repetitions."""
    rng = np.random.default_rng(0)
    random = [rng.integers(0, size, 60).tolist() for size in (1, 2, 3, 5, 20) for _ in range(4)]
    piece = rng.integers(0, 9, 40).tolist()
    return [*random, piece + piece, [1, 2] * 30, [*range(30), 3, 4, 5]]


@pytest.mark.parametrize(("least", "most"), [(1, 8), (2, 3), (1, 1), (3, 5)])
def test_proposals_and_matches_are_those_of_the_reference(least: int, most: int) -> None:
    for text in texts():
        context = Context(0, text[:1], SamplingParams(), np.random.default_rng(0))
        session = opened(LookupDrafter("lookup", least, most), [context])
        for end in range(1, len(text)):
            context.tokens[:] = text[:end]
            match, source = reference(text[:end], least, most)
            assert session.match_length(context) == match, text[:end]
            (draft,) = session.propose([DraftTask(context, 6, Fixed())])
            expected = text[:end]
            for offset in range(6 if match else 0):
                expected.append(expected[source + offset])
            assert draft.tokens.tolist() == expected[end:]


@pytest.mark.parametrize(("least", "most"), [(1, 8), (2, 3), (3, 5)])
def test_behind_a_draft_the_text_alone_is_searched(least: int, most: int) -> None:
    rng, found = np.random.default_rng(1), 0
    for text in texts():
        context = Context(0, text[:1], SamplingParams(), np.random.default_rng(0))
        session = opened(LookupDrafter("lookup", least, most), [context])
        for end in range(2, len(text)):
            context.tokens[:] = text[:end]
            draft = rng.choice(text, 1 + end % 4).tolist()
            whole, best = [*text[:end], *draft], (0, 0)
            for source in range(1, end):
                size = min(common(whole, source), most)
                best = (size, source) if size >= max(least, best[0]) else best
            match, token = session.peek(context, draft)
            wanted = min(common(whole, best[1]), LONGEST_MATCH) if best[0] == most else best[0]
            assert (match, token) == (wanted, whole[best[1]] if best[0] else -1)
            found += match > 1
    assert found > 500
