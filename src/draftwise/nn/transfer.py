"""Device reads: the only place where the host waits for the device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from draftwise.types import Floats

T = TypeVar("T")

DeviceRead = Generator[Sequence[Tensor], Sequence[Floats], T]
"""A generator that reads from the device: yields tensors, is sent arrays, returns T."""


def fetch(tensors: Sequence[Tensor]) -> list[Floats]:
    """Copy tensors to the host in one transfer, as float64 arrays (exact for token ids)."""
    if not tensors:
        return []
    if len(tensors) == 1:
        return [tensors[0].detach().double().cpu().numpy()]
    flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors]).detach().cpu().numpy()
    parts = np.split(flat, list(accumulate(tensor.numel() for tensor in tensors[:-1])))
    return [part.reshape(own.shape) for part, own in zip(parts, tensors, strict=True)]


def together(asks: Sequence[DeviceRead[T]]) -> DeviceRead[list[T]]:
    """Combine several reads: tensors that they yield in the same step share a transfer."""
    if len(asks) == 1:
        return [(yield from asks[0])]
    found: dict[int, T] = {}
    sent: dict[int, Any] = dict.fromkeys(range(len(asks)))
    while sent:
        wanted: dict[int, Sequence[Tensor]] = {}
        for index, values in sent.items():
            try:
                wanted[index] = asks[index].send(values)
            except StopIteration as done:
                found[index] = done.value
        tensors = [tensor for own in wanted.values() for tensor in own]
        arrays = iter((yield tensors) if wanted else ())
        sent = {index: list(islice(arrays, len(own))) for index, own in wanted.items()}
    return [found[index] for index in range(len(asks))]


def answered(ask: DeviceRead[T]) -> T:
    """Run one read, with a transfer per step."""
    try:
        wanted = next(ask)
        while True:
            wanted = ask.send(fetch(wanted))
    except StopIteration as done:
        answer: T = done.value
        return answer
