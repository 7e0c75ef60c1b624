"""What a head borrows of its target's output layer: the rows of the tokens that it can draft."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def lent_rows(layer: nn.Module, ids: Tensor) -> nn.Linear:
    """An output layer [V, D] for these tokens [n] alone: a copy [n, D] that is not trained."""
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    with torch.device("meta"):
        lent = nn.Linear(weight.shape[1], len(ids), bias=bias is not None)
    places = ids.to(weight.device)
    lent.weight = nn.Parameter(weight[places], requires_grad=False)
    if bias is not None:
        lent.bias = nn.Parameter(bias[places], requires_grad=False)
    return lent
