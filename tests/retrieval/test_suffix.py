"""Suffix decoding against exhaustive references, and limits of its history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftwise.bandits.stop_rules import Fixed, MaxConfidence
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.drafters.retrieval import RetrievalSession, SuffixDrafter
from draftwise.retrieval.index import TokenTree, most_frequent_path
from draftwise.retrieval.index import continuation_tree as tree
from draftwise.retrieval.kernels import LONGEST_MATCH
from draftwise.types import SamplingParams
from sessions import opened

MANY = 10_000
DEPTH = 6


def context_of(tokens: Sequence[int], row: int = 0) -> Context:
    return Context(
        row, [int(token) for token in tokens], SamplingParams(), np.random.default_rng(0)
    )


def chain(session: RetrievalSession, context: Context, length: int = DEPTH) -> list[int]:
    (draft,) = session.propose([DraftTask(context, length, Fixed())])
    assert draft.probs is None
    return draft.tokens.tolist()


def said(
    session: RetrievalSession, context: Context, output: Sequence[int], a_round: int = 7
) -> None:
    """Let the request emit ``output``, round by round."""
    for start in range(0, len(output), a_round):
        tokens = output[start : start + a_round]
        context.extend(tokens, tokens)
        session.commit([context])


def test_a_long_text_is_read_over_several_rounds() -> None:
    class Text(list[int]):
        num_read = 0

        def __getitem__(self, at: Any) -> Any:
            Text.num_read += isinstance(at, int)
            return super().__getitem__(at)

    context, other = context_of([]), context_of([1, 2, 3, 1, 2], row=1)
    context.tokens = Text(num % 6000 for num in range(20_000))
    session, nums = opened(SuffixDrafter("suffix"), [context, other]), [0]
    while not (found := chain(session, context, 3)):
        assert session.match_length(context) == 0
        assert session.peek(context, [8, 9]) == (0, -1)
        assert chain(session, other, 1) == [3]
        nums.append(Text.num_read)
        said(session, context, [context.tokens[-1] + 1])
    assert found == [context.tokens[-1] + num for num in (1, 2, 3)]
    assert len(nums) == 3
    assert np.diff(nums).max() < 10_000


def chain_of(drafter: SuffixDrafter, context: Context, length: int = DEPTH) -> list[int]:
    """A chain from a new session for this text."""
    return chain(opened(drafter, [context]), context, length)


def history(drafter: SuffixDrafter, outputs: Sequence[Sequence[int]]) -> None:
    """Run requests whose outputs enter the history and whose prompts match no other text."""
    for output in outputs:
        context = context_of([999])
        session = opened(drafter, [context])
        session.score([context], everything=False)
        said(session, context, output)
        session.close(context.row)


def common(text: Sequence[int], at: int, ending: Sequence[int]) -> int:
    """How many tokens before ``at`` equal the last ones of ``ending``, up to the longest match."""
    num = 0
    while num < min(at, len(ending), LONGEST_MATCH) and text[at - 1 - num] == ending[-1 - num]:
        num += 1
    return num


def periodic(text: list[int], at: int, depth: int) -> list[int]:
    grown = list(text)
    for offset in range(depth):
        grown.append(grown[at + offset])
    return (text[at:] + grown[len(text) :])[:depth]


def found(
    own: list[int], outputs: Sequence[list[int]], depth: int = DEPTH
) -> tuple[int, list[list[int]]]:
    """The longest match and its continuations, newest first; the request's own text wins ties."""
    here = [(common(own, at, own), periodic(own, at, depth)) for at in range(len(own) - 1, 0, -1)]
    elsewhere = [
        (common(output, at, own), output[at : at + depth])
        for output in reversed(outputs)
        for at in range(len(output) - 1, 0, -1)
    ]
    most_here, most_elsewhere = (
        max((num for num, _ in places), default=0) for places in (here, elsewhere)
    )
    longest = max(most_here, most_elsewhere)
    places = here if most_here == longest else elsewhere
    return longest, [row for num, row in places if num == longest > 0]


def path_of(rows: list[list[int]], depth: int) -> list[int]:
    """The most frequent token at each depth among the rows that agree so far."""
    path: list[int] = []
    while len(path) < depth:
        here = [row[len(path)] for row in rows if row[: len(path)] == path and len(row) > len(path)]
        if not here:
            break
        counts = Counter(here)
        path.append(max(counts, key=lambda token: (counts[token], -here.index(token))))
    return path


