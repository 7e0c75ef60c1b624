"""The losslessness report: compares forwards over one token with forwards over several.

Verification assumes that a forward over k tokens gives the logits of k forwards over one token. In
floating point, kernels for different widths sum in a different order, so the argmax may change
where two tokens are nearly tied. A bug changes logits by far more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.nn.model import CausalModel
from draftwise.types import Floats

_ROUNDINGS, _PRODUCTS = 12, 6
"""Sequential operations of a layer: rounded results (two norms, queries, rotation, scores, softmax,
weighted sum, output, two residual sums, activation, gating), and matrix products."""


def rounding_bound(model: CausalModel) -> float:
    """Expected maximum rounding difference of a logit, relative to the largest |logit|.

    sqrt(2 (L + 1) (12 u^2 + 6 n a^2)): L layers, u the unit roundoff of the dtype, a that of the
    accumulator (float32 in half precision), n the longest sum of a product. Source: errors of n
    operations grow as sqrt(n) (Higham and Mary, A new approach to probabilistic rounding error
    analysis, SIAM J. Sci. Comput. 41(5), 2019); two forwards differ by sqrt(2) times that. Measured
    in docs/lab/reproduction/engine.md.
    """
    unit = torch.finfo(model.dtype).eps / 2
    sums = unit if model.dtype == torch.float64 else torch.finfo(torch.float32).eps / 2
    shapes = (weights.shape for weights in model.module.parameters())
    longest = max([model.hidden_size, *(max(s[1:]) for s in shapes if len(s) == 2)])
    each = _ROUNDINGS * unit**2 + _PRODUCTS * longest * sums**2
    return math.sqrt(2 * (model.num_layers + 1) * each)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a speculative and a plain answer.

    margin: between the two logits; None if one answer is a prefix. bound: of rounding, in logits.
    """

    position: int
    plain: int | None
    speculative: int | None
    margin: float | None
    bound: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains the difference: each logit may move by the bound."""
        return self.margin is not None and self.margin <= 2 * self.bound


@dataclass(slots=True)
class Width:
    """Comparison of forwards of one width with forwards over one token, by position.

    differences: in logits; shares: of the rounding bound; flips: margins where the argmax differs.
    """

    shares: list[float] = field(default_factory=list)
    differences: list[float] = field(default_factory=list)
    flips: list[float] = field(default_factory=list)

    def compare(self, narrow: Tensor, wide: Tensor, bounds: Floats) -> None:
        """Compare logits [n, V] of the same positions; bounds: [n] rounding bounds in logits."""
        moved = (wide - narrow).abs().amax(-1).double().numpy(force=True)
        self.differences += moved.tolist()
        self.shares += (moved / bounds).tolist()
        ours, other = narrow.argmax(-1), wide.argmax(-1)
        rows = (ours != other).nonzero()[:, 0]
        margins = narrow[rows, ours[rows]] - narrow[rows, other[rows]]
        self.flips += margins.double().tolist()

    def as_json(self) -> dict[str, Any]:
        return {
            "num_positions": len(self.shares),
            "num_flips": len(self.flips),
            "median_flip_margin": _median(self.flips),
            "largest_flip_margin": max(self.flips, default=None),
            "largest_difference": max(self.differences, default=None),
            "largest_share_of_bound": max(self.shares, default=None),
        }


class LosslessnessReport:
    """The report on one model: ``add`` the answers to each prompt, then read ``as_json``.

    widths: numbers of tokens per forward that are compared with one token per forward.
    """

    def __init__(self, model: CausalModel, widths: Sequence[int]) -> None:
        self._model, self._dtype = model, model.dtype
        self.bound = rounding_bound(model)
        self.widths = {width: Width() for width in widths}
        self.margins: list[float] = []
        self.differences: list[Difference | None] = []

    def add(self, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int]) -> None:
        """Compare two greedy answers to a prompt, and the plain one's logits at every width."""
        narrow = torch.cat([logits for _, logits in _reread(self._model, prompt, plain, 1)])
        bounds = self.bound * narrow.abs().amax(-1).double().numpy(force=True)
        best = narrow.topk(2, dim=-1).values
        self.margins += (best[:, 0] - best[:, 1]).double().tolist()
        self.differences.append(_first_difference(plain, speculative, narrow, bounds))
        for width, found in self.widths.items():
            for start, wide in _reread(self._model, prompt, plain, width):
                if len(wide) == width:
                    end = start + width
                    found.compare(narrow[start:end], wide, bounds[start:end])

    @property
    def is_exact_dtype(self) -> bool:
        """Whether greedy tokens must be equal: in float32 and float64."""
        return self._dtype in {torch.float32, torch.float64}

    @property
    def _shares(self) -> list[float]:
        return [share for found in self.widths.values() for share in found.shares]

    @property
    def is_lossless(self) -> bool:
        """Whether rounding explains all differences; in an exact dtype none may be in tokens."""
        parted = [found for found in self.differences if found is not None]
        is_rounding = all(found.is_rounding for found in parted)
        return all(share <= 1 for share in self._shares) and (
            not parted if self.is_exact_dtype else is_rounding
        )

    def verdict(self) -> str:
        dtype, shares = str(self._dtype).removeprefix("torch."), self._shares
        num, parted = len(self.differences), [d for d in self.differences if d is not None]
        flips = [margin for found in self.widths.values() for margin in found.flips]
        differ = f"{len(parted)} of {num} answers"
        if not self.is_lossless:
            why = [f"{differ} differ from plain decoding"] if parted else []
            if (share := max(shares, default=0.0)) > 1:
                off = f"off by up to {share:.3g} times what rounding explains"
                why.append(f"logits of wide forwards are {off}")
            return f"NOT lossless in {dtype}: {', and '.join(why)}"
        if not flips and not parted:
            return (
                f"lossless in {dtype}: {differ} differ from plain decoding, and no "
                f"argmax changes in {len(shares)} positions"
            )
        return (
            f"{dtype}: rounding changes the argmax in {len(flips)} of {len(shares)} positions, all "
            f"within {max(flips, default=0.0):.3g} logits, and {differ}: "
            "greedy answers may differ where two tokens tie to within rounding; the distribution "
            f"is the target's in {dtype}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "dtype": str(self._dtype).removeprefix("torch."),
            "device": str(self._model.device),
            "num_prompts": len(self.differences),
            "num_different": sum(found is not None for found in self.differences),
            "relative_bound": self.bound,
            "num_positions": len(self.margins),
            "median_margin": _median(self.margins),
            "smallest_margin": min(self.margins, default=None),
            "num_ties": sum(margin == 0 for margin in self.margins),
            "answers": [_answer(found) for found in self.differences],
            "widths": {str(width): found.as_json() for width, found in self.widths.items()},
            "is_lossless": self.is_lossless,
            "verdict": self.verdict(),
        }


