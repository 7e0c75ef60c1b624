"""EAGLE heads in the engine: hidden states, exact catching up, trees and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.bandits.stop_rules import Fixed
from draftwise.controller.goodput import PROBE_TOKENS_PAID
from draftwise.drafters import eagle as eagle_module
from draftwise.drafters.eagle import EagleRunner
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.nn.cache import HiddenStates
from draftwise.nn.model import CausalModel
from draftwise.nn.sampling import SampledSpan, warped
from draftwise.speculator import Speculator
from draftwise.types import Draft, DraftwiseError, SamplingParams, TreeShape
from draftwise_lab.train.save import save_head
from eagles import eagle_head, features_of
from engine.pairs import PROMPTS, eagle, eagle_target, plain_greedy, reader, speculator
from sessions import Driven, opened

TARGET = eagle_target("llama", 64)
SAMPLED = SamplingParams(temperature=1.0)
TREE = TreeShape(3, 7)


def drafted(session: Driven, context: Context, tree: TreeShape | None) -> Draft:
    """The draft at the end of a text, with a fixed random stream so that drafts can be compared."""
    context.rng = np.random.default_rng(9)
    return session.propose([DraftTask(context, 4, Fixed(), tree)])[0]


def texts_of_rounds(num: int) -> list[list[int]]:
    """Prefixes of one text that grow by one to four tokens a round."""
    whole = PROMPTS[2] + plain_greedy(PROMPTS[2], 4 * num)
    ends = np.cumsum([len(PROMPTS[2]), *(1 + i % 4 for i in range(num))])
    return [whole[:end] for end in ends]


def draft_at_the_end(
    plays: list[bool], sampling: SamplingParams, tree: TreeShape | None = None
) -> Draft:
    """The last draft after rounds in which the head drafted or did not."""
    texts = texts_of_rounds(len(plays))
    context = Context(0, [], sampling, np.random.default_rng(0))
    session = opened(eagle(), [context])
    for text, is_played in zip(texts, [*plays, True], strict=True):
        context.tokens, context.features = text, features_of(TARGET, text)
        session.commit([context])
        if is_played:
            found = drafted(session, context, tree)
    return found


def same(one: Draft, other: Draft) -> bool:
    parents = [None if d.parents is None else d.parents.tolist() for d in (one, other)]
    return (
        one.tokens.tolist() == other.tokens.tolist()
        and parents[0] == parents[1]
        and all(np.allclose(one.q(n), other.q(n), atol=1e-5) for n in range(len(one)))
    )


NUM = 12
PLAYED = {
    "never before": [False] * NUM,
    "once, long ago": [True, *[False] * (NUM - 1)],
    "now and then": [i % 3 == 0 for i in range(NUM)],
}


@pytest.mark.usefixtures("without_gradients")
@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("chunk", [1024, 4])
@pytest.mark.parametrize("plays", PLAYED)
def test_after_rounds_unplayed_the_draft_is_that_of_one_who_always_played(
    plays: str, chunk: int, sampling: SamplingParams, tree: TreeShape | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    always = draft_at_the_end([True] * NUM, sampling, tree)
    monkeypatch.setattr(eagle_module, "CHUNK", chunk)
    found = draft_at_the_end(PLAYED[plays], sampling, tree)
    assert len(found) == (7 if tree else 4)
    assert same(found, always)


@pytest.mark.usefixtures("without_gradients")
@pytest.mark.parametrize("num", [20, 120])
def test_a_look_reads_the_end_of_a_text_alone(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe reads no more tokens than it is charged for, and changes no later draft."""
    text = (PROMPTS[2] + plain_greedy(PROMPTS[2], 100))[:num]
    fed, sound = list[int](), eagle_module.read

    def read(head: Any, cache: Any, rows: Any, tokens: Any, *rest: Any) -> Any:
        fed.append(sum(map(len, tokens)))
        return sound(head, cache, rows, tokens, *rest)

    monkeypatch.setattr(eagle_module, "read", read)
    drafts = []
    for looks in (True, False):
        context = Context(0, text, SAMPLED, np.random.default_rng(0))
        context.features = features_of(TARGET, text)
        session = opened(eagle(), [context])
        if looks:
            session.probe([context])
            assert fed == [min(num - 2, PROBE_TOKENS_PAID)]
        drafts.append(drafted(session, context, None))
    assert same(*drafts)


@pytest.mark.usefixtures("without_gradients")
def test_teeth_states_of_a_draft_that_stay_for_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: accepted tokens keep cache entries from the head's own hidden states."""
    honest = draft_at_the_end([False] * NUM, SAMPLED)

    def rollback(self: EagleRunner, context: Context, base: int, agreed: int) -> None:
        if base:  # as if two drafted tokens had been accepted
            self._cache.lengths[context.row] = base + 1

    monkeypatch.setattr(EagleRunner, "rollback", rollback)
    assert not same(draft_at_the_end([True] * NUM, SAMPLED), honest)