def prefixes(rows: list[list[int]], depth: int) -> Counter[tuple[int, ...]]:
    """How many rows begin with each prefix: the counts of the tree's nodes."""
    return Counter(tuple(row[:num]) for row in rows for num in range(1, min(depth, len(row)) + 1))


def paths(found: TokenTree) -> list[tuple[int, ...]]:
    """Each node's path; parents precede their children."""
    made: list[tuple[int, ...]] = []
    for node, (token, parent) in enumerate(zip(found.tokens, found.parents, strict=True)):
        assert -1 <= parent < node
        made.append((*(made[parent] if parent >= 0 else ()), int(token)))
    return made


def assert_is_best_tree(made: TokenTree, rows: list[list[int]], num: int, depth: int) -> None:
    """The ``num`` largest counts of all prefixes, each node with its share, best first."""
    counts = prefixes(rows, depth)
    nodes = paths(made)
    assert len(set(nodes)) == len(nodes) == min(num, len(counts))
    assert made.probs.tolist() == [counts[node] / len(rows) for node in nodes]
    assert made.probs.tolist() == [
        count / len(rows) for count in sorted(counts.values(), reverse=True)[:num]
    ]


def texts(rng: np.random.Generator) -> list[list[int]]:
    """Random strings over small alphabets, and some with long repetitions."""
    random = [rng.integers(0, size, 70).tolist() for size in (1, 2, 3, 5, 20) for _ in range(2)]
    piece = rng.integers(0, 9, 40).tolist()
    return [*random, piece + piece, [1, 2] * 35]


def test_matches_paths_and_trees_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    for text in texts(rng):
        outputs = [rng.integers(0, max(text) + 1, 60).tolist(), text[20:60], text[5:40]]
        drafter = SuffixDrafter("suffix", num_matches=MANY)
        history(drafter, outputs)
        context = context_of(text[:1])
        session = opened(drafter, [context])
        for end in range(1, len(text), 3):
            context.tokens[:] = text[:end]
            match, rows = found(text[:end], outputs)
            assert session.match_length(context) == match
            expected = path_of(rows, DEPTH)
            assert chain(session, context)[: len(expected)] == expected
            for num in (1, 4, 9):
                made = session.tree(context, num, length=DEPTH)
                assert_is_best_tree(made, [row[:num] for row in rows], num, min(num, DEPTH))


def test_random_rows_merge_to_the_best_tree() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        rows = [rng.integers(0, 3, rng.integers(1, 6)).tolist() for _ in range(12)]
        for num in (1, 5, 40):
            assert_is_best_tree(tree(rows, num, length=4), rows, num, 4)
        assert [token for token, _ in most_frequent_path(rows, 4)] == path_of(rows, 4)
        narrow = tree(rows, 40, top_k=1)
        assert narrow.parents.tolist() == list(range(-1, len(narrow.tokens) - 1))
        assert narrow.tokens.tolist() == path_of(rows, 9)
    assert len(tree([], 5).tokens) == 0


def test_scores_are_what_would_have_been_proposed() -> None:
    for text in texts(np.random.default_rng(3)):
        context = context_of(text[:1])
        session = opened(SuffixDrafter("suffix", 0, MANY), [context])
        session.score([context], everything=False)
        for start in range(1, len(text) - 7, 7):
            context.extend(text[start : start + 7], text[start : start + 7])
            session.commit([context])
            (scores,) = session.score([context], everything=False)
            assert scores is not None
            assert scores.matches is not None
            assert scores.start == start
            for offset, facts in enumerate(zip(scores.matches, scores.alphas, strict=True)):
                match, rows = found(text[: start + offset], [])
                proposed = path_of(rows, 1)
                assert facts == (match, float(proposed == [text[start + offset]]))


def test_a_long_prompt_is_looked_at_only_where_it_can_be_scored() -> None:
    """Only the scored end of a long prompt is searched, but all of it is indexed."""
    text = [*range(100, 400), 100, 101]
    context = context_of(text)
    session = opened(SuffixDrafter("suffix"), [context])
    context.remember(290, text[290:])
    (scores,) = session.score([context], everything=False)
    assert scores is not None
    assert (scores.start, scores.alphas.tolist()) == (290, [0.0] * 11 + [1.0])
    assert chain(session, context, 3) == [102, 103, 104]


