"""Reads from the device: the one place where the host waits for it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from draftwise.types import Floats

T = TypeVar("T")

DeviceRead = Generator[Sequence[Tensor], Sequence[Floats], T]
"""Code that reads from the device: yields tensors, is sent arrays, returns T."""


def fetch(tensors: Sequence[Tensor]) -> list[Floats]:
    """Tensors as arrays of their shapes, in one transfer, as float64 (exact for token ids)."""
    if not tensors:
        return []
    if len(tensors) == 1:
        return [tensors[0].detach().double().cpu().numpy()]
    parts = [tensor.reshape(-1).double() for tensor in tensors]
    flat = torch.cat(parts).detach().cpu().numpy()
    found, end = [], 0
    for tensor in tensors:
        start, end = end, end + tensor.numel()
        found.append(flat[start:end].reshape(tensor.shape))
    return found


def together(asks: Sequence[DeviceRead[T]]) -> DeviceRead[list[T]]:
    """Several reads as one: what they yield in the same step shares a transfer."""
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
