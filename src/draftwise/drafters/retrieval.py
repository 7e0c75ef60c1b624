"""Merges the continuations of a match by frequency; the session of retrieval drafters."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.drafters.protocol import MAX_TARGETS, Context, DraftTask
from draftwise.drafters.scoring import score_known
from draftwise.nn.transfer import DeviceRead, together
from draftwise.nn.trees import pruned
from draftwise.types import Draft, DraftStep, Floats, Ints, Scores, TreeShape

READ_MOST = 8192  # tokens that a session indexes in a round: about 15 ms
LONGEST_MATCH = 32  # matches are measured up to this length: longer is no better evidence
Rows = Sequence[Sequence[int]]  # continuations of one match; ties go to the first row


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Continuations merged into a prefix tree, the likeliest nodes first.

    tokens: [N]. parents: [N], each below its node's index; -1 = the end of the text. probs: [N],
    the share of all rows that run through the node: cumulative along its path.
    """

    tokens: Ints
    parents: Ints
    probs: Floats


def most_frequent_path(rows: Rows, length: int) -> list[tuple[int, tuple[int, ...]]]:
    """The path that takes the most frequent continuation at each step, at most ``length`` tokens.

    Each token comes with the counts of all candidates, the token's first. Ties go to the earliest
    row; rows that have ended do not vote, and the path ends where all have.

    >>> most_frequent_path([[7, 8], [5, 6], [5, 9, 1]], 3)
    [(5, (2, 1)), (6, (1, 1))]
    """
    path: list[tuple[int, tuple[int, ...]]] = []
    for depth in range(length):
        if len(rows) == 1:
            path += [(token, (1,)) for token in rows[0][depth:length]]
            break
        groups = _split(rows, depth)
        if not groups:
            break
        counts = {token: len(group) for token, group in groups.items()}
        token = max(counts, key=counts.__getitem__)
        rows, own = groups[token], counts.pop(token)
        path.append((token, (own, *counts.values())))
    return path


def tree(
    rows: Rows, num_tokens: int, *, top_k: int | None = None, length: int | None = None
) -> TokenTree:
    """The ``num_tokens`` likeliest nodes of the rows' prefix tree, best first.

    A node's probability is the share of all rows that run through it, as in SuffixDecoding; ties go
    to the shallower node, then to the earlier row. top_k: maximum number of children of a node;
    length: maximum depth.

    >>> tree([[5, 6], [5, 9], [7]], num_tokens=3).probs.round(2).tolist()
    [0.67, 0.33, 0.33]
    """
    order = itertools.count()
    heap: list[tuple[int, int, int, int, int, Rows]] = []

    def open_children(parent: int, depth: int, members: Rows) -> None:
        if length is not None and depth >= length:
            return
        groups = sorted(_split(members, depth).items(), key=lambda item: -len(item[1]))
        for token, group in groups[:top_k]:
            heapq.heappush(heap, (-len(group), next(order), parent, depth, token, group))

    nodes: list[tuple[int, int, float]] = []
    open_children(-1, 0, rows)
    while heap and len(nodes) < num_tokens:
        negative, _, parent, depth, token, group = heapq.heappop(heap)
        nodes.append((token, parent, -negative / len(rows)))
        open_children(len(nodes) - 1, depth + 1, group)
    tokens, parents, probs = zip(*nodes, strict=True) if nodes else ((), (), ())
    edges = np.array([tokens, parents], dtype=np.int64)
    return TokenTree(edges[0], edges[1], np.array(probs, dtype=np.float64))


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


def _split(rows: Rows, depth: int) -> dict[int, list[Sequence[int]]]:
    """Rows by their token at ``depth``, in the order of first appearance."""
    groups: dict[int, list[Sequence[int]]] = {}
    for row in rows:
        if depth < len(row):
            groups.setdefault(row[depth], []).append(row)
    return groups


@dataclass(frozen=True, slots=True)
class Match:
    """The longest matching suffix. rows: depth -> continuations. nexts: their first tokens."""

    length: int
    rows: Callable[[int], Rows]
    nexts: Callable[[], Sequence[int]]

    def proposal(self) -> int:
        """The most frequent next token; ties go to the first; -1 = none."""
        tokens = self.nexts()
        if len(tokens) < 3:
            return tokens[0] if tokens else -1
        counts = Counter(tokens)
        return max(counts, key=counts.__getitem__)


