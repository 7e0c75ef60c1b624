"""Logs on stderr: a line an event, as JSON for programs or as text for people."""

from __future__ import annotations

import json
import logging
import time
from typing import Any


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        # a client may have put a line break where it likes: none of its words begins a line
        words = " ".join(record.getMessage().split())
        facts = " ".join(f"{key}={value}" for key, value in getattr(record, "facts", {}).items())
        line = f"{at} {record.levelname.lower()} {words} {facts}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(form: str) -> None:
    """Send draftwise's and uvicorn's records to stderr, as ``text`` or ``json``."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _TextFormatter())
    for name, level in (("draftwise", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