def test_behind_the_end_of_a_past_output_text_and_draft_are_matched_again() -> None:
    drafter = SuffixDrafter("suffix")
    history(drafter, [[4, 5, 6, 8, 9, 9, 2], [1, 2, 3, 4]])
    context = context_of([1, 2])
    session = opened(drafter, [context])
    assert chain(session, context, 5) == [3, 4, 5, 6, 8]


def test_prompts_are_not_shared_and_outputs_are_at_once() -> None:
    drafter = SuffixDrafter("suffix")
    contexts = [context_of([1, 2, 3]), context_of([2], row=1)]
    session = opened(drafter, contexts)
    session.score(contexts, everything=False)
    assert chain(session, contexts[1]) == []
    for context in contexts:
        context.extend([2, 8, 9][: 3 - 2 * context.row], [2, 8, 9][: 3 - 2 * context.row])
    session.commit(contexts)
    assert chain_of(drafter, context_of([1]), 1) == []
    assert chain_of(drafter, context_of([8]), 1) == [9]
    contexts[1].extend([8], [8])
    assert chain(session, contexts[1], 1) == [9]  # from the other row, which is still running
    session.close(0)
    assert chain(session, contexts[1], 1) == [9]


def test_a_request_that_is_met_behind_its_first_round_shares_no_prompt() -> None:
    drafter = SuffixDrafter("suffix")
    context = context_of([1, 2, 3])
    session = opened(drafter, [context])
    context.extend([4, 5], [4, 5])
    session.commit([context])
    session.close(context.row)
    assert [chain_of(drafter, context_of([token]), 1) for token in (1, 2)] == [[], []]
    assert chain_of(drafter, context_of([3]), 2) == [4, 5]  # the context of the answer


def test_tenants_draft_from_their_own_answers_only() -> None:
    drafter = SuffixDrafter("suffix", num_tenants=2)

    def say(tenant: str, tokens: list[int], *, private: bool = False) -> int:
        """Answer with these tokens and return the match length before that."""
        context = Context(0, [1, tokens[0]], SamplingParams(), None, tenant=tenant)  # type: ignore[arg-type]
        context.is_private = private
        session = drafter.start()
        session.open(context, 16)
        length = session.match_length(context)
        context.tokens += tokens
        session.commit([context])
        session.close(0)
        return length

    assert say("a", [5, 6, 7, 5]) == 0
    assert say("a", [5, 9]) == 2
    assert say("b", [5, 6]) == 0, "another's answers are not seen"
    assert say("b", [5, 5], private=True) == 2, "private requests may look"
    assert say("b", [8, 8, 8], private=True) == 0
    assert say("b", [8, 8]) == 0, "and leave nothing behind"
    say("c", [5])
    assert say("a", [5, 6]) == 0, "the tenant used least recently was forgotten"


def test_no_row_is_scored_with_what_others_said_in_the_same_round() -> None:
    contexts = [context_of([row + 50], row) for row in range(2)]
    session = opened(SuffixDrafter("suffix"), contexts)
    session.score(contexts, everything=False)
    for expected in ([0.0] * 6, [1.0] * 6):
        for context in contexts:
            context.extend([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
        session.commit(contexts)
        for scores in session.score(contexts, everything=False):
            assert scores is not None
            assert scores.alphas[1:].tolist() == expected[1:]


def test_without_a_history_requests_do_not_know_each_other() -> None:
    drafter = SuffixDrafter("suffix", max_tokens=0)
    history(drafter, [[1, 2, 3]])
    assert chain_of(drafter, context_of([1])) == []


def test_a_stop_rule_sees_how_frequent_a_token_was() -> None:
    drafter = SuffixDrafter("suffix")
    history(drafter, [[1, 2, 3, 4, 4], [1, 2, 3, 5, 5], [1, 2, 6]])
    context = context_of([9, 1])
    session = opened(drafter, [context])
    (draft,) = session.propose([DraftTask(context, 4, MaxConfidence(0.6))])
    assert draft.tokens.tolist() == [2, 3, 5]  # 3 of 3, 2 of 3, then 1 of 2: the last one stays


def test_a_forgetful_twin_has_the_options_and_not_the_history() -> None:
    drafter = SuffixDrafter("suffix", max_tokens=100, num_matches=3)
    context = context_of([1, 2, 3])
    session = opened(drafter, [context])
    session.score([context], everything=False)
    context.tokens.extend([4, 5])
    session.commit([context])
    twin = drafter.forgetful()
    drafts = [chain_of(each, context_of([4]), 1) for each in (drafter, twin)]
    assert drafts == [[5], []]
    assert twin.name == "suffix"
