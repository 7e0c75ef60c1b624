"""The drafters that retrieve, for all running requests: the project's own, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from draftwise import registry
from draftwise.drafters.protocol import Context, Drafter, DraftTask, Retrieving
from draftwise.drafters.suffix import SuffixDrafter
from draftwise.nn.transfer import answered
from draftwise.stop_rules.thresholds import Fixed
from draftwise.types import DraftwiseError, Plan, Scores

_FIXED = Fixed()


class Arms:
    """One session for every drafter and row; what rows share is the drafter's.

    A row that must not teach others gets a drafter without a history of its own.
    """

    def __init__(self, specs: Sequence[str]) -> None:
        self._drafters = [make_drafter(spec) for spec in specs]
        self.names = [drafter.name for drafter in self._drafters]
        self._rows: dict[int, dict[str, Retrieving]] = {}  # by the identity of the context

    def open(self, context: Context, capacity: int, teaches: bool) -> None:
        """A request that has read its prompt: the matches of the prompt are looked up."""
        sessions = {}
        for drafter in self._drafters:
            own = drafter if teaches else forgetful(drafter)
            session = sessions[drafter.name] = cast(Retrieving, own.start())
            session.open(context, capacity)
        for session in sessions.values():
            session.match_length(context)
        self._rows[id(context)] = sessions

    def close(self, context: Context) -> None:
        """Forget the row; what it shared stays."""
        del self._rows[id(context)]

    def matches(self, context: Context) -> dict[str, int]:
        """By drafter, the tokens of its match at the end of the text; 0 = nothing to propose."""
        sessions = self._rows[id(context)].items()
        return {name: session.match_length(context) for name, session in sessions}

    def propose(self, context: Context, plan: Plan, length: int) -> tuple[int, ...]:
        """At most ``length`` tokens by the plan's drafter."""
        task = DraftTask(context, length, _FIXED)
        found = answered(self._rows[id(context)][plan.drafter].propose([task]))
        return tuple(found[0].tokens.tolist())

    def read(self, contexts: Sequence[Context]) -> list[dict[str, Scores]]:
        """These texts grew: what every drafter would have proposed against what was emitted."""
        found: list[dict[str, Scores]] = [{} for _ in contexts]
        for context, scores in zip(contexts, found, strict=True):
            for name, session in self._rows[id(context)].items():
                (score,) = answered(session.score([context], False))
                if score is not None:
                    scores[name] = score
        for context in contexts:  # shared after all rows were scored
            for session in self._rows[id(context)].values():
                session.commit([context])
        return found


def make_drafter(spec: str) -> Drafter:
    """A drafter that retrieves; DraftwiseError for an unknown one, or one that needs a model."""
    name = spec.partition(":")[0]
    if name in {"lm", "eagle", "medusa"}:
        raise DraftwiseError(
            f"drafter {spec!r} needs a model: inside vLLM a model drafts by --speculative-config; "
            "drafters names those that retrieve (lookup, suffix, datastore:FILE)"
        )
    drafter: Drafter = registry.build("drafter", registry.DRAFTERS, spec, {"name": name})
    return drafter


def forgetful(drafter: Drafter) -> Drafter:
    """The same drafter without a history, where it has one."""
    return drafter.forgetful() if isinstance(drafter, SuffixDrafter) else drafter
