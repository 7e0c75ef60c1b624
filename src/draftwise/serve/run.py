"""Starts a server for a ``Speculator``, and shuts it down."""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

import torch
import uvicorn
from prometheus_client import disable_created_metrics

from draftwise.engine.deciders import SharedPolicyState
from draftwise.engine.engine import Engine
from draftwise.engine.options import eos_tokens
from draftwise.engine.outputs import Round, TraceWriter
from draftwise.serve.app import make_app
from draftwise.serve.constraint import Grammars
from draftwise.serve.metrics import Metrics
from draftwise.serve.parse import Codec, RequestParser
from draftwise.serve.service import Service
from draftwise.serve.settings import ServerSettings, listen
from draftwise.serve.worker import Observer, Worker
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError, SamplingParams

_LOG = logging.getLogger(__name__)
_LAST_WORDS_S = 5  # to send final errors to clients, after the other grace periods
STUCK = 70  # exit code if a thread does not end after a signal (EX_SOFTWARE of sysexits.h)


class _Traces(Observer):
    """Writes round records to a file, without tokens, which are the clients' data."""

    def __init__(self, path: Path) -> None:
        self._writer = TraceWriter(path, with_text=False)

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None:
        for round_ in rounds:
            self._writer.write(round_)


class StateSaver(Observer):
    """Persists the learnt state in a file; a failing disk never fails a request.

    every_s: seconds between two writes while requests run, the maximum that a crash loses. Called
    in the engine's thread, between rounds.
    """

    def __init__(
        self, memory: SharedPolicyState, path: Path, every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._memory, self._path, self._every_s, self._clock = memory, path, every_s, clock
        self._written_s = clock()

    def load(self) -> None:
        """Load the file; a damaged one is renamed. DraftwiseError for another policy's; OSError."""
        if warning := self._memory.load_or_set_aside(self._path):
            _LOG.warning(warning)

    def saw_rounds(self, rounds: Sequence[Round], engine: Engine) -> None:
        if rounds and self._clock() - self._written_s >= self._every_s:
            self.write()

    def write(self) -> None:
        self._written_s = self._clock()
        try:
            self._memory.save(self._path)
        except OSError as error:
            _LOG.warning("what was learnt could not be written: %s", error)

    saw_the_end = write


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(module: Any) -> dict[str, Any]:
    """What a checkpoint's ``generation_config.json`` says of sampling, as in vLLM and SGLang."""
    config = getattr(module, "generation_config", None)
    given = {} if config is None else config.to_diff_dict()
    return {name: given[name] for name in _SAMPLING if given.get(name) is not None}


def _defaults(module: Any, source: str) -> SamplingParams:
    found = sampling_defaults(module) if source == "auto" else {}
    try:
        defaults = SamplingParams(**{"temperature": 1.0, **found})
    except DraftwiseError as error:
        raise DraftwiseError(
            f"generation_config.json: {error}; --generation-config none ignores the file"
        ) from None
    if found:
        said = ", ".join(f"{name} {value:g}" for name, value in found.items())
        _LOG.info(
            "requests that say nothing else are sampled as the checkpoint's "
            "generation_config.json says: %s (--generation-config none: temperature 1)", said,
        )  # fmt: skip
    return defaults


def make_service(speculator: Speculator, settings: ServerSettings) -> Service:
    """The service without its network. Errors: DraftwiseError for an unsuitable target or state."""
    target, tokenizer = speculator.target, speculator.tokenizer
    codec = Codec(tokenizer, target.vocab_size, target.max_positions, settings.chat_template)
    eos = frozenset(eos_tokens(target, tokenizer))
    defaults = _defaults(target.module, settings.generation_config)
    models = settings.models or (target.name,)
    metrics = Metrics(models[0], settings.max_rows, settings.max_open, speculator.plans)
    observers: list[Observer] = [metrics]
    if settings.state is not None:
        state = StateSaver(speculator.memory, settings.state, settings.state_every_s)
        state.load()
        observers.append(state)
    if settings.trace is not None:
        observers.append(_Traces(settings.trace))
    worker = Worker(
        speculator.engine(max_rows=settings.max_rows, max_bytes=settings.max_bytes),
        speculator.request, max_open=settings.max_open, observers=observers,
    )  # fmt: skip
    return Service(
        worker=worker, metrics=metrics, models=models, created=int(time.time()),
        parser=RequestParser(
            codec, Grammars(tokenizer, target.vocab_size, eos), eos, settings, defaults
        ),
        num_spec_tokens=max(plan.num_tokens for plan in speculator.plans),
        about={
            "model": models[0],
            "drafters": [drafter.name for drafter in speculator.drafters],
            "has_template": codec.has_template,
            "examples": dict(settings.examples),
        },
        patience_s=settings.patience_s, stuck_s=settings.stuck_s,
    )  # fmt: skip


def serve(speculator: Speculator, settings: ServerSettings, listener: socket.socket) -> None:
    """Serve until a signal arrives.

    listener: from ``bind``. Errors: DraftwiseError. If the engine's thread does not end, the
    process exits with ``STUCK``.
    """
    disable_created_metrics()  # a line for each counter, which no dashboard shows
    service = make_service(speculator, settings)
    # exempt the models' objects from garbage collection: scanning them while a large body is parsed
    # makes parsing seven times as slow, and all other requests wait
    gc.collect()
    gc.freeze()
    listen(listener)
    server = Server(make_app(service, settings), service, settings)
    server.run([listener])
    if service.worker.is_alive:
        os._exit(STUCK)


class Server(uvicorn.Server):
    """uvicorn with other signals: the first lets requests finish, the second ends at once.

    New requests get status 503 meanwhile: the server listens until the last answer is complete.
    """

    def __init__(self, app: Any, service: Service, settings: ServerSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, timeout_keep_alive=30,
                timeout_graceful_shutdown=_LAST_WORDS_S, h11_max_incomplete_event_size=64 * 1024,
            )
        )  # fmt: skip
        self._service, self._settings = service, settings
        self._is_ending, self._is_over = False, Event()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            self._is_over.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        about = self._service.about
        for name in map(socket.socket.getsockname, sockets or ()):
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            facts = {"page": f"http://{host}:{name[1]}/", "api": f"http://{host}:{name[1]}/v1"}
            _LOG.info("serving %s", self._service.models[0], extra={"facts": facts})
        threads, cores = torch.get_num_threads(), os.cpu_count()
        _LOG.info(
            "%s of %s cores (--threads N); drafters: %s. Drafts pay most on edits, quotations and "
            "repeated text, and least on short questions; the page and /metrics show the speed",
            threads, cores, ", ".join(about["drafters"]) or "none",
        )  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._is_ending:
            os._exit(128 + sig)
        self._is_ending = True
        self._service.worker.close()
        Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        """End unfinished answers with an error after the grace period, and let the process exit."""
        self._service.worker.stop(self._settings.drain_s)
        self.should_exit = True
        if self.started and not self._is_over.wait(2 * _LAST_WORDS_S):
            _LOG.error("the server did not end in time: the process ends now")
            os._exit(STUCK)
