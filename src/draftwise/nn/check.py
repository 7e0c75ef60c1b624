"""Checks of a model: at load, and the losslessness report of ``draftwise check``.

The self-check at load compares logits on the ragged cache with those of plain forwards. The report
compares forwards over one token with forwards over several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from draftwise.nn.attention import branches
from draftwise.nn.model import CausalModel
from draftwise.nn.recurrent import STEPS
from draftwise.nn.tiny import WINDOW, has_far_edges, tiny_config, tiny_module
from draftwise.types import DraftwiseError, Floats

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 0.1}
"""Maximum relative error of a logit; a wrong mask or position exceeds it (docs/caches.md)."""
_WIDE = 4 * STEPS
"""Tokens of a text whose widest forward exceeds those whose steps ``States.finish`` keeps."""
_FAR = 400
"""Tokens of a twin's text, whose widest forward exceeds a chunk (64 to 256) of the kernels."""


def check_model(model: CausalModel) -> None:
    """Compare ragged, cropped and batched forwards with plain ones on random tokens.

    Selects the fastest correct way to feed several rows: packed, padded, or one by one. Features
    that matter only after many tokens (windows, chunks, recurrent kernels)
    are checked on a tiny twin of the same configuration. Cost: a few forwards over at most ten
    tokens (64 for a model with states), and a few tenths of a second for the twin. Source:
    docs/caches.md.

    Raises DraftwiseError if no way is correct. A model that serves chains but no trees (states,
    attention by slot) loads with ``serves_trees`` unset.
    """
    _refuse_broken(model)
    twin = _twin(model)
    found = "nothing was tried"
    # (packs, is_alone): rows packed, padded, or one by one
    ways = [(True, False)] if model.packs and not model.has_states else []
    for way in [*ways, (False, False), (False, True)]:
        found = _try(model, way, (_WIDE if model.has_states else 14, 9))
        if not found and twin is not None:
            found = _try(twin, way, _far(twin), "a tiny twin of it: ")
        if not found:
            break
    if found:
        raise DraftwiseError(
            f"cannot speculate with {model.name}: {found}. docs/lab/models.md lists the types that "
            "are served."
        )
    # is_alone: the model counts slots, which differ from positions in a tree
    model.serves_trees = not (model.has_states or model.is_alone) and all(
        _grows_trees(one) for one in (model, twin) if one is not None
    )


def _try(model: CausalModel, way: tuple[bool, bool], lengths: Sequence[int], who: str = "") -> str:
    """Try one way to feed rows; return its error, empty = none."""
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


def _far(twin: CausalModel) -> tuple[int, int]:
    longest = _FAR if twin.has_states else 2 * _WIDE
    return min(longest, twin.max_positions - 4), 18


def _twin(model: CausalModel) -> CausalModel | None:
    config = model.module.config
    try:
        if not (model.has_states or has_far_edges(config.get_text_config())):
            return None
        module = tiny_module(tiny_config(config))
        module.set_attn_implementation(config._attn_implementation)
        _plain_logits(module, [0] * (2 * WINDOW))
    except Exception:  # a configuration that the table of sizes does not fit
        return None
    return CausalModel(module, model.name)


def _refuse_broken(model: CausalModel) -> None:
    """Raise DraftwiseError for non-finite weights; other libraries' formats are skipped."""
    for name, weights in model.module.named_parameters():
        is_plain = type(weights.data) is Tensor and weights.is_floating_point()
        if not is_plain or weights.is_meta or not weights.numel():
            continue
        least, most = torch.aminmax(weights.detach())
        if not least.isfinite() & most.isfinite():
            raise DraftwiseError(
                f"{model.name}: its weights are broken, or too large for their type: {name} is not "
                "finite. Load the checkpoint again, or with dtype='float32'"
            )