@pytest.mark.usefixtures("without_gradients")
def test_teeth_states_of_one_token_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the head reads the hidden states of the previous position."""
    honest = draft_at_the_end([True] * NUM, SAMPLED)
    sound = features_of(TARGET, [1]).__class__.get

    def get(self: Any, taps: Any, start: int, end: int) -> Any:
        states = sound(self, taps, max(0, start - 1), end - 1)
        return states if start else torch.cat((states[:1], states))

    monkeypatch.setattr(HiddenStates, "get", get)
    assert not same(draft_at_the_end([True] * NUM, SAMPLED), honest)


@pytest.mark.usefixtures("without_gradients")
def test_q_is_what_the_head_says_with_the_targets_own_states() -> None:
    """The first token's q and the backlog's scores equal those of one plain forward of the head."""
    text = PROMPTS[2] + plain_greedy(PROMPTS[2], 20)
    context = Context(0, text, SAMPLED, np.random.default_rng(0))
    context.features = features_of(TARGET, text)
    truth = TARGET.module(input_ids=torch.tensor([text])).logits[0]
    p = warped(truth[:-1], [SampledSpan(SAMPLED, len(text) - 1)]).probs.numpy()
    context.remember(1, [torch.as_tensor(row) for row in p])
    session = opened(eagle(), [context])
    (draft,) = session.propose([DraftTask(context, 1, Fixed())])
    (scores,) = session.score([context], everything=True)
    head, states = eagle().head, context.features.get(eagle().head.config.taps, 0, len(text) - 1)
    from draftwise.nn.cache import RaggedCache
    from draftwise.nn.eagle import read

    (found,) = read(head, RaggedCache(1, 80), [0], [text[1:]], [head.fuse(states)])
    q = head.logits(found).softmax(-1).numpy()
    assert np.allclose(draft.q(0), q[-1], atol=1e-5)
    assert scores is not None
    assert scores.start == 2
    expected = [np.minimum(p[i], q[i - 1]).sum() for i in range(1, len(text) - 1)]
    assert np.allclose(scores.alphas, expected, atol=1e-5)


@pytest.mark.parametrize("bulk", [1 << 24, 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_engine_keeps_the_targets_states_of_every_position(
    temperature: float, bulk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that need two forwards, batches, kept paths of trees, and rows that end early."""
    made = speculator(
        ["eagle", "good", "lookup"], lengths=(1, 4), trees=(None, TREE, TreeShape(8, 30))
    )
    monkeypatch.setattr(made.target, "bulk_logits", bulk)
    generation = made.start(PROMPTS, max_new_tokens=[30, 12, 18, 25], temperature=temperature)
    for count, _ in enumerate(generation):
        if count % 5:
            continue
        for request in generation._requests:
            tokens, kept = request.context.tokens, request.context.features
            assert kept is not None
            assert kept.length == len(tokens) - 1
            taps, expected = eagle().head.config.taps, features_of(TARGET, tokens)
            ours, theirs = (f.get(taps, 0, kept.length) for f in (kept, expected))
            assert torch.allclose(ours, theirs, atol=1e-4)


def test_without_an_eagle_head_nothing_is_tapped() -> None:
    made = speculator(["good", "lookup"])
    generation = made.start(PROMPTS, max_new_tokens=6)
    list(generation)
    assert not made.target.taps
    assert [r.context.features for r in generation._requests] == [None] * 4


def test_a_draft_without_hidden_states_is_a_bug_that_is_said() -> None:
    context = Context(0, [1, 2, 3], SAMPLED, np.random.default_rng(0))
    with pytest.raises(RuntimeError, match="tap it before prefill"):
        opened(eagle(), [context]).propose([DraftTask(context, 2, Fixed())])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path]:
    """A target's module, and a head for it on disk."""
    module = reader()
    head = eagle_head(CausalModel(module, "t"), draft_vocab_size=40, own=False)
    save_head(head, tmp_path)
    return module, tmp_path


@pytest.mark.parametrize(
    ("options", "plans"),
    [
        ("", ["eaglex2", "eaglex6"]),
        (",depth=4", ["eaglex2", "eaglex4"]),
        (",depth=2", ["eaglex2"]),
        (",top_k=4,total_tokens=12", ["eaglex2/tree4x12", "eaglex6/tree4x12"]),
        (",depth=5,top_k=8", ["eaglex2/tree8x60", "eaglex5/tree8x60"]),
    ],
)
def test_a_spec_with_limits(saved: tuple[Any, Path], options: str, plans: list[str]) -> None:
    module, folder = saved
    made = Speculator.from_pretrained(
        module, [f"eagle:{folder}{options}"], preset="metasd", lengths=[2, 6]
    )
    assert [str(plan) for plan in made.plans] == plans
    result = made.generate(PROMPTS[0], max_new_tokens=8)
    assert result.tokens == plain_greedy(PROMPTS[0], 8)
    asked = Speculator.from_pretrained(
        module, [f"eagle:{folder}{options}"], preset="metasd", lengths=[2], trees=["2x4"]
    )
    assert [str(plan) for plan in asked.plans] == ["eaglex2/tree2x4"]


def test_what_a_spec_cannot_say(saved: tuple[Any, Path]) -> None:
    module, folder = saved
    for spec, complaint in (
        (f"eagle:{folder},depth=0", "depth is 0: it must be a whole number from 1"),
        (f"eagle:{folder},width=2", "there is no model folder .*,width=2: give"),
        ("eagle", "needs path"),
        ("eagle:./gone", r"eagle:\./gone: there is no model folder \./gone"),
    ):
        with pytest.raises(DraftwiseError, match=complaint):
            Speculator.from_pretrained(module, [spec])
    other = reader(hidden_size=48)
    with pytest.raises(DraftwiseError, match=r"target of hidden size 32, and Llama.* has 48"):
        Speculator.from_pretrained(other, [f"eagle:{folder}"])
