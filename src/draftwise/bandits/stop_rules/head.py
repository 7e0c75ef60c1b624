"""SpecDec++'s stop rule: ends a draft when a trained head predicts a rejection in it.

Heads on disk have SpecDec++'s layout and are loaded without torch: ``config.json``
(``hidden_size``, ``num_layers``) and ``model.safetensors`` with the keys
``model.{i}.linear.weight`` and ``.bias`` of the residual layers i < num_layers, then
``model.{num_layers}.weight`` [2, D] and ``.bias`` [2]; class 1 is "accepted".
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from draftwise.checks import flag, probability
from draftwise.files import local_path
from draftwise.types import DraftStep, DraftwiseError

Array = NDArray[np.float32]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A loaded head: residual blocks ([D, D], [D]), then weights [D] and bias of the log-odds."""

    blocks: tuple[tuple[Array, Array], ...]
    odds: Array
    bias: float

    def acceptance(self, hidden: Array) -> float:
        """The predicted probability that the token with this hidden state [D] is accepted.

        >>> HeadWeights((), np.array([1.0, -1.0], np.float32), 0.0).acceptance(
        ...     np.array([2.0, 2.0], np.float32)
        ... )
        0.5
        """
        x = hidden
        for weight, bias in self.blocks:
            y = weight @ x + bias
            x = x + y * _sigmoid(y)
        return float(_sigmoid(self.odds @ x + self.bias))


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)  # exp(-x) would overflow for very negative x


def read_head(folder: Path) -> HeadWeights:
    """The head in ``folder``, cached while its files are unchanged; DraftwiseError without one."""
    weights = folder / "model.safetensors"
    if weights.exists():
        return _load(folder.absolute(), *map(_mark, (weights, folder / "config.json")))
    if (folder / "pytorch_model.bin").exists():
        raise DraftwiseError(
            f"{folder} holds its head as pytorch_model.bin: rewrite it once with `python -c 'from "
            f'draftwise_lab.train.head import load, save; save(load("{folder}"), "{folder}")\'`'
        )
    raise DraftwiseError(
        f"there is no acceptance head in {folder}: make one with `draftwise train head --out "
        f"{folder} ...`, or name another folder as head:PATH"
    )


def _mark(file: Path) -> tuple[int, ...]:
    """What differs after a file was replaced, even by one of the same name, size and time."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=32)
def _load(folder: Path, *marks: tuple[int, ...]) -> HeadWeights:
    """Cached by the files' marks, since every request creates a rule."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config = config.get("config", config)
        size, num_blocks = int(config["hidden_size"]), int(config.get("num_layers", 0))
        tensors = _read_safetensors(folder / "model.safetensors")

        def tensor(name: str, *shape: int) -> Array:
            found = tensors[f"model.{name}"]
            if found.shape != shape:
                raise ValueError(f"a tensor has the shape {found.shape} and not {shape}")
            return found

        # the authors' layers share one set of weights, which may be stored once
        stored = (i if f"model.{i}.linear.weight" in tensors else 0 for i in range(num_blocks))
        layers = [f"{i}.linear" for i in stored]
        blocks = [(tensor(f"{n}.weight", size, size), tensor(f"{n}.bias", size)) for n in layers]
        weight, bias = tensor(f"{num_blocks}.weight", 2, size), tensor(f"{num_blocks}.bias", 2)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise DraftwiseError(
            f"the acceptance head in {folder} cannot be read ({type(error).__name__}: {error}); it "
            "needs config.json with hidden_size and num_layers, and model.safetensors"
        ) from error
    return HeadWeights(tuple(blocks), weight[1] - weight[0], float(bias[1] - bias[0]))


def _read_safetensors(path: Path) -> dict[str, Array]:
    """Load all tensors as float32, even bfloat16, which numpy does not support."""
    found: dict[str, Array] = {}
    for name, entry in deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} is of type {entry['dtype']}")
        raw = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        found[name] = raw.astype(np.float32).reshape(entry["shape"])
    return found


class Head:
    """Stop when ``1 - prod_i P(token i is accepted)``, as a head predicts it, exceeds ``h``.

    Source: SpecDec++, section 4.3, equation 4.1 and algorithm 1; h 0.7 as section 5.3 recommends
        for w_rej = 6, D = 3. Written ``head:PATH,h=0.7``; without a path it is the folder ``head``
        next to the drafter's weights. ``draftwise train head`` trains the weights.
    Differs: (1) the product includes the last drafted token, as section 4.3 defines the rule; in
        algorithm 1 and the authors' code it ends one token earlier (``lag=true``), so the last
        token is submitted unjudged; (2) without hidden states (drafts of retrieval) the draft
        continues.
    State: the product over the current draft, a float. Cost: O((D + 1) H^2) a token for D layers of
        hidden size H, on one core: 16 microseconds at H = 128 and D = 3, 9 milliseconds at 4096.
    Errors: ValueError if h is not in [0, 1]; DraftwiseError for a folder without a readable head,
        or, on first use, if neither a path nor a drafter's folder is known.
    """

    needs_probs = False
    never_stops = False

    def __init__(
        self, home: Path | None, path: Path | str | None = None, h: float = 0.7, lag: bool = False
    ) -> None:
        self._threshold, self._lag = probability("h", h), flag("lag", lag)
        self.waits_for_hidden = not lag
        folder = (
            local_path(path) if path is not None else home / "head" if home is not None else None
        )
        self._loaded = None if folder is None else read_head(folder)
        self._survival = 1.0

    @property
    def needs_hidden(self) -> int:
        return len(self._weights.odds)

    def should_continue(self, step: DraftStep) -> bool:
        if step.depth == 0:
            self._survival = 1.0
            return True
        hidden = step.hidden_before if self._lag else step.hidden
        if hidden is not None and not (self._lag and step.depth == 1):
            self._survival *= self._weights.acceptance(hidden)
        return 1.0 - self._survival <= self._threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        pass

    @property
    def _weights(self) -> HeadWeights:
        if self._loaded is None:
            raise DraftwiseError(
                "rule 'head' has no weights: write head:PATH, or use it on a drafter whose folder "
                "holds one (draftwise train head --out DRAFTER/head)"
            )
        return self._loaded
