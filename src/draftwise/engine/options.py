"""Request parameters, and conversion of prompts and seeds of any form.

Parameters have the same names in Python, on the command line and in HTTP.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.random import SeedSequence

from draftwise import chat, checks
from draftwise.chat import Message, Prompt
from draftwise.checks import option
from draftwise.errors import BadValue, UnknownOption
from draftwise.types import LONGEST_PLAN, DraftwiseError, SamplingParams

if TYPE_CHECKING:  # the command line imports these parameters without torch
    from draftwise.nn.model import CausalModel

Single = str | Prompt | Sequence[int] | Sequence[Message]
"""One prompt, for a type checker; tensors and tokenizer outputs are accepted, too."""
MOST_LENGTHS = 128  # maximum draft lengths of a request; its plans are drafters x lengths


class Options(TypedDict, total=False):
    """Keywords of ``generate``, ``stream``, ``start`` and ``request``.

    The fields of ``RequestParams`` and ``SamplingParams``, two keywords of transformers
    (``do_sample``, ``stop_strings``), and options for batches.
    """

    sampling: SamplingParams | Sequence[SamplingParams] | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    process: Callable[[Sequence[int], Any], Any] | None
    do_sample: bool
    max_new_tokens: int | Sequence[int]
    stop: str | Sequence[str]
    stop_strings: str | Sequence[str]
    stop_when: Callable[..., bool] | None
    eos_token_ids: int | Sequence[int] | None
    ignore_eos: bool
    stop_token_ids: int | Sequence[int]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    seed: int | Sequence[int] | None
    label: str
    private: bool
    tenant: str
    preset: str | None
    policy: str | None
    lengths: Sequence[int] | None
    speculation: bool
    drafters: str | Sequence[str] | None
    max_draft: int | None
    logprobs: int | None
    prompt_logprobs: bool
    token_texts: bool
    priority: int
    prediction: Sequence[int]
    attention_mask: Any
    num_return_sequences: int
    trace: str | Path | None


def _sampling_params(name: str, value: Any) -> SamplingParams:
    if isinstance(value, SamplingParams):
        return value
    raise BadValue(name, value, "a SamplingParams")


_MOST_ENDS = 2**20  # no vocabulary has more tokens


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    one = isinstance(checks.plain(value), (int, float))
    return checks.wholes(name, (value,) if one else value, 0, num=_MOST_ENDS)


def _drafter_names(name: str, value: Any) -> tuple[str, ...]:
    if names := checks.strings(name, value):
        return tuple(dict.fromkeys(names))
    raise BadValue(name, value, "names of drafters (speculation=False uses none)")


_optional = partial(partial, checks.optional)
_drawn, _running = partial(option, panel="Sampling"), partial(option, panel="Running")
SEED_HELP = (
    "Random seed. Default: another one each run. The default policy depends on measured time: "
    "sampled text repeats with --deterministic."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParams:
    """The parameters of one request, apart from its prompt; checked on construction.

    max_new_tokens: 1 or more; an answer also ends at the target's last position. stop: strings that
    end an answer. stop_when: called after each token with the answer's tokens so far; True ends the
    answer. eos_token_ids: replace the ends of the model, the tokenizer and the chat's turns;
    ignore_eos: use none of these. stop_token_ids: further tokens that end an answer; its text ends
    before them, its tokens with them. include_stop_str_in_output: the text ends with what ended it.
    skip_special_tokens: leave special tokens out of the text; a stop string may name one in either
    case. seed: 0 or more; None = random. label: the kind of request; requests of one kind share
    what is learnt. private: others do not reuse its text or shared memory. tenant: whose earlier
    answers and prefixes it may reuse. preset, policy, lengths: replace the speculator's; up to 128
    lengths from 1 to 1,024. speculation: False decodes plainly, and no drafter sees the text.
    drafters: names of the allowed drafters; None = all. max_draft: maximum tokens per draft, 0 to
    1,024; None = the plans' lengths. These three are named as in vLLM's ``extra_args``. logprobs:
    number of top tokens per emitted one, from 0 (the emitted one only) to the vocabulary size;
    prompt_logprobs: also for the prompt; token_texts: report what each token added to the text.
    priority: higher runs first. Raises BadValue for a wrong type or a value out of range.
    """

    sampling: SamplingParams = option(SamplingParams, check=_sampling_params)
    max_new_tokens: int = option(
        256,
        "Maximum number of tokens per answer.",
        "--max-new-tokens",
        "-n",
        metavar="N",
        check=partial(checks.whole, least=1),
    )
    stop: tuple[str, ...] = _drawn(
        (),
        "String that ends the answer; repeatable.",
        metavar="TEXT",
        kind=list[str] | None,
        check=checks.strings,
    )
    stop_when: Callable[[Sequence[int]], bool] | None = option(None, check=checks.function)
    eos_token_ids: tuple[int, ...] | None = option(None, check=_optional(_token_ids))
    ignore_eos: bool = _drawn(
        False, "Continue after the end-of-text token.", "--ignore-eos", check=checks.flag
    )
    stop_token_ids: tuple[int, ...] = option((), check=_token_ids)
    include_stop_str_in_output: bool = option(False, check=checks.flag)
    skip_special_tokens: bool = option(True, check=checks.flag)
    seed: int | None = _drawn(None, SEED_HELP, metavar="N", check=_optional(checks.seed))
    label: str = option("", check=checks.string)
    private: bool = option(False, check=checks.flag)
    tenant: str = option("", check=checks.string)
    preset: str | None = option(None, check=_optional(checks.string))
    policy: str | None = option(None, check=_optional(checks.string))
    lengths: tuple[int, ...] | None = option(
        None, check=_optional(partial(checks.wholes, least=1, most=LONGEST_PLAN, num=MOST_LENGTHS))
    )
    speculation: bool = _running(
        True, "Draft, or use plain decoding.", "--speculation/--no-speculation", check=checks.flag
    )
    drafters: tuple[str, ...] | None = _running(
        None,
        "Use only these of the loaded drafters, by name.",
        metavar="NAME,NAME",
        kind=str | None,
        read=lambda text: None if text is None else text.split(","),
        check=_optional(_drafter_names),
    )
    max_draft: int | None = _running(
        None,
        "Maximum number of tokens per draft.",
        metavar="N",
        check=_optional(partial(checks.whole, least=0, most=LONGEST_PLAN)),
    )
    logprobs: int | None = option(None, check=_optional(partial(checks.whole, least=0)))
    prompt_logprobs: bool = option(False, check=checks.flag)
    token_texts: bool = option(False, check=checks.flag)
    priority: int = option(0, check=checks.whole)
    prediction: tuple[int, ...] = option((), check=partial(checks.wholes, least=0, num=2**20))

    def __post_init__(self) -> None:
        checks.check_fields(self)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise BadValue for values that exceed the target's vocabulary."""
        self.sampling.check_vocabulary(vocab_size)
        checks.optional(checks.whole, "logprobs", self.logprobs, 0, vocab_size)
        if (largest := max(self.prediction, default=0)) >= vocab_size:
            raise BadValue("prediction", largest, f"token ids below {vocab_size}")


