"""A script in a separate process or environment, driven by lines of JSON."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child_seconds() -> Iterator[list[float]]:
    """Yield a list that holds, after the block, the CPU seconds of child processes that ended."""
    spent, before = [0.0], resource.getrusage(resource.RUSAGE_CHILDREN)
    yield spent
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent[0] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Child:
    """A process that answers each line on its stdin with a line on its stdout."""

    def __init__(self, command: Sequence[str], about: str, **options: Any) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            list(command), stdin=pipe, stdout=pipe, text=True, bufsize=1, **options
        )
        self._about = about

    def __call__(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line and wait for the answer; SystemExit if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(self._about)
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process gracefully, so that its child processes end as well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)
