"""The retrieval index, compiled and interpreted, equals the reference, which equals a search."""

from __future__ import annotations

import gc
import itertools
import logging
import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.kinds import interpreted
from draftwise.compiled import HAS_NUMBA, warm_up
from draftwise.controller.controller import Controller, Limits
from draftwise.retrieval import index as retrieval
from draftwise.retrieval.index import DEFAULT_RULE, SLICE, RetrievalIndex, most_frequent_path
from draftwise.retrieval.kernels import MatchRule, Proposals
from retrieval.plain_index import PlainIndex

KINDS = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")),
]
NUM_SLOTS = 5


def make_index(*args: Any, compiled: bool, **options: int) -> RetrievalIndex:
    module = retrieval if compiled else interpreted("retrieval.index")
    made: RetrievalIndex = module.RetrievalIndex(*args, **options)
    return made


def rows_of(found: Proposals) -> list[dict[str, Any]]:
    """The documented fields of proposals, as plain values."""
    return [
        {
            "tokens": found.tokens[row, : found.num_tokens[row]].tolist(),
            "match": int(found.match[row]),
            "hits": int(found.hits[row]),
            "agree": int(found.agree[row]),
            "shared": bool(found.shared[row]),
        }
        for row in range(len(found.match))
    ]


def proposal(index: RetrievalIndex, slot: int, limit: int = 16) -> dict[str, Any]:
    return rows_of(index.propose([slot], [limit]))[0]


def flat(texts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(texts))


def finish(index: RetrievalIndex) -> None:
    while index.work(1000):
        pass


def answered(index: RetrievalIndex, slot: int, answer: list[int], **options: Any) -> None:
    """Run a whole request whose answer enters the history."""
    index.open(slot, [], **options)
    index.extend([slot], answer, [len(answer)])
    index.close(slot)
    finish(index)


