"""The HTTP application: routes, request bodies and responses."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from draftwise import __version__
from draftwise.colours import PALETTE
from draftwise.serve import responses, schemas
from draftwise.serve.items import ResponsesReply, ResponsesRequest
from draftwise.serve.middleware import Middleware
from draftwise.serve.responses import AnswerStreams, ChatReply, CompletionReply, EventStream, Reply
from draftwise.serve.schemas import ChatRequest, CompletionRequest, Refused
from draftwise.serve.service import LARGE_BODY, Service
from draftwise.serve.settings import ServerSettings
from draftwise.serve.worker import Busy, Closing
from draftwise.types import DraftwiseError

_Made = TypeVar("_Made")
_Body = TypeVar("_Body", bound=schemas.ModelRequest)
_TOO_DEEP = "the request is nested too deeply"


def make_app(service: Service, settings: ServerSettings) -> ASGIApp:
    service.metrics.watch(service.worker)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await asyncio.to_thread(service.worker.stop, 0.0)
        service.heavy.close()

    app = FastAPI(
        title="draftwise", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    for kind in (Refused, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    _add_api(app, service)
    _add_views(app, service)
    # routes read their bodies by ``_read``, so the schemas are added here
    bodies = (
        ChatRequest, CompletionRequest, ResponsesRequest, schemas.TokenizeRequest,
        schemas.DetokenizeRequest,
    )  # fmt: skip
    _, found = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    app.openapi().setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
    inner = Middleware(app, service, settings)
    if not settings.origins:
        return inner
    # outermost: preflight requests have no key, and web pages must be able to read errors
    return CORSMiddleware(
        inner,
        allow_origins=settings.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Retry-After"],
    )


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        error = schemas.first_wrong(error.errors())
    elif isinstance(error, HTTPException):
        message = str(error.detail)
        if error.status_code == 404:
            path = request.url.path[:100]
            message = f"{path} is not served here; GET /openapi.json lists what is"
        answer = Refused(error.status_code, message).response
        answer.headers.update(error.headers or {})
        return answer
    elif not isinstance(error, Refused):
        error = Refused(500, "an error of the server's own: its log has more")
    return error.response


def _add_api(app: FastAPI, service: Service) -> None:
    codec = service.parser.codec

    @app.post("/v1/chat/completions", openapi_extra=_takes(ChatRequest))
    async def chat(request: Request) -> Response:
        """The next turn of a conversation."""
        body, requests = await _read(service, request, ChatRequest, service.parser.chat)
        return await _answer(service, request, ChatReply(service, body, requests))

    @app.post("/v1/responses", openapi_extra=_takes(ResponsesRequest))
    async def respond(request: Request) -> Response:
        """The next turn of a conversation, by the names of OpenAI's newer API."""
        body, requests = await _read(service, request, ResponsesRequest, service.parser.chat)
        return await _answer(service, request, ResponsesReply(service, body, requests))

    @app.post("/v1/completions", openapi_extra=_takes(CompletionRequest))
    async def complete(request: Request) -> Response:
        """Continuations of a text."""
        body, requests = await _read(service, request, CompletionRequest, service.parser.completion)
        return await _answer(service, request, CompletionReply(service, body, requests))

    @app.get("/v1/models/", include_in_schema=False)
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the served models."""
        return {"object": "list", "data": [_model(service, name) for name in service.models]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Describe one served model."""
        _check_model(service, name)
        return _model(service, name)

    @app.post("/tokenize", openapi_extra=_takes(schemas.TokenizeRequest))
    async def tokenize(request: Request) -> dict[str, Any]:
        """The token ids of a text, or of a conversation as the model reads it."""
        body, tokens = await _read(service, request, schemas.TokenizeRequest, codec.tokens)
        texts = [codec.text_of(token) for token in tokens] if body.return_token_strs else None
        sizes = {"count": len(tokens), "max_model_len": codec.max_positions}
        return {**sizes, "tokens": tokens, "token_strs": texts}

    @app.post("/detokenize", openapi_extra=_takes(schemas.DetokenizeRequest))
    async def detokenize(request: Request) -> dict[str, str]:
        """The text of token ids."""
        _, text = await _read(service, request, schemas.DetokenizeRequest, codec.text)
        return {"prompt": text}


