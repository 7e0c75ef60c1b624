"""From the device to the host: the one place where the host waits, and questions that share it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate, islice
from typing import TypeVar

import torch
from torch import Tensor

from draftwise.types import Floats

T = TypeVar("T")

DeviceRead = Generator[Sequence[Tensor], Sequence[Floats], T]
"""What needs to see numbers of the device: yields tensors, is sent them as arrays, returns T."""


def fetch(tensors: Sequence[Tensor]) -> list[Floats]:
    """Tensors as arrays of their shapes, in one transfer, as float64 (exact for token ids)."""
    if not tensors:
        return []
    if len(tensors) == 1:
        return [tensors[0].detach().double().cpu().numpy()]
    parts = [tensor.detach().reshape(-1).double() for tensor in tensors]
    flat = torch.cat(parts).cpu().numpy()
    ends = list(accumulate(tensor.numel() for tensor in tensors))
    return [
        flat[end - tensor.numel() : end].reshape(tuple(tensor.shape))
        for tensor, end in zip(tensors, ends, strict=True)
    ]


def together(asks: Sequence[DeviceRead[T]]) -> DeviceRead[list[T]]:
    """Several questions as one: what they yield in the same turn travels in one transfer."""
    if len(asks) == 1:
        return [(yield from asks[0])]
    found: dict[int, T] = {}
    sent: dict[int, Sequence[Floats] | None] = dict.fromkeys(range(len(asks)))
    while True:
        wanted: dict[int, Sequence[Tensor]] = {}
        for index, values in sent.items():
            try:
                wanted[index] = next(asks[index]) if values is None else asks[index].send(values)
            except StopIteration as done:
                found[index] = done.value
        if not wanted:
            return [found[index] for index in range(len(asks))]
        arrays = iter((yield [tensor for tensors in wanted.values() for tensor in tensors]))
        sent = {index: list(islice(arrays, len(own))) for index, own in wanted.items()}


def answered(ask: DeviceRead[T]) -> T:
    """The answer to one question, with a transfer each time that it looks."""
    try:
        wanted = next(ask)
        while True:
            wanted = ask.send(fetch(wanted))
    except StopIteration as done:
        answer: T = done.value
        return answer
