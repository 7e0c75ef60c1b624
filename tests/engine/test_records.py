"""Round records: consistent counts, correct scores, costs, traces.

The scores are checked against plain forwards of both models along the final text, with the
library's own argmax or softmax: ``alpha = sum_v min(p, q)``, ``ratio = min(1, q/p)``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.engine.outputs import NO_DRAFT, Account, Round, Stats
from draftwise.speculator import Speculator
from draftwise.types import Scores
from engine.pairs import BUDGETS, POOLS, PROMPTS, lm, plain_greedy, speculator
from engine.scripted import Playlist

PROMPT = PROMPTS[2]


def test_a_speed_has_the_range_of_what_plain_decoding_may_take() -> None:
    made = Stats(num_emitted=100, num_drafted=5, account=Account(2.0, 1.0))
    assert made.speed_range == (pytest.approx(1.9), 2.0)
    made.num_drafted = 0
    assert made.speed_range == (2.0, 2.0), "plain steps were measured as they are"
    assert Stats(num_emitted=100, num_drafted=5).speed_range is None
    tiny = Stats(num_emitted=100, num_drafted=5, account=Account(0.05, 0.1))
    assert tiny.speed_range == (0.0, 0.5)


@torch.inference_mode()
def plain_distributions(module: Any, text: list[int], temperature: float) -> torch.Tensor:
    """[T, V] distributions of the token at each position of the text (row 0 is meaningless)."""
    logits = module(input_ids=torch.tensor([text]), use_cache=False).logits[0].double()
    if temperature:
        probs = (logits / temperature).softmax(-1)
    else:
        probs = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    return probs.roll(1, 0)


def plain_scores(made: Speculator, text: list[int], temperature: float) -> dict[str, Any]:
    """alphas and ratios of each LM drafter at every position of the text."""
    p = plain_distributions(made.target.module, text, temperature)
    said = torch.arange(len(text)), torch.tensor(text)
    found = {}
    for name in ("good", "bad"):
        q = plain_distributions(lm(name, "llama", 64).model.module, text, temperature)
        alphas = torch.minimum(p, q).sum(-1)
        ratios = (q[said] / p[said]).clamp(max=1).nan_to_num(0)
        found[name] = alphas.numpy(), ratios.numpy()
    return found


Told = list[Mapping[str, Scores]]


def run(
    made: Speculator, plans: list[int], temperature: float, num: int = 40
) -> tuple[list[Round], list[int], Told]:
    """Rounds, whole text, and all scores of one request that plays these plans."""
    generation = made.start(PROMPT, max_new_tokens=num, temperature=temperature, seed=1)
    (request,) = generation._requests
    request.decider.policy = Playlist(plans, len(made.plans))
    told: Told = []
    request.decider.scored = lambda scores, *_: told.append(scores)  # type: ignore[method-assign]
    rounds = list(generation)
    return rounds, [*PROMPT, *request.tokens], [*told, *(round_.scores for round_ in rounds)]


def known_scores(told: Told, name: str) -> Counter[int]:
    """How often each position was scored, prompt included."""
    ours = [scores[name] for scores in told if name in scores]
    return Counter(at for s in ours for at in range(s.start, s.start + len(s.alphas)))


def assert_true(told: Told, expected: dict[str, Any]) -> None:
    """Every reported alpha and ratio of the LM drafters equals that of the plain forwards."""
    for scores in told:
        for name in expected.keys() & scores.keys():
            alphas, ratios = expected[name]
            here = slice(scores[name].start, scores[name].start + len(scores[name].alphas))
            np.testing.assert_allclose(scores[name].alphas, alphas[here], atol=2e-4)
            np.testing.assert_allclose(scores[name].ratios, ratios[here], atol=2e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_panoramic_scores_are_true_and_complete(temperature: float) -> None:
    made = speculator(POOLS["all"], feedback="panoramic", lengths=(3,))
    _, text, told = run(made, [1, 2, 3, 0, 1], temperature)
    assert_true(told, plain_scores(made, text, temperature))
    for name in ("good", "bad", "lookup"):
        known = known_scores(told, name)
        assert set(known) >= set(range(len(PROMPT) - 15, len(text))), name
        assert set(known.values()) == {1}, f"{name} was scored twice on a position"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafter_that_waited_catches_up_with_the_same_q(temperature: float) -> None:
    """Lookup plays for many rounds; then ``good`` plays once and reports its whole backlog."""
    made = speculator(["good", "lookup"], feedback="free", lengths=(3,))
    rounds, text, told = run(made, [*[2] * 9, 1, *[2] * 7, 1, 0], temperature)
    expected = plain_scores(made, text, temperature)
    assert_true(told, {"good": expected["good"]})
    played = [round_ for round_ in rounds if round_.plan.drafter == "good"]
    assert [round_.round for round_ in played] == [10, 18]
    for round_ in played:
        assert len(round_.scores["good"].alphas) > 5, "a backlog, not the draft alone"
    known = known_scores(told, "good")
    last = played[-1].position + played[-1].num_accepted
    assert set(known) >= set(range(len(PROMPT), last))
    assert set(known.values()) == {1}


def test_a_round_without_a_draft_says_why() -> None:
    made = speculator(["good", "lookup"], feedback="free", lengths=(3,))
    rounds, _, _ = run(made, [*[0, 2, 1] * 12, 2], 0.0)
    for round_ in rounds:
        reason = "policy" if round_.plan_index == 0 else "drafter"
        assert round_.no_draft == ("" if round_.num_drafted else reason) or round_ is rounds[-1]
        assert f"({round_.no_draft})" in repr(round_) or not round_.no_draft
    assert {round_.no_draft for round_ in rounds} >= {"", "policy", "drafter"}
    (last,) = made.start(PROMPT, max_new_tokens=1)
    assert last.no_draft == "end"
    (last,) = speculator([]).start(PROMPT, max_new_tokens=1)
    assert last.no_draft == "off"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_add_up(temperature: float, tmp_path: Path) -> None:
    made = speculator(POOLS["all"], feedback="panoramic")
    trace = tmp_path / "rounds.jsonl"
    generation = made.start(
        PROMPTS, max_new_tokens=BUDGETS, temperature=temperature, trace=trace, seed=2
    )
    rounds = list(generation)
    results = generation.results()
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines == [json.loads(json.dumps(round_.as_json())) for round_ in rounds]
    for number, result in enumerate(results):
        mine = [line for line in lines if line["request"] == number]
        assert [token for line in mine for token in line["tokens"]] == result.tokens
        assert [source for line in mine for source in line["sources"]] == result.sources
        assert sum(line["num_emitted"] for line in mine) == len(result.tokens)
        position = len(PROMPTS[number])
        for line in mine:
            assert line["position"] == position
            assert line["num_emitted"] - line["num_accepted"] in {0, 1}
            assert 0 <= line["num_accepted"] <= line["num_drafted"] <= line["length"]
            end = len(PROMPTS[number]) + BUDGETS[number]
            assert position + line["num_drafted"] < end, "drafted what can never be said"
            assert (line["no_draft"] in NO_DRAFT) == (line["num_drafted"] == 0)
            assert line["num_emitted"] == len(line["tokens"]) == len(line["sources"])
            assert sum(source != "target" for source in line["sources"]) == line["num_accepted"]
            position += line["num_emitted"]
        stats = result.stats
        assert stats.num_rounds == len(mine) == sum(stats.pulls.values())
        assert sum(stats.no_draft.values()) == sum(line["num_drafted"] == 0 for line in mine)
        for count in ("num_drafted", "num_accepted", "num_emitted"):
            assert getattr(stats, count) == sum(line[count] for line in mine)
        assert stats.mean_accepted_tokens == stats.num_emitted / stats.num_rounds
        assert all(seconds >= 0 for seconds in stats.seconds_by_phase.values())


def test_a_full_disk_costs_the_trace_and_nothing_else() -> None:
    made = speculator(POOLS["all"])
    with pytest.warns(UserWarning, match="the trace /dev/full ends here") as warned:
        result = made.generate(PROMPT, max_new_tokens=12, trace="/dev/full")
    assert len(warned) == 1
    assert result.tokens == plain_greedy(PROMPT, 12)


def test_a_trace_that_cannot_be_opened_is_said_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="rounds"):
        speculator(["lookup"]).start(PROMPT, trace=tmp_path / "missing" / "rounds.jsonl")


def test_the_speed_relative_to_plain_decoding_is_the_account_of_the_rounds() -> None:
    made = speculator(POOLS["good"], "fixed:1", lengths=(4,))
    rounds = list(generation := made.start(PROMPT, max_new_tokens=40))
    (result,) = generation.results()
    plain_s = sum(round_.num_emitted * round_.plain_s + round_.prompt_s[0] for round_ in rounds)
    spent_s = sum(round_.spent_s + round_.prompt_s[1] for round_ in rounds)
    assert min(round_.spent_s for round_ in rounds) > 0
    first, *others = (round_.prompt_s for round_ in rounds)
    assert set(others) == {(0.0, 0.0)}
    assert 0 < first[0] <= first[1]
    assert result.stats.speed == pytest.approx(plain_s / spent_s)
    assert result.as_json()["recent_speed"] == result.stats.recent_speed
    off = made.generate(PROMPT, max_new_tokens=40, speculation=False)
    assert off.stats.speed == pytest.approx(1)
    scoring_s = first[1] - first[0]  # which the guard charges to guarded policies alone
    spent_s += off.stats.account.spent_s - scoring_s
    assert made._engine.guard.spent_s == pytest.approx(spent_s)


def test_each_switch_of_drafting_is_logged_wherever_the_step_makes_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = speculator(POOLS["good"], "goodput")
    engine = made.engine()

    def lose(seconds: float) -> None:
        engine.guard.observe(1.0, 1.0 + seconds, 1.0)

    engine.admit(made.request(PROMPT, max_new_tokens=30))
    with caplog.at_level("INFO", logger="draftwise"):
        engine.step()
        lose(1e3)
        engine.step()
        engine.step()
        monkeypatch.setattr(engine.guard, "charge", lambda _: lose(-2e3))  # as prefill ends
        engine.admit(made.request(PROMPT, max_new_tokens=30))
        engine.step()
        engine.step()
        lose(1e3)
        engine.step()
    off = "drafting is switched off: the latest drafts"
    on = "drafting is switched on again: drafts have"
    assert [line.split(" ")[: len(off.split())] for line in caplog.messages] == [
        words.split() for words in (off, on, off)
    ]
