"""``torch.compile``: forwards of a few fixed widths over a whole cache, each compiled once."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from draftwise.nn.cache import RaggedCache, RowKVCache
from draftwise.nn.cpu.layout import is_packed

WIDTHS = (1, 2, 5, 9, 17)
"""Tokens per compiled forward: the text's last one and a draft of 0, 1, 4, 8 or 16."""
STEP_WIDTHS = (1, 2)
"""Widths of draft steps; the first step after a fully accepted draft is fed two tokens."""
LEAST_SLOTS = 256
"""Minimum slots of a compiled forward's cache; more are powers of two, which requests share."""


class CompiledSteps:
    """A module's forwards over one row's storage, at fixed widths, each compiled at its first use.

    Inputs are padded to the next width, the mask spans the whole storage, and keys and values are
    written at an index: no shape changes from token to token, so nothing is recompiled.
    ``spent_s``, ``spent_cpu_s``: seconds of compilation so far, which belong to no round. On CUDA
    forwards are recorded as graphs. Half precision on a CPU without oneDNN blocks gains only from
    "freezing", a packed copy of the weights per width; there one token is fed as two
    (docs/performance.md). If compilation fails, there is a warning, and the model runs uncompiled.
    """

    def __init__(
        self, module: Any, name: str, widths: Sequence[int] = WIDTHS, backend: Any = "inductor"
    ) -> None:
        self._module, self._name, self._backend = module, name, backend
        self._on_cuda = module.device.type == "cuda"
        is_half = module.device.type == "cpu" and module.dtype.itemsize == 2
        self._packs = is_half and not is_packed(module)
        self._widths = [w for w in sorted(widths) if w > 1 or not self._packs]
        self._steps: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._free: dict[int, list[RowKVCache]] = {}
        self.spent_s = self.spent_cpu_s = 0.0

    def take(self, num_tokens: int) -> RowKVCache:
        """Zeroed storage with a power of two of slots, reused by successive requests.

        Recorded CUDA graphs contain addresses, so new storage would need a new recording.
        """
        slots = max(LEAST_SLOTS, 1 << (num_tokens - 1).bit_length())
        free = self._free.setdefault(slots, [])
        if not free:
            return RowKVCache(slots)
        storage = free.pop()
        with torch.inference_mode():  # as at its creation; no NaN may remain
            for tensor in (*storage.keys.values(), *storage.values.values()):
                tensor.zero_()
        return storage

    def give(self, storage: RowKVCache) -> None:
        if storage.keys:
            self._free.setdefault(storage.num_slots, []).append(storage)

    def width(self, cache: RaggedCache, row: int, wanted: int) -> int | None:
        """The width to which a row's input is padded; None = use the plain module."""
        used, storage = cache.lengths[row] + wanted, cache.storage(row)
        is_ready = bool(storage.keys) and used <= storage.num_slots
        if not is_ready or used > cache.capacity or not torch.is_inference_mode_enabled():
            return None
        return next((width for width in self._widths if width >= wanted), None)

    def __call__(
        self,
        storage: RowKVCache,
        *feed: Tensor | Mapping[str, Tensor | None] | None,
        taps: Sequence[int],
    ) -> tuple[Tensor, list[Tensor]] | None:
        """Logits [1, T, V] and tapped states [1, T, D] of ids, positions and slots, [1, T] each.

        None if the forward cannot be compiled.
        """
        inputs = (*feed, _in_order(storage.keys), _in_order(storage.values))
        key = (*feed[0].shape, storage.num_slots, *taps)  # type: ignore[union-attr]
        if key not in self._steps and not self._compile(key, taps, inputs):
            return None
        if self._on_cuda:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        logits, hidden = self._steps[key](*inputs)
        if self._on_cuda:  # the next replay overwrites them
            logits, hidden = logits.clone(), [states.clone() for states in hidden]
        return logits, hidden

    def _compile(self, key: tuple[int, ...], taps: Sequence[int], inputs: tuple[Any, ...]) -> bool:
        print(
            f"compiling {self._name}: {key[1]} tokens at once, up to {key[2]} of text ...",
            file=sys.stderr,
        )
        start, cpu = time.perf_counter(), time.process_time()
        step = self._new_step(taps)
        try:
            with warnings.catch_warnings(), self._settings():
                warnings.simplefilter("ignore")
                if self._on_cuda:
                    for storage in (*inputs[-2], *inputs[-1]):
                        torch._dynamo.mark_static_address(storage, guard=False)
                for _ in range(3 if self._on_cuda else 1):  # CUDA: warm-up, capture, replay
                    step(*inputs)
                if self._on_cuda:
                    torch.cuda.synchronize(self._module.device)
        except Exception as error:
            self._widths = []
            reason = " ".join(str(error).split()[:40])
            warnings.warn(
                f"{self._name} cannot be compiled and runs as it is ({reason}). A C++ compiler "
                "(g++, clang++) is needed; without one leave out --compile",
                stacklevel=2,
            )
            return False
        finally:
            self.spent_s += time.perf_counter() - start
            self.spent_cpu_s += time.process_time() - cpu
        self._steps[key] = step
        print(f"compiled in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        return True

    def _new_step(self, taps: Sequence[int]) -> Callable[..., Any]:
        """A forward of the module, not yet compiled, with a separate code object per shape: the
        compiler caches graphs by code object, so calls need no lookup and no guards.
        """
        module, extra = self._module, {"output_hidden_states": True} if taps else {}

        def step(
            ids: Tensor, positions: Tensor, slots: Tensor, mask: Any, keys: Any, values: Any
        ) -> tuple[Tensor, list[Tensor]]:
            output = module(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=_WholeCache(keys, values, slots),
                use_cache=True,
                **extra,
            )
            return output.logits, [output.hidden_states[tap] for tap in taps]

        code = step.__code__.replace()
        own = FunctionType(code, step.__globals__, "step", None, step.__closure__)
        options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        if self._on_cuda and self._backend == "inductor":
            options["triton.cudagraphs"] = True  # the effect of mode="reduce-overhead"
        return torch.compile(
            own, fullgraph=True, dynamic=False, backend=self._backend, options=options
        )

    def _settings(self) -> AbstractContextManager[None]:
        """Freezing is read when a graph is traced, so it cannot be an option of one graph."""
        if not self._packs or self._backend != "inductor":
            return nullcontext()
        import torch._inductor.config as inductor

        patch: AbstractContextManager[None] = inductor.patch(freezing=True)
        return patch


def _in_order(tensors: Mapping[int, Tensor]) -> list[Tensor]:
    return [tensors[layer] for layer in range(len(tensors))]


class _WholeCache(Cache):  # type: ignore[misc]
    """The cache of a traced forward, which writes at ``slots`` and reads the whole storage."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], slots: Tensor) -> None:
        super().__init__(layers=[])
        self._keys, self._values, self._slots = keys, values, slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[:, :, self._slots[0]] = key_states
        values[:, :, self._slots[0]] = value_states
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._keys[0].shape[2], 0
