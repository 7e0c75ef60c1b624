"""Drafters that retrieve: from the text itself, from earlier answers, from a corpus."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwise.checks import MANY, whole
from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask, score_known
from draftwise.errors import BadValue
from draftwise.nn.attention import pruned
from draftwise.nn.sampling import DeviceRead, together
from draftwise.retrieval.corpus import Store
from draftwise.retrieval.index import (
    NO_MATCH,
    History,
    Match,
    RetrievalIndex,
    TokenTree,
    continuation_tree,
    most_frequent_path,
)
from draftwise.retrieval.kernels import LONGEST_CONTEXT, LONGEST_MATCH, MatchRule
from draftwise.types import Draft, DraftStep, DraftwiseError, Scores, TreeShape

READ_MOST = 8192  # tokens that a session indexes in a round: about 15 ms without numba
LEAST_ROOM = 16  # tokens of the history reserved for a running answer, or as many as it has
NUM_PLACES = 32  # earlier places that prompt lookup compares
_LONGEST = 64  # tokens of the longest n-gram that may be asked for
_MOST_TOKENS = 1 << 26  # maximum tokens of a history


@functools.lru_cache(maxsize=4096)
def describe(depth: int, length: int, counts: tuple[int, ...]) -> DraftStep:
    """The step that a stop rule sees after a token with these candidate counts, the token's first.

    >>> describe(1, 5, (3, 1)).margin
    0.5
    """
    total = sum(counts)
    first, *others = [count / total for count in counts]
    entropy = -sum(share * math.log(share) for share in (first, *others)) if others else 0.0
    return DraftStep(depth, length, first, first, entropy, first - max(others, default=0.0))


class Source(ABC):
    """What one row searches: its own text and text shared with other rows, or a corpus.

    resumes: whether the next chat turn can be appended, instead of indexing all text again.
    """

    resumes: bool = False

    @abstractmethod
    def read(self, tokens: Sequence[int], num_scored: int) -> list[tuple[int, int]]:
        """Append tokens to the text; for each of the last ``num_scored``: the token that would
        have been proposed in its place (-1 = none), and the length of the match.
        """

    @abstractmethod
    def find(self, draft: Sequence[int]) -> Match:
        """The longest match at the end of text and draft."""

    def share(self) -> None:  # noqa: B027
        """Share the text so far with other rows."""

    def close(self) -> None:  # noqa: B027
        """The row has ended."""


class _RetrievalRow:
    """One row: its source, the match at its end, and its earlier proposals."""

    def __init__(self, source: Source) -> None:
        self.source, self.match = source, NO_MATCH
        self.text: Sequence[int] = ()
        self.length = self.known_start = 0
        self.known: list[tuple[int, int]] = []  # (proposed token or -1, match length) by position

    def read(self, tokens: Sequence[int], most: int) -> int:
        """Index about ``most`` tokens of the text; return their number. Searches only at positions
        that may still be scored; until the end of the text is reached, there is no match.
        """
        self.text, start, begin = tokens, len(tokens) - MAX_TARGETS, self.length
        end = begin + most if begin + most < start else len(tokens)
        if begin < end:
            scored = min(end, max(begin, start))
            if scored > begin:
                self.known, self.known_start = [], scored
            self.known += self.source.read(tokens[begin:end], end - scored)
            self.length = end
            self.match = self.source.find(()) if end >= start else NO_MATCH
        return end - begin

    def path(self, length: int) -> list[tuple[int, tuple[int, ...]]]:
        """The most frequent continuation; where it ends, text and draft are matched again."""
        path: list[tuple[int, tuple[int, ...]]] = []
        match = self.match
        while match.length and len(path) < length:
            path += most_frequent_path(match.rows(length - len(path)), length - len(path))
            if len(path) < length:
                match = self.source.find([token for token, _ in path])
        return path


class RetrievalSession:
    """One source per row, updated on each use. A round's tokens are shared only after all of its
    rows have indexed theirs, so no score depends on tokens that were unknown when the row drafted.
    Long texts are indexed by READ_MOST tokens a round; until the end nothing is proposed.
    new_source: makes the source of a row.
    """

    def __init__(self, name: str, new_source: Callable[[Context], Source]) -> None:
        self._name, self._new_source = name, new_source
        self._rows: dict[int, _RetrievalRow] = {}
        self._left = READ_MOST

    def open(self, context: Context, expected: int) -> None:
        if context.row in self._rows:
            self.close(context.row)
        self._rows[context.row] = _RetrievalRow(self._new_source(context))

    def close(self, row: int) -> None:
        self._rows.pop(row).source.close()

    def crop(self, context: Context, length: int) -> None:
        """Start over, unless the new text extends the indexed one."""
        row = self._rows[context.row]
        resumes = row.source.resumes and not context.prediction
        is_next = resumes and row.text[: row.length] == context.tokens[: row.length]
        if is_next and row.length < len(context.tokens):
            row.known, row.known_start = [], row.length
        else:
            self.open(context, len(context.tokens))

    def copy(self, source: int, row: int, length: int) -> None:
        """Copy nothing: indexing the text again is cheap."""

    def propose(self, tasks: Sequence[DraftTask]) -> DeviceRead[list[Draft]]:
        """The most frequent continuation of each row's match: a chain up to its stop, or a tree."""
        yield from ()  # needs nothing from the device
        return [self._tree(task, task.tree) if task.tree else self._chain(task) for task in tasks]

    def _chain(self, task: DraftTask) -> Draft:
        path = self._row(task.context).path(task.length)
        path = path[: task.context.num_allowed([token for token, _ in path])]
        rule, step, kept = task.stop_rule, DraftStep(0, task.length), 0
        while kept < len(path) and (rule.never_stops or rule.should_continue(step)):
            token, counts = path[kept]
            kept += 1
            if token in task.context.eos:
                break
            if not rule.never_stops:
                step = describe(kept, task.length, counts if rule.needs_probs else (1,))
        return Draft.chain([token for token, _ in path[:kept]], None, self._name)

    def _tree(self, task: DraftTask, shape: TreeShape) -> Draft:
        found = self.tree(task.context, shape.total_tokens, top_k=shape.top_k, length=task.length)
        context = task.context
        tokens, parents = pruned(found.tokens, found.parents, context.eos, context.num_allowed)
        return Draft(tokens, None, [self._name] * len(tokens), parents)

    def tree(
        self, context: Context, num_tokens: int, *, top_k: int | None = None, length: int = 16
    ) -> TokenTree:
        rows = self._row(context).match.rows(min(length, num_tokens))
        return continuation_tree(rows, num_tokens, top_k=top_k, length=length)

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        """Index the verified tokens, then share them; no rollback, as drafts are not indexed."""
        self._left = READ_MOST
        for context in contexts:
            self._row(context)
        for context in contexts:
            self._rows[context.row].source.share()

    def score(
        self, contexts: Sequence[Context], everything: bool
    ) -> DeviceRead[list[Scores | None]]:
        """Scores of the tokens that retrieval would have proposed; no forward is needed."""
        asks = []
        for context in contexts:
            row = self._row(context)
            tokens, matches = [token for token, _ in row.known], [match for _, match in row.known]
            asks.append(score_known(context, row.known_start, tokens, matches))
            row.known, row.known_start = [], row.length
        return (yield from together(asks))

    def probe(self, contexts: Sequence[Context]) -> DeviceRead[list[Scores | None]]:
        return self.score(contexts, everything=True)

    def match_length(self, context: Context) -> int:
        return self._row(context).match.length

    def peek(self, context: Context, drafted: Sequence[int]) -> tuple[int, int]:
        row = self._row(context)
        is_read = row.length == len(context.tokens)
        match = row.source.find(drafted) if drafted and is_read else row.match
        return match.length, match.proposal()

    def _row(self, context: Context) -> _RetrievalRow:
        row = self._rows[context.row]
        self._left -= row.read(context.tokens, max(self._left, MAX_TARGETS))
        return row


