"""Recorded traces as environments: arrays of generations, and the engine's Round records."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isnan
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from draftwise.files import TRACE_BYTES, numbered_lines, strict_json
from draftwise.types import DraftwiseError, Floats
from draftwise_lab.sim.costs import CostTable, load_costs
from draftwise_lab.sim.environments import Environment, stream
from draftwise_lab.sim.presets import Setting
from draftwise_lab.sim.text import PROMPT_TOKENS, Retrieval, Text, Track, runs_of

Record = Mapping[str, Any]
LONGEST = 1 << 20
"""Limit on tokens of a round and positions of a text; larger values would only allocate memory."""


def read_records(path: Path) -> list[Record]:
    """Read all records of a jsonl file. Errors: DraftwiseError names the first invalid line."""
    if not path.is_file():
        raise DraftwiseError(f"there is no trace {path}: write one with draftwise generate --trace")
    records: list[Record] = []
    try:
        lines = numbered_lines(path, TRACE_BYTES)
    except ValueError as error:
        raise DraftwiseError(f"{path} is no trace: {error}") from error
    for number, line in lines:
        try:
            records.append(_checked(strict_json(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise DraftwiseError(
                f"{path}, line {number}: this is no round of a trace ({why}); traces are written "
                "by draftwise generate --trace and draftwise contest"
            ) from error
    if not records:
        raise DraftwiseError(f"{path} is empty: write a trace with draftwise generate --trace")
    return records


def _checked(record: Any) -> Record:
    """Return the record; ValueError, KeyError, TypeError or AttributeError if it is invalid."""
    hash(record["request"])
    for key in ("position", "num_drafted", "num_emitted"):
        _whole(key, record[key])
    _whole("batch_size", record.get("batch_size", 1), least=1)
    for phase, seconds in record["seconds"].items():
        _number(phase, seconds, 0.0, inf)
    if record["num_drafted"]:
        hash(record["drafter"])
    for name, scores in record["scores"].items():
        _whole(f"{name}: start", scores["start"])
        for key in ("alphas", "ratios"):
            for value in scores[key]:
                _number(f"{name}: {key}", value, 0.0, 1.0)
        for match in scores.get("matches", ()):
            _whole(f"{name}: matches", match)
    return dict(record)


def _whole(name: str, value: Any, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= LONGEST:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} to {LONGEST}")


def _number(name: str, value: Any, least: float, most: float) -> None:
    if type(value) not in {int, float} or isnan(value) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a number from {least} to {most}")


ARRAYS = (
    "fam", "temp", "drafters", "gam", "r", "conf", "conf2", "ent", "pgam", "avail", "mlen",
    "propP", "match",
)  # fmt: skip
"""Required arrays of a replay file; shapes in docs/lab/simulator.md."""
OPTIONAL = ("plen", "pprop", "pmlen")
"""Optional arrays: prompt lengths; retrieval's alphas and match lengths at the prompt's end."""


class Recorded:
    """Traces of a real model; the replay is exact in distribution for fixed lengths and one drafter
    per round.

    Given the text's token, a model's token is accepted with probability ``min(1, q/p)`` (the seed
    draws the coin), a retrieved token if it equals the text's. State: the arrays of the file.
    Errors: DraftwiseError if the file or one of its arrays is missing.
    """

    def __init__(self, path: str | Path, costs: CostTable) -> None:
        self.costs = costs
        self._arrays = _read(Path(path))
        self.drafters = [str(name) for name in self._arrays["drafters"]]
        self._num_models = self._arrays["gam"].shape[2]
        families = zip(self._arrays["fam"].tolist(), self._arrays["temp"].tolist(), strict=True)
        self._domain_of = [f"{family}@{temperature:g}" for family, temperature in families]
        self.domains = list(dict.fromkeys(self._domain_of))

    @property
    def num_tokens(self) -> int:
        positions, depth = self._arrays["propP"].shape[2:]
        return int(positions) - int(depth) - 1

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
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
        prompt = self._arrays["plen"][trace] if "plen" in self._arrays else PROMPT_TOKENS
        return Text(f"trace {trace}", num_tokens, num_tokens, tracks, prompt_length=int(prompt))

    def _model_track(self, trace: int, index: int, rng: np.random.Generator) -> Track:
        gam, r, conf, conf2, ent, pgam = (
            self._arrays[name][trace, :, index].astype(np.float64)
            for name in ("gam", "r", "conf", "conf2", "ent", "pgam")
        )
        runs, ratios = runs_of(rng.random(len(r)) < r), np.clip(r, 0.0, 1.0)
        alphas, prompt = np.clip(gam, 0.0, 1.0), np.clip(pgam, 0.0, 1.0)
        return Track(alphas, ratios, runs, prompt, conf, ent, margins=conf - conf2)

    def _retrieval_track(self, trace: int, index: int) -> Track:
        own = {
            name: self._arrays[name][trace, index]
            for name in ("avail", "mlen", "propP", "match", "pprop", "pmlen")
            if name in self._arrays
        }
        num = own["avail"].astype(np.int64)
        matches = np.where(num > 0, own["mlen"], 0).astype(np.int64)
        alphas = np.clip(own["propP"].astype(np.float64), 0.0, 1.0)
        hits = own["match"] == 1
        leading = np.logical_and.accumulate(hits, axis=1).sum(axis=1)
        prompt: dict[str, Any] = {}
        if "pprop" in own:
            prompt["prompt"] = np.clip(own["pprop"].astype(float), 0.0, 1.0)
            prompt["prompt_matches"] = own["pmlen"].astype(np.int64)
        return Track(
            alphas=np.where(matches > 0, alphas[:, 0], 0.0),
            ratios=np.where(matches > 0, hits[:, 0], False).astype(np.float64),
            runs=np.minimum(leading, num),
            **prompt,
            retrieval=Retrieval(np.minimum(num, hits.shape[1]), matches, alphas, hits),
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DraftwiseError(f"there is no trace {path}: give the path of a replay file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            names = found.keys()
            if missing := [name for name in ARRAYS if name not in names]:
                said = f"lacks the array {missing[0]!r}: see docs/lab/simulator.md"
                raise DraftwiseError(f"{path} {said}")
            size = sum(entry.file_size for entry in found.zip.infolist())
            if size > TRACE_BYTES:
                raise ValueError(f"its arrays take {size:,} bytes: {TRACE_BYTES:,} are the most")
            return {name: found[name] for name in [*ARRAYS, *OPTIONAL] if name in names}
    except (ValueError, OSError, AttributeError, MemoryError, EOFError, BadZipFile) as error:
        why = "it holds no arrays" if "pickle" in str(error) else error  # numpy's message
        raise DraftwiseError(f"{path} is no replay file ({why})") from error


DEPTH = 16
"""Maximum number of tokens that a replayed retrieval drafter proposes."""


class RoundTrace:
    """Requests of a trace written by ``generate --trace``, one text each; requests without scores
    are skipped.

    Records may have a ``domain``, as those of ``bench`` do; the default is ``trace``. A model's
    token is accepted with its recorded ratio ``min(1, q/p)``; the seed draws the coin. Differs: (1)
    where a drafter was not scored, its latest known value is used, or else its first, so record
    with panoramic feedback for faithful plans; (2) a retrieval drafter's draft consists of its
    proposals at the later positions, each from a separate match; (3) a trace lacks the prompts.
    costs: None = medians of the trace's own seconds. costs_by_batch: the same for each batch size
    that was timed without drafts. Errors: DraftwiseError.
    """

    def __init__(self, path: str | Path, costs: CostTable | None = None) -> None:
        records = read_records(Path(path))
        self.costs = measured_costs(records) if costs is None else costs
        self.costs_by_batch = costs_by_batch(records, need_plain=True)
        by_request: dict[Any, list[Record]] = {}
        for record in records:
            by_request.setdefault(record["request"], []).append(record)
        self._recorded = list(by_request.values())
        # a request without scores says nothing about any drafter
        self._requests = [some for some in self._recorded if any(r["scores"] for r in some)]
        self._domain_of = [str(found[0].get("domain", "trace")) for found in self._requests]
        names = dict.fromkeys(name for record in records for name in record["scores"])
        self.drafters = list(names)
        self.domains = list(dict.fromkeys(self._domain_of))
        if not names:
            raise DraftwiseError(f"{path} has no scores of any drafter: record a trace that drafts")

    @property
    def num_tokens(self) -> int:
        return max(_num_tokens(records) for records in self._requests)

    def played(self) -> dict[str, Any]:
        """Totals of the recorded run; a batch's seconds are divided equally among its rows."""
        records = [record for records in self._recorded for record in records]
        seconds = sum(sum(one["seconds"].values()) / one.get("batch_size", 1) for one in records)
        tokens = _num_tokens(records)
        return {
            "mat": tokens / len(records), "rounds": len(records), "tokens": tokens,
            "tok_per_s": tokens / seconds if seconds else None,
        }  # fmt: skip

    def coverage(self) -> dict[str, float]:
        """By drafter, the share of emitted tokens that were scored; other scores are filled in."""
        known = dict.fromkeys(self.drafters, 0)
        for records in self._recorded:
            first = records[0]["position"]
            last = first + _num_tokens(records)
            for name, scores in (pair for record in records for pair in record["scores"].items()):
                start, end = scores["start"], scores["start"] + len(scores["alphas"])
                known[name] += max(0, min(end, last) - max(start, first))
        num_tokens = self.played()["tokens"]
        return {name: min(1.0, num / num_tokens) for name, num in known.items()}

    def is_retrieval(self, drafter: str) -> bool:
        records = itertools.chain(*self._requests)
        return any("matches" in record["scores"].get(drafter, {}) for record in records)

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        found = zip(itertools.count(), self._requests, self._domain_of)
        return [self._text(i, r, seed, num_tokens, longest) for i, r, own in found if own == domain]

    def _text(
        self, index: int, records: Sequence[Record], seed: int, num_tokens: int, longest: int
    ) -> Text:
        length = min(num_tokens, _num_tokens(records))
        start = records[0]["position"]
        tracks = {}
        for name in self.drafters:
            found = [r["scores"][name] for r in records if name in r["scores"]]
            alphas, ratios, matches = _columns(found, start, length + longest + 1)
            if any("matches" in scores for scores in found):
                tracks[name] = _retrieval_track(alphas, ratios, matches)
            else:
                rng = stream(seed, str(index), name, "coins")
                tracks[name] = Track(alphas, ratios, runs_of(rng.random(len(ratios)) < ratios))
        return Text(f"request {index}", length, length, tracks, records[0]["batch_size"])


