"""Compiles functions over flat arrays if numba is installed, and warms them up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

try:
    import numba
except ImportError:  # not installed, or incompatible with this numpy
    numba = None

_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
HAS_NUMBA = numba is not None
_warm_ups: list[Callable[[], object]] = []


def compiled(function: F, fastmath: Collection[str] = ()) -> F:
    """Compile a function on its first call; without numba, return it unchanged.

    fastmath: LLVM's flags of floating-point operations.

    Machine code is cached on disk. The cache detects changes only in the function's file, so a
    compiled function may only call compiled functions of its module.
    """
    if numba is None:
        return function
    try:
        found = numba.njit(cache=True, nogil=True, fastmath=set(fastmath))(function)
    except RuntimeError:  # no folder to cache in: a read-only file system without a home
        return numba.njit(nogil=True, fastmath=set(fastmath))(function)  # type: ignore[no-any-return]
    _ignore_stale_cache(found)
    return found  # type: ignore[no-any-return]


def _ignore_stale_cache(function: Any) -> None:
    """Let an index that cannot be read count as empty: the function is compiled again, and the
    index overwritten.

    An index is a pickle that names the classes of arguments. Where one of them has been renamed or
    moved since, numba would raise an AttributeError until the files are deleted.
    """
    file: Any = getattr(getattr(function, "_cache", None), "_cache_file", None)
    load = getattr(file, "_load_index", None)
    if load is None:  # another release of numba
        return

    def load_index() -> Any:
        try:
            return load()
        except Exception as error:
            _log.debug("the compiled code of %s is not used: %s", function.__name__, error)
            return {}

    file._load_index = load_index


def warms_up(function: F) -> F:
    """Register a function without arguments that calls the compiled functions of its module."""
    _warm_ups.append(function)
    return function


def warm_up(log: logging.Logger = _log) -> float:
    """Compile all registered functions, or load them from the cache; return the seconds taken.

    Each function is called once, before the first request, since compile time within a step would
    be charged to drafting.
    """
    if not _warm_ups:
        return 0.0
    begin_s = time.perf_counter()
    while _warm_ups:
        function = _warm_ups.pop()
        if numba is not None:
            function()
    if numba is None:
        log.debug("numba is not installed: drafting runs uncompiled (pip install numba)")
        return 0.0
    took_s = time.perf_counter() - begin_s
    log.debug("compiled functions are ready after %.1f s", took_s)
    return took_s
