"""``Speculator``: a target, its drafters and a way to learn; text in, the same text out, sooner."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from draftwise import presets
from draftwise.drafters.protocol import Context, Drafter
from draftwise.engine.costs import CostMeter
from draftwise.engine.drafting import Pool
from draftwise.engine.generation import Generation
from draftwise.engine.memory import Memory
from draftwise.engine.prompts import encode_all, eos_tokens, is_single, randomness
from draftwise.engine.records import Round
from draftwise.engine.request import Request
from draftwise.engine.text import Answer, Ending
from draftwise.learning import Learning
from draftwise.nn.compiled import STEP_WIDTHS
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.pool import load_drafters, models_of, resolve_target
from draftwise.presets import Preset
from draftwise.types import DraftwiseError, Plan, SamplingParams


class Speculator:
    """A target that generates with the help of drafters, without changing what it says.

    Build it with ``from_pretrained``. State: the costs measured so far, and ``memory``.
    """

    def __init__(
        self,
        target: CausalModel,
        tokenizer: Any,
        drafters: Sequence[Drafter],
        setting: Preset,
        scope: str = "request",
        seed: int = 0,
    ) -> None:
        self.target, self.tokenizer, self.setting, self._seed = target, tokenizer, setting, seed
        self._learning = Learning(setting, target, tokenizer, drafters, scope, seed)
        self._compilable = [target, *models_of(drafters)]
        self._pool = Pool(
            target,
            drafters,
            self._learning.plans,
            CostMeter({drafter.name: drafter.relative_cost for drafter in drafters}),
            scores_prompt=setting.feedback.split(":")[0] in {"free", "panoramic"},
            clock=self.clock,
        )

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        drafters: Sequence[Any] | None = None,
        *,
        preset: str = "draftwise",
        policy: str | None = None,
        reward: str | None = None,
        feedback: str | None = None,
        lengths: Sequence[int] | None = None,
        rules: Sequence[str] | None = None,
        trees: Sequence[str] | None = None,
        tokenizer: Any = None,
        dtype: str = "auto",
        device: str = "auto",
        compile: bool = False,
        scope: str = "request",
        seed: int = 0,
    ) -> Speculator:
        """Load a target and its drafters.

        target: a folder, a hub id, a ``transformers`` model, or ``"zoo"`` for the bundled one.
        drafters: specs such as ``"lm:PATH"``, ``"lookup"``, ``"suffix"``, ``"datastore:FILE"``,
            ``"zoo"`` (all bundled ones), ``"NAME=SPEC"``; models. Default ``["lookup"]``; for the
            zoo ``["zoo", "lookup"]``.
        trees: shapes such as ``"4x16"`` (children x tokens), ``"chain"``; plans are multiplied by
            lengths, rules and trees.
        preset: where policy, reward, feedback and lengths come from, unless given.
        compile: target and drafters that are models go through ``torch.compile`` where a request
            runs alone: each shape takes seconds once, said on stderr, and no round counts them.
        scope: ``request`` = each request learns anew; ``session`` or ``task:LABEL`` = they share
            one policy, which ``memory.save`` and ``memory.load`` keep in a file.
        Raises DraftwiseError for anything that cannot be loaded, paired or understood.
        """
        given = {"policy": policy, "reward": reward, "feedback": feedback}
        changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if lengths is not None:
            changes["lengths"] = tuple(lengths)
        if rules is not None:
            changes["rules"] = tuple(rules)
        if trees is not None:
            changes["trees"] = tuple(presets.parse_tree(tree) for tree in trees)
        setting = replace(presets.preset(preset), **changes)
        path, defaults = resolve_target(target)
        model = load_model(path, dtype=dtype, device=device)
        if tokenizer is None and isinstance(path, str):
            tokenizer = load_tokenizer(path)
        if drafters is None:  # no default is loaded for a setting that has no length to draft
            drafters = defaults if setting.lengths else []
        loaded = load_drafters(drafters, model, path, dtype=dtype, device=device)
        if compile:
            model.compile()
            for drafting in models_of(loaded):
                drafting.compile(STEP_WIDTHS)
        return cls(model, tokenizer, loaded, setting, scope, seed)

    def clock(self) -> float:
        """Seconds, which stand still while something is compiled."""
        return time.perf_counter() - self.compiling()[0]

    def compiling(self) -> tuple[float, float]:
        """Seconds that compiling took so far: of the wall clock, and of this process."""
        made = [model.compiled for model in self._compilable if model.compiled is not None]
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

        prompts: text, token ids, or a list of either. sampling: one per prompt, instead of the
        four sampling options. stop: strings that end an answer. stop_when: asked after each token
        with the prompt's index and its answer's tokens so far; True ends it. eos_token_ids: in
        place of the model's own. seed: one for all, or one per
        prompt, which then answers as it would alone. trace: a jsonl file for the rounds (replaced).
        Raises DraftwiseError for an empty prompt or one longer than the model's positions.
        """
        texts = encode_all(prompts, self.tokenizer, self.target)
        common = SamplingParams(temperature, top_k, top_p, repetition_penalty)
        samplings = list(sampling) if sampling is not None else [common] * len(texts)
        budgets = (
            [max_new_tokens] * len(texts)
            if isinstance(max_new_tokens, int)
            else list(max_new_tokens)
        )
        if not len(texts) == len(samplings) == len(budgets):
            raise DraftwiseError(
                "give one sampling and one max_new_tokens for each prompt, or one for all"
            )
        if min(budgets) < 1:
            raise DraftwiseError(f"max_new_tokens is {min(budgets)}: it must be 1 or more")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if stops and self.tokenizer is None:
            raise DraftwiseError("stop strings need a tokenizer: pass tokenizer=... when loading")
        own = eos_tokens(self.target, self.tokenizer)
        eos = frozenset([] if ignore_eos else own if eos_token_ids is None else eos_token_ids)
        streams = randomness(self._seed if seed is None else seed, len(texts))
        requests = []
        for i, (text, params, budget) in enumerate(zip(texts, samplings, budgets, strict=True)):
            room = self.target.max_positions - len(text)
            ends = None if stop_when is None else partial(stop_when, i)
            ending = Ending(min(budget, room), eos, stops, ends)
            requests.append(self._request(i, text, params, ending, streams[i]))
        return Generation(self._pool, requests, trace)

    def generate(self, prompts: Any, **options: Any) -> Any:
        """Answer one prompt (-> ``Result``) or a batch (-> list of them); options as ``start``."""
        generation = self.start(prompts, **options)
        for _ in generation:
            pass
        results = generation.results()
        return results[0] if is_single(prompts) else results

    def stream(self, prompt: Any, **options: Any) -> Iterator[tuple[str, Round]]:
        """Answer one prompt piece by piece: the new text of each round, and the round itself."""
        if not is_single(prompt):
            raise DraftwiseError("stream() takes one prompt; use start() to iterate over a batch")
        generation = self.start(prompt, **options)
        shown = 0
        for round_ in generation:
            text = generation.text(0)
            yield text[shown:], round_
            shown = len(text)

    def _request(
        self,
        id_: int,
        text: list[int],
        sampling: SamplingParams,
        ending: Ending,
        stream: np.random.SeedSequence,
    ) -> Request:
        policy_seed, draft_seed, accept_seed, guide_seed = stream.spawn(4)
        return Request(
            id=id_,
            prompt=tuple(text),
            context=Context(id_, list(text), sampling, np.random.default_rng(draft_seed)),
            answer=Answer(ending, self.tokenizer),
            policy=self._learning.policy(text, policy_seed),
            revealer=self._learning.revealer(),
            accept_rng=np.random.default_rng(accept_seed),
            guides=self._learning.guides(guide_seed),
        )
