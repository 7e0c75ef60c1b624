"""How a module is called: the names that its ``forward`` has for what every causal LM takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.cache import RaggedCache
from draftwise.nn.masks import Mask
from draftwise.nn.recurrent import Key, States, Trace
from draftwise.nn.ropes import Turns
from draftwise.nn.shadow import Watch, keeps_states, shadow
from draftwise.nn.storage import Shelf
from draftwise.nn.taps import Taps
from draftwise.nn.windows import Windows

_NUM_RWKV = 5
"""Tensors of an RWKV state, each of all layers."""


class Caller:
    """One module, called with tokens, positions, masks and a cache of our own.

    Where layers keep a running state, it is a view of the module that is called (``nn.shadow``).
    RWKV and xLSTM take states of a shape of their own, and return them.
    can_keep: whether logits may be wanted of some tokens only. has_states: whether layers keep any.
    """

    def __init__(self, module: Any, num_layers: int) -> None:
        names = inspect.signature(module.forward).parameters
        self.can_keep = "logits_to_keep" in names
        self._config = module.config
        self._cache_name = next(
            (n for n in ("cache_params", "state") if n in names), "past_key_values"
        )
        self._positions = "position_ids" in names or self._cache_name == "past_key_values"
        self._is_xlstm = self._config.model_type == "xlstm"  # its configuration is slow to ask
        self.has_states = keeps_states(module) or self._cache_name == "state" or self._is_xlstm
        self._watch = Watch()
        self._view = shadow(module, self._watch)
        self.taps = Taps(module, self._view, num_layers)

    def new_cache(
        self,
        num_rows: int,
        capacity: int,
        shelf: Shelf | None,
        turns: Turns | None,
        windows: Windows | None,
    ) -> RaggedCache:
        """A cache that the module takes for one of its own (MiniMax looks at its class)."""
        made: type[RaggedCache] = RaggedCache
        if self._config.model_type == "minimax":
            from transformers.models.minimax.modeling_minimax import MiniMaxCache

            made = type("RaggedMiniMaxCache", (RaggedCache, MiniMaxCache), {})
        return made(num_rows, capacity, shelf, States(self.has_states), turns, windows)

    def __call__(
        self,
        cache: RaggedCache,
        tokens: Tensor,
        positions: Tensor,
        mask: Mask,
        **extra: Any,
    ) -> tuple[Any, Mapping[int, Tensor]]:
        """The module's output, and the hidden states that are tapped.

        tokens, positions: [R, T]; extra: more of the module's options.
        """
        trace = cache.states.trace
        if self._positions:
            extra["position_ids"] = positions
        extra[self._cache_name] = cache
        if self._cache_name == "state":
            extra["state"] = _rwkv_state(trace)
        elif self._is_xlstm:
            extra[self._cache_name] = _xlstm_cache(trace, self._config, tokens, self._view.dtype)
        self._watch.trace = trace
        try:
            output, hidden = self.taps.call(
                self._view, input_ids=tokens, attention_mask=mask, use_cache=True, **extra
            )
        finally:
            self._watch.trace = None
        if self._cache_name == "state":
            _put(trace, {Key(0, number): state for number, state in enumerate(output.state)})
        elif self._is_xlstm:
            rnn = output.cache_params.rnn_state
            _put(trace, {Key(layer, n): s for layer in rnn for n, s in enumerate(rnn[layer])})
        cache.states.finish()  # of a wide forward it takes the end state: all must be put by now
        return output, hidden


def first_device(module: Any) -> torch.device:
    """Where tokens go in: of a module on several devices, the first that holds any weights."""
    places = (weights.device for weights in module.parameters() if not weights.is_meta)
    found: torch.device = next(places, torch.device("cpu"))
    return found


def _rwkv_state(trace: Trace) -> list[Tensor] | None:
    """Five tensors [R, D, layers]; None at the beginning."""
    found = [trace.recurrent(Key(0, number)) for number in range(_NUM_RWKV)]
    return None if found[0] is None else [state for state in found if state is not None]


def _xlstm_cache(trace: Trace, config: Any, tokens: Tensor, dtype: Any) -> Any:
    """The library's cache for xLSTM, with the states of these rows."""
    from transformers.models.xlstm.modeling_xlstm import xLSTMCache

    cache = xLSTMCache(config, len(tokens), dtype=dtype, device=tokens.device)
    for layer, states in cache.rnn_state.items():
        ours = [trace.recurrent(Key(layer, number)) for number in range(len(states))]
        if ours[0] is not None:
            cache.rnn_state[layer] = tuple(ours)
    return cache


def _put(trace: Trace, states: dict[Key, Tensor]) -> None:
    for key, state in states.items():
        trace.put_recurrent(key, state)