NO_MATCH = Match(0, lambda depth: [], lambda: [])


class Finder(ABC):
    """The index that one row searches: the row's text, and text shared with other rows.

    resumes: whether the next chat turn can be appended, instead of indexing all text again.
    """

    resumes: bool = True

    def begin(self, context: Context) -> None:  # noqa: B027
        """Called once, before the first token: the text so far is the prompt."""

    @abstractmethod
    def push(self, token: int) -> None: ...

    @abstractmethod
    def find(self, draft: Sequence[int]) -> Match:
        """The longest match at the end of text and draft."""

    def share(self) -> None:  # noqa: B027
        """Share the text so far with other rows."""


class _RetrievalRow:
    """One row: its finder, the match at its end, and its earlier proposals."""

    def __init__(self, finder: Finder) -> None:
        self.finder, self.match = finder, NO_MATCH
        self.text: Sequence[int] = ()
        self.length = self.known_start = 0
        self.known: list[tuple[int, int]] = []  # (proposed token or -1, match length) by position

    def read(self, tokens: Sequence[int], most: int) -> int:
        """Index about ``most`` tokens of the text; return their number. Searches only at positions
        that may still be scored; until the end of the text is reached, there is no match.
        """
        self.text, start, begin = tokens, len(tokens) - MAX_TARGETS, self.length
        end = begin + most if begin + most < start else len(tokens)
        while self.length < end:
            if self.length >= start:
                self.known.append((self.match.proposal(), self.match.length))
            else:
                self.known, self.known_start = [], self.length + 1
            self.finder.push(tokens[self.length])
            self.length += 1
            if self.length >= start:
                self.match = self.finder.find([])
        if end < start:
            self.match = NO_MATCH
        return end - begin

    def path(self, length: int) -> list[tuple[int, tuple[int, ...]]]:
        """The most frequent continuation; where it ends, text and draft are matched again."""
        path: list[tuple[int, tuple[int, ...]]] = []
        match = self.match
        while match.length and len(path) < length:
            path += most_frequent_path(match.rows(length - len(path)), length - len(path))
            if len(path) < length:
                match = self.finder.find([token for token, _ in path])
        return path


class RetrievalSession:
    """One finder per row, updated on each use. A round's tokens are shared only after all of its
    rows have indexed theirs, so no score depends on tokens that were unknown when the row drafted.
    Long texts are indexed by READ_MOST tokens a round; until the end nothing is proposed.
    new_finder: makes one for a text of that many tokens.
    """

    def __init__(self, name: str, new_finder: Callable[[int], Finder]) -> None:
        self._name, self._new_finder = name, new_finder
        self._rows: dict[int, _RetrievalRow] = {}
        self._left = READ_MOST

    def open(self, context: Context, expected: int) -> None:
        finder = self._new_finder(expected)
        finder.begin(context)
        self._rows[context.row] = _RetrievalRow(finder)

    def close(self, row: int) -> None:
        del self._rows[row]

    def crop(self, context: Context, length: int) -> None:
        """Start over, unless the new text extends the indexed one."""
        row = self._rows[context.row]
        resumes = row.finder.resumes and not context.prediction
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
        step, kept = DraftStep(0, task.length), 0
        while kept < len(path) and task.guide.should_continue(step):
            token, counts = path[kept]
            kept += 1
            if token in task.context.eos:
                break
            step = describe(kept, task.length, counts if task.guide.needs_probs else (1,))
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
        return tree(rows, num_tokens, top_k=top_k, length=length)

    def commit(self, contexts: Sequence[Context], judged: Sequence[Scores | None] = ()) -> None:
        """Index the verified tokens, then share them; no rollback, as drafts are not indexed."""
        self._left = READ_MOST
        for context in contexts:
            self._row(context)
        for context in contexts:
            self._rows[context.row].finder.share()

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
        match = row.finder.find(drafted) if drafted and is_read else row.match
        return match.length, match.proposal()

    def _row(self, context: Context) -> _RetrievalRow:
        row = self._rows[context.row]
        self._left -= row.read(context.tokens, max(self._left, MAX_TARGETS))
        return row