class _TextSource(Source):
    """A row's text, after the request's prediction, and the earlier answers of its tenant."""

    def __init__(self, index: RetrievalIndex, context: Context, tenant: int = 0) -> None:
        # as if the prediction stood before the prompt, after the prompt's last tokens, so that an
        # answer is expected to begin as it does
        ending = context.tokens[-LONGEST_CONTEXT:] if context.prediction else []
        prefix = [*ending, *context.prediction]
        self.resumes = not index.history.size and not prefix
        self._index, self._row = index, context.row
        self._num_prompt = len(prefix) + len(context.tokens)
        index.open(
            context.row, prefix, tenant=tenant, shares=not context.is_private,
            num_prompt=self._num_prompt,
        )  # fmt: skip

    def read(self, tokens: Sequence[int], num_scored: int) -> list[tuple[int, int]]:
        return self._index.read(self._row, tokens, num_scored)

    def find(self, draft: Sequence[int]) -> Match:
        return self._index.find(self._row, draft)

    def share(self) -> None:
        num_answered = self._index.length(self._row) - self._num_prompt
        self._index.share(self._row, max(LEAST_ROOM, num_answered))
        self._index.history.work(MANY)

    def close(self) -> None:
        self._index.close(self._row)
        self._index.history.work(MANY)


