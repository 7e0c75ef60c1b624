"""A copy of a module that shares its weights and records its kernels' calls.

The module itself is never changed, nor the library: a layer that calls one of our ``kernels``
by its name is copied (shallowly: parameters, buffers and submodules are the same), and the copy's
``forward`` is the same code with another meaning of that name. Everything on the way to such a
layer is copied, too. Two views share nothing but the weights, so each may have a thread.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from draftwise.nn.hybrid.kernels import FAMILIES, Call, Family, Kernel, bound_arguments
from draftwise.nn.hybrid.states import StateCheckpoint

_ASKS = {"get_conv_state", "update_conv_state", "get_recurrent_state", "get_linear_cache"}
"""Names by which a layer with a state calls methods of a cache."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Tables of a module that the library adds to when it returns states: each view has its own."""


class KernelRecorder:
    """Records the arguments of a view's kernels: the trace of the current forward."""

    def __init__(self) -> None:
        self.trace: StateCheckpoint | None = None

    def kernel(self, family: Family, chunk: Kernel, step: Kernel) -> Kernel:
        """The chunk kernel with recording; short feeds from a state use the step kernel."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self.trace is None:
                return chunk(*args, **kwargs)
            arguments = bound_arguments(chunk, args, kwargs)
            state = arguments.get(family.state)
            if family.starts_from_zero:
                state = self.trace.heads_state()
            call = Call(family, chunk, step, arguments, state)
            self.trace.note(call)
            return call.run()

        return noted


def shadow(
    module: nn.Module, watch: KernelRecorder, seen: dict[int, nn.Module] | None = None
) -> nn.Module:
    """The module, or a view of it if any of its layers calls a supported kernel."""
    seen = {} if seen is None else seen
    if id(module) in seen:  # layers that are shared, as Zamba's
        return seen[id(module)]
    seen[id(module)] = module
    children = {
        name: child if child is None else shadow(child, watch, seen)
        for name, child in module._modules.items()
    }
    forward = _watched_forward(module, watch)
    if forward is None and all(children[name] is module._modules[name] for name in children):
        return module
    view = copy.copy(module)
    view.__dict__["_modules"] = children
    for name in _HOOKS:
        view.__dict__[name] = copy.copy(module.__dict__[name])
    if forward is not None:
        view.__dict__["forward"] = MethodType(forward, view)
    seen[id(module)] = view
    return view


def keeps_states(module: nn.Module) -> bool:
    """Whether any layer reads a recurrent state from the cache."""
    # its class as it says it is: a module may be handed over as a weak proxy
    classes = {layer.__class__ for layer in module.modules()}
    codes = [getattr(inspect.unwrap(one.forward), "__code__", None) for one in classes]
    return any(code is not None and not _ASKS.isdisjoint(code.co_names) for code in codes)


def _watched_forward(module: nn.Module, watch: KernelRecorder) -> Callable[..., Any] | None:
    """A layer's ``forward`` with its kernels noted; None = it calls none, or is not its class's."""
    if "forward" in module.__dict__:  # of accelerate: it is bound to the module itself
        return None
    forward = inspect.unwrap(module.__class__.forward)
    if not isinstance(forward, FunctionType):
        return None
    code, scope = forward.__code__, forward.__globals__
    noted = {
        family.chunk: watch.kernel(family, scope[family.chunk], scope[family.step])
        for family in FAMILIES
        if family.chunk in code.co_names and family.chunk in scope and family.step in scope
    }
    if not noted:
        return None
    return FunctionType(code, scope | noted, None, forward.__defaults__, forward.__closure__)
