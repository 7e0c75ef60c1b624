"""A predicted answer is a draft: of its request alone, and without effect on the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from draftwise.errors import BadValue
from draftwise.speculator import Speculator
from engine.pairs import PROMPTS, plain_greedy, speculator
from engine.scripted import VOCAB

PROMPT, NUM = PROMPTS[0], 48


def made(*drafters: str, policy: str = "fixed:1") -> Speculator:
    return speculator(list(drafters or ("lookup",)), policy, lengths=(6,))


def edited(text: Sequence[int]) -> list[int]:
    """The text with a few tokens replaced, inserted and left out."""
    return [*text[:9], *text[10:20], 7, 7, *text[20:30], 3, *text[31:]]


@pytest.mark.parametrize(
    ("policy", "drafters"),
    [
        ("fixed:1", ("lookup",)),
        ("goodput", ("lookup", "suffix")),
        ("exp3spec", ("good", "lookup")),
        ("goodput", ("good", "lookup")),
        ("fixed:1", ("good",)),
    ],
)
def test_no_prediction_changes_the_answer(policy: str, drafters: tuple[str, ...]) -> None:
    answer = plain_greedy(PROMPT, NUM)
    for prediction in (answer, edited(answer), answer[::-1], [1], [5] * 100, PROMPT, []):
        own = made(*drafters, policy=policy)
        assert own.generate(PROMPT, max_new_tokens=NUM, prediction=prediction).tokens == answer


def test_a_right_prediction_saves_rounds_from_the_first_token_on() -> None:
    answer = plain_greedy(PROMPT, NUM)
    without = made().generate(PROMPT, max_new_tokens=NUM).stats
    right = made().generate(PROMPT, max_new_tokens=NUM, prediction=answer).stats
    near = made().generate(PROMPT, max_new_tokens=NUM, prediction=edited(answer)).stats
    assert right.num_rounds <= NUM // 7 + 1
    assert right.num_rounds < near.num_rounds < without.num_rounds


def test_a_prediction_belongs_to_its_request_alone() -> None:
    """A next turn takes over the row of the first one, and what is indexed for it."""
    answer = plain_greedy(PROMPT, NUM)
    later = [*PROMPT, *answer[:20]]
    own, other = made(), made()
    own.generate(PROMPT, max_new_tokens=20, prediction=[*answer, *answer])
    other.generate(PROMPT, max_new_tokens=20)
    seen, expected = (one.generate(later, max_new_tokens=28) for one in (own, other))
    assert seen.tokens == expected.tokens == answer[20:]
    assert seen.stats.num_drafted == expected.stats.num_drafted
    assert seen.stats.num_rounds == expected.stats.num_rounds
    with_one = own.generate(later, max_new_tokens=28, prediction=answer)
    assert with_one.tokens == answer[20:]
    assert with_one.stats.num_rounds < seen.stats.num_rounds


@pytest.mark.parametrize("wrong", [[-1], [VOCAB], [0.5], "text", 5])
def test_what_is_no_prediction(wrong: object) -> None:
    with pytest.raises(BadValue, match="prediction"):
        made().generate(PROMPT, max_new_tokens=4, prediction=wrong)
