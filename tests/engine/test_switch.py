"""Per-request control: no drafts, some drafters, or short drafts, in any batch.

Method: random scripts of admit, step and cancel, as in ``test_engine``, with options per request;
greedy answers are compared with ``transformers``' own, sampled ones with the exact distribution of
``test_lossless_sampled``. A spy on the sessions records the requests that drafters see.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from draftwise.drafters.protocol import Context
from draftwise.drafters.retrieval import RetrievalSession
from draftwise.engine.request import Request
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, SamplingParams, TreeShape
from engine.pairs import POOLS, PROMPTS, plain_greedy, run, speculator
from engine.test_lossless_sampled import (
    LENGTH,
    LEVEL,
    VOCAB,
    beginnings,
    own_law,
    p_value,
)
from engine.test_lossless_sampled import PROMPTS as SHORT

LONG = [*range(1, 60), *range(1, 60), 7, 9]
OFF: dict[str, Any] = {"speculation": False}


def switches(pool: str) -> list[dict[str, Any]]:
    """The options of a script's requests."""
    names = POOLS[pool]
    return [{}, OFF, {"max_draft": 0}, {"max_draft": 2}, {"drafters": names[0]},
            {"drafters": names[-1:], "max_draft": 3}, {"lengths": []}]  # fmt: skip


@pytest.mark.parametrize(("script", "policy"), [(0, "random"), (1, "goodput"), (2, "ucb1")])
@pytest.mark.parametrize("pool", ["all", "suffix", "eagle+good+lookup"])
def test_answers_are_the_same_whatever_each_request_allows(
    pool: str, policy: str, script: int
) -> None:
    rng = np.random.default_rng(script)
    fixed = {"deterministic": policy == "goodput"}  # costs at which drafts pay
    made = speculator(POOLS[pool], policy, trees=(None, TreeShape(3, 8)), **fixed)
    engine = made.engine(max_rows=int(rng.integers(2, 5)), num_prefixes=int(rng.integers(0, 4)))
    prompts = [*PROMPTS, LONG[:50], LONG, [*LONG, 3, 4], [*LONG[:70], 5]]
    asked: list[tuple[Request, dict[str, Any]]] = []
    rounds = []
    for step in range(200):
        action = rng.random()
        if action < 0.4 and len(asked) < 20:
            own = switches(pool)[rng.integers(7)]
            prompt, num = prompts[rng.integers(len(prompts))], int(rng.integers(1, 20))
            asked.append((made.request(prompt, max_new_tokens=num, **own), own))
            engine.admit(asked[-1][0])
        elif action < 0.45 and (running := [r for r, _ in asked if not r.is_over]):
            engine.cancel(running[rng.integers(len(running))].id)
        else:
            rounds += [output.round for output in engine.step() if output.round]
        if step > 60 and not engine.has_work:
            break
    while engine.has_work:
        rounds += [output.round for output in engine.step() if output.round]
    own_of = {request.id: own for request, own in asked}
    for request, _ in asked:
        expected = plain_greedy(request.prompt, 20)
        assert request.tokens == expected[: len(request.tokens)]
        assert request.error is None
        if request.answer.finish_reason == "length":
            assert len(request.tokens) == request.answer.num_tokens
    for round_ in rounds:
        own = own_of[round_.request]
        allowed = own.get("drafters") or POOLS[pool] if own.get("lengths", 1) else []
        allowed = [allowed] if isinstance(allowed, str) else allowed
        most = 0 if own.get("speculation") is False else own.get("max_draft", 16)
        assert round_.num_drafted <= most
        assert set(round_.sources) <= {*allowed, "target"}
    assert any(round_.num_drafted for round_ in rounds)


SWITCHES = {
    "none": OFF,
    "one": {"drafters": "bad"},
    "short": {"max_draft": 1},
    "any": {},
}


def test_sampled_answers_have_the_law_whatever_each_request_allows() -> None:
    """Requests with all options share every batch; 500 answers to each prompt with each option."""
    made = speculator(["good", "bad", "lookup"], "random", vocab_size=VOCAB, lengths=(1, 3))
    sampling = SamplingParams(temperature=1.0)
    counts = {name: [Counter[tuple[int, ...]]() for _ in SHORT] for name in SWITCHES}
    for seed in range(4):
        started = {
            name: made.start(
                [*SHORT] * 125, max_new_tokens=LENGTH, sampling=sampling, seed=4 * seed + kind,
                **own,
            )
            for kind, (name, own) in enumerate(SWITCHES.items())
        }  # fmt: skip
        for name, generation in started.items():
            list(generation)
            for index, result in enumerate(generation.results()):
                counts[name][index % len(SHORT)][tuple(result.tokens)] += 1
    values = [
        p_value(beginnings(found, num), beginnings(own_law(tuple(prompt), sampling), num))
        for name in SWITCHES
        for prompt, found in zip(SHORT, counts[name], strict=True)
        for num in range(1, LENGTH + 1)
    ]
    assert min(values) * len(values) > LEVEL


def test_no_drafter_is_told_of_a_request_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = speculator(POOLS["good+lookup"])
    seen: set[int] = set()
    session = RetrievalSession
    for name in ("open", "crop", "match_length"):
        own = getattr(session, name)

        def spy(self: Any, context: Context, *given: Any, _own: Any = own) -> Any:
            seen.add(id(context))
            return _own(self, context, *given)

        monkeypatch.setattr(session, name, spy)
    engine = made.engine(num_prefixes=2)
    requests = [made.request(LONG, max_new_tokens=6, **own) for own in (OFF, {}, OFF, {})]
    for request in requests:  # rows are reused in turn
        run(engine, request)
    both = [made.request(PROMPTS[0], max_new_tokens=9, **own) for own in (OFF, {})]
    run(engine, *both)
    told = [id(request.context) in seen for request in [*requests, *both]]
    assert told == [False, True, False, True, False, True]
    assert engine.num_prefix_hits == 3
    assert set(both[0].outbox.sources) == {"target"}


def test_rows_without_states_are_no_beginning_for_an_eagle_head() -> None:
    made = speculator(POOLS["eagle"], "fixed:1", lengths=(3,))
    engine = made.engine(num_prefixes=4)
    hits = []
    for own in (OFF, {}, OFF, {}):
        request = made.request(LONG, max_new_tokens=8, **own)
        run(engine, request)
        hits.append(engine.num_prefix_hits)
        assert request.tokens == plain_greedy(LONG, 8)
    assert hits == [0, 0, 1, 2] or hits == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"drafters": ["none"]},
            "drafters is 'none': it must be of the drafters here: good, bad",
        ),
        ({"drafters": []}, "names of drafters"),
        ({"max_draft": -1}, "max_draft"),
        ({"max_draft": 1025}, "max_draft"),
        ({"speculation": 0}, "speculation"),
    ],
)
def test_wrong_switches_are_refused(wrong: dict[str, Any], said: str) -> None:
    made: Speculator = speculator(POOLS["all"])
    with pytest.raises(DraftwiseError, match=said):
        made.generate(PROMPTS[0], **wrong)
