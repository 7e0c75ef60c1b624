"""Options of a server (``--additional-config '{"draftwise": {...}}'``) and of a request.

All are optional.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from draftwise.checks import known, whole
from draftwise.errors import BadValue, DraftwiseError, shown
from draftwise.files import STATE_BYTES, local_path, read_text, strict_json

MAX_DRAFT = 128
"""The longest draft that vLLM's rejection sampler supports, in tokens."""
MOST_TENANTS = 65_536
"""Maximum number of tenants remembered; a forgotten tenant counts as a new one."""
RETRIEVAL, MODEL = "retrieval", "model"
DRAFTERS = (RETRIEVAL, MODEL)
"""Names of drafters: retrieval from texts, and the drafter of the server's speculative config."""


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """Options of one vLLM server.

    drafters: enabled drafters; ``model`` needs a speculative config. max_draft: maximum tokens of a
    draft, 1 to 128; a speculative config's ``num_speculative_tokens`` is a further limit.
    history_tokens: recent tokens of finished answers that retrieval searches; 0: it searches only
    the request's text. state: state file; ``auto`` = in vLLM's cache folder, by device, model and
    settings; None = no file. costs: cost table to start from if there is no state.
    """

    drafters: tuple[str, ...] = DRAFTERS
    max_draft: int = 16
    history_tokens: int = 1 << 18
    state: str | None = "auto"
    costs: str | None = None


def parse_options(given: Any) -> PluginOptions:
    """Parse the value of ``additional_config["draftwise"]``; None = all defaults.

    Raises DraftwiseError for an unknown name, listing the valid ones, a value of the wrong type, or
    an unusable cost table.

    >>> parse_options({"max_draft": 8}).max_draft
    8
    """
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise DraftwiseError(
            f"additional_config['draftwise'] is {given!r}: write an object, such as "
            '{"draftwise": {"max_draft": 8}}'
        )
    for name in given:
        options = [field.name for field in fields(PluginOptions)]
        known("option of additional_config['draftwise']", name, options, "options")
    values = dict(given)
    if "drafters" in given:
        values["drafters"] = drafters_of(given["drafters"])
    for name, least, most in (("max_draft", 1, MAX_DRAFT), ("history_tokens", 0, 1 << 30)):
        if name in given:
            values[name] = whole(name, given[name], least, most)
    if not isinstance(values.get("state", ""), str | None) or values.get("state") == "":
        raise BadValue("state", values["state"], "a file's path, 'auto' or null")
    if values.get("costs") is not None:
        read_costs(values["costs"])
    return PluginOptions(**values)


def read_costs(given: Any) -> tuple[dict[int, float], tuple[float, float] | None]:
    """Read the arguments of ``StepCosts.load_table`` from a file; DraftwiseError if it fails.

    The file is a cost table of ``draftwise replay --costs``: ``target_s`` maps a number of requests
    to the seconds of steps of 1, 2, .. tokens per request (a list is for one request), and
    ``draft_s["model"]`` is the seconds per token of the model drafter.
    """
    seconds: dict[int, float] = {}
    try:
        found = strict_json(read_text(local_path(given), STATE_BYTES))
        target_s, draft_s = found["target_s"], found.get("draft_s", {}).get(MODEL)
        for num, curve in (target_s if isinstance(target_s, dict) else {1: target_s}).items():
            for width, step_s in enumerate(curve, 1):
                tokens = int(num) * width
                seconds[tokens] = max(float(step_s), seconds.get(tokens, 0.0))
        drafting = None if draft_s is None else (0.0, float(draft_s))
        # the checks of load_table, whose import would load numba before vLLM's worker is created
        prices = [seconds[tokens] for tokens in sorted(seconds)]
        if prices != sorted(prices) or not 0 < min(prices) <= max(prices) < math.inf:
            raise ValueError("seconds must be above 0 and must not fall with the number of tokens")
        if min(seconds) < 1:
            raise ValueError("a number of requests must be at least 1")
    except (OSError, OverflowError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DraftwiseError(
            f"costs {shown(given)} cannot be used ({error}): write a file's path, and in the file "
            'seconds, such as {"target_s": {"1": [0.006, 0.0061]}, "draft_s": {"model": 0.0004}}'
        ) from error
    return seconds, drafting


def drafters_of(given: Any) -> tuple[str, ...]:
    """Parse the names of drafters, a list or a comma-separated string."""
    names = given.replace(" ", "").split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names or any(n not in DRAFTERS for n in names):
        raise BadValue("drafters", given, f"a list of at least one of {', '.join(DRAFTERS)}")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Wishes:
    """Options of one request, from ``extra_args`` (over HTTP: ``vllm_xargs``).

    speculation: whether it drafts. drafters: allowed drafters. max_draft: maximum tokens of a
    draft. label: name of its counters. private: whether other requests never draft from its answer.
    """

    speculation: bool = True
    drafters: tuple[str, ...] = DRAFTERS
    max_draft: int = MAX_DRAFT
    label: str = ""
    private: bool = False


def wishes_of(extra_args: Mapping[str, Any] | None) -> Wishes:
    """Parse a request's ``extra_args``; keys of other components are ignored.

    Raises DraftwiseError that names the field. 0 and 1 are accepted as booleans, which
    ``vllm_xargs`` lacks.

    >>> wishes_of({"max_draft": 4, "private": 1, "kv_transfer_params": {}}).max_draft
    4
    """
    given = extra_args or {}
    values: dict[str, Any] = {
        name: _flag(name, given[name]) for name in ("speculation", "private") if name in given
    }
    if "drafters" in given:
        values["drafters"] = drafters_of(given["drafters"])
    if "max_draft" in given:
        values["max_draft"] = whole("max_draft", given["max_draft"], 0, MAX_DRAFT)
    if "label" in given:
        values["label"] = label = given["label"]
        if not isinstance(label, str) or not 1 <= len(label) <= 64:
            raise BadValue("label", label, "1 to 64 characters")
    return Wishes(**values)


def _flag(name: str, given: Any) -> bool:
    word = given.lower() if isinstance(given, str) else given
    for value, words in ((True, (1, "1", "true")), (False, (0, "0", "false"))):
        if word in words:
            return value
    raise BadValue(name, given, "true or false (or 1 or 0)")


class Tenants:
    """Numbers tenants by ``cache_salt`` and LoRA adapter; retrieval stays within one tenant.

    Requests with neither share one number. vLLM does not pass API keys to its engine, so users are
    separated by ``cache_salt``, as in vLLM's prefix cache. State: the latest MOST_TENANTS numbers;
    ``forget`` assigns new ones, so that no earlier text is proposed again.
    """

    def __init__(self) -> None:
        self._numbers = OrderedDict[tuple[Any, ...], int]()
        self._next = 0

    def number(self, request: Any) -> int:
        """The tenant's number, 0 to 2**31 - 2."""
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
