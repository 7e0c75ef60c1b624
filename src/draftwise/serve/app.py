"""The HTTP application: routes, and how bodies become answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from draftwise import __version__
from draftwise.serve.answers import Answers, EventStream, events, gather, until_gone
from draftwise.serve.asks import Asker, Wanted
from draftwise.serve.constraint import Grammars
from draftwise.serve.errors import Refused, first_wrong, response
from draftwise.serve.forms import ChatForm, CompletionForm
from draftwise.serve.history import History
from draftwise.serve.mailbox import Mailbox
from draftwise.serve.metrics import Metrics
from draftwise.serve.middleware import Middleware
from draftwise.serve.page import PAGE
from draftwise.serve.reply import Envelope, Form, Pieces
from draftwise.serve.wire import (
    ChatRequest,
    Common,
    CompletionRequest,
    DetokenizeRequest,
    StreamOptions,
    TokenizeRequest,
)
from draftwise.serve.worker import Busy, Closing, Worker
from draftwise.types import DraftwiseError

_Made = TypeVar("_Made")
_DRAINING = "the server is going down: ask another, or ask again later"


@dataclass(frozen=True, slots=True)
class Service:
    """Everything that routes use. models: the names that requests may say, the first is shown."""

    worker: Worker
    asker: Asker
    grammars: Grammars
    tokenizer: Any
    metrics: Metrics
    history: History
    models: Sequence[str]
    num_spec_tokens: int
    about: dict[str, Any]
    created: int
    patience_s: float = 60.0
    stuck_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Gate:
    """Who is let in, and bounds of what they send.

    hosts: names by which the server may be addressed; empty = any. origins: of web pages that may
    read answers; empty = the server's own page alone.
    """

    keys: Sequence[str] = ()
    max_body: int = 4 * 2**20
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()


def make_app(service: Service, gate: Gate) -> ASGIApp:
    """The application, behind its middleware."""
    service.metrics.watch(service.worker)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await asyncio.to_thread(service.worker.stop, 0.0)

    app = FastAPI(
        title="draftwise", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    _handle_errors(app)
    _add_api(app, service)
    _add_tokens(app, service)
    _add_views(app, service)
    inner = Middleware(app, gate.keys, gate.max_body, service.metrics.saw_response, gate.hosts)
    if not gate.origins:
        return inner
    return CORSMiddleware(  # outermost: a page's first request brings no key, and it reads errors
        inner,
        allow_origins=gate.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Retry-After"],
    )


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return response(error)

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> JSONResponse:
        return response(first_wrong(error.errors()))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        answer = response(Refused(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        return response(Refused(500, "an error of the server's own: its log has more"))


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation."""
        wanted = await _wanted(service, body, service.asker.chat)
        num = len(wanted.asks)
        form = ChatForm(body, service.asker.codec, num, _pieces(service, body, num))
        return await _answer(service, body, wanted, form, request)

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """How a text goes on."""
        wanted = await _wanted(service, body, service.asker.completion)
        num, codec = len(wanted.asks), service.asker.codec
        echoes: list[tuple[str, Sequence[int]]] = []
        if body.echo:
            for given, prompt in zip(body.prompts, wanted.prompts, strict=True):
                text = given if isinstance(given, str) else service.tokenizer.decode(given)
                echoes += [(text, prompt.tokens)] * body.n
        form = CompletionForm(body, codec, echoes, _pieces(service, body, num))
        return await _answer(service, body, wanted, form, request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """What is served."""
        return {"object": "list", "data": [_model(service, name) for name in service.models]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One of the names."""
        _check_model(service, name)
        return _model(service, name)


def _add_tokens(app: FastAPI, service: Service) -> None:
    codec = service.asker.codec

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """The token ids of a text, or of a conversation as the model reads it."""
        if body.model is not None:
            _check_model(service, body.model)
        tokens = await _checked(codec.tokens, body)
        texts = [codec.text_of(token) for token in tokens] if body.return_token_strs else None
        return {
            "count": len(tokens),
            "max_model_len": codec.max_positions,
            "tokens": tokens,
            "token_strs": texts,
        }

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """The text of token ids."""
        if body.model is not None:
            _check_model(service, body.model)
        return {"prompt": await _checked(codec.text, body.tokens)}


def _add_views(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while answers can be given; 503 where the engine's thread has ended or is stuck."""
        worker = service.worker
        status = "ok"
        if not worker.is_alive:
            status = "the engine's thread has ended"
        elif worker.step_s > service.stuck_s:
            status = f"a step has taken more than {service.stuck_s:g} s"
        body = {
            "status": status,
            "step_s": round(worker.step_s, 3),
            "since_step_s": round(worker.since_step_s, 3),
            "running": worker.num_running,
            "waiting": worker.num_waiting,
        }
        return JSONResponse(body, 200 if status == "ok" else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """Of draftwise."""
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/stats")
    async def stats(since: int = 0) -> dict[str, Any]:
        """For the live page."""
        return {**service.about, **service.history.as_json(since)}

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        """The live page."""
        headers = {"Content-Security-Policy": PAGE.policy}
        return HTMLResponse(PAGE.text, headers=headers)


async def _wanted(service: Service, body: Any, ask: Callable[[Any, Grammars], Wanted]) -> Wanted:
    """What the engine is asked for; long prompts and grammars do not hold up other requests."""
    if body.model is not None:
        _check_model(service, body.model)
    return await _checked(ask, body, service.grammars)


async def _checked(make: Callable[..., _Made], *given: Any) -> _Made:
    """What ``make`` returns, in a thread of its own; what it refuses is the client's error."""
    try:
        return await asyncio.to_thread(make, *given)
    except (DraftwiseError, ValueError) as error:
        message = str(error)
        field = message.partition(":")[0]
        raise Refused(400, message, param=field if field.isidentifier() else None) from None
    except RecursionError:  # templates, grammars and JSON alike walk down what a client nested
        raise Refused(400, "the request is nested too deeply") from None


async def _answer(
    service: Service, body: Common, wanted: Wanted, form: Form, request: Request
) -> Response:
    mailbox = Mailbox(len(wanted.asks))
    try:
        tickets = service.worker.submit(wanted.asks, mailbox.slots)
    except Busy as busy:
        raise Refused(429, str(busy), retry_after_s=busy.retry_after_s) from None
    except Closing:
        raise Refused(503, _DRAINING, retry_after_s=5) from None
    answers = Answers(service.worker, tickets, mailbox)
    envelope = Envelope(
        form, body.model or service.models[0], wanted.num_prompt_tokens, service.num_spec_tokens
    )
    facts = request.scope.get("state", {}).get("facts", {})
    facts |= {"answer": envelope.id, "prompt_tokens": envelope.num_prompt_tokens}
    if body.stream:
        return await _stream(service, body, answers, envelope, request)
    try:
        whole = await until_gone(gather(answers, envelope, len(tickets)), request.receive)
    finally:
        answers.close()
    facts["tokens"] = envelope.num_tokens
    return Response(status_code=499) if whole is None else JSONResponse(whole)


async def _stream(
    service: Service, body: Common, answers: Answers, envelope: Envelope, request: Request
) -> Response:
    """A stream whose first event is there already: what ends before it has a proper status."""
    parts = events(answers, envelope, body.stream_options or StreamOptions())
    try:
        first = await until_gone(anext(parts), request.receive)
    except BaseException:
        answers.close()
        raise
    if first is None:
        answers.close()
        return Response(status_code=499)
    return EventStream(first, parts, service.patience_s, answers.close)


def _pieces(service: Service, body: Common, num: int) -> Pieces | None:
    return Pieces(service.tokenizer, body.stops, num) if body.draftwise.pieces else None


def _check_model(service: Service, name: str) -> None:
    if name not in service.models:
        raise Refused(
            404,
            f"the model {name!r} is not served here; there is: {', '.join(service.models)}",
            param="model",
            code="model_not_found",
        )


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "draftwise",
        "max_model_len": service.asker.codec.max_positions,
    }
