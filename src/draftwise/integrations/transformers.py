"""``model.generate(..., custom_generate=draftwise.transformers())``: same text, one more argument.

Everything that ``generate`` prepares is honoured (config, processors, stopping criteria, streamer,
left padding, several sequences per prompt), or rejected with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMixin
from transformers.generation import logits_process as processing
from transformers.generation import stopping_criteria as stopping

from draftwise.engine.engine import Result
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, SamplingParams

_REFUSED = (
    processing.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    processing.SynthIDTextWatermarkLogitsProcessor,
    processing.WhisperTimeStampLogitsProcessor,
)
"""Stateful logits processors, which expect one call per token; positions of a draft break this."""
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_OTHER_LOOPS = (
    "use_mtp", "prompt_lookup_num_tokens", "assistant_early_exit", "penalty_alpha", "dola_layers",
    "constraints", "force_words_ids", "token_healing",
)  # fmt: skip
"""Settings of ``GenerationConfig`` that select another decoding loop, or change the prompt."""
_OTHER_MODELS = ("assistant_model", "assistant_tokenizer", "synced_gpus")
"""Arguments of ``generate`` that only other decoding loops use."""


class CustomGenerate:
    """A ``custom_generate`` for ``model.generate`` that decodes speculatively.

    drafters and options: as for ``Speculator.from_pretrained``. The object keeps one ``Speculator``
    per model, so that later calls reuse measured costs; ``results`` holds the last call's answers
    with their statistics.
    Source: the hook ``custom_generate`` of ``transformers``.
    Differs: randomness comes from a separate stream, seeded by torch's global generator, so sampled
    text has the distribution of ``generate`` but other tokens (reproducible only with a preset that
    does not depend on measured time, unlike the default). Rows that a stopping criterion ended are
    padded even if the config has no EOS token. An answer ends at the model's maximum position.
    Errors: DraftwiseError for beams, other decoding loops (an assistant model, prompt lookup),
    outputs other than sequences, a cache that was passed in, right padding, a streamer of several
    sequences, and stateful logits processors.
    """

    def __init__(self, drafters: str | Sequence[Any] | None = None, **options: Any) -> None:
        _receive_all_arguments()
        self._drafters, self._options = drafters, options
        self._speculators: WeakKeyDictionary[Any, Speculator] = WeakKeyDictionary()
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
        _refuse(config, model_kwargs, logits_processor)
        if streamer is not None and len(input_ids) > 1:
            raise DraftwiseError(
                f"a streamer follows one answer, and here are {len(input_ids)}: leave out streamer="
            )
        prompts = _unpadded(input_ids, model_kwargs.get("attention_mask"))
        pairs = zip(input_ids.tolist(), prompts, strict=True)
        paddings = [ids[: len(ids) - len(prompt)] for ids, prompt in pairs]
        speculator = self._speculators.get(model)
        if speculator is None:  # it holds a proxy, so the model can be freed
            speculator = Speculator.from_pretrained(proxy(model), self._drafters, **self._options)
            self._speculators[model] = speculator
        native = (stopping.EosTokenCriteria, stopping.MaxLengthCriteria)
        criteria = [c for c in stopping_criteria if not isinstance(c, native)]

        def stop_when(index: int, answer: Sequence[int]) -> bool:
            ids = input_ids.new_tensor([[*paddings[index], *prompts[index], *answer]])
            return any(bool(torch.as_tensor(c(ids, None)).all()) for c in criteria)

        eos = () if config.eos_token_id is None else torch.as_tensor(config.eos_token_id).flatten()
        generation = speculator.start(
            prompts,
            max_new_tokens=config.max_length - input_ids.shape[1],
            sampling=[
                _sampling(config, _of_row(logits_processor, i, len(paddings)), padding)
                for i, padding in enumerate(paddings)
            ],
            stop_when=stop_when if criteria else None,
            eos_token_ids=[int(token) for token in eos if token >= 0],  # -1 means none
            seed=int(torch.randint(2**62, (1,))),
        )
        for output in generation.outputs():
            for token in output.tokens if streamer is not None else ():
                streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
        self.results = generation.results()
        return _output(config, input_ids, [result.tokens for result in self.results])


def _receive_all_arguments() -> None:
    """Make ``generate`` pass a ``CustomGenerate`` the arguments of the built-in decoding loops.

    For other callables ``generate`` silently drops ``tokenizer``, which stop strings need,
    ``streamer`` and ``assistant_model``.
    """
    original = GenerationMixin._extract_generation_mode_kwargs
    if hasattr(original, "serves_draftwise"):
        return

    @wraps(original)
    def extract(self: Any, custom_generate: Any, *args: Any, **kwargs: Any) -> Any:
        is_ours = isinstance(custom_generate, CustomGenerate)
        return original(self, None if is_ours else custom_generate, *args, **kwargs)

    extract.serves_draftwise = True  # type: ignore[attr-defined]
    GenerationMixin._extract_generation_mode_kwargs = extract


def _refuse(config: Any, model_kwargs: dict[str, Any], processors: Any) -> None:
    # by what it can do: its name has changed, and may again
    caches = [value for value in model_kwargs.values() if hasattr(value, "get_seq_length")]
    refusals = {
        "beam search": (config.num_beams or 1) > 1,
        "a cache that already holds tokens": any(map(_holds_tokens, caches)),
        f"cache_implementation={config.cache_implementation!r}": bool(config.cache_implementation),
        "inputs_embeds": model_kwargs.get("inputs_embeds") is not None,
        **{name: bool(getattr(config, name, False)) for name in (*_OUTPUTS, *_OTHER_LOOPS)},
        **{name: model_kwargs.get(name) not in (None, False) for name in _OTHER_MODELS},
        **{type(p).__name__: True for p in processors if isinstance(p, _REFUSED)},
    }
    if found := [name for name, is_met in refusals.items() if is_met]:
        raise DraftwiseError(
            f"draftwise cannot honour {', '.join(found)}: leave it out, or call generate without "
            "custom_generate"
        )


def _holds_tokens(cache: Any) -> bool:
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:  # a cache of recurrent states alone counts no tokens
        return bool(cache.has_previous_state())


def _unpadded(input_ids: Tensor, mask: Tensor | None) -> list[list[int]]:
    if mask is None:
        return [list(row) for row in input_ids.tolist()]
    if bool((mask.diff(dim=-1) < 0).any()):
        raise DraftwiseError(
            "the attention mask has gaps or padding on the right: pad prompts on the left "
            "(tokenizer.padding_side = 'left')"
        )
    return [ids[kept.bool()].tolist() for ids, kept in zip(input_ids, mask, strict=True)]


def _of_row(processors: Any, row: int, num_rows: int) -> list[Any]:
    found = []
    for processor in processors:
        if num_rows > 1 and isinstance(processor, processing.PrefixConstrainedLogitsProcessor):
            raise DraftwiseError(
                "prefix_allowed_tokens_fn is told the row of a batch, and here rows are processed "
                "one by one: generate one prompt at a time"
            )
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):  # padding length of each row
            penalty, length = processor.penalty, int(ignored[row])
            processor = processing.RepetitionPenaltyLogitsProcessor(penalty, length)
        found.append(processor)
    return found


_NATIVE = {
    processing.RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    processing.TemperatureLogitsWarper: ("temperature", "temperature"),
    processing.TopKLogitsWarper: ("top_k", "top_k"),
    processing.TopPLogitsWarper: ("top_p", "top_p"),
}
"""Processors that the engine implements, in its order; their attribute and its parameter."""


def _sampling(config: Any, processors: Sequence[Any], padding: Sequence[int]) -> SamplingParams:
    """One row's sampling parameters: the engine's if they are equivalent, else the processors."""
    params: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
    kinds, num = [type(processor) for processor in processors], len(padding)
    # the engine's repetition penalty covers the whole text, but never padding
    ignored = (getattr(processor, "prompt_ignore_length", num) or 0 for processor in processors)
    if kinds == [kind for kind in _NATIVE if kind in kinds] and all(n == num for n in ignored):
        for kind, processor in zip(kinds, processors, strict=True):
            theirs, ours = _NATIVE[kind]
            params[ours] = getattr(processor, theirs)
        return SamplingParams(**params)

    def process(prefix: Sequence[int], logits: Tensor) -> Tensor:
        ids = torch.tensor([[*padding, *prefix]], device=logits.device)
        scores = logits[None]
        for processor in processors:
            scores = processor(ids, scores)
        return scores[0]

    return SamplingParams(**params, process=process)


def _output(config: Any, input_ids: Tensor, answers: Sequence[Sequence[int]]) -> Any:
    pad = config.pad_token_id
    eos = 0 if config.eos_token_id is None else config.eos_token_id
    filler = int(torch.as_tensor(eos).flatten()[0]) if pad is None else int(pad)
    rows = [input_ids.new_tensor(answer) for answer in answers]
    padded = pad_sequence(rows, batch_first=True, padding_value=filler)
    sequences = torch.cat([input_ids, padded], dim=-1)
    if config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=sequences)
    return sequences
