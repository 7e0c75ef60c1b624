"""``Speculator``: a target, its drafters, and the learning parts of each request."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Unpack, overload

import torch
from numpy.random import SeedSequence, default_rng

from draftwise import checks, registry
from draftwise.bandits.feedback import FeedbackBuilder
from draftwise.chat import Prompt
from draftwise.controller.goodput import Goodput
from draftwise.drafters.protocol import Context, Drafter, ModelDrafter
from draftwise.engine import options as o
from draftwise.engine.deciders import (
    Bandits,
    Controlled,
    GuardedStopRule,
    SharedPolicyState,
    guarded_process,
    guarded_stop,
)
from draftwise.engine.drafting import pool_of
from draftwise.engine.engine import Engine, Generation
from draftwise.engine.options import Options, Params, RequestParams, Single, check_scope
from draftwise.engine.outputs import Answer, Ending, Result, Round
from draftwise.engine.request import Logprobs, Request
from draftwise.errors import BadValue
from draftwise.nn.layout import is_packed, pack_again
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel, weights_mark
from draftwise.pool import check_drafters, load_drafters, resolve_target
from draftwise.protocols import Policy, StopRule
from draftwise.registry import Preset
from draftwise.settings import DEFAULTS, Settings
from draftwise.types import NONE, PLAIN, DraftwiseError, Plan, TreeShape

_MAX_SETTINGS = 16
"""Request settings whose learning state is cached: each takes up to 200 KB, set by any client."""
_MAX_ROWS, _NUM_PREFIXES = 64, 4  # running requests and rows of the prefix cache, by default
_IDS = itertools.count()  # of requests, unique in a process


class Speculator:
    """A target with its drafters, created by ``from_pretrained``.

    It owns the measured costs, the shared ``memory`` and an engine. Threads may share it: their
    requests are batched, and their calls take turns round by round. Callbacks may run in a
    different thread than the one that passed them.
    """

    def __init__(
        self, target: CausalModel, tokenizer: Any, drafters: Sequence[Drafter], setting: Preset,
        scope: str = "request", seed: int | None = None, num_prefixes: int = 0,
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        checks.optional(checks.seed, "seed", seed)
        checks.whole("num_prefixes", num_prefixes, 0), checks.flag("deterministic", deterministic)
        self.tokenizer, self.setting = tokenizer, setting
        self._seeds, self._is_deterministic = SeedSequence(seed), deterministic
        self._new_learning = partial(Learning, tokenizer=tokenizer, scope=scope, seed=seed)
        # with cached prefixes, prompt scoring would depend on earlier requests
        self._num_prefixes = 0 if deterministic else num_prefixes
        self._keeps_prefixes = self._num_prefixes > 0
        self._load_drafters: Callable[[CausalModel], Sequence[Drafter]] | None = None
        self._adopt(target, drafters)

    def _adopt(self, target: CausalModel, drafters: Sequence[Drafter]) -> None:
        """Make everything that is derived from the models."""
        self.target = target
        new_learning = partial(self._new_learning, target=target, drafters=drafters)
        self._learning = new_learning(self.setting)
        self._learning_of = lru_cache(_MAX_SETTINGS)(new_learning)
        clocks = (self.clock, self._cost_clock)
        self._pool = pool_of(target, drafters, *clocks, self._is_deterministic)
        self._engine: Engine | None = None
        self._has_blocks = is_packed(target.module)
        self._weights = self._mark()

    def _mark(self) -> Any:
        """A value that changes with the weights, if anything is kept that depends on them."""
        if self._keeps_prefixes or self._has_blocks:
            return weights_mark(self.target.module)
        return None

    def _notice_changes(self) -> None:
        """Before a call: derive again whatever the target's module has outgrown since the last."""
        module = self.target.module
        if module.training and any(
            getattr(layer, "gradient_checkpointing", False) for layer in module.modules()
        ):
            raise DraftwiseError(
                f"{self.target.name} is in training mode with gradient checkpointing, which keeps "
                "no keys and values: call gradient_checkpointing_disable() or eval() first"
            )
        if not self.target.is_current:
            self._load_again()
        elif (mark := self._mark()) is None or mark != self._weights:
            self._weights = mark
            if self._engine is not None:
                self._engine.forget_prefixes()
            if self._has_blocks:
                pack_again(module)

    def _load_again(self) -> None:
        if self._load_drafters is None:
            raise DraftwiseError(
                f"{self.target.name} has another dtype, vocabulary or configuration than when this "
                "Speculator was made: make another one"
            )
        target, learning = load_model(self.target.module), self._learning
        target.name = self.target.name
        lock = self._pool.lock  # held by this call
        self._adopt(target, self._load_drafters(target))
        self._pool = replace(self._pool, lock=lock)
        if learning.plans == self.plans:
            self._learning.memory = learning.memory

    @classmethod
    def from_pretrained(
        cls,
        target: Any,
        drafters: str | Sequence[Any] | None = None,
        *,
        preset: str = DEFAULTS.preset,
        policy: str | None = DEFAULTS.policy,
        reward: str | None = DEFAULTS.reward,
        feedback: str | None = DEFAULTS.feedback,
        lengths: Sequence[int] | None = DEFAULTS.lengths,
        rules: Sequence[str] | None = DEFAULTS.rules,
        trees: Sequence[str] | None = DEFAULTS.trees,
        tokenizer: Any = None,
        dtype: Any = DEFAULTS.dtype,
        device: Any = DEFAULTS.device,
        scope: str = DEFAULTS.scope,
        seed: int | None = DEFAULTS.seed,
        num_prefixes: int | None = DEFAULTS.num_prefixes,
        deterministic: bool = DEFAULTS.deterministic,
    ) -> Speculator:
        """Load a target and its drafters.

        target: a folder (also of a PEFT adapter), a hub id, a ``transformers`` model, or ``"zoo"``.
        drafters: specs such as ``"lm:PATH"``, ``"lookup"``, ``"suffix"``, ``"datastore:FILE"``,
            ``"zoo"`` (all bundled ones) and ``"NAME=SPEC"``, or models. Default ``["lookup"]``; for
            the zoo ``["zoo", "lookup"]``.
        trees: draft shapes such as ``"4x16"`` (children x tokens) and ``"chain"``.
        preset: sets policy, reward, feedback and lengths, unless these are passed.
        dtype: ``auto`` or None, a name such as ``bfloat16``, or a ``torch.dtype``. device: as in
            torch, or None for ``auto``, or ``map:auto``, ``map:balanced``, or a dict: the target's
            ``device_map``.
        seed: for calls without a seed, each of which draws new numbers; None = random.
        scope: ``auto`` = a request starts from what earlier ones learned; ``request`` = from
            scratch; ``session``, ``task:LABEL`` = all share one policy. ``memory.save`` and
            ``memory.load`` keep in a file what ``goodput`` learnt.
        num_prefixes: number of finished texts in the prefix cache, for prompts with the same
            beginning, such as the next turn of a chat. None: 4, which for a model object, whose
            weights may be in training, serve the prompts of one call only. A number keeps
            them between calls, until the weights, an adapter or the mode change; the one change
            that may escape is a write of single values through ``Tensor.data``.
        deterministic: the policy uses fixed costs instead of measured time, so that a seed repeats
            an answer at any temperature (with the scope ``request``).
        Raises DraftwiseError for models that cannot be loaded or paired, and for invalid settings.
        """
        setting = Settings(
            preset=preset, policy=policy, reward=reward, feedback=feedback, lengths=lengths,
            rules=rules, trees=trees, dtype=dtype, device=device,
        ).learning  # fmt: skip
        path, defaults = resolve_target(target)
        if isinstance(drafters, (str, list, tuple)):
            check_drafters(drafters)
        model = load_model(path, dtype=dtype, device=device)
        if tokenizer is None and isinstance(path, str):
            tokenizer = load_tokenizer(path)
        if drafters is None:  # a setting without draft lengths needs no default drafters
            drafters = defaults if setting.lengths else []
        load = partial(
            load_drafters, drafters, target_source=tokenizer or path, dtype=dtype, device=device
        )
        loaded = load(model)
        most = _NUM_PREFIXES if num_prefixes is None else num_prefixes
        made = cls(model, tokenizer, loaded, setting, scope, seed, most, deterministic)
        made._load_drafters = load
        if num_prefixes is None and not isinstance(path, str):
            made._keeps_prefixes = False
        return made

    def __repr__(self) -> str:
        names = ", ".join(drafter.name for drafter in self.drafters) or "none"
        return f"Speculator({self.target.name!r}, drafters: {names}, {len(self.plans)} plans)"

    def clock(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def _cost_clock(self) -> float:
        """``clock``; with one CPU thread the thread's CPU time, which ignores other programs."""
        if self.target.device.type != "cpu" or torch.get_num_threads() > 1:
            return self.clock()
        return time.thread_time()

    @property
    def drafters(self) -> Sequence[Drafter]:
        """The drafters, in the order of the plans."""
        return self._pool.drafters

    @property
    def plans(self) -> list[Plan]:
        return self._learning.plans

    @property
    def memory(self) -> SharedPolicyState:
        """The state that requests share in this scope; can be saved and loaded."""
        return self._learning.memory

    def start(self, prompts: Any, params: Params = None, **options: Unpack[Options]) -> Generation:
        """Start answering one prompt or a batch; iterate over the returned ``Generation``.

        prompts: text, token ids, messages (``[{"role": "user", "content": "Hello"}]``, formatted by
            the tokenizer's chat template; the answer ends at the token that ends a turn), the
            output of a tokenizer, or a list of these.
        params: all parameters in one object, or a list with one per prompt. options: instead, the
            fields of ``SamplingParams`` (``temperature=0.7, min_p=0.1``, or
            ``sampling=SamplingParams(...)``) and of ``RequestParams``; ``max_new_tokens``,
            ``sampling`` and ``seed`` may be lists with one value per prompt. ``stop_when`` is
            called with the prompt's index and its answer's tokens so far. With a ``seed``, sampled
            text repeats if the preset does not depend on measured time (the default does). As in
            transformers: ``do_sample`` (True: temperature 1 unless given), ``stop_strings`` (same
            as ``stop``), ``num_return_sequences`` (sampled answers per prompt, consecutive).
            attention_mask: 0 where a prompt of a padded batch has padding. trace: a jsonl file for
            the rounds.
        Raises DraftwiseError for an unknown option or an invalid value, an empty or too long
        prompt, ids that are not integers, and padding without a mask.
        """
        return self._start("start", prompts, params, options)

    def _start(self, method: str, prompts: Any, params: Params, options: Options) -> Generation:
        o.check_names(method, options, Options.__annotations__)
        trace = checks.optional(checks.path, "trace", options.get("trace"))
        with self._pool.lock:  # other threads may use the same models
            mask = options.get("attention_mask")
            self._notice_changes()
            texts = o.encode_all(prompts, self.tokenizer, self.target, mask)
            each, num, seed = o.batch_params(method, options, len(texts), params)
            streams = o.randomness(self._new_seed() if seed is None else seed, len(texts), num)
            requests = [
                self._request(text, params, next(streams))
                for text, params in zip(texts, each, strict=True)
                for _ in range(num)
            ]
            if self._engine is None:
                self._engine = Engine(
                    self._pool, _MAX_ROWS, None, self._num_prefixes, self._keeps_prefixes
                )
            return Generation(self._engine, requests, trace)

    def _new_seed(self) -> SeedSequence:
        return self._seeds.spawn(1)[0]

    def _request(self, text: Prompt, params: RequestParams, stream: SeedSequence) -> Request:
        params.check_vocabulary(self.target.vocab_size)
        if params.stop and self.tokenizer is None:
            raise DraftwiseError("stop strings need a tokenizer: pass tokenizer=... when loading")
        eos = params.eos_token_ids
        if eos is None:
            eos = (*o.eos_tokens(self.target, self.tokenizer), *text.turn_ends)
        most = min(params.max_new_tokens, self.target.max_positions - len(text.tokens))
        # a form knows where it is complete, which then ends the answer in any case
        is_complete = getattr(params.sampling.process, "is_complete", None)
        ending = Ending(
            most, frozenset(() if params.ignore_eos and is_complete is None else eos),
            params.stop, params.stop_when, frozenset(params.stop_token_ids),
            params.include_stop_str_in_output, is_complete,
        )  # fmt: skip
        base = self.setting if params.preset is None else registry.preset(params.preset)
        setting = registry.adjusted(base, policy=params.policy, lengths=params.lengths)
        allowed = self._allowed(params)
        max_draft = params.max_draft if params.speculation else 0
        if max_draft == 0:
            setting, allowed, max_draft = registry.PRESETS["plain"], None, None
        is_own = setting == self.setting and allowed is None and max_draft is None
        learning = self._learning if is_own else self._learning_of(setting, allowed, max_draft)
        return learning.request(text.tokens, params, ending, stream)

    def _allowed(self, params: RequestParams) -> frozenset[str] | None:
        """Names of the allowed drafters; None = all."""
        names = [drafter.name for drafter in self.drafters]
        if unknown := [name for name in params.drafters or () if name not in names]:
            must = f"of the drafters here: {', '.join(names) or 'there is none'}"
            raise BadValue("drafters", unknown[0], must)
        chosen = frozenset(names if params.drafters is None else params.drafters)
        return None if chosen.issuperset(names) else chosen

    def engine(
        self,
        max_rows: int = _MAX_ROWS,
        max_bytes: int | None = None,
        num_prefixes: int = _NUM_PREFIXES,
    ) -> Engine:
        """A separate engine on the same models and costs, for requests that the caller admits.

        max_rows, max_bytes: as for ``Engine``. num_prefixes: rows in its prefix cache; 0 = none.
        Call its ``forget_prefixes`` after a change of the target's weights.
        """
        checks.whole("max_rows", max_rows, 1), checks.whole("num_prefixes", num_prefixes, 0)
        checks.optional(checks.whole, "max_bytes", max_bytes, 1)
        return Engine(self._pool, max_rows, max_bytes, num_prefixes)

    def request(
        self, prompt: Any, params: RequestParams | None = None, **options: Unpack[Options]
    ) -> Request:
        """A request for ``Engine.admit``.

        options: as for ``start``, one value each; ``stop_when`` is called with the answer's tokens
        only. Raises as ``start``.
        """
        params = params or o.request_params("request", options)
        given = prompt if o.is_single(prompt) else [prompt]
        with self._pool.lock:
            (text,) = o.encode_all(given, self.tokenizer, self.target)
            seed = self._new_seed() if params.seed is None else SeedSequence(params.seed)
            return self._request(text, params, seed)

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of them, too
        self, prompts: Single, params: Params = None, **options: Unpack[Options]
    ) -> Result: ...

    @overload
    def generate(
        self, prompts: Sequence[Single], params: Params = None, **options: Unpack[Options]
    ) -> list[Result]: ...

    @overload
    def generate(self, prompts: Any, params: Params = None, **options: Unpack[Options]) -> Any: ...

    def generate(self, prompts: Any, params: Params = None, **options: Unpack[Options]) -> Any:
        """Answer one prompt (-> ``Result``) or a batch (-> list); options as for ``start``.

        ``num_return_sequences`` returns a list, too.
        """
        generation = self._start("generate", prompts, params, options)
        list(generation)
        results = generation.results()
        return results[0] if o.is_single(prompts) and len(results) == 1 else results

    def stream(
        self, prompt: Any, params: Params = None, **options: Unpack[Options]
    ) -> Iterator[tuple[str, Round]]:
        """Answer one prompt and yield the new text of each round together with its ``Round``."""
        generation = self._start("stream", prompt, params, options)
        if len(generation) != 1:
            raise DraftwiseError(
                "stream() gives one answer to one prompt; use start() to iterate over several"
            )
        for output in generation.outputs():
            if output.round is not None:
                yield output.text, output.round


