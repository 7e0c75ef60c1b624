"""Continuous batching: every answer equals the request alone, and none is lost.

Method: random scripts of admit, step and cancel drive an engine with fewer rows than requests;
greedy answers are compared with ``transformers``' own, token for token (the distribution of sampled
rows that join and leave is tested in ``test_lossless_sampled``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.drafters.retrieval import RetrievalSession
from draftwise.drafters.session import NeuralSession
from draftwise.engine.drafting import LEAST_PIECE
from draftwise.engine.outputs import RequestOutput
from draftwise.engine.request import Request
from draftwise.nn.attention import RAGGED
from draftwise.nn.model import CausalModel
from draftwise.registry import Preset
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, SamplingParams
from engine.pairs import POOLS, PROMPTS, drafters, plain_greedy, reader, run, speculator
from engine.scripted import byte_tokenizer, mixing

LONG = [*range(1, 60), *range(1, 60), 7, 9]


def packed() -> Speculator:
    """The target of ``speculator`` with packed rows."""
    target = CausalModel(reader(attention=RAGGED), "target")
    assert target.packs
    setting = Preset("random", "length", "free", (1, 4), True)
    return Speculator(target, None, drafters(["good", "lookup"]), setting, seed=0)


def ask(made: Speculator, prompt: Sequence[int], num: int = 12, **options: Any) -> Request:
    return made.request(list(prompt), max_new_tokens=num, **options)


POOLS_OF_KINDS = [
    *(("llama", pool) for pool in ("all", "suffix", "eagle+good+lookup", "packed")),
    ("mistral-sliding", "all"),
    ("gemma3-mixed", "good+lookup"),
]


@pytest.mark.parametrize(("kind", "pool"), POOLS_OF_KINDS)
@pytest.mark.parametrize("script", range(2))
def test_whoever_joins_and_leaves_every_answer_is_what_it_is_alone(
    kind: str, pool: str, script: int
) -> None:
    rng = np.random.default_rng(script)
    made = packed() if pool == "packed" else speculator(POOLS[pool], kind=kind)
    engine = made.engine(max_rows=int(rng.integers(1, 5)), num_prefixes=int(rng.integers(0, 4)))
    prompts = [*PROMPTS, LONG[:50], LONG, [*LONG, 3, 4], [*LONG[:70], 5]]
    asked: list[Request] = []
    for _ in range(60):
        action = rng.random()
        if action < 0.3:
            prompt = prompts[rng.integers(len(prompts))]
            asked.append(ask(made, prompt, int(rng.integers(1, 20))))
            engine.admit(asked[-1])
        elif action < 0.36 and (running := [r for r in asked if not r.is_over]):
            engine.cancel(running[rng.integers(len(running))].id)
        else:
            engine.step()
    run(engine)
    assert len(asked) > 8
    for request in asked:
        expected = plain_greedy(request.prompt, 20, kind)
        found, wanted = request.tokens, request.answer.num_tokens
        assert found == expected[: len(found)]
        assert len(found) == wanted
        assert request.answer.finish_reason in {"length", "cancelled"}
    assert (engine.num_running, engine.num_waiting) == (0, 0)


def test_those_that_do_not_fit_wait_in_order_and_the_higher_priority_first() -> None:
    made = speculator(POOLS["lookup"])
    engine, order = made.engine(max_rows=1), []
    asked = [ask(made, PROMPTS[0], 6, priority=priority) for priority in (0, 0, 5)]
    for request in asked:
        engine.admit(request)
    while engine.has_work:
        order += [output.request for output in engine.step()]
    assert list(dict.fromkeys(order)) == [asked[2].id, asked[0].id, asked[1].id]


def test_bytes_are_bounded_and_what_can_never_fit_is_refused_with_both_numbers() -> None:
    made = packed()
    made.target.token_bytes, limit = 256, 150_000
    engine = made.engine(max_rows=8, max_bytes=limit)
    with pytest.raises(DraftwiseError, match=r"needs [\d,]+ bytes .* max_bytes is 150,000"):
        engine.admit(ask(made, LONG * 4, 30))
    asked = [ask(made, LONG, 20) for _ in range(6)]
    for request in asked:
        engine.admit(request)
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, engine.num_running)
        assert engine.num_cache_bytes < 1.2 * limit
    assert 1 <= most < 6
    assert all(request.tokens == plain_greedy(LONG, 20) for request in asked)


def test_wrong_calls_are_clear_errors_and_no_running_request_notices() -> None:
    made = speculator(POOLS["all"])
    engine, request = made.engine(), ask(made, PROMPTS[0])
    engine.admit(request)
    engine.step()
    for wrong, message in (
        (lambda: engine.admit(request), "in the engine already"),
        (lambda: engine.cancel(-5), rf"no request -5 .* there are: {request.id}"),
        (lambda: made.engine(max_rows=0), "max_rows is 0: it must be a whole number, 1 or more"),
        (lambda: made.request([1], max_new_tokens=0), "must be a whole number, 1 or more"),
        (lambda: made.request([1], preset="nonsense"), "nonsense"),
    ):
        with pytest.raises(DraftwiseError, match=message):
            wrong()
    run(engine)
    assert request.tokens == plain_greedy(PROMPTS[0], 12)
    with pytest.raises(DraftwiseError, match="no request"):
        engine.cancel(request.id)
    waiting = ask(made, PROMPTS[1])
    engine.admit(waiting)
    engine.close()
    assert waiting.answer.finish_reason == "cancelled"
    assert (engine.has_work, engine.num_cache_bytes) == (False, 0)
    with pytest.raises(DraftwiseError, match="closed"):
        engine.admit(ask(made, PROMPTS[1]))


def fed_tokens(made: Speculator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of input tokens of each forward of the target."""
    counts: list[int] = []
    sound = made.target.extend

    def extend(cache: Any, rows: Any, tokens: Any, *more: Any) -> Any:
        counts.append(sum(map(len, tokens)))
        return sound(cache, rows, tokens, *more)

    monkeypatch.setattr(made.target, "extend", extend)
    return counts