def measured_costs(records: Iterable[Record]) -> CostTable:
    """Medians of a trace's seconds: target forwards by batch size, and draft steps pooled over
    batch sizes. Errors: DraftwiseError if no forward was timed."""
    tables = costs_by_batch(records)
    steps: dict[str, list[float]] = {}
    for table in tables.values():
        for name, seconds in table.draft_s.items():
            steps.setdefault(name, []).append(seconds)
    curves = {size: table.target_s[size] for size, table in tables.items()}
    if not curves:
        raise DraftwiseError("the trace holds no seconds of the verify phase: give --costs")
    draft_s = {name: statistics.median(found) for name, found in steps.items()}
    return CostTable(curves, draft_s, other_s=max(draft_s.values(), default=0.0))


def costs_by_batch(records: Iterable[Record], need_plain: bool = False) -> dict[int, CostTable]:
    """``measured_costs`` for each batch size; sizes whose forwards were not timed are omitted.

    The requests of a step share its seconds: its forward counts as one over their mean number of
    tokens, and its drafting, if one drafter wrote all drafts, as that drafter's longest draft.
    need_plain: omit sizes without a step in which no request drafted.
    """
    verify: dict[int, dict[int, list[float]]] = {}
    steps: dict[int, dict[str, list[float]]] = {}
    for step in _steps(records):
        size, seconds = step[0].get("batch_size", 1), step[0]["seconds"]
        drafted = [record["num_drafted"] for record in step]
        width = 1 + max(round(sum(drafted) / len(step)), any(drafted))
        verify.setdefault(size, {}).setdefault(width, []).append(seconds.get("verify", 0.0))
        names = {record["drafter"] for record in step if record["num_drafted"]}
        if len(names) == 1:
            each = seconds.get("draft", 0.0) / max(drafted)
            steps.setdefault(size, {}).setdefault(names.pop(), []).append(each)
    found = {}
    for size, by_width in verify.items():
        curve = _curve({width: statistics.median(times) for width, times in by_width.items()})
        if curve[0] > 0.0 and (1 in by_width or not need_plain):
            own = {name: statistics.median(times) for name, times in steps.get(size, {}).items()}
            found[size] = CostTable({size: curve}, own, other_s=max(own.values(), default=0.0))
    return found


