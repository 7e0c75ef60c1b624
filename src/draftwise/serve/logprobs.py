"""Log-probabilities as both endpoints write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwise.serve.codec import Codec
from draftwise.serve.protocol import Logprob

_LEAST = -9999.0
"""What stands for minus infinity, which JSON does not have (as OpenAI and vLLM do)."""


def chat_logprobs(found: Sequence[Logprob], codec: Codec) -> dict[str, Any]:
    """``logprobs`` of a chat's choice."""
    content = [
        {
            **_entry(one.token, one.logprob, codec),
            "top_logprobs": [_entry(token, logprob, codec) for token, logprob in one.top],
        }
        for one in found
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[int], found: Sequence[Logprob | None], codec: Codec, offset: int
) -> dict[str, Any]:
    """``logprobs`` of a completion's choice; the first of an echoed prompt has none.

    offset: characters of the text before these tokens; below 0 where the first are not in it.
    """
    texts = [codec.text_of(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(max(0, offset))
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if one is None else _finite(one.logprob) for one in found],
        "top_logprobs": [None if one is None else _by_text(one, codec) for one in found],
        "text_offset": offsets,
    }


def _entry(token: int, logprob: float, codec: Codec) -> dict[str, Any]:
    raw = list(codec.bytes_of(token))
    return {"token": codec.text_of(token), "logprob": _finite(logprob), "bytes": raw}


def _by_text(one: Logprob, codec: Codec) -> dict[str, float]:
    """The likeliest tokens and the chosen one; of tokens with one text the likelier counts."""
    found: dict[str, float] = {}
    for token, logprob in [*one.top, (one.token, one.logprob)]:
        text = codec.text_of(token)
        found[text] = max(_finite(logprob), found.get(text, _LEAST))
    return found


def _finite(logprob: float) -> float:
    return max(float(logprob), _LEAST)
