"""Results computed from synthetic runs."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.bench.results import Run, cautions, make_sheet, summary

SECONDS = {
    "plain": {"a": 4.0, "b": 4.0},
    "draftwise": {"a": 1.0, "b": 2.0},
    "metasd": {"a": 2.0, "b": 2.0},
    "fixed:xx2": {"a": 1.0, "b": 4.0},
    "fixed:yx2": {"a": 4.0, "b": 1.0},
    "transformers": {"a": 5.0, "b": 5.0},
    "transformers:xx5": {"a": 2.0, "b": 3.0},
}


def made_up(lossy: str = "") -> list[Run]:
    """Two repeats of four items in two domains; each item's noise is shared by all methods."""
    rng = np.random.default_rng(0)
    runs = []
    for repeat in range(2):
        for item in range(4):
            domain, disturbance = "ab"[item % 2], 1.0 + 0.1 * rng.random()
            for method, by_domain in SECONDS.items():
                token = 9 if (method, item, repeat) == (lossy, 2, 1) else 1
                seconds = by_domain[domain] * disturbance
                runs.append(
                    Run(method, repeat, item, domain, [[1] * 11 + [token]], [seconds],
                        [seconds / 2], [4], [3] * 4, 16, 8, {"x": 8})
                )  # fmt: skip
    return runs


def test_every_key_and_the_right_numbers() -> None:
    found = summary(make_sheet(made_up(), list(SECONDS), can_compare=True))
    row = found["methods"]["metasd"]
    assert row["speedup"]["median"] == pytest.approx(2.0)
    assert row["speedup"]["ci95"] == [pytest.approx(2.0), pytest.approx(2.0)]
    assert row["mat"] == 3.0
    assert row["lossless"] is True
    assert row["draft_acceptance_rate"] == 0.5
    assert row["written"] == {"x": 64}
    assert row["num_short"] == 0
    assert set(found["domains"]) == {"a", "b"}
    assert found["domains"]["a"]["draftwise"]["speedup"]["median"] == pytest.approx(4.0)
    assert found["domains"]["b"]["draftwise"]["speedup"]["median"] == pytest.approx(2.0)


def test_one_prompt_has_no_interval() -> None:
    runs = [run for run in made_up() if run.item == 0]
    found = summary(make_sheet(runs, list(SECONDS), can_compare=True))
    assert found["methods"]["metasd"]["speedup"]["ci95"] is None


@pytest.mark.parametrize(
    ("num", "is_complete", "num_short", "said"),
    [
        (1, True, 0, ["1 prompt there is no"]),
        (3, False, 0, ["It ended before", "3 prompts"]),
        (10, True, 0, []),
        (10, True, 1, ["1 answer has fewer than 8 tokens"]),
        (10, True, 5, ["5 answers have fewer than 8 tokens"]),
    ],
)
def test_what_a_reader_must_know_is_said(
    num: int, is_complete: bool, num_short: int, said: list[str]
) -> None:
    found = cautions(
        {
            "settings": {"num_items_measured": num},
            "is_complete": is_complete,
            "methods": {"plain": {"num_short": num_short}},
        }
    )
    assert len(found) == len(said)
    assert all(word in line for word, line in zip(said, found, strict=True))


def test_one_wrong_token_of_one_answer_is_seen() -> None:
    found = summary(make_sheet(made_up("metasd"), list(SECONDS), can_compare=True))
    assert found["methods"]["metasd"]["lossless"] is False
    assert found["methods"]["metasd"]["same_tokens"] == 7 / 8
    assert found["domains"]["a"]["metasd"]["lossless"] is False
    assert found["domains"]["b"]["metasd"]["lossless"] is True
    assert found["methods"]["draftwise"]["lossless"] is True


def test_sampled_answers_are_not_called_lossy() -> None:
    found = summary(make_sheet(made_up("metasd"), list(SECONDS), can_compare=False))
    assert found["methods"]["metasd"]["lossless"] is None


def test_seconds_of_the_process_alone() -> None:
    runs = made_up()
    wall = make_sheet(runs, list(SECONDS), can_compare=True).timing.tok_per_s("plain")
    own = make_sheet(runs, list(SECONDS), can_compare=True, clock="cpu").timing.tok_per_s("plain")
    assert own == pytest.approx(2 * wall)


def test_answers_too_short_to_say_anything_are_counted() -> None:
    runs = [
        Run(name, 0, item, "a", [[1] * num], [1.0], [1.0], [num], [1] * num)
        for item, num in enumerate((1, 7, 8))
        for name in ("plain", "draftwise")
    ]
    found = summary(make_sheet(runs, ["plain", "draftwise"], can_compare=True))
    assert found["methods"]["plain"]["num_short"] == 2