class Pair:
    """The index and the reference under the same operations, compared after each operation."""

    def __init__(self, kind: bool, rng: random.Random, history_tokens: int) -> None:
        self.rng = rng
        rule = rng.choice([DEFAULT_RULE, MatchRule(3, 1, 4, 1), MatchRule(20, 5, 32, 2)])
        index = make_index(6, history_tokens, rule, compiled=kind)
        self.both: list[Any] = [PlainIndex(6, history_tokens, rule), index]
        self.vocabulary = rng.choice([1, 2, 3, 8, 40])
        self.open: list[int] = []

    def text(self, most: int) -> list[int]:
        """Random tokens; sometimes a short phrase repeated."""
        num = self.rng.randrange(most + 1)
        tokens = [self.rng.randrange(self.vocabulary) for _ in range(num)]
        if self.rng.random() < 0.3:
            tokens = (tokens[: self.rng.randrange(1, 12)] * num)[:num]
        return tokens

    def step(self) -> None:
        steps = ["begin", "extend", "extend", "read", "propose", "after", "find", "share", "end"]
        getattr(self, self.rng.choice(steps))()
        if self.rng.random() < 0.4:
            num = self.rng.choice([0, 1, 7, 50, 500])
            left = [index.work(num) for index in self.both]
            assert left[0] == left[1]

    def begin(self) -> None:
        free = [slot for slot in range(NUM_SLOTS) if slot not in self.open]
        if free:
            slot, text = self.rng.choice(free), self.text(self.rng.choice([3, 40, 300]))
            options: Any = {"tenant": self.rng.randrange(2), "shares": self.rng.random() < 0.8}
            options["num_prompt"] = self.rng.choice([None, len(text) + self.rng.randrange(9)])
            for index in self.both:
                index.open(slot, text, **options)
            self.open.append(slot)

    def end(self) -> None:
        if self.open:
            slot = self.open.pop(self.rng.randrange(len(self.open)))
            assert self.both[0].text(slot).tolist() == self.both[1].text(slot).tolist()
            for index in self.both:
                index.close(slot)

    def extend(self) -> None:
        texts = [self.text(self.rng.choice([0, 4, 4, 4, 90])) for _ in self.open]
        for index in self.both:
            index.extend(self.open, flat(texts), [len(text) for text in texts])

    def read(self) -> None:
        for slot in self.open[:1]:
            text = self.text(20)
            num = self.rng.randrange(len(text) + 1)
            for index in self.both:  # the texts of a drafter are indexed to their end
                while index.work(1000):
                    pass
            found = [index.read(slot, text, num) for index in self.both]
            assert found[0] == found[1]

    def find(self) -> None:
        for slot in self.open:
            # 300: more than the room that an index keeps for a draft
            draft, (plain, index) = self.text(self.rng.choice([5, 5, 5, 300])), self.both
            match = index.find(slot, draft)
            assert (match.length, match.rows(7)) == plain.find(slot, draft, 7)
            path = most_frequent_path(match.rows(1), 1)
            assert match.proposal() == (path[0][0] if path else -1)

    def share(self) -> None:
        room = self.rng.choice([0, 5, 20])
        for slot in self.open:
            for index in self.both:
                index.share(slot, room)

    def propose(self) -> None:
        limits = [self.rng.randrange(8) for _ in self.open]
        found = [rows_of(index.propose(self.open, limits)) for index in self.both]
        assert found[0] == found[1]

    def after(self) -> None:
        drafts = np.array([(self.text(9) + [-1] * 9)[:9] for _ in self.open]).reshape(-1, 9)
        nums = [self.rng.randrange(1 + sum(row >= 0)) for row in drafts]
        limits = [self.rng.randrange(8) for _ in self.open]
        found = [
            rows_of(index.propose_after(self.open, drafts, nums, limits)) for index in self.both
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 3, 100, 4096]))
def test_the_index_equals_the_reference(kind: bool, seed: int, history_tokens: int) -> None:
    pair = Pair(kind, random.Random(seed), history_tokens)
    for _ in range(60):
        pair.step()
    first, second = pair.both
    texts = [[index.text(slot).tolist() for slot in pair.open] for index in (first, second)]
    assert texts[0] == texts[1]


def longest_by_search(text: list[int], others: list[list[int]]) -> tuple[int, set[int]]:
    """The longest match of the text's end, at most 32, and the tokens that follow it anywhere."""
    for length in range(min(len(text), 32), 0, -1):
        for corpus in ([text], others):
            nexts = {
                other[at + length]
                for other in corpus
                for at in range(len(other) - length)
                if other[at : at + length] == text[-length:]
            }
            if nexts:
                return length, nexts
    return 0, set()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_longest_match_is_found(kind: bool, data: st.DataObject) -> None:
    """Texts are so short that no chain exceeds the number of places examined."""
    tokens = st.lists(st.integers(0, 3), max_size=18)
    index, others = make_index(compiled=kind), data.draw(st.lists(tokens, max_size=1))
    for other in others:
        answered(index, 1, other)
    text = data.draw(tokens)
    index.open(0, text, num_prompt=0)
    match, nexts = longest_by_search(text, others)
    if match < 8 and any(text.count(token) > 8 for token in text):
        return  # only the newest eight places are considered
    found = proposal(index, 0)
    assert found["match"] == match
    assert not match or found["tokens"][0] in nexts


