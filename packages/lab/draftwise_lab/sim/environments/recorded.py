"""Recorded generations as arrays: the verified text's alphas and ratios, replayed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from draftwise.lines import TRACE_BYTES
from draftwise.types import DraftwiseError
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.environments.drawing import stream
from draftwise_lab.sim.text import PROMPT_TOKENS, Retrieval, Text, Track, runs_of

ARRAYS = (
    "fam", "temp", "drafters", "gam", "r", "conf", "conf2", "ent", "pgam", "avail", "mlen",
    "propP", "match",
)  # fmt: skip
"""What a replay file holds; shapes in docs/lab/simulator.md."""
OPTIONAL = ("plen", "pprop", "pmlen")
"""What it may hold besides: prompt lengths, and the prompt's end as retrieval drafters saw it."""


class Recorded:
    """Traces of a real model, replayed exactly in law for fixed lengths and one drafter a round.

    Given the text's token, a model's token is accepted with probability ``min(1, q/p)`` (the coin
    is the seed's), a retrieved one if it is that token. State: the arrays of the file.
    Errors: DraftwiseError if the file or one of its arrays is missing.
    """

    def __init__(self, path: str | Path, costs: CostTable) -> None:
        self.costs = costs
        self._arrays = _read(Path(path))
        names = [str(name) for name in self._arrays["drafters"]]
        self._num_models = self._arrays["gam"].shape[2]
        self.drafters = names
        families = zip(self._arrays["fam"].tolist(), self._arrays["temp"].tolist(), strict=True)
        self._domain_of = [f"{family}@{temperature:g}" for family, temperature in families]
        self.domains = list(dict.fromkeys(self._domain_of))

    @property
    def num_tokens(self) -> int:
        """The longest text that leaves room for the longest draft at its end."""
        positions, depth = self._arrays["propP"].shape[2:]
        return int(positions) - int(depth) - 1

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """All of the family's traces, each with the seed's coins."""
        if num_tokens + longest + 1 > self._arrays["gam"].shape[1]:
            raise DraftwiseError(
                f"{num_tokens} tokens and drafts of {longest} do not fit into traces of "
                f"{self._arrays['gam'].shape[1]} positions: ask for fewer tokens"
            )
        traces = [i for i, name in enumerate(self._domain_of) if name == domain]
        return [self._text(trace, seed, num_tokens) for trace in traces]

    def _text(self, trace: int, seed: int, num_tokens: int) -> Text:
        tracks = {}
        for index, name in enumerate(self.drafters):
            if index < self._num_models:
                rng = stream(seed, str(trace), name, "coins")
                tracks[name] = self._model_track(trace, index, rng)
            else:
                tracks[name] = self._retrieval_track(trace, index - self._num_models)
        prompt = PROMPT_TOKENS
        if "plen" in self._arrays:
            prompt = int(self._arrays["plen"][trace])
        return Text(f"trace {trace}", num_tokens, num_tokens, tracks, prompt_length=prompt)

    def _model_track(self, trace: int, index: int, rng: np.random.Generator) -> Track:
        def column(name: str) -> Any:
            return self._arrays[name][trace, :, index].astype(np.float64)

        ratios = column("r")
        return Track(
            alphas=np.clip(column("gam"), 0.0, 1.0),
            ratios=np.clip(ratios, 0.0, 1.0),
            runs=runs_of(rng.random(len(ratios)) < ratios),
            prompt=np.clip(column("pgam"), 0.0, 1.0),
            max_probs=column("conf"),
            entropies=column("ent"),
            margins=column("conf") - column("conf2"),
        )

    def _retrieval_track(self, trace: int, index: int) -> Track:
        num = self._arrays["avail"][trace, index].astype(np.int64)
        matches = np.where(num > 0, self._arrays["mlen"][trace, index], 0).astype(np.int64)
        alphas = np.clip(self._arrays["propP"][trace, index].astype(np.float64), 0.0, 1.0)
        hits = self._arrays["match"][trace, index] == 1
        leading = np.logical_and.accumulate(hits, axis=1).sum(axis=1)
        return Track(
            alphas=np.where(matches > 0, alphas[:, 0], 0.0),
            ratios=np.where(matches > 0, hits[:, 0], False).astype(np.float64),
            runs=np.minimum(leading, num),
            **self._prompt_of(trace, index),
            retrieval=Retrieval(np.minimum(num, hits.shape[1]), matches, alphas, hits),
        )

    def _prompt_of(self, trace: int, index: int) -> dict[str, Any]:
        """What a retrieval drafter would have copied along the prompt's end, if that is known."""
        if "pprop" not in self._arrays:
            return {}
        alphas = np.clip(self._arrays["pprop"][trace, index].astype(np.float64), 0.0, 1.0)
        matches = self._arrays["pmlen"][trace, index].astype(np.int64)
        return {"prompt": alphas, "prompt_matches": matches}


def _read(path: Path) -> dict[str, Any]:
    """The file's arrays; DraftwiseError says what is missing."""
    if not path.is_file():
        raise DraftwiseError(f"there is no trace {path}: give the path of a replay file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            names = found.keys()
            if missing := [name for name in ARRAYS if name not in names]:
                raise DraftwiseError(
                    f"{path} lacks the array {missing[0]!r}: see docs/lab/simulator.md"
                )
            size = sum(entry.file_size for entry in found.zip.infolist())
            if size > TRACE_BYTES:
                raise ValueError(f"its arrays take {size:,} bytes: {TRACE_BYTES:,} are the most")
            return {name: found[name] for name in [*ARRAYS, *OPTIONAL] if name in names}
    except (ValueError, OSError, AttributeError, MemoryError, EOFError, BadZipFile) as error:
        raise DraftwiseError(f"{path} is no replay file ({error})") from error
