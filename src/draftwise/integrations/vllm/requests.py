"""Per-request control of drafting, and the room for a draft."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from draftwise.errors import DraftwiseError, shown
from draftwise.integrations.vllm.options import DRAFTERS, MAX_DRAFT, drafters_of, whole_number

MAX_LABEL = 64
"""Characters of a label."""
MOST_TENANTS = 65_536
"""Most tenants remembered; a forgotten tenant counts as a new one."""


class Kind(Enum):
    SHARED = "its answer enters the history of its tenant"
    PRIVATE = "drafted for, but its text follows rules of its own: it enters no history"
    PLAIN = "vLLM cannot verify drafts under its parameters"


def kind_of(params: Any, *, is_guided: bool = False, has_text: bool = True) -> Kind:
    """The kind of a request with these ``SamplingParams`` (None = it does not generate).

    vLLM applies min_p and logit_bias to sampled tokens, but not to verified ones. Penalties, bad
    words, allowed tokens and grammars apply to both, but distort the text.

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


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options of one request, in ``extra_args`` (over HTTP: ``vllm_xargs``).

    speculation: whether it drafts. drafters: allowed drafters. max_draft: most tokens of a draft.
    label: the task of its counters. private: its answer is not proposed to other requests.
    """

    speculation: bool = True
    drafters: tuple[str, ...] = DRAFTERS
    max_draft: int = MAX_DRAFT
    label: str = ""
    private: bool = False


def wishes_of(extra_args: Mapping[str, Any] | None) -> Wishes:
    """Parse a request's ``extra_args``; names of other components are ignored.

    Raises DraftwiseError that names the field. ``vllm_xargs`` has no booleans, so 0 and 1 are
    accepted.

    >>> wishes_of({"max_draft": 4, "private": 1, "kv_transfer_params": {}}).max_draft
    4
    """
    given = extra_args or {}
    values: dict[str, Any] = {}
    for name in ("speculation", "private"):
        if name in given:
            values[name] = _flag(name, given[name])
    if "drafters" in given:
        values["drafters"] = drafters_of(given["drafters"])
    if "max_draft" in given:
        values["max_draft"] = whole_number("max_draft", given["max_draft"], 0, MAX_DRAFT)
    if "label" in given:
        values["label"] = label = given["label"]
        if not isinstance(label, str) or not 1 <= len(label) <= MAX_LABEL:
            raise DraftwiseError(f"label is {shown(label)}: it must be 1 to {MAX_LABEL} characters")
    return Wishes(**values)


def _flag(name: str, given: Any) -> bool:
    if isinstance(given, int | float) and given in (0, 1):
        return bool(given)
    words = {"true": True, "false": False, "1": True, "0": False}
    if not isinstance(given, str) or given.lower() not in words:
        raise DraftwiseError(f"{name} is {shown(given)}: it must be true or false (or 1 or 0)")
    return words[given.lower()]


def room_of(request: Any, longest: int, max_model_len: int) -> int:
    """Most tokens of a draft for vLLM's ``Request``; its last token is never drafted."""
    left = request.max_tokens - request.num_output_tokens - 1
    return int(max(0, min(longest, left, max_model_len - request.num_tokens - 1)))


class Tenants:
    """A number for each ``cache_salt`` and LoRA adapter; retrieval searches by that number.

    Requests with neither share one. vLLM does not pass API keys to its engine, so users are
    separated by ``cache_salt``, as in vLLM's prefix cache. State: the latest MOST_TENANTS numbers;
    ``forget`` assigns new ones, so that no earlier text is proposed again.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._next = 0

    def number(self, request: Any) -> int:
        """0 to 2**31 - 2, the same for the same tenant."""
        lora = getattr(request, "lora_request", None)
        adapter = None if lora is None else (lora.lora_name, lora.lora_int_id)
        key = (getattr(request, "cache_salt", None), adapter)
        if key not in self._numbers:
            self._numbers[key] = self._next % (2**31 - 1)
            self._next += 1
            if len(self._numbers) > MOST_TENANTS:
                self._numbers.popitem(last=False)
        self._numbers.move_to_end(key)
        return self._numbers[key]

    def forget(self) -> None:
        self._numbers.clear()
