"""The contract of every drafter in the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import registry
from draftwise.bandits.stop_rules import Fixed
from draftwise.drafters.lm import LMRunner
from draftwise.drafters.protocol import Context, Drafter, DraftTask
from draftwise.registry import DRAFTERS
from draftwise.types import Draft, DraftStep, SamplingParams
from eagles import features_of
from engine.pairs import INSIDE, PROMPTS, eagle_target, lm, spec, store
from sessions import opened

ALL = pytest.mark.parametrize("name", sorted(DRAFTERS))
GREEDY, SAMPLED = SamplingParams(), SamplingParams(1.0, 8, 0.9, 1.2)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make(name: str) -> Drafter:
    """Build a drafter: from a model, for ``datastore`` from a file, or by name."""
    if name == "lm":
        return lm("good")
    if name == "datastore":
        return store()
    if name in INSIDE:
        return INSIDE[name]("llama", 64)
    drafter: Drafter = registry.build("drafter", spec(DRAFTERS, name), {"name": name})
    return drafter


def contexts_of(sampling: SamplingParams, prompts: Sequence[list[int]] = PROMPTS) -> list[Context]:
    for make_inside in INSIDE.values():  # they read the target's hidden states
        make_inside("llama", 64)
    return [
        Context(
            row,
            list(prompt),
            sampling,
            np.random.default_rng(row),
            features=features_of(eagle_target("llama", 64), prompt),
        )
        for row, prompt in enumerate(prompts)
    ]


def limited(session: Any, num_positions: int = 30) -> Any:
    """Limit a model drafter's session to ``num_positions`` positions."""
    if isinstance(getattr(session, "_reader", None), LMRunner):
        session._reader._cache.capacity = num_positions
    return session


def propose(session: Any, contexts: Sequence[Context], length: int = 5) -> list[Draft]:
    return list(session.propose([DraftTask(context, length, Fixed()) for context in contexts]))


def certain(context: Context, tokens: Sequence[int]) -> list[Any]:
    """The target's p for a deterministic continuation, as contexts keep it."""
    is_greedy = context.sampling.temperature == 0
    return list(tokens) if is_greedy else list(torch.eye(64)[list(tokens)])


def verified(
    session: Any, contexts: Sequence[Context], drafts: Sequence[Draft] | None, num_accepted: int
) -> None:
    """Let a deterministic target accept some drafted tokens and then emit a different one."""
    for row, context in enumerate(contexts):
        drafted = drafts[row].tokens.tolist() if drafts else []
        kept = drafted[:num_accepted]
        bonus = 11 if drafted[len(kept) : len(kept) + 1] != [11] else 12
        context.extend([*kept, bonus], certain(context, [*kept, bonus]))
        context.features = features_of(eagle_target("llama", 64), context.tokens)
    session.commit(contexts)


def same(one: Draft, other: Draft) -> bool:
    if one.tokens.tolist() != other.tokens.tolist():
        return False
    return all(
        np.allclose(one.q(node), other.q(node), atol=1e-5) for node in range(len(one.tokens))
    )


@ALL
@BOTH
@pytest.mark.parametrize("length", [1, 5])
def test_drafts_are_legal(name: str, sampling: SamplingParams, length: int) -> None:
    contexts = contexts_of(sampling)
    before = [list(context.tokens) for context in contexts]
    for draft in propose(opened(make(name), contexts), contexts, length):
        assert len(draft) <= length
        assert set(draft.sources) <= {make(name).name}
        assert len(draft.sources) == len(draft)
        for node, token in enumerate(draft.tokens.tolist()):
            assert 0 <= token < 64
            q = draft.q(node)
            if not isinstance(q, int):
                assert q[token] > 0, "drawn from another distribution"
                assert q.sum() == pytest.approx(1, abs=1e-5)
    assert [context.tokens for context in contexts] == before


@ALL
def test_a_stop_rule_that_says_no_makes_an_empty_draft(name: str) -> None:
    class No:
        needs_probs = never_stops = waits_for_hidden = False
        needs_hidden = 0

        def should_continue(self, step: DraftStep) -> bool:
            return False

        def learn(self, num_drafted: int, num_accepted: int) -> None:
            raise AssertionError("nothing was drafted")

    contexts = contexts_of(GREEDY)[:1]
    (draft,) = opened(make(name), contexts).propose([DraftTask(contexts[0], 4, No())])
    assert len(draft) == 0


@ALL
@BOTH
@pytest.mark.parametrize("num_accepted", [0, 2, 5])
def test_what_was_rejected_leaves_no_trace(
    name: str, sampling: SamplingParams, num_accepted: int
) -> None:
    """The next draft equals that of a fresh session with the same text."""
    contexts = contexts_of(sampling)
    session = opened(make(name), contexts)
    verified(session, contexts, propose(session, contexts), num_accepted)
    fresh = contexts_of(sampling, [context.tokens for context in contexts])
    for context, again in zip(contexts, fresh, strict=True):
        context.rng, again.rng = np.random.default_rng(9), np.random.default_rng(9)
    expected = propose(opened(make(name), fresh), fresh)
    for one, other in zip(propose(session, contexts), expected, strict=True):
        assert same(one, other)