@pytest.mark.parametrize("kind", KINDS)
class TestProposals:
    def test_the_history_ends_where_the_answer_did(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        answered(index, 0, [1, 2, 3, 4])
        answered(index, 0, [5, 6])
        index.open(1, [1, 2])
        assert proposal(index, 1)["tokens"] == [3, 4]
        assert proposal(index, 1)["shared"]
        index.extend([1], [3, 4], [2])
        assert proposal(index, 1)["match"] == 0

    def test_the_own_text_comes_first_at_equal_length(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        answered(index, 0, [1, 2, 9])
        index.open(1, [1, 2, 3, 1, 2], num_prompt=3)
        assert proposal(index, 1, 1)["tokens"] == [3]
        index.close(1)
        answered(index, 0, [8, 1, 2, 9])
        index.open(1, [1, 2, 3, 8, 1, 2], num_prompt=3)
        assert proposal(index, 1, 1) == {
            "tokens": [9], "match": 3, "hits": 1, "agree": 1, "shared": True,
        }  # fmt: skip

    def test_after_a_draft(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        index.open(0, [1, 2, 3, 4, 5, 1])
        found = index.propose_after([0, 0], np.array([[2, 3], [2, 3]]), [2, 0], [3, 3])
        assert [row["tokens"] for row in rows_of(found)] == [[4, 5, 1], []]
        assert found.match.tolist() == [3, 0]

    def test_a_limit_of_nothing_still_says_what_matches(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        index.open(0, [1, 2, 1])
        assert proposal(index, 0, 0) == {
            "tokens": [], "match": 1, "hits": 1, "agree": 1, "shared": False,
        }  # fmt: skip

    def test_the_last_tokens_of_a_prompt_lead_to_the_answer(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        index.open(0, list(range(100, 130)))
        index.extend([0], [1, 2], [2])
        index.close(0)
        finish(index)
        index.open(0, [128, 129])
        assert proposal(index, 0)["tokens"] == [1, 2]
        index.close(0)
        index.open(0, [110, 111])
        assert proposal(index, 0)["match"] == 0

    def test_an_ending_that_all_prompts_share_counts_as_one_token(self, kind: bool) -> None:
        """The words of a chat template say nothing about the answer, whatever their number."""
        index, template = make_index(compiled=kind), [90, 91, 92, 93, 94]
        first = [*range(100, 140), *template]
        index.open(0, first)
        index.extend([0], [1, 2, 3, 4], [4])
        index.close(0)
        finish(index)
        index.open(0, [*range(200, 240), *template])
        assert proposal(index, 0)["tokens"] == [1, 2, 3, 4]
        assert proposal(index, 0)["match"] == 1
        assert index.find(0, [1]).length == 2  # each token of the answer counts
        assert index.read(0, [1, 2], 2) == [(1, 1), (2, 2)]
        assert proposal(index, 0)["match"] == 3
        index.close(0)
        for prompt in (first, [7, *range(108, 140)[-27:], *template]):
            index.open(0, prompt)
            assert proposal(index, 0)["match"] == 32, "the same prompt, as far as it is kept"
            index.close(0)

    def test_a_short_prompt_that_comes_again_counts_whole(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        index.open(0, [5, 6, 7])
        index.extend([0], [1, 2], [2])
        index.close(0)
        finish(index)
        for prompt, match in (([5, 6, 7], 3), ([4, 6, 7], 1)):
            index.open(0, prompt)
            assert proposal(index, 0)["match"] == match
            index.close(0)

    def test_the_own_text_comes_before_an_ending_of_the_prompt(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        index.open(0, [5, 6, 90, 91])
        index.extend([0], [1, 2], [2])
        index.close(0)
        finish(index)
        index.open(0, [91, 8, 90, 91])
        assert proposal(index, 0, 1) == {
            "tokens": [8], "match": 1, "hits": 1, "agree": 1, "shared": False,
        }  # fmt: skip

    def test_large_token_ids(self, kind: bool) -> None:
        index, large = make_index(compiled=kind), 2**31 - 1
        index.open(0, [large, 0, large - 1, large])
        assert proposal(index, 0, 2)["tokens"] == [0, large - 1]


@pytest.mark.parametrize("kind", KINDS)
class TestIsolation:
    def test_no_token_of_another_tenant(self, kind: bool) -> None:
        """A tenant never gets another tenant's tokens, whatever their texts have in common."""
        index, secret = make_index(compiled=kind), 999
        rng = random.Random(0)
        for _ in range(50):
            answer = [rng.randrange(3) for _ in range(20)]
            answered(index, 0, [*answer, secret], tenant=1)
            answered(index, 0, answer, tenant=2)
            for tenant, expects in ((1, True), (2, False), (0, False)):
                index.open(4, answer, tenant=tenant)
                assert (secret in proposal(index, 4)["tokens"]) == expects
                index.close(4)

    def test_owners_are_checked_even_where_hashes_collide(self, kind: bool) -> None:
        index = make_index(compiled=kind, history=4)  # four buckets for everything
        answered(index, 0, [5, 6], tenant=1)
        for tenant in range(100):
            index.open(1, [5], tenant=tenant)
            assert proposal(index, 1)["tokens"] == ([6] if tenant == 1 else []), tenant
            index.close(1)

    def test_what_is_not_shared_stays_out(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        answered(index, 0, [1, 2, 3], shares=False)
        index.open(0, [1, 2], shares=False)
        assert proposal(index, 0)["match"] == 0
        index.close(0)
        answered(index, 1, [1, 2, 3])
        index.open(0, [1, 2], shares=False)
        assert proposal(index, 0)["tokens"] == [3]  # reading is allowed

    def test_the_oldest_answers_are_forgotten(self, kind: bool) -> None:
        index = make_index(compiled=kind, history=64)
        for num in range(40):
            answered(index, 0, [num, 1000 + num, 2000 + num])
        for num in range(40):
            index.open(0, [num])
            assert (proposal(index, 0)["match"] == 1) == (num >= 24)
            index.close(0)


@pytest.mark.parametrize("kind", KINDS)
class TestWork:
    def test_a_long_prompt_is_indexed_in_slices(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        text = list(range(10_000))
        index.open(0, [*text, 9_000])
        assert proposal(index, 0)["match"] == 0  # the place is not indexed yet
        index.extend([0], [9_001], [1])
        assert index.work(SLICE)
        finish(index)
        assert proposal(index, 0)["tokens"][:2] == [9_002, 9_003]
        index.extend([0], [17], [1])
        index.extend([0], [18], [1])
        assert proposal(index, 0)["tokens"][0] == 19

    def test_texts_grow_while_others_run(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        rng = random.Random(1)
        texts: list[list[int]] = [[], [3, 4], []]
        for slot, text in enumerate(texts):
            index.open(slot, text)
        for _ in range(60):
            new = [[rng.randrange(50) for _ in range(rng.randrange(30))] for _ in texts]
            index.extend([0, 1, 2], flat(new), [len(part) for part in new])
            for text, part in zip(texts, new, strict=True):
                text += part
        for slot, text in enumerate(texts):
            assert index.text(slot).tolist() == text
            index.extend([slot], text[100:140], [40])
            assert proposal(index, slot, 5)["tokens"] == text[140:145]

    def test_answers_that_wait_for_ever_take_no_more_than_the_history(self, kind: bool) -> None:
        index = make_index(compiled=kind, history=128)
        for _ in range(100):
            index.open(0, [])
            index.extend([0], range(20), [20])
            index.close(0)
        assert index.memory().waiting <= 4 * (128 + 20)


@pytest.mark.parametrize("kind", KINDS)
class TestRefusals:
    def test_nothing_is_changed(self, kind: bool) -> None:
        index = make_index(compiled=kind)
        index.open(2, [1, 2, 1])
        calls: list[Any] = [
            (lambda: index.open(2, [1]), "already open"),
            (lambda: index.open(-1, [1]), "slot"),
            (lambda: index.open(1, [-1]), "negative"),
            (lambda: index.open(1, [1], tenant=-1), "tenant"),
            (lambda: index.close(1), "not open"),
            (lambda: index.length(1), "not open"),
            (lambda: index.text(99), "not open"),
            (lambda: index.extend([2, 1], [1, 1], [1, 1]), "not open"),
            (lambda: index.extend([2, 99], [1, 1], [1, 1]), "not open"),
            (lambda: index.extend([2], [1, 1], [1]), "add up"),
            (lambda: index.extend([2, 2], [1], [2, -1]), "add up"),
            (lambda: index.extend([2], [-1], [1]), "negative"),
            (lambda: index.propose([1], [1]), "not open"),
            (lambda: index.propose_after([2], np.array([[1]]), [2], [1]), "width"),
            (lambda: index.propose_after([2], np.array([[-1]]), [1], [1]), "negative"),
            (lambda: make_index(0, compiled=kind), "max_draft"),
            (lambda: make_index(history=-1, compiled=kind), "history"),
        ]
        for call, words in calls:
            with pytest.raises(ValueError, match=words):
                call()
        assert index.text(2).tolist() == [1, 2, 1]
        assert proposal(index, 2, 1)["tokens"] == [2]


class TestCompiled:
    @pytest.fixture(autouse=True)
    def _numba(self) -> None:
        pytest.importorskip("numba")

    def test_memory_follows_the_texts(self) -> None:
        index = make_index(compiled=True)
        rng = np.random.default_rng(0)
        empty = index.memory()
        for slot in range(8):
            index.open(slot, rng.integers(50_000, size=2000))
            index.extend([slot], rng.integers(50_000, size=400), [400])
        assert (index.memory().requests - empty.requests) / 8 <= 400_000
        for slot in range(8):
            index.close(slot)
        finish(index)
        assert index.memory() == empty

    def test_slots_are_used_again_and_again(self) -> None:
        index = make_index(compiled=True, history=256)
        index.open(0, [1, 2, 3])
        sizes = set()
        for turn in range(20_000):
            index.open(1 + turn % 3, [1, 2, 1], tenant=turn % 5)
            index.close(1 + turn % 3)
            sizes.add(index.memory().requests)
        assert len(sizes) == 1

    def test_no_object_for_a_token(self) -> None:
        index = make_index(compiled=True)
        rng = np.random.default_rng(0)
        index.open(0, rng.integers(500, size=100))
        index.propose([0], [16])
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(2000):
            index.extend([0], rng.integers(500, size=4), np.array([4]))
            index.propose([0], [16])
            index.work(100)
        gc.collect()
        assert len(gc.get_objects()) - before < 20

    def test_read_only_input_and_other_types(self) -> None:
        """Arrays of any type must not trigger another compilation in the middle of a request."""
        index = make_index(compiled=True)
        text = np.array([1, 2, 1, 2, 1], np.int64)
        text.setflags(write=False)
        index.open(0, text)
        index.extend(np.array([0], np.uint8), text[:1], (1,))
        assert proposal(index, 0, 2)["tokens"] == [2, 1]
        index.close(0)
        finish(index)
        kernels = retrieval.kernels
        for function in (kernels.extend, kernels.propose, kernels.remember, kernels.index_text):
            assert len(function.signatures) == 1


@pytest.mark.parametrize("log", ["draftwise.compiled", "vllm.draftwise"])
def test_the_first_controller_warms_up_and_says_so_in_the_engines_log(
    caplog: pytest.LogCaptureFixture, log: str
) -> None:
    calls: list[int] = []
    with (
        mock.patch("draftwise.compiled._warm_ups", [lambda: calls.append(1)]),
        caplog.at_level(logging.DEBUG, logger=log),
    ):
        if log.startswith("vllm"):
            warm_up(logging.getLogger(log))
        _ = Controller(Limits(4)), Controller(Limits(4))
    assert [record.name for record in caplog.records] == [log]
    assert ("ready" in caplog.text) == HAS_NUMBA
    assert len(calls) == HAS_NUMBA


def test_without_numba_nothing_is_compiled() -> None:
    """Otherwise the tests of the interpreted index would test the compiled one."""
    assert not hasattr(interpreted("retrieval.kernels").propose, "signatures")
