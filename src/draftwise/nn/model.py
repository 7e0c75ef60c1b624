"""The model adapter: ragged forwards of any causal LM over a ``RaggedCache``."""

from __future__ import annotations

import bisect
import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from draftwise.nn.attention import (
    AttentionInputs,
    Fed,
    Mask,
    Masks,
    Trees,
    packed_ids,
    stacked_ids,
)
from draftwise.nn.cache import UNLIMITED, HiddenStateHooks, RaggedCache, RowSpan
from draftwise.nn.few_rows import Linears
from draftwise.nn.recurrent import (
    FAMILIES,
    Call,
    Family,
    Kernel,
    StateCheckpoint,
    States,
    bound_arguments,
)
from draftwise.types import DraftwiseError

_SAMPLE = 16  # values of a tensor that its mark contains
_TABLES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: parameters, buffers, submodules and hooks."""
_OF_TEXT = ("_token_id", "use_cache", "_name_or_path")
"""Ends of the names of settings that no forward reads."""


class Structure:
    """The parts of a module that a ``CausalModel`` is built from: all but the weights' values.

    view: the copy of the module that is called instead (``shadow``), or the module.
    A copy also depends on the identity and the hooks of each submodule.
    """

    def __init__(self, module: Any, view: Any) -> None:
        self._is_copied = view is not module
        self._kept = copy.deepcopy(self._of(module))

    def fits(self, module: Any) -> bool:
        return self._of(module) == self._kept

    def _of(self, module: Any) -> tuple[Any, ...]:
        given = vars(module.config).items()
        config = {name: own for name, own in given if not name.endswith(_OF_TEXT)}
        head = module.get_output_embeddings()
        logits = getattr(getattr(head, "weight", None), "shape", None)
        layers: Iterable[nn.Module] = module.modules() if self._is_copied else ()
        tables = ("_forward_hooks", "_forward_pre_hooks")
        own = [(id(x), *(len(x.__dict__[name]) for name in tables)) for x in layers]
        return config, module.dtype, module.device, logits, own


def weights_mark(module: Any) -> tuple[Any, ...] | None:
    """A value that changes with whatever keys and values depend on; None = it cannot be known.

    Covers training steps, loaded, moved and replaced weights, adapters (switched, disabled, merged,
    scaled) and the mode. Of a write through ``Tensor.data``, which leaves no trace, it notices one
    that reaches any of 16 values of a tensor: an optimizer's step, a copy of all weights, but not
    one row of an embedding.
    Cost: 5 us a tensor.
    """
    state: list[Any] = [_plain(vars(module.config))]
    tensors: list[Tensor] = []
    for layer in module.modules():
        own = layer.__dict__
        state += [(name, _plain(own[name])) for name in own.keys() - _TABLES]
        for table in (own["_parameters"], own["_buffers"]):
            tensors += [tensor for tensor in table.values() if tensor is not None]
    try:
        state += [(id(own), own._version, own.data_ptr()) for own in tensors]
        values = [_sample(own) for own in tensors if own.numel()]
    except (RuntimeError, NotImplementedError, TypeError):  # no plain tensors: offloaded, quantised
        return None
    by_device: dict[torch.device, list[Tensor]] = {}
    for value in values:
        by_device.setdefault(value.device, []).append(value)
    return *state, *(torch.cat(own).cpu().numpy().tobytes() for own in by_device.values())


def _sample(tensor: Tensor) -> Tensor:
    num = min(_SAMPLE, tensor.numel())
    return tensor.detach().as_strided((num,), (tensor.numel() // num,)).double()


def _plain(value: Any) -> Any:
    """Numbers and strings in nested containers; None for all else."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return tuple((str(name), _plain(own)) for name, own in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return None


BULK_LOGITS = 1 << 24
"""Maximum number of logits (tokens x vocabulary) that one prefill forward may return."""
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Names of a forward's cache, newest first. Source: transformers, since 5.24, and before it."""


@dataclass(frozen=True, slots=True)
class Logits:
    """Output of a ragged forward, rows concatenated.

    flat: [M, V]. ends: [R] index after each row's last logits. hidden: by tap, R tensors [n, D] of
    all fed tokens. num_fed: tokens of all rows.
    """

    flat: Tensor
    ends: Sequence[int]
    num_fed: int = 0
    hidden: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)

    def last(self, row: int, num: int) -> Tensor:
        """[num, V] after each of a row's last ``num`` tokens."""
        return self.flat[self.ends[row] - num : self.ends[row]]


