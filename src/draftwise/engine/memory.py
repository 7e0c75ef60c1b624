"""What outlives a request: a policy that many requests share and teach, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwise.protocols import Policy
from draftwise.types import DraftwiseError, Plan

REQUEST, SESSION, TASK = "request", "session", "task:"
_VERSION = 1


def check_scope(scope: str) -> str:
    """The scope; DraftwiseError if there is no such one."""
    if scope in {REQUEST, SESSION} or scope.removeprefix(TASK) not in {scope, ""}:
        return scope
    raise DraftwiseError(
        f"unknown scope {scope!r}; the scopes are: {REQUEST}, {SESSION}, {TASK}LABEL"
    )


class Memory:
    """The policy of a scope: none for ``request``, one for ``session``, one a ``task:LABEL``.

    What other scopes learnt stays in a file that was loaded, and is saved with it again.
    State: one policy; the states of other scopes as read.
    """

    def __init__(self, scope: str, policy: Policy, name: str, plans: Sequence[Plan]) -> None:
        self.scope = check_scope(scope)
        self.policy = None if scope == REQUEST else policy
        self._about = {"policy": name, "plans": [str(plan) for plan in plans]}
        self._scopes: dict[str, Any] = {}

    def save(self, path: str | Path) -> None:
        """Write what was learnt, all at once: a reader never sees half a file.

        Raises DraftwiseError for the scope ``request``, which keeps nothing; OSError.
        """
        if self.policy is None:
            raise DraftwiseError(
                f"the scope {REQUEST} keeps nothing to save: choose {SESSION} or {TASK}LABEL"
            )
        scopes = self._scopes | {self.scope: self.policy.state()}
        text = json.dumps({"draftwise": _VERSION, **self._about, "scopes": scopes})
        whole = Path(path)
        part = whole.with_name(whole.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, whole)

    def load(self, path: str | Path) -> None:
        """Take up what was saved; a scope that the file does not have begins anew.

        Raises DraftwiseError for a file of something else, of other plans or another policy.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if found["draftwise"] != _VERSION:
                raise ValueError(f"its version is {found['draftwise']}, not {_VERSION}")
            for key, ours in self._about.items():
                if found[key] != ours:
                    raise ValueError(f"it was learnt with the {key} {found[key]}, not {ours}")
            scopes = dict(found["scopes"])
            if self.policy is not None and self.scope in scopes:
                self.policy.load_state(scopes[self.scope])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, ValueError) else "it is not a state of draftwise"
            raise DraftwiseError(
                f"cannot take up {path}: {why}; use the options it was made with, or another file"
            ) from error
        self._scopes = scopes
