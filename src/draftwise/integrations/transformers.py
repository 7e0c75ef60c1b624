"""``model.generate(..., custom_generate=draftwise.transformers())``: same text, one more argument.

Everything that ``generate`` prepares is honoured (config, processors, stopping criteria, streamer,
left padding, several sequences per prompt), or rejected by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMixin, GenerationMode
from transformers.generation import logits_process as processing
from transformers.generation import stopping_criteria as stopping

from draftwise.engine.engine import Generation
from draftwise.engine.outputs import Result
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, SamplingParams

_LOG = logging.getLogger(__name__)
_PLAIN = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_OTHER_LOOPS = (
    "num_beams", "use_mtp", "prompt_lookup_num_tokens", "assistant_early_exit", "penalty_alpha",
    "dola_layers", "constraints", "force_words_ids",
)  # fmt: skip
"""Settings of ``GenerationConfig`` that select another decoding loop."""
_OTHER_MODELS = ("assistant_model", "assistant_tokenizer", "synced_gpus")
"""Arguments of ``generate`` that only other decoding loops use."""
_KNOWN = frozenset(
    {
        "attention_mask", "input_ids", "is_first_iteration", "logits_to_keep", "position_ids",
        "labels", "output_attentions", "output_hidden_states", "return_dict", "tokenizer",
        "use_cache",
        *_OTHER_MODELS,
    }
)  # fmt: skip
"""Inputs of a forward that the engine makes itself, or that are checked elsewhere."""


class CustomGenerate:
    """A ``custom_generate`` for ``model.generate`` that decodes speculatively.

    drafters and options: as for ``Speculator.from_pretrained``. The object keeps one ``Speculator``
    per model, so that later calls reuse measured costs, but no keys and values: the model may be
    trained, and its adapters switched, between calls. ``results`` holds the last call's answers
    with their statistics.
    pure_callbacks: a promise that the result of each logits processor, stopping criterion and
    ``prefix_allowed_tokens_fn`` depends on nothing but its row's ids and scores. Without it, those
    that ``transformers`` does not bring itself are called as ``generate`` calls them, once per
    token for all rows: with a logits processor, and with a criterion for several rows, the answer
    is decoded by the library's own loop, without drafts, and ``results`` is empty.
    Source: the hook ``custom_generate`` of ``transformers``.
    Differs: randomness comes from a separate stream, seeded by torch's global generator, so sampled
    text has the distribution of ``generate`` but other tokens (reproducible only with a preset that
    does not depend on measured time, unlike the default). An answer ends at the model's maximum
    position.
    Errors: DraftwiseError for other decoding loops (beams, an assistant model, prompt lookup),
    inputs besides token ids (images, embeddings, positions, what prefix tuning adds), outputs other
    than sequences, a quantised cache, a cache that was passed in, padding that is not on the left,
    a streamer of several sequences, and logits that are not finite. What a callback raises is
    raised, in a batch, too.
    """

    def __init__(
        self,
        drafters: str | Sequence[Any] | None = None,
        *,
        pure_callbacks: bool = False,
        **options: Any,
    ) -> None:
        _receive_all_arguments()
        self._drafters, self._options, self._are_pure = drafters, options, pure_callbacks
        self._speculators: WeakKeyDictionary[Any, Speculator] = WeakKeyDictionary()
        self._reported: set[str] = set()
        self.given: set[str] = set()  # names of the caller's arguments
        self.results: list[Result] = []

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Extend [B, T] prompts to [B, T + longest answer]; shorter answers are padded at the end.

        streamer: receives each accepted token of the single answer; ``generate`` has already passed
        it the prompt.
        """
        config = generation_config if generation_config is not None else model.generation_config
        self.results = []
        given, self.given = self.given, set()
        _refuse(model, config, input_ids, streamer, model_kwargs, given)
        prompts = _unpadded(input_ids, model_kwargs.get("attention_mask"))
        callbacks = _Callbacks(logits_processor, stopping_criteria, len(input_ids))
        if found := callbacks.of_whole_batches(self._are_pure):
            self._report(found)
            lists = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
            more = {"streamer": streamer, "generation_config": config, **model_kwargs}
            return type(model)._sample(model, input_ids, **lists, **more)
        num_new = callbacks.max_length - input_ids.shape[1]
        pairs = zip(input_ids.tolist(), prompts, strict=True)
        paddings = [ids[: len(ids) - len(prompt)] for ids, prompt in pairs]
        starts = [[*row, *prompt] for row, prompt in zip(paddings, prompts, strict=True)]

        def stop_when(index: int, answer: Sequence[int]) -> bool:
            return callbacks.end(input_ids.new_tensor([[*starts[index], *answer]]))

        generation = self._speculator(model).start(
            prompts,
            max_new_tokens=num_new,
            sampling=[
                _sampling(config, callbacks.processors_of(i), padding)
                for i, padding in enumerate(paddings)
            ],
            stop_when=stop_when if callbacks.criteria else None,
            eos_token_ids=callbacks.eos,
            # greedy decoding leaves torch's generator alone, as in ``generate``
            seed=int(torch.randint(2**62, (1,))) if config.do_sample else None,
        )
        for token in _tokens(generation):
            if streamer is not None:
                streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
        self.results = generation.results()
        for row, result in enumerate(self.results):
            if result.finish_reason == "length" and len(result.tokens) < num_new:
                _LOG.warning("row %d ends at the model's last position", row)
        return _output(config, input_ids, [result.tokens for result in self.results])

    def _speculator(self, model: Any) -> Speculator:
        speculator = self._speculators.get(model)
        if speculator is None:  # it holds a proxy, so the model can be freed
            speculator = Speculator.from_pretrained(proxy(model), self._drafters, **self._options)
            self._speculators[model] = speculator
        return speculator

    def _report(self, found: Sequence[str]) -> None:
        if new := set(found) - self._reported:
            self._reported |= new
            _LOG.warning(
                "decoding without drafts, since %s may depend on the other rows or on the order of "
                "calls; if not, pass draftwise.transformers(pure_callbacks=True)",
                ", ".join(sorted(new)),
            )


