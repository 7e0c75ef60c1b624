"""Sink and window: the tokens of long text that a drafter reads, its memory, and catching up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.bandits.stop_rules import Fixed
from draftwise.drafters import ROOM, Context, DraftTask, LMDrafter, LMRunner, Window
from draftwise.nn import CausalModel, SampledSpan, warped
from draftwise.speculator import Speculator
from draftwise.types import Draft, DraftwiseError, SamplingParams, TreeShape
from engine.pairs import PROMPTS, lm, plain_greedy, reader, speculator, target, windowed
from models import near_copy
from sessions import Driven, opened

SAMPLED = SamplingParams(1.0, 20, 0.95, 1.2)
TEXT = np.random.default_rng(0).integers(0, 64, 300).tolist()
WINDOW = Window(sink=3, window=16)


pytestmark = pytest.mark.usefixtures("without_gradients")


def session_and_context(num: int = 20, capacity: int = 400) -> tuple[Driven, Context]:
    drafter = windowed(sink=WINDOW.sink, window=WINDOW.window)
    context = Context(0, TEXT[:num], SAMPLED, np.random.default_rng(9))
    return opened(drafter, [context], capacity), context


def propose(session: Driven, context: Context, length: int = 4) -> Draft:
    context.rng = np.random.default_rng(9)
    return session.propose([DraftTask(context, length, Fixed())])[0]


def seen(text: Sequence[int]) -> list[int]:
    """The tokens of a text that the drafter reads."""
    skipped = WINDOW.skipped(len(text))
    return [*text[: WINDOW.sink], *text[WINDOW.sink + skipped :]] if skipped else list(text)


def own_q(context: Context, drafted: list[int]) -> list[Any]:
    """q from one plain forward over the tokens that the drafter reads."""
    read = [*seen(context.tokens), *drafted]
    logits = target_of_drafter()(input_ids=torch.tensor([read])).logits[0]
    return distributions(logits[-len(drafted) - 1 :], context.tokens, drafted)


def distributions(logits: torch.Tensor, text: Sequence[int], drafted: Sequence[int]) -> list[Any]:
    span = SampledSpan(SAMPLED, len(logits), text, len(text), drafted)
    return list(warped(logits, [span]).probs.numpy())


def target_of_drafter() -> Any:
    return lm("good").model.module


@pytest.mark.parametrize("num", [5, 18, 19, 20, 27, 28, 100, 299])
def test_what_is_read(num: int) -> None:
    """Short texts are read whole; of longer ones the sink and the last 9 to 16 tokens are read."""
    read = seen(TEXT[:num])
    kept = len(read) - WINDOW.sink
    assert read[: WINDOW.sink] == TEXT[: WINDOW.sink]
    assert read[WINDOW.sink :] == TEXT[num - kept : num]
    assert kept == num - 3 if num <= 19 else 9 <= kept <= 16


@pytest.mark.parametrize("every", [1, 3, 1000], ids=["always", "now and then", "at last"])
def test_q_is_what_the_model_says_of_sink_and_window(every: int) -> None:
    """q does not depend on the rounds in which the drafter drafts; penalties use the whole text."""
    session, context = session_and_context()
    for step, num in enumerate(range(20, 120, 3)):
        context.tokens = TEXT[:num]
        session.commit([context])
        if step % every == 0 or num + 3 >= 120:
            draft = propose(session, context)
            truth = own_q(context, draft.tokens.tolist())
            for node in range(4):
                assert np.allclose(draft.q(node), truth[node], atol=1e-5)


def test_teeth_a_window_that_slides_without_being_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted bug: the window moves the cached keys without recomputing their positions."""

    def follow(self: LMRunner, context: Context) -> int:
        row, sink, skipped = context.row, WINDOW.sink, WINDOW.skipped(len(context.tokens))
        moved, end = skipped - self._skipped[row], self._cache.lengths[row]
        self._skipped[row] = skipped
        if moved and end - moved >= sink:
            storage = self._cache.storage(row)
            for stored in (*storage.keys.values(), *storage.values.values()):
                stored[:, :, sink : end - moved] = stored[:, :, sink + moved : end].clone()
            self._cache.lengths[row] = end - moved
        return self._cache.capacity - (len(context.tokens) - skipped)

    monkeypatch.setattr(LMRunner, "follow", follow)
    with pytest.raises(AssertionError):
        test_q_is_what_the_model_says_of_sink_and_window(1)


