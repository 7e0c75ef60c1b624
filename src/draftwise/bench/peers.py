"""transformers' own generation as contestants, in the same process and on the same weights."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch

from draftwise.bench.methods import LOOKUP, Peer
from draftwise.bench.ours import Asked, Reply
from draftwise.drafters.lm import LMDrafter
from draftwise.speculator import Speculator


class PeerContestant:
    """``model.generate`` in one of its ways.

    An assistant's options live in its generation config, where a schedule also keeps what it has
    learned; so each contestant has a config of its own, and the assistant gets it for the answer.
    """

    def __init__(self, spec: Peer, base: Speculator, asked: Asked) -> None:
        self.name, self._asked = spec.name, asked
        self._model = base.target.module
        self._options: dict[str, Any] = _sampling(asked)
        self._assistant: Any = None
        self._config: Any = None
        if spec.drafter == LOOKUP:
            self._options["prompt_lookup_num_tokens"] = spec.length
        elif spec.drafter is not None:
            self._assistant = _module(base, spec.drafter)
            self._options["assistant_model"] = self._assistant
            self._config = copy.deepcopy(self._assistant.generation_config)
            self._config.num_assistant_tokens = spec.length
            self._config.num_assistant_tokens_schedule = spec.schedule
            self._config.assistant_confidence_threshold = spec.threshold

    def begin(self) -> None:
        """Nothing is remembered but the schedule, which transformers keeps on purpose."""

    def answer(self, prompt: Sequence[int], seed: int) -> Reply:
        """Answer a prompt, timed from prompt to last token."""
        counter = _RoundCounter()
        ids = torch.tensor([list(prompt)], device=self._model.device)
        torch.manual_seed(seed)
        usual = None if self._assistant is None else self._assistant.generation_config
        if usual is not None:
            self._assistant.generation_config = self._config
        try:
            start, cpu = time.perf_counter(), time.process_time()
            with torch.inference_mode():
                output = self._model.generate(
                    ids, attention_mask=torch.ones_like(ids), streamer=counter, **self._options
                )
            tokens = output[0, len(prompt) :].tolist()
            seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        finally:
            if usual is not None:
                self._assistant.generation_config = usual
        return Reply(tokens, seconds, cpu_s, counter.emitted)


class _RoundCounter:
    """A streamer that only counts: it is given the prompt, then each round's tokens."""

    def __init__(self) -> None:
        self.emitted: list[int] = []
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self.emitted.append(value.numel())
        self._has_prompt = True

    def end(self) -> None:
        """The answer is complete."""


def _sampling(asked: Asked) -> dict[str, Any]:
    """The same drawing as draftwise's, in transformers' words."""
    options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "do_sample": False}
    if asked.temperature > 0:
        options |= {"do_sample": True, "temperature": asked.temperature, "top_k": 0, "top_p": 1.0}
    return options


def _module(base: Speculator, name: str) -> Any:
    """The weights of a drafter that is a model."""
    for drafter in base.drafters:
        if drafter.name == name and isinstance(drafter, LMDrafter):
            return drafter.model.module
    raise AssertionError(f"{name} was checked to be a model")
