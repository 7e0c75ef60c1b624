"""``Speculator``: a target, its drafters and a way to learn; text in, the same text out, sooner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np

from draftwise import presets
from draftwise.drafters.protocol import Drafter
from draftwise.engine.engine import Engine
from draftwise.engine.generation import Generation, Result
from draftwise.engine.memory import Memory
from draftwise.engine.options import Options, Single
from draftwise.engine.priced import pool_of
from draftwise.engine.prompts import each, encode_all, ending_of, is_single, randomness
from draftwise.engine.records import Round
from draftwise.engine.request import Request
from draftwise.learning import Learning
from draftwise.nn.compiled import STEP_WIDTHS
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.pool import load_drafters, models_of, resolve_target
from draftwise.presets import Preset
from draftwise.types import DraftwiseError, Plan, SamplingParams

_MAX_SETTINGS = 16
"""Settings of requests whose learning is kept: each takes up to 200 KB, and strangers name them."""


class Speculator:
    """A target that generates with the help of drafters: ``from_pretrained`` builds it.

    State: the costs measured so far, ``memory``, and the engine of its generations.
    """

    def __init__(
        self,
        target: CausalModel,
        tokenizer: Any,
        drafters: Sequence[Drafter],
        setting: Preset,
        scope: str = "request",
        seed: int | None = None,
        num_prefixes: int = 0,
        deterministic: bool = False,
    ) -> None:
        self.target, self.tokenizer, self.setting, self._seed = target, tokenizer, setting, seed
        self._scope, self._num_prefixes, self._models = scope, num_prefixes, (target, tokenizer)
        self._learning = Learning(setting, target, tokenizer, drafters, scope, seed)
        self._seeds, self._learnings = np.random.SeedSequence(seed), dict[Preset, Learning]()
        self._compilable = [target, *models_of(drafters)]
        self._pool = pool_of(target, drafters, self.clock, deterministic)
        if deterministic:  # what was read before would show in first impressions
            self._num_prefixes = 0
        self._engine: Engine | None = None

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        drafters: str | Sequence[Any] | None = None,
        *,
        preset: str = "draftwise",
        policy: str | None = None,
        reward: str | None = None,
        feedback: str | None = None,
        lengths: Sequence[int] | None = None,
        rules: Sequence[str] | None = None,
        trees: Sequence[str] | None = None,
        tokenizer: Any = None,
        dtype: Any = "auto",
        device: str | dict[str, Any] = "auto",
        compile: bool = False,
        scope: str = "request",
        seed: int | None = None,
        num_prefixes: int = 4,
        deterministic: bool = False,
    ) -> Speculator:
        """Load a target and its drafters.

        target: a folder, also of a PEFT adapter, a hub id, a ``transformers`` model, or ``"zoo"``.
        drafters: specs such as ``"lm:PATH"``, ``"lookup"``, ``"suffix"``, ``"datastore:FILE"``,
            ``"zoo"`` (all bundled ones), ``"NAME=SPEC"``; models. Default ``["lookup"]``; for the
            zoo ``["zoo", "lookup"]``.
        trees: shapes such as ``"4x16"`` (children x tokens), ``"chain"``; all combine.
        preset: where policy, reward, feedback and lengths come from, unless given.
        dtype: ``auto``, a name such as ``bfloat16``, or a ``torch.dtype``. device: as in torch, or
            ``map:auto``, ``map:balanced``, a dict: the target's ``device_map``.
        compile: target and drafters that are models go through ``torch.compile`` where a request
            runs alone: each shape takes seconds once, said on stderr, and no round counts them.
        seed: of the randomness of all calls that bring no seed of their own, each of which draws
            anew; None = another one each time.
        scope: ``auto`` = requests learn from those before them; ``request`` = each learns anew;
            ``session``, ``task:LABEL`` = all share it. ``memory.save``, ``load``: a file.
        num_prefixes: finished texts whose keys and values are kept for prompts that begin alike,
            as the next turn of a chat does. deterministic: the policy reads prices in place of the
            clock, so that a seed repeats an answer at any temperature (with the scope ``request``).
        Raises DraftwiseError for anything that cannot be loaded, paired or understood.
        """
        setting = presets.adjusted(
            presets.preset(preset), policy, reward, feedback, lengths, rules, trees
        )
        path, defaults = resolve_target(target)
        model = load_model(path, dtype=dtype, device=device)
        if tokenizer is None and isinstance(path, str):
            tokenizer = load_tokenizer(path)
        if drafters is None:  # no default is loaded for a setting that has no length to draft
            drafters = defaults if setting.lengths else []
        loaded = load_drafters(drafters, model, tokenizer or path, dtype=dtype, device=device)
        if compile:
            model.compile()
            for drafting in models_of(loaded):
                drafting.compile(STEP_WIDTHS)
        return cls(model, tokenizer, loaded, setting, scope, seed, num_prefixes, deterministic)

    def __repr__(self) -> str:
        names = ", ".join(drafter.name for drafter in self.drafters) or "none"
        return f"Speculator({self.target.name!r}, drafters: {names}, {len(self.plans)} plans)"

    def clock(self) -> float:
        """Seconds, which stand still while something is compiled."""
        now = time.perf_counter()
        for model in self._compilable:
            now -= model.compiled.spent_s if model.compiled else 0.0
        return now

    def compiling(self) -> tuple[float, float]:
        """Seconds that compiling took so far: of the wall clock, and of this process."""
        made = [model.compiled for model in self._compilable if model.compiled]
        return sum(c.spent_s for c in made), sum(c.spent_cpu_s for c in made)

    @property
    def drafters(self) -> Sequence[Drafter]:
        """What it may draft with, in the order of the plans."""
        return self._pool.drafters

    @property
    def plans(self) -> list[Plan]:
        """What a policy chooses among."""
        return self._learning.plans

    @property
    def memory(self) -> Memory:
        """What requests taught each other, if the scope has them share it; saved and loaded."""
        return self._learning.memory

    def start(
        self,
        prompts: Any,
        *,
        attention_mask: Any = None,
        max_new_tokens: int | Sequence[int] = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        sampling: Sequence[SamplingParams] | None = None,
        stop: str | Sequence[str] = (),
        stop_when: Callable[[int, Sequence[int]], bool] | None = None,
        eos_token_ids: Sequence[int] | None = None,
        ignore_eos: bool = False,
        seed: int | Sequence[int] | None = None,
        trace: str | Path | None = None,
    ) -> Generation:
        """Begin to answer one prompt or a batch; iterate over what is returned.

        prompts: text, token ids, messages (``[{"role": "user", "content": "Hello"}]``, by the
        tokenizer's chat template, ended by the token that ends a turn), what a tokenizer returns,
        or a list of these. attention_mask: 0 where a prompt of a padded batch has padding.
        sampling: one per prompt, instead of the four options. stop: strings that end an answer.
        stop_when: asked after each token with the prompt's index and its answer's tokens so far;
        True ends it. eos_token_ids: instead of the model's own. seed: one for all, or one per
        prompt; None = other draws in each call. With one, sampled text repeats where the preset
        does not look at the clock (the default does). trace: a jsonl file for the rounds.
        Raises DraftwiseError for an empty or too long prompt, ids that are no whole numbers, or
        padding without a mask.
        """
        texts = encode_all(prompts, self.tokenizer, self.target, attention_mask)
        common = SamplingParams(temperature, top_k, top_p, repetition_penalty)
        samplings = list(sampling) if sampling is not None else [common] * len(texts)
        budgets = each(max_new_tokens, len(texts))
        if not len(texts) == len(samplings) == len(budgets):
            raise DraftwiseError("give one sampling and max_new_tokens a prompt, or one for all")
        streams = randomness(self._seeds.spawn(1)[0] if seed is None else seed, len(texts))
        requests = []
        for i, (text, params, budget) in enumerate(zip(texts, samplings, budgets, strict=True)):
            ends = None if stop_when is None else partial(stop_when, i)
            ending = ending_of(text, self._models, budget, stop, ends, eos_token_ids, ignore_eos)
            requests.append(self._learning.request(text.tokens, params, ending, streams[i]))
        if self._engine is None:
            self._engine = self.engine(num_prefixes=self._num_prefixes)
        return Generation(self._engine, requests, trace)

    def engine(
        self, max_rows: int = 64, max_bytes: int | None = None, num_prefixes: int = 4
    ) -> Engine:
        """An engine of its own for requests that come and go, on the same models and prices.

        max_rows, max_bytes: as for ``Engine``. num_prefixes: as for ``from_pretrained``.
        """
        return Engine(self._pool, max_rows, max_bytes, num_prefixes)

    def request(
        self,
        prompt: Any,
        *,
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: str | Sequence[str] = (),
        stop_when: Callable[[Sequence[int]], bool] | None = None,
        eos_token_ids: Sequence[int] | None = None,
        ignore_eos: bool = False,
        seed: int | None = None,
        label: str = "",
        private: bool = False,
        preset: str | None = None,
        policy: str | None = None,
        lengths: Sequence[int] | None = None,
        logprobs: int | None = None,
        prompt_logprobs: bool = False,
        priority: int = 0,
    ) -> Request:
        """One request for ``Engine.admit``; every option is its own.

        sampling: None = greedy. seed: None = another one each time. label, private: what others may
        learn from it (``Memory.begin``). preset, policy, lengths: instead of this speculator's.
        logprobs: likeliest tokens to tell of beside each emitted one, 0 = that one alone;
        prompt_logprobs: the prompt's, too. priority: the higher comes first. Errors as ``start``.
        """
        (text,) = encode_all([prompt], self.tokenizer, self.target)
        models = self._models
        ending = ending_of(text, models, max_new_tokens, stop, stop_when, eos_token_ids, ignore_eos)
        base = self.setting if preset is None else presets.preset(preset)
        learning = self._learning_of(presets.adjusted(base, policy=policy, lengths=lengths))
        params = sampling or SamplingParams()
        stream = self._seeds.spawn(1)[0] if seed is None else np.random.SeedSequence(seed)
        made = learning.request(text.tokens, params, ending, stream, label=label, private=private)
        made.priority, made.num_logprobs = priority, logprobs
        made.wants_prompt_logprobs = prompt_logprobs
        return made

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of them, too
        self, prompts: Single, **options: Unpack[Options]
    ) -> Result: ...

    @overload
    def generate(self, prompts: Sequence[Single], **options: Unpack[Options]) -> list[Result]: ...

    @overload
    def generate(self, prompts: Any, **options: Unpack[Options]) -> Any: ...

    def generate(self, prompts: Any, **options: Unpack[Options]) -> Any:
        """Answer one prompt (-> ``Result``) or a batch (-> list of them); options as ``start``."""
        generation = self.start(prompts, **options)
        list(generation)
        results = generation.results()
        return results[0] if is_single(prompts) else results

    def stream(self, prompt: Any, **options: Unpack[Options]) -> Iterator[tuple[str, Round]]:
        """Answer one prompt piece by piece: the new text of each round, and the round itself."""
        generation = self.start(prompt, **options)
        if len(generation) != 1:
            raise DraftwiseError("stream() takes one prompt; use start() to iterate over a batch")
        shown = 0
        for round_ in generation:
            text = generation.text(0)
            yield text[shown:], round_
            shown = len(text)

    def _learning_of(self, setting: Preset) -> Learning:
        """What learns with this setting; of other settings, the last ``_MAX_SETTINGS`` are kept."""
        if setting == self.setting:
            return self._learning
        learning = self._learnings.pop(setting, None)
        if learning is None:
            learning = Learning(setting, *self._models, self.drafters, self._scope, self._seed)
        self._learnings[setting] = learning  # the last in line is the most recently used
        if len(self._learnings) > _MAX_SETTINGS:
            del self._learnings[next(iter(self._learnings))]
        return learning
