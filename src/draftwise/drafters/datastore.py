"""Retrieval from a datastore: go on as a corpus on disk most often went on from here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from draftwise.checks import MANY, whole
from draftwise.drafters.datastore_file import Store
from draftwise.drafters.protocol import Context
from draftwise.drafters.retrieval import LONGEST_MATCH, NO_MATCH, Match, RetrievalSession
from draftwise.types import DraftwiseError


class DatastoreDrafter:
    """The most frequent continuation of the longest suffix that a corpus on disk has.

    Source: REST (He et al. 2024): longest suffix match in a datastore, continuations merged to a
    prefix tree by frequency. Differs: one search for the longest match instead of one for each
    length from 16 down to 2; of many matches ``num_matches`` at even distances vote, where REST
    takes the first 5,000; the chain is the tree's most frequent path. Index: the corpus backwards
    and its suffix array in a memory-mapped file (``datastore_file``), made by ``draftwise datastore
    build``; it may be larger than memory. Several stores are several drafters:
    ``code=datastore:code.store`` and ``wiki=datastore:wiki.store``.

    Memory: none of its own. Time: O(log n) a token. probs: None (a point mass, a function of the
    text). Errors: DraftwiseError for a file that is no datastore, is cut off, or has another
    vocabulary size than the target (None = not compared); ValueError if num_matches < 1.
    """

    retrieves, can_mix = True, False
    can_branch = True
    relative_cost, token_bytes = 0.006, 0

    def __init__(
        self, name: str, file: str, num_matches: int = 64, vocab_size: int | None = None
    ) -> None:
        whole("num_matches", num_matches, 1, MANY)
        self.name, self._num_matches, self._store = name, num_matches, Store(file)
        if vocab_size is not None and self._store.vocab_size != vocab_size:
            raise DraftwiseError(
                f"datastore {file} has a vocabulary of {self._store.vocab_size} tokens and the "
                f"target one of {vocab_size}: build it with the target's tokenizer"
            )

    def start(self) -> RetrievalSession:
        """Nothing but each row's last tokens."""
        return RetrievalSession(self.name, lambda _: _Finder(self._store, self._num_matches))


class _Finder:
    """One row's last tokens, looked for in the store."""

    resumes = True

    def __init__(self, store: Store, num_matches: int) -> None:
        self._store, self._num_matches = store, num_matches
        self._ending: deque[int] = deque(maxlen=LONGEST_MATCH)

    def begin(self, context: Context) -> None:
        """Prompt and output are alike here."""

    def push(self, token: int) -> None:
        self._ending.append(token)

    def find(self, draft: Sequence[int]) -> Match:
        length, first, last = self._store.find([*self._ending, *draft])
        if not length:
            return NO_MATCH
        return Match(
            length,
            lambda depth: self._store.continuations(first, last, self._num_matches, depth),
            lambda: self._store.nexts(first, last, self._num_matches),
        )

    def share(self) -> None:
        """Nothing is added to a store."""
