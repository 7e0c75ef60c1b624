"""What a request's sampling parameters mean for drafting; and how long its draft may be."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Kind(Enum):
    """How a request is served."""

    SHARED = "learns from others and teaches them"
    PRIVATE = "drafts are tried, but its text follows rules of its own: it teaches no other"
    PLAIN = "vLLM cannot verify drafts under its parameters"


def kind_of(params: Any, *, is_guided: bool = False, has_text: bool = True) -> Kind:
    """Of a request with these ``SamplingParams`` (None = it does not generate).

    vLLM applies min_p and logit_bias to what it samples, and not to what it verifies. Penalties,
    bad words, allowed tokens and grammars are applied to both, but bend the text.

    >>> from types import SimpleNamespace
    >>> kind_of(SimpleNamespace(min_p=0.1)).name, kind_of(SimpleNamespace(bad_words=["no"])).name
    ('PLAIN', 'PRIVATE')
    """
    if params is None or not has_text:
        return Kind.PLAIN
    if getattr(params, "min_p", 0.0) or getattr(params, "logit_bias", None):
        return Kind.PLAIN
    bends = (
        getattr(params, "presence_penalty", 0.0) != 0.0,
        getattr(params, "frequency_penalty", 0.0) != 0.0,
        getattr(params, "repetition_penalty", 1.0) != 1.0,
        bool(getattr(params, "bad_words", None)),
        bool(getattr(params, "allowed_token_ids", None)),
        bool(getattr(params, "min_tokens", 0)),
        is_guided,
    )
    return Kind.PRIVATE if any(bends) else Kind.SHARED


def room_of(request: Any, longest: int, max_model_len: int) -> int:
    """Tokens that a draft of vLLM's ``Request`` may have: the last one is the target's own."""
    left = request.max_tokens - request.num_output_tokens - 1
    return int(max(0, min(longest, left, max_model_len - request.num_tokens - 1)))
