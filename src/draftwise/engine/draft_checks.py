"""What drafters return, checked where it enters the engine: shapes, tokens, parents, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from draftwise.drafters.protocol import DraftTask
from draftwise.types import Draft, Scores


class Nonsense(ValueError):
    """A drafter's answer of a form that drafters are not to give."""


def checked_drafts(found: Any, tasks: Sequence[DraftTask], vocab_size: int) -> list[Draft]:
    """A draft for each task. Raises ``Nonsense`` for anything else; nothing is read on a device."""
    for draft, task in zip(_list_of(found, len(tasks)), tasks, strict=True):
        _check_draft(draft, task, vocab_size)
    return list(found)


def checked_scores(found: Any, num: int) -> list[Scores | None]:
    """Scores, or None, of so many texts. Raises ``Nonsense`` for anything else.

    Scores that are not finite count as None: p may be to blame for them.
    """
    return [_checked(scores) for scores in _list_of(found, num)]


def checked_match(found: Any, vocab_size: int) -> tuple[int, int]:
    """A match and the token that follows it; (0, -1) = none. Raises ``Nonsense``."""
    length, token = found
    if length and not (isinstance(token, (int, np.integer)) and 0 <= token < vocab_size):
        raise Nonsense(f"{token!r} follows a match, of a vocabulary of {vocab_size}")
    return int(length), int(token)


def tensors_of(yielded: Any) -> Sequence[Tensor]:
    """What a session wants to see. Raises ``Nonsense`` for what is not on a device."""
    if not isinstance(yielded, (list, tuple)) or not all(isinstance(t, Tensor) for t in yielded):
        raise Nonsense("it asked to see what is no list of tensors")
    return yielded


def _list_of(found: Any, num: int) -> Sequence[Any]:
    if not isinstance(found, (list, tuple)) or len(found) != num:
        told = f"{len(found)}" if isinstance(found, (list, tuple)) else type(found).__name__
        raise Nonsense(f"{told} in answer to {num} texts: a list of as many is wanted")
    return found


def _checked(scores: Any) -> Scores | None:
    if scores is None:
        return None
    if not isinstance(scores, Scores):
        raise Nonsense(f"{type(scores).__name__} is no Scores")
    if (
        not isinstance(scores.start, (int, np.integer))
        or scores.start < 0
        or not 0 < scores.weight <= 1
    ):
        raise Nonsense(f"scores start at {scores.start!r} with the weight {scores.weight!r}")
    columns = (scores.alphas, scores.ratios)
    if not all(_is_row(column, "f") for column in columns):
        raise Nonsense("alphas and ratios are not rows of floats")
    if len({len(row) for row in (*columns, scores.matches) if row is not None}) > 1:
        raise Nonsense("alphas, ratios and matches are not of one length")
    if all(0.0 <= value <= 1.0 for column in columns for value in column.tolist()):
        return scores
    if not all(np.isfinite(column).all() for column in columns):
        return None
    return replace(scores, alphas=columns[0].clip(0, 1), ratios=columns[1].clip(0, 1))


def _check_draft(draft: Any, task: DraftTask, vocab_size: int) -> None:
    if not isinstance(draft, Draft):
        raise Nonsense(f"{type(draft).__name__} is no Draft")
    tokens, num = draft.tokens, np.size(draft.tokens)
    if not (_is_row(tokens, "iu") or (_is_row(tokens, "f") and not num)):
        raise Nonsense("drafted tokens are not a row of whole numbers")
    ids = tokens.tolist()
    if num and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise Nonsense(f"tokens {min(ids)} to {max(ids)} were drafted, of {vocab_size}")
    most = task.length if task.tree is None else task.tree.total_tokens
    if task.mix is not None:
        most = max(most, task.mix.most)
    if num > most:
        raise Nonsense(f"{num} tokens were drafted, where {most} were wanted at most")
    if len(draft.sources) != num or len(draft.confidences) not in (0, num):
        raise Nonsense(f"sources or confidences are not as many as {num} tokens")
    _check_parents(draft, num, task.length)
    if draft.probs is not None and len(draft.probs) != num:
        raise Nonsense(f"{len(draft.probs)} distributions of {num} tokens")
    is_greedy = task.context.sampling.temperature == 0
    offpath_probs = [q for node, q in draft.offpath_probs if -1 <= node < num]
    wide = [
        *(draft.probs if draft.probs is not None else ()),
        *(() if is_greedy else offpath_probs),
    ]
    if len(offpath_probs) < len(draft.offpath_probs) or not all(
        q is None or _is_q(q, vocab_size) for q in wide
    ):
        raise Nonsense(f"a distribution is no row of {vocab_size} probabilities")


def _check_parents(draft: Draft, num: int, length: int) -> None:
    if (parents := draft.parents) is None:
        return
    if not _is_row(parents, "i") or len(parents) != num:
        raise Nonsense(f"parents are not a row of {num} whole numbers")
    if not ((parents >= -1) & (parents < np.arange(num))).all():
        raise Nonsense("a drafted token's parent does not come before it")
    if draft.depth > length:
        raise Nonsense(f"a draft is {draft.depth} tokens deep, of {length}")


def _is_q(q: Any, vocab_size: int) -> bool:
    if isinstance(q, Tensor):
        return q.is_floating_point() and q.shape == (vocab_size,)
    return _is_row(q, "f") and len(q) == vocab_size


def _is_row(found: Any, kinds: str) -> bool:
    """Whether it is an array of one dimension, of one of these kinds of numbers."""
    return isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in kinds