class Learning:
    """Creates the learning parts of requests; rejects unknown names and options.

    allowed: names of drafters; None = all. max_draft: maximum tokens; None = as in the plans.
    """

    def __init__(
        self, setting: Preset, allowed: frozenset[str] | None = None, max_draft: int | None = None,
        *, target: CausalModel, tokenizer: Any, drafters: Sequence[Drafter], scope: str,
        seed: int | None,
    ) -> None:  # fmt: skip
        check_scope(scope)
        self._allowed = allowed
        if allowed is not None:
            drafters = [drafter for drafter in drafters if drafter.name in allowed]
        self._setting, self._tokenizer = setting, tokenizer
        self._models = {d.name: d for d in drafters if isinstance(d, ModelDrafter)}
        self._showing = {name: model for name, model in self._models.items() if model.hidden_size}
        self.plans = self._plans(target, drafters, max_draft)
        self._is_drafted = self.plans != [PLAIN]
        has_feedback = setting.feedback.split(":")[0] in {"free", "panoramic"}
        self._scores_prompt = self._is_drafted and has_feedback
        own = SeedSequence(seed)
        policy = self._new_policy(own)
        if setting.policy.partition(":")[0] in registry.SIMULATED:
            raise DraftwiseError(
                f"policy {setting.policy} plays every plan in a round, which only the simulator "
                "does (draftwise simulate); choose another policy"
            )
        self.memory = SharedPolicyState(scope, policy, setting.policy)
        self._reward = registry.make_reward(setting.reward)
        self._feedback()
        self._show_hidden(self._stop_rules(own))

    def _plans(
        self, target: CausalModel, drafters: Sequence[Drafter], max_draft: int | None
    ) -> list[Plan]:
        """The setting's plans over these drafters; DraftwiseError for unsupported trees."""
        branching = [drafter.name for drafter in drafters if drafter.can_branch]
        wants_trees = any([*self._setting.trees, *(each.tree for each in self._models.values())])
        if wants_trees and not (branching and target.serves_trees) and self._allowed is None:
            chains_only = f"{target.name} serves chains only"
            why = chains_only if branching else "no drafter of the pool drafts any"
            raise DraftwiseError(f"trees are not possible: {why}; leave them out")
        plans = self._setting.plans([drafter.name for drafter in drafters], branching)
        fitted = [_fitted(plan, self._models.get(plan.drafter), max_draft) for plan in plans]
        return list(dict.fromkeys(fitted))

    def request(
        self, prompt: Sequence[int], params: RequestParams, ending: Ending, stream: SeedSequence
    ) -> Request:
        policy_seed, draft_seed, accept_seed, rule_seed = stream.spawn(4)
        sampling, callbacks = params.sampling, []
        if ending.stop_when is not None:
            callbacks.append(guarded_stop(ending.stop_when))
            ending = replace(ending, stop_when=callbacks[-1])
        if sampling.process is not None:
            callbacks.append(guarded_process(sampling.process))
            sampling = replace(sampling, process=callbacks[-1])
        number = next(_IDS)
        policy = self._policy(prompt, policy_seed, ending.max_new_tokens, params)
        shared = number, policy, self.plans, self._stop_rules(rule_seed), self._scores_prompt
        is_controlled = isinstance(policy, Goodput)
        return Request(
            id=number, callbacks=callbacks, accept_rng=default_rng(accept_seed),
            context=Context(
                -1, list(prompt), sampling, default_rng(draft_seed),
                tenant=params.tenant, is_private=params.private,
                prediction=params.prediction, eos=ending.eos | ending.stop_token_ids,
                drafters=self._allowed if self._is_drafted else frozenset(),
            ),
            answer=Answer(
                ending, self._tokenizer, prompt,
                by_token=params.token_texts or params.logprobs is not None,
                skip_special_tokens=params.skip_special_tokens,
            ),
            decider=Controlled(*shared) if is_controlled else Bandits(*shared, self._feedback()),
            priority=params.priority, label=params.label,
            logprobs=Logprobs(params.logprobs, params.prompt_logprobs),
        )  # fmt: skip

    def _policy(
        self, prompt: Sequence[int], seed: SeedSequence, num_tokens: int, params: RequestParams
    ) -> Policy:
        if self.memory.policy is not None:
            return self.memory.policy
        policy = self._new_policy(seed, num_tokens, prompt)
        if self.memory.shared is not None and isinstance(policy, Goodput):
            policy.recall(self.memory.shared, prompt, params.label, params.private)
        return policy

    def _feedback(self) -> FeedbackBuilder:
        return registry.make_feedback(self._setting.feedback, plans=self.plans, reward=self._reward)

    def _stop_rules(self, seed: SeedSequence) -> dict[tuple[str, str], StopRule]:
        names = dict.fromkeys((p.drafter, p.rule) for p in self.plans if p.drafter != NONE)
        homes = {name: drafter.home for name, drafter in self._showing.items()}
        return {
            (drafter, rule): GuardedStopRule(
                registry.make_stop_rule(rule, own, home=homes.get(drafter)), rule
            )
            for (drafter, rule), own in zip(names, seed.spawn(len(names)), strict=True)
        }

    def _new_policy(
        self, seed: SeedSequence, num_tokens: int | None = None, prompt: Sequence[int] = ()
    ) -> Policy:
        """A policy; of a request, if its number of tokens and prompt are given."""
        has_text = self._tokenizer is not None and num_tokens is not None
        return registry.make_policy(
            self._setting.policy, len(self.plans), seed, plans=self.plans,
            request_tokens=num_tokens,
            prompt=partial(self._tokenizer.decode, prompt) if has_text else None,
        )  # fmt: skip

    def _show_hidden(self, rules: dict[tuple[str, str], StopRule]) -> None:
        """Make drafters expose hidden states to rules that use them; DraftwiseError if none can."""
        for (name, rule), own in rules.items():
            if not self._showing and _reads_hidden(own):
                raise DraftwiseError(
                    f"rule {rule!r} reads a drafter's hidden states, and no drafter here has "
                    "any: name a model (lm:PATH) with a trained head (draftwise train head)"
                )
            if name not in self._showing or not (needed := own.needs_hidden):
                continue
            if needed != (size := self._showing[name].hidden_size):
                raise DraftwiseError(
                    f"rule {rule!r} reads hidden states of size {needed}, and drafter {name} has "
                    f"hidden size {size}: train a head on this drafter (draftwise train head)"
                )
            self._showing[name].show_hidden()


def _reads_hidden(rule: StopRule) -> bool:
    """Whether a rule uses hidden states, including a rule whose weights are missing."""
    try:
        return rule.needs_hidden > 0
    except DraftwiseError:
        return True


def _fitted(plan: Plan, drafter: ModelDrafter | None, most: int | None) -> Plan:
    """A plan within the limits of ``most`` and of the drafter, which sets the default tree."""
    if drafter is not None:
        length = min(plan.length, drafter.max_length or plan.length)
        plan = replace(plan, length=length, tree=plan.tree or drafter.tree)
    if most is None or plan.num_tokens <= most:
        return plan
    tree = plan.tree and TreeShape(min(plan.tree.top_k, most), most)
    return replace(plan, length=min(plan.length, most), tree=tree)
