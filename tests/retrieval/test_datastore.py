"""Datastores against a search of the whole corpus; damaged files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwise import registry
from draftwise.bandits.stop_rules import Fixed
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.drafters.retrieval import DatastoreDrafter
from draftwise.pool import load_drafters
from draftwise.retrieval.corpus import Store, replacing, sort_suffixes, write
from draftwise.retrieval.kernels import LONGEST_MATCH
from draftwise.types import DraftwiseError, SamplingParams
from engine.pairs import target
from retrieval.test_suffix import DEPTH, assert_is_best_tree, chain, common, path_of
from sessions import opened

VOCAB = 30


def stored(folder: Path, documents: Sequence[Sequence[int]], vocab_size: int = VOCAB) -> Path:
    file = folder / "a.store"
    with replacing(file) as stream:
        write(stream, [np.array(document) for document in documents], vocab_size)
    return file


def found(documents: Sequence[list[int]], ending: list[int]) -> tuple[int, list[list[int]]]:
    """The longest match in the corpus and its continuations, in any order."""
    places = [
        (common(document, at, ending), document[at : at + DEPTH])
        for document in documents
        for at in range(1, len(document))
    ]
    longest = max((num for num, _ in places), default=0)
    return longest, [row for num, row in places if num == longest > 0]


def corpora(rng: np.random.Generator) -> list[list[list[int]]]:
    """Random documents over small alphabets; one that repeats itself; single tokens."""
    random = [
        [rng.integers(0, size, rng.integers(1, 90)).tolist() for _ in range(6)]
        for size in (1, 2, 3, VOCAB)
    ]
    return [*random, [[1, 2] * 60, [3], [1, 2, 1]]]


@pytest.mark.parametrize("vocab_size", [VOCAB, 70_000])
def test_matches_and_trees_are_those_of_the_whole_corpus(tmp_path: Path, vocab_size: int) -> None:
    """The corpus is stored with two and with four bytes a token."""
    rng = np.random.default_rng(0)
    for documents in corpora(rng):
        drafter = DatastoreDrafter("x", str(stored(tmp_path, documents, vocab_size)), 10_000)
        texts = [rng.integers(0, 3, 60).tolist(), documents[0] + documents[1], [29, 28]]
        for text in texts:
            for end in range(1, len(text) + 1, 2):
                context = Context(0, text[:end], SamplingParams(), np.random.default_rng(0))
                session = opened(drafter, [context])
                match, rows = found(documents, text[:end])
                assert session.match_length(context) == match
                made = session.tree(context, 9, length=DEPTH)
                assert_is_best_tree(made, rows, 9, DEPTH)
                drafted = chain(session, context)
                beginning = tuple(drafted[: len(path_of(rows, DEPTH))])
                shares = [sum(row[0] == token for row in rows) for token in range(VOCAB)]
                assert not rows or shares[beginning[0]] == max(shares)
                assert bool(drafted) == bool(rows)


def test_of_many_matches_some_vote_at_even_distances(tmp_path: Path) -> None:
    """The same forty of 400 matches vote each time; three quarters of all continue with 7."""
    rng = np.random.default_rng(0)
    documents = [[5, *([7] if i % 4 else [8]), *rng.integers(10, 30, 8)] for i in range(400)]
    store = Store(stored(tmp_path, documents))
    length, first, last = store.find([5])
    assert (length, last - first) == (1, 400)
    rows = store.continuations(first, last, 40, 1)
    assert len(rows) == 40
    assert store.continuations(first, last, 40, 1) == rows
    assert 0.6 < sum(row == [7] for row in rows) / 40 < 0.9
    assert len(store.continuations(first, last, 500, 3)) == 400


def test_no_document_runs_into_the_next(tmp_path: Path) -> None:
    store = Store(stored(tmp_path, [[1, 2, 3], [4, 5]]))
    assert store.find([3]) == (0, 0, 0)
    assert store.find([3, 4])[0] == 1
    assert store.continuations(*store.find([1])[1:], 9, DEPTH) == [[2, 3]]


def test_behind_the_end_of_a_document_text_and_draft_are_matched_again(tmp_path: Path) -> None:
    drafter = DatastoreDrafter("x", str(stored(tmp_path, [[1, 2, 3], [3, 4, 5, 6]])))
    context = Context(0, [9, 1], SamplingParams(), np.random.default_rng(0))
    (draft,) = opened(drafter, [context]).propose([DraftTask(context, 5, Fixed())])
    assert draft.tokens.tolist() == [2, 3, 4, 5, 6]


def test_scores_and_matches_of_every_new_position(tmp_path: Path) -> None:
    drafter = DatastoreDrafter("x", str(stored(tmp_path, [[1, 2, 3, 4, 5]])))
    context = Context(0, [1], SamplingParams(), np.random.default_rng(0))
    session = opened(drafter, [context])
    session.score([context], everything=False)
    context.extend([2, 3, 9, 1], [2, 3, 9, 1])
    session.commit([context])
    (scores,) = session.score([context], everything=False)
    assert scores is not None
    assert scores.matches is not None
    assert scores.alphas.tolist() == [1, 1, 0, 0]
    assert scores.matches.tolist() == [1, 2, 3, 0]
    assert session.match_length(context) == 1


@pytest.mark.parametrize("depth", [1, 3, LONGEST_MATCH])
@pytest.mark.parametrize("num_symbols", [2, 3, 300, 2**22])
def test_suffixes_are_sorted_as_python_sorts_them(num_symbols: int, depth: int) -> None:
    rng = np.random.default_rng(0)
    for text in (
        rng.integers(0, num_symbols, 300),
        np.tile(rng.integers(0, num_symbols, 7), 40),
        np.full(200, num_symbols - 1),
        np.array([num_symbols - 1]),
    ):
        symbols = text.tolist()
        expected = sorted(range(len(symbols)), key=lambda at: (symbols[at : at + depth], at))
        assert sort_suffixes(text, num_symbols, depth).tolist() == expected


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([], "no tokens"),
        ([[], []], "no tokens"),
        ([[1, VOCAB]], f"token {VOCAB}"),
        ([[1, -1]], "token -1"),
    ],
)
def test_corpora_that_cannot_be_stored(
    tmp_path: Path, documents: list[list[int]], said: str
) -> None:
    with pytest.raises(DraftwiseError, match=said):
        stored(tmp_path, documents)
    assert list(tmp_path.iterdir()) == []


def changed(file: Path, change: Any) -> str:
    data = bytearray(file.read_bytes())
    other = file.with_name("other.store")
    other.write_bytes(change(data) or data)
    return str(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "cut off"),
        (lambda data: data[:70], "cut off"),
        (lambda data: data[:20], "cut off"),
        (lambda data: data + b"\0", "cut off or changed"),
        (lambda data: b"x" * 500, "no datastore"),
        (lambda data: data.__setitem__(12, data[12] + 1), "damaged header"),
        (lambda data: data.__setitem__(20, data[20] + 1), "damaged header"),
    ],
)
def test_files_that_are_no_datastore(tmp_path: Path, change: Any, said: str) -> None:
    file = changed(stored(tmp_path, [[1, 2, 3]]), change)
    with pytest.raises(DraftwiseError, match=said):
        DatastoreDrafter("x", file)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(DraftwiseError, match="cannot read the datastore"):
            DatastoreDrafter("x", str(path))
    (tmp_path / "empty").touch()
    with pytest.raises(DraftwiseError, match="cut off"):
        DatastoreDrafter("x", str(tmp_path / "empty"))


def test_another_vocabulary_than_the_targets_is_refused(tmp_path: Path) -> None:
    file = stored(tmp_path, [[1, 2, 3]])
    with pytest.raises(DraftwiseError, match=r"vocabulary of 30 .* one of 64: build it with"):
        load_drafters([f"datastore:{file}"], target(), None, dtype="auto", device="cpu")


def test_several_stores_are_several_drafters(tmp_path: Path) -> None:
    file = stored(tmp_path, [[1, 2, 3]], 64)
    specs = [f"code=datastore:{file},num_matches=3", f"datastore:{file}", f"datastore:{file}"]
    made = load_drafters(specs, target(), None, dtype="auto", device="cpu")
    assert [drafter.name for drafter in made] == ["code", "datastore", "datastore-2"]
    with pytest.raises(DraftwiseError, match="needs file"):
        registry.build("drafter", "datastore", {"name": "x"})
    with pytest.raises(DraftwiseError, match="num_matches is 0: it must be a whole number from 1"):
        load_drafters([f"datastore:{file},num_matches=0"], target(), None, dtype="", device="")


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    file = stored(tmp_path, [[1, 2, 3]])
    before = file.read_bytes()

    def interrupted(path: Path) -> None:
        with replacing(path) as stream:
            stream.write(b"half of it")
            raise KeyboardInterrupt

    for path in (file, tmp_path / "new.store"):
        with pytest.raises(KeyboardInterrupt):
            interrupted(path)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