def test_scores_are_those_of_the_same_qs() -> None:
    """Drafted positions are scored with the q drawn from, the backlog with that round's window."""
    session, context = session_and_context()
    draft = propose(session, context)
    p = [torch.full((64,), 1 / 64)] * 3
    kept = draft.tokens.tolist()[:2]
    context.extend([*kept, 5], p)
    session.commit([context])
    (scores,) = session.score([context], everything=False)
    assert scores is not None
    assert scores.start == 20
    expected = [np.minimum(1 / 64, draft.q(node)).sum() for node in range(3)]
    assert scores.alphas == pytest.approx(expected)
    context.extend(TEXT[23:33], [torch.full((64,), 1 / 64)] * 10)
    session.commit([context])
    (scores,) = session.score([context], everything=True)
    assert scores is not None
    assert scores.start + len(scores.alphas) == 33
    read = seen(context.tokens)
    logits = target_of_drafter()(input_ids=torch.tensor([read])).logits[0]
    q = distributions(logits[-5:-1], context.tokens[:29], context.tokens[29:])
    expected = [np.minimum(np.full(64, 1 / 64), one).sum() for one in q]
    assert scores.alphas[-4:] == pytest.approx(expected, abs=1e-5)


def test_coming_back_costs_the_window_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    session, context = session_and_context()
    propose(session, context)
    fed: list[int] = []
    sound = CausalModel.extend

    def extend(self: CausalModel, cache: Any, rows: Any, tokens: Any, *more: Any, **o: Any) -> Any:
        fed.extend(len(one) for one in tokens)
        return sound(self, cache, rows, tokens, *more, **o)

    monkeypatch.setattr(CausalModel, "extend", extend)
    context.tokens = TEXT
    session.commit([context])
    propose(session, context, length=1)
    assert sum(fed) <= WINDOW.window  # the sink is cached


def test_the_cache_is_bounded_on_a_long_text() -> None:
    for drafter, most in ((windowed(sink=3, window=16), 3 + 16 + ROOM), (lm("good"), 700)):
        context = Context(0, TEXT[:50], SAMPLED, np.random.default_rng(0))
        session = opened(drafter, [context], 700)
        propose(session, context)
        # keys and values of 2 layers, 2 heads of 8 floats
        assert session._reader._cache.num_bytes <= 2 * 2 * 2 * 8 * 4 * most


@pytest.mark.parametrize("tree", [None, TreeShape(8, 40)])
def test_a_draft_that_does_not_fit_behind_the_window_is_cut(tree: TreeShape | None) -> None:
    session, context = session_and_context(100)
    (draft,) = session.propose([DraftTask(context, 200, Fixed(), tree)])
    read = 100 - WINDOW.skipped(100)
    room = WINDOW.num_slots - read
    assert draft.depth == (room if tree is None else draft.depth) > 0
    assert draft.depth <= room


def test_a_drafter_of_few_positions_goes_on_beyond_them() -> None:
    """On 64 tokens a drafter with 32 positions still drafts if it has a window."""
    prompt = PROMPTS[2]
    short = reader(max_position_embeddings=32)
    short.load_state_dict(near_copy(target().module, 0.02).state_dict())
    model = CausalModel(short, "short")
    shares = []
    for window in (None, Window(2, 16)):
        pool = [LMDrafter("short", model, target(), None, window)]
        made = Speculator(target(), None, pool, speculator(["lookup"], "fixed:1").setting)
        result = made.generate(prompt, max_new_tokens=44)
        assert result.tokens == plain_greedy(prompt, 44)
        shares.append(result.stats.num_drafted)
    assert shares[0] < 20 < shares[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lm("good").model.module.save_pretrained(tmp_path / "small")
    return tmp_path / "small"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("width=3", "no option 'width'; its options are: path, window, sink"),
        ("sink=3", "sink=3 needs a window"),
        ("sink=-1,window=8", "sink is -1: it must be a whole number from 0"),
        ("window=1", "window is 1: it must be a whole number from 2"),
        ("window=600", "a sink of 4 and a window of 600 tokens, and a draft, do not fit into its"),
        ("window=many", "which is not int"),
    ],
)
def test_what_a_spec_cannot_say(folder: Path, options: str, complaint: str) -> None:
    with pytest.raises(DraftwiseError, match=complaint):
        Speculator.from_pretrained(target().module, [f"lm:{folder},{options}"])
