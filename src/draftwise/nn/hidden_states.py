"""Hidden states of selected layers, captured by hooks.

transformers' ``output_hidden_states`` keeps the states of all layers until the forward ends: for a
prompt of 4,000 tokens and 32 layers that takes more memory than the keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn


class HiddenStateHooks:
    """Captures selected hidden states of a module, numbered as in transformers: 0 = embeddings,
    i = after layer i, the last normed.

    The hooks' states are compared once with ``output_hidden_states``, which is used instead if they
    differ or the layers are not in one list. view: called in place of the module
    (``nn.recurrent``).
    """

    def __init__(self, module: Any, view: Any, num_layers: int) -> None:
        self._module, self._view, self._layers = module, view, _layers(view, num_layers)
        self.places: tuple[int, ...] = ()

    def ask(self, places: Iterable[int]) -> None:
        self.places = tuple(sorted({*self.places, *places}))
        if self._layers is not None and not self._agrees():
            self._layers = None

    def call(self, forward: Any, **options: Any) -> tuple[Any, Mapping[int, Tensor]]:
        """The output of a forward of the module, and the hidden states [R, T, D] by place."""
        if not self.places:
            return forward(**options), {}
        if self._layers is None:
            output = forward(output_hidden_states=True, **options)
            return output, {place: output.hidden_states[place] for place in self.places}
        found: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            for place in self.places:
                hooks.callback(self._hook(self._layers, place, found).remove)
            output = forward(**options)
        return output, found

    def _hook(self, layers: Sequence[nn.Module], place: int, found: dict[int, Tensor]) -> Any:

        def before(layer: Any, args: Any, given: Any) -> None:
            found[place] = args[0] if args else given["hidden_states"]

        def after(decoder: Any, args: Any, output: Any) -> None:
            found[place] = output[0]

        if place < len(layers):
            return layers[place].register_forward_pre_hook(before, with_kwargs=True)
        return self._view.base_model.register_forward_hook(after)

    @torch.inference_mode()
    def _agrees(self) -> bool:
        ids = torch.arange(3, device=self._module.device)[None]
        # hooks on layers that a view shares would run twice: the module itself is called
        try:
            theirs = self._module(input_ids=ids, output_hidden_states=True).hidden_states
            found = self.call(self._view, input_ids=ids)[1]
            return all(torch.equal(found[place], theirs[place]) for place in self.places)
        except Exception:  # a layer with an unusual call
            return False


def _layers(module: Any, num_layers: int) -> Sequence[nn.Module] | None:
    decoder = getattr(module, "base_model", None)
    if decoder is None or decoder is module:
        return None
    lists = [own for own in decoder.modules() if isinstance(own, nn.ModuleList)]
    return next((list(own) for own in lists if len(own) == num_layers), None)


class HiddenStates:
    """Hidden states [length, D] of each tapped layer after the tokens of one text.

    Only states of verified tokens are stored, all from the target. ``length`` is one less than the
    text's, since the target has yet to process the last token. Memory: per tap a tensor that grows
    by doubling, D floats per token.
    """

    def __init__(self) -> None:
        self.length = 0
        self._stored: dict[int, Tensor] = {}

    def put(self, start: int, hidden: Mapping[int, Tensor]) -> None:
        """Append [n, D] states by tap; raises ValueError unless ``start`` is ``length``."""
        if start != self.length:
            raise ValueError(
                f"hidden states of positions 0 to {self.length - 1} are known: those of {start} "
                "do not follow"
            )
        for tap, states in hidden.items():
            end = start + len(states)
            stored = self._stored.get(tap)
            if stored is None or end > len(stored):
                grown = states.new_empty((max(64, 2 * end), states.shape[-1]))
                if stored is not None:
                    grown[:start] = stored[:start]
                stored = self._stored[tap] = grown
            stored[start:end] = states
            self.length = end

    def begin_like(self, other: HiddenStates, length: int) -> None:
        """Copy the first ``length`` positions of another text with the same prefix."""
        length = min(length, other.length)
        self._stored = {tap: states[:length].clone() for tap, states in other._stored.items()}
        self.length = length

    def get(self, taps: Sequence[int], start: int, end: int) -> Tensor:
        """[end - start, taps x D] states of these taps; raises ValueError past ``length``."""
        if end > self.length:
            raise ValueError(
                f"hidden states up to position {end - 1} are needed, and only {self.length} "
                "positions are known"
            )
        parts = [self._stored[tap][start:end] for tap in taps]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