def _tokens(generation: Generation) -> Iterator[int]:
    """The tokens of all rows as they are accepted; raises what ended a row early."""
    try:
        for output in generation.outputs():
            if generation.error is not None:
                raise generation.error
            if output.finish_reason == "non-finite logits":
                raise DraftwiseError(
                    f"the logits of row {output.request} are not finite, or its processors allow "
                    "no token"
                )
            yield from output.tokens
        if generation.error is not None:
            raise generation.error
    finally:
        generation.close()


def _receive_all_arguments() -> None:
    """Make ``generate`` pass a ``CustomGenerate`` the arguments of the built-in decoding loops.

    For other callables ``generate`` silently drops ``tokenizer``, which stop strings need,
    ``streamer`` and ``assistant_model``, and it encodes images before the call.
    """
    original = GenerationMixin._extract_generation_mode_kwargs
    if hasattr(original, "serves_draftwise"):
        return

    @wraps(original)
    def extract(self: Any, custom_generate: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(custom_generate, CustomGenerate):
            custom_generate.given = {name for name, value in given.items() if value is not None}
            custom_generate = None
        return original(self, custom_generate, given, *args, **kwargs)

    extract.serves_draftwise = True  # type: ignore[attr-defined]
    GenerationMixin._extract_generation_mode_kwargs = extract


def _refuse(
    model: Any,
    config: Any,
    input_ids: Tensor,
    streamer: Any,
    model_kwargs: dict[str, Any],
    given: set[str],
) -> None:
    """Raise DraftwiseError for all that would change the answer and is not honoured."""
    found = [name for name in _OTHER_MODELS if model_kwargs.get(name) not in (None, False)]
    if (mode := config.get_generation_mode()) not in _PLAIN:
        settings = {name: getattr(config, name, None) for name in _OTHER_LOOPS}
        if settings["num_beams"] == 1:
            del settings["num_beams"]
        named = [_named(model, config, name) for name, value in settings.items() if value]
        found += named or [mode.value]
    if config.return_dict_in_generate:
        found += [name for name in _OUTPUTS if getattr(config, name, False)]
    if config.token_healing:
        found.append(_named(model, config, "token_healing"))
    if config.cache_implementation == "quantized":
        found.append(_named(model, config, "cache_implementation"))
    # what the model encodes beforehand (images) is in none of its inputs under the caller's name
    lost = (name for name in given - model_kwargs.keys() - _KNOWN if not hasattr(config, name))
    found += sorted(lost) + _foreign_inputs(model, input_ids, model_kwargs, given)
    if streamer is not None and len(input_ids) > 1:
        found.append(f"a streamer of several answers (here are {len(input_ids)}: leave out")
        found[-1] += " streamer=)"
    if found:
        raise DraftwiseError(
            f"draftwise cannot honour {', '.join(found)}: leave it out, or call generate without "
            "custom_generate"
        )


def _named(model: Any, config: Any, name: str) -> str:
    """A setting with its value, and where it comes from unless the caller gave it."""
    value = getattr(config, name)
    own = getattr(model.generation_config, name, None)
    return f"{name}={value!r}" + (" (of model.generation_config)" if own == value else "")


def _foreign_inputs(
    model: Any, input_ids: Tensor, prepared: Mapping[str, Any], given: set[str]
) -> list[str]:
    """Names of what the model's first forward would be given besides a text's token ids.

    The model says so itself (``prepare_inputs_for_generation``): a processor's images, a caller's
    embeddings or positions, and what PEFT's prompt learning adds.
    """
    caches = [name for name, value in prepared.items() if _is_filled(value)]
    if caches:  # before the model cuts its input to what the cache lacks
        return [f"{name} (a cache of yours, or one that already holds tokens)" for name in caches]
    prepare = model.prepare_inputs_for_generation
    inputs = prepare(input_ids, is_first_iteration=True, **prepared)
    names = [
        name
        for name, value in inputs.items()
        if name not in _KNOWN and not _is_neutral(name, value, model.config)
    ]
    ids = inputs.get("input_ids")
    if not names and (ids is None or not torch.equal(ids, input_ids)):
        names = ["other input_ids"]
    by = f"of {getattr(prepare, '__qualname__', 'prepare_inputs_for_generation')}"
    found = [name if name in given else f"{name} ({by})" for name in names]
    mask = prepared.get("attention_mask")
    if mask is not None and mask.shape != input_ids.shape:
        found.append(f"an attention_mask of the shape {list(mask.shape)}")
    elif not _are_usual(prepared.get("position_ids"), input_ids, mask):
        found.append("position_ids")
    return found + _inputs_of_layers(model)


def _is_filled(value: Any) -> bool:
    """Whether this is a cache that the caller passed, or that holds tokens."""
    if not isinstance(value, Cache):
        return False
    return getattr(value, "_is_user_defined", False) or _holds_tokens(value)


def _holds_tokens(cache: Cache) -> bool:
    try:
        return bool(cache.get_seq_length())
    except ValueError:  # a cache of recurrent states alone counts no tokens
        return bool(cache.has_previous_state())


def _is_neutral(name: str, value: Any, config: Any) -> bool:
    """Whether an input tells a model nothing: an empty cache, or the absence of images."""
    if isinstance(value, Cache):
        return not _holds_tokens(value)
    if isinstance(value, Mapping):
        return all(own is None for own in value.values())
    if name.endswith("token_type_ids") and isinstance(value, Tensor):  # 0 marks text
        kinds = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")
        return not value.any() and any(hasattr(config, kind) for kind in kinds)
    return value is None


def _are_usual(positions: Any, input_ids: Tensor, mask: Tensor | None) -> bool:
    """Whether positions count the unpadded tokens of each row from 0; [..., B or 1, T]."""
    if positions is None:
        return True
    kept = torch.ones_like(input_ids) if mask is None else mask.long()
    if positions.shape[-1] != input_ids.shape[1]:
        return False
    return not (((kept.cumsum(-1) - 1).to(positions.device) != positions) & (kept > 0)).any()


def _inputs_of_layers(model: Any) -> list[str]:
    """Arguments that PEFT passes to layers by hooks: they belong to the rows of one forward."""
    hooks = (hook for layer in model.modules() for hook in layer._forward_pre_hooks.values())
    for hook in hooks:
        made = getattr(hook, "func", hook)
        if str(getattr(made, "__module__", "")).startswith("peft."):
            names = ", ".join(getattr(hook, "keywords", {}))
            return [names or f"{made.__qualname__} of PEFT"]
    return []


def _unpadded(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    if mask is None:
        return [list(row) for row in input_ids.tolist()]
    if bool((mask.diff(dim=-1) < 0).any()):
        raise DraftwiseError(
            "the attention mask has gaps or padding on the right: pad prompts on the left "
            "(tokenizer.padding_side = 'left')"
        )
    return [ids[kept.bool()].tolist() for ids, kept in zip(input_ids, mask, strict=True)]


_NATIVE = {
    processing.RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    processing.TemperatureLogitsWarper: ("temperature", "temperature"),
    processing.TopKLogitsWarper: ("top_k", "top_k"),
    processing.TopPLogitsWarper: ("top_p", "top_p"),
}
"""Processors that the engine implements, in its order; their attribute and its parameter."""
_ROW_WISE = frozenset(
    {
        *_NATIVE,
        processing.EpsilonLogitsWarper,
        processing.EtaLogitsWarper,
        processing.ExponentialDecayLengthPenalty,
        processing.ForcedBOSTokenLogitsProcessor,
        processing.ForcedEOSTokenLogitsProcessor,
        processing.InfNanRemoveLogitsProcessor,
        processing.LogitNormalization,
        processing.MinLengthLogitsProcessor,
        processing.MinNewTokensLengthLogitsProcessor,
        processing.MinPLogitsWarper,
        processing.NoBadWordsLogitsProcessor,
        processing.NoRepeatNGramLogitsProcessor,
        processing.SequenceBiasLogitsProcessor,
        processing.SuppressTokensAtBeginLogitsProcessor,
        processing.SuppressTokensLogitsProcessor,
        processing.TopHLogitsWarper,
        processing.TypicalLogitsWarper,
        processing.WatermarkLogitsProcessor,
        stopping.EosTokenCriteria,
        stopping.MaxLengthCriteria,
        stopping.MaxTimeCriteria,
        stopping.StopStringCriteria,
    }
)
"""Callbacks of the library whose result for a row depends on this row's ids and scores alone."""


class _Callbacks:
    """The logits processors and stopping criteria of a call with ``num_rows`` rows.

    criteria: those besides an end token and a length. max_length: tokens of prompt and answer. eos:
    end tokens.
    """

    def __init__(self, processors: Any, criteria: Any, num_rows: int) -> None:
        self._processors, self._num_rows = list(processors), num_rows
        ends = [own for own in criteria if type(own) is stopping.EosTokenCriteria]
        limits = [own for own in criteria if type(own) is stopping.MaxLengthCriteria]
        native = (stopping.EosTokenCriteria, stopping.MaxLengthCriteria)
        self.criteria = [own for own in criteria if type(own) not in native]
        self.max_length = min(int(own.max_length) for own in limits)
        tokens = [token for own in ends for token in own.eos_token_id.flatten().tolist()]
        self.eos = [token for token in tokens if token >= 0]  # -1 means none
        self._has_ends = bool(ends)

    def of_whole_batches(self, are_pure: bool) -> list[str]:
        """Names of callbacks that have to be called as ``generate`` does, for all rows at once.

        A criterion of one row is: after each token, in order. If there is no end token,
        ``generate`` pads no row that a criterion ended.
        """
        several = self._num_rows > 1
        asked = [] if are_pure else [*self._processors, *(self.criteria if several else ())]
        found = [type(own).__name__ for own in asked if type(own) not in _ROW_WISE]
        if several and self.criteria and not self._has_ends:
            found += [type(own).__name__ for own in self.criteria]
        return found

    def end(self, ids: Tensor) -> bool:
        """Whether any criterion ends a row [1, T]."""
        return any([bool(torch.as_tensor(own(ids, None)).all()) for own in self.criteria])

    def processors_of(self, row: int) -> list[Any]:
        """The processors of one row, whose ids they get as [1, T]."""
        found = []
        for processor in self._processors:
            if type(processor) is processing.PrefixConstrainedLogitsProcessor:
                processor = _AllowedInRow(processor, row)
            ignored = getattr(processor, "prompt_ignore_length", None)
            if isinstance(ignored, Tensor):  # padding length of each row
                penalty, length = processor.penalty, int(ignored[row])
                processor = processing.RepetitionPenaltyLogitsProcessor(penalty, length)
            found.append(processor)
        return found


class _AllowedInRow(processing.LogitsProcessor):  # type: ignore[misc]
    """``prefix_allowed_tokens_fn`` for one row, which it is told the number of."""

    def __init__(self, processor: Any, row: int) -> None:
        allowed = processor._prefix_allowed_tokens_fn
        constrained = processing.PrefixConstrainedLogitsProcessor
        self._own = constrained(lambda _, ids: allowed(row, ids), 1)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        found: Tensor = self._own(input_ids, scores)
        return found


def _sampling(config: Any, processors: Sequence[Any], padding: Sequence[int]) -> SamplingParams:
    """One row's sampling parameters: the engine's if they are equivalent, else the processors."""
    params: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
    if _are_native(config, processors, len(padding)):
        for processor in processors:
            theirs, ours = _NATIVE[type(processor)]
            params[ours] = getattr(processor, theirs)
        return SamplingParams(**params)

    def process(prefix: Sequence[int], logits: Tensor) -> Tensor:
        ids = torch.tensor([[*padding, *prefix]], device=logits.device)
        scores = logits[None]
        for processor in processors:
            scores = processor(ids, scores)
            if len(scores) != 1:
                raise DraftwiseError(
                    f"{type(processor).__name__} returned scores of {len(scores)} rows for one: it "
                    "depends on the batch, so leave out pure_callbacks=True"
                )
        return scores[0]

    return SamplingParams(**params, process=process)


def _are_native(config: Any, processors: Sequence[Any], num_padding: int) -> bool:
    """Whether the engine's own parameters do what these processors do."""
    kinds = [type(processor) for processor in processors]
    natives = list(_NATIVE) if config.do_sample else list(_NATIVE)[:1]
    if kinds != [kind for kind in natives if kind in kinds]:
        return False
    # the engine's repetition penalty covers the whole text, but never padding
    ignored = [getattr(own, "prompt_ignore_length", num_padding) or 0 for own in processors]
    fillers = [getattr(own, "filter_value", -torch.inf) for own in processors]
    least = [getattr(own, "min_tokens_to_keep", 1) for own in processors]
    return {*ignored} <= {num_padding} and {*fillers} <= {-torch.inf} and {*least} <= {1}


def _output(config: Any, input_ids: Tensor, answers: Sequence[Sequence[int]]) -> Any:
    pad = config.pad_token_id
    eos = 0 if config.eos_token_id is None else config.eos_token_id
    filler = int(torch.as_tensor(eos).flatten()[0]) if pad is None else int(pad)
    rows = [torch.tensor(answer, device=input_ids.device) for answer in answers]
    padded = pad_sequence(rows, batch_first=True, padding_value=filler)
    sequences = torch.cat([input_ids, padded], dim=-1)
    if config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences
