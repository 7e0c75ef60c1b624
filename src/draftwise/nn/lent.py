"""What a drafter borrows of its target's output layer: the rows of tokens that it can draft."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draftwise.nn.head_parts import spread


@torch.no_grad()
def lent_rows(layer: nn.Module, ids: Tensor) -> nn.Linear:
    """An output layer [V, D] for these tokens [n] alone: a copy [n, D] that is not trained."""
    if isinstance(layer, LentHead):  # it has no others
        return layer.rows
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    with torch.device("meta"):
        lent = nn.Linear(weight.shape[1], len(ids), bias=bias is not None)
    places = ids.to(weight.device)
    lent.weight = nn.Parameter(weight[places], requires_grad=False)
    if bias is not None:
        lent.bias = nn.Parameter(bias[places], requires_grad=False)
    return lent


class LentHead(nn.Module):
    """An output layer that can only draft some tokens, by the target's own rows for these.

    Source: the idea of FR-Spec (Zhao et al. 2025, arXiv 2502.14856): to draft over frequent tokens
        alone saves most of what the output layer costs; the target verifies over all of them.
    Shapes: states [..., D] to logits [..., V], minus infinity for the others.
    """

    def __init__(self, layer: nn.Module, ids: Tensor, vocab_size: int) -> None:
        """layer: the target's [V, D]. ids [n]: what can be drafted, in rising order."""
        super().__init__()
        self.rows, self._vocab_size = lent_rows(layer, ids), vocab_size
        self.ids: Tensor
        self.register_buffer("ids", ids.to(layer.get_parameter("weight").device))

    def forward(self, states: Tensor) -> Tensor:
        """Logits of all tokens."""
        return spread(self.rows(states), self.ids, self._vocab_size)