Params = RequestParams | Sequence[RequestParams] | None
"""Parameters of all prompts, or one per prompt; None = they are passed as keywords."""


def request_params(method: str, options: Mapping[str, Any]) -> RequestParams:
    """One request's parameters from the keyword arguments of ``method``.

    Raises BadValue, UnknownOption (also a TypeError), and DraftwiseError for conflicting keywords.

    >>> request_params("generate", {"min_p": 0.1, "temperature": 1.0}).sampling.min_p
    0.1
    """
    check_names(method, options, Options.__annotations__.keys() - _BATCH)
    given = dict(options)
    if "stop_strings" in given:
        if given.get("stop"):
            raise DraftwiseError("stop and stop_strings are the same option: give one of them")
        given["stop"] = given.pop("stop_strings")
    do_sample = given.pop("do_sample", None)
    own = {name: given.pop(name) for name in _SAMPLING if name in given}
    own = {name: value for name, value in own.items() if value is not None}  # the defaults
    sampling = given.pop("sampling", None)
    if sampling is not None and (own or do_sample is not None):
        name = next(iter(own), "do_sample")
        raise DraftwiseError(f"sampling and {name} were both given: write {name} into sampling")
    if sampling is None:
        sampling = SamplingParams(**_tempered(own, do_sample))
    return RequestParams(sampling=sampling, **given)


