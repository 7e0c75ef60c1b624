"""Counts the host's waits for the device; works without a GPU, too.

On a GPU each of these is a synchronisation: ``cpu``, ``to("cpu")`` (``to`` a tensor's own device is
an upload), ``numpy``, ``tolist``, ``item``, a tensor as bool, int, float or index; and operations
whose result has a size that the data decides (``nonzero``, masks as an index). What models do
inside their own forwards does not count.
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
"""What stands in the path of a file whose transfers count."""
ON_CPU = {"_argmax"}
"""Functions that read only tensors that are on the host anyway."""
LIBRARY = "/transformers/"
"""Whose do not, though ours stands above them: models' own forwards."""

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
    """Sees methods of tensors that a CPU build would not even dispatch."""

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
            found = found.clone()  # on a CPU it is the tensor itself, which is still the device's
            self._transfers.on_host.append(found)
        return found


class _Operations(TorchDispatchMode):
    """Sees what happens below: scalars that are read, and sizes that hang on data."""

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
    """How often the host waited since ``with counting() as transfers``, and where."""

    def __init__(self) -> None:
        self.num = 0
        self.places: Counter[str] = Counter()
        self.on_host: list[torch.Tensor] = []
        self._is_paused = False

    def is_on_host(self, tensor: Any) -> bool:
        """Whether this came from a transfer that was counted already."""
        return any(tensor is known for known in self.on_host)

    def count(self, what: str) -> None:
        """One more, if it is ours: by the innermost line of the library under test."""
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
        """What one read does below it is the same read."""
        before, self._is_paused = self._is_paused, True
        yield
        self._is_paused = before


@contextlib.contextmanager
def counting() -> Iterator[Transfers]:
    """Count transfers of everything that runs inside."""
    transfers = Transfers()
    with _Functions(transfers), _Operations(transfers):
        yield transfers
