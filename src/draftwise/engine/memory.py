"""What outlives a request: a policy that many requests share and teach, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwise.lines import STATE_BYTES, read_text, strict_json
from draftwise.protocols import Policy, Remembering, RequestMemory
from draftwise.types import DraftwiseError, Plan

AUTO, REQUEST, SESSION, TASK = "auto", "request", "session", "task:"
_VERSION = 1


def check_scope(scope: str) -> str:
    """The scope; DraftwiseError if there is no such one."""
    if scope in {AUTO, REQUEST, SESSION} or scope.removeprefix(TASK) not in {scope, ""}:
        return scope
    raise DraftwiseError(
        f"unknown scope {scope!r}; the scopes are: {AUTO}, {REQUEST}, {SESSION}, {TASK}LABEL"
    )


class Memory:
    """What a scope's requests share: ``auto``, ``session`` and each ``task:LABEL`` have their own.

    Each request has a policy of its own, which knows what those before it have learnt. A policy
    that cannot (not ``protocols.Remembering``) is shared itself for ``session`` and ``task:LABEL``,
    and learns anew for ``auto``, as for ``request``. What other scopes learnt stays in a file that
    was loaded, and is saved with it again.
    State: one policy, or what policies remember; the states of other scopes as read.
    """

    def __init__(self, scope: str, policy: Policy, name: str, plans: Sequence[Plan]) -> None:
        self.scope = check_scope(scope)
        self.policy: Policy | None = None
        self._shared: RequestMemory | None = None
        self._about: dict[str, Any] = {"policy": name}
        if scope != REQUEST and isinstance(policy, Remembering):
            self._shared = policy.new_memory()  # by drafter: it outlives a change of the plans
        else:
            self.policy = None if scope in {AUTO, REQUEST} else policy
            self._about["plans"] = [str(plan) for plan in plans]
        self._scopes: dict[str, Any] = {}

    def begin(self, policy: Policy, prompt: Sequence[int], label: str, private: bool) -> None:
        """A request begins with its own policy, which is told what the memory knows.

        label: whatever tells its kind, such as a task. private: no other request learns from it.
        """
        if self._shared is not None and isinstance(policy, Remembering):
            policy.recall(self._shared, prompt, label, private)

    @property
    def _kept(self) -> Policy | RequestMemory | None:
        return self.policy if self._shared is None else self._shared

    def save(self, path: str | Path) -> None:
        """Write what was learnt, all at once: a reader never sees half a file.

        Raises DraftwiseError where nothing is kept (scope ``request``); OSError.
        """
        kept = self._kept
        if kept is None:
            raise DraftwiseError(
                f"the scope {self.scope} keeps nothing to save with this policy: choose {SESSION} "
                f"or {TASK}LABEL, or {AUTO} with the policy goodput"
            )
        scopes = self._scopes | {self.scope: kept.state()}
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
            found = strict_json(read_text(Path(path), STATE_BYTES))
            if found["draftwise"] != _VERSION:
                raise ValueError(f"its version is {found['draftwise']}, not {_VERSION}")
            for key, ours in self._about.items():
                if found[key] != ours:
                    raise ValueError(f"it was learnt with the {key} {found[key]}, not {ours}")
            if not isinstance(scopes := found["scopes"], dict):
                raise ValueError("its scopes are no table")
            kept = self._kept
            if kept is not None and self.scope in scopes:
                kept.load_state(scopes[self.scope])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = str(error) if isinstance(error, ValueError) else "it is not a state of draftwise"
            raise DraftwiseError(
                f"cannot take up {path}: {why}; use the options it was made with, or another file"
            ) from error
        self._scopes = scopes
