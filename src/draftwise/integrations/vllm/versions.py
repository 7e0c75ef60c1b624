"""Which vLLM this was tested with; outside of that range it refuses to run."""

from __future__ import annotations

import re

from draftwise.types import DraftwiseError

OLDEST, NEWEST = (0, 32), (0, 32)
"""The minor versions whose scheduler, worker and sampler were tested (`make test-vllm`)."""

TESTED = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"


def check_version(version: str) -> None:
    """Raise DraftwiseError for a vLLM whose minor version is outside the tested range.

    >>> check_version("0.32.0+cpu")
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    minor = tuple(map(int, found.groups())) if found else ()
    if not OLDEST <= minor <= NEWEST:
        raise DraftwiseError(
            f"draftwise was tested inside vLLM {TESTED}, and this is vLLM {version}: install a "
            "vLLM of that range, or leave --scheduler-cls out"
        )