@torch.inference_mode()
def _reread(
    model: CausalModel, prompt: Sequence[int], answer: Sequence[int], width: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield for each forward its start in the answer and the logits [n, V] of those tokens."""
    cache = model.new_cache(num_rows=1, capacity=len(prompt) + len(answer))
    if len(prompt) > 1:
        model.extend(cache, [0], [prompt[:-1]], keep=1)
    fed = [prompt[-1], *answer[:-1]]
    for start in range(0, len(fed), width):
        piece = fed[start : start + width]
        cache.settle([0], cache.lengths)
        logits = model.extend(cache, [0], [piece], keep=len(piece))
        found = logits.last(0, len(piece))
        yield start, found.to(torch.promote_types(found.dtype, torch.float32))


def _first_difference(
    plain: Sequence[int], other: Sequence[int], narrow: Tensor, bounds: Floats
) -> Difference | None:
    """None = the answers are equal. narrow: [n, V] logits that predict the plain answer."""
    for place, (ours, theirs) in enumerate(zip_longest(plain, other)):
        if ours is None or theirs is None:
            return Difference(place, ours, theirs, None, 0.0)
        if ours != theirs:
            margin = abs(float(narrow[place, ours] - narrow[place, theirs]))
            return Difference(place, ours, theirs, margin, float(bounds[place]))
    return None


def _answer(found: Difference | None) -> Mapping[str, Any]:
    names = ("position", "plain", "speculative", "margin", "is_rounding") if found else ()
    return {"is_equal": found is None} | {name: getattr(found, name) for name in names}


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