class LookupDrafter:
    """The longest n-gram at the end of the text that occurred before; its latest occurrence wins.
    A request's ``prediction`` counts as text before its prompt.

    Source: prompt lookup decoding (Saxena 2023), names as in vLLM. Differs: the longest match wins,
    then the latest, and a continuation may be of any length; of the places after the last 1, 2, 4
    or 8 tokens only the newest NUM_PLACES are compared. Memory: see ``RetrievalIndex``. probs: None
    (point mass). Errors: ValueError if not 1 <= prompt_lookup_min <= prompt_lookup_max.

    With the text ``5 6 7 8 5 6`` and n = 2 the match is ``5 6``, and ``7 8 5 ...`` is proposed.
    """

    retrieves, can_branch, can_mix = True, False, False
    relative_cost, token_bytes = 0.002, 56

    def __init__(self, name: str, prompt_lookup_min: int = 1, prompt_lookup_max: int = 8) -> None:
        whole("prompt_lookup_max", prompt_lookup_max, 1, _LONGEST)
        if whole("prompt_lookup_min", prompt_lookup_min, 1) > prompt_lookup_max:
            must = f"at most prompt_lookup_max, which is {prompt_lookup_max}"
            raise BadValue("prompt_lookup_min", prompt_lookup_min, must)
        self.name, most = name, min(prompt_lookup_max, LONGEST_MATCH)
        self._rule = MatchRule(NUM_PLACES, 1, most, min(prompt_lookup_min, most))

    def start(self) -> RetrievalSession:
        index = RetrievalIndex(1, 0, self._rule)
        return RetrievalSession(self.name, lambda context: _TextSource(index, context))


class SuffixDrafter:
    """The most frequent continuation of the longest suffix match here or in past outputs.

    Source: SuffixDecoding (Oliaro et al. 2024) and SAM decoding (Hu et al. 2024): an index of the
    request (prompt and output) and a shared one of all outputs that this drafter has seen; the
    longer match proposes, the request's on a tie. Differs: see ``draftwise.retrieval.index``;
    frequencies are those among the newest ``num_matches`` occurrences of the longest match; the
    longer match wins, not the higher score.

    Outputs are shared after every round; prompts and private requests are not. The history
    holds the latest ``max_tokens`` tokens of all tenants; 0 = none. What a tenant said is forgotten
    when ``num_tenants`` others have asked since. With a history, the same seed may yield another
    sample of the same distribution.

    Memory and time: see ``RetrievalIndex``. probs: None (a point mass, a function of the past
    alone). Errors: ValueError if max_tokens < 0 or num_matches < 1.

    >>> from draftwise.drafters.protocol import Context
    >>> from draftwise.types import SamplingParams
    >>> session = SuffixDrafter("suffix").start()
    >>> context = Context(0, [5, 6, 7, 8, 5, 6], SamplingParams(), rng=None)
    >>> session.open(context, expected=16)
    >>> session.match_length(context), session.tree(context, num_tokens=4).tokens.tolist()
    (2, [7, 8, 5, 6])
    """

    retrieves, can_branch, can_mix = True, True, False
    relative_cost, token_bytes = 0.004, 96

    def __init__(
        self, name: str, max_tokens: int = 262_144, num_matches: int = 8, num_tenants: int = 16
    ) -> None:
        whole("max_tokens", max_tokens, 0, _MOST_TOKENS, "no shared history")
        whole("num_matches", num_matches, 1, MANY), whole("num_tenants", num_tenants, 1, MANY)
        self.name, self._options = name, (max_tokens, num_matches, num_tenants)
        self._rule = MatchRule(num_matches, num_matches, LONGEST_MATCH, 1)
        self._history = History(max_tokens)
        self._tenants: dict[str, int] = {}  # the least recently used first
        self._num_seen = 0

    def forgetful(self) -> SuffixDrafter:
        """A drafter with the same options and an empty history."""
        return SuffixDrafter(self.name, *self._options)

    def start(self) -> RetrievalSession:
        index = RetrievalIndex(1, self._history, self._rule)

        def new_source(context: Context) -> Source:
            return _TextSource(index, context, self._tenant(context.tenant))

        return RetrievalSession(self.name, new_source)

    def _tenant(self, name: str) -> int:
        """A tenant's number in the history; a forgotten one gets another."""
        if name not in self._tenants:
            self._num_seen += 1
        self._tenants[name] = self._tenants.pop(name, self._num_seen)
        if len(self._tenants) > self._options[-1]:
            del self._tenants[next(iter(self._tenants))]
        return self._tenants[name]


