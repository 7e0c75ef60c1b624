"""The self-check at load: does this model, on our cache, say what a plain forward says?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.model import CausalModel
from draftwise.nn.tiny import WINDOW, has_far_edges, tiny_config, tiny_module
from draftwise.nn.trees import branches
from draftwise.types import DraftwiseError

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 0.1}
"""Largest relative error of a logit; a wrong mask or position gives far more (docs/kv_cache.md)."""


def check_model(model: CausalModel) -> None:
    """Compare ragged, cropped and batched forwards with plain ones on random tokens.

    Of the ways to read several rows it keeps the best that is right: end to end, side by side, or
    each by itself. Where something changes only far along (windows, chunks, a rope's second
    table), a tiny twin of the same configuration, in which it is near, has to pass too.

    Source: docs/kv_cache.md. Cost: some forwards of at most ten tokens, and those of the twin.
    Raises DraftwiseError for a model that passes in no way, with what was wrong; one that serves
    chains but no trees (states, attention by slot) loads, and is marked so.
    """
    _refuse_broken(model)
    twin, model.forgets = _twin(model), False
    found = "nothing was tried"
    for way in _ways(model):
        found = _try(model, way, (14, 9))
        if not found and twin is not None:
            found = _try(twin, way, (min(40, twin.max_positions), 23), "a tiny twin of it: ")
        if not found:
            break
    if found:
        raise _refusal(model.name, found)
    model.forgets = twin is not None and _forgets(twin, way)
    # alone: such a model counts slots, and a tree's positions are others
    model.serves_trees = not (model.has_states or model.is_alone) and all(
        _grows_trees(one) for one in (model, twin) if one is not None
    )


def _ways(model: CausalModel) -> list[tuple[bool, bool]]:
    """(packs, is_alone) in the order in which they are tried."""
    padded = [(False, False), (False, True)]
    return [(True, False), *padded] if model.packs and not model.has_states else padded


def _try(model: CausalModel, way: tuple[bool, bool], lengths: Sequence[int], who: str = "") -> str:
    """What is wrong with this way of reading rows; empty = nothing."""
    model.packs, model.is_alone = way
    try:
        error = _largest_error(model, lengths)
    except Exception as cause:
        return f"{who}it does not run on a ragged KV cache ({cause})"
    if math.isnan(error):
        raise DraftwiseError(
            f"{model.name} gives logits that are nan: its weights are broken, or too large for "
            f"{str(model.dtype).removeprefix('torch.')}"
        )
    if error <= _TOLERANCE.get(model.dtype, 0.1):
        return ""
    return f"{who}its logits on a ragged KV cache are off by {error:.2g} (relative)"


def _forgets(twin: CausalModel, way: tuple[bool, bool]) -> bool:
    """Whether layers with windows may drop what lies behind them."""
    twin.forgets = True
    return twin.windows is not None and not _try(twin, way, (min(40, twin.max_positions), 23))


def _twin(model: CausalModel) -> CausalModel | None:
    """A tiny one with a layer of each kind, where windows change something far along."""
    config = model.module.config
    try:
        if not model.switch and not has_far_edges(config.get_text_config()):
            return None
        module = tiny_module(tiny_config(config))
        module.set_attn_implementation(config._attn_implementation)
        _plain_logits(module, [0] * (2 * WINDOW))
    except Exception:  # a configuration that the table of sizes does not fit
        return None
    twin = CausalModel(module, model.name)
    twin.forgets = False
    return twin


def _refuse_broken(model: CausalModel) -> None:
    """Raise for weights that are not finite: every answer would be."""
    for name, weights in model.module.named_parameters():
        if not _is_finite(weights):
            raise DraftwiseError(
                f"{model.name}: its weights are broken, or too large for their type: {name} is not "
                "finite. Load the checkpoint anew, or with dtype='float32'"
            )


def _is_finite(weights: Tensor) -> bool:
    """Of one tensor, in one pass; those in formats of their own, or on disk, are not looked at."""
    if (
        weights.is_meta
        or not weights.is_floating_point()
        or type(weights.data) is not Tensor
        or not weights.numel()
    ):
        return True
    least, most = torch.aminmax(weights.detach())
    return bool(least.isfinite() & most.isfinite())


def _refusal(name: str, why: str) -> DraftwiseError:
    return DraftwiseError(
        f"cannot speculate with {name}: {why}. docs/models.md lists the types that are served."
    )


@torch.inference_mode()
def _largest_error(model: CausalModel, lengths: Sequence[int]) -> float:
    """Largest |difference| over the largest |logit|, for two rows of different lengths.

    Drafts are fed and taken back, wholly and in part, in feeds of one token and of several.
    """
    generator = torch.Generator().manual_seed(0)
    texts = [
        torch.randint(0, model.vocab_size, (n,), generator=generator).tolist() for n in lengths
    ]
    plain = [_plain_logits(model.module, text) for text in texts]
    cache = model.new_cache(num_rows=2, capacity=max(lengths) + 8, forgets=True)
    wrong = torch.randint(0, model.vocab_size, (3,), generator=generator).tolist()
    errors = []

    def feed(counts: Sequence[int], drafts: Sequence[Sequence[int]]) -> None:
        """So many tokens of each text and a draft to be rejected; compare, and take it back."""
        starts = list(cache.lengths)
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        fed = [text[a:b] for text, a, b in zip(texts, starts, ends, strict=True)]
        fed = [[*new, *draft] for new, draft in zip(fed, drafts, strict=True)]
        logits = model.extend(cache, [0, 1], fed, keep=max(map(len, fed)))
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            found = logits.last(row, len(fed[row]))[: end - start]
            if model.switch:  # whose table hangs on what else is fed
                plain[row] = _plain_logits(model.module, [*texts[row][:start], *fed[row]])
            errors.append(_relative_error(found, plain[row][start:end]))
            cache.keep_path(row, start, range(end - start))

    feed([4, 2], [[], []])
    feed([3, 1], [wrong[:2], wrong])
    feed([1, 1], [wrong, wrong[:1]])
    feed([1, 1], [[], []])
    feed([length - start for length, start in zip(lengths, cache.lengths, strict=True)], [[], []])
    if not model.forgets:
        model.measure(cache.storage(0))
    return max(errors)


def _grows_trees(model: CausalModel) -> bool:
    """Whether trees are read rightly."""
    try:
        return _tree_error(model) <= _TOLERANCE.get(model.dtype, 0.1)
    except Exception:
        return False


@torch.inference_mode()
def _tree_error(model: CausalModel) -> float:
    """As above, for a tree of five tokens, two branches of three, behind a text of one."""
    generator = torch.Generator().manual_seed(1)
    text, *fed = torch.randint(0, model.vocab_size, (6,), generator=generator).tolist()
    cache = model.new_cache(num_rows=1, capacity=8)
    model.extend(cache, [0], [[text]], keep=1)
    tree = branches([-1, 0, 0, 1, 2], base=1)
    logits = model.extend(cache, [0], [fed], keep=len(fed), trees=[tree]).flat
    paths = {3: (0, 1, 3), 4: (0, 2, 4)}
    errors = [
        _relative_error(
            logits[tip][None], _plain_logits(model.module, [text, *(fed[n] for n in path)])[-1:]
        )
        for tip, path in paths.items()
    ]
    return max(errors)


def _plain_logits(module: Any, text: list[int]) -> Tensor:
    ids = torch.tensor([text], device=module.device)
    logits: Tensor = module(input_ids=ids, use_cache=False).logits
    return logits[0]


def _relative_error(ours: Tensor, plain: Tensor) -> float:
    difference = (ours.float() - plain.float()).abs().max()
    return float(difference / plain.float().abs().max().clamp_min(1e-6))
