"""Policy state that requests share, which a file can keep."""

from __future__ import annotations

import secrets
import warnings
from pathlib import Path
from typing import Any

from draftwise import checks
from draftwise.controller.goodput import Goodput
from draftwise.controller.rates import Experience
from draftwise.files import set_aside, write_text
from draftwise.protocols import Policy
from draftwise.state import UnusableState, hold, keep_aside, read_state, state_text
from draftwise.types import DraftwiseError

AUTO, REQUEST, SESSION, TASK = "auto", "request", "session", "task:"


def check_scope(scope: str) -> str:
    if scope in {AUTO, REQUEST, SESSION} or scope.removeprefix(TASK) not in {scope, ""}:
        return scope
    raise DraftwiseError(
        f"unknown scope {scope!r}; the scopes are: {AUTO}, {REQUEST}, {SESSION}, {TASK}LABEL"
    )


class SharedPolicyState:
    """State that the requests of a speculator share within one scope.

    shared: the memory from which the policy of each request starts, which a file can keep. It is
    keyed by drafter, so it survives a change of the plans. policy: instead, one policy for all
    requests, if it is no ``Goodput`` and the scope is ``session`` or
    ``task:LABEL``. Both are None if every request starts from scratch.
    """

    def __init__(self, scope: str, policy: Policy, name: str) -> None:
        self.scope = check_scope(scope)
        self.policy: Policy | None = None
        self.shared: Experience | None = None
        self._name = name
        if scope != REQUEST and isinstance(policy, Goodput):
            self.shared = policy.new_memory()
        elif scope not in {AUTO, REQUEST}:
            self.policy = policy
        self._seen: str | None = None

    def save(self, path: str | Path) -> None:
        """Write the state atomically; other scopes in the file are kept.

        A file that another process changed, or that has another policy, is renamed with a warning.
        Raises DraftwiseError if nothing can be kept, the folder is missing, or another process
        holds the file (``hold``); OSError.
        """
        kept, path = self._kept(), checks.path("path", path)
        if not path.parent.is_dir():
            raise DraftwiseError(f"cannot write {path}: there is no folder {path.parent}")
        with hold(path, wait_s=10.0):
            present = self._present(path)
            saved = present["saved"] | {self.scope: secrets.token_hex(8)}
            scopes = present["scopes"] | {self.scope: kept.state()}
            about = {"policy": self._name}
            write_text(path, state_text(about, {"saved": saved, "scopes": scopes}))
            self._seen = saved[self.scope]

    def load(self, path: str | Path) -> None:
        """Read a saved state; a scope that is not in the file starts from scratch.

        Raises DraftwiseError if nothing can be kept, or for a file with another policy, and
        ``UnusableState`` for a damaged file, another version, or a file without a state.
        """
        kept, path = self._kept(), checks.path("path", path)
        found = self._read(path)
        if self.scope in found["scopes"]:
            try:
                kept.load_state(found["scopes"][self.scope])
            except Exception as error:
                why = str(error) if isinstance(error, ValueError) else "its numbers are damaged"
                raise UnusableState(path, why) from error
        self._seen = found["saved"].get(self.scope)

    def load_or_set_aside(self, path: Path) -> str | None:
        """Load a file if it exists; rename an unusable one and return a warning.

        Raises the other errors of ``load``; OSError.
        """
        try:
            if path.exists():
                self.load(path)
        except UnusableState as error:
            return keep_aside(path, error)
        return None

    def _kept(self) -> Experience:
        if self.shared is None:
            raise DraftwiseError(
                f"the policy {self._name} with the scope {self.scope} keeps nothing between runs: "
                f"use the policy goodput with the scope {AUTO}, {SESSION} or {TASK}LABEL"
            )
        return self.shared

    def _present(self, path: Path) -> dict[str, Any]:
        """The content of the file; a file that must not be overwritten is renamed."""
        found: dict[str, Any] = {"saved": {}, "scopes": {}}
        if path.exists():
            try:
                found = self._read(path)
                if self._seen in {None, found["saved"].get(self.scope)}:
                    return found
                why = f"{path} was written by someone else since it was read"
            except (DraftwiseError, OSError) as error:
                why = str(error)
            warnings.warn(f"{why}; it is kept as {set_aside(path)}", stacklevel=3)
        return found

    def _read(self, path: Path) -> dict[str, Any]:
        about, found = read_state(path)
        for key in ("saved", "scopes"):
            if not isinstance(found.get(key), dict):
                raise UnusableState(path, f"its {key} are no table")
        if about.get("policy") != self._name:
            raise DraftwiseError(
                f"cannot load {path}: it was learnt with the policy {about.get('policy')}, not "
                f"{self._name}; use the options it was made with, or another file"
            )
        return found