def last_places(counts: Sequence[int], num: int) -> list[int]:
    """Sorted columns in which any row has one of its last ``num`` tokens.

    >>> last_places([7, 3], 2)
    [1, 2, 5, 6]
    """
    return sorted({place for count in counts for place in range(max(0, count - num), count)})


def cache_argument(module: Any) -> tuple[str, Collection[str]]:
    """The name under which a module's forward takes a cache, and all its arguments' names.

    They are those of the first module in it whose ``forward`` names a cache, since wrappers (of
    PEFT, for instance) pass on what they do not name. Raises DraftwiseError if there is none.
    """
    for layer in module.modules():
        names = inspect.signature(layer.forward).parameters
        if found := [name for name in CACHE_NAMES if name in names]:
            return found[0], names
    raise DraftwiseError(
        f"cannot speculate with {module.__class__.__name__}: its forward takes no KV cache "
        f"({', '.join(CACHE_NAMES)}). docs/lab/models.md lists the types that are served."
    )


_ASKS = {"get_conv_state", "update_conv_state", "get_recurrent_state"}
"""Methods of a cache that a layer with a recurrent state calls."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Hook tables, to which transformers adds when it returns states; copied for each view."""


class KernelRecorder:
    """Records the kernel calls of a view in ``trace``, the checkpoint of the forward.

    Neither the module nor transformers is changed: a layer that calls a supported kernel by name is
    copied (shallowly: parameters, buffers and submodules are the same), and in the ``forward`` of
    the copy, which has the same code, the name refers to a recording wrapper. Parents of such a
    layer are copied, too. Two views share nothing but the weights, so each may run in its thread.
    """

    def __init__(self) -> None:
        self.trace: StateCheckpoint | None = None

    def kernel(self, family: Family, chunk: Kernel, step: Kernel) -> Kernel:
        """The chunk kernel with recording; short inputs with a state use the step kernel."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self.trace is None:
                return chunk(*args, **kwargs)
            arguments = bound_arguments(chunk, args, kwargs)
            call = Call(family, chunk, step, arguments, arguments.get(family.state))
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


class Caller:
    """Calls a module, or for a recurrent one a view that records kernels (``shadow``).

    can_keep: whether it takes ``logits_to_keep``. has_states: whether layers have recurrent states.
    """

    def __init__(self, module: Any, num_layers: int) -> None:
        self._cache_name, names = cache_argument(module)
        self.can_keep = "logits_to_keep" in names
        self.has_states = keeps_states(module)
        self._watch = KernelRecorder()
        self.view = shadow(module, self._watch)
        pairs = zip(module.modules(), self.view.modules(), strict=True)
        self._copies = [(own, copied) for own, copied in pairs if own is not copied]
        self.taps = HiddenStateHooks(module, self.view, num_layers)
        self._linears = Linears(module)

    def __call__(
        self, cache: RaggedCache, tokens: Tensor, positions: Tensor, mask: Mask, **extra: Any
    ) -> tuple[Any, Mapping[int, Tensor]]:
        """The output and the tapped hidden states; tokens, positions: [R, T]."""
        extra["position_ids"] = positions
        extra[self._cache_name] = cache
        self._watch.trace = cache.states.trace
        for own, copied in self._copies:
            copied.training = own.training
        try:
            with self._linears.fast():
                output, hidden = self.taps.call(
                    self.view, input_ids=tokens, attention_mask=mask, use_cache=True, **extra
                )
        finally:
            self._watch.trace = None
        if cache.states.is_used:  # last: of a wide forward only the final state is kept
            cache.states.finish()
        return output, hidden


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """The arguments of ``CausalModel.extend``; trees: one for each row, None = a chain."""

    cache: RaggedCache
    rows: Sequence[int]
    tokens: Sequence[Fed]
    keep: int
    trees: Trees

    @property
    def spans(self) -> list[RowSpan]:
        lengths = self.cache.lengths
        fed = zip(self.rows, self.tokens, strict=True)
        return [RowSpan(row, lengths[row], len(tokens)) for row, tokens in fed]

    def by_row(self) -> Iterator[ForwardInputs]:
        for row, fed, tree in zip(self.rows, self.tokens, self.trees, strict=True):
            yield replace(self, rows=[row], tokens=[fed], trees=[tree])


def _joined(parts: Sequence[Logits]) -> Logits:
    """The output of forwards over one row each, as that of one forward."""
    firsts = [0, *accumulate(len(part.flat) for part in parts)]
    ends = [first + part.ends[0] for first, part in zip(firsts, parts, strict=False)]
    hidden = {tap: [part.hidden[tap][0] for part in parts] for tap in parts[0].hidden}
    num_fed = sum(part.num_fed for part in parts)
    return Logits(torch.cat([part.flat for part in parts]), ends, num_fed, hidden)


def served_positions(config: Any) -> int:
    """The longest text that a model serves.

    LongRoPE takes its frequencies from one of two tables, by the length of the text. A text ends
    with the first table, as keys of both cannot be mixed.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    name = "original_max_position_embeddings"
    limits = [
        one.get(name) or getattr(config, name, None)
        for one in ([rope] if "rope_type" in rope else rope.values())
        if isinstance(one, dict) and "longrope" in str(one.get("rope_type"))
    ]
    found = [getattr(config, "max_position_embeddings", None), *limits]
    return min([int(positions) for positions in found if positions], default=UNLIMITED)


