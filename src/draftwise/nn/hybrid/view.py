"""A copy of a module that shares its weights and records its kernels' calls.

Neither the module nor transformers is changed: a layer that calls a supported kernel by name is
copied (shallowly: parameters, buffers and submodules are the same), and in the ``forward`` of the
copy, which has the same code, the name refers to a recording wrapper. Parents of such a layer are
copied, too. Two views share nothing but the weights, so each may run in its thread.
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
"""Methods of a cache that a layer with a recurrent state calls."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Hook tables, to which transformers adds when it returns states; copied for each view."""


class KernelRecorder:
    """Records the kernel calls of a view in ``trace``, the checkpoint of the forward."""

    def __init__(self) -> None:
        self.trace: StateCheckpoint | None = None

    def kernel(self, family: Family, chunk: Kernel, step: Kernel) -> Kernel:
        """The chunk kernel with recording; short inputs with a state use the step kernel."""

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
    if id(module) in seen:  # shared layers, e.g. of Zamba
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
    # ``__class__``, since a module may be passed as a weak proxy
    classes = {layer.__class__ for layer in module.modules()}
    codes = [getattr(inspect.unwrap(one.forward), "__code__", None) for one in classes]
    return any(code is not None and not _ASKS.isdisjoint(code.co_names) for code in codes)


def _watched_forward(module: nn.Module, watch: KernelRecorder) -> Callable[..., Any] | None:
    """A layer's ``forward`` with recorded kernels; None = it calls none, or was replaced."""
    if "forward" in module.__dict__:  # set by accelerate, bound to the module itself
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