@ALL
@BOTH
def test_rows_do_not_know_each_other(name: str, sampling: SamplingParams) -> None:
    contexts = contexts_of(sampling)
    together = propose(opened(make(name), contexts), contexts)
    for row, draft in enumerate(together):
        (context,) = contexts_of(sampling)[row : row + 1]
        context.row = 0
        assert same(draft, propose(opened(make(name), [context]), [context])[0])


@ALL
@BOTH
def test_dropped_rows_leave_the_others_as_they_were(name: str, sampling: SamplingParams) -> None:
    contexts = contexts_of(sampling)
    session = opened(make(name), contexts)
    propose(session, contexts)
    session.commit(contexts)
    rest = [contexts[3], contexts[1]]
    session.close(0)
    session.close(2)
    for row, context in enumerate(rest):
        context.rng = np.random.default_rng(row)
    fresh = contexts_of(sampling, [PROMPTS[3], PROMPTS[1]])
    expected = propose(opened(make(name), fresh), fresh)
    for one, other in zip(propose(session, rest), expected, strict=True):
        assert same(one, other)


@ALL
@BOTH
def test_scores_stay_with_their_rows(name: str, sampling: SamplingParams) -> None:
    """Scores from a draft must be reported for the request that they belong to."""
    contexts = contexts_of(sampling)
    session = opened(make(name), contexts)
    verified(session, contexts, propose(session, contexts), num_accepted=2)
    all_rows = session.score(contexts, everything=False)
    contexts = contexts_of(sampling)
    session = opened(make(name), contexts)
    verified(session, contexts, propose(session, contexts), num_accepted=2)
    session.close(0)
    session.close(2)
    rest = [contexts[3], contexts[1]]
    for scores, before in zip(
        session.score(rest, everything=False), [all_rows[3], all_rows[1]], strict=True
    ):
        assert (scores is None) == (before is None)
        if scores is not None and before is not None:
            assert scores.start == before.start
            assert scores.alphas.tolist() == before.alphas.tolist()


@ALL
@BOTH
def test_scores_are_probabilities_told_once(name: str, sampling: SamplingParams) -> None:
    contexts = contexts_of(sampling)
    session = opened(make(name), contexts)
    told: list[set[int]] = [set() for _ in contexts]
    for step in range(6):
        drafts = propose(session, contexts) if step % 2 else None
        verified(session, contexts, drafts, num_accepted=step % 3)
        if step == 4:  # score in between
            reports = session.probe(contexts)
        else:
            reports = session.score(contexts, everything=step % 3 == 2)
        for context, known, scores in zip(contexts, told, reports, strict=True):
            if scores is None:
                continue
            positions = set(range(scores.start, scores.start + len(scores.alphas)))
            assert not positions & known, "told twice"
            known |= positions
            assert max(positions) < len(context.tokens)
            for values in (scores.alphas, scores.ratios):
                assert len(values) == len(positions)
                assert ((values >= 0) & (values <= 1)).all()
            assert (scores.matches is None) != make(name).retrieves
    # hidden states precede a token from the second token on
    earliest = 2 if name in INSIDE else 1
    for prompt, context, known in zip(PROMPTS, contexts, told, strict=True):
        assert set(range(max(len(prompt), earliest), len(context.tokens))) <= known


@ALL
def test_nothing_new_is_nothing_told(name: str) -> None:
    contexts = contexts_of(GREEDY)
    session = opened(make(name), contexts)
    verified(session, contexts, None, 0)
    session.score(contexts, everything=True)
    assert session.score(contexts, everything=True) == [None] * 4


@ALL
def test_a_text_that_fills_the_positions_gets_no_error(name: str) -> None:
    """At the end of its positions a drafter proposes fewer tokens or none."""
    contexts = contexts_of(GREEDY, [[5, 9] * 14, [7]])
    session = limited(opened(make(name), contexts, expected=30))
    for _ in range(2):
        drafts = propose(session, contexts)
        assert [len(draft) <= 5 for draft in drafts] == [True, True]
        verified(session, contexts, drafts, 0)
        session.score(contexts, everything=True)


@ALL
def test_a_glance_at_a_text_beyond_the_positions_gets_no_error(name: str) -> None:
    """Texts may outgrow the positions of a drafter that is probed but seldom drafts."""
    (context,) = contexts_of(GREEDY, [[5, 9, 2, 7] * 5])
    session = limited(opened(make(name), [context], expected=30))
    propose(session, [context])
    session.commit([context])
    context.extend([3, 8] * 20, certain(context, [3, 8] * 20))
    context.features = features_of(eagle_target("llama", 64), context.tokens)
    session.commit([context])
    (scores,) = session.probe([context])
    assert scores is None or scores.start + len(scores.alphas) <= 60


@ALL
@BOTH
def test_a_glance_at_a_prompt_changes_no_draft(name: str, sampling: SamplingParams) -> None:
    """Short and long prompts, some beyond the probe's size; scores end at the prompt's end."""
    prompts = [[5, 9, 2, 7] * 30, [7, 3, 1], [4, 4, 8] * 25, [6]]
    fresh = contexts_of(sampling, prompts)
    expected = propose(opened(make(name), fresh), fresh)
    contexts = contexts_of(sampling, prompts)
    session = opened(make(name), contexts)
    longer = [context for context in contexts if len(context.tokens) > 1]
    for context, scores in zip(longer, session.probe(longer), strict=True):
        if scores is not None:
            assert scores.start + len(scores.alphas) == len(context.tokens)
    for one, other in zip(propose(session, contexts), expected, strict=True):
        assert same(one, other)