@pytest.mark.parametrize("pool", ["all", "eagle"])
def test_a_prompt_that_begins_like_another_text_is_not_read_again(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = speculator(POOLS[pool])
    engine = made.engine(num_prefixes=2)
    first = ask(made, LONG, 10)
    run(engine, first)
    turn = [*LONG, *first.tokens, 8, 9, 10]
    fed = fed_tokens(made, monkeypatch)
    second, branch = ask(made, turn, 14), ask(made, [*LONG[:90], 4, 4, 4], 14)
    run(engine, second)
    assert fed[0] == 16, "the turn before is still there; the first round reads the last token"
    assert second.tokens == plain_greedy(turn, 14)
    assert engine.num_prefix_hits == 1
    run(engine, branch)
    assert branch.tokens == plain_greedy(branch.prompt, 14)
    assert engine.num_prefix_hits == 2


@pytest.mark.parametrize("pool", ["good+lookup", "eagle"])
def test_several_samples_of_one_prompt_read_it_once(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = speculator(POOLS[pool])
    engine, fed = made.engine(), fed_tokens(made, monkeypatch)
    asked = [ask(made, LONG, 10) for _ in range(4)]
    for request in asked:
        engine.admit(request)
    engine.step()
    assert fed[0] == len(LONG) - 1
    run(engine)
    assert sum(num for num in fed if num > 60) == len(LONG) - 1
    assert all(request.tokens == plain_greedy(LONG, 10) for request in asked)


def test_a_long_prompt_is_read_in_pieces_while_others_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = packed()
    engine, writer = made.engine(), ask(made, PROMPTS[0], 60, preset="plain")
    engine.admit(writer)
    engine.step()
    fed = fed_tokens(made, monkeypatch)
    long = ask(made, (LONG * 4)[:400], 5)
    engine.admit(long)
    while not long.tokens:
        engine._prefill_budget.tokens.extend([1.0] * 9)  # the smallest chunks
        assert [output.request for output in engine.step()][:1] == [writer.id]
    assert max(fed) <= LEAST_PIECE + 2
    run(engine)
    assert long.tokens == plain_greedy(long.prompt, 5)
    assert writer.tokens == plain_greedy(PROMPTS[0], 60)


def broken(*_: Any) -> Any:
    raise ZeroDivisionError("a callback's own")


def test_what_one_rows_callback_raises_ends_that_row_alone() -> None:
    made = speculator(POOLS["all"])
    engine = made.engine()
    asked = [
        ask(made, PROMPTS[0], stop_when=broken),
        ask(made, PROMPTS[0], sampling=SamplingParams(process=broken)),
        ask(made, PROMPTS[2]),
    ]
    run(engine, *asked)
    assert [request.answer.finish_reason for request in asked] == ["error", "error", "length"]
    assert all(isinstance(request.error, ZeroDivisionError) for request in asked[:2])
    assert asked[2].tokens == plain_greedy(PROMPTS[2], 12)
    with pytest.raises(ZeroDivisionError):
        made.generate(PROMPTS[0], stop_when=broken)


def test_a_rule_that_raises_ends_its_drafts_and_not_its_row() -> None:
    made = speculator(POOLS["good"], "fixed:1", lengths=(3,))
    request = ask(made, PROMPTS[0])
    for stop_rule in request.decider.stop_rules.values():
        stop_rule._stop_rule.should_continue = broken  # type: ignore[attr-defined]
    engine = made.engine()
    engine.admit(request)
    with pytest.warns(UserWarning, match="no longer drafts with it"):
        run(engine)
    assert request.tokens == plain_greedy(PROMPTS[0], 12)


def test_a_drafter_that_raises_is_left_out_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = speculator(POOLS["good+lookup"])
    engine = made.engine()
    asked = [ask(made, prompt, 30) for prompt in PROMPTS]
    for request in asked:
        engine.admit(request)
    engine.step()
    monkeypatch.setattr(NeuralSession, "propose", broken)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(engine)
    assert [str(w.message)[:20] for w in said] == ["drafter good raised "]
    assert [request.tokens for request in asked] == [plain_greedy(p, 30) for p in PROMPTS]


@pytest.mark.parametrize("name", ["match_length", "peek"])
def test_a_retrieval_drafter_that_raises_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = mixing(speculator(POOLS["good+lookup"]), "good", 4)
    engine = made.engine()
    engine.admit(request := ask(made, PROMPTS[0], 30))
    engine.step()
    monkeypatch.setattr(RetrievalSession, name, broken)
    with pytest.warns(UserWarning, match="drafter lookup raised") as said:
        run(engine)
    assert len(said) == 1
    assert request.tokens == plain_greedy(PROMPTS[0], 30)


def test_log_probabilities_are_those_of_a_plain_forward() -> None:
    made = packed()
    engine = made.engine()
    warm = SamplingParams(temperature=0.7, top_k=5)
    asked = [
        ask(made, PROMPTS[2], logprobs=3, prompt_logprobs=True),
        ask(made, PROMPTS[0], logprobs=0, sampling=warm, seed=3),
    ]
    run(engine, *asked)
    for request, num_top in zip(asked, (3, 0), strict=True):
        text = [*request.prompt, *request.tokens]
        with torch.inference_mode():
            logits = made.target.module(input_ids=torch.tensor([text])).logits[0]
        expected = logits.log_softmax(-1)
        told = [*request.logprobs.prompt, *request.logprobs.answer]
        first = len(text) - len(told)
        assert first == (1 if request is asked[0] else len(request.prompt))
        for position, said in enumerate(told, first):
            before = expected[position - 1]
            assert said.token == text[position]
            assert said.logprob == pytest.approx(float(before[said.token]), abs=1e-3)
            assert [t for t, _ in said.top] == before.topk(num_top).indices.tolist()


def test_outputs_add_up_and_what_cannot_start_has_a_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = speculator(POOLS["all"])
    made.tokenizer = made._learning._tokenizer = byte_tokenizer()
    engine = made.engine()
    asked = [
        ask(made, prompt, num, logprobs=1)
        for prompt, num in zip(PROMPTS[:3], (5, 12, 9), strict=True)
    ]
    wholes = {request.id: RequestOutput() for request in asked}
    start = engine._start
    failing = {asked[1].id: lambda: 1 / 0}
    monkeypatch.setattr(engine, "_start", lambda r: failing.get(r.id, lambda: start(r))())
    for request in asked:
        engine.admit(request)
    while engine.has_work:
        for new in engine.step():
            assert new.finish_reason or new.tokens, "an output has something new"
            wholes[new.request].add(new)
    for request, whole in zip(asked, wholes.values(), strict=True):
        assert (whole.tokens, whole.text) == (request.tokens, request.answer.text)
        assert (whole.sources, whole.logprobs) == (request.outbox.sources, request.logprobs.answer)
        assert len(whole.rounds) == request.stats.num_rounds == whole.stats.num_rounds
    assert [wholes[r.id].finish_reason for r in asked] == ["length", "error", "length"]
    assert wholes[asked[1].id].error == "division by zero"
    assert wholes[asked[0].id].text


def test_iterating_again_goes_on_where_it_was_left() -> None:
    for at in range(1, 9):
        generation = speculator(POOLS["lookup"]).start(PROMPTS[0], max_new_tokens=24)
        for number, _ in enumerate(generation, 1):
            if number == at:
                break
        for _ in generation:
            pass
        assert generation.results()[0].tokens == plain_greedy(PROMPTS[0], 24)


def test_a_generation_that_is_dropped_takes_its_requests_along() -> None:
    made = speculator(POOLS["lookup"])
    generation = made.start(PROMPTS, max_new_tokens=24)
    next(iter(generation))
    engine = generation._engine
    assert engine.num_running == 4
    del generation
    assert not engine.has_work


def test_an_interrupt_within_a_round_leaves_an_engine_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = speculator(POOLS["all"])
    generation = made.start(PROMPTS[0], max_new_tokens=24)
    next(iter(generation))

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(made.target, "extend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(generation)
    (result,) = generation.results()
    assert result.finish_reason == "interrupted"
    assert result.tokens == plain_greedy(PROMPTS[0], 24)[: len(result.tokens)]
    assert made.generate(PROMPTS[0], max_new_tokens=9).tokens == plain_greedy(PROMPTS[0], 9)


def test_a_thousand_requests_leave_no_storage_behind() -> None:
    made = speculator(POOLS["lookup"])
    engine = made.engine(max_rows=4, num_prefixes=2)
    sizes = []
    for number in range(200):
        run(engine, ask(made, [1 + number % 60, *LONG[:40]], 2))
        sizes.append(engine.num_cache_bytes)
    assert max(sizes[5:]) == min(sizes[5:])


def test_a_round_that_fails_leaves_its_tokens_to_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server can still read the tokens that a request emitted in a step that failed."""
    made = speculator(POOLS["good"], "fixed:1", lengths=(4,))
    engine = made.engine()
    request = ask(made, PROMPTS[0], 40)
    engine.admit(request)
    told = [token for output in engine.step() for token in output.tokens]
    monkeypatch.setattr(engine._loop, "costs", broken)  # after the round's tokens are committed
    with pytest.raises(ZeroDivisionError):
        engine.step()
    last = request.output()
    assert last.tokens
    assert told + last.tokens == plain_greedy(PROMPTS[0], 40)[: len(told + last.tokens)]
