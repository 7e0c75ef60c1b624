"""Methods of a contest: draftwise's, and generation by transformers.

To the methods of ``draftwise bench`` come ``transformers``, ``transformers:lookup[xLENGTH]``,
``transformers:DRAFTERxLENGTH[/heuristic|/confidence[=P]]``, and the groups ``presets``, ``fixed``
and ``peers``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftwise.bench.suites import PLAIN, Method, drafter_and_length, parse_method, with_plain
from draftwise.chat import Prompt
from draftwise.checks import probability
from draftwise.registry import PRESETS
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from torch import Tensor

    from draftwise.bench.session import Asked, TimedReply
    from draftwise.speculator import Speculator

TRANSFORMERS, LOOKUP = "transformers", "lookup"
GROUPS = ("presets", "fixed", "peers")
DEFAULT_METHODS = (PLAIN, *GROUPS)
_GRAMMAR = (
    "write plain, a preset (metasd, metasd@4), fixed:DRAFTERxLENGTH, transformers, "
    "transformers:lookup, transformers:DRAFTERxLENGTH[/heuristic|/confidence], "
    f"or a group: {', '.join(GROUPS)}"
)


@dataclass(frozen=True, slots=True)
class Peer:
    """Generation by transformers.

    drafter: None = greedy; ``lookup`` = prompt lookup; else an assistant model. schedule:
    ``constant`` or ``heuristic``; threshold: assistant_confidence_threshold, 0 = none.
    """

    name: str
    drafter: str | None = None
    length: int = 0
    schedule: str = "constant"
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """Results of the exploration run that groups expand to: best fixed plans and assistant."""

    plans: Sequence[str]
    assistant: str | None


def check_methods(specs: Sequence[str]) -> None:
    """Raise DraftwiseError for methods that are invalid with any set of drafters."""
    for spec in specs:
        if spec not in GROUPS:
            parse(spec)


def expand(specs: Sequence[str], known: Known) -> list[str]:
    """Expand groups to their members; ``plain`` comes first, and every method occurs once.

    >>> expand(["fixed", "plain"], Known(["lookupx4"], None))
    ['plain', 'fixed:lookupx4']
    """
    assisted = []
    if known.assistant is not None:
        name = f"{TRANSFORMERS}:{known.assistant}"
        assisted = [f"{name}x5", f"{name}x5/heuristic", f"{name}x20/confidence"]
    members: Mapping[str, list[str]] = {
        "presets": [name for name in PRESETS if name != PLAIN],
        "fixed": [f"fixed:{plan}" for plan in known.plans],
        "peers": [TRANSFORMERS, f"{TRANSFORMERS}:{LOOKUP}", *assisted],
    }
    found = [name for spec in specs for name in members.get(spec, [spec])]
    return with_plain(found)


def parse(spec: str, drafters: Mapping[str, bool] | None = None) -> Method | Peer:
    """Parse a method; raises DraftwiseError. drafters: name -> is it a model; None = any."""
    kind, _, rest = spec.partition(":")
    if kind == TRANSFORMERS:
        return _peer(spec, rest, drafters)
    return parse_method(spec, drafters, _GRAMMAR)


def _peer(spec: str, rest: str, drafters: Mapping[str, bool] | None) -> Peer:
    if not rest:
        return Peer(spec)
    plan, _, way = rest.partition("/")
    if plan == LOOKUP:
        plan = f"{LOOKUP}x10"  # as in the docs of transformers
    is_lookup = plan.startswith(f"{LOOKUP}x")
    drafter, length = drafter_and_length(spec, plan, None if is_lookup else drafters, _GRAMMAR)
    if length < 1:
        raise DraftwiseError(f"method {spec!r}: a length is 1 or more tokens")
    if is_lookup:
        if way:
            raise DraftwiseError(f"method {spec!r}: prompt lookup has no schedule")
        return Peer(spec, LOOKUP, length)
    if drafters is not None and not drafters[drafter]:
        raise DraftwiseError(f"method {spec!r}: transformers takes models as assistants only")
    name, equals, value = way.partition("=")
    if name in {"", "heuristic"} and not equals:
        return Peer(spec, drafter, length, name or "constant")
    if name != "confidence":
        raise DraftwiseError(f"method {spec!r}: write /heuristic, /confidence or /confidence=0.4")
    try:  # 0.4 is the default of transformers
        return Peer(spec, drafter, length, threshold=probability("", float(value or 0.4)))
    except ValueError as error:
        why = "a confidence is a number from 0 to 1"
        raise DraftwiseError(f"method {spec!r}: {why}") from error


class PeerContestant:
    """transformers' ``model.generate``, plain or assisted.

    The options and the schedule's state live in the assistant's generation config, so each
    contestant has a separate config, which the assistant has while it answers.
    """

    def __init__(self, spec: Peer, base: Speculator, asked: Asked) -> None:
        from draftwise.drafters.lm import LMDrafter

        self.name, self._model = spec.name, base.target.module
        self._options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "do_sample": False}
        if heat := asked.temperature:
            self._options |= {"do_sample": True, "temperature": heat, "top_k": 0, "top_p": 1.0}
        self._assistant: Any = None
        self._config: Any = None
        if spec.drafter == LOOKUP:
            self._options["prompt_lookup_num_tokens"] = spec.length
        elif spec.drafter is not None:
            models = {d.name: d.model for d in base.drafters if isinstance(d, LMDrafter)}
            self._options["assistant_model"] = self._assistant = models[spec.drafter].module
            self._config = copy.deepcopy(self._assistant.generation_config)
            self._config.num_assistant_tokens = spec.length
            self._config.num_assistant_tokens_schedule = spec.schedule
            self._config.assistant_confidence_threshold = spec.threshold

    def begin(self) -> None:
        """Reset nothing: transformers keeps the schedule's state between answers."""

    def warm_up(self, prompt: Prompt, seed: int) -> None:
        self.answer(prompt, seed)

    def answer(self, prompt: Prompt, seed: int) -> TimedReply:
        import torch

        from draftwise.bench.session import TimedReply

        counter = _RoundCounter()
        ids = torch.tensor([list(prompt.tokens)], device=self._model.device)
        torch.manual_seed(seed)
        usual = None if self._assistant is None else self._assistant.generation_config
        if usual is not None:
            self._assistant.generation_config = self._config
        try:
            start, cpu = time.perf_counter(), time.process_time()
            with torch.inference_mode():
                output = self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), streamer=counter,
                    **self._options, **self._ends(prompt),
                )  # fmt: skip
            tokens = output[0, len(prompt.tokens) :].tolist()
            seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        finally:
            if usual is not None:
                self._assistant.generation_config = usual
        return TimedReply(tokens, seconds, cpu_s, counter.counts[1:])

    def _ends(self, prompt: Prompt) -> dict[str, Any]:
        """The model's end tokens and those that end a turn of the chat, if there are any."""
        if not prompt.turn_ends:
            return {}
        own = self._model.generation_config.eos_token_id
        ends = [] if own is None else own if isinstance(own, list) else [own]
        return {"eos_token_id": sorted({*ends, *prompt.turn_ends})}


class _RoundCounter:
    """A streamer that counts the tokens of the prompt, then those of each round."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def put(self, value: Tensor) -> None:
        self.counts.append(value.numel())

    def end(self) -> None:
        """The answer is complete."""
