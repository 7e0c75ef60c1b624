"""How often each token stands in a text: what penalties look at, without reading it again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwise.types import Ints


class Occurrences:
    """Counts [V] of a text that grows, of all of it and of its answer alone.

    num_prompt: tokens before the answer. State: two float tensors [V]. Cost: O(new tokens).
    """

    def __init__(self, num_prompt: int) -> None:
        self.num_prompt, self._num_read = num_prompt, 0
        self.everywhere = self.answered = torch.empty(0)

    def read(self, text: Sequence[int], like: Tensor) -> None:
        """Count what the text has beyond what was read before; no text grows shorter.

        like: [n, V], where and how many tokens there are.
        """
        if not self._num_read:
            self.everywhere, self.answered = torch.zeros((2, like.shape[-1]), device=like.device)
        _add(self.everywhere, text[self._num_read :])
        _add(self.answered, text[max(self._num_read, self.num_prompt) :])
        self._num_read = max(self._num_read, len(text))


def followed(
    seen: Occurrences,
    text: Sequence[int],
    start: int,
    drafted: Sequence[int] | Tensor,
    parents: Ints | None,
    skip: int,
    num_rows: int,
) -> tuple[Tensor, Tensor]:
    """Counts [T, V] everywhere and in the answer, before each of T rows; see ``sampling.Span``.

    ``seen`` has read the text.
    """
    device = seen.everywhere.device
    everywhere, answered = seen.everywhere.clone(), seen.answered.clone()
    _add(everywhere, text[start:], -1.0)
    _add(answered, text[max(start, seen.num_prompt) :], -1.0)
    num = skip + num_rows - 1
    behind = torch.tensor(list(text[start:][:num]), dtype=torch.long, device=device)
    follows = torch.cat((behind, torch.as_tensor(drafted, device=device).long()))[:num]
    if not len(follows):
        return everywhere[None], answered[None]
    paths = np.tri(num + 1, num, -1, dtype=np.float32) if parents is None else _paths(parents[:num])
    is_answer = (start + np.arange(num) >= seen.num_prompt).astype(np.float32)
    ones = torch.zeros((num, len(everywhere)), device=device)
    ones.scatter_(1, follows.clamp(min=0)[:, None], 1.0)
    of_all, of_answer = (
        torch.from_numpy(weights[skip:]).to(device) @ ones for weights in (paths, paths * is_answer)
    )
    return everywhere + of_all, answered + of_answer


def _paths(parents: Ints) -> np.ndarray:
    """[N + 1, N] which nodes lie on the way to the text's end and to each node, itself included."""
    paths = np.zeros((len(parents) + 1, len(parents)), dtype=np.float32)
    for node, parent in enumerate(parents.tolist()):
        paths[node + 1] = paths[parent + 1]
        paths[node + 1, node] = 1
    return paths


def _add(counts: Tensor, tokens: Sequence[int], times: float = 1.0) -> None:
    if len(tokens):
        index = torch.tensor(list(tokens), device=counts.device)
        counts.index_add_(0, index, torch.full((len(tokens),), times, device=counts.device))
