"""Counts synchronisations of the host with the device; works without a GPU, too.

On a GPU each of these synchronises: ``cpu``, ``to("cpu")`` (``to`` the tensor's device is an
upload), ``numpy``, ``tolist``, ``item``, a tensor as bool, int, float or index; and operations
whose result size depends on the data (``nonzero``, masks as an index). Synchronisations inside the
models' forwards do not count.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

OURS = "/draftwise/"
"""Part of the path of every file whose transfers count."""
ON_CPU = {"_argmax"}
"""Functions that read only tensors that are already on the host."""
LIBRARY = "/transformers/"
"""Part of the path of files whose transfers do not count: models' forwards called by draftwise."""

_READS = {
    torch.Tensor.cpu,
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.item,
    torch.Tensor.__array__,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.Tensor.__contains__,
}
_SIZED = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}


class _Functions(TorchFunctionMode):
    """Intercepts tensor methods that a CPU build would not dispatch."""

    def __init__(self, transfers: Transfers) -> None:
        super().__init__()
        self._transfers = transfers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        targets = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, str)]
        to_host = func is torch.Tensor.to and "cpu" in targets
        is_read = to_host or func in _READS
        if not is_read or self._transfers.is_on_host(args[0]):
            return func(*args, **kwargs)
        self._transfers.count(getattr(func, "__name__", str(func)))
        with self._transfers.paused():
            found = func(*args, **kwargs)
        if isinstance(found, torch.Tensor):
            found = found.clone()  # on a CPU this is the same tensor, which stands for the device's
            self._transfers.on_host.append(found)
        return found


class _Operations(TorchDispatchMode):
    """Intercepts dispatched operations: scalar reads, and results whose size depends on data."""

    def __init__(self, transfers: Transfers) -> None:
        super().__init__()
        self._transfers = transfers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().split(".")[0]
        by_mask = name in _INDEXED and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name == "aten::_local_scalar_dense" or name in _SIZED or by_mask:
            self._transfers.count(name)
        return func(*args, **(kwargs or {}))


class Transfers:
    """Number and places of the host's waits inside ``with counting() as transfers``."""

    def __init__(self) -> None:
        self.num = 0
        self.places: Counter[str] = Counter()
        self.on_host: list[torch.Tensor] = []
        self._is_paused = False

    def is_on_host(self, tensor: Any) -> bool:
        """Whether the tensor is the result of a transfer that was already counted."""
        return any(tensor is known for known in self.on_host)

    def count(self, what: str) -> None:
        """Count a transfer if the innermost library frame is draftwise's, under that line."""
        frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
        known = [f.filename for f in frames if OURS in f.filename or LIBRARY in f.filename]
        if self._is_paused or not known or OURS not in known[-1]:
            return
        where = next(frame for frame in reversed(frames) if OURS in frame.filename)
        if where.name in ON_CPU:
            return
        self.num += 1
        self.places[f"{where.filename.split(OURS)[-1]}:{where.lineno} {what}"] += 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore further transfers inside one read: they belong to that read."""
        before, self._is_paused = self._is_paused, True
        yield
        self._is_paused = before


@contextlib.contextmanager
def counting() -> Iterator[Transfers]:
    """Count the transfers of the code in the block."""
    transfers = Transfers()
    with _Functions(transfers), _Operations(transfers):
        yield transfers