def batch_params(
    method: str, options: Mapping[str, Any], num_prompts: int, params: Params = None
) -> tuple[list[RequestParams], int, Any]:
    """The parameters of each prompt, the number of answers per prompt, and the seeds.

    options: may hold lists with one ``max_new_tokens`` or ``sampling`` per prompt; ``stop_when``
    gets the prompt's index as first argument. Errors as in ``request_params``, and DraftwiseError
    for a list whose length is not the number of prompts.
    """
    given = {name: value for name, value in options.items() if name not in _BATCH}
    asked = options.get("num_return_sequences")
    num = 1 if asked is None else checks.whole("num_return_sequences", asked, 1, 1024)
    if params is not None:
        for name in given:
            why = f"params and {name} were both given: write {name} into it"
            raise DraftwiseError(f"{method}(): {why}")
        all_ = [params] * num_prompts if isinstance(params, RequestParams) else list(params)
        if len(all_) != num_prompts or not all(isinstance(one, RequestParams) for one in all_):
            raise DraftwiseError(f"params: give one RequestParams, or {num_prompts}, one a prompt")
        seeds = {one.seed for one in all_}
        return all_, num, seeds.pop() if len(seeds) == 1 else [one.seed for one in all_]
    seed = given.pop("seed", None)
    stop_when = checks.function("stop_when", given.pop("stop_when", None))
    several = {
        name: given.pop(name)
        for name in ("max_new_tokens", "sampling")
        if _is_list(given.get(name))
    }
    for name, values in several.items():
        if len(values) != num_prompts:
            raise DraftwiseError(
                f"{name} has {len(values)} values for {num_prompts} prompts: give one, or one each"
            )
    found = []
    for index in range(num_prompts):
        each = {name: values[index] for name, values in several.items()}
        params = request_params(method, given | each)
        if num > 1 and params.sampling.temperature == 0:
            raise BadValue("num_return_sequences", num, "1 for greedy decoding: all are the same")
        ends = None if stop_when is None else partial(stop_when, index)
        found.append(replace(params, stop_when=ends))
    return found, num, seed