def _add_views(app: FastAPI, service: Service) -> None:
    @app.get("/ping")  # as load balancers of SageMaker and TGI ask
    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while answers can be given; 503 where the engine has ended, ends or is stuck."""
        worker = service.worker
        status = "ok"
        if not worker.is_alive:
            status = "the engine's thread has ended"
        elif worker.is_closing:
            status = "the server is going down"
        elif worker.step_s > service.stuck_s:
            status = f"a step has taken more than {service.stuck_s:g} s"
        times = {"step_s": round(worker.step_s, 3), "since_step_s": round(worker.since_step_s, 3)}
        requests = {"running": worker.engine.num_running, "waiting": worker.num_waiting}
        body = {"status": status, **times, **requests}
        later = {"Retry-After": "5"} if worker.is_closing else None
        return JSONResponse(body, 200 if status == "ok" else 503, headers=later)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of draftwise."""
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        """For the live page."""
        worker = service.worker
        queue = {"running": worker.engine.num_running, "waiting": worker.num_waiting}
        return service.about | service.metrics.totals() | queue

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        """The live page."""
        return HTMLResponse(PAGE.text, headers={"Content-Security-Policy": PAGE.policy})


def _takes(body: type[BaseModel]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _read(
    service: Service, request: Request, kind: type[_Body], make: Callable[[_Body], _Made]
) -> tuple[_Body, _Made]:
    """Parse the request's body, and apply ``make`` to it in a thread, so that no other request
    waits. Raises Refused, also for errors of ``make``.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(json|.*\+json)", given):
        raise schemas.no_object()
    raw = await request.body()
    run = service.heavy.run
    request.state.is_heavy = is_heavy = len(raw) > LARGE_BODY
    parsed = await run(_parsed, kind, raw) if is_heavy else _parsed(kind, raw)
    if isinstance(parsed, Refused):
        raise parsed
    _check_model(service, parsed.model)
    request.state.is_heavy = is_heavy = is_heavy or getattr(parsed, "has_form", False)
    try:
        return parsed, await (run(make, parsed) if is_heavy else asyncio.to_thread(make, parsed))
    except (DraftwiseError, ValueError) as error:
        message = str(error)
        name = message.partition(":")[0]
        refused = Refused(400, message, param=name if name.isidentifier() else None)
    except RecursionError:  # templates, grammars and JSON parsers all recurse into a client's input
        refused = Refused(400, _TOO_DEEP)
    raise refused  # outside of ``except``: the error's traceback would keep the body in memory


def _parsed(kind: type[_Body], raw: bytes) -> _Body | Refused:
    """A parsed body, or its refusal: an exception's traceback would keep the body's items."""
    try:
        with uncollected():
            data = json.loads(raw)
            return schemas.no_object() if not isinstance(data, dict) else kind.model_validate(data)
    except ValidationError as error:
        return schemas.first_wrong(error.errors(include_url=False, include_input=False))
    except RecursionError:
        return Refused(400, _TOO_DEEP)
    except ValueError as error:
        return schemas.no_object() if not raw else Refused(400, f"the body is not JSON: {error}")


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: parsing creates no cycles, and runs three times as fast."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _answer(service: Service, request: Request, reply: Reply) -> Response:
    try:
        answers = AnswerStreams(service.worker, reply.requests)
    except Busy as busy:
        raise Refused(429, str(busy), retry_after_s=busy.retry_after_s) from None
    except Closing:
        why = "the server is going down: ask another, or ask again later"
        raise Refused(503, why, retry_after_s=5) from None
    facts = request.state.facts
    facts |= {"answer": reply.id, "prompt_tokens": reply.num_prompt_tokens}
    parts = responses.events(answers, reply)
    # a stream waits for its first event: an earlier error gets an HTTP status
    work = anext(parts) if reply.is_stream else responses.gather(answers, reply)
    found = None
    try:
        found = await responses.until_gone(work, request.receive)
    finally:
        if found is None:
            answers.close()
    if reply.is_stream and found is not None:
        return EventStream(found, parts, service.patience_s, answers.close)
    if not reply.is_stream:
        facts["tokens"] = reply.num_tokens
    return Response(status_code=499) if found is None else JSONResponse(found)


def _check_model(service: Service, name: str | None) -> None:
    if name is not None and name not in service.models:
        message = f"the model {name!r} is not served here; there is: {', '.join(service.models)}"
        raise Refused(404, message, param="model", code="model_not_found")


def _model(service: Service, name: str) -> dict[str, Any]:
    about = {"id": name, "object": "model", "created": service.created, "owned_by": "draftwise"}
    return {**about, "max_model_len": service.parser.codec.max_positions}


class Page(NamedTuple):
    """policy: a Content-Security-Policy that lets the page run and nothing else."""

    text: str
    policy: str


def _load() -> Page:
    text = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    text = text.replace('"{{palette}}"', json.dumps(PALETTE))
    rules = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'"
    rules += "; frame-ancestors 'none'"
    for tag in ("script", "style"):
        codes = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(c.encode()).digest()).decode() for c in codes]
        rules += f"; {tag}-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
    return Page(text, rules)


PAGE = _load()