class DatastoreDrafter:
    """The most frequent continuation of the longest suffix match in a corpus on disk.

    Source: REST (He et al. 2024): longest suffix match in a datastore, continuations merged into a
    prefix tree by frequency. Differs: one search for the longest match instead of one for each
    length from 16 down to 2; of many matches, ``num_matches`` evenly spaced ones vote, where REST
    takes the first 5,000; the chain is the tree's most frequent path. The reversed corpus and its
    suffix array are in a memory-mapped file made by ``draftwise datastore build``.

    Time: O(log n) a token. probs: None (a point mass, a function of the text). Errors:
    DraftwiseError for a file that is not a datastore, is truncated, or has another vocabulary size
    than the target (None = not compared); ValueError if num_matches < 1.
    """

    retrieves, can_branch, can_mix = True, True, False
    relative_cost, token_bytes = 0.006, 0

    def __init__(
        self, name: str, file: Path | str, num_matches: int = 64, vocab_size: int | None = None
    ) -> None:
        whole("num_matches", num_matches, 1, MANY)
        self.name, self._num_matches, self._store = name, num_matches, Store(file)
        if vocab_size is not None and self._store.vocab_size != vocab_size:
            raise DraftwiseError(
                f"datastore {file} has a vocabulary of {self._store.vocab_size} tokens and the "
                f"target one of {vocab_size}: build it with the target's tokenizer"
            )

    def start(self) -> RetrievalSession:
        return RetrievalSession(self.name, lambda _: _CorpusSource(self._store, self._num_matches))


@dataclass(frozen=True, slots=True)
class _CorpusMatch(Match):
    """Suffixes [first, last) of a corpus, of which at most ``most`` are read."""

    store: Store
    first: int
    last: int
    most: int

    def rows(self, depth: int) -> Sequence[Sequence[int]]:
        return self.store.continuations(self.first, self.last, self.most, depth)


class _CorpusSource(Source):
    """A corpus on disk, and the last tokens of a row's text."""

    resumes = True

    def __init__(self, store: Store, num_matches: int) -> None:
        self._store, self._num_matches = store, num_matches
        self._ending: list[int] = []

    def read(self, tokens: Sequence[int], num_scored: int) -> list[tuple[int, int]]:
        found = []
        for i, token in enumerate(tokens, num_scored - len(tokens)):
            if i >= 0:
                match = self.find(())
                found.append((match.proposal(), match.length))
            self._ending = [*self._ending[1 - LONGEST_MATCH :], token]
        return found

    def find(self, draft: Sequence[int]) -> Match:
        length, first, last = self._store.find([*self._ending, *draft])
        if not length:
            return NO_MATCH
        return _CorpusMatch(length, self._store, first, last, self._num_matches)