def _is_list(value: Any) -> bool:
    if hasattr(value, "ndim"):
        return bool(value.ndim == 1)
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_names(method: str, options: Mapping[str, Any], valid: Collection[str]) -> None:
    for name in options:
        if name not in valid:
            close = difflib.get_close_matches(name, valid, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            said = f"{hint}its options are: {', '.join(sorted(valid))}"
            raise UnknownOption(f"{method}() has no option {name!r}; {said}")


def _tempered(own: dict[str, Any], do_sample: Any) -> dict[str, Any]:
    if do_sample is None:
        return own
    if "temperature" in own:
        own["temperature"] = checks.number("temperature", own["temperature"], 0, note="greedy")
    if not checks.flag("do_sample", do_sample):
        if own.get("temperature", 0) != 0:
            must = "True with a temperature above 0 (False decodes greedily)"
            raise BadValue("do_sample", do_sample, must)
        return own
    if own.setdefault("temperature", 1.0) == 0:
        raise BadValue("do_sample", do_sample, "False with temperature 0, which decodes greedily")
    return own


AUTO, REQUEST, SESSION, TASK = "auto", "request", "session", "task:"
"""Which requests share what a policy learns."""


def check_scope(scope: str) -> str:
    if scope in {AUTO, REQUEST, SESSION} or scope.removeprefix(TASK) not in {scope, ""}:
        return scope
    raise DraftwiseError(
        f"unknown scope {scope!r}; the scopes are: {AUTO}, {REQUEST}, {SESSION}, {TASK}LABEL"
    )


_SAMPLING = tuple(own.name for own in fields(SamplingParams))
_BATCH = frozenset({"attention_mask", "num_return_sequences", "trace"})
_FORMS = (
    "give text, token ids, messages ({'role': ..., 'content': ...}), what a tokenizer returns, or "
    "a list of these"
)


def is_single(prompts: Any) -> bool:
    """Whether this is one prompt (text, ids, a conversation) rather than a batch of them.

    Two-dimensional ids are a batch, as in transformers, even if they have one row.
    """
    if isinstance(prompts, Mapping):
        return is_single(prompts.get("input_ids", ""))
    if hasattr(prompts, "ndim"):
        return bool(prompts.ndim <= 1)
    if not isinstance(prompts, Sequence) or isinstance(prompts, (str, bytes)):
        return True
    if len(prompts) == 0 or chat.is_messages(prompts):
        return len(prompts) > 0
    first = prompts[0]
    return not (isinstance(first, (Sequence, Mapping, Prompt)) or np.ndim(first) > 0)


def encode_all(
    prompts: Any, tokenizer: Any, target: CausalModel, attention_mask: Any = None
) -> list[Prompt]:
    """Convert a prompt of any form, or a batch of them, to token ids.

    attention_mask: same shape as ``prompts``, 0 = padding, which is removed; that of a tokenizer's
    output takes precedence. Raises DraftwiseError for no prompt, an empty one, text or messages
    without a tokenizer or template, ids that are not integers or not in the vocabulary, padding
    without a mask, or a prompt that leaves no position for an answer; it names prompts by index.
    """
    if isinstance(prompts, Mapping):
        attention_mask = prompts.get("attention_mask", attention_mask)
        if "input_ids" not in prompts:
            raise DraftwiseError(f"a mapping without input_ids is no prompt: {_FORMS}")
        prompts = prompts["input_ids"]
    single = is_single(prompts)
    batch = [prompts] if single else list(prompts)
    if not batch:
        raise DraftwiseError("no prompt was given")
    names = ["the prompt"] if single else [f"prompt {index}" for index in range(len(batch))]
    if attention_mask is not None:
        masks = [attention_mask] if single else list(attention_mask)
        if len(masks) != len(batch):
            raise DraftwiseError(f"the attention mask has {len(masks)} rows, of {len(batch)}")
        batch = [_unpadded(*given) for given in zip(names, batch, masks, strict=True)]
    elif len(batch) > 1:
        _refuse_padding(batch, tokenizer, target)
    pairs = zip(names, batch, strict=True)
    most = target.max_positions
    return [_checked(name, _encode(name, text, tokenizer, most), target) for name, text in pairs]


def randomness(
    seed: int | Sequence[int] | SeedSequence, num: int, each: int
) -> Iterator[SeedSequence]:
    """Random streams for ``each`` answers to each of ``num`` prompts.

    seed: one for all prompts, or one per prompt, which gives a prompt the same streams in any
    batch. Raises DraftwiseError for seeds that are not integers >= 0, or not one per prompt.
    """
    if isinstance(seed, SeedSequence):
        return iter(seed.spawn(num * each))
    if isinstance(checks.plain(seed), (int, float)):
        return iter(SeedSequence(checks.seed("seed", seed)).spawn(num * each))
    seeds = [checks.seed("seed", one) for one in checks.wholes("seed", seed)]
    if len(seeds) != num:
        raise DraftwiseError(f"{len(seeds)} seeds for {num} prompts: give one, or one each")
    return (stream for own in seeds for stream in SeedSequence(own).spawn(each))


def eos_tokens(target: CausalModel, tokenizer: Any) -> Sequence[int]:
    """The end-of-text tokens of the model's generation config and of the tokenizer.

    Both count: fine-tunes change one of them and leave the other as it was.
    """
    config = getattr(target.module, "generation_config", None)
    found = list[int]()
    for source in (config, tokenizer):
        eos = getattr(source, "eos_token_id", None)
        found += [] if eos is None else [eos] if isinstance(eos, int) else eos
    return list(dict.fromkeys(found))


def _encode(name: str, prompt: Any, tokenizer: Any, max_positions: int) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    if isinstance(prompt, str) or chat.is_messages(prompt):
        try:
            chat.check_size(prompt, tokenizer, max_positions)
            return chat.encode(prompt, tokenizer)
        except DraftwiseError as error:
            raise DraftwiseError(f"{name}: {error}") from error
    if isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            raise DraftwiseError(f"{name} is a mapping without input_ids: {_FORMS}")
        prompt = _unpadded(name, prompt["input_ids"], prompt.get("attention_mask"))
    return Prompt(_whole_numbers(name, prompt))


def _whole_numbers(name: str, prompt: Any) -> list[int]:
    tokens = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(tokens, (bytes, bytearray)):
        raise DraftwiseError(f"{name} is bytes: decode them to text, or give token ids")
    if isinstance(tokens, (int, float)):
        raise DraftwiseError(f"{name} is the single number {tokens}: token ids are a list")
    if not isinstance(tokens, Sequence):
        raise DraftwiseError(f"{name} is of the type {type(prompt).__name__}: {_FORMS}")
    numbers = [token.item() if hasattr(token, "item") else token for token in tokens]
    wrong = [n for n in numbers if not isinstance(n, Integral) or isinstance(n, bool)]
    if wrong:
        raise DraftwiseError(f"{name} has {wrong[0]!r} among its token ids: {_FORMS}")
    return [int(number) for number in numbers]


def _unpadded(name: str, ids: Any, mask: Any) -> Any:
    if mask is None or isinstance(ids, (str, Prompt)) or chat.is_messages(ids):
        return ids
    tokens, kept = _whole_numbers(name, ids), [bool(x) for x in mask]
    if len(tokens) != len(kept):
        raise DraftwiseError(f"{name} has {len(tokens)} tokens and a mask of {len(kept)}")
    start, num = kept.index(True) if any(kept) else 0, sum(kept)
    if not all(kept[start : start + num]):
        raise DraftwiseError(f"the attention mask of {name} has gaps: pad at the ends only")
    return tokens[start : start + num]


def _refuse_padding(batch: Sequence[Any], tokenizer: Any, target: CausalModel) -> None:
    """Raise DraftwiseError for ids that seem padded but have no attention mask."""
    pad = getattr(tokenizer, "pad_token_id", None)
    pad = getattr(target.module.config, "pad_token_id", None) if pad is None else pad
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in batch]
    if pad is None or not all(isinstance(row, list) and row for row in rows):
        return
    if len({len(row) for row in rows}) > 1 or any(isinstance(row[0], Mapping) for row in rows):
        return
    names_an_end = pad in {*eos_tokens(target, tokenizer), getattr(tokenizer, "bos_token_id", None)}
    for edge in (0, -1):
        padded = [row[edge] == pad for row in rows]
        if any(padded) and not (names_an_end and all(padded)):
            raise DraftwiseError(
                f"prompt {padded.index(True)} {'ends' if edge else 'begins'} with the padding "
                f"token {pad}: pass attention_mask=..., or what the tokenizer returned as it is"
            )


def _checked(name: str, prompt: Prompt, target: CausalModel) -> Prompt:
    ids = prompt.tokens
    if not ids:
        raise DraftwiseError(f"{name} is empty: there is nothing to continue")
    if min(ids) < 0:
        raise DraftwiseError(f"{name} has the token {min(ids)}: token ids are 0 or more")
    if max(ids) >= target.vocab_size:
        raise DraftwiseError(
            f"{name} has the token {max(ids)}, outside the vocabulary of "
            f"{target.vocab_size}: was it made with another tokenizer?"
        )
    if len(ids) >= target.max_positions:
        raise DraftwiseError(
            f"{name} has {len(ids)} tokens, and {target.name} has {target.max_positions} "
            "positions: shorten it"
        )
    return prompt
