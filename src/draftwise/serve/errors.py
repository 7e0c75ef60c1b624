"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


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
    """The object of an error, in a response or in a stream."""
    type_ = _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def response(refused: Refused) -> JSONResponse:
    """The response to a request that was refused."""
    body = error_body(refused.status, refused.message, refused.param, refused.code)
    return JSONResponse(body, refused.status, headers=refused.headers)


def first_wrong(errors: Sequence[Mapping[str, Any]]) -> Refused:
    """What a validation found, as one refusal that names the field."""
    # of the members of a union, the one that got furthest is the one that was meant
    forbidden = [error for error in errors if error["type"] == "extra_forbidden"]
    error = forbidden[0] if forbidden else max(errors, key=lambda error: len(error["loc"]))
    path = [str(part) for part in error["loc"] if part != "body"]
    # unions put the names of their members into the path: they say nothing to a client
    name = ".".join(part for part in path if part.isdigit() or part.replace("_", "").islower())
    if error["type"] == "extra_forbidden":
        message = f"the field {name!r} is not honoured here: leave it out"
    elif error["type"] == "json_invalid":
        message = f"the body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}"
    else:
        message = f"{name}: {error['msg']}" if name else str(error["msg"])
    return Refused(400, message, param=name or None)
