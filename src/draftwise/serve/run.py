"""From a ``Speculator`` to a server that listens, and its end."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import uvicorn

from draftwise import registry
from draftwise.engine.prompts import eos_tokens
from draftwise.engine.records import Round
from draftwise.engine.request import Request
from draftwise.presets import preset
from draftwise.serve.app import Gate, Service, make_app
from draftwise.serve.asks import Asker, Limits
from draftwise.serve.codec import Codec
from draftwise.serve.constraint import Grammars
from draftwise.serve.history import History
from draftwise.serve.metrics import Metrics
from draftwise.serve.protocol import Ended, Engine
from draftwise.serve.state import Keeper
from draftwise.serve.worker import Worker
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError

_LOG = logging.getLogger(__name__)
_LAST_WORDS_S = 5
"""Behind the time for answers, the time to tell clients that it is over."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is run, by its options' names. examples: prompts that the page offers."""

    models: Sequence[str] = ("zoo",)
    host: str = "127.0.0.1"
    port: int = 8000
    keys: Sequence[str] = ()
    max_rows: int = 16
    max_bytes: int | None = None
    max_queue: int = 64
    max_body: int = 8 * 2**20
    limits: Limits = field(default_factory=Limits)
    patience_s: float = 60.0
    drain_s: float = 30.0
    state: Path | None = None
    state_every_s: float = 20.0
    examples: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None


class _Learns:
    """An ``Observer`` that tells the keeper of the state when there is something to keep."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None:
        if rounds:
            self._keeper.touch()

    def saw_part(self, num_tokens: int, gap_s: float, is_first: bool) -> None: ...

    def saw_end(self, ended: Ended) -> None: ...


def make_service(speculator: Speculator, settings: Settings) -> Service:
    """Everything but the network. Raises DraftwiseError for a target that cannot be served."""
    target, tokenizer = speculator.target, speculator.tokenizer
    codec = Codec(tokenizer, target.vocab_size, target.max_positions, settings.chat_template)
    eos = frozenset(eos_tokens(target, tokenizer))
    max_open = settings.max_rows + settings.max_queue
    metrics = Metrics(settings.models[0], settings.max_rows, max_open, speculator.plans)
    history = History(speculator.plans)
    keeper = None
    if settings.state is not None:
        keeper = Keeper(speculator.memory, settings.state, settings.state_every_s)
    if keeper is not None:
        keeper.take_up()
    worker = Worker(
        speculator.engine(max_rows=settings.max_rows, max_bytes=settings.max_bytes),
        partial(make_row, speculator),
        max_open=max_open,
        observers=[metrics, history, *([] if keeper is None else [_Learns(keeper)])],
        housekeeping=(lambda: None) if keeper is None else keeper.turn,
        at_end=(lambda: None) if keeper is None else keeper.write,
    )
    return Service(
        worker=worker,
        asker=Asker(codec, eos, replace(settings.limits, max_answers=max_open), check_name),
        grammars=Grammars(tokenizer, target.vocab_size, eos),
        tokenizer=tokenizer,
        metrics=metrics,
        history=history,
        models=settings.models,
        num_spec_tokens=max(plan.num_tokens for plan in speculator.plans),
        about={
            "model": settings.models[0],
            "drafters": [drafter.name for drafter in speculator.drafters],
            "has_template": codec.has_template,
            "examples": dict(settings.examples),
        },
        created=int(time.time()),
        patience_s=settings.patience_s,
    )


def make_row(
    speculator: Speculator,
    prompt: Sequence[int],
    tenant: str = "",
    private: bool = False,
    **options: Any,
) -> Request:
    """The engine's request, kept apart from other tenants' and from all if it is private."""
    made = speculator.request(list(prompt), private=private, **options)
    made.context.tenant, made.context.is_private = tenant, private
    return made


def serve(speculator: Speculator, settings: Settings) -> None:
    """Listen until a signal ends it. Raises DraftwiseError; OSError where it cannot listen."""
    service = make_service(speculator, settings)
    server = Server(make_app(service, Gate(settings.keys, settings.max_body)), service, settings)
    where = f"http://{settings.host}:{settings.port}"
    _LOG.info(
        "serving %s",
        settings.models[0],
        extra={"facts": {"page": f"{where}/", "api": f"{where}/v1"}},
    )
    server.run()


class Server(uvicorn.Server):
    """uvicorn, but for signals: the first lets requests finish, the second ends at once."""

    def __init__(self, app: Any, service: Service, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=round(settings.drain_s) + _LAST_WORDS_S,
                timeout_keep_alive=30,
                h11_max_incomplete_event_size=64 * 1024,
                server_header=False,
            )
        )
        self._worker, self._drain_s = service.worker, settings.drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGINT and SIGTERM."""
        if self.should_exit:
            os._exit(128 + sig)
        self._worker.close()
        # answers that are not done in time end with a proper error, not with their connection
        Thread(target=self._worker.stop, args=(self._drain_s,), daemon=True).start()
        self.should_exit = True


def check_name(kind: str, name: str) -> None:
    """Refuse what a request may not name: unknown presets, and policies' options that are text.

    A text option may name a file, and no request reads one. Raises DraftwiseError.
    """
    if kind == "preset":
        preset(name)
        return
    policy, _, options = name.partition(":")
    made = registry.lookup("policy", registry.POLICIES, policy)
    parameters = inspect.signature(made).parameters
    for option in filter(None, options.split(",")):
        key = option.partition("=")[0]
        if key in parameters and parameters[key].annotation not in {"int", "float", "bool"}:
            raise DraftwiseError(f"policy: requests may not set the option {key!r} of {policy}")
