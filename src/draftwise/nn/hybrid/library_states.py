"""What recurrent layers ask of a cache, by the library's names."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from draftwise.nn.hybrid.states import Key, States


class LibraryStates:
    """What recurrent layers ask of the library's ``Cache``."""

    states: States

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """[R, C, K] the last inputs of a convolution, a copy."""
        return self.states.trace.conv(Key(layer_idx, state_idx))

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[R, C, K + T] with those before."""
        trace, key = self.states.trace, Key(layer_idx, state_idx)
        trace.conv(key)
        return trace.put_conv(key, conv_states, conv_kernel_size)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """[R, ...] the running states, a copy."""
        return self.states.trace.recurrent(Key(layer_idx, state_idx))

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """The running states after what was fed."""
        return self.states.trace.put_recurrent(Key(layer_idx, state_idx), recurrent_states)

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        """MiniMax's name for it."""
        return self.get_recurrent_state(layer_idx)

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        """MiniMax's name for it."""
        self.update_recurrent_state(linear_cache, layer_idx)

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether anything was read."""
        return self.states.trace.has_previous

    def is_recording_past(self, layer_idx: int) -> bool:
        """No: what went before is kept elsewhere, and layers get copies to work in."""
        return False