def _steps(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group rounds that ran together: adjacent records with equal batch size and seconds."""

    def key(record: Record) -> tuple[int, Any]:
        return record.get("batch_size", 1), record["seconds"]

    for (size, _), equal in itertools.groupby(records, key):
        many = list(equal)
        for start in range(0, len(many), size):
            yield many[start : start + size]


def _curve(points: Mapping[int, float]) -> list[float]:
    """Seconds of 1, 2, .. tokens: interpolated, and non-decreasing."""
    known = sorted(points)
    seconds_of = np.minimum.accumulate([points[n] for n in reversed(known)])[::-1]
    return np.interp(np.arange(1, known[-1] + 1), known, seconds_of).tolist()


def _num_tokens(records: Sequence[Record]) -> int:
    return sum(record["num_emitted"] for record in records)


def _columns(found: Sequence[Record], start: int, num: int) -> tuple[Floats, Floats, Floats]:
    """[num] alphas, ratios and matches by position from ``start`` on, with gaps filled."""
    columns = np.full((3, num), np.nan)
    for scores in found:
        for column, key in zip(columns, ("alphas", "ratios", "matches"), strict=True):
            for place, value in enumerate(scores.get(key, []), scores["start"] - start):
                if 0 <= place < num:
                    column[place] = value
    alphas, ratios, matches = map(_filled, columns)
    return alphas, ratios, matches


def _filled(values: Floats) -> Floats:
    """Fill gaps with the latest earlier value, else the first known one; 0 if none is known."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.zeros(len(values))
    latest = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    filled: Floats = values[known[np.maximum(latest, 0)]]
    return filled


def _retrieval_track(alphas: Floats, ratios: Floats, matches: Floats) -> Track:
    """A retrieval drafter whose draft consists of its proposals at the following positions."""
    lengths = matches.astype(np.int64)
    padded = np.append(alphas, np.zeros(DEPTH))
    hits = np.append((ratios > 0.0) & (lengths > 0), np.zeros(DEPTH, dtype=bool))
    places = np.arange(len(alphas))[:, np.newaxis] + np.arange(DEPTH)
    num = np.where(lengths > 0, DEPTH, 0)
    runs = np.minimum(runs_of(hits)[: len(alphas)], num)
    retrieval = Retrieval(num, lengths, padded[places], hits[places])
    return Track(alphas, ratios, runs, retrieval=retrieval)


_PANEL = ("ucbspec@4", "exp3spec@4", "ucb1:beta=0.1@4", "normalhedge@4", "goodput")


def trace_setting(path: Path, costs: str | None) -> Setting:
    """The trace at ``path``: arrays (``.npz``) or Round records (``.jsonl``). costs: ``gpu``,
    ``cpu``, ``loaded`` or a JSON file; None = the measured seconds of records, and ``gpu`` for
    arrays, which hold no seconds. Raises DraftwiseError."""
    table = None if costs is None else load_costs(costs)
    environment: Recorded | RoundTrace
    if path.suffix == ".npz":
        environment = Recorded(path, table or load_costs("gpu"))
    elif path.suffix == ".jsonl":
        environment = RoundTrace(path, table)
    else:
        raise DraftwiseError(f"{path} is no trace: it ends in .jsonl (rounds) or .npz (arrays)")

    def make(num_drafters: int | None) -> Environment:
        if num_drafters is not None:
            raise DraftwiseError("--drafters does not go with --trace: a trace has its own")
        return environment

    tokens = min(300, environment.num_tokens)
    return Setting(str(path), make, tuple(range(17)), _PANEL, tokens=tokens)