class CausalModel:
    """A causal LM that extends a ``RaggedCache``, with explicit masks and positions.

    The module is never changed. The self-check sets ``packs``, ``serves_trees``,
    ``is_alone`` (one forward per row) and ``token_bytes``.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        config = module.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.bulk_logits = BULK_LOGITS
        self.serves_trees = True
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self.token_bytes = 0
        self.num_parameters = sum(p.numel() for p in module.parameters())
        # of a module on several devices, the first one with weights, which gets the tokens
        places = (weights.device for weights in module.parameters() if not weights.is_meta)
        self.device: torch.device = next(places, torch.device("cpu"))
        self.dtype: torch.dtype = module.dtype
        self._masks = Masks(config, self.dtype, self.device)
        self.packs = self._masks.is_packable
        self.is_alone = False
        self._inputs = AttentionInputs(self._masks, self.device)
        self._call = Caller(module, self.num_layers)
        self._structure = Structure(module, self._call.view)
        self.has_states = self._call.has_states
        self.max_positions = served_positions(config)

    @property
    def is_current(self) -> bool:
        """Whether the module is still what this object was made for: its configuration, dtype,
        device and vocabulary; its weights may have changed.
        """
        return self._structure.fits(self.module)

    @property
    def taps(self) -> tuple[int, ...]:
        return self._call.taps.places

    def tap(self, indices: Iterable[int]) -> None:
        """Make forwards return hidden states, numbered as in transformers: 0 = embeddings, i =
        after layer i, the last normed; < 0 = from the end. Raises ValueError for unknown layers.
        """
        places = range(self.num_layers + 1)
        try:
            self._call.taps.ask([places[index] for index in indices])
        except IndexError:
            raise ValueError(
                f"hidden states {sorted(indices)} are asked of {self.name}, which has "
                f"{self.num_layers} layers"
            ) from None

    def new_cache(self, num_rows: int = 0, capacity: int = UNLIMITED) -> RaggedCache:
        """A cache of rows of up to ``capacity`` tokens."""
        return RaggedCache(num_rows, capacity, States(self.has_states))

    def measure(self, cache: RaggedCache) -> None:
        """Set ``token_bytes`` from the first row of a cache, which must hold tokens."""
        storage = cache.storage(0)
        self.token_bytes = storage.num_bytes // max(1, storage.num_slots)

    def extend(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Fed],
        keep: int,
        trees: Trees = (),
    ) -> Logits:
        """Feed each of R rows its next tokens (at least one) and advance the cache's lengths.

        tokens: of each row, on the host or [n] on the device. Returns the logits after at least the
        last ``keep`` tokens of each row; if these exceed ``BULK_LOGITS``, earlier tokens take a
        forward without logits. Raises ValueError if a row does not fit into the cache.
        """
        feed = ForwardInputs(cache, rows, tokens, keep, trees or [None] * len(rows))
        run = self._recompute if self.has_states else self._forward
        if self.is_alone and len(rows) > 1:
            return _joined([run(one) for one in feed.by_row()])
        return run(feed)

    def _recompute(self, feed: ForwardInputs) -> Logits:
        """Feed the cached tokens after each row's last known recurrent state once more, before the
        new ones.
        """
        lengths, states = feed.cache.lengths, feed.cache.states
        again = [states.missing(row, lengths[row]) for row in feed.rows]
        for row, missed in zip(feed.rows, again, strict=True):
            lengths[row] -= len(missed)
        new = (fed.tolist() if isinstance(fed, Tensor) else fed for fed in feed.tokens)
        fed = [[*missed, *own] for missed, own in zip(again, new, strict=True)]
        found = self._forward(replace(feed, tokens=fed))
        hidden = {
            tap: [state[len(missed) :] for state, missed in zip(each, again, strict=True)]
            for tap, each in found.hidden.items()
        }
        return replace(found, hidden=hidden)

    def _forward(self, feed: ForwardInputs) -> Logits:
        """One forward; two if its logits exceed ``bulk_logits``, the first without logits."""
        run = self._packed if self.packs and len(feed.rows) > 1 else self._padded
        tokens, keep = feed.tokens, feed.keep
        longest = max(map(len, tokens))
        size = len(tokens) * (keep if self._call.can_keep else longest) * self.vocab_size
        if longest <= keep or size <= self.bulk_logits:
            return run(feed)
        edges = [max(0, len(fed) - keep) for fed in tokens]
        head = [fed[:edge] for fed, edge in zip(tokens, edges, strict=True)]
        tail = [fed[edge:] for fed, edge in zip(tokens, edges, strict=True)]
        first = run(replace(feed, tokens=head, trees=[None] * len(head), keep=0))
        last = run(replace(feed, tokens=tail))
        hidden = {
            tap: [torch.cat(pair) for pair in zip(first.hidden[tap], new, strict=True)]
            for tap, new in last.hidden.items()
        }
        return replace(last, hidden=hidden)

    def _padded(self, feed: ForwardInputs) -> Logits:
        """A forward over rows [R, T], padded at the end to the longest."""
        spans, cache = feed.spans, feed.cache
        counts = [span.count for span in spans]
        width, num_fed = max(counts), sum(counts)
        cache.place(spans, fed=feed.tokens)
        positions, mask = self._inputs.of_rows(spans, feed.trees)
        kept = last_places(counts, feed.keep) or [0]
        extra: dict[str, Any] = {}
        if len(kept) < width and self._call.can_keep:
            is_end = kept[0] == width - len(kept)
            extra["logits_to_keep"] = (
                len(kept) if is_end else torch.tensor(kept, device=self.device)
            )
        ids = stacked_ids(feed.tokens, width, self.device)
        output, found = self._call(cache, ids, positions, mask, **extra)
        cache.advance()
        hidden = {tap: [h[row, :n] for row, n in enumerate(counts)] for tap, h in found.items()}
        if (columns := output.logits.shape[1]) < width:
            counts = [bisect.bisect_left(kept, count) for count in counts]
        ends = [row * columns + count for row, count in enumerate(counts)]
        return Logits(output.logits.flatten(0, 1), ends, num_fed, hidden)

    def _packed(self, feed: ForwardInputs) -> Logits:
        """A forward over concatenated rows [1, N], each of which attends to its storage."""
        spans, cache = feed.spans, feed.cache
        counts = [span.count for span in spans]
        fed = [index for index, count in enumerate(counts) if count]
        cache.place([spans[index] for index in fed], packed=True)
        inputs = [self._inputs.of_rows([spans[i]], feed.trees[i : i + 1]) for i in fed]
        positions, masks = zip(*inputs, strict=True)
        edges = [0, *accumulate(counts)]
        extra: dict[str, Any] = {}
        kept = [min(count, feed.keep) for count in counts]
        if sum(kept) < edges[-1] and self._call.can_keep:
            tails = zip(edges[1:], kept, strict=True)
            places = [place for end, num in tails for place in range(end - num, end)]
            extra["logits_to_keep"] = torch.tensor(places or [0], device=self.device)
        mask = self._masks.pack(masks, [counts[index] for index in fed], cache)
        ids = packed_ids(feed.tokens, self.device)
        output, found = self._call(cache, ids, torch.cat(positions, dim=1), mask, **extra)
        cache.advance()
        hidden = {tap: [h[0, a:b] for a, b in pairwise(edges)] for tap, h in found.items()}
        ends = list(accumulate(kept)) if extra else edges[1:]
        return Logits(output.logits[0], ends, edges[-1], hidden)
