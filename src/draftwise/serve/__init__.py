"""An OpenAI-compatible server: HTTP handlers submit requests to a thread that owns the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.serve.app import PAGE, make_app, uncollected
    from draftwise.serve.calls import CallParser, CallTags, calls_schema, free_grammar
    from draftwise.serve.constraint import Grammars, grammar_of, json_grammar
    from draftwise.serve.metrics import Metrics
    from draftwise.serve.parse import Codec, RequestParser
    from draftwise.serve.responses import EventStream, num_predicted
    from draftwise.serve.run import Server, StateSaver, make_service
    from draftwise.serve.schemas import (
        MAX_BIASES, MAX_GRAMMAR_CHARS, MAX_KEYS, MAX_PLANS, ChatRequest, CompletionRequest,
        NamedTool, ResponseFormat, StructuredOutputs, Tool,
    )
    from draftwise.serve.service import LARGE_BODY, Service, give_back
    from draftwise.serve.settings import ServerSettings, bind, hosts_of
    from draftwise.serve.settings import listen as listen_on
    from draftwise.serve.worker import (
        Busy, Closing, GenerationRequest, Observer, RequestHandle, Worker,
    )

__getattr__, __dir__ = exports(__name__)
