"""Prompts and seeds of callers, converted to token ids and random streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.random import SeedSequence

from draftwise import chat, checks
from draftwise.chat import Prompt
from draftwise.engine.options import RequestParams
from draftwise.engine.text import Ending
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError

_FORMS = (
    "give text, token ids, messages ({'role': ..., 'content': ...}), what a tokenizer returns, or "
    "a list of these"
)


def is_single(prompts: Any) -> bool:
    """Whether this is one prompt (text, ids, a conversation) rather than a batch of them.

    Two dimensions are a batch, as in transformers, also where it has one row.
    """
    if isinstance(prompts, Mapping):
        return is_single(prompts.get("input_ids", ""))
    if hasattr(prompts, "ndim"):
        return bool(prompts.ndim == 1)
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

    attention_mask: same shape as ``prompts``, 0 = padding, which is removed; a tokenizer's output
    has its own. Raises DraftwiseError for no prompt, an empty one, text or messages without a
    tokenizer or template, ids that are not integers or outside the vocabulary, padding without a
    mask, or a prompt that leaves no position for an answer. Messages name prompts by index.
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
    """A random stream for each of ``each`` answers to each of ``num`` prompts.

    seed: one for all prompts, or one per prompt; a prompt's own seed gives the same streams in any
    batch. Raises DraftwiseError for seeds that are not integers from 0, or not one per prompt.
    """
    if isinstance(seed, SeedSequence):
        return iter(seed.spawn(num * each))
    if isinstance(seed, Integral):
        return iter(SeedSequence(checks.seed("seed", seed)).spawn(num * each))
    seeds = [checks.seed("seed", one) for one in checks.wholes("seed", seed)]
    if len(seeds) != num:
        raise DraftwiseError(f"{len(seeds)} seeds for {num} prompts: give one, or one each")
    return (stream for own in seeds for stream in SeedSequence(own).spawn(each))


def eos_tokens(target: CausalModel, tokenizer: Any) -> Sequence[int]:
    """The end-of-text tokens of the model's generation config, or of the tokenizer."""
    config = getattr(target.module, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    if eos is None:
        eos = getattr(tokenizer, "eos_token_id", None)
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


def _encode(name: str, prompt: Any, tokenizer: Any, max_positions: int) -> Prompt:
    """Encode one prompt of any form; its tokens are not checked yet."""
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
    """Token ids; DraftwiseError for anything but integers."""
    tokens = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(tokens, (bytes, bytearray)):
        raise DraftwiseError(f"{name} is bytes: decode them to text, or give token ids")
    if not isinstance(tokens, Sequence):
        raise DraftwiseError(f"{name} is of the type {type(prompt).__name__}: {_FORMS}")
    numbers = [token.item() if hasattr(token, "item") else token for token in tokens]
    wrong = [n for n in numbers if not isinstance(n, Integral) or isinstance(n, bool)]
    if wrong:
        raise DraftwiseError(f"{name} has {wrong[0]!r} among its token ids: {_FORMS}")
    return [int(number) for number in numbers]


def _unpadded(name: str, ids: Any, mask: Any) -> Any:
    """The tokens that a mask keeps; DraftwiseError for padding inside the text."""
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
    """Raise DraftwiseError for rows that seem padded but have no attention mask."""
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
    """Return the prompt; DraftwiseError if the target cannot continue it."""
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


def ending_of(text: Prompt, models: tuple[CausalModel, Any], params: RequestParams) -> Ending:
    """The ending of an answer to a prompt; models: the target and its tokenizer.

    Raises DraftwiseError for stop strings without a tokenizer.
    """
    target, tokenizer = models
    if params.stop and tokenizer is None:
        raise DraftwiseError("stop strings need a tokenizer: pass tokenizer=... when loading")
    own = {*eos_tokens(target, tokenizer), *text.turn_ends}
    eos = own if params.eos_token_ids is None else params.eos_token_ids
    ends = frozenset() if params.ignore_eos else frozenset(eos)
    room = target.max_positions - len(text.tokens)
    return Ending(min(params.max_new_tokens, room), ends, params.stop, params.stop_when)
