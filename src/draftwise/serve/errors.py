"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


_EXPECTED: Mapping[str, str] = {
    "prompt": "a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "a string, or a list of strings",
    "messages": 'a list of messages such as {"role": "user", "content": "Hello"}',
}
"""What fields of several types take: their own errors would name one of the types."""
_NOT_SERVED: Mapping[str, str] = {
    "best_of": "one candidate is drawn for each answer; use n for several answers",
    "suffix": "text is continued, not filled in; leave the field out",
    "functions": "this is the old form of tools; use tools and tool_choice",
    "function_call": "this is the old form of tool_choice; use tools and tool_choice",
    "min_tokens": "no least length is enforced; use ignore_eos with max_tokens",
    "modalities": "answers are text alone",
}
_FIELD = re.compile(r"[a-z_][a-z0-9_]*|[0-9]+", re.ASCII)


class Refused(Exception):
    """A request that gets no answer: an HTTP status, and what was wrong and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if (status >= 500 or status == 408) and retry_after_s is None:
            # OpenAI's clients would ask again, in vain
            self.headers["x-should-retry"] = "false"


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    type_ = _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def response(refused: Refused) -> JSONResponse:
    body = error_body(refused.status, refused.message, refused.param, refused.code)
    return JSONResponse(body, refused.status, headers=refused.headers)


def no_object() -> Refused:
    return Refused(
        400,
        "the request has no JSON object as its body: send one, "
        "with the header Content-Type: application/json",
    )


def first_wrong(errors: Sequence[Mapping[str, Any]]) -> Refused:
    # of the members of a union, the one that got furthest is the one that was meant
    error = max(errors, key=_furthest)
    *above, last = [str(part)[:100] for part in error["loc"]] or [""]
    # unions put the names of their members into the path: they say nothing to a client
    path = [part for part in above if _FIELD.fullmatch(part) and part != "query"]
    message = str(error["msg"]).removeprefix("Value error, ")
    is_unknown = error["type"] == "extra_forbidden"  # whatever a client calls it
    if is_unknown or _FIELD.fullmatch(last):
        path.append(last)
    name = ".".join(path)
    if is_unknown:
        message = f"the field {name!r} is not honoured here: leave it out"
        if len(path) == 1 and name in _NOT_SERVED:
            message = f"{name}: {_NOT_SERVED[name]}"
    elif name in _EXPECTED and str(error["type"]).endswith("_type"):
        message = f"{name}: write {_EXPECTED[name]}"
    elif name:
        message = f"{name}: {message}"
    return Refused(400, message, param=name or None)


def _furthest(error: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """What is of the right type is nearer to what was meant than what is not."""
    kind = str(error["type"])
    return kind == "extra_forbidden", not kind.endswith("_type"), len(error["loc"])