@torch.inference_mode()
def _largest_error(model: CausalModel, lengths: Sequence[int]) -> float:
    """Largest |difference| over the largest |logit|, for two rows of different lengths.

    Covers drafts rejected in full and in part, inputs of one and of several tokens, long prompts, a
    row cut back into its prompt, and a copied row.
    """
    trial = _Trial(model, lengths)
    trial.feed([4, 2], [[], []])
    trial.feed([3, 1], [trial.wrong[:2], trial.wrong])
    trial.feed([1, 1], [trial.wrong, trial.wrong[:1]])
    trial.feed([1, 1], [[], []])
    trial.feed([left - 3 for left in trial.left], [[], []])
    trial.finish()
    model.measure(trial.cache)
    prefill = _Trial(model, lengths)
    prefill.read(lengths[0] * 2 // 3)
    prefill.read(lengths[0] - 3 - prefill.cache.lengths[0])
    prefill.feed([0, lengths[1] - 3], [[], []])
    prefill.finish()
    prefill.begin_again()
    return max(*trial.errors, *prefill.errors)


class _Trial:
    """Two random texts, which are fed to a cache in pieces, and their plain logits."""

    def __init__(self, model: CausalModel, lengths: Sequence[int]) -> None:
        draws = torch.Generator().manual_seed(0)
        self._model = model
        *self._texts, self.wrong = (_random_tokens(model, n, draws) for n in (*lengths, 3))
        self._plain = [_plain_logits(model.module, text) for text in self._texts]
        self.cache = model.new_cache(num_rows=2, capacity=max(lengths) + 8)
        self.errors: list[float] = []

    @property
    def left(self) -> list[int]:
        return [len(t) - n for t, n in zip(self._texts, self.cache.lengths, strict=True)]

    def feed(self, counts: Sequence[int], drafts: Sequence[Sequence[int]]) -> None:
        """Feed ``counts`` tokens of each text and a draft; compare, and roll the draft back."""
        rows = [row for row, count in enumerate(counts) if count]
        starts = [self.cache.lengths[row] for row in rows]
        fed = [
            [*self._texts[row][start : start + counts[row]], *drafts[row]]
            for row, start in zip(rows, starts, strict=True)
        ]
        logits = self._model.extend(self.cache, rows, fed, keep=max(map(len, fed)))
        for index, (row, start, tokens) in enumerate(zip(rows, starts, fed, strict=True)):
            found = logits.last(index, len(tokens))[: counts[row]]
            plain = self._plain[row][start : start + counts[row]]
            self.errors.append(_relative_error(found, plain))
            self.cache.keep_path(row, start, range(counts[row]))

    def read(self, num: int) -> None:
        """Feed a chunk of the first text as prefill does: few logits, in two forwards."""
        start = self.cache.lengths[0]
        piece, usual = self._texts[0][start : start + num], self._model.bulk_logits
        keep = min(2, num)
        self._model.bulk_logits = 0
        try:
            logits = self._model.extend(self.cache, [0], [piece], keep)
        finally:
            self._model.bulk_logits = usual
        self.cache.settle([0], [start + num])
        plain = self._plain[0][start + num - keep : start + num]
        self.errors.append(_relative_error(logits.last(0, keep), plain))

    def finish(self) -> None:
        self.cache.settle([0, 1], self.cache.lengths)
        self.feed([1, 1], [self.wrong, self.wrong[:2]])
        self.feed([1, 1], [[], []])
        self.feed([1, 1], [[], self.wrong[:1]])

    def begin_again(self) -> None:
        """Continue from the middle of the first row, and from a copy of its prefix."""
        self.cache.crop(0, len(self._texts[0]) - 5)
        self.feed([self.left[0], 0], [[], []])
        self._texts[1], self._plain[1] = self._texts[0], self._plain[0]
        self.cache.close(1)
        self.cache.open(1)
        if length := self.cache.reachable(0, len(self._texts[0]) - 2):
            self.cache.copy(0, 1, length)
        self.feed([0, self.left[1]], [[], []])


@torch.inference_mode()
def _grows_trees(model: CausalModel) -> bool:
    """Whether a tree of five tokens, in two paths of three, gets the right logits."""
    text, *fed = _random_tokens(model, 6, torch.Generator().manual_seed(1))
    cache, tree = model.new_cache(num_rows=1, capacity=8), branches([-1, 0, 0, 1, 2], base=1)
    errors = []
    try:
        model.extend(cache, [0], [[text]], keep=1)
        logits = model.extend(cache, [0], [fed], keep=len(fed), trees=[tree]).flat
        for path in ((0, 1, 3), (0, 2, 4)):
            plain = _plain_logits(model.module, [text, *(fed[node] for node in path)])[-1:]
            errors.append(_relative_error(logits[path[-1]][None], plain))
    except Exception:
        return False
    return max(errors) <= _TOLERANCE.get(model.dtype, 0.1)


def _random_tokens(model: CausalModel, num: int, draws: torch.Generator) -> list[int]:
    return list(torch.randint(0, model.vocab_size, (num,), generator=draws).tolist())


def _plain_logits(module: Any, text: list[int]) -> Tensor:
    ids = torch.tensor([text], device=module.device)
    logits: Tensor = module(input_ids=ids, use_cache=False).logits
    return logits[0]


def _relative_error(ours: Tensor, plain: Tensor) -> float:
    difference = (ours.float() - plain.float()).abs().max()
    return float(difference / plain.float().abs().max().clamp_min(1e-6))


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
            "largest_flip_margin": max(self.flips, default=None),
            "largest_difference": max(self.differences, default=None),
            "largest_share_of_bound": max(self.shares, default=None),
        }


class LosslessnessReport:
    """The report on one model: ``add`` the answers to each prompt, then read ``as_json``.

    Verification assumes that a forward over k tokens gives the logits of k forwards over one token.
    In floating point, kernels for different widths sum in a different order, so the argmax may
    change where two tokens are nearly tied. A bug changes logits by far more.

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
