"""An OpenAI-compatible server: HTTP handlers put requests in, one thread owns the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.serve.app import PAGE as PAGE
    from draftwise.serve.app import Service as Service
    from draftwise.serve.app import make_app as make_app
    from draftwise.serve.constraint import Grammars as Grammars
    from draftwise.serve.constraint import grammar_of as grammar_of
    from draftwise.serve.constraint import json_grammar as json_grammar
    from draftwise.serve.metrics import History as History
    from draftwise.serve.metrics import Metrics as Metrics
    from draftwise.serve.parse import Codec as Codec
    from draftwise.serve.parse import RequestParser as RequestParser
    from draftwise.serve.parse import ToolText as ToolText
    from draftwise.serve.parse import calls_schema as calls_schema
    from draftwise.serve.parse import read_calls as read_calls
    from draftwise.serve.responses import EventStream as EventStream
    from draftwise.serve.run import Server as Server
    from draftwise.serve.run import StateFile as StateFile
    from draftwise.serve.run import check_name as check_name
    from draftwise.serve.run import make_service as make_service
    from draftwise.serve.schemas import MAX_BIASES as MAX_BIASES
    from draftwise.serve.schemas import MAX_GRAMMAR_CHARS as MAX_GRAMMAR_CHARS
    from draftwise.serve.schemas import MAX_KEYS as MAX_KEYS
    from draftwise.serve.schemas import MAX_PLANS as MAX_PLANS
    from draftwise.serve.schemas import ChatRequest as ChatRequest
    from draftwise.serve.schemas import CompletionRequest as CompletionRequest
    from draftwise.serve.schemas import NamedTool as NamedTool
    from draftwise.serve.schemas import ResponseFormat as ResponseFormat
    from draftwise.serve.schemas import StructuredOutputs as StructuredOutputs
    from draftwise.serve.schemas import Tool as Tool
    from draftwise.serve.settings import ServerSettings as ServerSettings
    from draftwise.serve.settings import bind as bind
    from draftwise.serve.settings import hosts_of as hosts_of
    from draftwise.serve.settings import listen as listen_on
    from draftwise.serve.worker import Busy as Busy
    from draftwise.serve.worker import Closing as Closing
    from draftwise.serve.worker import GenerationRequest as GenerationRequest
    from draftwise.serve.worker import Observer as Observer
    from draftwise.serve.worker import RequestHandle as RequestHandle
    from draftwise.serve.worker import Worker as Worker

__getattr__, __dir__ = exports(__name__)
